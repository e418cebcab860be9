use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, aio::ConnectionLike};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::{
    keep::{Chart, Wish},
    map::Map,
    node::{Node, Nodes},
};
use crate::{
    error::Error,
    redis::{
        batch::Undone,
        connect::{CALL_TIMEOUT, Connection, Handle, cut_off, failure::Failure, keep_up::pause},
        limit::Call,
        script::Script,
    },
};

/// One runtime's way to the nodes of a cluster.
#[derive(Clone)]
pub(in crate::redis) struct Way {
    pub(super) chart: watch::Receiver<Chart>,
    pub(super) wish: Arc<Wish>,
    pub(super) nodes: Arc<Nodes>,
    /// Whoever goes on when its request has gone away hears it until it is done.
    pub(in crate::redis) behind: watch::Sender<()>,
}

/// What is sent to whoever serves a slot.
#[derive(Clone, Copy)]
pub(in crate::redis) enum Order<'a> {
    Script(&'a Script, &'a Call),
    Command(&'a Cmd),
}

/// What to do about an error.
enum Cure {
    /// The slot lies there, for good or for this order.
    Go(Arc<Node>, Asking),
    /// The map may be old, or the node is not ready.
    Wait,
    /// Wait, or order less at once.
    Scattered,
    None,
}

/// What to do while the keys of an order lie on two nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnScattered {
    Wait,
    Return,
}

/// Whether a node is told that it was asked on behalf of the slot's owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    No,
    Yes,
}

impl Way {
    /// Has an order carried out by whoever serves a slot, once. While its keys are scattered, it waits.
    pub(in crate::redis) async fn call(&self, slot: u16, order: Order<'_>) -> Result<Value, Error> {
        match self.send(slot, order, || true, OnScattered::Wait, &AtomicU64::new(0)).await {
            Ok(value) => Ok(value),
            Err(Undone::Failed(error)) => Err(error),
            Err(Undone::Scattered) => Err(cut_off()),
        }
    }

    /// Has an order carried out by whoever serves a slot, once; does nothing, and returns nothing, if its keys are
    /// scattered.
    pub(in crate::redis) async fn call_or_scatter(&self, slot: u16, order: Order<'_>) -> Result<Option<Value>, Error> {
        match self.send(slot, order, || true, OnScattered::Return, &AtomicU64::new(0)).await {
            Ok(value) => Ok(Some(value)),
            Err(Undone::Failed(error)) => Err(error),
            Err(Undone::Scattered) => Ok(None),
        }
    }

    /// Has an order carried out by whoever serves a slot, at most once.
    ///
    /// It goes to another node, or again to the same one, only after an answer that proves that nothing was done, for
    /// as long as it is wanted. `elsewhere` tells the part to which the slot's owner sends orders on, zero for none.
    pub(super) async fn send(
        &self,
        slot: u16,
        order: Order<'_>,
        is_wanted: impl Fn() -> bool,
        on_scattered: OnScattered,
        elsewhere: &AtomicU64,
    ) -> Result<Value, Undone> {
        let began = Instant::now();
        let mut redirected: Option<(Arc<Node>, Asking)> = None;
        let (mut hops, mut waits) = (0, 0);
        loop {
            let (node, asking, sent_on) = match redirected.take() {
                Some((node, asking)) => (node, asking, true),
                None => (self.owner(slot).await?, Asking::No, false),
            };
            let connection = match node.connections.get().await {
                Ok(connection) => connection,
                // Nothing was sent. Somebody else may serve the slot by now.
                Err(error) => {
                    let has_left = self.has_left(slot, &node).await;
                    if !has_left || began.elapsed() >= CALL_TIMEOUT || !is_wanted() {
                        return Err(of_node(&node, error).into());
                    }
                    if sent_on {
                        time::sleep(pause(waits).min(LONGEST_WAIT)).await;
                        waits += 1;
                    }
                    continue;
                }
            };
            let mut handle = connection.handle.clone();
            let error = match connection.tried(order.send(&mut handle, asking)).await {
                Ok(value) => {
                    if !sent_on {
                        elsewhere.store(0, Ordering::Relaxed);
                    }
                    return match order {
                        Order::Script(_, call) => {
                            Ok(connection.own(call, value).map_err(|error| of_node(&node, error))?)
                        }
                        Order::Command(_) => Ok(value),
                    };
                }
                Err(failure) => failure,
            };
            let cure = self.cure(&error, &node);
            let too_late = began.elapsed() >= CALL_TIMEOUT || !is_wanted();
            match cure {
                Cure::Scattered if on_scattered == OnScattered::Return && order.has_parts() => {
                    return Err(Undone::Scattered);
                }
                Cure::None => {
                    if error.is_ambiguous() {
                        self.wish.make();
                    }
                    return Err(of_node(&node, error.into()).into());
                }
                _ if too_late => return Err(of_node(&node, error.into()).into()),
                Cure::Go(there, asking) if hops < MOST_HOPS => {
                    hops += 1;
                    if asking == Asking::Yes {
                        elsewhere.store(there.part(), Ordering::Relaxed);
                    }
                    redirected = Some((there, asking));
                }
                Cure::Go(..) | Cure::Scattered | Cure::Wait => {
                    time::sleep(pause(waits).min(LONGEST_WAIT)).await;
                    (hops, waits) = (0, waits + 1);
                }
            }
        }
    }

