use super::{Micros, Policy, Receipt, Standing, algorithm::Told};

/// The units charged in the window that is open, and in the one before it.
///
/// What was charged in the window before counts by the part of it that the last `window` of time still covers, as if it
/// had come evenly: `used = current + before · left / window`, rounded up. Windows follow each other from the first
/// charge on, to the millisecond.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlidingCounter {
    // Bytes, so that this and a tag fit into 16 of them.
    current: [u8; 4],
    before: [u8; 4],
    /// When the window opened, in milliseconds since the Unix epoch.
    opened: [u8; 6],
    /// Two to the power of this is no shorter than the window of the newest charge, in milliseconds.
    length: u8,
}

/// A counter as of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    current: u32,
    before: u32,
    opened_ms: u64,
    now_ms: u64,
    window_ms: u64,
}

impl SlidingCounter {
    fn of(view: View) -> Self {
        let [_, _, opened @ ..] = view.opened_ms.to_be_bytes();
        let length = view.window_ms.next_power_of_two().trailing_zeros();
        Self {
            current: view.current.to_be_bytes(),
            before: view.before.to_be_bytes(),
            opened,
            length: u8::try_from(length).expect("at most 64"),
        }
    }

    /// Takes what a store keeps: the units of both windows, and the milliseconds left of the open one.
    #[cfg(feature = "redis")]
    pub(crate) fn from_parts(policy: &Policy, current: u32, before: u32, left_ms: u64, now: Micros) -> Self {
        let (now_ms, window_ms) = (now / 1_000, policy.quota().window_ms());
        let opened_ms = (now_ms + left_ms.min(window_ms)).saturating_sub(window_ms);
        Self::of(View { current, before, opened_ms, now_ms, window_ms })
    }

    /// Lets what a clock since set back has left in the future count from now, so that it fades within one window.
    pub(super) fn tidy(&mut self, policy: &Policy, now: Micros) {
        if self.opened_ms() > now / 1_000 {
            *self = Self::of(self.view(policy, now));
        }
    }

    /// Returns true if the cost, which is not zero, would pass now.
    pub(super) fn fits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        self.view(policy, now).used().saturating_add(cost) <= policy.quota().limit_u32()
    }

    pub(super) fn standing(&self, policy: &Policy, now: Micros, cost: u32) -> Standing {
        let (view, limit) = (self.view(policy, now), policy.quota().limit_u32());
        let used = view.used();
        let wait = match used.checked_add(cost) {
            _ if cost == 0 => 0,
            _ if cost > limit => Standing::NEVER,
            Some(sum) if sum <= limit => 0,
            _ => view.until(limit - cost),
        };
        let next = used.min(limit).checked_sub(1).map_or(0, |fewer| view.until(fewer));
        Standing { remaining: limit.saturating_sub(used), next, full: if used == 0 { 0 } else { view.until(0) }, wait }
    }

    pub(super) fn charge(&mut self, policy: &Policy, now: Micros, cost: u32) -> Receipt {
        let mut view = self.view(policy, now);
        view.current = view.current.saturating_add(cost);
        *self = Self::of(view);
        Receipt::window(view.opened_ms + view.window_ms)
    }

    /// Takes over what a store has charged, or for how long it refuses.
    pub(super) fn follow(&mut self, policy: &Policy, now: Micros, told: &Told) {
        let mut view = self.view(policy, now);
        if told.charged.is_some() {
            view.current = told.used(policy, view.used()).saturating_sub(view.faded());
        } else {
            let wait_ms = told.standing.wait.div_ceil(1_000);
            let most = policy.quota().limit_u32().saturating_sub(told.cost);
            if self.standing(policy, now, told.cost.min(policy.quota().limit_u32())).wait >= wait_ms * 1_000 {
                return;
            }
            // One unit too many, in the window that makes it fade when the wait is over.
            let kept_ms = View { current: most + 1, ..view }.kept_ms(most, most + 1);
            let fades_ms = view.window_ms - kept_ms;
            let (left_ms, current) = match wait_ms.checked_sub(fades_ms) {
                Some(left_ms) if left_ms > 0 => (left_ms, true),
                _ => (kept_ms + wait_ms, false),
            };
            view.opened_ms = (view.now_ms + left_ms.min(view.window_ms)).saturating_sub(view.window_ms);
            (view.current, view.before) = if current { (most + 1, 0) } else { (0, most + 1) };
        }
        *self = Self::of(view);
    }

    /// Corrects a charge of the open window or the one before; what goes beyond the limit is debt while it counts.
    pub(super) fn settle(&mut self, policy: &Policy, now: Micros, ends_ms: u64, charged: u32, cost: u32) {
        let mut view = self.view(policy, now);
        let units = match ends_ms {
            _ if view.current == 0 && view.before == 0 => return,
            ends_ms if ends_ms == view.opened_ms + view.window_ms => &mut view.current,
            ends_ms if ends_ms == view.opened_ms => &mut view.before,
            _ => return,
        };
        *units = units.saturating_sub(charged.saturating_sub(cost)).saturating_add(cost.saturating_sub(charged));
        *self = Self::of(view);
    }

    /// Returns when nothing of it counts any more, or a little later.
    pub(super) fn ends(&self) -> Micros {
        if *self == Self::default() {
            return 0;
        }
        (self.opened_ms() + (2 << self.length)) * 1_000
    }

    fn opened_ms(&self) -> u64 {
        let [a, b, c, d, e, f] = self.opened;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    fn view(&self, policy: &Policy, now: Micros) -> View {
        let (now_ms, window_ms, opened_ms) = (now / 1_000, policy.quota().window_ms(), self.opened_ms());
        let (current, before) = (u32::from_be_bytes(self.current), u32::from_be_bytes(self.before));
        let (current, before, opened_ms) = if opened_ms > now_ms {
            (0, current.saturating_add(before), now_ms)
        } else if now_ms < opened_ms + window_ms {
            (current, before, opened_ms)
        } else if now_ms < opened_ms + 2 * window_ms {
            (0, current, opened_ms + window_ms)
        } else {
            (0, 0, now_ms)
        };
        // With nothing in it a window opens with its next unit.
        let opened_ms = if current == 0 && before == 0 { now_ms } else { opened_ms };
        View { current, before, opened_ms, now_ms, window_ms }
    }
}

