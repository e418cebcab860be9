use std::{
    future::{Future, poll_fn},
    hash::{BuildHasher, RandomState},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, RedisError, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, watch},
    time,
};

use crate::error::Error;

/// One connection for each runtime that asks.
///
/// A connection is driven by the runtime that made it and dies with it, so each runtime has its own.
pub(super) struct Connections {
    client: Client,
    open: Mutex<Vec<Line>>,
}

/// One runtime's connection, and the task that keeps it up.
struct Line {
    runtime: runtime::Id,
    state: watch::Receiver<State>,
}

enum State {
    Connecting,
    Up(Connection),
    Down(RedisError),
}

/// A connection in use.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) handle: MultiplexedConnection,
    /// Told once it is of no more use; the next connection has its own.
    broken: Arc<Notify>,
}

impl Connections {
    /// Reads an address; does no I/O.
    pub(super) fn open(url: &str) -> Result<Self, Error> {
        let wrong = |what: &str| Error::invalid(format!("redis address `{}`: {what}", without_password(url)));
        match url.split_once("://") {
            Some(("redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix", _)) => {}
            Some(("rediss" | "valkeys" | "redis+sentinel" | "redis+cluster", _)) => {
                return Err(wrong("TLS, Sentinel and Cluster are not supported yet; write redis://host:port"));
            }
            Some((scheme, _)) => {
                return Err(wrong(&format!("the scheme `{scheme}` is unknown; write redis://host:port")));
            }
            None => return Err(wrong("the scheme is missing; write redis://host:port")),
        }
        let info: ConnectionInfo = url.into_connection_info().map_err(|error| {
            wrong("cannot be read; write redis://[[user]:password@]host[:port][/database]").with_source(error)
        })?;
        // Small writes must not wait for the acknowledgement of the ones before them.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = Client::open(info).map_err(|error| wrong("cannot be used").with_source(error))?;
        Ok(Self { client, open: Mutex::default() })
    }

    /// Waits for this runtime's connection; fails at once while it is down and a pause has not passed.
    pub(super) async fn get(&self) -> Result<Connection, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::store("redis needs a tokio runtime, and this is none"));
        };
        let mut state = self.line(&runtime);
        let settled = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match settled.as_deref() {
            Ok(State::Up(connection)) => Ok(connection.clone()),
            Ok(State::Down(error)) => Err(Error::store("cannot connect to redis").with_source(error.clone())),
            Ok(State::Connecting) | Err(_) => Err(Error::store("the connection's task is gone")),
        }
    }

    fn line(&self, runtime: &Handle) -> watch::Receiver<State> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // The sender lives in a task of the runtime, and is gone when that is.
        open.retain(|line| line.state.has_changed().is_ok());
        if let Some(line) = open.iter().find(|line| line.runtime == runtime.id()) {
            return line.state.clone();
        }
        let (sender, state) = watch::channel(State::Connecting);
        runtime.spawn(keep_up(self.client.clone(), sender));
        open.push(Line { runtime: runtime.id(), state: state.clone() });
        state
    }
}

impl Connection {
    /// Turns a failure into our error, and has the connection made anew if it is of no more use.
    pub(super) fn failed(&self, error: RedisError) -> Error {
        if error.is_unrecoverable_error() || error.is_io_error() && !error.is_timeout() {
            self.broken.notify_one();
        }
        let what = match error.code() {
            Some(code) => format!("redis answered {code}: {}", error.detail().unwrap_or_default()),
            None => "redis did not answer".to_owned(),
        };
        Error::store(what).with_source(error)
    }
}

/// Connects, waits until the connection is broken, and connects again, for as long as somebody may ask for it.
async fn keep_up(client: Client, state: watch::Sender<State>) {
    let mut failures: u32 = 0;
    loop {
        // Deadlines are kept by whoever asks: a late answer is dropped there.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(handle) => {
                failures = 0;
                let broken = Arc::new(Notify::new());
                state.send_replace(State::Up(Connection { handle, broken: Arc::clone(&broken) }));
                if is_first(pin!(state.closed()), pin!(broken.notified())).await {
                    return;
                }
                state.send_replace(State::Connecting);
            }
            Err(error) => {
                state.send_replace(State::Down(error));
                if time::timeout(pause(failures), state.closed()).await.is_ok() {
                    return;
                }
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// Waits for either of two events; true if it was the first.
async fn is_first(mut first: Pin<&mut impl Future>, mut second: Pin<&mut impl Future>) -> bool {
    poll_fn(|cx| match (first.as_mut().poll(cx), second.as_mut().poll(cx)) {
        (Poll::Ready(_), _) => Poll::Ready(true),
        (_, Poll::Ready(_)) => Poll::Ready(false),
        _ => Poll::Pending,
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

/// Cuts the user and password out of an address, for messages.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://...@{host}"),
        _ => url.to_owned(),
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
