use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    key::Print,
    limit::{Escalation, Micros, Strikes},
};

/// Who is blocked until when, and who was refused how often: seldom anybody.
#[derive(Debug)]
pub(super) struct Penalties {
    /// How many are blocked, or were and have not been swept yet.
    blocked: AtomicUsize,
    /// No block ends later.
    latest_end: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
    /// How many a shard keeps, beside those that are blocked by an operator.
    most: usize,
}

#[derive(Debug, Default)]
struct Shard {
    table: HashTable<Penalty>,
    /// How many there may be before it is looked for what is over.
    sweep_from: usize,
    swept_at: Micros,
}

#[derive(Debug)]
struct Penalty {
    print: Print,
    blocked_until: Micros,
    strikes: Strikes,
}

impl Penalties {
    pub(super) fn new(max_keys: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let most = max_keys.div_ceil(SHARDS);
        Self { blocked: AtomicUsize::new(0), latest_end: AtomicU64::new(0), shards, most }
    }

    /// Returns true if somebody may be blocked.
    #[inline]
    pub(super) fn is_any_blocked(&self, now: Micros) -> bool {
        self.blocked.load(Ordering::Acquire) > 0 && self.latest_end.load(Ordering::Acquire) > now
    }

    pub(super) fn blocked_for(&self, print: Print, now: Micros) -> Micros {
        let shard = self.shard(print);
        let found = shard.table.find(print.hash(), |penalty| penalty.print == print);
        found.map_or(0, |penalty| penalty.blocked_until.saturating_sub(now))
    }

    /// Blocks until a time; if that has come, lets in again and forgets what led to it.
    pub(super) fn block(&self, print: Print, until: Micros, now: Micros) {
        let mut shard = self.shard(print);
        self.sweep(&mut shard, now);
        if until > now {
            let penalty = shard.at(print);
            self.set_blocked(penalty, until);
        } else if let Ok(entry) = shard.table.find_entry(print.hash(), |penalty| penalty.print == print) {
            let (penalty, _) = entry.remove();
            self.uncount(&penalty);
        }
    }

    /// Counts a refusal; returns for how long the subject is blocked, zero if it is not, or for want of room.
    pub(super) fn strike(&self, print: Print, escalation: &Escalation, now: Micros) -> Micros {
        let mut shard = self.shard(print);
        self.sweep(&mut shard, now);
        let is_known = shard.table.find(print.hash(), |penalty| penalty.print == print).is_some();
        if !is_known && shard.table.len() >= self.most {
            return 0;
        }
        let penalty = shard.at(print);
        // Another request was refused at the same time, and led to it.
        if penalty.blocked_until > now {
            return penalty.blocked_until - now;
        }
        let long = penalty.strikes.count(escalation, now);
        if long > 0 {
            self.set_blocked(penalty, now.saturating_add(long));
        }
        long
    }

    fn set_blocked(&self, penalty: &mut Penalty, until: Micros) {
        self.latest_end.fetch_max(until, Ordering::AcqRel);
        if mem::replace(&mut penalty.blocked_until, until) == 0 {
            self.blocked.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn uncount(&self, penalty: &Penalty) {
        if penalty.blocked_until > 0 {
            self.blocked.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Drops what is over, if there is much; now and then where nothing is.
    fn sweep(&self, shard: &mut Shard, now: Micros) {
        // A clock that was set back begins anew.
        let lately = shard.swept_at..shard.swept_at.saturating_add(SWEEP_EVERY);
        if shard.table.len() < shard.sweep_from.max(SWEEP_FROM) || lately.contains(&now) {
            return;
        }
        shard.swept_at = now;
        shard.table.retain(|penalty| {
            let lives = penalty.blocked_until.max(penalty.strikes.ends()) > now;
            if !lives {
                self.uncount(penalty);
            }
            lives
        });
        shard.table.shrink_to(2 * shard.table.len(), |penalty| penalty.print.hash());
        shard.sweep_from = (2 * shard.table.len()).min(self.most);
    }

    fn shard(&self, print: Print) -> MutexGuard<'_, Shard> {
        // A panic under the lock leaves whole entries behind: each is changed by plain assignments.
        self.shards[print.part(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn at(&mut self, print: Print) -> &mut Penalty {
        let same = |penalty: &Penalty| penalty.print == print;
        match self.table.entry(print.hash(), same, |penalty| penalty.print.hash()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Penalty { print, blocked_until: 0, strikes: Strikes::default() }).into_mut()
            }
        }
    }
}

const SHARDS: usize = 64;

/// Less is not worth a look.
const SWEEP_FROM: usize = 16;

/// How often a shard is looked through at most, in microseconds.
const SWEEP_EVERY: Micros = 1_000_000;
