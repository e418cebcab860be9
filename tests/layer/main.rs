//! What is promised of the tower layer, through real axum and tonic servers and by tower's own contract.

#[path = "../support/mod.rs"]
mod support;

mod axum_server;
mod budget;
mod charge;
mod client_ip;
mod contract;
mod dialects;
mod keys;
mod messages;
mod proxy_addr;
mod quota_by;
mod refusals;
mod tonic_server;