impl View {
    fn left_ms(&self) -> u64 {
        self.opened_ms + self.window_ms - self.now_ms
    }

    /// Returns what the window before still counts.
    fn faded(&self) -> u32 {
        let part = (self.left_ms() * PARTS).div_ceil(self.window_ms);
        let units = (u64::from(self.before) * part).div_ceil(PARTS);
        u32::try_from(units).expect("no more than it was")
    }

    fn used(&self) -> u32 {
        self.current.saturating_add(self.faded())
    }

    /// Returns the microseconds until no more than `units`, which is less than now, are used.
    fn until(&self, units: u32) -> Micros {
        let (left, window) = (self.left_ms(), self.window_ms);
        let ms = match units.checked_sub(self.current) {
            Some(before) => left - self.kept_ms(before, self.before),
            None => left + window - self.kept_ms(units, self.current),
        };
        ms * 1_000
    }

    /// Returns how much of a window is left when of its predecessor's `all` units no more than `units` count.
    fn kept_ms(&self, units: u32, all: u32) -> u64 {
        let part = u64::from(units) * PARTS / u64::from(all.max(1));
        part.min(PARTS) * self.window_ms / PARTS
    }
}

impl std::fmt::Debug for SlidingCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (current, before) = (u32::from_be_bytes(self.current), u32::from_be_bytes(self.before));
        write!(f, "SlidingCounter({current} since {}, {before} before)", self.opened_ms())
    }
}

