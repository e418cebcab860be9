use super::{
    Micros, Policy, Receipt,
    decision::Proof,
    fixed_window::FixedWindow,
    sliding_counter::SlidingCounter,
    sliding_window::SlidingWindow,
    token_bucket::{Level, TokenBucket},
};

/// How a policy counts.
///
/// ```
/// use tollgate::{Policy, Quota, limit::Algorithm};
///
/// let policy = Policy::new("api", Quota::per_minute(100), Algorithm::SlidingWindow)?;
/// assert_eq!(policy.algorithm().name(), "sliding-window");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A window opens with its first unit and lasts `window`; at most `limit` units pass in it.
    ///
    /// Cheapest and plainest. A client that straddles a window's end gets up to twice the limit within one
    /// window's time.
    FixedWindow,
    /// Every interval of length `window` holds at most `limit` units, exactly.
    ///
    /// Remembers each charge: memory grows with the limit.
    SlidingWindow,
    /// Two windows, the older of which counts by the part of it that the last `window` of time still covers, as if its
    /// units had come evenly.
    ///
    /// Nearly a sliding window, at one short text a key. How near depends on how evenly requests come: see
    /// [the table](crate::limit).
    SlidingCounter,
    /// A bucket of `burst` units that refills evenly at `limit` per `window`.
    ///
    /// Any interval `t` admits at most `burst + limit · t / window` units. One number a key, smooth for clients.
    TokenBucket,
}

impl Algorithm {
    /// Returns the name that configuration and documentation use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingCounter => "sliding-counter",
            Self::TokenBucket => "token-bucket",
        }
    }

    /// Returns the letter that stands for it in names of state, so that a changed algorithm starts anew.
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Self::FixedWindow => b'f',
            Self::SlidingWindow => b's',
            Self::SlidingCounter => b'c',
            Self::TokenBucket => b't',
        }
    }
}

/// What is remembered of one key under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    FixedWindow(FixedWindow),
    SlidingWindow(Box<SlidingWindow>),
    SlidingCounter(SlidingCounter),
    TokenBucket(TokenBucket),
}

/// Where a key stands: what a decision tells about one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Units that would pass now.
    pub(crate) remaining: u32,
    /// Microseconds until one more would.
    pub(crate) next: Micros,
    /// Microseconds until nothing is used any more.
    pub(crate) full: Micros,
    /// Microseconds until the cost that was asked about would pass: zero if it would now, or [`Standing::NEVER`].
    pub(crate) wait: Micros,
}

/// What a store that others use too has answered about a key, for a state that follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The units that it has charged; `None` if it has refused the request.
    pub(crate) charged: Option<u32>,
    /// The units that were asked for.
    pub(crate) cost: u32,
    /// The units used of the whole, by everybody.
    pub(crate) used: u32,
    pub(crate) standing: Standing,
}

impl Told {
    /// Returns the units that a state of this policy has used now, that had used `own` before.
    ///
    /// No less than leaves what remains of the whole, if that is less than the policy's part. And no more than was
    /// used of the whole: it has been given back since.
    pub(super) fn used(&self, policy: &Policy, own: u32) -> u32 {
        let least = policy.capacity_u32().saturating_sub(self.standing.remaining);
        own.saturating_add(self.charged.unwrap_or(0)).min(self.used).max(least)
    }
}

/// Where a key stands, as it was found. What a bucket tells takes a division, so it is worked out when it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stand {
    Told { remaining: u32, next: Micros, full: Micros, wait: Micros },
    Bucket(Level),
}

impl Stand {
    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        match *self {
            Self::Told { remaining, next, full, wait } => Standing { remaining, next, full, wait },
            Self::Bucket(level) => level.standing(),
        }
    }

    /// Returns [`Standing::wait`], which takes less than the whole.
    #[inline]
    pub(crate) fn wait(&self) -> Micros {
        match self {
            Self::Told { wait, .. } => *wait,
            Self::Bucket(level) => level.wait(),
        }
    }
}

impl From<Standing> for Stand {
    #[inline]
    fn from(Standing { remaining, next, full, wait }: Standing) -> Self {
        Self::Told { remaining, next, full, wait }
    }
}

impl Standing {
    /// A wait that no waiting ends: the cost is above the capacity.
    pub(crate) const NEVER: Micros = Micros::MAX;
}

