//! Rules from a file: TOML, JSON or YAML, one schema.
//!
//! ```
//! use tollgate::{RateLimitLayer, config::{Config, Format}};
//!
//! let text = r#"
//!     [store]
//!     deadline = "50ms"
//!
//!     [[rule]]
//!     name  = "per-ip"
//!     quota = "100/min"
//!     match = { path = "/api/{*rest}", not = { path = "/api/health" } }
//! "#;
//! let layer = RateLimitLayer::from_config(&Config::parse(text, Format::Toml)?)?;
//! # let _ = layer;
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! [The manual](crate::guide::configuration) has every key, and tells what happens when the file changes while the service
//! runs. What is wrong in a file is told with its line and column, and what to write instead; all of it at once:
//!
//! ```
//! use tollgate::config::{Config, Format};
//!
//! let error = Config::parse("rule: [{ name: per-ip, qota: 100/min }]", Format::Yaml).expect_err("misspelt");
//! let told = error.to_string();
//! assert!(told.contains("config:1:24: the rule has no `qota`"), "{told}");
//! assert!(told.contains("did you mean `quota`?"), "{told}");
//! ```

#[cfg(test)]
mod alike;
mod build;
mod draft;
mod file;
mod format;
mod keys;
mod read;
mod schema;
mod source;
mod tls;
mod value;
mod watch;

pub use self::{file::Config, format::Format, watch::Watch};
