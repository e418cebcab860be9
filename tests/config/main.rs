//! Rules from a file.

#[path = "../support/mod.rs"]
mod support;

mod formats;
mod live;
mod wrong;
