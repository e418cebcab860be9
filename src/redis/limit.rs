use std::{
    borrow::Cow,
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use redis::Value;
use smallvec::SmallVec;

#[cfg(feature = "cluster")]
use crate::limit::Escalation;
use crate::{
    error::Error,
    key::Key,
    limit::{
        Adjustment, Algorithm, Decision, Demand, FixedWindow, Micros, Outcome, Outcomes, Policy, Proof, Receipt,
        SlidingCounter, Stand, Standing, State, TokenBucket,
    },
};

/// What one request asks, kept until the answer comes.
pub(super) type Asked = SmallVec<[Asking; 1]>;

/// What a request asks of one policy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asking {
    policy: Policy,
    subject: Key,
    cost: u32,
    /// Whether it decides nothing.
    shadow: bool,
    /// Whether a refusal counts for what the policy escalates to.
    escalates: bool,
}

#[cfg(feature = "cluster")]
impl Asking {
    pub(super) fn is_shadow(&self) -> bool {
        self.shadow
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(super) fn subject(&self) -> &Key {
        &self.subject
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    /// Asks without charging.
    pub(super) fn looking(&self) -> Self {
        Self { cost: 0, ..self.clone() }.without_escalation()
    }

    /// Asks without counting a refusal.
    pub(super) fn without_escalation(self) -> Self {
        Self { escalates: false, ..self }
    }

    /// Returns what a refusal leads to, if it counts for that.
    pub(super) fn escalation(&self) -> Option<&Escalation> {
        self.policy.escalation().filter(|_| self.escalates)
    }
}

impl From<&Demand<'_>> for Asking {
    fn from(demand: &Demand<'_>) -> Self {
        Self {
            policy: demand.policy().clone(),
            subject: *demand.subject(),
            cost: demand.cost_u32(),
            shadow: demand.is_shadow(),
            escalates: demand.escalation().is_some(),
        }
    }
}

/// Returns what to find requests by that ask the same; nothing for those of several policies, for those that only ask,
/// and where a refusal may change what the next is told.
pub(super) fn merge_hash(asked: &Asked) -> Option<u64> {
    match asked.as_slice() {
        [one] if one.cost > 0 && !one.escalates => Some(one.subject.hash()),
        _ => None,
    }
}

/// Returns true if a request can be made so many times as one: by one addition, which has to be one that could fit,
/// or, where each charge is an entry, one after the other until one is refused.
pub(super) fn fits(asked: &Asked, times: usize) -> bool {
    let units = |asking: &Asking| u64::from(asking.cost).saturating_mul(times as u64);
    asked.iter().all(|asking| is_log(asking) || units(asking) <= asking.policy.capacity())
}

fn is_log(asking: &Asking) -> bool {
    asking.policy.algorithm() == Algorithm::SlidingWindow
}

/// Where keys are.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) prefix: Arc<str>,
    pub(super) buckets: u16,
    /// Whether the keys of each bucket are all that a call may name, as on a Cluster.
    pub(super) apart: bool,
    /// Whether each call is to name one key, as if slots moved.
    #[cfg(test)]
    pub(super) by_key: bool,
}

impl Names {
    /// Writes the name of the state of `subject` under `policy`.
    pub(super) fn state(&self, policy: &Policy, subject: &Key, name: &mut Vec<u8>) {
        self.of_policy(policy.algorithm().letter(), policy, subject, name);
    }

    /// Writes the name of what blocks `subject`, under whatever policy.
    pub(super) fn blocks(&self, subject: &Key, name: &mut Vec<u8>) {
        self.begin(b'b', subject, name);
        name.extend_from_slice(subject.as_bytes());
    }

    /// Writes the name of how often `subject` was refused under `policy`.
    pub(super) fn strikes(&self, policy: &Policy, subject: &Key, name: &mut Vec<u8>) {
        self.of_policy(b'r', policy, subject, name);
    }

