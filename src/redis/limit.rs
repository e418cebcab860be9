use redis::{RedisError, Value};
use smallvec::SmallVec;

use super::{
    connect::Connections,
    script::{DECIDE, SETTLE},
};
use crate::{
    error::Error,
    key::Key,
    limit::{
        Adjustment, Algorithm, Decision, Demand, FixedWindow, Micros, Outcome, Outcomes, Policy, Proof, Receipt,
        Standing, State, TokenBucket,
    },
};

/// What was asked of each policy, kept until the answer comes.
pub(super) type Asked = SmallVec<[(Policy, u32); 2]>;

/// Returns the name of the state of `subject` under `policy`.
pub(super) fn key(prefix: &str, buckets: u16, policy: &Policy, subject: &Key) -> Vec<u8> {
    let letter = match policy.algorithm() {
        Algorithm::FixedWindow => 'f',
        Algorithm::SlidingWindow => 's',
        Algorithm::TokenBucket => 't',
    };
    let (bucket, policy, subject) = (subject.bucket(buckets), policy.name(), subject.as_str());
    format!("{prefix}:{STATE_VERSION}:{{{bucket}}}:{letter}:{policy}:{subject}").into_bytes()
}

/// Writes the frame of `decide.lua` for several requests.
pub(super) fn decide_frame(now: Option<Micros>, requests: &[&[Demand<'_>]]) -> Vec<u8> {
    let mut frame = Frame::default();
    frame.push(now.unwrap_or(0)).push(requests.len() as u64);
    for demands in requests {
        frame.push(demands.len() as u64);
        for demand in *demands {
            let (policy, cost) = (demand.policy(), demand.cost_u32());
            match policy.algorithm() {
                Algorithm::FixedWindow => frame
                    .push(FIXED_WINDOW)
                    .push(cost.into())
                    .push(policy.quota().limit())
                    .push(policy.quota().window_ms())
                    .push(policy.is_aligned().into()),
                Algorithm::SlidingWindow => frame
                    .push(SLIDING_WINDOW)
                    .push(cost.into())
                    .push(policy.quota().limit())
                    .push(policy.window_micros()),
                Algorithm::TokenBucket => {
                    let grain = TokenBucket::grain(policy);
                    let capacity = TokenBucket::ticks(policy, policy.capacity_u32()) / grain;
                    frame
                        .push(TOKEN_BUCKET)
                        .push(TokenBucket::ticks(policy, cost) / grain)
                        .push(capacity)
                        .push(renewal_step(capacity, UNITS_PER_MICRO / grain))
                        .push(UNITS_PER_MICRO / grain)
                }
            };
        }
    }
    frame.finish()
}

/// Writes the frame of `settle.lua`.
pub(super) fn settle_frame(now: Option<Micros>, adjustments: &[Adjustment<'_>]) -> Vec<u8> {
    let mut frame = Frame::default();
    frame.push(now.unwrap_or(0));
    for adjustment in adjustments {
        let policy = adjustment.policy();
        let (charged, cost) = (adjustment.charged_u32(), adjustment.cost_u32());
        match adjustment.receipt().proof() {
            Proof::Window { ends_ms } => {
                let (off_by, more) = (FixedWindow::end_off_by_ms(policy), i64::from(cost) - i64::from(charged));
                frame.push(FIXED_WINDOW).push(ends_ms).push(off_by).push_signed(more);
            }
            Proof::Entry { at, tie } => {
                frame.push(SLIDING_WINDOW).push(at).push(tie.into()).push(charged.into()).push(cost.into());
                frame.push(policy.window_micros());
            }
            Proof::Arrival { ticks } => {
                let grain = TokenBucket::grain(policy);
                let arrival = ticks.div_ceil(grain);
                let arrival = if grain == 1 { FIRST + arrival % ERA } else { arrival };
                let capacity = TokenBucket::ticks(policy, policy.capacity_u32()) / grain;
                let time = |units: u32| {
                    u64::from(units).saturating_mul(policy.interval() / grain).min(MOST_TIME).cast_signed()
                };
                let more = if cost > charged { time(cost - charged) } else { -time(charged - cost) };
                frame.push(TOKEN_BUCKET).push(arrival).push_signed(more).push(capacity).push(UNITS_PER_MICRO / grain);
            }
            // Not from this store: it says nothing here. The frame keeps its shape.
            Proof::None | Proof::Foreign(_) => {
                frame.push(FIXED_WINDOW).push(0).push(0).push(0);
            }
        }
    }
    frame.finish()
}

/// Calls `decide.lua`.
pub(super) async fn decide(
    connections: &Connections,
    keys: Vec<Vec<u8>>,
    frame: Vec<u8>,
    asked: &Asked,
) -> Result<Decision, Error> {
    let mut connection = connections.get().await?;
    match DECIDE.call(&mut connection.handle, &keys, &frame).await {
        Ok(reply) => read(&reply, asked).ok_or_else(|| Error::store("redis answered what decide.lua does not return")),
        Err(error) => Err(connection.failed(error)),
    }
}

/// Calls `settle.lua`.
pub(super) async fn settle(connections: &Connections, keys: Vec<Vec<u8>>, frame: Vec<u8>) -> Result<(), Error> {
    let mut connection = connections.get().await?;
    SETTLE.call(&mut connection.handle, &keys, &frame).await.map(drop).map_err(|error| connection.failed(error))
}

/// Deletes the state of one key.
pub(super) async fn reset(connections: &Connections, key: Vec<u8>) -> Result<(), Error> {
    let mut connection = connections.get().await?;
    let deleted: Result<Value, RedisError> = redis::cmd("DEL").arg(key).query_async(&mut connection.handle).await;
    deleted.map(drop).map_err(|error| connection.failed(error))
}

/// Reads the reply of `decide.lua` to one request.
fn read(reply: &Value, asked: &Asked) -> Option<Decision> {
    let Value::Array(values) = reply else { return None };
    let mut numbers = values.iter().map(|value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    });
    let mut next = || numbers.next().flatten();
    let now = next()?;
    let found: SmallVec<[Found; 2]> =
        asked.iter().map(|(policy, _)| Found::read(policy, now, &mut next)).collect::<Option<_>>()?;
    let admitted = found.iter().zip(asked).all(|(found, (policy, cost))| found.admits(policy, now, *cost));
    let outcome = |(found, (policy, cost)): (Found, &(Policy, u32))| match admitted && *cost > 0 {
        true => found.charged(policy, now, *cost),
        false => Outcome::before(policy, found.standing(policy, now, *cost), *cost),
    };
    let outcomes: Outcomes = found.into_iter().zip(asked).map(outcome).collect();
    if next().is_some() { None } else { Some(Decision::by(outcomes)) }
}

/// What a script found of one key, before anything was charged.
enum Found {
    /// All that there is to the state: the pure arithmetic goes on from it.
    State(State),
    /// The sum of a log that stays on the server, and times that were read from it after the charge.
    Log { used: u32, next: Micros, full: Micros, wait: Micros, tie: u32 },
}

impl Found {
    fn read(policy: &Policy, now: Micros, next: &mut impl FnMut() -> Option<u64>) -> Option<Self> {
        let narrow = |number: u64| u32::try_from(number).ok();
        Some(match policy.algorithm() {
            Algorithm::FixedWindow => {
                let (used, left_ms) = (narrow(next()?)?, next()?);
                Self::State(State::FixedWindow(FixedWindow::from_parts(used, left_ms, now)))
            }
            Algorithm::SlidingWindow => {
                Self::Log { used: narrow(next()?)?, next: next()?, full: next()?, wait: next()?, tie: narrow(next()?)? }
            }
            Algorithm::TokenBucket => {
                let level = next()?.checked_mul(TokenBucket::grain(policy))?;
                Self::State(State::TokenBucket(TokenBucket::from_level(level, now)))
            }
        })
    }

    fn admits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        match self {
            Self::State(state) => state.standing(policy, now, cost).wait == 0,
            Self::Log { used, .. } => cost == 0 || used.saturating_add(cost) <= policy.quota().limit_u32(),
        }
    }

    fn standing(&self, policy: &Policy, now: Micros, cost: u32) -> Standing {
        match *self {
            Self::State(ref state) => state.standing(policy, now, cost),
            Self::Log { used, next, full, wait, .. } => {
                let limit = policy.quota().limit_u32();
                let wait = if cost > limit { Standing::NEVER } else { wait };
                Standing { remaining: limit.saturating_sub(used), next, full, wait }
            }
        }
    }

    fn charged(self, policy: &Policy, now: Micros, cost: u32) -> Outcome {
        match self {
            Self::State(mut state) => {
                let receipt = state.charge(policy, now, cost);
                Outcome::allowed(policy, state.standing(policy, now, cost), cost, receipt)
            }
            Self::Log { used, next, full, wait, tie } => {
                let after = Self::Log { used: used.saturating_add(cost), next, full, wait, tie };
                Outcome::allowed(policy, after.standing(policy, now, cost), cost, Receipt::entry(now, tie))
            }
        }
    }
}

/// Integers in MessagePack, which scripts read at a fraction of what arguments cost.
#[derive(Default)]
struct Frame {
    len: u32,
    bytes: Vec<u8>,
}

impl Frame {
    fn push(&mut self, number: u64) -> &mut Self {
        rmp::encode::write_uint(&mut self.bytes, number).expect("a vector takes all bytes");
        self.len += 1;
        self
    }

    fn push_signed(&mut self, number: i64) -> &mut Self {
        rmp::encode::write_sint(&mut self.bytes, number).expect("a vector takes all bytes");
        self.len += 1;
        self
    }

    fn finish(self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.bytes.len() + 5);
        rmp::encode::write_array_len(&mut frame, self.len).expect("a vector takes all bytes");
        frame.extend(self.bytes);
        frame
    }
}

