use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use redis::Value;
use tokio::{runtime, sync::watch};

use super::way::{OnScattered, Order, Way};
use crate::{
    error::Error,
    redis::{
        batch::{Batches, Carrier, Job, Queue, Undone},
        limit::{Call, Names, Reply, Request},
        script::DECIDE,
        turn,
    },
};

/// The decisions of one bucket that wait, and what is known of it.
pub(super) struct Lane {
    pub(super) queue: Arc<Queue>,
    pub(super) slot: Slot,
}

/// Where the keys of a bucket lie.
#[derive(Clone)]
pub(super) struct Slot {
    way: Way,
    slot: u16,
    names: Names,
    /// Whether a server said that somebody may be blocked.
    blocks: Arc<AtomicBool>,
    /// The part of the store to which the slot's owner sends orders on, zero for none.
    elsewhere: Arc<AtomicU64>,
}

impl Lane {
    /// Opens a lane, which is worked on until `open` is dropped.
    pub(super) fn open(
        runtime: &runtime::Handle,
        way: Way,
        slot: u16,
        names: &Names,
        open: &watch::Sender<()>,
    ) -> Self {
        let slot = Slot { way, slot, names: names.clone(), blocks: Arc::default(), elsewhere: Arc::default() };
        let lane = Self { queue: Arc::default(), slot };
        runtime.spawn(work(Arc::clone(&lane.queue), lane.slot.clone(), open.subscribe()));
        lane
    }
}

async fn work(queue: Arc<Queue>, slot: Slot, mut open: watch::Receiver<()>) {
    let names = slot.names.clone();
    // Nobody says anything there; it ends.
    let (mut closed, mut batches) = (pin!(open.changed()), pin!(Batches::new(&queue, &names, slot)));
    poll_fn(|cx| {
        let _ = batches.as_mut().poll(cx);
        closed.as_mut().poll(cx).map(drop)
    })
    .await;
}

impl Slot {
    /// From now on calls tell what blocks their subjects.
    pub(super) fn expect_blocks(&self) {
        self.blocks.store(true, Ordering::Relaxed);
    }

    /// Returns the part of the store that answers in the place of the slot's owner, if there is one.
    pub(super) fn elsewhere(&self) -> Option<u64> {
        let part = self.elsewhere.load(Ordering::Relaxed);
        (part != 0).then_some(part)
    }

    async fn send(&self, call: &Call, is_wanted: impl Fn() -> bool) -> Result<Value, Undone> {
        let order = Order::Script(&DECIDE, call);
        self.way.send(self.slot, order, is_wanted, OnScattered::Return, &self.elsewhere).await
    }
}

impl Carrier for Slot {
    async fn decide<'r>(
        &self,
        names: &Names,
        requests: impl Iterator<Item = Request<'r>> + Clone + Send,
        is_wanted: impl Fn() -> bool + Send + Sync,
    ) -> Result<Value, Undone> {
        let blocks = self.blocks.load(Ordering::Relaxed);
        let call = Call::decide(names, None, requests.clone(), blocks);
        let reply = self.send(&call, &is_wanted).await?;
        if blocks || !Reply::wants_blocks(&reply) {
            return Ok(reply);
        }
        let call = Call::decide(names, None, requests, true);
        self.send(&call, &is_wanted).await
    }

    fn read<'v>(&self, reply: &'v Value) -> Result<Reply<'v>, Error> {
        let (reply, blocks) = Reply::new(reply)?;
        self.blocks.store(blocks, Ordering::Relaxed);
        Ok(reply)
    }

    async fn decide_scattered(&self, jobs: Vec<Job>) {
        turn::each_by_key(&self.way, &self.names, jobs).await;
    }
}
