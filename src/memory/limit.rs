use std::{
    fmt, mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashbrown::{HashTable, hash_table::OccupiedEntry};
use smallvec::SmallVec;

use super::{WhenFull, penalty::Penalties};
use crate::{
    key::{Key, Print, Printer},
    limit::{Adjustment, Decision, Demand, Micros, Outcome, Policy, State, Told},
};

/// All keys, spread over shards that are locked apart.
pub(super) struct Table {
    printer: Printer,
    shards: Box<[Apart]>,
    max_keys: usize,
    when_full: WhenFull,
    penalties: Penalties,
}

/// A shard in a cache line of its own, so that threads on different shards don't wait for each other's.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Apart(Mutex<Shard>);

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<Entry>,
    /// The bucket that was swept last.
    swept: usize,
    /// Decisions since then.
    unswept: u8,
    /// When all buckets were swept last, for want of room.
    swept_all_at: Micros,
}

/// Each costs 32 bytes and the table's slack.
#[derive(Debug)]
struct Entry {
    print: Print,
    state: State,
}

/// Where the state of a demand lies.
#[derive(Clone, Copy)]
struct Slot {
    print: Print,
    shard: usize,
    /// Whether it is counted with others, for want of room.
    overflow: bool,
}

impl Table {
    pub(super) fn new(max_keys: usize, when_full: WhenFull) -> Self {
        // One more, for the entries that keys share for which there is no room.
        let shards = (0..=SHARDS).map(|_| Apart::default()).collect();
        Self { printer: Printer::default(), shards, max_keys, when_full, penalties: Penalties::new(max_keys) }
    }

    /// Hashes the same in every process. Whoever knows the seed can look for keys that fall together.
    pub(super) fn seeded(mut self, seed: u64) -> Self {
        self.printer = Printer::seeded(seed);
        self
    }

