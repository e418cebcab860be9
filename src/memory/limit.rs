use std::{
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;

use crate::{
    key::Key,
    limit::{Adjustment, Algorithm, Decision, Demand, Micros, Outcome, Outcomes, Policy, State},
};

/// All keys, spread over shards that are locked apart.
#[derive(Debug)]
pub(super) struct Table {
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<Entry>,
    /// The bucket that is swept next.
    swept: usize,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    name: Box<[u8]>,
    /// When the state means no more than a fresh one.
    ends: Micros,
    state: State,
}

/// What an entry is found by.
#[derive(Clone, Copy)]
struct Name<'a> {
    hash: u64,
    algorithm: u8,
    policy: &'a [u8],
    subject: &'a [u8],
}

/// Where the state of a demand lies.
struct Slot<'a> {
    name: Name<'a>,
    shard: usize,
}

impl Table {
    /// Decides on all demands under the locks of all their shards.
    pub(super) fn decide(&self, demands: &[Demand<'_>], now: Micros) -> Decision {
        let slots: SmallVec<[Slot<'_>; 4]> = demands
            .iter()
            .map(|demand| {
                let name = self.name(demand.policy(), demand.subject());
                Slot { name, shard: self.shard_of(name.hash) }
            })
            .collect();
        let mut locked = self.lock(&slots);

        let mut outcomes = Outcomes::new();
        for (demand, slot) in demands.iter().zip(&slots) {
            let shard = locked.shard(slot.shard);
            outcomes.push(shard.look(slot.name, demand, now));
        }
        if outcomes.iter().all(Outcome::is_allowed) {
            for ((demand, slot), outcome) in demands.iter().zip(&slots).zip(&mut outcomes) {
                if demand.cost_u32() > 0 {
                    let shard = locked.shard(slot.shard);
                    *outcome = shard.charge(slot.name, demand, now);
                }
            }
        }
        for slot in &slots {
            locked.shard(slot.shard).sweep(now);
        }
        Decision::by(outcomes)
    }

    pub(super) fn settle(&self, adjustment: &Adjustment<'_>, now: Micros) {
        let policy = adjustment.policy();
        let name = self.name(policy, adjustment.subject());
        let mut shard = self.lock_one(self.shard_of(name.hash));
        let (receipt, charged, cost) = (adjustment.receipt(), adjustment.charged_u32(), adjustment.cost_u32());
        if let Some(entry) = shard.find(name, now) {
            let ends = entry.state.settle(policy, now, receipt, charged, cost);
            entry.ends = entry.ends.max(ends.unwrap_or(0));
            return;
        }
        // A bucket that is full by now would not be, had it been charged this much from the start.
        let mut state = State::fresh(policy);
        if let Some(ends) = state.settle(policy, now, receipt, charged, cost).filter(|ends| *ends > now) {
            *shard.entry(name, policy) = Entry { hash: name.hash, name: name.to_box(), ends, state };
        }
    }

    pub(super) fn reset(&self, policy: &Policy, subject: &Key) {
        let name = self.name(policy, subject);
        let mut shard = self.lock_one(self.shard_of(name.hash));
        if let Ok(entry) = shard.entries.find_entry(name.hash, |entry| name.is(entry)) {
            entry.remove();
        }
    }

    pub(super) fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock_one(shard).entries.len()).sum()
    }

    fn name<'a>(&self, policy: &'a Policy, subject: &'a Key) -> Name<'a> {
        let algorithm = letter(policy.algorithm());
        let (policy, subject) = (policy.name().as_bytes(), subject.as_bytes());
        let hash = self.hasher.hash_one((algorithm, policy, subject));
        Name { hash, algorithm, policy, subject }
    }

    /// Picks a shard by bits in the middle: the top seven are the table's own tag.
    fn shard_of(&self, hash: u64) -> usize {
        usize::try_from((hash >> 32) & 0xffff).expect("sixteen bits") % self.shards.len()
    }

