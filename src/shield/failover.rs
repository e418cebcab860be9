use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time;

use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, OnError, Policy, Store},
};

/// Answers in time, whatever the store does: by the policies' [`OnError`] once the deadline has passed.
#[derive(Debug)]
pub(crate) struct Failover<S> {
    store: S,
    deadline: Duration,
    health: Arc<Health>,
}

/// Whether the last call found the store well, so that a change is logged once.
#[derive(Debug, Default)]
struct Health {
    failing: AtomicBool,
}

impl<S: Store> Failover<S> {
    pub(crate) fn new(store: S, deadline: Duration) -> Self {
        Self { store, deadline, health: Arc::default() }
    }
}

impl<S: Store> Store for Failover<S> {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let answer = match self.store.decide(demands).now() {
            Ok(Ok(decision)) => return Answer::ready(Ok(decision)),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(pending) => pending,
        };
        // In one call a denial outweighs a permission.
        let on_error = demands.iter().map(|demand| demand.policy().error_choice()).max().unwrap_or_default();
        let (deadline, health) = (self.deadline, Arc::clone(&self.health));
        Answer::pending(async move {
            let answered = within(deadline, answer).await;
            health.note(answered.as_ref().err());
            Ok(answered.unwrap_or_else(|_| Decision::without_store(on_error != OnError::Deny)))
        })
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        bounded(self.store.settle(adjustments), self.deadline)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        bounded(self.store.reset(policy, subject), self.deadline)
    }
}

impl Health {
    fn note(&self, error: Option<&Error>) {
        let failing = error.is_some();
        if self.failing.load(Ordering::Relaxed) == failing || self.failing.swap(failing, Ordering::Relaxed) == failing {
            return;
        }
        match error {
            Some(error) => tracing::warn!(
                %error,
                source = std::error::Error::source(error).map(tracing::field::display),
                "the rate limit store cannot answer; policies decide by their on_error"
            ),
            None => tracing::info!("the rate limit store answers again"),
        }
    }
}

fn bounded(answer: Answer<()>, deadline: Duration) -> Answer<()> {
    match answer.now() {
        Ok(answer) => Answer::ready(answer),
        Err(pending) => Answer::pending(within(deadline, pending)),
    }
}

async fn within<T: Unpin>(deadline: Duration, answer: Answer<T>) -> Result<T, Error> {
    time::timeout(deadline, answer).await.unwrap_or_else(|_| Err(Error::deadline(deadline)))
}
