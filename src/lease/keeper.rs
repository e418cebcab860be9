use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    Acquired, LeaseId, Share, Terms,
    lease::Held,
    renew::{self, Job},
};
use crate::{error::Error, key::Key};

/// What the holders and waiters of one store share in this process: the loop that renews leases, and the queues in
/// which waiters stand, of whom only the first asks the store.
///
/// A store has one, which its clones share.
#[derive(Clone, Default)]
pub struct Keeper(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// A loop for each runtime, since it ends with its runtime.
    loops: Mutex<Vec<(runtime::Id, mpsc::UnboundedSender<Job>)>>,
    lines: Mutex<HashMap<Of, Line>>,
}

impl Keeper {
    /// Makes one for a store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Renews a lease on the present runtime, for as long as it is held and both live.
    ///
    /// Outside of a runtime nothing renews it.
    pub(super) fn renew(&self, held: &Arc<Held>) {
        let Ok(runtime) = runtime::Handle::try_current() else { return };
        let mut job = Job::new(held);
        let mut loops = self.0.loops.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, jobs)) = loops.iter().find(|(id, _)| *id == runtime.id()) {
            match jobs.send(job) {
                Ok(()) => return,
                Err(mpsc::error::SendError(back)) => job = back,
            }
        }
        loops.retain(|(_, jobs)| !jobs.is_closed());
        let (sender, jobs) = mpsc::unbounded_channel();
        // Fails never: the receiver is here.
        let _ = sender.send(job);
        runtime.spawn(renew::work(held.hold.clock().clone(), jobs, sender.downgrade()));
        loops.push((runtime.id(), sender));
    }

    /// Joins the waiters for a lease in this process.
    pub(super) fn join(&self, id: &LeaseId, terms: &Terms) -> Place {
        let of = Of { names: id.names().to_vec(), share: id.share() };
        let mut lines = self.lines();
        let line = lines.entry(of.clone()).or_default();
        line.number += 1;
        let mut waiter = Waiter { number: line.number, id: id.clone(), terms: terms.clone(), turn: None, grant: None };
        let mut place = Place { keeper: self.clone(), of, number: line.number, turn: None, grant: None };
        if line.waiters.is_empty() {
            (waiter.grant, place.grant) = channel();
        } else {
            (waiter.turn, place.turn) = channel();
        }
        line.waiters.push_back(waiter);
        drop(lines);
        place
    }

    /// Takes the first waiter for the same lease, to hand it over; not too many times in a row, since waiters of
    /// other processes wait as well.
    pub(super) fn heir(&self, id: &LeaseId) -> Option<Heir> {
        let of = Of { names: id.names().to_vec(), share: id.share() };
        let mut lines = self.lines();
        let line = lines.get_mut(&of)?;
        if line.handed_over >= MOST_IN_A_ROW {
            line.handed_over = 0;
            line.stands_back_until = Some(Instant::now() + STANDS_BACK);
            return None;
        }
        let first = line.waiters.front_mut()?;
        let grant = first.grant.take()?;
        line.handed_over += 1;
        Some(Heir { id: first.id.clone(), terms: first.terms.clone(), grant })
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Of, Line>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("lines", &self.lines().len()).finish_non_exhaustive()
    }
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Of {
    names: Vec<Key>,
    share: Share,
}

/// The waiters for one lease, first come first served.
#[derive(Default)]
struct Line {
    number: u64,
    waiters: VecDeque<Waiter>,
    handed_over: u32,
    stands_back_until: Option<Instant>,
}

struct Waiter {
    number: u64,
    id: LeaseId,
    terms: Terms,
    /// Told when it is the first; the first has none.
    turn: Option<oneshot::Sender<oneshot::Receiver<Granted>>>,
    /// Where the first is told that it has been given the lease.
    grant: Option<oneshot::Sender<Granted>>,
}

/// A lease that was handed over, and when that was asked for.
pub(super) type Granted = (Result<Acquired, Error>, Duration);

/// The waiter who is given a lease.
pub(super) struct Heir {
    pub(super) id: LeaseId,
    pub(super) terms: Terms,
    pub(super) grant: oneshot::Sender<Granted>,
}

/// A waiter's place in line, which it leaves when this is dropped.
pub(super) struct Place {
    keeper: Keeper,
    of: Of,
    number: u64,
    turn: Option<oneshot::Receiver<oneshot::Receiver<Granted>>>,
    grant: Option<oneshot::Receiver<Granted>>,
}

impl Place {
    /// Waits until nobody stands before this waiter.
    pub(super) async fn is_first(&mut self) {
        if let Some(turn) = &mut self.turn {
            // Nobody drops a turn without telling it.
            if let Ok(grant) = turn.await {
                self.grant = Some(grant);
            }
            self.turn = None;
        }
    }

    /// Waits while it is the turn of other processes.
    pub(super) async fn stands_back(&self) {
        let until = self.keeper.lines().get(&self.of).and_then(|line| line.stands_back_until);
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    /// Waits for a lease that another holder of this process hands over.
    pub(super) async fn granted(&mut self) -> Granted {
        let Some(grant) = &mut self.grant else { return std::future::pending().await };
        let granted = grant.await;
        self.renew_grant();
        match granted {
            Ok(granted) => granted,
            // Whoever was to hand over could not.
            Err(_) => std::future::pending().await,
        }
    }

    /// Lets the waiter be given the lease another time.
    fn renew_grant(&mut self) {
        let (sender, receiver) = oneshot::channel();
        self.grant = Some(receiver);
        let mut lines = self.keeper.lines();
        if let Some(first) = lines.get_mut(&self.of).and_then(|line| line.waiters.front_mut())
            && first.number == self.number
        {
            first.grant = Some(sender);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.keeper.lines();
        let Some(line) = lines.get_mut(&self.of) else { return };
        let was_first = line.waiters.front().is_some_and(|first| first.number == self.number);
        line.waiters.retain(|waiter| waiter.number != self.number);
        if line.waiters.is_empty() {
            lines.remove(&self.of);
            return;
        }
        if was_first && let Some(next) = line.waiters.front_mut() {
            let (sender, receiver) = oneshot::channel();
            next.grant = Some(sender);
            if let Some(turn) = next.turn.take() {
                // Who has gone leaves the line by itself.
                let _ = turn.send(receiver);
            }
        }
    }
}

fn channel<T>() -> (Option<oneshot::Sender<T>>, Option<oneshot::Receiver<T>>) {
    let (sender, receiver) = oneshot::channel();
    (Some(sender), Some(receiver))
}

/// So many times a lease stays in this process before others may have it.
const MOST_IN_A_ROW: u32 = 16;

/// What a notice takes to another process, and its question back, in one data centre; counted from before the release.
const STANDS_BACK: Duration = Duration::from_millis(5);
