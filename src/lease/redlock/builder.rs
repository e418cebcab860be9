use std::{fmt, sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::{Inner, Node, Redlock, node::Watched, rounds::Rounds};
use crate::{
    error::Error,
    lease::{Keeper, renew::in_time},
};

/// Sets what a [`Redlock`] needs to know.
#[must_use = "it does nothing until it is built"]
pub struct RedlockBuilder {
    nodes: Vec<Arc<dyn Node>>,
    max_lease: Duration,
    trusts_fresh: bool,
}

impl RedlockBuilder {
    pub(super) fn new(nodes: Vec<Arc<dyn Node>>) -> Self {
        Self { nodes, max_lease: DEFAULT_MAX_LEASE, trusts_fresh: false }
    }

    /// Sets the longest lease that anybody takes on these servers; a minute by default. All processes have to say the same.
    ///
    /// A longer lease is refused, and a server that was restarted is left out for so long.
    pub fn max_lease(mut self, longest: Duration) -> Self {
        self.max_lease = longest;
        self
    }

    /// Counts servers that have just started.
    ///
    /// For the first start of all, when there cannot be a lease, and for tests. Where a server may have forgotten one, a
    /// lease can be held twice.
    pub fn trust_fresh_nodes(mut self) -> Self {
        self.trusts_fresh = true;
        self
    }

    /// Asks the servers who they are, and builds. A server that cannot be reached is asked again when it is needed.
    ///
    /// # Errors
    ///
    /// If the number of servers is even or below three, or one of them does not let itself be asked (`INFO`).
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn build(self) -> Result<Redlock, Error> {
        let count = self.nodes.len();
        if count < 3 {
            return Err(Error::invalid(format!(
                "redlock over {count} servers: must be three or more, since with fewer the loss of one is the loss of all; \
                 on one server a lock needs no redlock"
            )));
        }
        if count.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "redlock over {count} servers: must be an odd number, since one more than {} tolerates the loss of no more \
                 of them",
                count - 1
            )));
        }
        let mut asking = JoinSet::new();
        for node in self.nodes.clone() {
            asking.spawn(async move { in_time(ASK_WITHIN, node.incarnation()).await });
        }
        for answer in asking.join_all().await {
            if let Err(error) = answer
                && error.is_invalid()
            {
                return Err(error);
            }
        }
        let Self { nodes, max_lease, trusts_fresh } = self;
        Ok(Redlock(Arc::new(Inner {
            nodes: nodes.into_iter().map(Watched::new).collect(),
            rounds: Rounds::default(),
            keeper: Keeper::new(),
            max_lease,
            trusts_fresh,
        })))
    }
}

impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

const DEFAULT_MAX_LEASE: Duration = Duration::from_secs(60);

/// How long a server may take to say who it is when a redlock is built.
const ASK_WITHIN: Duration = Duration::from_secs(2);
