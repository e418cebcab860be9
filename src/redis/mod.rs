//! The engine that a fleet shares: Redis or Valkey.
//!
//! One decision is one script call and one round trip, however many policies it asks. The server's clock
//! decides. Keys are `{prefix}:1:{b}:{letter}:{policy}:{subject}`, the braces around `b` being written: `b` is a
//! stable hash of the subject, so that all state of one subject lies in one slot of a cluster.

mod connect;
mod limit;
mod script;

use std::{fmt, sync::Arc};

use self::connect::Connections;
use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, Policy, Store},
};

/// Keeps limits in Redis (6.2 or newer) or Valkey, exact over all processes that share it.
///
/// Clones share one connection. It is made when the first decision needs it, and made anew, with growing pauses,
/// when it is lost. A runtime that ends takes its connection with it; another runtime gets one of its own, so a
/// limiter can be a `static`.
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
    prefix: Arc<str>,
    buckets: u16,
    now: Option<u64>,
}

impl Redis {
    /// Takes the address of a server: `redis://[[user]:password@]host[:port][/database]`.
    ///
    /// Does no I/O: a service starts while Redis is down.
    ///
    /// # Errors
    ///
    /// If the address is not of that form.
    pub fn open(url: &str) -> Result<Self, Error> {
        let connections = Arc::new(Connections::open(url)?);
        Ok(Self { connections, prefix: "tollgate".into(), buckets: DEFAULT_BUCKETS, now: None })
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
        self.prefix = prefix.into();
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

    fn key(&self, policy: &Policy, subject: &Key) -> Vec<u8> {
        limit::key(&self.prefix, self.buckets, policy, subject)
    }
}

/// Returns the name of a key, for tests that look at the server.
#[cfg(test)]
pub(crate) fn key_for_tests(prefix: &str, policy: &Policy, subject: &Key) -> Vec<u8> {
    limit::key(prefix, DEFAULT_BUCKETS, policy, subject)
}

impl Store for Redis {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        if demands.is_empty() {
            return Answer::ready(Ok(Decision::new([])));
        }
        let keys = demands.iter().map(|demand| self.key(demand.policy(), demand.subject())).collect();
        let frame = limit::decide_frame(self.now, &[demands]);
        let asked: limit::Asked = demands.iter().map(|demand| (demand.policy().clone(), demand.cost_u32())).collect();
        let connections = Arc::clone(&self.connections);
        Answer::pending(async move { limit::decide(&connections, keys, frame, &asked).await })
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        let keys = adjustments.iter().map(|a| self.key(a.policy(), a.subject())).collect();
        let frame = limit::settle_frame(self.now, adjustments);
        let connections = Arc::clone(&self.connections);
        Answer::pending(async move { limit::settle(&connections, keys, frame).await })
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        let key = self.key(policy, subject);
        let connections = Arc::clone(&self.connections);
        Answer::pending(async move { limit::reset(&connections, key).await })
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may hold a password.
        f.debug_struct("Redis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Buckets into which subjects are spread. Enough to use every node of a large cluster, few enough that decisions
/// for different subjects can often travel together.
const DEFAULT_BUCKETS: u16 = 256;
