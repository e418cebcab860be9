//! The pure step, the memory engine and a real Redis decide alike.
//!
//! Random histories of decisions, settles, quota changes, resets and clock steps run through all three; every
//! field of every outcome is compared. The script's clock is set; keys end by the server's own clock, so the
//! test ends them when the pure step says that they are over, and allows the times of a fixed window of a large limit,
//! whose key's lifetime is the state, to be off by what a call takes.

mod op;
#[allow(dead_code, unreachable_pub, reason = "the integration tests use more of it, as their own public module")]
#[path = "../../tests/support/server.rs"]
mod server;
mod trio;

use std::{collections::hash_map::RandomState, hash::BuildHasher, time::Duration};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};
use tokio::runtime::Runtime;

use self::{
    op::{LARGE, Op, POLICIES, op, policy, usual_op},
    server::Server,
    trio::Trio,
};
use crate::{Policy, Quota, Redis, limit::Micros};

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

/// A multiple of 10^14 us.
const ERA_BEGINS: Duration = Duration::from_secs(1_800_000_000);
const PAST_2_54: Duration = Duration::from_secs(1_801_439_851);