    /// Decides on all demands under the locks of all their shards, into a decision that is empty.
    #[inline]
    pub(super) fn decide(&self, demands: &[Demand<'_>], now: Micros, decision: &mut Decision) {
        let decided = match demands {
            [demand] if !demand.is_shadow() => {
                self.decide_one(demand.policy(), demand.subject(), demand.cost_u32(), now, decision)
            }
            _ => false,
        };
        if !decided {
            self.decide_together(demands, now, decision);
        }
    }

    /// Decides on one demand by itself, into a decision that is empty; returns false, and has done nothing, where that is
    /// not all there is to it.
    #[inline]
    pub(super) fn decide_one(
        &self,
        policy: &Policy,
        subject: &Key,
        cost: u32,
        now: Micros,
        decision: &mut Decision,
    ) -> bool {
        if self.penalties.is_any_blocked(now) || policy.escalation().is_some() {
            return false;
        }
        let slot = self.slot(policy, subject);
        let mut shard = self.lock(slot.shard);
        // All of it is written under the lock: what is copied while it is on its way to memory holds the processor up.
        shard.decide(slot.print, policy, cost, now, decision)
            || shard.decide_anew(slot.print, policy, cost, now, self.most(slot.shard), decision)
    }

    #[inline(never)]
    fn decide_together(&self, demands: &[Demand<'_>], now: Micros, decision: &mut Decision) {
        let mut slots: SmallVec<[Slot; 4]> =
            demands.iter().map(|demand| self.slot(demand.policy(), demand.subject())).collect();
        let mut locked = self.lock_all(&slots);
        let mut has_overflow = false;
        for (demand, slot) in demands.iter().zip(&mut slots) {
            if !locked.shard(slot.shard).has_room_for(slot.print, demand.cost_u32(), now, self.most(slot.shard)) {
                *slot = self.overflow_slot(demand.policy());
                has_overflow = true;
                if !demand.is_shadow() {
                    decision.set_overflow();
                }
            }
        }
        if has_overflow {
            // It comes after all others, so the order in which locks are taken stays the same.
            locked.0.push((SHARDS, self.lock(SHARDS)));
        }

        for (demand, slot) in demands.iter().zip(&slots) {
            let blocked = self.blocked_for(demand, now);
            // Who is blocked only looks.
            let cost = if blocked > 0 { 0 } else { demand.cost_u32() };
            let outcome = match (slot.overflow, self.when_full) {
                (true, WhenFull::Refuse) => Outcome::refuse(demand.policy(), 0, Some(WHILE_FULL)),
                _ => locked.shard(slot.shard).look(slot.print, demand.policy(), cost, now),
            };
            decision.push(outcome.blocked_for(blocked).in_shadow(demand.is_shadow()));
        }
        if decision.is_allowed() {
            for ((demand, slot), outcome) in demands.iter().zip(&slots).zip(decision.outcomes_mut()) {
                if demand.cost_u32() > 0 && outcome.is_allowed() {
                    let shard = locked.shard(slot.shard);
                    let charged = shard.charge(slot.print, demand.policy(), demand.cost_u32(), now);
                    *outcome = charged.in_shadow(demand.is_shadow());
                }
            }
        } else {
            for ((demand, slot), outcome) in demands.iter().zip(&slots).zip(decision.outcomes_mut()) {
                // Who is counted with others is not blocked for what they do.
                if !slot.overflow && !outcome.is_allowed() && !outcome.is_blocked() {
                    *outcome = self.escalate(demand, outcome.clone(), now);
                }
            }
        }
        for slot in &slots {
            locked.shard(slot.shard).sweep_in_turn(now);
        }
    }

    pub(super) fn settle(&self, adjustment: &Adjustment<'_>, now: Micros) {
        let policy = adjustment.policy();
        let slot = self.slot(policy, adjustment.subject());
        let mut shard = self.lock(slot.shard);
        let (receipt, charged, cost) = (adjustment.receipt(), adjustment.charged_u32(), adjustment.cost_u32());
        if let Some(entry) = shard.find(slot.print, now) {
            entry.state.settle(policy, now, receipt, charged, cost);
            return;
        }
        // A bucket that is full by now would not be, had it been charged this much from the start.
        let mut state = State::fresh(policy);
        state.settle(policy, now, receipt, charged, cost);
        if state.ends() > now && (shard.entries.len() < self.most(slot.shard) || shard.occupied(slot.print).is_some()) {
            shard.entry(slot.print, policy).state = state;
        }
    }

    /// Takes over what another store has answered; what finds no room is not kept.
    pub(super) fn follow(&self, policy: &Policy, demand: &Demand<'_>, told: &Told, now: Micros) {
        let slot = self.slot(policy, demand.subject());
        let mut shard = self.lock(slot.shard);
        shard.sweep_in_turn(now);
        if !shard.has_room_for(slot.print, demand.cost_u32(), now, self.most(slot.shard)) {
            return;
        }
        let state = &mut shard.entry(slot.print, policy).state;
        if state.ends() <= now {
            state.forget();
        }
        state.follow(policy, now, told);
    }

    pub(super) fn reset(&self, policy: &Policy, subject: &Key) {
        let slot = self.slot(policy, subject);
        if let Some(entry) = self.lock(slot.shard).occupied(slot.print) {
            entry.remove();
        }
    }

    pub(super) fn block(&self, policy: &Policy, subject: &Key, ends: Micros, now: Micros) {
        self.penalties.block(self.printer.print(policy.tag(), subject), ends, now);
    }

    fn blocked_for(&self, demand: &Demand<'_>, now: Micros) -> Micros {
        if !self.penalties.is_any_blocked(now) {
            return 0;
        }
        self.penalties.blocked_for(self.printer.print(demand.policy().tag(), demand.subject()), now)
    }

    /// Counts a refusal, if it leads to a block sooner or later.
    fn escalate(&self, demand: &Demand<'_>, refused: Outcome, now: Micros) -> Outcome {
        let Some(escalation) = demand.escalation() else { return refused };
        let print = self.printer.print(demand.policy().tag(), demand.subject());
        refused.blocked_for(self.penalties.strike(print, escalation, now))
    }

    pub(super) fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).entries.len()).sum()
    }

    /// Returns how many keys a shard holds at most: together as many as are allowed.
    fn most(&self, shard: usize) -> usize {
        self.max_keys / SHARDS + usize::from(shard < self.max_keys % SHARDS)
    }

    #[inline]
    fn slot(&self, policy: &Policy, subject: &Key) -> Slot {
        let print = self.printer.print(state_tag(policy), subject);
        Slot { print, shard: print.part(SHARDS), overflow: false }
    }

    /// The state that keys of a policy share for which there is no room.
    fn overflow_slot(&self, policy: &Policy) -> Slot {
        Slot { print: self.printer.print(state_tag(policy), &Key::NOBODY), shard: SHARDS, overflow: true }
    }

    fn lock_all(&self, slots: &[Slot]) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 4]> = slots.iter().map(|slot| slot.shard).collect();
        // In one order, so that two callers never wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        Locked(wanted.into_iter().map(|shard| (shard, self.lock(shard))).collect())
    }

    #[inline]
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A panic under the lock leaves whole entries behind: each is changed by plain assignments.
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stands for a policy's state: a changed algorithm starts anew. Penalties go by the name alone.
fn state_tag(policy: &Policy) -> u64 {
    policy.tag().rotate_left(8) ^ u64::from(policy.algorithm().letter())
}

impl fmt::Debug for Table {
    /// Tells nothing of keys or of how they are hashed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("max_keys", &self.max_keys).finish_non_exhaustive()
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
    /// Decides on one demand by itself, if it finds an entry.
    #[inline]
    fn decide(&mut self, print: Print, policy: &Policy, cost: u32, now: Micros, decision: &mut Decision) -> bool {
        self.sweep_in_turn(now);
        let same = |entry: &Entry| entry.print == print;
        if cost > 0
            && let Some(entry) = self.entries.find_mut(print.0[0], same)
        {
            if entry.state.ends() <= now {
                entry.state.forget();
            }
            let (stand, receipt) = entry.state.take(policy, now, cost);
            decision.set(Outcome::taken(policy, stand, receipt));
            return true;
        }
        false
    }

