mod address;
#[cfg(feature = "cluster")]
pub(super) mod cluster;
#[cfg(feature = "redis-connection")]
mod owned;
mod route;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server;
#[cfg(feature = "tls")]
mod tls;

use std::{
    future::{self, Future, poll_fn},
    hash::{BuildHasher, RandomState},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::{
    runtime,
    sync::{Notify, watch},
    time::{self, Instant},
};

use self::route::Route;
#[cfg(feature = "tls")]
pub use self::tls::Tls;
pub(super) use self::{address::read, route::Handle};
#[cfg(feature = "cluster")]
use super::turn;
use super::{
    batch::{Batches, Carrier, Queue, Undone},
    limit::{Asked, Call, Names, Reply, Request},
    node::Run,
    script::{BLOCK, DECIDE, SETTLE, Script},
    wake::Wakes,
};
use crate::{
    error::Error,
    key::Key,
    lease::Keeper,
    limit::{Adjustment, Answer, Demand, Micros},
};

/// One connection for each runtime that asks.
///
/// A connection is driven by the runtime that made it and dies with it, so each runtime has its own.
pub(super) struct Connections {
    route: Route,
    names: Names,
    keeper: Keeper,
    lines: Mutex<Vec<Line>>,
    /// Where all goes if there is not one server, but a cluster of them.
    #[cfg(feature = "cluster")]
    cluster: Option<cluster::Cluster>,
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
    /// Told once the connection is of no more use, or nothing comes back on it.
    broken: Notify,
    /// Why it is of no more use, if an answer has told.
    why: OnceLock<Error>,
    /// Whether anything useful has come back on it.
    answered: AtomicBool,
    /// The master's address, as a sentinel told it.
    #[cfg(feature = "sentinel")]
    master: OnceLock<(String, u16)>,
    /// Whether the server said that somebody may be blocked.
    blocks: AtomicBool,
    /// Whether it was told that it is of no more use.
    is_broken: AtomicBool,
    /// Whether nothing comes back on it, which may be its server's fault.
    is_silent: AtomicBool,
    /// Who waits for what.
    wakes: Arc<Wakes>,
    /// Which run of the server it is, once it was asked.
    run: OnceLock<Run>,
}

impl Connections {
    pub(super) fn new(route: Route, names: Names) -> Self {
        let keeper = Keeper::new();
        #[cfg(feature = "cluster")]
        if let Route::Cluster(seeds) = &route {
            let names = Names { apart: true, ..names };
            let cluster = Some(cluster::Cluster::new(seeds.clone(), names.clone()));
            return Self { route, names, keeper, lines: Mutex::default(), cluster };
        }
        Self {
            route,
            names,
            keeper,
            lines: Mutex::default(),
            #[cfg(feature = "cluster")]
            cluster: None,
        }
    }

    /// Returns the same with other names of keys.
    pub(super) fn renamed(&self, names: Names) -> Self {
        Self::new(self.route.clone(), names)
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns what holders and waiters of this process share.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Puts a request in line; fails at once while its server is down.
    pub(super) fn decide(&self, asked: Asked) -> Answer {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return turn::decide(cluster, None, asked);
        }
        match self.with_line(|line| line.queue.push(asked)) {
            Ok(answer) => answer,
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// Decides by a fixed time, apart from all others.
    pub(super) fn decide_at(self: &Arc<Self>, now: Micros, asked: Asked) -> Answer {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return turn::decide(cluster, Some(now), asked);
        }
        let this = Arc::clone(self);
        Answer::pending(async move {
            let connection = this.get().await?;
            let reply = connection.decide_at(&this.names, Some(now), [(&asked, 1)].into_iter()).await?;
            let mut finding = connection.read(&reply)?.next(&asked)?;
            Ok(finding.decide(&asked))
        })
    }

    /// Changes charges, wherever they are kept.
    pub(super) fn settle(self: &Arc<Self>, now: Option<Micros>, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return turn::settle(cluster, now, adjustments);
        }
        let call = Call::settle(&self.names, now, adjustments);
        let this = Arc::clone(self);
        Answer::pending(async move { this.call(&SETTLE, &call).await.map(drop) })
    }

    /// Waits until all has been given back that requests which went away were charged.
    pub(super) fn finish(&self) -> Answer<()> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.finish();
        }
        Answer::ready(Ok(()))
    }

    /// Calls `block.lua` for a subject; from now on calls tell what blocks their subjects.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "one server has all subjects"))]
    pub(super) async fn block(&self, subject: &Key, long: Micros, call: &Call) -> Result<(), Error> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.block(subject, long, call).await;
        }
        let connection = self.get().await?;
        connection.known.blocks.store(true, Ordering::Relaxed);
        connection.call(&BLOCK, call).await.map(drop)
    }

    /// Calls a script, once. Its keys have to lie in one slot.
    pub(super) async fn call(&self, script: &Script, call: &Call) -> Result<Value, Error> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.call(script, call).await;
        }
        self.get().await?.call(script, call).await
    }

    /// Sends a command that is about one key, once.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "one server has all keys"))]
    pub(super) async fn send(&self, key: &[u8], command: &Cmd) -> Result<Value, Error> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.send(key, command).await;
        }
        self.get().await?.send(command).await
    }

    /// Waits for a connection to the server that has a key.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "one server has all keys"))]
    pub(super) async fn of_key(&self, key: &[u8]) -> Result<Connection, Error> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.way()?.connection(cluster::slot_of(key)).await;
        }
        self.get().await
    }

    /// Returns which servers have to answer.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "one server has all keys"))]
    pub(super) fn parts(&self, demands: &[Demand<'_>]) -> u64 {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            return cluster.parts(demands.iter().map(Demand::subject));
        }
        1
    }

    /// Returns whether some runtime's connection is up; `None` if nobody has asked for one yet, or there are many.
    pub(super) fn is_connected(&self) -> Option<bool> {
        #[cfg(feature = "cluster")]
        if self.cluster.is_some() {
            return None;
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let is_up = |line: &Line| match &*line.state.borrow() {
            State::Up(connection) => !connection.is_broken(),
            State::Connecting | State::Down(_) => false,
        };
        let mut kept_up = lines.iter().filter(|line| line.is_kept_up()).peekable();
        kept_up.peek()?;
        Some(kept_up.any(is_up))
    }

    /// Returns this runtime's connection if it is there.
    #[cfg(feature = "cluster")]
    fn up(&self) -> Option<Connection> {
        let id = runtime::Handle::try_current().ok()?.id();
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let state = lines.iter().find(|line| line.runtime == id && line.is_kept_up())?.state.borrow();
        match &*state {
            State::Up(connection) => Some(connection.clone()),
            _ => None,
        }
    }

    /// Waits for this runtime's connection; fails at once while it is down and a pause has not passed.
    async fn get(&self) -> Result<Connection, Error> {
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
            return Err(no_runtime());
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

impl Known {
    /// Notes that the connection is of no more use.
    fn breaks(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        self.broken.notify_one();
    }

    /// Notes that nothing came back in time.
    fn falls_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
        self.broken.notify_one();
    }

    fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.is_silent.load(Ordering::Relaxed)
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
    async fn decide_at(
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
    async fn call_in_turn(&self, script: &Script, call: &Call) -> Result<Value, Error> {
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
    fn own(&self, call: &Call, reply: Value) -> Result<Value, Error> {
        if call.is_answered_by(&reply) {
            return Ok(reply);
        }
        let error = Error::store("redis answered another call, since an answer was lost on the way");
        let _ = self.known.why.set(error.clone());
        self.known.breaks();
        Err(error)
    }

    /// Hears what is published on a channel from now on.
    pub(super) async fn subscribe(&self, channel: &[u8]) -> Result<(), Error> {
        let mut handle = self.handle.clone();
        let answer = async move { handle.subscribe(channel).await.map(|()| Value::Nil) };
        self.tried(answer).await.map(drop).map_err(Error::from)
    }

    pub(super) async fn unsubscribe(&self, channel: &[u8]) -> Result<(), Error> {
        let mut handle = self.handle.clone();
        let answer = async move { handle.unsubscribe(channel).await.map(|()| Value::Nil) };
        self.tried(answer).await.map(drop).map_err(Error::from)
    }

    /// Returns who waits for what on this connection.
    pub(super) fn wakes(&self) -> &Arc<Wakes> {
        &self.known.wakes
    }

    /// Returns which run of the server it is, once it was asked.
    pub(super) fn run(&self) -> &OnceLock<Run> {
        &self.known.run
    }

    /// Returns true if this connection is of no more use, as far as is known now.
    pub(super) fn is_broken(&self) -> bool {
        !self.known.is_usable()
    }

    /// Waits until something comes back on it; for ever if nothing can.
    ///
    /// What is asked changes nothing, and waits with all that was sent before for a server that stands still.
    async fn awakes(self) -> Self {
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
    async fn call(&self, script: &Script, call: &Call) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        self.tried(script.call(&mut handle, call)).await.map_err(Error::from)
    }

    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, Error> {
        let mut handle = self.handle.clone();
        self.tried(command.query_async(&mut handle)).await.map_err(Error::from)
    }

    /// Waits for an answer, and has the connection made anew if it is of no more use.
    async fn tried(&self, answer: impl Future<Output = Result<Value, RedisError>>) -> Result<Value, Failure> {
        self.judged(time::timeout(CALL_TIMEOUT, answer).await.ok())
    }

    /// Takes note of an answer, or that none came in time.
    fn judged(&self, answered: Option<Result<Value, RedisError>>) -> Result<Value, Failure> {
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

/// Why there was no answer that serves.
enum Failure {
    Error(RedisError),
    /// Nothing came for [`CALL_TIMEOUT`].
    Silence,
}

#[cfg(feature = "cluster")]
impl Failure {
    /// Returns true if what was asked for may have been done.
    fn is_ambiguous(&self) -> bool {
        match self {
            Self::Error(error) => error.is_unrecoverable_error() || error.is_io_error(),
            Self::Silence => true,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Error(error) => error,
            Failure::Silence => return Self::deadline(CALL_TIMEOUT),
        };
        let elsewhere = [ServerErrorKind::Moved, ServerErrorKind::CrossSlot].map(ErrorKind::Server);
        let what = match (error.code(), error.detail().unwrap_or_default()) {
            (Some(code), detail) if elsewhere.contains(&error.kind()) => {
                format!("redis answered {code}: {detail}; it is a Cluster, whose address begins with redis+cluster://")
            }
            (Some(code), detail) => format!("redis answered {code}: {detail}"),
            (None, _) => "redis did not answer".to_owned(),
        };
        Self::store(what).with_source(error)
    }
}

fn no_runtime() -> Error {
    Error::store("redis needs a tokio runtime, and this is none")
}

/// What waiters are told whose connection went away under them.
pub(super) fn cut_off() -> Error {
    Error::store("the connection to redis was lost")
}

/// Connects, works until the connection is broken, and connects again, for as long as somebody may ask for it.
async fn keep_up(route: Route, names: Names, queue: Arc<Queue>, state: watch::Sender<State>) {
    let mut failures: u32 = 0;
    let mut silent = None;
    loop {
        let wait = match connect(&route, &mut silent).await {
            Ok(connection) => {
                silent = None;
                let known = Arc::clone(&connection.known);
                queue.open();
                state.send_replace(State::Up(connection.clone()));
                let batches = Batches::new(&queue, &names, connection.clone());
                let end = work(&state, &known, route.moved(&known), batches).await;
                if matches!(end, End::Silent) && route.leads_to_one_server() {
                    silent = Some(Silent::new(connection));
                } else {
                    // Whoever still has it must let it go, whatever the reason.
                    known.breaks();
                }
                known.wakes.end();
                if matches!(end, End::Gone) {
                    return;
                }
                if matches!(end, End::Moved) || known.answered.load(Ordering::Relaxed) {
                    state.send_replace(State::Connecting);
                    failures = 0;
                    Duration::ZERO
                } else {
                    // A server that accepts and then fails at once is left alone like one that is down.
                    let error = known.why.get().cloned().unwrap_or_else(cut_off);
                    queue.close(&error);
                    state.send_replace(State::Down(error));
                    failures = failures.saturating_add(1);
                    pause(failures)
                }
            }
            Err(error) => {
                queue.close(&error);
                state.send_replace(State::Down(error));
                failures = failures.saturating_add(1);
                if silent.is_some() { pause_beside(failures) } else { pause(failures) }
            }
        };
        let waited = async {
            match &mut silent {
                Some(silent) => _ = time::timeout(wait, silent.awakes()).await,
                None => time::sleep(wait).await,
            }
        };
        if unless_closed(&state, waited).await.is_none() {
            return;
        }
    }
}

/// Makes a connection, unless the one that fell silent is the first of which something is heard.
async fn connect(route: &Route, silent: &mut Option<Silent>) -> Result<Connection, Error> {
    let known = Arc::new(Known::default());
    let mut made = pin!(route.connect(&known));
    let mut old = pin!(async {
        match silent {
            Some(silent) => silent.awakes().await,
            None => future::pending().await,
        }
    });
    poll_fn(|cx| match old.as_mut().poll(cx) {
        Poll::Ready(connection) => Poll::Ready(Ok(connection)),
        Poll::Pending => made.as_mut().poll(cx).map_ok(|handle| Connection { handle, known: Arc::clone(&known) }),
    })
    .await
}

/// A connection on which nothing comes back. It is kept while others are tried: if its server has stood still, it is
/// there at once when that goes on.
struct Silent {
    known: Arc<Known>,
    awakes: Pin<Box<dyn Future<Output = Connection> + Send>>,
    awake: Option<Connection>,
}

impl Silent {
    fn new(connection: Connection) -> Self {
        Self { known: Arc::clone(&connection.known), awakes: Box::pin(connection.awakes()), awake: None }
    }

    /// Waits until something comes back. If this goes away, it can be waited for again.
    async fn awakes(&mut self) -> Connection {
        if let Some(connection) = &self.awake {
            return connection.clone();
        }
        let connection = self.awakes.as_mut().await;
        self.awake.insert(connection).clone()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        if self.awake.is_none() {
            self.known.breaks();
        }
    }
}

/// Does something, unless nobody can ask for it any more.
async fn unless_closed<T>(state: &watch::Sender<State>, work: impl Future<Output = T>) -> Option<T> {
    let (mut closed, mut work) = (pin!(state.closed()), pin!(work));
    poll_fn(|cx| match closed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

/// Why work on a connection ended.
enum End {
    /// Nobody can ask any more.
    Gone,
    /// It leads to a server that is not the one any more.
    Moved,
    Broken,
    /// Nothing comes back on it.
    Silent,
}

/// Works until the connection is broken or leads to the wrong server, or nobody can ask any more.
async fn work(
    state: &watch::Sender<State>,
    known: &Known,
    moved: impl Future<Output = ()>,
    batches: Batches<'_, Connection>,
) -> End {
    let (mut gone, mut broken, mut batches) = (pin!(state.closed()), pin!(known.broken.notified()), pin!(batches));
    let mut moved = pin!(moved);
    poll_fn(|cx| {
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Gone);
        }
        let _ = batches.as_mut().poll(cx);
        if moved.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Moved);
        }
        while broken.as_mut().poll(cx).is_ready() {
            if known.is_broken.load(Ordering::Relaxed) {
                return Poll::Ready(End::Broken);
            }
            if known.is_silent.load(Ordering::Relaxed) {
                return Poll::Ready(End::Silent);
            }
            // It was silent for a while, and told so more than once.
            broken.set(known.broken.notified());
        }
        Poll::Pending
    })
    .await
}

/// Returns how long to leave a server alone after so many failures, with jitter so that a fleet spreads out.
fn pause(failures: u32) -> Duration {
    spread(failures, SHORTEST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE))
}

/// Returns the same for attempts beside a connection that is kept. A server that stands still takes each of them, and
/// has them all to end when it goes on.
fn pause_beside(failures: u32) -> Duration {
    spread(failures, (LONGEST_PAUSE / 2).saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE_BESIDE))
}

/// Returns at least half of a time, and how much more by chance.
fn spread(failures: u32, longest: Duration) -> Duration {
    // A hasher's random seed is all the randomness that a pause needs.
    let random = u32::try_from(RandomState::new().hash_one(failures) >> 48).expect("sixteen bits");
    longest / 2 + longest / 2 * random / (1 << 16)
}

/// Longer than any deadline that makes sense for a decision, and short against the quarter of an hour after which
/// a system gives up on a peer that has vanished.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Short enough that a server is in use again within a second of its start, and long enough to be nothing to it.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// What a network that swallowed all for long may add to its outage.
const LONGEST_PAUSE_BESIDE: Duration = Duration::from_secs(4);
