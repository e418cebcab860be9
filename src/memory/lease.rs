use std::{
    collections::{HashMap, VecDeque},
    fmt, mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Clock, Memory, clock::micros};
use crate::{
    error::Error,
    key::Key,
    lease::{
        self, Acquired, Fence, Holder, Incarnation, Keeper, LeaseId, LeaseStore, Node, Notices, Reply, Share, Terms,
        Token, Watch,
    },
    limit::Micros,
};

/// All leases of a store in memory.
pub(super) struct Leases {
    keeper: Keeper,
    notices: Notices,
    most: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    names: HashMap<(Key, Kind), Name>,
    /// How many there may be before those are looked for that have ended.
    sweep_at: usize,
}

/// Leases and permits of one name have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Lease,
    Permits,
}

#[derive(Default)]
struct Name {
    holders: Vec<Held>,
    /// Waiters in the order in which they came, and until when their places are kept.
    queue: VecDeque<(Token, Micros)>,
    /// The last fence. It need not be remembered when the clock has passed it.
    last: u64,
}

struct Held {
    token: Token,
    fence: u64,
    since: Micros,
    ends: Micros,
    label: std::sync::Arc<str>,
}

impl Leases {
    pub(super) fn new(most: usize) -> Self {
        Self { keeper: Keeper::new(), notices: Notices::default(), most, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(&self, id: &LeaseId, terms: &Terms, now: Micros) -> Result<Acquired, Error> {
        let mut table = self.lock();
        table.make_room(id.names().len(), self.most, now)?;
        let kind = Kind::of(id.share());
        let most = most_of(id.share());
        let mut taken = None;
        for (i, name) in id.names().iter().enumerate() {
            let name = table.names.entry((*name, kind)).or_default();
            name.pass(now);
            if taken.is_none()
                && let Some(left) = name.is_taken(id, most, now)
            {
                taken = Some(Acquired::Taken { left: Duration::from_micros(left), name: i });
            }
        }
        if let Some(taken) = taken {
            // What was still held of several is given up: all or none.
            for name in id.names() {
                let name = table.names.entry((*name, kind)).or_default();
                name.holders.retain(|held| held.token != id.token());
            }
            return Ok(taken);
        }
        let mut fences = Vec::with_capacity(id.names().len());
        for name in id.names() {
            let name = table.names.entry((*name, kind)).or_default();
            let fence = name.take(id.token(), terms, now, kind == Kind::Lease);
            fences.extend(fence);
        }
        if let (Share::OneOf(most), [key, ..]) = (id.share(), id.names()) {
            let held = table.names.get(&(*key, kind)).map_or(0, |name| name.holders.len());
            return Ok(Acquired::Permit { free: most.get().saturating_sub(u32::try_from(held).unwrap_or(u32::MAX)) });
        }
        Ok(Acquired::Held { fences })
    }

    fn extend(&self, id: &LeaseId, ttl: Duration, now: Micros) -> bool {
        let mut table = self.lock();
        let kind = Kind::of(id.share());
        let mut all = true;
        for name in id.names() {
            let name = table.names.get_mut(&(*name, kind));
            let held =
                name.and_then(|name| name.holders.iter_mut().find(|held| held.token == id.token() && held.ends > now));
            match held {
                Some(held) => held.ends = now.saturating_add(micros(ttl)),
                None => all = false,
            }
        }
        all
    }

    fn release(&self, id: &LeaseId, now: Micros) -> bool {
        let mut table = self.lock();
        let kind = Kind::of(id.share());
        let mut told = Vec::new();
        let mut all = true;
        for key in id.names() {
            let Some(name) = table.names.get_mut(&(*key, kind)) else {
                all = false;
                continue;
            };
            name.pass(now);
            let (held, was_head) = (name.holders.len(), name.head() == Some(id.token()));
            name.holders.retain(|held| held.token != id.token());
            name.queue.retain(|(waiter, _)| *waiter != id.token());
            let was_held = held > name.holders.len();
            if was_held || (was_head && name.holders.is_empty()) {
                told.push((key, name.head()));
            }
            all &= was_held;
        }
        drop(table);
        for (key, head) in told {
            let head = head.filter(|_| matches!(id.share(), Share::InTurn(_)));
            self.notices.tell(key.as_bytes(), head.map(|head| head.to_string().into_bytes().into()));
        }
        all
    }

    fn hand_over(&self, from: &LeaseId, to: &LeaseId, terms: &Terms, now: Micros) -> Acquired {
        let mut table = self.lock();
        let kind = Kind::of(from.share());
        let is_held = from.names().iter().all(|name| {
            let name = table.names.get(&(*name, kind));
            name.is_some_and(|name| name.holders.iter().any(|held| held.token == from.token() && held.ends > now))
        });
        if !is_held {
            return Acquired::Taken { left: Duration::ZERO, name: 0 };
        }
        let mut fences = Vec::with_capacity(from.names().len());
        for name in from.names() {
            let name = table.names.entry((*name, kind)).or_default();
            name.holders.retain(|held| held.token != from.token());
            fences.extend(name.take(to.token(), terms, now, kind == Kind::Lease));
        }
        Acquired::Held { fences }
    }

    fn raise(&self, id: &LeaseId, fences: &[Fence], now: Micros) -> bool {
        let mut table = self.lock();
        let kind = Kind::of(id.share());
        let mut all = true;
        for (name, fence) in id.names().iter().zip(fences) {
            let held = table.names.get_mut(&(*name, kind)).and_then(|name| {
                name.last = name.last.max(u64::from(*fence));
                name.holders.iter_mut().find(|held| held.token == id.token() && held.ends > now)
            });
            match held {
                Some(held) => held.fence = held.fence.max(u64::from(*fence)),
                None => all = false,
            }
        }
        all
    }

    fn holders(&self, name: &Key, share: Share, now: Micros) -> Vec<Holder> {
        let table = self.lock();
        let Some(name) = table.names.get(&(*name, Kind::of(share))) else { return Vec::new() };
        let live = name.holders.iter().filter(|held| held.ends > now);
        live.map(|held| {
            Holder::new(
                held.token,
                (held.fence > 0).then(|| held.fence.into()),
                Duration::from_micros(now.saturating_sub(held.since)),
                Duration::from_micros(held.ends - now),
                held.label.to_string(),
            )
        })
        .collect()
    }

    fn force(&self, key: &Key, share: Share, now: Micros) -> u64 {
        let mut table = self.lock();
        let kind = Kind::of(share);
        let name = table.names.entry((*key, kind)).or_default();
        name.pass(now);
        let ended = mem::take(&mut name.holders).len() as u64;
        if kind == Kind::Lease {
            name.mint(now);
        }
        drop(table);
        self.notices.tell(key.as_bytes(), None);
        ended
    }
}

impl Kind {
    fn of(share: Share) -> Self {
        if matches!(share, Share::OneOf(_)) { Self::Permits } else { Self::Lease }
    }
}

fn most_of(share: Share) -> usize {
    match share {
        Share::OneOf(most) => usize::try_from(most.get()).unwrap_or(usize::MAX),
        _ => 1,
    }
}

impl Table {
    /// Fails if there is no room, when what has ended is gone.
    fn make_room(&mut self, names: usize, most: usize, now: Micros) -> Result<(), Error> {
        if self.names.len() + names > self.sweep_at.min(most) {
            self.names.retain(|_, name| {
                name.pass(now);
                !name.holders.is_empty() || !name.queue.is_empty() || name.last >= now
            });
            // Twice as many as are left, so that sweeping costs each acquire the same.
            self.sweep_at = (2 * self.names.len()).max(64);
        }
        if self.names.len() + names > most {
            return Err(Error::store("memory is full of leases; set Memory::max_keys"));
        }
        Ok(())
    }
}

impl Name {
    /// Lets go what has ended.
    fn pass(&mut self, now: Micros) {
        self.holders.retain(|held| held.ends > now);
        self.queue.retain(|(_, kept)| *kept > now);
    }

    fn head(&self) -> Option<Token> {
        self.queue.front().map(|(waiter, _)| *waiter)
    }

    /// Returns how long it is worth while to wait, if one more cannot hold.
    fn is_taken(&mut self, id: &LeaseId, most: usize, now: Micros) -> Option<Micros> {
        if self.holders.iter().any(|held| held.token == id.token()) {
            return None;
        }
        let is_full = self.holders.len() >= most;
        if let Share::InTurn(keep) = id.share() {
            let kept = now.saturating_add(micros(keep));
            if let Some(place) = self.queue.iter_mut().find(|(waiter, _)| *waiter == id.token()) {
                place.1 = kept;
            } else if is_full || !self.queue.is_empty() {
                self.queue.push_back((id.token(), kept));
            }
            if !is_full && self.head().is_some_and(|head| head != id.token()) {
                return self.queue.front().map(|(_, kept)| kept - now);
            }
        }
        is_full.then(|| self.holders.iter().map(|held| held.ends - now).min().unwrap_or_default())
    }

    fn take(&mut self, token: Token, terms: &Terms, now: Micros, with_fence: bool) -> Option<Fence> {
        let ends = now.saturating_add(micros(terms.ttl));
        self.queue.retain(|(waiter, _)| *waiter != token);
        if let Some(held) = self.holders.iter_mut().find(|held| held.token == token) {
            held.ends = ends;
            return with_fence.then(|| held.fence.into());
        }
        let fence = if with_fence { self.mint(now) } else { 0 };
        self.holders.push(Held { token, fence, since: now, ends, label: terms.label.clone() });
        with_fence.then(|| fence.into())
    }

    /// Returns the next fence.
    fn mint(&mut self, now: Micros) -> u64 {
        self.last = (self.last + 1).max(now);
        self.last
    }
}

impl LeaseStore for Memory {
    fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        Reply::ready(self.leases.acquire(id, terms, self.clock.now()))
    }

    fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
        let now = self.clock.now();
        Reply::ready(Ok(leases.iter().map(|(id, ttl)| self.leases.extend(id, *ttl, now)).collect()))
    }

