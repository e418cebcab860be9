mod address;
#[cfg(feature = "cluster")]
pub(super) mod cluster;
mod connection;
mod failure;
mod keep_up;
#[cfg(feature = "redis-connection")]
mod owned;
mod route;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server;
#[cfg(feature = "tls")]
mod tls;

use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering};

use redis::{Cmd, Value};
use tokio::{runtime, sync::watch};

#[cfg(feature = "tls")]
pub use self::tls::Tls;
pub(super) use self::{
    address::read,
    connection::{CALL_TIMEOUT, Connection},
    failure::cut_off,
    route::Handle,
};
use self::{failure::no_runtime, keep_up::keep_up, route::Route};
#[cfg(feature = "cluster")]
use super::turn;
use super::{
    batch::{Carrier, Queue},
    limit::{Asked, Call, Names},
    script::{BLOCK, SETTLE, Script},
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

impl Line {
    /// Returns true if the task that works on it lives. It is gone when its runtime is.
    fn is_kept_up(&self) -> bool {
        self.state.has_changed().is_ok()
    }
}
