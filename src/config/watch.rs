use std::{
    collections::BTreeSet,
    fmt, fs, mem,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, SystemTime},
};

use notify::{
    Event, EventKind, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};

use super::Config;
use crate::{error::Error, layer::RateLimitLayer, metrics};

impl RateLimitLayer {
    /// Follows the file of a configuration until the [`Watch`] is dropped.
    ///
    /// A changed file is read after 100 ms of quiet, also when it was replaced, or is reached through a symbolic link
    /// that now leads elsewhere. If all is well in it, it takes effect at once in all clones of this layer and the
    /// services they made; requests under way are decided by what was there when they came. Counts are kept, as
    /// [the manual](crate::guide::configuration) says; rules and options set in the code stay. If something is wrong in it, nothing
    /// changes, and the log says what, once.
    ///
    /// Watch the layer that is used: one made of it by a later `rule` or option is another one.
    ///
    /// ```no_run
    /// use tollgate::{Config, RateLimitLayer};
    ///
    /// let config = Config::load("tollgate.toml")?;
    /// let layer = RateLimitLayer::from_config(&config)?;
    /// let _watch = layer.watch(&config); // keep it for as long as the service runs
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn watch(&self, config: &Config) -> Watch {
        let (signals, heard) = mpsc::channel();
        let counts = Arc::new(Counts::default());
        let Some(path) = config.path.clone() else {
            tracing::warn!("a configuration that was not loaded from a file cannot be followed");
            return Watch { signals, counts };
        };
        let following = Following {
            layer: self.clone(),
            first: config.clone(),
            seen: Some(config.source.text.clone()),
            stamp: stamp(&path),
            path,
            counts: Arc::clone(&counts),
        };
        let touched = signals.clone();
        let thread = thread::Builder::new().name("tollgate-config".to_owned());
        if let Err(error) = thread.spawn(move || following.run(&heard, touched)) {
            tracing::error!(%error, "no thread can be started; the configuration is not followed");
        }
        Watch { signals, counts }
    }
}

/// Follows a configuration file until it is dropped; made by [`RateLimitLayer::watch`].
#[must_use = "the file is followed until this is dropped"]
pub struct Watch {
    signals: Sender<Signal>,
    counts: Arc<Counts>,
}

impl Watch {
    /// Returns how often a changed file has taken effect.
    pub fn reloads(&self) -> u64 {
        self.counts.reloads.load(Ordering::Acquire)
    }

    /// Returns how often a changed file was refused since something was wrong in it.
    pub fn refusals(&self) -> u64 {
        self.counts.refusals.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.counts.dropped.store(true, Ordering::Release);
        // Who is gone needs no word.
        let _ = self.signals.send(Signal::Stop);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("reloads", &self.reloads()).field("refusals", &self.refusals()).finish()
    }
}

#[derive(Debug, Default)]
struct Counts {
    reloads: AtomicU64,
    refusals: AtomicU64,
    dropped: AtomicBool,
}

enum Signal {
    Touched,
    Stop,
}

/// What one thread does for one file.
struct Following {
    layer: RateLimitLayer,
    /// The configuration that the service began with, of which some things cannot change.
    first: Config,
    path: PathBuf,
    /// The text that was looked at last, if there was any.
    seen: Option<String>,
    stamp: Option<Stamp>,
    counts: Arc<Counts>,
}

