mod address;
#[cfg(feature = "redis-connection")]
mod owned;
mod route;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "tls")]
mod tls;

use std::{
    future::{Future, poll_fn},
    hash::{BuildHasher, RandomState},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::{
    runtime,
    sync::{Notify, watch},
    time,
};

use self::route::Route;
#[cfg(feature = "tls")]
pub use self::tls::Tls;
pub(super) use self::{address::read, route::Handle};
use super::{
    batch::{Batches, Queue},
    limit::{Asked, Call, Names, Reply, Request},
    script::{BLOCK, DECIDE, Script},
};
use crate::{
    error::Error,
    limit::{Answer, Micros},
};

/// One connection for each runtime that asks.
///
/// A connection is driven by the runtime that made it and dies with it, so each runtime has its own.
pub(super) struct Connections {
    route: Route,
    names: Names,
    lines: Mutex<Vec<Line>>,
}

/// One runtime's connection, and the decisions that wait for it.
struct Line {
    runtime: runtime::Id,
    state: watch::Receiver<State>,
    queue: Arc<Queue>,
}

enum State {
    Connecting,
    Up(Connection),
    Down(Error),
}

/// A connection in use.
#[derive(Clone)]
pub(super) struct Connection {
    handle: Handle,
    known: Arc<Known>,
}

/// What is known of a connection and the server behind it; the next connection starts anew.
#[derive(Default)]
struct Known {
    /// Told once the connection is of no more use.
    broken: Notify,
    /// Whether anything useful has come back on it.
    answered: AtomicBool,
    /// Whether the server said that somebody may be blocked.
    blocks: AtomicBool,
}

impl Connections {
    pub(super) fn new(route: Route, names: Names) -> Self {
        Self { route, names, lines: Mutex::default() }
    }

    /// Returns the same with other names of keys.
    pub(super) fn renamed(&self, names: Names) -> Self {
        Self::new(self.route.clone(), names)
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Puts a request in line for this runtime's connection; fails at once while that is down.
    pub(super) fn decide(&self, asked: Asked) -> Answer {
        match self.with_line(|line| line.queue.push(asked)) {
            Ok(answer) => answer,
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// Waits for this runtime's connection; fails at once while it is down and a pause has not passed.
    pub(super) async fn get(&self) -> Result<Connection, Error> {
        let mut state = self.with_line(|line| line.state.clone())?;
        let settled = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match settled.as_deref() {
            Ok(State::Up(connection)) => Ok(connection.clone()),
            Ok(State::Down(error)) => Err(error.clone()),
            Ok(State::Connecting) | Err(_) => Err(cut_off()),
        }
    }

    /// Does something with this runtime's line, which is made if there is none.
    fn with_line<T>(&self, act: impl FnOnce(&Line) -> T) -> Result<T, Error> {
        let Ok(runtime) = runtime::Handle::try_current() else {
            return Err(Error::store("redis needs a tokio runtime, and this is none"));
        };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let id = runtime.id();
        if let Some(line) = lines.iter().find(|line| line.runtime == id && line.is_kept_up()) {
            return Ok(act(line));
        }
        lines.retain(Line::is_kept_up);
        let (sender, state) = watch::channel(State::Connecting);
        let line = Line { runtime: id, state, queue: Arc::default() };
        runtime.spawn(keep_up(self.route.clone(), self.names.clone(), Arc::clone(&line.queue), sender));
        let done = act(&line);
        lines.push(line);
        Ok(done)
    }
}

impl Line {
    /// Returns true if the task that works on it lives. It is gone when its runtime is.
    fn is_kept_up(&self) -> bool {
        self.state.has_changed().is_ok()
    }
}

impl Connection {
    /// Calls `decide.lua`; once more, with what blocks the subjects, if it did nothing for want of that.
    pub(super) async fn decide(
        &self,
        names: &Names,
        now: Option<Micros>,
        requests: impl Iterator<Item = Request<'_>> + Clone,
    ) -> Result<Value, Error> {
        let blocks = self.known.blocks.load(Ordering::Relaxed);
        let reply = self.call(&DECIDE, &Call::decide(names, now, requests.clone(), blocks)).await?;
        if blocks || !Reply::wants_blocks(&reply) {
            return Ok(reply);
        }
        self.call(&DECIDE, &Call::decide(names, now, requests, true)).await
    }

    /// Calls `block.lua`; from now on calls tell what blocks their subjects.
    pub(super) async fn block(&self, call: &Call) -> Result<(), Error> {
        self.known.blocks.store(true, Ordering::Relaxed);
        self.call(&BLOCK, call).await.map(drop)
    }

    /// Begins to read what `decide.lua` answered.
    pub(super) fn read<'a>(&self, reply: &'a Value) -> Result<Reply<'a>, Error> {
        let (reply, blocks) = Reply::new(reply)?;
        self.known.blocks.store(blocks, Ordering::Relaxed);
        Ok(reply)
    }

    /// Calls a script. A connection on which nothing comes back for [`CALL_TIMEOUT`] is given up.
    pub(super) async fn call(&self, script: &Script, call: &Call) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        self.watched(script.call(&mut handle, call)).await
    }

    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        self.watched(command.query_async(&mut handle)).await
    }

    async fn watched(&self, answer: impl Future<Output = Result<Value, RedisError>>) -> Result<Value, Error> {
        match time::timeout(CALL_TIMEOUT, answer).await {
            Ok(Ok(value)) => {
                self.known.answered.store(true, Ordering::Relaxed);
                Ok(value)
            }
            Ok(Err(error)) => Err(self.failed(error)),
            Err(_) => {
                self.known.broken.notify_one();
                Err(Error::deadline(CALL_TIMEOUT))
            }
        }
    }

    /// Turns a failure into our error, and has the connection made anew if it is of no more use.
    fn failed(&self, error: RedisError) -> Error {
        // A server that no longer takes writes is not the one to be connected to.
        let demoted = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown].map(ErrorKind::Server);
        if error.is_unrecoverable_error() || error.is_io_error() || demoted.contains(&error.kind()) {
            self.known.broken.notify_one();
        }
        let what = match error.code() {
            Some(code) => format!("redis answered {code}: {}", error.detail().unwrap_or_default()),
            None => "redis did not answer".to_owned(),
        };
        Error::store(what).with_source(error)
    }
}

