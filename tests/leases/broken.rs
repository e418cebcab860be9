//! Locks that are wrong in one way each.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use tollgate::{
    Error, Key, Redis,
    lease::{Acquired, Clock, Holder, Keeper, LeaseId, LeaseStore, Reply, Share, Terms, Watch},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Right,
    /// A release deletes the lease, whoever holds it.
    PlainDelete,
    /// An extension takes the lease, whoever holds it.
    ExtendCreates,
    /// A holder asks no clock.
    NoDeadline,
    /// A holder asks a clock that steps.
    WallClock,
    /// The fences of a name are kept for ever.
    KeepsFences,
}

impl Variant {
    pub(crate) const ALL: [Self; 6] =
        [Self::Right, Self::PlainDelete, Self::ExtendCreates, Self::NoDeadline, Self::WallClock, Self::KeepsFences];

    pub(crate) fn read(name: &str) -> Self {
        Self::ALL.into_iter().find(|variant| format!("{variant:?}") == name).expect("a variant")
    }
}

/// A store that is right but for one thing.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    redis: Redis,
    /// Where it does what `Redis` does not.
    url: String,
    variant: Variant,
    /// By how many seconds the wall clock has stepped.
    steps: PathBuf,
    keeper: Keeper,
}

impl Broken {
    pub(crate) fn new(url: &str, variant: Variant, steps: PathBuf) -> Self {
        let redis = Redis::open(url).expect("an address");
        Self { redis, url: url.to_owned(), variant, steps, keeper: Keeper::new() }
    }

    async fn keep_fences(&self) -> redis::RedisResult<()> {
        let mut connection = redis::Client::open(self.url.as_str())?.get_multiplexed_async_connection().await?;
        let script = "for _, key in ipairs(redis.call('KEYS', '*:f:*')) do redis.call('PERSIST', key) end";
        redis::cmd("EVAL").arg(script).arg(0).query_async(&mut connection).await
    }

    /// Gives a name to nobody, or to one who asks, whoever holds it.
    fn overrule(&self, id: &LeaseId, then: Option<Duration>) -> Reply<bool> {
        let (this, id) = (self.clone(), id.clone());
        Reply::pending(async move {
            let name = id.names()[0];
            let there = this.redis.holders(&name, id.share()).await?.pop().filter(|there| there.token != id.token());
            let other = there.map(|there| LeaseId::new([name], id.share(), there.token));
            let Some(ttl) = then else { return this.redis.release(&other.unwrap_or(id)).await };
            let terms = Terms::new(ttl, "broken");
            let taken = match other {
                Some(other) => this.redis.hand_over(&other, &id, &terms).await?,
                None => this.redis.acquire(&id, &terms).await?,
            };
            Ok(matches!(taken, Acquired::Held { .. }))
        })
    }
}

impl LeaseStore for Broken {
    fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        let (this, taking) = (self.clone(), self.redis.acquire(id, terms));
        Reply::pending(async move {
            let taken = taking.await?;
            if this.variant == Variant::KeepsFences && matches!(taken, Acquired::Held { .. }) {
                // Whoever is cut off at that moment does it the next time.
                let _ = this.keep_fences().await;
            }
            Ok(taken)
        })
    }

    fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
        let [(id, ttl)] = leases else { return self.redis.extend(leases) };
        if self.variant != Variant::ExtendCreates {
            return self.redis.extend(leases);
        }
        let taken = self.overrule(id, Some(*ttl));
        Reply::pending(async move { Ok(vec![taken.await?]) })
    }

    fn release(&self, id: &LeaseId) -> Reply<bool> {
        if self.variant == Variant::PlainDelete { self.overrule(id, None) } else { self.redis.release(id) }
    }

    fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>> {
        self.redis.holders(name, share)
    }

    fn force(&self, name: &Key, share: Share) -> Reply<u64> {
        self.redis.force(name, share)
    }

    fn watch(&self, name: &Key) -> Reply<Watch> {
        LeaseStore::watch(&self.redis, name)
    }

    fn supports(&self, _: Share) -> Result<(), Error> {
        Ok(())
    }

    fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    fn clock(&self) -> Clock {
        match self.variant {
            Variant::NoDeadline => Clock::by(|| Duration::from_secs(1)),
            Variant::WallClock => {
                let steps = Arc::new(self.steps.clone());
                Clock::by(move || stepped(&steps))
            }
            _ => Clock::default(),
        }
    }
}

/// Returns a time that somebody steps, as an operator or NTP does.
fn stepped(steps: &PathBuf) -> Duration {
    let step = fs::read_to_string(steps).ok().and_then(|step| step.trim().parse::<u64>().ok()).unwrap_or_default();
    Duration::from_nanos(super::worker::monotonic()) + Duration::from_secs(1_000_000 - step)
}