    /// Writes the name of what exists while anybody may be blocked, in this bucket if buckets are apart.
    pub(super) fn flag(&self, subject: &Key, name: &mut Vec<u8>) {
        if self.apart {
            self.bucket(subject, name);
            name.extend_from_slice(FLAG_OF_BUCKET);
        } else {
            name.extend_from_slice(self.prefix.as_bytes());
            name.extend_from_slice(FLAG);
        }
    }

    fn of_policy(&self, letter: u8, policy: &Policy, subject: &Key, name: &mut Vec<u8>) {
        self.begin(letter, subject, name);
        name.extend_from_slice(policy.name().as_bytes());
        name.push(b':');
        name.extend_from_slice(subject.as_bytes());
    }

    fn begin(&self, letter: u8, subject: &Key, name: &mut Vec<u8>) {
        self.bucket(subject, name);
        name.extend_from_slice(&[b'}', b':', letter, b':']);
    }

    fn bucket(&self, subject: &Key, name: &mut Vec<u8>) {
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(STATE_VERSION_AND_BRACE);
        name.extend_from_slice(itoa::Buffer::new().format(subject.bucket(self.buckets)).as_bytes());
    }
}

/// The arguments of one script call.
#[derive(Debug, Default)]
pub(super) struct Call {
    names: Vec<u8>,
    /// Where each name ends.
    ends: Vec<usize>,
    frame: Frame,
    /// Arguments of a script that takes no frame.
    plain: Vec<Vec<u8>>,
    /// What the reply has to bring back; zero if it brings nothing.
    mark: u64,
}