    fn lock(&self, slots: &[Slot<'_>]) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 4]> = slots.iter().map(|slot| slot.shard).collect();
        // In one order, so that two callers never wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        Locked(wanted.into_iter().map(|shard| (shard, self.lock_one(shard))).collect())
    }

    fn lock_one(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A panic under the lock leaves whole entries behind: each is changed by plain assignments.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Table {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { hasher: DefaultHashBuilder::default(), shards }
    }
}

struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    fn shard(&mut self, index: usize) -> &mut Shard {
        let found = self.0.iter_mut().find(|(shard, _)| *shard == index);
        &mut found.expect("every slot's shard is locked").1
    }
}

impl Shard {
    /// Returns what the policy says before anything is charged.
    fn look(&mut self, name: Name<'_>, demand: &Demand<'_>, now: Micros) -> Outcome {
        let (policy, cost) = (demand.policy(), demand.cost_u32());
        let standing = match self.find(name, now) {
            Some(entry) => {
                if cost > 0 && entry.state.tidy(policy, now) {
                    entry.ends = entry.state.ends(policy);
                }
                entry.state.standing(policy, now, cost)
            }
            None => State::fresh(policy).standing(policy, now, cost),
        };
        Outcome::before(policy, standing)
    }

    fn charge(&mut self, name: Name<'_>, demand: &Demand<'_>, now: Micros) -> Outcome {
        let (policy, cost) = (demand.policy(), demand.cost_u32());
        let entry = self.entry(name, policy);
        if entry.ends <= now {
            entry.state = State::fresh(policy);
        }
        let receipt = entry.state.charge(policy, now, cost);
        entry.ends = entry.state.ends(policy);
        Outcome::allowed(policy, entry.state.standing(policy, now, cost), receipt)
    }

    fn entry(&mut self, name: Name<'_>, policy: &Policy) -> &mut Entry {
        let fresh = || Entry { hash: name.hash, name: name.to_box(), ends: 0, state: State::fresh(policy) };
        self.entries.entry(name.hash, |entry| name.is(entry), |entry| entry.hash).or_insert_with(fresh).into_mut()
    }

    /// Finds a state that still means something.
    fn find(&mut self, name: Name<'_>, now: Micros) -> Option<&mut Entry> {
        self.entries.find_mut(name.hash, |entry| name.is(entry)).filter(|entry| entry.ends > now)
    }

    /// Looks at the next few buckets and drops what has ended.
    fn sweep(&mut self, now: Micros) {
        for _ in 0..SWEEP {
            let buckets = self.entries.num_buckets();
            self.swept = if self.swept + 1 < buckets { self.swept + 1 } else { 0 };
            if let Ok(bucket) = self.entries.get_bucket_entry(self.swept)
                && bucket.get().ends <= now
            {
                bucket.remove();
            }
        }
        if self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(self.entries.len() * 2, |entry| entry.hash);
        }
    }
}

impl Name<'_> {
    fn is(&self, entry: &Entry) -> bool {
        let name = &*entry.name;
        let (policy, subject) = (self.policy, self.subject);
        entry.hash == self.hash
            && name.len() == 2 + policy.len() + subject.len()
            && name[0] == self.algorithm
            && name[1..].starts_with(policy)
            && name[1 + policy.len()] == END_OF_POLICY
            && name.ends_with(subject)
    }

    fn to_box(self) -> Box<[u8]> {
        [&[self.algorithm], self.policy, &[END_OF_POLICY], self.subject].concat().into()
    }
}

/// A changed algorithm starts anew, as it does in a store with names for keys.
fn letter(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow => b'f',
        Algorithm::SlidingWindow => b's',
        Algorithm::TokenBucket => b't',
    }
}

/// No policy's name has it.
const END_OF_POLICY: u8 = b':';

/// Enough that two threads seldom want the same one, and few enough to be nothing in an idle process.
const SHARDS: usize = 64;

/// A decision adds one key at most, so looking at a few keeps ahead of it.
const SWEEP: usize = 4;
