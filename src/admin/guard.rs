use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::api::problem;
use crate::{
    error::Error,
    key::{Key, Secrets},
    limit::{Demand, Policy, Quota},
    limiter::Limiter,
};

/// Lets nobody in without the token.
#[derive(Debug)]
pub(super) struct Guard {
    /// A key that nobody knows: two hashes by it tell nothing of what they were made of, so comparing them may take
    /// any time.
    secrets: Secrets,
    token: [u8; 32],
    wrong: Limiter,
}

/// Who asks, for the audit: an address, or `unknown`.
#[derive(Clone, Debug)]
pub(super) struct Peer(pub(super) String);

impl Guard {
    pub(super) fn new(token: &[u8]) -> Result<Self, Error> {
        if !(SHORTEST_TOKEN..=LONGEST_TOKEN).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(Error::invalid(format!(
                "an admin token of {} bytes: must be {SHORTEST_TOKEN} to {LONGEST_TOKEN} of printable ASCII without spaces; \
                 `openssl rand -hex 32` makes one",
                token.len()
            )));
        }
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|error| Error::store(format!("no random numbers: {error}")))?;
        let secrets = Secrets::keyed(&key);
        let token = secrets.hash(token);
        Ok(Self { secrets, token, wrong: Limiter::private() })
    }

    /// Says why a request is not served, if it is not.
    async fn refusal(&self, given: Option<&[u8]>, peer: Option<IpAddr>) -> Option<Response> {
        // No token is not a guess.
        let Some(given) = given else {
            return Some(unauthorized("a token is needed: send `Authorization: Bearer TOKEN`"));
        };
        // One unit is taken before anything is compared, and given back for the right token: so of any number of guesses
        // at once ten are looked at, and who has used them up learns nothing from the next.
        let (decision, charge) = self.wrong.decide(&[Demand::new(&WRONG_TOKENS, of_peer(peer))]).await;
        if !decision.is_allowed() {
            let mut response = problem(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens from this address");
            let wait = decision.retry_after().unwrap_or_default();
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
            return Some(response);
        }
        let hash = self.secrets.hash(given);
        let differs = hash.iter().zip(&self.token).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 {
            return Some(unauthorized("the token is wrong"));
        }
        // Memory has done it by then, and cannot fail.
        let _ = charge.settle(0).await;
        None
    }
}

/// Serves a request if it has the token.
pub(super) async fn check(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip().to_canonical());
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    match guard.refusal(given, peer).await {
        Some(refusal) => refusal,
        None => {
            let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
            request.extensions_mut().insert(Peer(peer));
            next.run(request).await
        }
    }
}

/// Reads `Bearer TOKEN` (RFC 6750, section 2.1); the scheme's name knows no case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn unauthorized(what: &str) -> Response {
    let mut response = problem(StatusCode::UNAUTHORIZED, what).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Who guesses is told apart by address, in IPv6 by network; all who are unknown are one.
fn of_peer(peer: Option<IpAddr>) -> Key {
    match peer {
        Some(IpAddr::V4(address)) => IpAddr::V4(address).into(),
        Some(IpAddr::V6(address)) => u64::try_from(address.to_bits() >> 64).expect("the upper half").into(),
        None => "unknown".into(),
    }
}

static WRONG_TOKENS: Policy = Policy::sliding_window("wrong-tokens", Quota::per_minute(10));

/// Too long to be guessed at ten a minute, or at any other pace.
const SHORTEST_TOKEN: usize = 16;
const LONGEST_TOKEN: usize = 1_024;