    /// Waits for a connection to whoever serves a slot.
    pub(in crate::redis) async fn connection(&self, slot: u16) -> Result<Connection, Error> {
        self.owner(slot).await?.connections.get().await
    }

    /// Returns who serves a slot, as far as is known; waits for a map if there is none.
    async fn owner(&self, slot: u16) -> Result<Arc<Node>, Error> {
        let map = self.map().await?;
        match map.owner(slot) {
            Some(node) => Ok(Arc::clone(node)),
            None => match self.news(&map).await.as_ref().and_then(|map| map.owner(slot)) {
                Some(node) => Ok(Arc::clone(node)),
                None => Err(Error::store(format!("no node of the redis cluster serves slot {slot}"))),
            },
        }
    }

    async fn map(&self) -> Result<Arc<Map>, Error> {
        let mut chart = self.chart.clone();
        let known = chart.wait_for(|chart| chart.map.is_some() || chart.error.is_some()).await;
        match known.as_deref() {
            Ok(Chart { map: Some(map), .. }) => Ok(Arc::clone(map)),
            Ok(Chart { error: Some(error), .. }) => Err(error.clone()),
            _ => Err(cut_off()),
        }
    }

    /// Has the map renewed, and returns it if it says something else than before. Nobody waits while it is left alone,
    /// since it was renewed just now.
    async fn news(&self, old: &Arc<Map>) -> Option<Arc<Map>> {
        let mut chart = self.chart.clone();
        chart.mark_unchanged();
        let resting = self.wish.is_resting();
        self.wish.make();
        if !resting && chart.borrow().map.as_ref().is_some_and(|map| Arc::ptr_eq(map, old)) {
            chart.changed().await.ok()?;
        }
        let map = chart.borrow().map.clone()?;
        (!Arc::ptr_eq(&map, old)).then_some(map)
    }

    /// Returns true if a node that cannot be reached does not serve a slot any more.
    async fn has_left(&self, slot: u16, node: &Arc<Node>) -> bool {
        let Ok(map) = self.map().await else { return false };
        let serves = |map: &Map| map.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, node));
        if !serves(&map) {
            // It was redirected to; the map tells who serves the slot else.
            self.wish.make();
            return map.owner(slot).is_some();
        }
        self.news(&map).await.is_some_and(|map| !serves(&map) && map.owner(slot).is_some())
    }

    fn cure(&self, error: &Failure, node: &Arc<Node>) -> Cure {
        let Failure::Error(error) = error else { return Cure::None };
        let ErrorKind::Server(kind) = error.kind() else { return Cure::None };
        let there = || error.redirect_node().and_then(|(to, _)| self.nodes.redirected(to, node));
        match kind {
            ServerErrorKind::Moved => match there() {
                Some(there) => {
                    self.wish.make_of(&there);
                    Cure::Go(there, Asking::No)
                }
                None => Cure::None,
            },
            ServerErrorKind::Ask => there().map_or(Cure::None, |there| Cure::Go(there, Asking::Yes)),
            ServerErrorKind::TryAgain => Cure::Scattered,
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown => {
                self.wish.make();
                Cure::Wait
            }
            ServerErrorKind::BusyLoading => Cure::Wait,
            _ => Cure::None,
        }
    }
}

impl Order<'_> {
    /// Returns true if it can be cut into orders that need one key each.
    fn has_parts(&self) -> bool {
        matches!(self, Self::Script(_, call) if !call.is_of_one_key())
    }

    async fn send(&self, handle: &mut Handle, asking: Asking) -> Result<Value, RedisError> {
        match self {
            Self::Command(command) => send(handle, command, asking).await,
            Self::Script(script, call) => match send(handle, &script.command(call), asking).await {
                // It proves that nothing ran.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    send(handle, &script.whole(call), asking).await
                }
                answer => answer,
            },
        }
    }
}

async fn send(handle: &mut Handle, command: &Cmd, asking: Asking) -> Result<Value, RedisError> {
    if asking == Asking::No {
        return command.query_async(handle).await;
    }
    // It holds for the one command that follows it, so nothing may come between them.
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command.clone());
    let answers = handle.req_packed_commands(&both, 0, 2).await?;
    let mut answer = Value::Nil;
    for each in answers {
        answer = each.extract_error()?;
    }
    Ok(answer)
}

/// Says of which node an error is.
fn of_node(node: &Node, error: Error) -> Error {
    error.in_part(&format!("redis node {}", node.address()), node.part())
}

/// How often an order is sent on without a pause.
const MOST_HOPS: u32 = 3;

/// The longest pause: short against a deadline.
const LONGEST_WAIT: Duration = Duration::from_millis(40);
