use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use http::Response;

use crate::layer::RefusalBody;

/// Leads from the request's messages to the response, which ends when one of them is refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Link(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    refusal: Option<Response<RefusalBody>>,
    /// Who answers.
    answering: Option<Waker>,
}

impl Link {
    /// Tells the response that it is over.
    pub(super) fn refuse(&self, refusal: Response<RefusalBody>) {
        let mut state = self.state();
        state.refusal = Some(refusal);
        let answering = state.answering.take();
        drop(state);
        if let Some(waker) = answering {
            waker.wake();
        }
    }

    /// Takes the refusal, if there is one; else is woken when there is.
    pub(super) fn poll_refusal(&self, cx: &Context<'_>) -> Poll<Response<RefusalBody>> {
        let mut state = self.state();
        match state.refusal.take() {
            Some(refusal) => Poll::Ready(refusal),
            None => {
                state.answering = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
