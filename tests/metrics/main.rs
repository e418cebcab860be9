//! Metrics: a scripted run comes to known numbers, and what is documented is what there is.

mod documented;
mod events;
mod recorded;
mod script;
#[path = "../support/mod.rs"]
mod support;
