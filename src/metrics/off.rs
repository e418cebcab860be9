//! Records nothing, at no cost: what stands in the place of `on.rs` without the feature.
#![allow(clippy::unused_self)]

use std::time::Duration;

use super::{CallResult, Tally};

#[derive(Debug)]
pub(crate) struct RuleMeter;

impl RuleMeter {
    pub(crate) fn new(_rule: &str) -> Self {
        Self
    }

    pub(crate) fn count(&self, _tally: Tally) {}
}

#[derive(Debug)]
pub(crate) struct StoreMeter;

impl StoreMeter {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn deny_cache_hit(&self) {}

    pub(crate) fn called(&self, _result: CallResult, _long: Duration) {}

    pub(crate) fn breakers_opened(&self, _count: u32) {}

    pub(crate) fn breakers_closed(&self, _count: u32) {}
}

#[derive(Debug)]
pub(crate) struct KeysMeter;

impl KeysMeter {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn decided(&self, _count: impl FnOnce() -> Option<usize>) {}
}

#[derive(Debug)]
pub(crate) struct LeaseMeter;

impl LeaseMeter {
    pub(crate) fn new(_kind: &'static str) -> Self {
        Self
    }

    pub(crate) fn lost(self) {}
}

#[derive(Debug)]
pub(crate) struct WaitMeter;

impl WaitMeter {
    pub(crate) fn new(_kind: &'static str) -> Self {
        Self
    }
}

pub(crate) fn lease_waited(_kind: &'static str, _result: &'static str, _long: Duration) {}

pub(crate) fn concurrency(_rule: &str, _outcome: &'static str) {}

pub(crate) fn idempotency(_outcome: &'static str) {}

#[cfg(feature = "config")]
pub(crate) fn reload(_is_good: bool) {}
