use std::{
    env, fmt, fs,
    path::{self, Path, PathBuf},
    sync::Arc,
};

use super::{
    Format,
    draft::{Draft, StoreDraft},
    keys::{Named, is_name},
    schema,
    source::{Faults, Source},
};
use crate::{
    error::Error,
    layer::{KeyExtractor, Rule, global},
    limiter::Limiter,
    memory::Memory,
};

/// Rules and all that belongs to them, read from a file; see the [module](crate::config).
///
/// What is in it has been checked: only names that the file leaves to the service are looked up later.
///
/// ```
/// use tollgate::{Config, RateLimitLayer, config::Format};
///
/// let config = Config::parse("rule: [{ name: per-ip, quota: 100/min }]", Format::Yaml)?;
/// let layer = RateLimitLayer::from_config(&config)?;
/// # let _ = layer;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    /// Where it was loaded from, if it was.
    pub(super) path: Option<PathBuf>,
    pub(super) source: Arc<Source>,
    pub(super) draft: Arc<Draft>,
    pub(super) named: Named,
}

impl Config {
    /// Reads a file: TOML, JSON or YAML, by the extension of its name.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or something in it is wrong. All that is wrong is told, one a line, as
    /// `FILE:LINE:COLUMN: what`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (source, format) = read(path)?;
        let mut faults = Faults::default();
        let config = Self::draft(source, format, &mut faults);
        config.source.clone().verdict(faults)?;
        // So that it is found again wherever the service has gone.
        Ok(Self { path: Some(path::absolute(path).unwrap_or_else(|_| path.to_owned())), ..config })
    }

    /// Reads a text; messages call it `config`.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn parse(text: impl Into<String>, format: Format) -> Result<Self, Error> {
        let mut faults = Faults::default();
        let config = Self::draft(Source { name: "config".to_owned(), text: text.into() }, format, &mut faults);
        config.source.clone().verdict(faults).map(|()| config)
    }

    /// Tells all that is wrong with a file, for a service that names these keys by [`with_key`](Self::with_key).
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), and where the file names a key that is none of these.
    pub fn check<N: AsRef<str>>(path: impl AsRef<Path>, keys: impl IntoIterator<Item = N>) -> Result<(), Error> {
        let (source, format) = read(path.as_ref())?;
        let mut faults = Faults::default();
        let mut config = Self::draft(source, format, &mut faults);
        for key in keys {
            config = config.with_key(key.as_ref(), global());
        }
        let _ = config.rules(&mut faults);
        config.source.verdict(faults)
    }

    /// Names a key that text cannot express, for rules to use as `key = "name"`.
    ///
    /// ```
    /// use tollgate::{RateLimitLayer, config::{Config, Format}, layer::extension};
    ///
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let text = r#"
    ///     [[rule]]
    ///     name = "per-user"
    ///     key = "user"
    ///     quota = "60/min"
    /// "#;
    /// let config = Config::parse(text, Format::Toml)?.with_key("user", extension::<User>(|user| user.id.to_string()));
    /// let layer = RateLimitLayer::from_config(&config)?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the name is not of `A-Z a-z 0-9 . _ -`, or one that files have already, such as `method`.
    pub fn with_key(mut self, name: impl Into<String>, key: impl KeyExtractor) -> Self {
        let name = name.into();
        let taken = schema::KEYS.iter().chain(schema::NAMED_KEYS).any(|known| *known == name);
        assert!(is_name(&name) && !taken, "`{}` cannot name a key", name.escape_debug());
        self.named.insert(name, Arc::new(key));
        self
    }

    /// Returns the JSON Schema of such files, for editors and checks; `tollgate.schema.json` is the same.
    pub fn json_schema() -> String {
        schema::json_schema()
    }

    fn draft(source: Source, format: Format, faults: &mut Faults) -> Self {
        let mut value = format.read(&source, faults);
        let mut more = Faults::default();
        // What could not be read at all would only be told again as missing.
        let is_read = faults.is_empty();
        value.fill(&|name| env::var(name).ok(), faults);
        let draft = Draft::read(&value, &mut more);
        if is_read {
            faults.add_elsewhere(more);
        }
        Self { path: None, source: Arc::new(source), draft: Arc::new(draft), named: Named::new() }
    }

    /// Makes the limiter that the file describes.
    pub(super) fn limiter(&self) -> Result<Limiter, Error> {
        let store = &self.draft.store;
        let limiter = if store.is_memory() {
            let memory = Memory::new().when_full(store.when_full);
            Limiter::new(match store.max_keys {
                Some(keys) => memory.max_keys(keys),
                None => memory,
            })
        } else {
            self.shared_limiter()?
        };
        self.tune(&limiter);
        Ok(match &store.key_secret {
            Some((secret, _)) => limiter.key_secret(secret),
            None => limiter,
        })
    }

    /// Gives the limiter that the file describes what can change while it is used.
    pub(super) fn tune(&self, limiter: &Limiter) {
        let store = &self.draft.store;
        let deadline = store.deadline.unwrap_or(Limiter::DEFAULT_DEADLINE);
        let deny_max_age = store.deny_max_age.unwrap_or(Limiter::DEFAULT_DENY_MAX_AGE);
        limiter.tune(deadline, deny_max_age, store.replicas);
    }

    /// Says what in a changed file cannot change while the service runs.
    pub(super) fn check_fixed(&self, first: &Self) -> Result<(), Error> {
        let (store, before) = (&self.draft.store, &first.draft.store);
        let same = |one: &Option<(String, usize)>, other: &Option<(String, usize)>, default: &str| {
            let text =
                |placed: &Option<(String, usize)>| placed.as_ref().map_or(default.to_owned(), |(text, _)| text.clone());
            text(one) == text(other)
        };
        let tls = |store: &StoreDraft| store.tls.as_ref().map(|tls| tls.paths.clone());
        let mut faults = Faults::default();
        for (name, placed, is_same) in [
            ("url", &store.url, same(&store.url, &before.url, "memory")),
            ("prefix", &store.prefix, same(&store.prefix, &before.prefix, "tollgate")),
            ("key_secret", &store.key_secret, same(&store.key_secret, &before.key_secret, "")),
            ("tls", &None, tls(store) == tls(before)),
            ("max_keys", &None, store.max_keys == before.max_keys),
            ("when_full", &None, store.when_full == before.when_full),
        ] {
            if !is_same {
                let at = placed.as_ref().map_or(store.at, |(_, at)| *at);
                faults.add(
                    at,
                    format!("`{name}` cannot change while the service runs; put it back, or start the service anew"),
                );
            }
        }
        self.source.verdict(faults)
    }

    #[cfg(feature = "redis")]
    fn shared_limiter(&self) -> Result<Limiter, Error> {
        let store = &self.draft.store;
        let url = store.url.as_ref().map_or("", |(url, _)| url);
        let redis = crate::redis::Redis::open(url)?;
        let redis = match &store.tls {
            Some(tls) => tls.apply(redis)?,
            None => redis,
        };
        Ok(Limiter::new(match &store.prefix {
            Some((prefix, _)) => redis.prefix(prefix)?,
            None => redis,
        }))
    }

    #[cfg(not(feature = "redis"))]
    fn shared_limiter(&self) -> Result<Limiter, Error> {
        Err(Error::invalid("`url` needs the feature `redis`"))
    }

    /// Makes the rules, with the keys that the service has named.
    pub(super) fn rules(&self, faults: &mut Faults) -> Vec<Rule> {
        let mut rules = Vec::new();
        for draft in &self.draft.rules {
            let Some(key) = draft.keys.resolve(&self.named, faults) else { continue };
            rules.push(draft.rule.clone().by(key));
        }
        rules
    }
}

fn read(path: &Path) -> Result<(Source, Format), Error> {
    let name = path.display().to_string();
    let format = Format::of(path).ok_or_else(|| {
        Error::invalid(format!(
            "{name}: what language it is in is told by its name: end it in .toml, .json, .yaml or .yml"
        ))
    })?;
    let bytes = fs::read(path)
        .map_err(|error| Error::invalid(format!("{name}: cannot be read: {error}")).with_source(error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        let mut faults = Faults::default();
        faults.add(at, "no text in UTF-8 from here on; save the file as UTF-8");
        Source { name: name.clone(), text }.error(faults)
    })?;
    Ok((Source { name, text }, format))
}

impl fmt::Debug for Config {
    /// Tells nothing of addresses and secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, rules) = (&self.source.name, self.draft.rules.len());
        f.debug_struct("Config").field("name", name).field("rules", &rules).finish_non_exhaustive()
    }
}
