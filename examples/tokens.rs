//! A budget of tokens a minute for each user, where what a request costs is known when it is done.
//!
//! ```text
//! cargo run --example tokens
//! curl -i -H 'x-user: ada' -d 'tell me a story' http://127.0.0.1:3000/complete
//! ```

use std::error::Error;

use axum::{Router, routing::post};
use tokio::net::TcpListener;
use tollgate::{
    Limiter, Memory, Quota, RateLimitLayer, Rule,
    layer::{Exposed, header},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A request costs what it may cost at most, until the handler says what it was.
    let tokens = Rule::new("tokens", Quota::per_minute(2_000))
        .sliding_window()
        .by(header("x-user").or_reject())
        .cost(MOST_TOKENS)
        .settled();
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(tokens);
    let app = Router::new().route("/complete", post(complete)).layer(layer);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn complete(exposed: Exposed, prompt: String) -> String {
    let answer = format!("Once upon a time somebody asked for: {prompt}\n");
    let used = answer.split_whitespace().count() as u64;
    // On its way in any case; waiting for it keeps the next request of this user from finding less than there is.
    let _ = exposed.charge.settle(used.min(MOST_TOKENS)).await;
    answer
}

const MOST_TOKENS: u64 = 500;