impl Call {
    /// Calls `decide.lua` for requests, each made so many times; with what blocks their subjects, if it is believed
    /// that anybody is blocked, or a refusal may block somebody.
    pub(super) fn decide<'a>(
        names: &Names,
        now: Option<Micros>,
        requests: impl Iterator<Item = Request<'a>> + Clone,
        blocks: bool,
    ) -> Self {
        let mut call = Self::marked();
        if let Some((asked, _)) = requests.clone().next() {
            call.key(|name| names.flag(&asked[0].subject, name));
        }
        let (mut states, mut blocking, mut escalates) = (0, 0, false);
        for (asked, _) in requests.clone() {
            states += asked.len();
            blocking += subjects(asked).count();
            escalates |= asked.iter().any(|asking| asking.escalates);
        }
        let blocks = blocks || escalates;
        call.frame.push(now.unwrap_or(0)).push(states as u64).push(call.mark);
        call.frame.push(if blocks { blocking as u64 } else { 0 });
        let mut rest = requests.clone();
        while let Some(first) = rest.clone().next() {
            let (asked, times) = first;
            let alike = rest.clone().take_while(|other| are_alike(first, *other)).count();
            call.frame.push(alike as u64).push(times as u64).push(asked.len() as u64);
            call.frame.push(subjects(asked).count() as u64);
            call.frame.push(asked.iter().filter(|asking| asking.escalates).count() as u64);
            asked.iter().for_each(|asking| call.frame.demand(asking, asked.len() == 1));
            for asking in rest.by_ref().take(alike).flat_map(|(asked, _)| asked) {
                call.key(|name| names.state(&asking.policy, &asking.subject, name));
            }
        }
        if blocks {
            for subject in requests.clone().flat_map(|(asked, _)| subjects(asked)) {
                call.key(|name| names.blocks(subject, name));
            }
        }
        if escalates {
            for asking in requests.flat_map(|(asked, _)| asked).filter(|asking| asking.escalates) {
                call.key(|name| names.strikes(&asking.policy, &asking.subject, name));
            }
        }
        call
    }

    /// Calls `decide.lua` for one demand with no other key than its state's, so that whoever has that can decide.
    ///
    /// The state stands in the place of the flag and of the blocks as well. It never has the form of blocks, so nobody
    /// seems to be blocked: the caller has to have looked for that.
    #[cfg(feature = "cluster")]
    pub(super) fn decide_on_one_key(names: &Names, now: Option<Micros>, asking: &Asking) -> Self {
        let mut call = Self::marked();
        call.frame.push(now.unwrap_or(0)).push(1).push(call.mark).push(1);
        call.frame.push(1).push(1).push(1).push(1).push(0);
        call.frame.demand(asking, true);
        for _ in 0..3 {
            call.key(|name| names.state(&asking.policy, &asking.subject, name));
        }
        call
    }

    fn marked() -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        // One byte: of calls on one connection, those with the same mark are far apart.
        Self { mark: CALLS.fetch_add(1, Ordering::Relaxed) % 127 + 1, ..Self::default() }
    }

    /// Returns false if a reply is that to another call.
    pub(super) fn is_answered_by(&self, reply: &Value) -> bool {
        let mark = Value::Int(self.mark.cast_signed());
        self.mark == 0 || matches!(reply, Value::Array(values) if values.get(2) == Some(&mark))
    }

    /// Calls `block.lua`.
    pub(super) fn block(names: &Names, now: Option<Micros>, policy: &Policy, subject: &Key, long: Micros) -> Self {
        let mut call = Self::default();
        call.key(|name| names.blocks(subject, name));
        call.key(|name| names.flag(subject, name));
        call.key(|name| names.strikes(policy, subject, name));
        call.plain = vec![number(now.unwrap_or(0)), policy.name().as_bytes().to_vec(), number(long)];
        call
    }

    /// Calls `strike.lua`.
    #[cfg(feature = "cluster")]
    pub(super) fn strike(names: &Names, now: Option<Micros>, asking: &Asking, escalation: &Escalation) -> Self {
        let mut call = Self::default();
        call.key(|name| names.strikes(&asking.policy, &asking.subject, name));
        call.plain = [now.unwrap_or(0)].into_iter().chain(escalation.numbers()).map(number).collect();
        call
    }

    /// Calls `block.lua` for what a call is for, with its first key alone.
    #[cfg(feature = "cluster")]
    pub(super) fn block_without_flag(&self) -> Self {
        let first = self.first_key().to_vec();
        Self { ends: vec![first.len()], names: first, plain: self.plain.clone(), ..Self::default() }
    }

    /// Calls `flag.lua` for a subject that is to be blocked for so long.
    #[cfg(feature = "cluster")]
    pub(super) fn flag(names: &Names, subject: &Key, long: Micros) -> Self {
        let mut call = Self::default();
        call.key(|name| names.flag(subject, name));
        // The block begins later.
        call.plain = vec![(long.div_ceil(1_000) + FLAG_OUTLIVES_MS).to_string().into_bytes()];
        call
    }

    /// Calls a script that takes its arguments as they are.
    pub(super) fn plain(keys: impl IntoIterator<Item = Vec<u8>>, arguments: Vec<Vec<u8>>) -> Self {
        let mut call = Self { plain: arguments, ..Self::default() };
        keys.into_iter().for_each(|key| call.key(|name| name.extend_from_slice(&key)));
        call
    }

    /// Calls `settle.lua`.
    pub(super) fn settle<'a>(
        names: &Names,
        now: Option<Micros>,
        adjustments: impl IntoIterator<Item = &'a Adjustment<'a>>,
    ) -> Self {
        let mut call = Self::default();
        call.frame.push(now.unwrap_or(0));
        for adjustment in adjustments {
            call.key(|name| names.state(adjustment.policy(), adjustment.subject(), name));
            call.frame.adjustment(adjustment);
        }
        call
    }

    /// Returns the key by which the server is found.
    #[cfg(feature = "cluster")]
    pub(super) fn first_key(&self) -> &[u8] {
        &self.names[..self.ends.first().copied().unwrap_or_default()]
    }

    #[cfg(feature = "cluster")]
    pub(super) fn last_key(&self) -> &[u8] {
        self.keys().last().unwrap_or_default()
    }

    #[cfg(feature = "cluster")]
    pub(super) fn is_of_one_key(&self) -> bool {
        self.keys().all(|key| key == self.first_key())
    }

    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|i| {
            let start = if i == 0 { 0 } else { self.ends[i - 1] };
            &self.names[start..self.ends[i]]
        })
    }

    pub(super) fn arguments(&self) -> Cow<'_, [Vec<u8>]> {
        if self.plain.is_empty() { vec![self.frame.with_length()].into() } else { self.plain.as_slice().into() }
    }

    fn key(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.names);
        self.ends.push(self.names.len());
    }
}

