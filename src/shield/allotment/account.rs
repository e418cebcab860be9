use std::mem;

use crate::limit::{Algorithm, Micros, Policy};

/// The units of one subject under one policy that this process has drawn, and how fast it is asked for them.
///
/// Three things hold at all times:
/// 1. What is kept, asked for and on its way back is together at most the cap that each draw was begun with.
/// 2. A unit is spent at most once, before its draw expires, and never after it was taken out to go back.
/// 3. At most one draw is under way.
///
/// `T` is what a draw is given back by.
#[derive(Debug)]
pub(super) struct Account<T> {
    /// Oldest first, which is the order in which they expire; none is empty.
    draws: Vec<Draw<T>>,
    /// The units that the draw under way asks for.
    asked_for: u32,
    going_back: u32,
    /// Units that were to go back, and nobody knows whether they have arrived. They count until then.
    astray: (u32, Micros),
    pace: Pace,
    /// How long the last draw was on its way.
    took: Micros,
    told: Told,
    /// No draw before then.
    not_before: Micros,
    /// How often everything was forgotten.
    epoch: u32,
}

/// Units that the store has charged and that have not been spent yet.
#[derive(Debug)]
pub(super) struct Draw<T> {
    pub(super) units: u32,
    pub(super) left: u32,
    /// Nothing of it is spent from then on.
    pub(super) expires: Micros,
    pub(super) slip: T,
}

/// What the store has said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) at: Micros,
    pub(super) remaining: u32,
    pub(super) next: Micros,
    pub(super) full: Micros,
}

/// A draw to be made, and how often everything had been forgotten then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) units: u32,
    pub(super) epoch: u32,
}

/// What was asked for in this slot of time and in the one before.
#[derive(Debug, Default)]
struct Pace {
    slot: u64,
    now: Asked,
    before: Asked,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    requests: u32,
    units: u32,
}

impl<T> Account<T> {
    /// Notes that units are asked for, wherever they come from.
    pub(super) fn note(&mut self, now: Micros, cost: u32) {
        self.pace.note(now, cost);
    }

    /// Returns true if so many units can be spent.
    pub(super) fn has(&self, now: Micros, cost: u32) -> bool {
        self.kept(now) >= cost
    }

    /// Spends units, which it has; tells what is left, here and in the store.
    pub(super) fn spend(&mut self, now: Micros, cost: u32) -> Told {
        let left = self.kept(now).saturating_sub(cost);
        let mut due = cost;
        for draw in self.draws.iter_mut().filter(|draw| draw.expires > now) {
            let part = draw.left.min(due);
            draw.left -= part;
            due -= part;
        }
        self.draws.retain(|draw| draw.left > 0);
        let age = now.saturating_sub(self.told.at);
        // While something is used, the next unit is never there already: it would be among what is left.
        let aged = |time: Micros| if time == 0 { 0 } else { time.saturating_sub(age).max(1) };
        Told {
            at: now,
            remaining: self.told.remaining.saturating_add(left),
            next: aged(self.told.next),
            full: aged(self.told.full),
        }
    }

    pub(super) fn learn(&mut self, told: Told) {
        self.told = told;
    }

    /// Returns true if so much is asked for that drawing ahead spares the store something.
    pub(super) fn is_hot(&self, now: Micros) -> bool {
        self.pace.of(now).requests >= HOT
    }

    /// Returns how much to draw now, if anything: for a request of `cost` units, holding at most `cap`.
    pub(super) fn due(&self, now: Micros, cap: u32, cost: u32) -> Option<u32> {
        if self.asked_for > 0 || now < self.not_before || self.draws.len() >= MOST_DRAWS {
            return None;
        }
        let target = self.target(now).min(cap);
        if !self.is_hot(now) || self.kept(now) > target / 2 {
            return None;
        }
        let batch = target.min(cap.saturating_sub(self.held(now))).min(self.told.remaining / SHARE_OF_REST);
        // Drawing what one request takes spares the store nothing.
        (batch >= cost.saturating_mul(2)).then_some(batch)
    }

