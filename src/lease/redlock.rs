//! Leases on a majority of servers: how one is taken (`acquire`), renewed (`extend`) and given back (`rounds`), and which
//! servers count (`node`).

mod acquire;
mod builder;
mod extend;
mod node;
mod rounds;
mod store;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::sync::mpsc;

pub use self::{
    builder::RedlockBuilder,
    node::{Incarnation, Node},
};
use self::{node::Watched, rounds::Rounds};
use super::{
    Keeper,
    renew::{call_deadline, in_time},
};
use crate::error::Error;

/// Keeps leases on a majority of independent servers, for where one server is not enough.
///
/// First ask whether it is: with one server, or a master and replicas, a lease may be held twice after a failover, which a
/// fence at the resource makes harmless. Redlock tolerates the loss of a minority of servers that do not know each other;
/// it costs as many calls, and still needs the fence where nothing may happen twice.
///
/// - It answers as soon as a majority has answered, so a server that hangs costs nothing. What is late is settled
///   in the background.
/// - Fences grow as on one server: each server mints one, and the greatest is raised on a majority before the lease is
///   granted. So the next majority meets it.
/// - An extension counts servers that still held. Others are healed, and do not count for it.
/// - A server that has started less than [`max_lease`](RedlockBuilder::max_lease) and a second ago, is another one than
///   before, or follows another one is not counted: it may have forgotten a lease.
///
/// ```no_run
/// # async fn make() -> Result<(), tollgate::Error> {
/// # #[cfg(feature = "redis")] {
/// use tollgate::{Redis, lease::{Lock, Redlock}};
///
/// let servers = ["redis://a", "redis://b", "redis://c"].map(Redis::open);
/// let redlock = Redlock::over(servers.into_iter().collect::<Result<Vec<_>, _>>()?).build().await?;
/// let guard = Lock::new(&redlock, "order:7").acquire().await?;
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redlock(Arc<Inner>);

struct Inner {
    nodes: Vec<Watched>,
    rounds: Rounds,
    keeper: Keeper,
    max_lease: Duration,
    trusts_fresh: bool,
}

impl Redlock {
    /// Begins with the servers: three, five or seven that do not replicate each other.
    pub fn over<N: Node>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
        let nodes = nodes.into_iter().map(|node| Arc::new(node) as Arc<dyn Node>).collect();
        RedlockBuilder::new(nodes)
    }

    fn quorum(&self) -> usize {
        self.0.nodes.len() / 2 + 1
    }

    /// Returns by when what is spoken of now has ended, if nobody speaks of it again.
    fn ends(&self, now: Duration) -> Duration {
        now + 2 * self.0.max_lease
    }

    /// Asks all nodes, each in a task of its own: one that is late is settled though nobody waits for it any more.
    fn ask_all<T, F>(&self, ttl: Duration, ask: impl Fn(usize, Watched, Arc<Inner>) -> F) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (sender, answers) = mpsc::unbounded_channel();
        for (i, node) in self.0.nodes.iter().enumerate() {
            let (sender, asking) = (sender.clone(), ask(i, node.clone(), Arc::clone(&self.0)));
            tokio::spawn(async move {
                // Who has enough answers waits for no more.
                let _ = sender.send((i, in_time(call_deadline(ttl), asking).await));
            });
        }
        Answers(answers)
    }
}

/// The answers of nodes as they come.
struct Answers<T>(mpsc::UnboundedReceiver<(usize, Result<T, Error>)>);

impl<T> Answers<T> {
    /// Returns the next answer; nothing when all have answered.
    async fn next(&mut self) -> Option<(usize, Result<T, Error>)> {
        self.0.recv().await
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("nodes", &self.0.nodes.len()).finish_non_exhaustive()
    }
}
