#![doc = include_str!("../../docs/admin.md")]

mod api;
mod guard;
mod page;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
    routing::{get, post},
};
use tokio::time::Instant;

use self::guard::Guard;
use crate::{
    error::Error,
    limiter::{Limiter, View},
};

/// Makes a router for operators of a limiter; see the [module](self) for what it serves and who may ask.
///
/// From then on this process counts for it what the limiter decides. Serve it with
/// `into_make_service_with_connect_info`, so that peers who try tokens are told apart.
///
/// # Errors
///
/// If the token is shorter than 16 bytes or longer than 1,024, or is not printable ASCII without spaces: it has to fit into
/// a header. `openssl rand -hex 32` makes one. Or if the system has no random numbers.
pub fn router(limiter: &Limiter, token: impl AsRef<[u8]>) -> Result<Router, Error> {
    let guard = Arc::new(Guard::new(token.as_ref())?);
    let desk = Arc::new(Desk { view: limiter.view(), since: Instant::now() });
    let api = Router::new()
        .route("/api/state", get(api::state))
        .route("/api/explain", post(api::explain))
        .route("/api/reset", post(api::reset))
        .route("/api/block", post(api::block))
        .route("/api/unblock", post(api::unblock))
        .with_state(desk)
        .layer(DefaultBodyLimit::max(MOST_BODY))
        .layer(from_fn_with_state(guard, guard::check));
    Ok(Router::new()
        .route("/", get(page::shell))
        .route("/app.css", get(page::css))
        .route("/app.js", get(page::js))
        .merge(api)
        .layer(from_fn(page::add_headers)))
}

/// What handlers look at.
#[derive(Debug)]
struct Desk {
    view: View,
    /// When counting began, at the latest.
    since: Instant,
}

/// A key, a rule and a time.
const MOST_BODY: usize = 16 << 10;
