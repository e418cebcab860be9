//! An axum server with one limit: 60 requests a minute for each client address.
//!
//! ```text
//! cargo run --example axum                                        # in memory
//! cargo run --example axum -- --redis redis://127.0.0.1:6379      # shared by all processes
//! cargo run --example axum -- --config tollgate.toml --listen 127.0.0.1:4000
//! cargo run --example axum -- --admin "$(openssl rand -hex 32)"   # and a page for operators, at /admin
//! ```

use std::{error::Error, net::SocketAddr};

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use tokio::net::TcpListener;
use tollgate::{Config, Limiter, Memory, Quota, RateLimitLayer, Redis, Rule, admin};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse()?;

    let config = args.config.as_ref().map(Config::load).transpose()?;
    let limit = match (&config, &args.redis) {
        (Some(config), _) => RateLimitLayer::from_config(config)?,
        (None, Some(url)) => default_rule(Limiter::new(Redis::open(url)?)),
        (None, None) => default_rule(Limiter::new(Memory::new())),
    };
    // A changed file takes effect for as long as this is kept.
    let _watch = config.as_ref().map(|config| limit.watch(config));

    let operators = args.admin.as_ref().map(|token| admin::router(limit.limiter(), token)).transpose()?;
    let mut app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/health", get(|| async { "well\n" }))
        .route("/api/{*rest}", get(|| async { "api\n" }))
        .route("/login", post(login))
        .layer(limit);
    if let Some(operators) = operators {
        // After the limit, so that operators are not limited.
        app = app.nest("/admin", operators);
    }

    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // The limit counts by client address, so the server has to tell it.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

fn default_rule(limiter: Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter).rule(Rule::new("per-client", Quota::per_minute(60)))
}

async fn login(body: String) -> StatusCode {
    if body == "secret" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

struct Args {
    listen: SocketAddr,
    config: Option<String>,
    redis: Option<String>,
    admin: Option<String>,
}

impl Args {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut args =
            Self { listen: SocketAddr::from(([127, 0, 0, 1], 3000)), config: None, redis: None, admin: None };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("listen") => args.listen = parser.value()?.parse()?,
                Long("config") => args.config = Some(parser.value()?.string()?),
                Long("admin") => args.admin = Some(parser.value()?.string()?),
                Long("redis") => args.redis = Some(parser.value()?.string()?),
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(args)
    }
}