/// What one request asks, and how often it is made.
pub(super) type Request<'a> = (&'a Asked, usize);

/// Returns true if two requests differ in their subjects alone.
fn are_alike((one, times): Request<'_>, (other, times_other): Request<'_>) -> bool {
    let same = |(one, other): (&Asking, &Asking)| {
        (one.cost, one.shadow, one.escalates) == (other.cost, other.shadow, other.escalates)
            && one.policy == other.policy
    };
    times == times_other
        && one.len() == other.len()
        && one.iter().zip(other).all(same)
        && (one.len() == 1 || subjects(one).count() == subjects(other).count())
}

/// Returns whose blocks a request has to look at: one subject if all its demands share it, else one a demand.
fn subjects(asked: &Asked) -> impl Iterator<Item = &Key> {
    let one = asked.iter().all(|asking| asking.subject == asked[0].subject);
    asked.iter().take(if one { 1 } else { asked.len() }).map(|asking| &asking.subject)
}

/// The reply of `decide.lua`, read request by request.
pub(super) struct Reply<'a> {
    now: Micros,
    values: slice::Iter<'a, Value>,
}

impl<'a> Reply<'a> {
    /// Returns true if nothing was done since the call did not tell what blocks its subjects.
    pub(super) fn wants_blocks(reply: &Value) -> bool {
        matches!(reply, Value::Array(values) if values.first() == Some(&Value::Int(0)))
    }

    /// Begins to read a reply, which also tells whether anybody may be blocked.
    pub(super) fn new(reply: &'a Value) -> Result<(Self, bool), Error> {
        let Value::Array(values) = reply else { return Err(unreadable()) };
        let mut reply = Self { now: 0, values: values.iter() };
        reply.now = reply.number()?;
        let flag = reply.number()?;
        reply.number()?;
        Ok((reply, flag > 0))
    }

    /// Reads what was found of the next request.
    pub(super) fn next(&mut self, asked: &Asked) -> Result<Finding, Error> {
        if let Some(Value::BulkString(text)) = self.values.as_slice().first() {
            self.values.next();
            return Err(Error::store(format!("redis answered: {}", String::from_utf8_lossy(text))));
        }
        let mut blocked = SmallVec::from_elem(0, asked.len());
        if let Some(Value::Int(BLOCKED)) = self.values.as_slice().first() {
            self.values.next();
            for long in &mut blocked {
                *long = self.number()?;
            }
        }
        let found = asked.iter().map(|asking| Found::read(&asking.policy, self)).collect::<Result<_, Error>>()?;
        Ok(Finding { now: self.now, found, blocked })
    }

    fn number(&mut self) -> Result<u64, Error> {
        match self.values.next() {
            Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| unreadable()),
            _ => Err(unreadable()),
        }
    }

    fn narrow(&mut self) -> Result<u32, Error> {
        u32::try_from(self.number()?).map_err(|_| unreadable())
    }
}

fn unreadable() -> Error {
    Error::store("redis answered what decide.lua does not return")
}

/// What a script found of all that one request asks about.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    now: Micros,
    found: SmallVec<[Found; 1]>,
    /// For how long each is blocked.
    blocked: SmallVec<[Micros; 1]>,
}

impl Finding {
    /// Returns true if a request that was made several times and admitted has a finding of its own each time.
    pub(super) fn is_followed_by_another(&self) -> bool {
        matches!(self.found.as_slice(), [Found::Log { .. }])
    }

