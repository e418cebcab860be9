//! Under which token a lease stands on the servers, and what becomes of one that comes to nothing.
//!
//! 1. Each round of acquires has a token of its own: what gives back a round that came to nothing may reach a server
//!    late, and must not end there what the next round has taken.
//! 2. What a slow server grants when the round has come to nothing, or the lease was released meanwhile, is given back.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use super::{Redlock, node::Watched};
use crate::{
    error::Error,
    lease::{
        LeaseId, LeaseStore, Token,
        renew::{call_deadline, in_time},
    },
};

/// The last round of each lease, by the token of its holder.
#[derive(Default)]
pub(super) struct Rounds(Mutex<HashMap<Token, Last>>);

struct Last {
    under: Token,
    over: Over,
    is_won: bool,
    /// When it has ended at the latest, if nobody speaks of it any more.
    until: Duration,
}

impl Rounds {
    /// Begins a round under a token of its own, or under the one that holds.
    fn begin(&self, id: &LeaseId, until: Duration, now: Duration) -> Result<(LeaseId, Over), Error> {
        let mut all = self.lock();
        if all.len() >= 64 && all.len().is_power_of_two() {
            all.retain(|_, last| last.until > now);
        }
        let (under, over, is_won) = match all.get(&id.token()) {
            Some(last) if last.is_won && !last.over.is_over() => (last.under, last.over.clone(), true),
            _ => (Token::random()?, Over::default(), false),
        };
        all.insert(id.token(), Last { under, over: over.clone(), is_won, until });
        Ok((id.under(under), over))
    }

    /// Returns what a lease is called on the servers, and whether it is over.
    pub(super) fn of(&self, id: &LeaseId, until: Duration) -> (LeaseId, Over) {
        let mut all = self.lock();
        let Some(last) = all.get_mut(&id.token()) else { return (id.clone(), Over::default()) };
        last.until = until;
        (id.under(last.under), last.over.clone())
    }

    fn win(&self, id: &LeaseId) {
        self.lock().entry(id.token()).and_modify(|last| last.is_won = true);
    }

    /// Forgets a lease that the servers no longer know.
    pub(super) fn forget(&self, id: &LeaseId) {
        self.lock().remove(&id.token());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Token, Last>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what was asked for is wanted no more.
#[derive(Clone, Default)]
pub(super) struct Over(Arc<AtomicBool>);

impl Over {
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Releases what a node has just granted, if that is over: the release for all may have come there before.
    pub(super) async fn give_back_late(&self, node: &Watched, id: &LeaseId) -> Result<(), Error> {
        if self.is_over() {
            node.node.release(id).await?;
        }
        Ok(())
    }
}

/// A round of acquires. Unless it is won, all is given back, also by nodes that are late, and if nobody waits any more.
pub(super) struct Round {
    redlock: Redlock,
    asked: LeaseId,
    id: LeaseId,
    ttl: Duration,
    over: Over,
    is_won: bool,
}

impl Round {
    pub(super) fn begin(redlock: &Redlock, asked: LeaseId, ttl: Duration) -> Result<Self, Error> {
        let now = redlock.clock().now();
        let (id, over) = redlock.0.rounds.begin(&asked, redlock.ends(now), now)?;
        Ok(Self { redlock: redlock.clone(), asked, id, ttl, over, is_won: false })
    }

    /// Returns what the lease is called on the servers.
    pub(super) fn id(&self) -> &LeaseId {
        &self.id
    }

    pub(super) fn over(&self) -> Over {
        self.over.clone()
    }

    pub(super) fn win(mut self) {
        self.is_won = true;
        self.redlock.0.rounds.win(&self.asked);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.is_won {
            return;
        }
        self.over.set();
        // Without a runtime nothing can be sent, and what was granted ends by itself.
        let Ok(runtime) = Handle::try_current() else { return };
        for node in &self.redlock.0.nodes {
            let (node, id, ttl) = (Arc::clone(&node.node), self.id.clone(), self.ttl);
            runtime.spawn(async move {
                let _ = in_time(call_deadline(ttl), node.release(&id)).await;
            });
        }
    }
}