impl Following {
    fn run(mut self, heard: &Receiver<Signal>, touched: Sender<Signal>) {
        let tell = move |event: notify::Result<Event>| {
            // Our own reading makes events too.
            let kind = event.map(|event| event.kind);
            if matches!(kind, Ok(EventKind::Access(access)) if access != AccessKind::Close(AccessMode::Write)) {
                return;
            }
            let _ = touched.send(Signal::Touched);
        };
        let mut watcher = notify::recommended_watcher(tell).inspect_err(not_told).ok();
        let (mut watched, mut began) = (BTreeSet::new(), true);
        loop {
            let folders = folders(&self.path);
            if let Some(watcher) = &mut watcher {
                for folder in watched.difference(&folders) {
                    // It may be gone.
                    let _ = watcher.unwatch(folder);
                }
                for folder in folders.difference(&watched) {
                    let _ = watcher.watch(folder, RecursiveMode::NonRecursive).inspect_err(not_told);
                }
            }
            watched = folders;
            // At first it is read in any case: it may have changed before it was watched.
            let wait = if mem::take(&mut began) { Duration::ZERO } else { LOOK_EVERY };
            match heard.recv_timeout(wait) {
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if !wait.is_zero() && stamp(&self.path) == self.stamp => continue,
                Ok(Signal::Touched) | Err(RecvTimeoutError::Timeout) => {}
            }
            if !self.is_quiet(heard) {
                return;
            }
            self.look();
        }
    }

    /// Waits until nothing has happened for a while; false if the watch has ended.
    fn is_quiet(&self, heard: &Receiver<Signal>) -> bool {
        let (mut before, mut signals) = (stamp(&self.path), 0);
        loop {
            match heard.recv_timeout(QUIET) {
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                // In a folder where others write all the time the file itself has to tell.
                Ok(Signal::Touched) if signals < MOST_SIGNALS => signals += 1,
                Ok(Signal::Touched) | Err(RecvTimeoutError::Timeout) => {
                    let now = stamp(&self.path);
                    if now == before {
                        return true;
                    }
                    before = now;
                }
            }
        }
    }

    fn look(&mut self) {
        self.stamp = stamp(&self.path);
        let text = fs::read_to_string(&self.path).ok();
        if text == self.seen || self.counts.dropped.load(Ordering::Acquire) {
            return;
        }
        self.seen = text;
        let file = self.path.display();
        let reloaded = self.reload();
        metrics::reload(reloaded.is_ok());
        match reloaded {
            Ok(()) => {
                tracing::info!(name: "reloaded", target: "tollgate::config", %file, "the rate limit configuration has changed");
                self.counts.reloads.fetch_add(1, Ordering::Release);
            }
            Err(error) => {
                tracing::error!(name: "reload_refused", target: "tollgate::config", %file, "the changed rate limit configuration is refused, and nothing changes:\n{error}");
                self.counts.refusals.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn reload(&self) -> Result<(), Error> {
        let config = Config { named: self.first.named.clone(), ..Config::load(&self.path)? };
        config.check_fixed(&self.first)?;
        let owns_limiter = self.layer.owns_limiter();
        config.apply(&self.layer, owns_limiter)?;
        if owns_limiter {
            config.tune(self.layer.limiter());
        }
        Ok(())
    }
}

fn not_told(error: &notify::Error) {
    tracing::warn!(%error, "no events of the configuration file can be had; it is looked at every second");
}

/// Returns the folders in which something happens when the file changes, or a link on the way to it does.
fn folders(path: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        folders.extend(path.parent().map(Path::to_owned));
        let link = path.ancestors().find_map(|part| Some((part.to_owned(), fs::read_link(part).ok()?)));
        let Some((link, target)) = link else { break };
        let Some(folder) = link.parent() else { break };
        folders.insert(folder.to_owned());
        let Ok(rest) = path.strip_prefix(&link) else { break };
        let target = folder.join(target);
        path = if rest.as_os_str().is_empty() { target } else { target.join(rest) };
    }
    folders
}

/// What tells a file from another one, or from itself before it was written to.
type Stamp = (PathBuf, Option<SystemTime>, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let there = fs::canonicalize(path).ok()?;
    let metadata = fs::metadata(&there).ok()?;
    Some((there, metadata.modified().ok(), metadata.len()))
}

/// How long nothing must happen before a file is read: those who write it may not be done.
const QUIET: Duration = Duration::from_millis(100);

/// How often the file is looked at where no events come: file systems of networks have none.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const MOST_SIGNALS: usize = 10_000;
const MOST_LINKS: usize = 16;
