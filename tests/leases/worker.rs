//! A process that takes a lock again and again, works under it, and says what it sees.

use std::{
    cell::Cell,
    env,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;
use tollgate::{
    Redis,
    lease::{Lease, LeaseStore, Lock, Redlock},
};

use super::broken::{Broken, Variant};

/// What a worker is told, in one variable.
pub(crate) const ASKED: &str = "TOLLGATE_LEASE_WORKER";

pub(crate) const TTL: Duration = Duration::from_millis(400);

/// How long a server of several does not count after its start.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(1);

pub(crate) fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("a time since the start")
}

fn tell(event: &str, fence: u64, at: u64, more: u64) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "@{event} {fence} {at} {more}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

pub(crate) fn run_if_asked() {
    let Ok(asked) = env::var(ASKED) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work(&asked));
}

/// Reads `lock-url[,url...] register-url variant steps-file number`, and works until it is ended.
async fn work(asked: &str) {
    let words: Vec<&str> = asked.split(' ').collect();
    let [url, register, variant, steps, number] = words.as_slice() else { panic!("{asked}") };
    let store = store(url, Variant::read(variant), steps.as_ref()).await;
    let register = redis::Client::open(*register).expect("an address");
    let mut register = register.get_multiplexed_async_connection().await.expect("the register");
    let bare = Bare::start();
    let lock = Lock::new(&store, "the one").ttl(TTL).wait_forever();
    let seed: u64 = number.parse().expect("a number");
    for round in 0_u64.. {
        let (fence, deadline) = (Cell::new(0), Cell::new(0));
        // Some are short, and some are renewed several times.
        let steps = [4, 20, 160, 10, 200][usize::try_from((round + seed) % 5).expect("few")];
        let body = async |lease: Lease| {
            let read = || deadline.set(monotonic() + ns(lease.remaining()));
            fence.set(lease.fence().map_or(0, u64::from));
            let at = monotonic();
            read();
            tell("acquired", fence.get(), at, deadline.get());
            for _ in 0..steps {
                let at = monotonic();
                let left = lease.remaining();
                read();
                tell("step", fence.get(), at, if left.is_zero() { 1 } else { deadline.get() });
                sleep(Duration::from_millis(5)).await;
            }
            // The resource takes what comes under the newest fence it has seen.
            let at = monotonic();
            let script = "local last = tonumber(redis.call('LINDEX', KEYS[1], -1) or 0) \
                          if tonumber(ARGV[1]) < last then return 0 end redis.call('RPUSH', KEYS[1], ARGV[1]) return 1";
            let mut write = redis::cmd("EVAL");
            write.arg(script).arg(1).arg("register").arg(fence.get());
            let accepted: u64 = write.query_async(&mut register).await.expect("the register");
            tell("write", fence.get(), at, accepted);
            tell("releases", fence.get(), monotonic(), 0);
        };
        match lock.run(body).await {
            Ok(()) => tell("released", fence.get(), monotonic(), 0),
            Err(error) if error.is_lost() => {
                // What a bare timer is late at about the same time.
                tell("lost", fence.get(), monotonic(), deadline.get() + bare.late());
            }
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
        if (round + seed).is_multiple_of(5) {
            sleep(Duration::from_millis(3)).await;
        }
    }
}

/// Opens one server, or as many as there are addresses; a cluster and sentinels have several in one.
async fn store(url: &str, variant: Variant, steps: &Path) -> Arc<dyn LeaseStore> {
    let open = |url: &str| Redis::open(url).expect("an address");
    if url.matches("://").count() > 1 {
        let redlock = Redlock::over(url.split(',').map(open).collect::<Vec<_>>()).max_lease(MAX_LEASE);
        return Arc::new(redlock.build().await.expect("an odd number"));
    }
    match variant {
        Variant::Right => Arc::new(open(url)),
        variant => Arc::new(Broken::new(url, variant, steps.to_owned())),
    }
}

/// A timer that fires again and again, by which it shows how late timers are.
#[derive(Clone, Default)]
struct Bare(Arc<[AtomicU64; 2]>);

impl Bare {
    fn start() -> Self {
        let bare = Self::default();
        tokio::spawn(bare.clone().watch());
        bare
    }

    async fn watch(self) {
        let [due, latest] = &*self.0;
        let mut lately = [0_u64; 20];
        for i in 0.. {
            due.store(monotonic() + ns(EVERY), Ordering::Relaxed);
            sleep(EVERY).await;
            lately[i % 20] = monotonic().saturating_sub(due.load(Ordering::Relaxed));
            latest.store(lately.iter().copied().max().unwrap_or_default(), Ordering::Relaxed);
        }
    }

    /// Returns how late it was at most of late, and is at present, in nanoseconds.
    fn late(&self) -> u64 {
        let [due, latest] = &*self.0;
        latest.load(Ordering::Relaxed).max(monotonic().saturating_sub(due.load(Ordering::Relaxed)))
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("short")
}

const EVERY: Duration = Duration::from_millis(5);
