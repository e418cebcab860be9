//! The pure step, the memory engine and a real Redis decide alike.
//!
//! Random histories of decisions, settles, quota changes, resets and clock steps run through all three; every
//! field of every outcome is compared. The script's clock is set; keys end by the server's own clock, so the
//! test ends them when the pure step says that they are over, and allows the times of a fixed window of a large limit,
//! whose key's lifetime is the state, to be off by what a call takes.

#[allow(dead_code, unreachable_pub, reason = "the integration tests use more of it, as their own public module")]
#[path = "../tests/support/server.rs"]
mod server;

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};
use tokio::runtime::Runtime;

use self::server::Server;
use crate::{
    Decision, Demand, Key, Memory, Policy, Quota, Redis,
    limit::{Adjustment, Algorithm, Escalation, Micros, Outcome, Outcomes, Proof, State, Store, Strikes},
    memory::ManualClock,
};

#[derive(Clone, Debug)]
enum Op {
    /// Asks some policies, for one subject each, at some cost.
    Decide(Vec<(usize, usize, u64, bool)>),
    /// Settles an earlier charge.
    Settle(usize, u32),
    Advance(u64),
    StepBack(u64),
    /// Gives a policy another of its quotas.
    Change(usize, usize),
    Reset(usize, usize),
    /// Blocks a subject under a policy for so many microseconds, zero lifting the block.
    Block(usize, usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![8 => 1..4u64, 2 => Just(0), 1 => 4..12u64, 1 => Just(1_000), 1 => Just(40_000)];
    // Some are in the shadow.
    let demand = (0..POLICIES, 0..2usize, cost, prop_oneof![3 => Just(false), 1 => Just(true)]);
    // Parts of a millisecond matter to all but the fixed window; whole ones come in steps that leave its end
    // well to one side or the other of now.
    let time =
        || prop_oneof![2 => 0..1_000u64, 6 => (1..60u64).prop_map(|steps| steps * 50_000), 1 => Just(3_600_000_000)];
    prop_oneof![
        12 => vec(demand, 1..4).prop_map(Op::Decide),
        2 => (0..8usize, prop_oneof![0..15u32, Just(100)]).prop_map(|(charge, cost)| Op::Settle(charge, cost)),
        5 => time().prop_map(Op::Advance),
        1 => time().prop_map(Op::StepBack),
        1 => (0..POLICIES, 0..QUOTAS).prop_map(|(policy, quota)| Op::Change(policy, quota)),
        1 => (0..POLICIES, 0..2usize).prop_map(|(policy, subject)| Op::Reset(policy, subject)),
        // Long enough to be given more time before it is over on the server.
        1 => (0..POLICIES, 0..2usize, prop_oneof![Just(0), 500_000..2_000_000u64])
            .prop_map(|(policy, subject, long)| Op::Block(policy, subject, long)),
    ]
}

/// Single requests for one unit, close together: what is decided in the script's short ways.
fn usual_op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![12 => Just(1u64), 1 => 2..4u64, 1 => Just(0)];
    let demand = (0..POLICIES, prop_oneof![6 => Just(0), 1 => Just(1)], cost, Just(false));
    prop_oneof![
        8 => demand.prop_map(|demand| Op::Decide(vec![demand])),
        6 => (1..6u64).prop_map(|steps| Op::Advance(steps * 50_000)),
        1 => (0..POLICIES, 0..QUOTAS).prop_map(|(policy, quota)| Op::Change(policy, quota)),
        1 => (0..8usize, 0..3u32).prop_map(|(charge, cost)| Op::Settle(charge, cost)),
    ]
}

const POLICIES: usize = 7;
const QUOTAS: usize = 4;

