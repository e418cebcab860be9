//! Several servers that share the keys by their slots.
//!
//! What is sent goes to the master of its keys' slot, over the connection to that node. The map of slots is found by
//! asking any node, and renewed when a node says that a slot has moved, or cannot be reached. Nothing is sent again
//! after a failure that leaves open whether it was done.

mod keep;
mod lane;
mod map;
mod node;
mod seeds;
mod slot;
mod way;

use std::sync::{Arc, Mutex, PoisonError};

use redis::{Cmd, Value};
use tokio::{runtime, sync::watch};

use self::{
    keep::{Chart, Wish, keep_map},
    lane::Lane,
    node::Nodes,
};
pub(in crate::redis) use self::{
    seeds::Seeds,
    slot::slot_of,
    way::{Order, Way},
};
use super::no_runtime;
use crate::{
    error::Error,
    key::Key,
    limit::{Answer, Micros},
    redis::{
        batch::Promised,
        limit::{Asked, Call, Names, Part},
        script::{BLOCK, FLAG, Script},
    },
};

/// The nodes of a cluster, and what waits for them. Clones share all of it.
#[derive(Clone)]
pub(in crate::redis) struct Cluster(Arc<Shared>);

struct Shared {
    names: Names,
    nodes: Arc<Nodes>,
    /// The slot of each bucket.
    slots: Box<[u16]>,
    lines: Mutex<Vec<Line>>,
    /// Heard by what goes on when its request has gone away.
    behind: watch::Sender<()>,
}

/// What one runtime has of a cluster: tasks and connections die with their runtime.
struct Line {
    runtime: runtime::Id,
    way: Way,
    /// One a bucket, opened by its first decision.
    lanes: Vec<Option<Lane>>,
    open: watch::Sender<()>,
}

impl Cluster {
    pub(super) fn new(seeds: Seeds, names: Names) -> Self {
        let slots = (0..names.buckets).map(|bucket| slot_of(bucket.to_string().as_bytes())).collect();
        let (nodes, behind) = (Arc::new(Nodes::new(seeds)), watch::Sender::new(()));
        Self(Arc::new(Shared { names, nodes, slots, lines: Mutex::default(), behind }))
    }

    pub(in crate::redis) fn names(&self) -> &Names {
        &self.0.names
    }

    /// Puts a request of one bucket in line.
    pub(in crate::redis) fn push(&self, asked: Asked) -> Answer {
        let bucket = self.bucket(asked[0].subject());
        self.with_line(|line, runtime| self.lane(line, runtime, bucket).queue.push(asked))
            .unwrap_or_else(|error| Answer::ready(Err(error)))
    }

    /// Puts a part of a request in line, which lies in one bucket. Nothing is answered, and nothing was done, if it has
    /// to be cut further.
    pub(in crate::redis) fn push_part(&self, asked: Asked) -> Answer<Option<Part>> {
        let bucket = self.bucket(asked[0].subject());
        self.with_line(|line, runtime| self.lane(line, runtime, bucket).queue.push_promised(asked, Promised::Part))
            .unwrap_or_else(|error| Answer::ready(Err(error)))
    }

    /// Calls a script on the node that serves its keys.
    pub(in crate::redis) async fn call(&self, script: &Script, call: &Call) -> Result<Value, Error> {
        self.way()?.call(slot_of(call.first_key()), Order::Script(script, call)).await
    }

    /// Sends a command to the node that serves a key.
    pub(in crate::redis) async fn send(&self, key: &[u8], command: &Cmd) -> Result<Value, Error> {
        self.way()?.call(slot_of(key), Order::Command(command)).await
    }

    /// Calls `block.lua`; from now on calls for that bucket tell what blocks their subjects.
    pub(in crate::redis) async fn block(&self, subject: &Key, long: Micros, call: &Call) -> Result<(), Error> {
        let bucket = self.bucket(subject);
        self.with_line(|line, runtime| self.lane(line, runtime, bucket).slot.expect_blocks())?;
        let (way, slot) = (self.way()?, self.0.slots[bucket]);
        if way.call_or_scatter(slot, Order::Script(&BLOCK, call)).await?.is_some() {
            return Ok(());
        }
        // The keys are on their way: one after the other, and first the one that only makes others look.
        if long > 0 {
            way.call(slot, Order::Script(&FLAG, &Call::flag(&self.0.names, subject, long))).await?;
        }
        way.call(slot, Order::Script(&BLOCK, &call.block_without_flag())).await?;
        if long == 0 {
            way.call(slot, Order::Command(redis::cmd("DEL").arg(call.last_key()))).await?;
        }
        Ok(())
    }

    /// Waits until all has been given back that requests which went away were charged.
    pub(in crate::redis) fn finish(&self) -> Answer<()> {
        let behind = self.0.behind.clone();
        Answer::pending(async move {
            behind.closed().await;
            Ok(())
        })
    }

    /// Returns which nodes have to answer about some subjects.
    pub(in crate::redis) fn parts<'k>(&self, subjects: impl IntoIterator<Item = &'k Key>) -> u64 {
        let parts = self.with_line(|line, _| {
            let chart = line.way.chart.borrow();
            let Some(map) = &chart.map else { return WHOLE };
            let part = |bucket: usize| {
                let elsewhere = line.lanes[bucket].as_ref().and_then(|lane| lane.slot.elsewhere());
                elsewhere.or_else(|| Some(map.owner(self.0.slots[bucket])?.part())).unwrap_or(WHOLE)
            };
            subjects.into_iter().fold(0, |parts, subject| parts | part(self.bucket(subject)))
        });
        parts.unwrap_or(WHOLE)
    }

    pub(in crate::redis) fn way(&self) -> Result<Way, Error> {
        self.with_line(|line, _| line.way.clone())
    }

    pub(in crate::redis) fn bucket(&self, subject: &Key) -> usize {
        subject.bucket(self.0.names.buckets).into()
    }

    fn lane<'l>(&self, line: &'l mut Line, runtime: &runtime::Handle, bucket: usize) -> &'l Lane {
        let Line { way, lanes, open, .. } = line;
        lanes[bucket].get_or_insert_with(|| Lane::open(runtime, way.clone(), self.0.slots[bucket], &self.0.names, open))
    }

    /// Does something with this runtime's line, which is made if there is none.
    fn with_line<T>(&self, act: impl FnOnce(&mut Line, &runtime::Handle) -> T) -> Result<T, Error> {
        let runtime = runtime::Handle::try_current().map_err(|_| no_runtime())?;
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let id = runtime.id();
        if let Some(line) = lines.iter_mut().find(|line| line.runtime == id && line.is_kept_up()) {
            return Ok(act(line, &runtime));
        }
        lines.retain(Line::is_kept_up);
        let (sender, chart) = watch::channel(Chart::default());
        let wish = Arc::<Wish>::default();
        let nodes = Arc::clone(&self.0.nodes);
        runtime.spawn(keep_map(Arc::clone(&nodes), Arc::clone(&wish), sender));
        let lanes = self.0.slots.iter().map(|_| None).collect();
        let way = Way { chart, wish, nodes, behind: self.0.behind.clone() };
        let mut line = Line { runtime: id, way, lanes, open: watch::Sender::new(()) };
        let done = act(&mut line, &runtime);
        lines.push(line);
        Ok(done)
    }
}

impl Line {
    /// Returns true if the task that keeps its map lives. It is gone when its runtime is.
    fn is_kept_up(&self) -> bool {
        self.way.chart.has_changed().is_ok()
    }
}

/// The part that stands for all of a cluster, while nobody knows its nodes.
const WHOLE: u64 = 1;