    /// Decides on one demand that finds no entry, or leaves none; returns false if there is no room for it.
    #[inline(never)]
    fn decide_anew(
        &mut self,
        print: Print,
        policy: &Policy,
        cost: u32,
        now: Micros,
        most: usize,
        decision: &mut Decision,
    ) -> bool {
        if !self.has_room_for(print, cost, now, most) {
            return false;
        }
        let outcome = self.look(print, policy, cost, now);
        decision.push(if outcome.is_allowed() && cost > 0 { self.charge(print, policy, cost, now) } else { outcome });
        true
    }

    /// Returns what the policy says before anything is charged.
    fn look(&mut self, print: Print, policy: &Policy, cost: u32, now: Micros) -> Outcome {
        let stand = match self.find(print, now) {
            Some(entry) => {
                if cost > 0 {
                    entry.state.tidy(policy, now);
                }
                entry.state.stand(policy, now, cost)
            }
            None => State::fresh(policy).stand(policy, now, cost),
        };
        Outcome::before(policy, stand)
    }

    fn charge(&mut self, print: Print, policy: &Policy, cost: u32, now: Micros) -> Outcome {
        let entry = self.entry(print, policy);
        if entry.state.ends() <= now {
            entry.state.forget();
        }
        let receipt = entry.state.charge(policy, now, cost);
        Outcome::allowed(policy, entry.state.stand(policy, now, cost), receipt)
    }

    /// Returns true if the demand finds an entry, leaves none, or can have one.
    ///
    /// When the shard is full, what has ended is looked for: nothing else may give way, or who floods the table
    /// with new keys would free the old ones.
    fn has_room_for(&mut self, print: Print, cost: u32, now: Micros, most: usize) -> bool {
        if self.entries.len() < most || cost == 0 || self.occupied(print).is_some() {
            return true;
        }
        self.sweep(now, SWEEP_WHEN_FULL);
        // Now and then all of it, since what has ended may lie anywhere; a clock that was set back starts anew.
        let last = mem::replace(&mut self.swept_all_at, now);
        if self.entries.len() >= most && !(last..last + SWEEP_ALL_EVERY).contains(&now) {
            self.entries.retain(|entry| entry.state.ends() > now);
        } else {
            self.swept_all_at = last;
        }
        self.entries.len() < most
    }

    fn entry(&mut self, print: Print, policy: &Policy) -> &mut Entry {
        let fresh = || Entry { print, state: State::fresh(policy) };
        let same = |entry: &Entry| entry.print == print;
        self.entries.entry(print.0[0], same, |entry| entry.print.0[0]).or_insert_with(fresh).into_mut()
    }

    fn occupied(&mut self, print: Print) -> Option<OccupiedEntry<'_, Entry>> {
        self.entries.find_entry(print.0[0], |entry| entry.print == print).ok()
    }

    /// Finds a state that still means something.
    fn find(&mut self, print: Print, now: Micros) -> Option<&mut Entry> {
        let same = |entry: &Entry| entry.print == print;
        self.entries.find_mut(print.0[0], same).filter(|entry| entry.state.ends() > now)
    }

    /// Sweeps as many buckets as there are decisions, several at a time since they lie beside each other.
    #[inline]
    fn sweep_in_turn(&mut self, now: Micros) {
        self.unswept += 1;
        if self.unswept == SWEEP_TOGETHER {
            self.unswept = 0;
            self.sweep(now, SWEEP_TOGETHER.into());
        }
    }

    /// Looks at the next buckets and drops what has ended.
    #[inline(never)]
    fn sweep(&mut self, now: Micros, buckets: usize) {
        for _ in 0..buckets {
            self.swept = if self.swept + 1 < self.entries.num_buckets() { self.swept + 1 } else { 0 };
            if let Ok(bucket) = self.entries.get_bucket_entry(self.swept)
                && bucket.get().state.ends() <= now
            {
                bucket.remove();
                self.shrink();
            }
        }
    }

    /// Gives memory back that a flood has taken.
    fn shrink(&mut self) {
        if self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(self.entries.len() * 2, |entry| entry.print.0[0]);
        }
    }
}

/// Enough that two threads seldom want the same one, and few enough to be nothing in an idle process.
const SHARDS: usize = 64;

/// How many decisions sweep together.
const SWEEP_TOGETHER: u8 = 8;

/// What a full shard looks through for what has ended, before it turns a new key away.
const SWEEP_WHEN_FULL: usize = 32;

/// How often a full shard is looked through as a whole, in microseconds: some thousand entries at a time.
const SWEEP_ALL_EVERY: Micros = 50_000;

/// How soon to come back when there was no room.
const WHILE_FULL: std::time::Duration = std::time::Duration::from_secs(1);

const _: () = assert!(mem::size_of::<Entry>() == 32, "a key's memory has grown");
const _: () = assert!(mem::size_of::<Apart>() == 64, "a shard has outgrown its cache line");