    /// Begins a draw, if one is due.
    pub(super) fn begin(&mut self, now: Micros, cap: u32, cost: u32) -> Option<Begun> {
        let units = self.due(now, cap, cost)?;
        self.asked_for = units;
        Some(Begun { units, epoch: self.epoch })
    }

    /// Takes in what was drawn, unless everything has been forgotten since.
    pub(super) fn arrive(&mut self, begun: Begun, draw: Draw<T>, told: Told, now: Micros) {
        if begun.epoch != self.epoch {
            return;
        }
        if draw.expires <= now {
            // It was too long on its way, and so may be the next.
            self.not_before = now.saturating_add(HOLD);
        }
        self.took = now.saturating_sub(told.at);
        self.told = told;
        self.draws.push(draw);
    }

    /// Draws nothing for so long, at most for the hold time.
    pub(super) fn pause(&mut self, now: Micros, long: Micros) {
        self.not_before = now.saturating_add(long.min(HOLD));
    }

    /// Ends the draw under way, whatever has come of it.
    pub(super) fn end(&mut self) {
        self.asked_for = 0;
    }

    /// Takes out what may not be spent any more, to go back.
    pub(super) fn take_expired(&mut self, now: Micros) -> Vec<Draw<T>> {
        self.take(|draw| draw.expires <= now)
    }

    /// Takes everything out, to go back.
    pub(super) fn take_all(&mut self) -> Vec<Draw<T>> {
        self.take(|_| true)
    }

    /// Notes that units have gone back, or that nobody knows whether they have.
    pub(super) fn returned(&mut self, units: u32, arrived: bool, now: Micros) {
        self.going_back = self.going_back.saturating_sub(units);
        if !arrived {
            self.astray = (self.strayed(now).saturating_add(units), now.saturating_add(HOLD));
        }
    }

