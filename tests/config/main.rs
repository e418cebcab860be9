//! Rules from a file.

#[path = "../support/mod.rs"]
mod support;

mod builders;
mod formats;
mod live;
mod overrides;
mod sample;
mod wrong;
