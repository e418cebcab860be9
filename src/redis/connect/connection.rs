use std::{
    future::{self, Future, poll_fn},
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use super::{failure::Failure, route::Handle};
use crate::{
    error::Error,
    limit::Micros,
    redis::{
        batch::{Carrier, Undone},
        limit::{Call, Names, Reply, Request},
        node::Run,
        script::{DECIDE, Script},
        wake::Wakes,
    },
};

/// A connection in use.
#[derive(Clone)]
pub(in crate::redis) struct Connection {
    pub(super) handle: Handle,
    pub(super) known: Arc<Known>,
}

/// What is known of a connection and the server behind it; the next connection starts anew.
#[derive(Default)]
pub(super) struct Known {
    /// Told once the connection is of no more use, or nothing comes back on it.
    pub(super) broken: Notify,
    /// Why it is of no more use, if an answer has told.
    pub(super) why: OnceLock<Error>,
    /// Whether anything useful has come back on it.
    pub(super) answered: AtomicBool,
    /// The master's address, as a sentinel told it.
    #[cfg(feature = "sentinel")]
    pub(super) master: OnceLock<(String, u16)>,
    /// Whether the server said that somebody may be blocked.
    pub(super) blocks: AtomicBool,
    /// Whether it was told that it is of no more use.
    pub(super) is_broken: AtomicBool,
    /// Whether nothing comes back on it, which may be its server's fault.
    pub(super) is_silent: AtomicBool,
    /// Who waits for what.
    pub(super) wakes: Arc<Wakes>,
    /// Which run of the server it is, once it was asked.
    pub(super) run: OnceLock<Run>,
}

impl Known {
    /// Notes that the connection is of no more use.
    pub(super) fn breaks(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        self.broken.notify_one();
    }

    /// Notes that nothing came back in time.
    pub(super) fn falls_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
        self.broken.notify_one();
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.is_silent.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Calls `decide.lua`; once more, with what blocks the subjects, if it did nothing for want of that.
    pub(super) async fn decide_at(
        &self,
        names: &Names,
        now: Option<Micros>,
        requests: impl Iterator<Item = Request<'_>> + Clone,
    ) -> Result<Value, Error> {
        let blocks = self.known.blocks.load(Ordering::Relaxed);
        let reply = self.call_in_turn(&DECIDE, &Call::decide(names, now, requests.clone(), blocks)).await?;
        if blocks || !Reply::wants_blocks(&reply) {
            return Ok(reply);
        }
        self.call_in_turn(&DECIDE, &Call::decide(names, now, requests, true)).await
    }

    /// Calls a script, and gives up when it is polled after [`CALL_TIMEOUT`]; who polls it sees to that.
    pub(super) async fn call_in_turn(&self, script: &Script, call: &Call) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        let (sent, mut answer) = (Instant::now(), pin!(script.call(&mut handle, call)));
        let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Pending if sent.elapsed() < CALL_TIMEOUT => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
        });
        let reply = self.judged(answered.await)?;
        self.own(call, reply)
    }

    /// Returns a reply if it is that to this call. Else one before it was lost on the way, though the connection was
    /// not, and each that comes is another call's.
    pub(super) fn own(&self, call: &Call, reply: Value) -> Result<Value, Error> {
        if call.is_answered_by(&reply) {
            return Ok(reply);
        }
        let error = Error::store("redis answered another call, since an answer was lost on the way");
        let _ = self.known.why.set(error.clone());
        self.known.breaks();
        Err(error)
    }

    /// Hears what is published on a channel from now on.
    pub(in crate::redis) async fn subscribe(&self, channel: &[u8]) -> Result<(), Error> {
        let mut handle = self.handle.clone();
        let answer = async move { handle.subscribe(channel).await.map(|()| Value::Nil) };
        self.tried(answer).await.map(drop).map_err(Error::from)
    }

    pub(in crate::redis) async fn unsubscribe(&self, channel: &[u8]) -> Result<(), Error> {
        let mut handle = self.handle.clone();
        let answer = async move { handle.unsubscribe(channel).await.map(|()| Value::Nil) };
        self.tried(answer).await.map(drop).map_err(Error::from)
    }

    /// Returns who waits for what on this connection.
    pub(in crate::redis) fn wakes(&self) -> &Arc<Wakes> {
        &self.known.wakes
    }

    /// Returns which run of the server it is, once it was asked.
    pub(in crate::redis) fn run(&self) -> &OnceLock<Run> {
        &self.known.run
    }

    /// Returns true if this connection is of no more use, as far as is known now.
    pub(in crate::redis) fn is_broken(&self) -> bool {
        !self.known.is_usable()
    }

    /// Waits until something comes back on it; for ever if nothing can.
    ///
    /// What is asked changes nothing, and waits with all that was sent before for a server that stands still.
    pub(super) async fn awakes(self) -> Self {
        let mut handle = self.handle.clone();
        match redis::cmd("TIME").query_async::<Value>(&mut handle).await {
            Err(error) if error.is_unrecoverable_error() || error.is_io_error() => future::pending().await,
            // An error too is an answer.
            _ => {
                self.known.is_silent.store(false, Ordering::Relaxed);
                self
            }
        }
    }

    /// Calls a script. A connection on which nothing comes back for [`CALL_TIMEOUT`] is not used until something does.
    pub(super) async fn call(&self, script: &Script, call: &Call) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        self.tried(script.call(&mut handle, call)).await.map_err(Error::from)
    }

    pub(in crate::redis) async fn send(&self, command: &Cmd) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        self.tried(command.query_async(&mut handle)).await.map_err(Error::from)
    }

    /// Waits for an answer, and has the connection made anew if it is of no more use.
    pub(super) async fn tried(
        &self,
        answer: impl Future<Output = Result<Value, RedisError>>,
    ) -> Result<Value, Failure> {
        self.judged(time::timeout(CALL_TIMEOUT, answer).await.ok())
    }

    /// Takes note of an answer, or that none came in time.
    pub(super) fn judged(&self, answered: Option<Result<Value, RedisError>>) -> Result<Value, Failure> {
        match answered {
            Some(Ok(value)) => {
                self.known.answered.store(true, Ordering::Relaxed);
                Ok(value)
            }
            Some(Err(error)) => {
                // A server that no longer takes writes is not the one to be connected to.
                let demoted = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown].map(ErrorKind::Server);
                if error.is_unrecoverable_error() || error.is_io_error() || demoted.contains(&error.kind()) {
                    let _ = self.known.why.set(Failure::Error(error.clone()).into());
                    self.known.breaks();
                }
                Err(Failure::Error(error))
            }
            None => {
                self.known.falls_silent();
                Err(Failure::Silence)
            }
        }
    }
}

impl Carrier for Connection {
    async fn decide<'r>(
        &self,
        names: &Names,
        requests: impl Iterator<Item = Request<'r>> + Clone + Send,
        _: impl Fn() -> bool + Send + Sync,
    ) -> Result<Value, Undone> {
        self.decide_at(names, None, requests).await.map_err(Undone::Failed)
    }

    fn read<'v>(&self, reply: &'v Value) -> Result<Reply<'v>, Error> {
        let (reply, blocks) = Reply::new(reply)?;
        self.known.blocks.store(blocks, Ordering::Relaxed);
        Ok(reply)
    }
}

/// Longer than any deadline that makes sense for a decision, and short against the quarter of an hour after which
/// a system gives up on a peer that has vanished.
pub(in crate::redis) const CALL_TIMEOUT: Duration = Duration::from_secs(1);