    /// Drops all units here, and has those on their way here dropped.
    pub(super) fn forget(&mut self) {
        self.draws.clear();
        self.told = Told::default();
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Returns true if units are here or on their way.
    pub(super) fn is_live(&self) -> bool {
        !self.draws.is_empty() || self.asked_for > 0 || self.going_back > 0
    }

    /// Returns true if nothing would be missed if this were dropped.
    pub(super) fn is_idle(&self, now: Micros) -> bool {
        !self.is_live() && self.strayed(now) == 0 && now >= self.not_before && self.pace.of(now).requests == 0
    }

    /// Returns the units that are asked for while a batch is to last, so that half of them outlast the next draw.
    fn target(&self, now: Micros) -> u32 {
        let last = SLOT + 2 * self.took.min(SLOT);
        let units = u64::from(self.pace.of(now).units) * last / SLOT;
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    /// Returns the units that can be spent.
    fn kept(&self, now: Micros) -> u32 {
        self.draws.iter().filter(|draw| draw.expires > now).map(|draw| draw.left).fold(0, u32::saturating_add)
    }

    /// Returns the units that are charged in the store, or may be, and not spent.
    fn held(&self, now: Micros) -> u32 {
        let draws = self.draws.iter().map(|draw| draw.left).fold(0, u32::saturating_add);
        draws.saturating_add(self.asked_for).saturating_add(self.going_back).saturating_add(self.strayed(now))
    }

    fn strayed(&self, now: Micros) -> u32 {
        if now < self.astray.1 { self.astray.0 } else { 0 }
    }

    fn take(&mut self, which: impl Fn(&Draw<T>) -> bool) -> Vec<Draw<T>> {
        let (taken, kept): (Vec<_>, Vec<_>) = mem::take(&mut self.draws).into_iter().partition(which);
        self.draws = kept;
        self.going_back = taken.iter().map(|draw| draw.left).fold(self.going_back, u32::saturating_add);
        taken
    }
}

impl<T> Default for Account<T> {
    fn default() -> Self {
        Self {
            draws: Vec::new(),
            asked_for: 0,
            going_back: 0,
            astray: (0, 0),
            pace: Pace::default(),
            took: 0,
            told: Told::default(),
            not_before: 0,
            epoch: 0,
        }
    }
}

impl Pace {
    fn note(&mut self, now: Micros, cost: u32) {
        let slot = now / SLOT;
        if slot != self.slot {
            self.before = if slot == self.slot + 1 { self.now } else { Asked::default() };
            (self.slot, self.now) = (slot, Asked::default());
        }
        self.now.requests = self.now.requests.saturating_add(1);
        self.now.units = self.now.units.saturating_add(cost);
    }

    /// Returns what is asked for in one slot of time, by the last two.
    fn of(&self, now: Micros) -> Asked {
        let (now, before) = match (now / SLOT).saturating_sub(self.slot) {
            0 => (self.now, self.before),
            1 => (Asked::default(), self.now),
            _ => (Asked::default(), Asked::default()),
        };
        if now.units > before.units { now } else { before }
    }
}

/// Returns for how long units may be spent from the moment their draw was sent; `full` is what the store said then of
/// when nothing is used any more.
pub(super) fn lifetime(policy: &Policy, full: Micros) -> Micros {
    let hold = HOLD.min(policy.window_micros());
    match policy.algorithm() {
        // That is the window's end, told in whole milliseconds and so up to one too late.
        Algorithm::FixedWindow => hold.min(full.saturating_sub(1_000)),
        Algorithm::SlidingWindow | Algorithm::SlidingCounter | Algorithm::TokenBucket => hold,
    }
}

/// How long units are held: ten times what a batch is to last, so that a steady key hardly ever gives any back, and
/// as short as what is left of a refusal's age, so that idle units are soon there for others.
pub(super) const HOLD: Micros = 1_000_000;

/// What a batch is to last, and twice a round trip.
const SLOT: Micros = 100_000;

/// The requests in a slot from which on a key is hot: fewer gain nothing, since a batch would be of two or three.
const HOT: u32 = 4;

/// A draw takes at most this part of what the store has left, so that nobody takes the rest from all others, and
/// near the limit each decision is the store's.
const SHARE_OF_REST: u32 = 4;

/// More than two are there only if they are tiny, and then more of them help nobody.
const MOST_DRAWS: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::limit::Quota;

    const CAP: u32 = 100;

    /// An account that is asked for 40 units a slot, with 1,000 in the store.
    fn hot(now: Micros) -> Account<()> {
        let mut account = Account::default();
        (0..40).for_each(|_| account.note(now, 1));
        account.learn(told(now, 1_000));
        account
    }

    fn told(at: Micros, remaining: u32) -> Told {
        Told { at, remaining, next: 10, full: 500_000 }
    }

    fn drawn(account: &mut Account<()>, now: Micros, expires: Micros) -> u32 {
        let begun = account.begin(now, CAP, 1).expect("a draw is due");
        let draw = Draw { units: begun.units, left: begun.units, expires, slip: () };
        account.arrive(begun, draw, told(now, 1_000 - begun.units), now);
        account.end();
        begun.units
    }

    #[test]
    fn a_batch_follows_the_pace_up_to_the_cap_and_a_quarter_of_the_rest() {
        let mut account = Account::<()>::default();
        account.learn(told(0, 1_000));
        for request in 1..=1_000 {
            account.note(0, 1);
            let due = (request >= HOT).then_some(request.min(CAP));
            assert_eq!(account.due(0, CAP, 1), due, "{request} requests");
        }
        account.learn(told(0, 40));
        assert_eq!(account.due(0, CAP, 1), Some(10));
        assert_eq!((account.due(0, CAP, 5), account.due(0, CAP, 6)), (Some(10), None), "no two such requests");
        account.learn(told(0, 7));
        assert_eq!(account.due(0, CAP, 1), None, "near the limit the store decides");
        account.learn(told(0, 1_000));
        assert_eq!(account.due(2 * SLOT - 1, CAP, 1), Some(CAP), "the slot before counts");
        assert_eq!(account.due(2 * SLOT, CAP, 1), None, "and no older one");
    }

    #[test]
    fn the_next_batch_is_drawn_when_half_of_this_one_is_spent() {
        let mut account = hot(0);
        assert_eq!(drawn(&mut account, 0, HOLD), 40);
        for left in (20..40).rev() {
            assert_eq!(account.due(1, CAP, 1), None);
            assert!(account.has(1, 1));
            assert_eq!(account.spend(1, 1).remaining, 960 + left);
        }
        let begun = account.begin(1, CAP, 1).expect("half is spent");
        assert_eq!(begun.units, 40);
        assert_eq!(account.begin(1, CAP, 1), None, "one is under way");
        account.end();
        account.pause(1, 5);
        assert_eq!((account.due(5, CAP, 1), account.due(6, CAP, 1)), (None, Some(40)));
    }

    #[test]
    fn a_batch_outlasts_a_slow_draw() {
        let mut account = hot(0);
        let begun = account.begin(0, CAP, 1).expect("due");
        let draw = Draw { units: begun.units, left: begun.units, expires: HOLD, slip: () };
        account.arrive(begun, draw, told(0, 1_000), 60_000);
        account.end();
        // 40 in 100 ms, and it takes 60: for 220 ms it takes 88, and half of that is more than there is.
        assert_eq!(account.due(60_000, CAP, 1), Some(60));
        assert_eq!(account.due(60_000, 200, 1), Some(88));
        account.pause(60_000, 0);
        let late = Begun { units: 1, epoch: 0 };
        account.arrive(late, Draw { units: 1, left: 1, expires: 0, slip: () }, told(0, 1_000), 5 * HOLD);
        (0..40).for_each(|_| account.note(5 * HOLD, 1));
        assert_eq!(account.due(6 * HOLD - 1, 1_000, 1), None);
        (0..40).for_each(|_| account.note(6 * HOLD, 1));
        assert_eq!(account.due(6 * HOLD, 1_000, 1), Some(120), "three times the usual at most");
    }

    #[test]
    fn what_has_expired_is_not_spent_and_goes_back() {
        let mut account = hot(0);
        drawn(&mut account, 0, 100);
        assert!(account.has(99, 40) && !account.has(99, 41));
        account.spend(99, 15);
        assert!(account.take_expired(99).is_empty());
        assert!(!account.has(100, 1));
        let taken = account.take_expired(100);
        assert_eq!(taken.iter().map(|draw| (draw.units, draw.left)).collect::<Vec<_>>(), [(40, 25)]);
        // On its way back it counts still, and for a hold time longer if nobody knows what became of it.
        assert_eq!(account.due(100, 40, 1), Some(15));
        account.returned(25, false, 200);
        assert_eq!(account.due(1_000, 40, 1), Some(15));
        (0..40).for_each(|_| account.note(200 + HOLD, 1));
        assert_eq!(account.due(200 + HOLD, 40, 1), Some(40));
    }

    #[test]
    fn what_is_forgotten_does_not_come_back() {
        let mut account = hot(0);
        drawn(&mut account, 0, HOLD);
        account.spend(0, 30);
        let begun = account.begin(0, CAP, 1).expect("due");
        account.forget();
        assert!(!account.has(0, 1) && account.take_all().is_empty());
        account.arrive(begun, Draw { units: 40, left: 40, expires: HOLD, slip: () }, told(0, 900), 0);
        account.end();
        assert!(!account.has(0, 1) && !account.is_live());
    }

    #[test]
    fn a_draw_that_comes_too_late_stops_the_next_for_a_while() {
        let mut account = hot(0);
        let begun = account.begin(0, CAP, 1).expect("due");
        account.arrive(begun, Draw { units: 40, left: 40, expires: 50, slip: () }, told(0, 900), 60);
        account.end();
        assert!(!account.has(60, 1));
        assert_eq!(account.due(60, CAP, 1), None);
        assert_eq!(account.take_expired(60).len(), 1, "it goes back");
    }

    #[test]
    fn units_live_no_longer_than_their_window() {
        let quota = |ms| Quota::new(100, std::time::Duration::from_millis(ms)).expect("valid");
        let fixed = Policy::fixed_window("p", quota(60_000));
        assert_eq!(lifetime(&fixed, 30_000_000), HOLD);
        assert_eq!(lifetime(&fixed, 250_000), 249_000);
        assert_eq!(lifetime(&fixed, 0), 0, "a store that tells no end has none to keep to");
        for policy in [Policy::sliding_window("p", quota(200)), Policy::token_bucket("p", quota(200))] {
            assert_eq!(lifetime(&policy, 0), 200_000);
        }
        assert_eq!(lifetime(&Policy::token_bucket("p", quota(60_000)), 0), HOLD);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Ask(u32),
        Begin(u32),
        /// Lets the draw under way arrive, with this lifetime from when it was begun, or not at all.
        Arrive(Option<Micros>),
        GoBack(bool),
        Forget,
        Pass(Micros),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            20 => prop_oneof![4 => Just(1), 1 => 1..30u32].prop_map(Op::Ask),
            6 => (1..5u32).prop_map(Op::Begin),
            6 => prop_oneof![1 => Just(None), 6 => (1..300_000u64).prop_map(Some)].prop_map(Op::Arrive),
            3 => any::<bool>().prop_map(Op::GoBack),
            1 => Just(Op::Forget),
            6 => prop_oneof![0..2_000u64, 0..200_000u64].prop_map(Op::Pass),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_unit_is_spent_or_given_back_once_and_no_more_than_the_cap_is_held(
            history in vec(op(), 1..200),
            cap in 1..60u32,
        ) {
            let (mut account, mut now) = (Account::<()>::default(), 0);
            let mut under_way: Option<(Begun, Micros)> = None;
            // Units that a draw has brought and are not spent, by expiry: what an account may have at most.
            let mut there: Vec<(Micros, u32)> = Vec::new();
            let mut doubtful: Vec<(Micros, u32)> = Vec::new();
            for op in history {
                match op {
                    Op::Ask(cost) => {
                        account.note(now, cost);
                        account.learn(told(now, 10_000));
                        let good = there.iter().filter(|(expires, _)| *expires > now).map(|(_, left)| left).sum::<u32>();
                        prop_assert_eq!(account.has(now, cost), good >= cost);
                        if good >= cost {
                            prop_assert_eq!(account.spend(now, cost).remaining, 10_000 + good - cost);
                            let mut due = cost;
                            for (_, left) in there.iter_mut().filter(|(expires, _)| *expires > now) {
                                let part = due.min(*left);
                                *left -= part;
                                due -= part;
                            }
                        }
                    }
                    Op::Begin(cost) => {
                        if let Some(begun) = account.begin(now, cap, cost) {
                            prop_assert!(under_way.is_none() && begun.units >= 2 * cost);
                            doubtful.retain(|(until, _)| *until > now);
                            let held: u32 = there.iter().chain(&doubtful).map(|(_, units)| units).sum();
                            prop_assert!(held + begun.units <= cap, "{} and {} of {}", held, begun.units, cap);
                            under_way = Some((begun, now));
                        }
                    }
                    Op::Arrive(life) => {
                        let Some((begun, at)) = under_way.take() else { continue };
                        if let Some(expires) = life.map(|life| at + life) {
                            let draw = Draw { units: begun.units, left: begun.units, expires, slip: () };
                            account.arrive(begun, draw, told(at, 10_000), now);
                            if begun.epoch == account.epoch {
                                there.push((expires, begun.units));
                            }
                        }
                        account.end();
                    }
                    Op::GoBack(arrived) => {
                        let taken = account.take_expired(now);
                        prop_assert!(taken.iter().all(|draw| draw.expires <= now && draw.left > 0));
                        let units: u32 = taken.iter().map(|draw| draw.left).sum();
                        let gone = |(expires, _): &(Micros, u32)| *expires <= now;
                        prop_assert_eq!(units, there.iter().copied().filter(gone).map(|(_, left)| left).sum::<u32>());
                        there.retain(|entry| !gone(entry));
                        account.returned(units, arrived, now);
                        if !arrived {
                            doubtful.push((now + HOLD, units));
                        }
                    }
                    Op::Forget => {
                        account.forget();
                        there.clear();
                    }
                    Op::Pass(time) => now += time,
                }
            }
        }
    }
}