    /// Returns true if it was found before a time.
    #[cfg(feature = "cluster")]
    pub(super) fn is_before(&self, time: Micros) -> bool {
        self.now < time
    }

    /// Says that its only demand, which was looked at, is blocked until a later time.
    #[cfg(feature = "cluster")]
    pub(super) fn block(&mut self, until: Micros) {
        self.block_for(until.saturating_sub(self.now));
    }

    /// Says that its only demand is blocked for so long.
    #[cfg(feature = "cluster")]
    pub(super) fn block_for(&mut self, long: Micros) {
        self.blocked = SmallVec::from_elem(long, 1);
    }

    /// Tells how things stood before, for costs that were or were not charged.
    #[cfg(feature = "cluster")]
    pub(super) fn before(&self, asked: &[Asking]) -> Outcomes {
        let each = self.found.iter().zip(&self.blocked).zip(asked);
        each.map(|((found, long), Asking { policy, cost, shadow, .. })| {
            let cost = if *long > 0 { 0 } else { *cost };
            let outcome = Outcome::before(policy, found.looked_at(policy, self.now, cost));
            outcome.blocked_for(*long).in_shadow(*shadow)
        })
        .collect()
    }

    /// Repeats the script's verdict; asked again, it goes on from there.
    pub(super) fn decide(&mut self, asked: &Asked) -> Decision {
        let now = self.now;
        let passes =
            |found: &Found, long: Micros, asking: &Asking| long == 0 && found.admits(&asking.policy, now, asking.cost);
        let mut each = self.found.iter().zip(&self.blocked).zip(asked);
        let admitted = each.all(|((found, long), asking)| asking.shadow || passes(found, *long, asking));
        let mut outcomes = Outcomes::None;
        for ((found, long), asking) in self.found.iter_mut().zip(&self.blocked).zip(asked) {
            let Asking { policy, cost, shadow, .. } = asking;
            let charged = admitted && *cost > 0 && (!shadow || passes(found, *long, asking));
            let outcome = if charged {
                found.charge(policy, now, *cost)
            } else {
                // Who is blocked only looks.
                let cost = if *long > 0 { 0 } else { *cost };
                Outcome::before(policy, found.stand(policy, now, cost)).blocked_for(*long)
            };
            outcomes.push(outcome.in_shadow(*shadow));
        }
        Decision::by(outcomes)
    }
}

/// What was decided on a part of a request.
#[derive(Debug)]
pub(super) struct Part {
    /// As it was before.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "one server decides on all"))]
    pub(super) finding: Finding,
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "one server decides on all"))]
    pub(super) decision: Decision,
}

impl Part {
    pub(super) fn new(finding: Option<Finding>, decision: Decision) -> Option<Self> {
        Some(Self { finding: finding?, decision })
    }
}

/// What a script found of one key, before anything was charged.
#[derive(Clone, Debug)]
enum Found {
    /// All that there is to the state: the pure arithmetic goes on from it.
    State(State),
    /// The sum of a log that stays on the server, and times that were read from it after the charge.
    Log { used: u32, next: Micros, full: Micros, wait: Micros, tie: u32 },
}

impl Found {
    fn read(policy: &Policy, reply: &mut Reply<'_>) -> Result<Self, Error> {
        let now = reply.now;
        Ok(match policy.algorithm() {
            Algorithm::FixedWindow => {
                let (used, left_ms) = (reply.narrow()?, reply.number()?);
                Self::State(State::FixedWindow(FixedWindow::from_parts(used, left_ms, now)))
            }
            Algorithm::SlidingCounter => {
                let (current, before, left_ms) = (reply.narrow()?, reply.narrow()?, reply.number()?);
                Self::State(State::SlidingCounter(SlidingCounter::from_parts(policy, current, before, left_ms, now)))
            }
            Algorithm::SlidingWindow => Self::Log {
                used: reply.narrow()?,
                next: reply.number()?,
                full: reply.number()?,
                wait: reply.number()?,
                tie: reply.narrow()?,
            },
            Algorithm::TokenBucket => {
                let level = reply.number()?.checked_mul(TokenBucket::grain(policy)).ok_or_else(unreadable)?;
                Self::State(State::TokenBucket(TokenBucket::from_level(level, now)))
            }
        })
    }

