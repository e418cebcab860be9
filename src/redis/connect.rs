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

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushKind,
    RedisError, ServerErrorKind, Value,
    aio::{MultiplexedConnection, SendError},
    io::tcp::TcpSettings,
};
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, watch},
    time,
};

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
    client: Client,
    /// For servers and proxies that do not speak RESP3.
    client_resp2: Client,
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
    Down(RedisError),
}

/// A connection in use.
#[derive(Clone)]
pub(super) struct Connection {
    handle: MultiplexedConnection,
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
    /// Reads an address; does no I/O.
    pub(super) fn open(url: &str, names: Names) -> Result<Self, Error> {
        let info = read(url)?;
        let client = |protocol| {
            // Introducing itself would cost a right, and an old server an error in its log.
            let settings = info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
            Client::open(info.clone().set_redis_settings(settings))
                .map_err(|error| wrong(url, "cannot be used").with_source(error))
        };
        let (client, client_resp2) = (client(ProtocolVersion::RESP3)?, client(ProtocolVersion::RESP2)?);
        Ok(Self { client, client_resp2, names, lines: Mutex::default() })
    }

    pub(super) fn renamed(&self, names: Names) -> Self {
        let (client, client_resp2) = (self.client.clone(), self.client_resp2.clone());
        Self { client, client_resp2, names, lines: Mutex::default() }
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
            Ok(State::Down(error)) => Err(down(error)),
            Ok(State::Connecting) | Err(_) => Err(cut_off()),
        }
    }

    /// Does something with this runtime's line, which is made if there is none.
    fn with_line<T>(&self, act: impl FnOnce(&Line) -> T) -> Result<T, Error> {
        let Ok(runtime) = Handle::try_current() else {
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
        let clients = [self.client.clone(), self.client_resp2.clone()];
        runtime.spawn(keep_up(clients, self.names.clone(), Arc::clone(&line.queue), sender));
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

fn down(error: &RedisError) -> Error {
    Error::store("cannot connect to redis").with_source(error.clone())
}

/// What waiters are told whose connection went away under them.
pub(super) fn cut_off() -> Error {
    Error::store("the connection to redis was lost")
}

/// Connects, works until the connection is broken, and connects again, for as long as somebody may ask for it.
async fn keep_up(clients: [Client; 2], names: Names, queue: Arc<Queue>, state: watch::Sender<State>) {
    let mut failures: u32 = 0;
    loop {
        let known = Arc::new(Known::default());
        let wait = match connect(&clients, &known).await {
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
                queue.close(&down(&error));
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

async fn connect(clients: &[Client; 2], known: &Arc<Known>) -> Result<MultiplexedConnection, RedisError> {
    // Deadlines are kept by whoever asks: a late answer is dropped there.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
    let closed = Arc::clone(known);
    let tell = move |push: redis::PushInfo| -> Result<(), SendError> {
        if push.kind == PushKind::Disconnection {
            closed.broken.notify_one();
        }
        Ok(())
    };
    let [resp3, resp2] = clients;
    // Only RESP3 has the crate tell at once when a connection ends.
    match resp3.get_multiplexed_async_connection_with_config(&config.clone().set_push_sender(tell)).await {
        Err(error) if error.kind() == ErrorKind::RESP3NotSupported => {
            resp2.get_multiplexed_async_connection_with_config(&config).await
        }
        answer => answer,
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

fn read(url: &str) -> Result<ConnectionInfo, Error> {
    match url.split_once("://") {
        Some(("redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix", _)) => {}
        Some(("rediss" | "valkeys" | "redis+sentinel" | "redis+cluster", _)) => {
            return Err(wrong(url, "TLS, Sentinel and Cluster are not supported yet; write redis://host:port"));
        }
        Some((scheme, _)) => {
            return Err(wrong(url, &format!("the scheme `{scheme}` is unknown; write redis://host:port")));
        }
        None => return Err(wrong(url, "the scheme is missing; write redis://host:port")),
    }
    let info = url.into_connection_info().map_err(|error| {
        wrong(url, "cannot be read; write redis://[[user]:password@]host[:port][/database]").with_source(error)
    })?;
    // Small writes must not wait for the acknowledgement of the ones before them.
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

fn wrong(url: &str, what: &str) -> Error {
    Error::invalid(format!("redis address `{}`: {what}", without_password(url)))
}

/// Cuts what may be a secret out of an address, for messages: user and password, and the query.
fn without_password(url: &str) -> String {
    let scheme = url.split_once("://").map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
    let (start, address) = match url.rsplit_once('@') {
        Some((_, host)) => (format!("{scheme}...@"), host),
        None => (String::new(), url),
    };
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    format!("{start}{address}")
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longer than any deadline that makes sense for a decision, and short against the quarter of an hour after which
/// a system gives up on a peer that has vanished.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