/// Returns how far a bucket's arrival time may move before its key's lifetime is renewed.
///
/// A power of two of microseconds, at most half of what a full bucket takes to drain and at most the script's
/// span, so that whoever crosses a whole span has crossed a whole step.
fn renewal_step(capacity: u64, units_per_micro: u64) -> u64 {
    let half_micros = (capacity / units_per_micro / 2).clamp(1, RENEWAL_SPAN_MICROS);
    (1 << half_micros.ilog2()) * units_per_micro
}

/// Part of each key. A change of what keys hold gets a new number, so that versions side by side do not clash.
const STATE_VERSION: u8 = 1;

const FIXED_WINDOW: u64 = 1;
const SLIDING_WINDOW: u64 = 2;
const TOKEN_BUCKET: u64 = 3;

/// Fast buckets count tenths of a microsecond.
const UNITS_PER_MICRO: u64 = 10;
/// The era of fast buckets and what it begins with, in those.
const ERA: u64 = 1_000_000_000_000_000;
const FIRST: u64 = 10_000_000_000_000;
/// More than all buckets hold, and little enough that a script's sums stay below 2⁵³.
const MOST_TIME: u64 = 1 << 51;
const RENEWAL_SPAN_MICROS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_have_the_same_constants() {
        for script in [include_str!("lua/decide.lua"), include_str!("lua/settle.lua")] {
            assert!(script.contains("local ERA, FIRST = 1e15, 1e13 "));
            assert!(script.contains(&format!("local SPAN = {RENEWAL_SPAN_MICROS} ")));
        }
        assert_eq!((ERA, FIRST), (10u64.pow(15), 10u64.pow(13)));
    }
}