fn policy(index: usize, quota_index: usize) -> Policy {
    let quota = |texts: [&str; QUOTAS]| texts[quota_index].parse::<Quota>().expect("a quota");
    let escalation = |after, [within, block, up_to]: [u64; 3]| {
        let [within, block, up_to] = [within, block, up_to].map(Duration::from_millis);
        Escalation::new(after, within, block).up_to(up_to)
    };
    let policy = match index {
        0 => Policy::fixed_window("fixed", quota(["5/1s", "10/1s", "2/1s", "5/3s"])),
        1 => Policy::fixed_window("aligned", quota(["5/1s", "10/1s", "2/1s", "5/3s"])).aligned(),
        2 => Policy::sliding_window("log", quota(["5/1s", "10/1s", "2/1s", "9/3s"])),
        // Of which some are kept in one number with the window's end, and some are not.
        LARGE => Policy::fixed_window("large", quota(["100000/1s", "50000/1s", "200000/1s", "70000/3s"])),
        6 => Policy::sliding_counter("counter", quota(["5/1s", "10/1s", "2/1s", "9/3s"])),
        3 => Policy::token_bucket("slow", quota(["5/1s", "10/1s", "2/1s", "7/3s"])),
        _ => Policy::token_bucket("fast", quota(["2000/s", "997/s", "90/s", "100000/s"])).burst(9),
    };
    match (index, quota_index) {
        // Of each algorithm one escalates, and those beside it do not.
        (0 | 2 | 3 | 6, 0) => policy.escalate(escalation(2, [1_000, 600, 2_000])),
        (0 | 2 | 3 | 6, 1) => policy.escalate(escalation(3, [800, 1_000, 5_000])),
        (0 | 2 | 3 | 6, 2) => policy.escalate(escalation(1, [500, 500, 1_500])),
        _ => policy,
    }
}

/// The policy whose windows may end by their keys' lifetimes.
const LARGE: usize = 5;

/// A charge, its cost, what each store said of it, and the policy and subject by number.
type Charged = (Policy, Key, u32, [Outcome; 3], (usize, usize));

/// One history's three stores.
struct Trio {
    started: Instant,
    now: Micros,
    policies: Vec<Policy>,
    pure: HashMap<(usize, usize), State>,
    blocked_until: HashMap<(usize, usize), Micros>,
    strikes: HashMap<(usize, usize), Strikes>,
    memory: Memory,
    clock: ManualClock,
    redis: Redis,
    prefix: String,
    charges: Vec<Charged>,
}

impl Trio {
    fn new(server: &Server) -> Self {
        Self::by(&Redis::open(&server.url()).expect("an address"), None)
    }

