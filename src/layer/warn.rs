//! What a layer sees to be set up wrongly, told once.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Once, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::key::Key;

/// A line in the log, once per process, that leads to its place in `docs/warnings.md`.
#[derive(Debug)]
pub(super) struct Warning {
    pub(super) anchor: &'static str,
    once: Once,
}

impl Warning {
    const fn new(anchor: &'static str) -> Self {
        Self { anchor, once: Once::new() }
    }

    /// Tells it, unless it has been told.
    #[cold]
    pub(super) fn tell(&self, what: impl fmt::Display) {
        self.once.call_once(|| tracing::warn!("{what}; see {DOCS}#{}", self.anchor));
    }

    /// Tells it as an error, unless it has been told.
    #[cold]
    pub(super) fn tell_error(&self, what: impl fmt::Display) {
        self.once.call_once(|| tracing::error!("{what}; see {DOCS}#{}", self.anchor));
    }

    pub(super) fn is_told(&self) -> bool {
        self.once.is_completed()
    }
}

pub(super) static PEER_UNKNOWN: Warning = Warning::new("peer-unknown");
pub(super) static FORWARDED_NOT_TRUSTED: Warning = Warning::new("forwarded-not-trusted");
pub(super) static TRUSTS_EVERYBODY: Warning = Warning::new("trusts-everybody");
pub(super) static ONE_KEY: Warning = Warning::new("one-key");
pub(super) static NO_IDENTITY: Warning = Warning::new("no-identity");
pub(super) static CORS_INSIDE: Warning = Warning::new("cors-inside");
pub(super) static NAME_TWICE: Warning = Warning::new("name-twice");
pub(super) static UPGRADE_WITHOUT_PERMIT: Warning = Warning::new("upgrade-without-permit");

const DOCS: &str = "https://docs.rs/tollgate/latest/tollgate/guide/warnings/";

/// Chooses what to look at where looking costs something: the first requests of each thread, then one in many.
pub(super) fn is_sampled() -> bool {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }
    SEEN.with(|seen| {
        let count = seen.get();
        seen.set(count.wrapping_add(1));
        count < ALL_OF_THE_FIRST || count.is_multiple_of(ONE_IN)
    })
}

const ALL_OF_THE_FIRST: u32 = 1_024;
const ONE_IN: u32 = 64;

/// Notices that a rule which should tell clients apart sees but one.
#[derive(Debug, Default)]
pub(super) struct Sameness {
    first: OnceLock<Key>,
    count: AtomicU32,
}

impl Sameness {
    /// Takes note of a request's key.
    pub(super) fn note(&self, policy: &str, key: &Key) {
        let count = self.count.load(Ordering::Relaxed);
        if count >= ONE_KEY_AFTER {
            return;
        }
        if self.first.get_or_init(|| *key) != key {
            return self.count.store(ONE_KEY_AFTER, Ordering::Relaxed);
        }
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == ONE_KEY_AFTER {
            ONE_KEY.tell(format_args!(
                "the first {ONE_KEY_AFTER} requests under rule `{policy}` all had one key, so they share one budget; is \
                 there a proxy in front whose header is not read, or is the header that it counts by never sent? Write \
                 `by(global())` if that is meant"
            ));
        }
    }
}

/// More than a developer alone sends in a short while, and soon reached behind a proxy.
const ONE_KEY_AFTER: u32 = 1_000;

/// Notices that what a rule counts by is never there.
#[derive(Debug, Default)]
pub(super) struct Absence {
    /// How often it was missed; all that can be counted once it has been there.
    missed: AtomicU32,
}

impl Absence {
    pub(super) fn found(&self) {
        if self.missed.load(Ordering::Relaxed) < NO_IDENTITY_AFTER {
            self.missed.store(u32::MAX, Ordering::Relaxed);
        }
    }

    pub(super) fn missed(&self, what: &str) {
        if self.missed.load(Ordering::Relaxed) >= NO_IDENTITY_AFTER {
            return;
        }
        if self.missed.fetch_add(1, Ordering::Relaxed) + 1 == NO_IDENTITY_AFTER {
            NO_IDENTITY.tell(format_args!(
                "a rule counts by the extension `{what}`, and none of the first {NO_IDENTITY_AFTER} requests had it; \
                 authentication has to run outside of the limit, so add its layer after this one (a layer added later \
                 runs earlier)"
            ));
        }
    }
}

const NO_IDENTITY_AFTER: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_warning_has_its_place_in_the_catalogue() {
        let catalogue = include_str!("../../docs/warnings.md");
        for warning in [
            &PEER_UNKNOWN,
            &FORWARDED_NOT_TRUSTED,
            &TRUSTS_EVERYBODY,
            &ONE_KEY,
            &NO_IDENTITY,
            &CORS_INSIDE,
            &NAME_TWICE,
            &UPGRADE_WITHOUT_PERMIT,
        ] {
            assert!(catalogue.contains(&format!("\n## {}\n", warning.anchor)), "{}", warning.anchor);
        }
        // Told by what writes keys, which knows nothing of layers.
        assert!(catalogue.contains("\n## unkeyed-secrets\n"));
    }
}