    fn admits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        match self {
            Self::State(state) => state.stand(policy, now, cost).wait() == 0,
            Self::Log { used, .. } => cost == 0 || used.saturating_add(cost) <= policy.quota().limit_u32(),
        }
    }

    fn stand(&self, policy: &Policy, now: Micros, cost: u32) -> Stand {
        match *self {
            Self::State(ref state) => state.stand(policy, now, cost),
            Self::Log { used, next, full, wait, .. } => {
                let limit = policy.quota().limit_u32();
                let wait = if cost > limit { Standing::NEVER } else { wait };
                Stand::Told { remaining: limit.saturating_sub(used), next, full, wait }
            }
        }
    }

    /// Tells how it stood for a cost that the script may not have been told.
    #[cfg(feature = "cluster")]
    fn looked_at(&self, policy: &Policy, now: Micros, cost: u32) -> Standing {
        let mut standing = self.stand(policy, now, cost).standing();
        if let Self::Log { used, next, full, .. } = *self
            && standing.wait != Standing::NEVER
            // Who asks for nothing waits for nothing, whatever is owed.
            && cost > 0
        {
            // How many units have to leave. If the script was asked for none, it told only when the first leaves, and
            // the last.
            standing.wait = match used.saturating_add(cost).saturating_sub(policy.quota().limit_u32()) {
                0 => 0,
                // Who only asks is let through, whatever debt there is.
                _ if cost == 0 => 0,
                _ if standing.wait > 0 => standing.wait,
                1 => next,
                _ => full,
            };
        }
        standing
    }

    fn charge(&mut self, policy: &Policy, now: Micros, cost: u32) -> Outcome {
        let receipt = match self {
            Self::State(state) => state.charge(policy, now, cost),
            Self::Log { used, tie, .. } => {
                *used = used.saturating_add(cost);
                Receipt::entry(now, *tie)
            }
        };
        Outcome::allowed(policy, self.stand(policy, now, cost), receipt)
    }
}