/// A window's time is told in so many parts: as fine as numbers below 2⁵³ allow, for windows of up to 366 days.
const PARTS: u64 = 65_536;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::limit::{Quota, State};

    const START: Micros = 1_767_225_600_000_123;

    fn policy(limit: u64, window_ms: u64) -> Policy {
        let quota = Quota::new(limit, std::time::Duration::from_millis(window_ms)).expect("a quota");
        Policy::sliding_counter("p", quota)
    }

    /// Asks at these times after each other, and returns when units were granted.
    fn grants(policy: &Policy, requests: impl IntoIterator<Item = (Micros, u32)>) -> Vec<(Micros, u64)> {
        let (mut state, mut now, mut grants) = (State::fresh(policy), START, Vec::new());
        for (later, cost) in requests {
            now += later;
            if state.take(policy, now, cost).1.is_some() {
                grants.push((now, cost.into()));
            }
        }
        grants
    }

    /// Returns the most units that were granted in any interval of length `window`.
    fn most(grants: &[(Micros, u64)], window: Micros) -> u64 {
        let within = |from: Micros| move |(at, _): &&(Micros, u64)| *at >= from && *at - from < window;
        let sum = |from: Micros| grants.iter().filter(within(from)).map(|(_, units)| units).sum();
        grants.iter().map(|(from, _)| sum(*from)).max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_interval_has_twice_the_limit(
            limit in 1..30u64,
            window_ms in prop_oneof![1..50u64, Just(1_000), Just(31_622_400_000)],
            requests in vec((0..150u64, 1..5u32), 1..150),
        ) {
            let policy = policy(limit, window_ms);
            let window = policy.window_micros();
            let grants = grants(&policy, requests.into_iter().map(|(percent, cost)| (window * percent / 1_000, cost)));
            prop_assert!(most(&grants, window) < 2 * limit, "{:?}", grants);
        }

        #[test]
        fn even_requests_are_counted_like_a_sliding_window(limit in 2..40u64, part in 2..9u64) {
            let policy = policy(limit, 10_000);
            let window = policy.window_micros();
            // Faster than is allowed, at an even pace.
            let grants = grants(&policy, (0..limit * part * 5).map(|_| (window / (limit * part), 1)));
            prop_assert!(most(&grants, window) <= limit + 1, "{}", most(&grants, window));
            let last = grants.last().expect("some").0 - START;
            prop_assert!(grants.len() as u64 >= limit * (last / window).saturating_sub(1), "no less either");
        }

        #[test]
        fn who_follows_refuses_as_long_and_has_no_more(
            limit in 1..30u64,
            requests in vec((0..2_000u64, 1..5u32), 1..60),
        ) {
            let policy = policy(limit, 1_000);
            let (mut state, mut follower, mut now) = (State::fresh(&policy), State::fresh(&policy), START);
            for (permille, cost) in requests {
                now += policy.window_micros() * permille / 1_000;
                let (stand, receipt) = state.take(&policy, now, cost);
                let standing = stand.standing();
                if standing.wait == Standing::NEVER {
                    continue;
                }
                let charged = receipt.map(|_| cost);
                let used = policy.capacity_u32() - standing.remaining;
                follower.follow(&policy, now, &Told { charged, cost, used, standing });
                let own = follower.standing(&policy, now, cost);
                prop_assert!(own.remaining <= standing.remaining, "{:?} {:?}", own, standing);
                if charged.is_none() {
                    let wait_ms = standing.wait.div_ceil(1_000);
                    prop_assert!(own.wait >= standing.wait, "{:?} {:?}", own, standing);
                    prop_assert!(own.wait <= (wait_ms + 2_000) * 1_000, "{:?} {:?}", own, standing);
                }
            }
        }
    }

    #[test]
    fn the_worst_case_is_reached_and_no_worse() {
        // All of it at the end of a window, and again as it fades.
        let policy = policy(100, 1_000);
        let first = [(0, 1), (999_000, 99)];
        let grants = grants(&policy, first.into_iter().chain((0..999).map(|_| (1_000, 1))));
        assert_eq!(most(&grants, policy.window_micros()), 198);
    }

    #[test]
    fn a_worked_example() {
        // 10 a second, 8 of them used in the window before, a quarter of the next over: 6 of those count.
        let policy = policy(10, 1_000);
        let mut state = State::fresh(&policy);
        assert!(state.take(&policy, START, 8).1.is_some());
        let told = state.standing(&policy, START + 1_250_000, 5);
        assert_eq!((told.remaining, told.wait), (4, 125_000), "5 count when 5/8 of the window are left");
        assert_eq!(told.full, 750_000);
        let (stand, receipt) = state.take(&policy, START + 1_250_000, 4);
        assert_eq!((stand.standing().remaining, receipt.is_some()), (0, true));
    }
}
