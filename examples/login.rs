//! Five wrong passwords in 15 minutes for each address; right ones cost nothing.
//!
//! ```text
//! cargo run --example login
//! curl -i -d guess  http://127.0.0.1:3000/login     # 401, and one try less
//! curl -i -d secret http://127.0.0.1:3000/login     # 200, and as many as before
//! ```

use std::{error::Error, net::SocketAddr};

use axum::{Router, http::StatusCode, routing::post};
use tokio::net::TcpListener;
use tollgate::{Limiter, Memory, OnError, RateLimitLayer, Rule};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A try is charged before the password is looked at, so that many at once get no further than one after the other,
    // and given back if it was right. Without a store nobody can guess.
    let tries = Rule::new("login", "5/15m".parse()?).fixed_window().charge("status:401").on_error(OnError::Deny);
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(tries);
    let app = Router::new().route("/login", post(log_in)).layer(layer);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn log_in(body: String) -> StatusCode {
    if body == "secret" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}