    fn release(&self, id: &LeaseId) -> Reply<bool> {
        Reply::ready(Ok(self.leases.release(id, self.clock.now())))
    }

    fn hand_over(&self, from: &LeaseId, to: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        Reply::ready(Ok(self.leases.hand_over(from, to, terms, self.clock.now())))
    }

    fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>> {
        Reply::ready(Ok(self.leases.holders(name, share, self.clock.now())))
    }

    fn force(&self, name: &Key, share: Share) -> Reply<u64> {
        Reply::ready(Ok(self.leases.force(name, share, self.clock.now())))
    }

    fn watch(&self, name: &Key) -> Reply<Watch> {
        Reply::ready(Ok(Watch::of(self.leases.notices.listen(name))))
    }

    fn keeper(&self) -> &Keeper {
        &self.leases.keeper
    }

    fn clock(&self) -> lease::Clock {
        match &self.clock {
            Clock::System { .. } => lease::Clock::default(),
            Clock::Manual(clock) => {
                let clock = clock.clone();
                lease::Clock::by(move || clock.elapsed_since_epoch())
            }
        }
    }
}

/// For tests of [`Redlock`](lease::Redlock): a memory is lost with its process, as all others of it.
impl Node for Memory {
    fn raise(&self, id: &LeaseId, fences: &[Fence]) -> Reply<bool> {
        Reply::ready(Ok(self.leases.raise(id, fences, self.clock.now())))
    }

    fn incarnation(&self) -> Reply<Incarnation> {
        Reply::ready(Ok(Incarnation::new("memory", Duration::ZERO, true)))
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("names", &self.lock().names.len()).finish_non_exhaustive()
    }
}
