use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{self, Instant},
};

use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, OnError, Pending, Policy, Store},
};

/// Answers in time, whatever the store does: by the policies' [`OnError`] once the deadline has passed.
#[derive(Debug)]
pub(crate) struct Failover<S> {
    store: S,
    deadline: Duration,
    health: Arc<Health>,
}

/// Whether the store is well, so that a change is logged once.
///
/// One failure makes it unwell; only a while without any makes it well again, so that a store that answers now and
/// then fills no log.
#[derive(Debug, Default)]
struct Health {
    failing: AtomicBool,
    failed: Mutex<Option<Instant>>,
}

impl<S: Store> Failover<S> {
    pub(crate) fn new(store: S, deadline: Duration) -> Self {
        Self { store, deadline, health: Arc::default() }
    }
}

impl<S: Store> Store for Failover<S> {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        // In one call a denial outweighs a permission.
        let denied = demands.iter().any(|demand| demand.policy().on_error_choice() == OnError::Deny);
        let pending = match self.store.decide(demands).now() {
            Ok(answered) => return Answer::ready(Ok(self.health.judge(answered, denied))),
            Err(pending) => pending,
        };
        let (deadline, health) = (self.deadline, Arc::clone(&self.health));
        Answer::pending(async move { Ok(health.judge(within(deadline, pending).await, denied)) })
    }

    fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        self.store.decide_now(demands, decision)
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        bounded(self.store.settle(adjustments), self.deadline)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        bounded(self.store.reset(policy, subject), self.deadline)
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        bounded(self.store.block(policy, subject, long), self.deadline)
    }
}

impl Health {
    /// Takes note of what a store answered, and decides by the policies if that was nothing.
    fn judge(&self, answered: Result<Decision, Error>, denied: bool) -> Decision {
        self.note(answered.as_ref().err());
        answered.unwrap_or_else(|_| Decision::without_store(!denied))
    }

    fn note(&self, error: Option<&Error>) {
        if error.is_none() && !self.failing.load(Ordering::Relaxed) {
            return;
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    let source = std::error::Error::source(error).map(tracing::field::display);
                    tracing::warn!(%error, source, "the rate limit store cannot answer; policies decide by their on_error");
                }
                *failed = Some(Instant::now());
            }
            None => {
                let well = failed.is_some_and(|failed| failed.elapsed() >= WELL_AFTER);
                if well && self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the rate limit store answers again");
                }
            }
        }
    }
}

/// How long a store must answer without a failure to be well again.
const WELL_AFTER: Duration = Duration::from_secs(1);

fn bounded(answer: Answer<()>, deadline: Duration) -> Answer<()> {
    match answer.now() {
        Ok(answer) => Answer::ready(answer),
        Err(pending) => Answer::pending(within(deadline, pending)),
    }
}

async fn within<T>(deadline: Duration, answer: Pending<T>) -> Result<T, Error> {
    if Handle::try_current().is_err() {
        // There is no clock to keep a deadline by; the store may still say what it needs.
        return answer.await;
    }
    time::timeout(deadline, answer).await.unwrap_or_else(|_| Err(Error::deadline(deadline)))
}
