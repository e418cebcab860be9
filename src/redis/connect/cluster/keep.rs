use std::{
    collections::hash_map::RandomState,
    future::{Future, poll_fn},
    hash::BuildHasher,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::{
    sync::{Notify, watch},
    time::{self, Instant},
};

use super::{
    map::Map,
    node::{Node, Nodes},
};
use crate::{
    error::Error,
    redis::connect::{
        connection::Known,
        keep_up::{LONGEST_PAUSE, pause},
        server::Server,
    },
};

/// What is known of the cluster; nothing at first.
#[derive(Default)]
pub(super) struct Chart {
    pub(super) map: Option<Arc<Map>>,
    /// Why there is no map, or none that is newer.
    pub(super) error: Option<Error>,
}

/// Tells the keeper of the map what it should do.
#[derive(Default)]
pub(super) struct Wish {
    wanted: Notify,
    /// Who seems to know best.
    hint: Mutex<Option<Arc<Node>>>,
    /// Whether the map was renewed just now, and is not to be again so soon.
    resting: AtomicBool,
}

impl Wish {
    /// Asks for a new map, soon.
    pub(super) fn make(&self) {
        self.wanted.notify_one();
    }

    /// Asks for a new map, and names a node that will know of it.
    pub(super) fn make_of(&self, node: &Arc<Node>) {
        *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(node));
        self.make();
    }

    pub(super) fn is_resting(&self) -> bool {
        self.resting.load(Ordering::Acquire)
    }

    fn take_hint(&self) -> Option<Arc<Node>> {
        self.hint.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Finds the map of a cluster and renews it when it is asked to, once for all who ask, for as long as somebody may.
pub(super) async fn keep_map(nodes: Arc<Nodes>, wish: Arc<Wish>, chart: watch::Sender<Chart>) {
    // How often in a row there was nothing new.
    let mut in_vain: u32 = 0;
    loop {
        let old = chart.borrow().map.clone();
        let hint = wish.take_hint();
        let Some(found) = unless_closed(&chart, find(&nodes, old.as_deref(), hint)).await else { return };
        match found {
            Ok(map) if old.as_ref().is_some_and(|old| old.says_as(&map)) => {
                in_vain = in_vain.saturating_add(1);
                wish.resting.store(true, Ordering::Release);
                chart.send_modify(|chart| chart.error = None);
            }
            Ok(map) => {
                in_vain = 0;
                wish.resting.store(true, Ordering::Release);
                chart.send_replace(Chart { map: Some(Arc::new(map)), error: None });
                drop(old);
                nodes.tidy();
            }
            Err(error) => {
                in_vain = in_vain.saturating_add(1);
                wish.resting.store(true, Ordering::Release);
                // An old map is better than none: other nodes may be well.
                chart.send_modify(|chart| chart.error = Some(error));
            }
        }
        let rest = time::sleep(pause(in_vain));
        if unless_closed(&chart, rest).await.is_none() {
            return;
        }
        wish.resting.store(false, Ordering::Release);
        if chart.borrow().map.is_some() {
            let idle = Instant::now();
            if unless_closed(&chart, wish.wanted.notified()).await.is_none() {
                return;
            }
            if idle.elapsed() > LONGEST_PAUSE {
                in_vain = 0;
            }
        }
    }
}

/// Returns nothing if nobody can ask any more.
async fn unless_closed<T>(chart: &watch::Sender<Chart>, work: impl Future<Output = T>) -> Option<T> {
    let (mut closed, mut work) = (pin!(chart.closed()), pin!(work));
    poll_fn(|cx| match closed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

type Attempt<'a> = Pin<Box<dyn Future<Output = Result<Map, String>> + Send + 'a>>;

/// Asks one node after the other until one knows; whoever is slow has the next one asked beside it.
async fn find(nodes: &Nodes, old: Option<&Map>, hint: Option<Arc<Node>>) -> Result<Map, Error> {
    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    let known = hint.into_iter().chain(rotated(old.map_or(&[], Map::nodes)).cloned());
    // Those that are connected to first: that costs no connection.
    attempts.extend(known.filter_map(|node| {
        let connection = node.connections.up()?;
        Some(Box::pin(async move {
            let answer = connection.send(&question()).await.map_err(|error| format!("{}: {error}", node.address()))?;
            Map::read(&answer, node.host(), nodes).map_err(|error| format!("{}: {error}", node.address()))
        }) as Attempt<'_>)
    }));
    let seeds = rotated(&nodes.seeds.servers).cloned();
    let others = old.map_or(&[][..], Map::nodes).iter().map(|node| node.server().clone());
    for server in seeds.chain(others) {
        attempts.push(Box::pin(async move {
            let (host, port) = server.host_and_port();
            let answer = ask(&server).await.map_err(|error| format!("{host}:{port}: {error}"))?;
            Map::read(&answer, host, nodes).map_err(|error| format!("{host}:{port}: {error}"))
        }));
    }
    first(attempts).await.map_err(|why| Error::store("cannot find the redis cluster").with_source(why))
}

/// Asks a server on a connection of its own.
async fn ask(server: &Server) -> Result<Value, RedisError> {
    let mut connection = server.connect(&Arc::new(Known::default())).await?;
    question().query_async(&mut connection).await
}

fn question() -> redis::Cmd {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    question
}

/// Makes attempts until one succeeds: the next when the one before has failed, or has not come back for a while.
async fn first(mut to_come: Vec<Attempt<'_>>) -> Result<Map, String> {
    to_come.reverse();
    let (mut under_way, mut errors) = (Vec::new(), Vec::new());
    loop {
        match to_come.pop() {
            Some(next) => under_way.push(next),
            None if under_way.is_empty() => return Err(errors.join("; ")),
            None => {}
        }
        let patience = if to_come.is_empty() { ASK_TIMEOUT } else { HEAD_START };
        let came = time::timeout(
            patience,
            poll_fn(|cx| {
                let ready = under_way.iter_mut().enumerate().find_map(|(i, attempt)| match attempt.as_mut().poll(cx) {
                    Poll::Ready(answer) => Some((i, answer)),
                    Poll::Pending => None,
                });
                ready.map_or(Poll::Pending, Poll::Ready)
            }),
        );
        match came.await {
            Ok((_, Ok(map))) => return Ok(map),
            Ok((i, Err(error))) => {
                drop(under_way.swap_remove(i));
                errors.push(error);
            }
            Err(_) if to_come.is_empty() => {
                errors.push(format!("{} of the nodes did not answer", under_way.len()));
                return Err(errors.join("; "));
            }
            Err(_) => {}
        }
    }
}

/// Begins anywhere, so that a fleet does not ask the same node.
fn rotated<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let random = usize::try_from(RandomState::new().hash_one(0) >> 48).expect("sixteen bits");
    let (end, start) = all.split_at(random % all.len().max(1));
    start.iter().chain(end)
}

/// How long a node may keep others from being asked.
const HEAD_START: Duration = Duration::from_millis(100);

/// How long the last of them may take.
const ASK_TIMEOUT: Duration = Duration::from_millis(1_000);
