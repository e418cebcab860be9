//! What a history is made of, and the policies that it is about.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};

use crate::{Policy, Quota, limit::Escalation};

#[derive(Clone, Debug)]
pub(super) enum Op {
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

pub(super) fn op() -> impl Strategy<Value = Op> {
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
pub(super) fn usual_op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![12 => Just(1u64), 1 => 2..4u64, 1 => Just(0)];
    let demand = (0..POLICIES, prop_oneof![6 => Just(0), 1 => Just(1)], cost, Just(false));
    prop_oneof![
        8 => demand.prop_map(|demand| Op::Decide(vec![demand])),
        6 => (1..6u64).prop_map(|steps| Op::Advance(steps * 50_000)),
        1 => (0..POLICIES, 0..QUOTAS).prop_map(|(policy, quota)| Op::Change(policy, quota)),
        1 => (0..8usize, 0..3u32).prop_map(|(charge, cost)| Op::Settle(charge, cost)),
    ]
}

pub(super) const POLICIES: usize = 7;
pub(super) const QUOTAS: usize = 4;

pub(super) fn policy(index: usize, quota_index: usize) -> Policy {
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
pub(super) const LARGE: usize = 5;
