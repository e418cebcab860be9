//! The three stores of a history, of which each is asked the same.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;

use super::{
    op::{LARGE, Op, POLICIES, policy},
    server::Server,
};
use crate::{
    Decision, Demand, Key, Memory, Policy, Redis,
    limit::{Adjustment, Algorithm, Micros, Outcome, Outcomes, Proof, State, Store, Strikes},
    memory::ManualClock,
};

/// A charge, its cost, what each store said of it, and the policy and subject by number.
type Charged = (Policy, Key, u32, [Outcome; 3], (usize, usize));

/// One history's three stores.
pub(super) struct Trio {
    started: Instant,
    pub(super) now: Micros,
    pub(super) policies: Vec<Policy>,
    pure: HashMap<(usize, usize), State>,
    blocked_until: HashMap<(usize, usize), Micros>,
    strikes: HashMap<(usize, usize), Strikes>,
    memory: Memory,
    pub(super) clock: ManualClock,
    redis: Redis,
    prefix: String,
    charges: Vec<Charged>,
}

impl Trio {
    pub(super) fn new(server: &Server) -> Self {
        Self::by(&Redis::open(&server.url()).expect("an address"), None)
    }

    /// Begins two seconds before an instant, or at some time.
    pub(super) fn by(redis: &Redis, soon: Option<Duration>) -> Self {
        static HISTORIES: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("h{}", HISTORIES.fetch_add(1, Ordering::Relaxed));
        let (memory, clock) = Memory::manual();
        if let Some(soon) = soon {
            clock.advance(soon - Duration::from_secs(2) - clock.elapsed_since_epoch());
        }
        // Half-way between the instants at which aligned windows end.
        clock.advance(Duration::from_millis(25));
        let now = Micros::try_from(clock.elapsed_since_epoch().as_micros()).expect("a time");
        let redis = redis.clone().prefix(&prefix).expect("a prefix");
        let policies = (0..POLICIES).map(|index| policy(index, 0)).collect();
        #[allow(clippy::disallowed_methods)]
        let started = Instant::now();
        Self {
            started,
            now,
            policies,
            pure: HashMap::new(),
            blocked_until: HashMap::new(),
            strikes: HashMap::new(),
            memory,
            clock,
            redis,
            prefix,
            charges: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, op: &Op, rt: &Runtime, admin: &mut redis::Connection) {
        match op {
            Op::Decide(asked) => self.decide(asked, rt, admin),
            Op::Settle(charge, cost) => self.settle(*charge, *cost, rt, admin),
            Op::Advance(by) => {
                self.shorten_logs(*by, admin);
                self.clock.advance(Duration::from_micros(*by));
                self.now += by;
            }
            Op::StepBack(by) => {
                // Never to an instant that has been: receipts tell charges apart by it.
                let by = &by.saturating_sub(1);
                self.end_keys(true, rt, admin);
                self.end_blocks(rt, admin);
                self.clock.step_back(Duration::from_micros(*by));
                self.now -= by;
                self.prolong_keys(*by, admin);
            }
            Op::Change(index, quota) => self.policies[*index] = policy(*index, *quota),
            Op::Block(index, subject, long) => {
                let (policy, key, time) = (&self.policies[*index], subject_key(*subject), Duration::from_micros(*long));
                self.blocked_until.insert((*index, *subject), self.now + long);
                if *long == 0 {
                    self.strikes.remove(&(*index, *subject));
                }
                rt.block_on(self.memory.block(policy, &key, time)).expect("memory blocks");
                rt.block_on(self.redis_now().block(policy, &key, time)).expect("redis blocks");
                self.keep_penalties(*index, *subject, admin);
            }
            Op::Reset(index, subject) => {
                let (policy, key) = (&self.policies[*index], subject_key(*subject));
                self.pure.remove(&(*index, *subject));
                rt.block_on(self.memory.reset(policy, &key)).expect("memory resets");
                rt.block_on(self.redis.reset(policy, &key)).expect("redis resets");
            }
        }
    }

    pub(super) fn decide(&mut self, asked: &[(usize, usize, u64, bool)], rt: &Runtime, admin: &mut redis::Connection) {
        let mut asked = asked.to_vec();
        asked.sort_unstable();
        asked.dedup_by_key(|(policy, subject, ..)| (*policy, *subject));
        let began = self.started.elapsed();
        self.end_keys(false, rt, admin);

        let policies = self.policies.clone();
        let demands: Vec<_> = asked
            .iter()
            .map(|(index, subject, cost, shadow)| {
                let demand = Demand::new(&policies[*index], subject_key(*subject).as_str()).cost(*cost);
                demand.in_shadow(*shadow)
            })
            .collect();
        let pure = self.decide_purely(&asked, &demands);
        let memory = rt.block_on(self.memory.decide(&demands)).expect("memory answers");
        let redis = rt.block_on(self.redis_now().decide(&demands)).expect("redis answers");
        // A lifetime runs by the real clock from when the history has set it.
        let passed = CALL.max(self.started.elapsed() - began);
        for (i, (index, ..)) in asked.iter().enumerate() {
            let [p, m, r] = [&pure, &memory, &redis].map(|decision| &decision.outcomes()[i]);
            assert_alike("memory", p, m, Duration::ZERO);
            assert_alike("redis", p, r, if self.is_timed(*index) { passed } else { Duration::ZERO });
        }
        for (i, (index, subject, ..)) in asked.iter().enumerate() {
            let outcomes = [&pure, &memory, &redis].map(|decision| decision.outcomes()[i].clone());
            let cost = demands[i].cost_u32();
            if pure.is_allowed() && outcomes[0].is_allowed() && cost > 0 {
                let place = (*index, *subject);
                self.charges.push((policies[*index].clone(), *demands[i].subject(), cost, outcomes, place));
            }
        }
        self.check_lifetimes(rt, admin);
        for (index, subject, ..) in asked.iter().filter(|(index, ..)| self.policies[*index].escalation().is_some()) {
            self.keep_penalties(*index, *subject, admin);
        }
    }

    fn decide_purely(&mut self, asked: &[(usize, usize, u64, bool)], demands: &[Demand<'_>]) -> Decision {
        let now = self.now;
        let mut outcomes = Outcomes::None;
        for ((index, subject, ..), demand) in asked.iter().zip(demands) {
            let until = self.blocked_until.get(&(*index, *subject)).copied().unwrap_or(0);
            let blocked = until.saturating_sub(now);
            // Who is blocked only looks.
            let (policy, cost) = (demand.policy(), if blocked > 0 { 0 } else { demand.cost_u32() });
            let standing = match self.pure.get_mut(&(*index, *subject)).filter(|state| state.ends() > now) {
                Some(state) => {
                    if cost > 0 {
                        state.tidy(policy, now);
                    }
                    state.standing(policy, now, cost)
                }
                None => State::fresh(policy).standing(policy, now, cost),
            };
            outcomes.push(Outcome::before(policy, standing).blocked_for(blocked).in_shadow(demand.is_shadow()));
        }
        if outcomes.iter().all(|outcome| outcome.is_allowed() || outcome.is_shadow()) {
            for (((index, subject, ..), demand), outcome) in asked.iter().zip(demands).zip(outcomes.iter_mut()) {
                let (policy, cost) = (demand.policy(), demand.cost_u32());
                if cost > 0 && outcome.is_allowed() {
                    let state = self.pure.entry((*index, *subject)).or_insert(State::fresh(policy));
                    if state.ends() <= now {
                        *state = State::fresh(policy);
                    }
                    let receipt = state.charge(policy, now, cost);
                    let standing = state.standing(policy, now, cost);
                    *outcome = Outcome::allowed(policy, standing, receipt).in_shadow(demand.is_shadow());
                }
            }
        } else {
            for (((index, subject, ..), demand), outcome) in asked.iter().zip(demands).zip(outcomes.iter_mut()) {
                if let Some(escalation) = demand.escalation()
                    && !outcome.is_allowed()
                    && !outcome.is_blocked()
                {
                    let place = (*index, *subject);
                    let long = self.strikes.entry(place).or_default().count(escalation, now);
                    if long > 0 {
                        self.blocked_until.insert(place, now + long);
                        *outcome = outcome.clone().blocked_for(long);
                    }
                }
            }
        }
        Decision::by(outcomes)
    }

    fn settle(&mut self, charge: usize, cost: u32, rt: &Runtime, admin: &mut redis::Connection) {
        if self.charges.is_empty() {
            return;
        }
        #[allow(clippy::disallowed_methods)]
        let started = Instant::now();
        self.end_keys(false, rt, admin);
        let (policy, key, charged, outcomes, place) = self.charges.swap_remove(charge % self.charges.len());
        let [pure, memory, redis] = &outcomes;
        let adjust = |outcome: &Outcome| Adjustment::new(&policy, &key, outcome.receipt(), charged, cost);
        let now = self.now;
        let state = self.pure.entry(place).or_insert(State::fresh(&policy));
        if state.ends() <= now {
            *state = State::fresh(&policy);
        }
        state.settle(&policy, now, pure.receipt(), charged, cost);
        rt.block_on(self.memory.settle(&[adjust(memory)])).expect("memory settles");
        rt.block_on(self.redis_now().settle(&[adjust(redis)])).expect("redis settles");
        // A window is known by its end to 5 ms, and time stands still here and not on the server: nobody can tell what
        // has become of a charge where its call, or this one, took about as long.
        let told_late = match (pure.receipt().proof(), redis.receipt().proof()) {
            (Proof::Window { ends_ms: pure }, Proof::Window { ends_ms: redis }) => pure.abs_diff(redis) > 2,
            _ => false,
        };
        if self.is_timed(place.0) && (told_late || started.elapsed() > Duration::from_millis(2)) {
            self.apply(&Op::Reset(place.0, place.1), rt, admin);
        }
        self.check_lifetimes(rt, admin);
    }

    fn redis_now(&self) -> Redis {
        self.redis.clone().at_time_for_tests(self.now)
    }

    /// Ends keys as time would have, and sets what is left of fixed windows to what it would be.
    ///
    /// What has ended is forgotten everywhere, since a clock that steps back does not bring it to life again.
    fn end_keys(&mut self, step_back: bool, rt: &Runtime, admin: &mut redis::Connection) {
        for (index, subject) in self.pure.keys().copied().collect::<Vec<_>>() {
            let key = self.redis_key(index, subject);
            let state = &self.pure[&(index, subject)];
            let ends = state.ends();
            // A window that ends while the call is under way could be over for one and not for the other.
            let about_to_end = self.is_timed(index) && ends <= self.now + 30_000;
            // What has ended is kept for a while where a number tells its end, and some is left to be found so.
            let left = !matches!(state, State::SlidingWindow(_) | State::SlidingCounter(_))
                && !self.is_timed(index)
                && subject == 1
                && !step_back;
            if ends <= self.now && !left || about_to_end {
                let _: () = redis::cmd("DEL").arg(key).query(admin).expect("DEL");
                self.pure.remove(&(index, subject));
                rt.block_on(self.memory.reset(&self.policies[index], &subject_key(subject))).expect("memory resets");
            } else if matches!(self.pure[&(index, subject)], State::SlidingWindow(_)) && !step_back {
                // The script looks at what is left of a log's lifetime.
                let left: i64 = redis::cmd("PTTL").arg(&key).query(admin).expect("PTTL");
                if left > MUCH_MS / 2 {
                    let _: () = redis::cmd("PEXPIRE").arg(key).arg(left - MUCH_MS).query(admin).expect("PEXPIRE");
                }
            } else if self.is_timed(index) {
                let left_ms = ends / 1_000 - self.now / 1_000;
                let _: () = redis::cmd("PEXPIRE").arg(key).arg(left_ms).query(admin).expect("PEXPIRE");
            }
        }
    }

    /// Forgets blocks that are over, since a clock that steps back does not bring them to life again.
    fn end_blocks(&mut self, rt: &Runtime, admin: &mut redis::Connection) {
        let over: Vec<_> = self.blocked_until.extract_if(|_, until| *until <= self.now).collect();
        for ((index, subject), _) in over {
            self.strikes.remove(&(index, subject));
            let (policy, key) = (&self.policies[index], subject_key(subject));
            rt.block_on(self.memory.block(policy, &key, Duration::ZERO)).expect("memory lifts a block");
            rt.block_on(self.redis_now().block(policy, &key, Duration::ZERO)).expect("redis lifts a block");
            self.keep_penalties(index, subject, admin);
        }
    }

    /// Lets what is kept of blocks live on, since time stands still here and not on the server.
    fn keep_penalties(&self, index: usize, subject: usize, admin: &mut redis::Connection) {
        let (prefix, policy, key) = (&self.prefix, self.policies[index].name(), subject_key(subject));
        let (bucket, key) = (key.bucket(256), key.as_str());
        for name in [
            format!("{prefix}:1:{{{bucket}}}:b:{key}"),
            format!("{prefix}:1:{{{bucket}}}:r:{policy}:{key}"),
            format!("{prefix}:1:blocks"),
            format!("{prefix}:1:{{{bucket}}}:blocks"),
        ] {
            let left: i64 = redis::cmd("PTTL").arg(&name).query(admin).expect("PTTL");
            assert_ne!(left, -1, "{name} has no expiry");
            let _: () = redis::cmd("PEXPIRE").arg(&name).arg(MUCH_MS).query(admin).expect("PEXPIRE");
        }
    }

    /// Lets logs live shorter, as time does that passes.
    fn shorten_logs(&self, by: Micros, admin: &mut redis::Connection) {
        for (index, subject) in
            self.pure.iter().filter(|(_, state)| matches!(state, State::SlidingWindow(_))).map(|(place, _)| place)
        {
            let key = self.redis_key(*index, *subject);
            let left: i64 = redis::cmd("PTTL").arg(&key).query(admin).expect("PTTL");
            if left > 0 {
                // Meanwhile the server's clock has taken some of it too.
                let passed = i64::try_from(self.started.elapsed().as_millis()).expect("milliseconds");
                let left = left - i64::try_from(by / 1_000).expect("a time") + passed;
                let left = if left > MUCH_MS { left.max(MUCH_MS + 100) } else { 0 };
                let _: () = redis::cmd("PEXPIRE").arg(&key).arg(left).query(admin).expect("PEXPIRE");
            }
        }
    }

    /// Lets keys live longer, as a clock that steps back does.
    fn prolong_keys(&self, by: Micros, admin: &mut redis::Connection) {
        for (index, subject) in self.pure.keys() {
            let key = self.redis_key(*index, *subject);
            let left: i64 = redis::cmd("PTTL").arg(&key).query(admin).expect("PTTL");
            if left > 0 {
                let longer = left.unsigned_abs() + by.div_ceil(1_000);
                let _: () = redis::cmd("PEXPIRE").arg(&key).arg(longer).query(admin).expect("PEXPIRE");
            }
        }
    }

    /// No key lives for ever, or ends before its state does.
    fn check_lifetimes(&mut self, rt: &Runtime, admin: &mut redis::Connection) {
        let mut ended = Vec::new();
        for ((index, subject), state) in &self.pure {
            let key = self.redis_key(*index, *subject);
            let left: i64 = redis::cmd("PTTL").arg(&key).query(admin).expect("PTTL");
            assert_ne!(left, -1, "{key} has no expiry");
            // Time stands still in a history and not on the server: each lifetime that the script has set gets
            // this much more, so that no key ends by itself, and shows by its size whether it was set anew.
            let left = if left > MUCH_MS / 2 { left - MUCH_MS } else { left };
            if left > 0 {
                let _: () = redis::cmd("PEXPIRE").arg(&key).arg(left + MUCH_MS).query(admin).expect("PEXPIRE");
            }
            // A counter says only about when it is over.
            let ends = if matches!(state, State::SlidingCounter(_)) { self.now } else { state.ends() };
            let due = i64::try_from(ends.saturating_sub(self.now) / 1_000).expect("a lifetime");
            // Lifetimes run by the real clock, while the history stands still.
            let passed = i64::try_from((CALL + self.started.elapsed()).as_millis()).expect("milliseconds");
            assert!(left + passed >= due || due == 0, "{key} ends in {left} ms, its state in {due} ms: {state:?}");
            if left == GONE {
                ended.push((*index, *subject));
            }
        }
        // One that was to end soon may have ended on a busy machine, before it got more.
        for (index, subject) in ended {
            self.pure.remove(&(index, subject));
            rt.block_on(self.memory.reset(&self.policies[index], &subject_key(subject))).expect("memory resets");
        }
    }

    /// Returns true if the lifetime of a policy's keys may be part of their state.
    fn is_timed(&self, index: usize) -> bool {
        let policy = &self.policies[index];
        index == LARGE || policy.algorithm() == Algorithm::FixedWindow && policy.quota().limit() > 65_535
    }

    fn redis_key(&self, index: usize, subject: usize) -> String {
        let policy = &self.policies[index];
        let key = crate::redis::key_for_tests(&self.prefix, policy, &subject_key(subject));
        String::from_utf8(key).expect("a readable key")
    }
}

pub(super) fn subject_key(subject: usize) -> Key {
    Key::from(format!("subject-{subject}"))
}

pub(super) fn assert_alike(engine: &str, pure: &Outcome, other: &Outcome, slack: Duration) {
    assert_eq!(
        (pure.is_allowed(), pure.remaining()),
        (other.is_allowed(), other.remaining()),
        "{engine}: {other:?}, not {pure:?}"
    );
    assert_eq!((pure.policy(), pure.quota()), (other.policy(), other.quota()));
    assert_eq!(
        (pure.algorithm(), pure.is_never(), pure.is_blocked()),
        (other.algorithm(), other.is_never(), other.is_blocked())
    );
    let times = |outcome: &Outcome| [Some(outcome.next_unit_in()), Some(outcome.full_in()), outcome.passes_in()];
    for (p, o) in times(pure).into_iter().zip(times(other)) {
        let close = match (p, o) {
            (Some(p), Some(o)) => p.abs_diff(o) <= slack,
            (p, o) => p == o,
        };
        assert!(close, "{engine}: {other:?}, not {pure:?}");
    }
}

/// What a call may take on a busy machine. Ends and instants lie 50 ms apart.
pub(super) const CALL: Duration = Duration::from_millis(30);

/// What PTTL answers for a key that is not there.
pub(super) const GONE: i64 = -2;

pub(super) const MUCH_MS: i64 = 10_000_000_000_000;