/// Integers in MessagePack, which scripts read at a fraction of what arguments cost.
#[derive(Debug, Default)]
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

    /// Writes a demand; one that is alone passes or not by itself, whatever becomes of the request.
    fn demand(&mut self, asking: &Asking, is_alone: bool) {
        let Asking { policy, cost, shadow, .. } = asking;
        let cost = *cost;
        let manner = match (asking.escalates, *shadow && !is_alone) {
            (true, _) => ESCALATES,
            (_, true) => IN_SHADOW,
            _ => 0,
        };
        match policy.algorithm() {
            Algorithm::FixedWindow => self
                .push(FIXED_WINDOW + manner)
                .push(cost.into())
                .push(policy.quota().limit())
                .push(policy.quota().window_ms())
                .push(policy.is_aligned().into()),
            Algorithm::SlidingWindow => self
                .push(SLIDING_WINDOW + manner)
                .push(cost.into())
                .push(policy.quota().limit())
                .push(policy.window_micros()),
            Algorithm::SlidingCounter => self
                .push(SLIDING_COUNTER + manner)
                .push(cost.into())
                .push(policy.quota().limit())
                .push(policy.quota().window_ms()),
            Algorithm::TokenBucket => {
                let grain = TokenBucket::grain(policy);
                let capacity = TokenBucket::ticks(policy, policy.capacity_u32()) / grain;
                self.push(TOKEN_BUCKET + manner)
                    .push(TokenBucket::ticks(policy, cost) / grain)
                    .push(capacity)
                    .push(renewal_step(capacity, UNITS_PER_MICRO / grain))
                    .push(UNITS_PER_MICRO / grain)
            }
        };
        if let Some(escalation) = asking.policy.escalation().filter(|_| asking.escalates) {
            for number in escalation.numbers() {
                self.push(number);
            }
        }
    }

    fn adjustment(&mut self, adjustment: &Adjustment<'_>) {
        let policy = adjustment.policy();
        let (charged, cost) = (adjustment.charged_u32(), adjustment.cost_u32());
        match adjustment.receipt().proof() {
            Proof::Window { ends_ms } if policy.algorithm() == Algorithm::SlidingCounter => {
                let more = i64::from(cost) - i64::from(charged);
                self.push(SLIDING_COUNTER).push(ends_ms).push_signed(more).push(policy.quota().window_ms());
            }
            Proof::Window { ends_ms } => {
                let off_by = FixedWindow::end_off_by_ms(policy);
                let more = i64::from(cost) - i64::from(charged);
                self.push(FIXED_WINDOW).push(ends_ms).push(off_by).push_signed(more);
            }
            Proof::Entry { at, tie } => {
                self.push(SLIDING_WINDOW).push(at).push(tie.into()).push(charged.into()).push(cost.into());
                self.push(policy.window_micros());
            }
            Proof::Arrival { ticks } => {
                let grain = TokenBucket::grain(policy);
                let arrival = ticks.div_ceil(grain);
                let arrival = if grain == 1 { FIRST + arrival % ERA } else { arrival };
                let capacity = TokenBucket::ticks(policy, policy.capacity_u32()) / grain;
                let unit = policy.interval() / grain;
                let time = |units: u32| u64::from(units).saturating_mul(unit).min(MOST_TIME).cast_signed();
                let more = if cost > charged { time(cost - charged) } else { -time(charged - cost) };
                self.push(TOKEN_BUCKET).push(arrival).push_signed(more).push(capacity).push(UNITS_PER_MICRO / grain);
            }
            // Not from this store: it says nothing here. The frame keeps its shape.
            Proof::None | Proof::Foreign(_) => {
                self.push(FIXED_WINDOW).push(0).push(0).push(0);
            }
        }
    }

    fn with_length(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.bytes.len() + 5);
        rmp::encode::write_array_len(&mut frame, self.len).expect("a vector takes all bytes");
        frame.extend_from_slice(&self.bytes);
        frame
    }
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
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
const STATE_VERSION_AND_BRACE: &[u8] = b":1:{";

const FLAG: &[u8] = b":1:blocks";
const FLAG_OF_BUCKET: &[u8] = b"}:blocks";
/// By how much a flag outlives a block that is made after it.
#[cfg(feature = "cluster")]
const FLAG_OUTLIVES_MS: u64 = 10_000;

/// Says that a demand of the request is blocked.
const BLOCKED: i64 = -1;

const FIXED_WINDOW: u64 = 1;
const SLIDING_WINDOW: u64 = 2;
const TOKEN_BUCKET: u64 = 3;
const SLIDING_COUNTER: u64 = 4;
/// Is added to the kind of a demand that decides nothing.
const IN_SHADOW: u64 = 16;
/// Is added to the kind of a demand whose refusals are counted.
const ESCALATES: u64 = 32;

/// Fast buckets count tenths of a microsecond.
const UNITS_PER_MICRO: u64 = 10;
/// The era of fast buckets and what it begins with, in those.
const ERA: u64 = 1_000_000_000_000_000;
const FIRST: u64 = 10_000_000_000_000;
/// More than all buckets hold, and little enough that a script's sums stay below 2⁵³.
const MOST_TIME: u64 = 1 << 51;
const RENEWAL_SPAN_MICROS: u64 = 1 << 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_have_the_same_constants() {
        let script = include_str!("lua/common.lua");
        assert!(script.contains("local ERA, FIRST = 1e15, 1e13 "));
        assert!(script.contains(&format!("local SPAN = {RENEWAL_SPAN_MICROS} ")));
        assert_eq!((ERA, FIRST), (10u64.pow(15), 10u64.pow(13)));
    }
}