/// What waiters are told whose connection went away under them.
pub(super) fn cut_off() -> Error {
    Error::store("the connection to redis was lost")
}

/// Connects, works until the connection is broken, and connects again, for as long as somebody may ask for it.
async fn keep_up(route: Route, names: Names, queue: Arc<Queue>, state: watch::Sender<State>) {
    let mut failures: u32 = 0;
    loop {
        let known = Arc::new(Known::default());
        let wait = match route.connect(&known).await {
            Ok(handle) => {
                let connection = Connection { handle, known: Arc::clone(&known) };
                queue.open();
                state.send_replace(State::Up(connection.clone()));
                if work(&state, &known.broken, Batches::new(&queue, &names, connection)).await.is_gone() {
                    return;
                }
                state.send_replace(State::Connecting);
                // A server that accepts and then fails at once is left alone like one that is down.
                if known.answered.load(Ordering::Relaxed) {
                    failures = 0;
                    Duration::ZERO
                } else {
                    failures = failures.saturating_add(1);
                    pause(failures)
                }
            }
            Err(error) => {
                queue.close(&error);
                state.send_replace(State::Down(error));
                failures = failures.saturating_add(1);
                pause(failures)
            }
        };
        if time::timeout(wait, state.closed()).await.is_ok() {
            return;
        }
    }
}

/// Why work on a connection ended.
enum End {
    /// Nobody can ask any more.
    Gone,
    Broken,
}

impl End {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }
}

/// Works until the connection is broken, or nobody can ask any more.
async fn work(state: &watch::Sender<State>, broken: &Notify, batches: Batches<'_>) -> End {
    let (mut gone, mut broken, mut batches) = (pin!(state.closed()), pin!(broken.notified()), pin!(batches));
    poll_fn(|cx| {
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Gone);
        }
        let _ = batches.as_mut().poll(cx);
        broken.as_mut().poll(cx).map(|()| End::Broken)
    })
    .await
}

/// Returns how long to leave a server alone after so many failures, with jitter so that a fleet spreads out.
fn pause(failures: u32) -> Duration {
    let longest = SHORTEST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE);
    // A hasher's random seed is all the randomness that a pause needs.
    let random = u32::try_from(RandomState::new().hash_one(failures) >> 48).expect("sixteen bits");
    longest / 2 + longest / 2 * random / (1 << 16)
}

/// Longer than any deadline that makes sense for a decision, and short against the quarter of an hour after which
/// a system gives up on a peer that has vanished.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Short enough that a server is in use again within a second of its start, and long enough to be nothing to it.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