impl State {
    /// Returns what a key is that was never seen.
    pub(crate) fn fresh(policy: &Policy) -> Self {
        match policy.algorithm() {
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Algorithm::SlidingWindow => Self::SlidingWindow(Box::default()),
            Algorithm::SlidingCounter => Self::SlidingCounter(SlidingCounter::default()),
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::default()),
        }
    }

    /// Becomes what a key is that was never seen.
    #[inline]
    pub(crate) fn forget(&mut self) {
        match self {
            Self::FixedWindow(state) => *state = FixedWindow::default(),
            Self::SlidingWindow(state) => state.forget(),
            Self::SlidingCounter(state) => *state = SlidingCounter::default(),
            Self::TokenBucket(state) => *state = TokenBucket::default(),
        }
    }

    /// Heals what a clock or quota since changed has left behind, and drops what is over.
    pub(crate) fn tidy(&mut self, policy: &Policy, now: Micros) {
        match self {
            Self::FixedWindow(state) => state.tidy(policy, now),
            Self::SlidingWindow(state) => state.tidy(policy, now),
            Self::SlidingCounter(state) => state.tidy(policy, now),
            Self::TokenBucket(state) => state.tidy(policy, now),
        }
    }

    /// Returns true if the cost, which is not zero, would pass now: what [`stand`](Self::stand) tells too, for
    /// less.
    pub(crate) fn fits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        match self {
            Self::FixedWindow(state) => state.fits(policy, now, cost),
            Self::SlidingWindow(state) => state.fits(policy, now, cost),
            Self::SlidingCounter(state) => state.fits(policy, now, cost),
            Self::TokenBucket(state) => state.fits(policy, now, cost),
        }
    }

    #[cfg(test)]
    pub(crate) fn standing(&self, policy: &Policy, now: Micros, cost: u32) -> Standing {
        self.stand(policy, now, cost).standing()
    }

    /// Tells where a key stands, for somebody who asks for `cost` units.
    #[inline]
    pub(crate) fn stand(&self, policy: &Policy, now: Micros, cost: u32) -> Stand {
        match self {
            Self::FixedWindow(state) => state.standing(policy, now, cost).into(),
            Self::SlidingWindow(state) => state.standing(policy, now, cost).into(),
            Self::SlidingCounter(state) => state.standing(policy, now, cost).into(),
            Self::TokenBucket(state) => Stand::Bucket(state.stand(policy, now, cost)),
        }
    }

    /// Charges a cost, which is not zero, if it would pass now, and tells of the state after that.
    #[inline]
    pub(crate) fn take(&mut self, policy: &Policy, now: Micros, cost: u32) -> (Stand, Option<Receipt>) {
        if let Self::TokenBucket(state) = self {
            let (level, receipt) = state.take(policy, now, cost);
            return (Stand::Bucket(level), receipt);
        }
        self.tidy(policy, now);
        let receipt = self.fits(policy, now, cost).then(|| self.charge(policy, now, cost));
        (self.stand(policy, now, cost), receipt)
    }

    pub(crate) fn charge(&mut self, policy: &Policy, now: Micros, cost: u32) -> Receipt {
        match self {
            Self::FixedWindow(state) => state.charge(policy, now, cost),
            Self::SlidingWindow(state) => state.charge(policy, now, cost),
            Self::SlidingCounter(state) => state.charge(policy, now, cost),
            Self::TokenBucket(state) => state.charge(policy, now, cost),
        }
    }

    /// Takes over what a store has answered, into a state by whose policy this process may decide alone: one of equal
    /// parts of the whole.
    pub(crate) fn follow(&mut self, policy: &Policy, now: Micros, told: &Told) {
        match self {
            Self::FixedWindow(state) => state.follow(policy, now, told),
            Self::SlidingWindow(state) => state.follow(policy, now, told),
            Self::SlidingCounter(state) => state.follow(policy, now, told),
            Self::TokenBucket(state) => state.follow(policy, now, told),
        }
    }

    /// Changes what was charged under `receipt` to `cost`; does nothing if the receipt has expired.
    pub(crate) fn settle(&mut self, policy: &Policy, now: Micros, receipt: Receipt, charged: u32, cost: u32) {
        match (self, receipt.proof()) {
            (Self::FixedWindow(state), Proof::Window { ends_ms }) => state.settle(policy, now, ends_ms, charged, cost),
            (Self::SlidingCounter(state), Proof::Window { ends_ms }) => {
                state.settle(policy, now, ends_ms, charged, cost)
            }
            (Self::SlidingWindow(state), Proof::Entry { at, tie }) => {
                state.settle(policy, now, (at, tie, charged), cost)
            }
            (Self::TokenBucket(state), Proof::Arrival { ticks }) => state.settle(policy, now, ticks, charged, cost),
            _ => {}
        }
    }

    /// Returns when this state means no more than a fresh one.
    #[inline]
    pub(crate) fn ends(&self) -> Micros {
        match self {
            Self::FixedWindow(state) => state.ends(),
            Self::SlidingWindow(state) => state.ends(),
            Self::SlidingCounter(state) => state.ends(),
            Self::TokenBucket(state) => state.ends(),
        }
    }
}
