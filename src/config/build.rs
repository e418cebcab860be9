//! From a configuration to a layer.

use super::{Config, source::Faults};
use crate::{error::Error, layer::RateLimitLayer, limiter::Limiter};

impl RateLimitLayer {
    /// Makes a layer of what a file says, on a limiter of its own.
    ///
    /// # Errors
    ///
    /// If a rule names a key that the service has not [named](Config::with_key), with the line and column.
    pub fn from_config(config: &Config) -> Result<Self, Error> {
        let layer = Self::new(config.limiter()?);
        config.apply(&layer, true)?;
        Ok(layer)
    }

    /// Makes a layer of what a file says, on a limiter that others share: of the file's `[store]`, only `on_error`
    /// counts then.
    ///
    /// # Errors
    ///
    /// As [`from_config`](Self::from_config), and if the limiter has a rule of a name that the file has too.
    pub fn from_config_with(limiter: Limiter, config: &Config) -> Result<Self, Error> {
        let layer = Self::new(limiter);
        config.apply(&layer, false)?;
        Ok(layer)
    }
}

impl Config {
    /// Gives a layer what the file says, in the place of what one said before.
    ///
    /// `owns_limiter` says whether the limiter was made of it too.
    pub(super) fn apply(&self, layer: &RateLimitLayer, owns_limiter: bool) -> Result<(), Error> {
        let mut faults = Faults::default();
        let rules = self.rules(&mut faults);
        if self.draft.options.partitions && !layer.limiter().secrets().is_keyed() {
            faults.add(self.draft.partitions_at, "partition keys need a secret: write `key_secret` in `store`");
        }
        self.source.verdict(faults)?;
        let mut options = self.draft.options.clone();
        options.owns_limiter = owns_limiter;
        layer.take_over(rules, options)
    }
}
