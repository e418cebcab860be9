//! The engine that a fleet shares: Redis or Valkey.
//!
//! One decision is one script call and one round trip, however many policies it asks. The server's clock
//! decides. Keys are `{prefix}:1:{b}:{letter}:{policy}:{subject}`, the braces around `b` being written: `b` is a
//! stable hash of the subject, so that all state of one subject lies in one slot of a cluster.

mod apart;
mod batch;
mod connect;
mod fenced;
mod lease;
mod limit;
mod node;
mod queue;
mod record;
mod script;
#[cfg(feature = "cluster")]
mod turn;
mod wake;

#[cfg(feature = "tls")]
pub use self::connect::Tls;

use std::{fmt, sync::Arc, time::Duration};

use self::{
    connect::Connections,
    limit::{Asked, Asking, Call, Names, Reply},
    script::DECIDE,
};
use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, Policy, Store},
};

/// Keeps limits and leases in Redis (6.2 or newer) or Valkey, exact over all processes that share it.
///
/// Clones share one connection. It is made when the first decision needs it, and made anew, with growing pauses,
/// when it is lost. A runtime that ends takes its connection with it; another runtime gets one of its own, so a
/// limiter can be a `static`.
///
/// Decisions that wait at the same moment share one script call; one that is alone goes at once.
///
/// ```no_run
/// use tollgate::{Limiter, Redis};
///
/// let limiter = Limiter::new(Redis::open("redis://127.0.0.1:6379")?);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct Redis {
    connections: Arc<Connections>,
    now: Option<u64>,
}

impl Redis {
    /// Takes an address; does no I/O: a service starts while Redis is down.
    ///
    /// | address | server |
    /// |---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | one Redis or Valkey |
    /// | `unix:///path[?db=3][&user=...&pass=...]` | the same, by a Unix socket; also `redis+unix:` |
    /// | `rediss://` as above | by TLS, feature `tls` |
    /// | `redis+cluster://[[user]:password@]host[:port],...` | the Cluster that these nodes belong to, feature `cluster`; `rediss+cluster:` by TLS |
    /// | `redis+sentinel://[[user]:password@]host[:port],.../master[/database]` | the master that these sentinels know, feature `sentinel`; `rediss+sentinel:` by TLS |
    ///
    /// `valkey` serves in the place of `redis`. What is not a letter or digit in a user or password is percent-encoded.
    /// User and password of Sentinel are those of the servers; the sentinels' own are told by
    /// `?sentinel_user=...&sentinel_pass=...`. A connection to the master is followed to the next one when it is lost, or
    /// the server takes no writes any more.
    ///
    /// # Errors
    ///
    /// If the address is not of these forms, or needs a feature that is off.
    pub fn open(url: &str) -> Result<Self, Error> {
        Ok(Self { connections: Arc::new(Connections::new(connect::read(url)?, default_names())), now: None })
    }

    /// Sets what all keys begin with; the default is `tollgate`.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 64 bytes, or has braces, white space or anything but printable ASCII.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, Error> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(plain) {
            let prefix = prefix.escape_debug();
            return Err(Error::invalid(format!(
                "prefix `{prefix}`: must be 1 to 64 of printable ASCII without braces"
            )));
        }
        let names = Names { prefix: prefix.into(), ..self.connections.names().clone() };
        self.connections = Arc::new(self.connections.renamed(names));
        Ok(self)
    }

    /// Fixes the time that scripts decide by, in microseconds since 1970. Keys still end by the server's clock.
    ///
    /// Not part of the public face: it lets this crate's tests step the clock.
    #[doc(hidden)]
    #[must_use]
    pub fn at_time_for_tests(mut self, now: u64) -> Self {
        self.now = Some(now);
        self
    }

    /// Decides as while slots move.
    #[cfg(all(test, feature = "cluster"))]
    pub(crate) fn by_key_for_tests(mut self) -> Self {
        let names = Names { by_key: true, ..self.connections.names().clone() };
        self.connections = Arc::new(self.connections.renamed(names));
        self
    }

    /// Writes the command of one decision, and decides by what a script might return to it: what a decision costs
    /// this process besides sending and waiting.
    ///
    /// Not part of the public face: it lets this crate's tests count instructions.
    ///
    /// # Errors
    ///
    /// If the numbers are no answer to these demands.
    #[doc(hidden)]
    pub fn without_server_for_tests(&self, demands: &[Demand<'_>], told: &[i64]) -> Result<(Vec<u8>, Decision), Error> {
        let asked: Asked = demands.iter().map(Asking::from).collect();
        let call = Call::decide(self.connections.names(), self.now, [(&asked, 1)].into_iter(), false);
        let command = DECIDE.command(&call).get_packed_command();
        // The mark is not looked at here.
        let (head, found) = told.split_at(told.len().min(2));
        let numbers = head.iter().chain([&0]).chain(found);
        let reply = redis::Value::Array(numbers.map(|number| redis::Value::Int(*number)).collect());
        let mut finding = Reply::new(&reply)?.0.next(&asked)?;
        Ok((command, finding.decide(&asked)))
    }
}

fn default_names() -> Names {
    Names {
        prefix: DEFAULT_PREFIX.into(),
        buckets: DEFAULT_BUCKETS,
        apart: false,
        #[cfg(test)]
        by_key: false,
    }
}

/// Returns the name of a key, for tests that look at the server.
#[cfg(test)]
pub(crate) fn key_for_tests(prefix: &str, policy: &Policy, subject: &Key) -> Vec<u8> {
    let mut name = Vec::new();
    Names { prefix: prefix.into(), ..default_names() }.state(policy, subject, &mut name);
    name
}

impl Store for Redis {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        if demands.is_empty() {
            return Answer::ready(Ok(Decision::new([])));
        }
        let asked: Asked = demands.iter().map(Asking::from).collect();
        match self.now {
            None => self.connections.decide(asked),
            Some(now) => self.connections.decide_at(now, asked),
        }
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.connections.settle(self.now, adjustments)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        let mut key = Vec::new();
        self.connections.names().state(policy, subject, &mut key);
        let connections = Arc::clone(&self.connections);
        Answer::pending(async move { connections.send(&key, redis::cmd("DEL").arg(&key)).await.map(drop) })
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        let long = u64::try_from(long.as_micros()).unwrap_or(u64::MAX).min(LONGEST_BLOCK_MICROS);
        let call = Call::block(self.connections.names(), self.now, policy, subject, long);
        let (connections, subject) = (Arc::clone(&self.connections), *subject);
        Answer::pending(async move { connections.block(&subject, long, &call).await })
    }

    fn finish(&self) -> Answer<()> {
        self.connections.finish()
    }

    fn parts(&self, demands: &[Demand<'_>]) -> u64 {
        self.connections.parts(demands)
    }

    fn is_connected(&self) -> Option<bool> {
        self.connections.is_connected()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may hold a password.
        f.debug_struct("Redis").field("names", self.connections.names()).finish_non_exhaustive()
    }
}

/// Buckets into which subjects are spread. Enough to use every node of a large cluster, few enough that decisions
/// for different subjects can often travel together.
const DEFAULT_BUCKETS: u16 = 256;

const DEFAULT_PREFIX: &str = "tollgate";

/// A hundred years, which stays below 2⁵³ when the present time is added: for ever.
const LONGEST_BLOCK_MICROS: u64 = 100 * 366 * 86_400 * 1_000_000;
