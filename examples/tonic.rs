//! A tonic server with one limit: 60 calls a minute for each client address. It serves `grpc.health.v1.Health`.
//!
//! ```text
//! cargo run --example tonic
//! cargo run --example tonic -- --config tollgate.toml
//! cargo run --example tonic -- --redis redis://127.0.0.1:6379 --listen 127.0.0.1:4000
//! ```

use std::{error::Error, net::SocketAddr};

use tokio::net::TcpListener;
use tollgate::{Config, Limiter, Memory, Quota, RateLimitLayer, Redis, Rule};
use tonic::transport::{Server, server::TcpIncoming};

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
    let (_, health) = tonic_health::server::health_reporter();

    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Server::builder().layer(limit).add_service(health).serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}

fn default_rule(limiter: Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter).rule(Rule::new("per-client", Quota::per_minute(60)))
}

struct Args {
    listen: SocketAddr,
    config: Option<String>,
    redis: Option<String>,
}

impl Args {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut args = Self { listen: SocketAddr::from(([127, 0, 0, 1], 3000)), config: None, redis: None };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("listen") => args.listen = parser.value()?.parse()?,
                Long("config") => args.config = Some(parser.value()?.string()?),
                Long("redis") => args.redis = Some(parser.value()?.string()?),
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(args)
    }
}