    /// Begins two seconds before an instant, or at some time.
    fn by(redis: &Redis, soon: Option<Duration>) -> Self {
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

    fn apply(&mut self, op: &Op, rt: &Runtime, admin: &mut redis::Connection) {
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

    fn decide(&mut self, asked: &[(usize, usize, u64, bool)], rt: &Runtime, admin: &mut redis::Connection) {
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

fn subject_key(subject: usize) -> Key {
    Key::from(format!("subject-{subject}"))
}

fn assert_alike(engine: &str, pure: &Outcome, other: &Outcome, slack: Duration) {
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
const CALL: Duration = Duration::from_millis(30);

/// A multiple of 10^14 us.
const ERA_BEGINS: Duration = Duration::from_secs(1_800_000_000);
const PAST_2_54: Duration = Duration::from_secs(1_801_439_851);

/// What PTTL answers for a key that is not there.
const GONE: i64 = -2;

const MUCH_MS: i64 = 10_000_000_000_000;

/// The largest numbers that a policy can have, asked about and settled at both ends of the time that fits.
#[test]
fn the_largest_numbers_agree() {
    let server = Server::start();
    let rt = Runtime::new().expect("a runtime");
    let mut admin = server.admin();
    let year = "2147483648/366d".parse::<Quota>().expect("a quota");
    let most = 1 << 31;
    for years in [0, 200] {
        let mut trio = Trio::new(&server);
        let ahead = Duration::from_secs(years * 365 * 86_400);
        trio.clock.advance(ahead);
        trio.now += Micros::try_from(ahead.as_micros()).expect("a time");
        trio.policies = vec![
            Policy::fixed_window("fixed", year),
            Policy::fixed_window("aligned", year).aligned(),
            Policy::sliding_window("log", year),
            Policy::token_bucket("slow", "1/366d".parse().expect("a quota")).burst(9),
            Policy::token_bucket("fast", "101/s".parse().expect("a quota")).burst(most),
            Policy::fixed_window("large", "65535/366d".parse().expect("a quota")),
            Policy::sliding_counter("counter", year),
        ];
        let all = |cost| Op::Decide((0..POLICIES).map(|index| (index, 0, cost, false)).collect());
        let each = |cost| (0..POLICIES).map(move |index| Op::Decide(vec![(index, 1, cost, false)]));
        let mut history = vec![all(0), all(1), all(9), all(most), Op::Advance(1)];
        history.extend(each(most));
        history.extend(each(9));
        history.extend((0..20).map(|charge| Op::Settle(charge, u32::MAX / 2 + 1)));
        history.extend(each(0));
        history.push(Op::StepBack(365 * 86_400 * 1_000_000));
        history.extend(each(1));
        history.extend(each(0));
        for op in &history {
            trio.apply(op, &rt, &mut admin);
        }
    }
}

/// A window's state is of one kind or the other, by its limit; a changed limit finds what it did not write.
#[test]
fn a_window_keeps_its_units_and_its_end_across_a_changed_limit() {
    let server = Server::start();
    let rt = Runtime::new().expect("a runtime");
    let mut admin = server.admin();
    let take = |cost| Op::Decide(vec![(LARGE, 0, cost, false)]);
    let histories = [
        // More than fit beside the end.
        vec![
            Op::Change(LARGE, 1),
            take(40_000),
            Op::Change(LARGE, 2),
            take(40_000),
            take(40_000),
            take(40_000),
            take(0),
        ],
        // Nothing used any more, but the window is open.
        vec![
            take(1),
            Op::Settle(0, 0),
            Op::Change(LARGE, 1),
            Op::Advance(400_000),
            take(1),
            Op::Advance(400_000),
            take(2),
        ],
        // A debt that does not fit beside the end.
        vec![Op::Change(LARGE, 1), take(1), Op::Settle(0, 200_000), take(1), Op::Change(LARGE, 2), take(1), take(0)],
    ];
    for history in &histories {
        let mut trio = Trio::new(&server);
        for op in history {
            trio.apply(op, &rt, &mut admin);
        }
    }
}

/// A clock that was set back by next to nothing may move a window's end to the millisecond before.
#[test]
fn a_charge_is_settled_in_a_window_whose_end_was_moved_a_little() {
    let server = Server::start();
    let rt = Runtime::new().expect("a runtime");
    let mut admin = server.admin();
    for index in [0, LARGE] {
        let take = |cost| Op::Decide(vec![(index, 0, cost, false)]);
        let over = u64::from(policy(index, 0).quota().limit_u32());
        for asked_between in [over, 1] {
            let mut trio = Trio::new(&server);
            for op in [take(1), Op::StepBack(2), take(asked_between), Op::Settle(0, 3), take(1), take(0)] {
                trio.apply(&op, &rt, &mut admin);
            }
        }
    }
}

/// More charges than one decision drops, all over but the last.
#[test]
fn a_long_log_agrees_while_it_is_caught_up_with() {
    let server = Server::start();
    let rt = Runtime::new().expect("a runtime");
    let mut admin = server.admin();
    for (cost, of) in [(1_500, 5_000), (1, 5_000), (2_600, 5_000)] {
        let mut trio = Trio::new(&server);
        trio.policies[2] = Policy::sliding_window("log", Quota::per_hour(of));
        let one = Op::Decide(vec![(2, 0, 1, false)]);
        let mut history = vec![one.clone(); 2_999];
        history.extend([Op::Advance(3_599_999_999), one, Op::Advance(1)]);
        history.extend([Op::Decide(vec![(2, 0, 0, false)]), Op::Decide(vec![(2, 0, cost, false)])]);
        history.extend(vec![Op::Decide(vec![(2, 0, cost, false)]); 4]);
        history.extend([
            Op::StepBack(1_800_000_000),
            Op::Decide(vec![(2, 0, 0, false)]),
            Op::Decide(vec![(2, 0, 1, false)]),
        ]);
        for op in &history {
            trio.apply(op, &rt, &mut admin);
        }
    }
}

#[test]
fn all_engines_decide_alike() {
    histories_agree(vec(op(), 1..60));
}

#[test]
fn all_engines_decide_usual_requests_alike() {
    histories_agree(vec(usual_op(), 1..80));
}

/// On a Cluster one subject is decided on in one call, as on a server.
#[cfg(feature = "cluster")]
#[test]
fn a_cluster_decides_alike() {
    let of_one_subject = |op| match op {
        Op::Decide(mut demands) => {
            let subject = demands[0].1;
            demands.iter_mut().for_each(|demand| demand.1 = subject);
            demands.sort_unstable();
            demands.dedup_by_key(|demand| demand.0);
            Op::Decide(demands)
        }
        op => op,
    };
    let server = cluster();
    let redis = Redis::open(&format!("redis+cluster://127.0.0.1:{}", server.port())).expect("an address");
    histories_agree_on(&server, &redis, vec(op().prop_map(of_one_subject), 1..60));
}

/// Who asks for nothing is refused for nothing, whatever is owed and whatever refuses the rest.
#[cfg(feature = "cluster")]
#[test]
fn a_debt_refuses_no_look_on_a_cluster() {
    let server = cluster();
    let redis = Redis::open(&format!("redis+cluster://127.0.0.1:{}", server.port())).expect("an address");
    let rt = Runtime::new().expect("a runtime");
    let mut admin = server.admin();
    let (fixed, log, slow) = (0, 2, 3);
    for owed in [6, 7, 100] {
        let mut trio = Trio::by(&redis, None);
        let ask = |demands: &[_]| Op::Decide(demands.iter().map(|(policy, cost)| (*policy, 0, *cost, false)).collect());
        let (charge, look) = (ask(&[(log, 1)]), ask(&[(fixed, 6), (log, 0), (slow, 6)]));
        for op in [charge, Op::Settle(0, owed), look, ask(&[(fixed, 6), (log, 1)])] {
            trio.apply(&op, &rt, &mut admin);
        }
    }
}

/// While a slot moves, each demand is decided on by what names its one key alone.
#[cfg(feature = "cluster")]
#[test]
fn a_cluster_whose_slots_move_decides_alike() {
    let of_one_demand = |op| match op {
        Op::Decide(mut demands) => {
            demands.truncate(1);
            Op::Decide(demands)
        }
        op => op,
    };
    let server = cluster();
    let redis = Redis::open(&format!("redis+cluster://127.0.0.1:{}", server.port())).expect("an address");
    histories_agree_on(&server, &redis.by_key_for_tests(), vec(op().prop_map(of_one_demand), 1..60));
}

/// Starts a cluster of one node.
#[cfg(feature = "cluster")]
fn cluster() -> Server {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let mut admin = server.admin();
    let slots = (0..16_384).collect::<Vec<u16>>();
    let _: () = redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).query(&mut admin).expect("CLUSTER ADDSLOTS");
    for _ in 0..2_000 {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut admin).expect("CLUSTER INFO");
        if info.contains("cluster_state:ok") {
            return server;
        }
        // A node tells nobody when it begins to serve.
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the cluster does not begin to serve");
}

fn histories_agree(histories: impl Strategy<Value = Vec<Op>>) {
    let server = Server::start();
    histories_agree_on(&server, &Redis::open(&server.url()).expect("an address"), histories);
}

fn histories_agree_on(server: &Server, redis: &Redis, histories: impl Strategy<Value = Vec<Op>>) {
    let rt = Runtime::new().expect("a runtime");
    let admin = std::cell::RefCell::new(server.admin());
    let mut config = ProptestConfig {
        cases: std::env::var("TOLLGATE_HISTORIES").map_or(300, |cases| cases.parse().expect("a number")),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // Told when it fails, and taken from the same variable to run the same histories again.
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    // Before the era of fast buckets begins anew, and before tenths of microseconds reach 2^54.
    let soon = prop_oneof![Just(None), Just(Some(ERA_BEGINS)), Just(Some(PAST_2_54))];
    let result = TestRunner::new(config).run(&(soon, histories), |(soon, history)| {
        let mut trio = Trio::by(redis, soon);
        for op in &history {
            trio.apply(op, &rt, &mut admin.borrow_mut());
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
}
