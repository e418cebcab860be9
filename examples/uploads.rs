//! Two uploads at a time for each client, in all processes that share a Redis.
//!
//! ```console
//! $ cargo run --example uploads -- --redis redis://127.0.0.1:6379
//! $ curl -i -d data http://127.0.0.1:3000/upload
//! $ for i in 1 2 3; do curl -so /dev/null -w '%{http_code} ' -d data http://127.0.0.1:3000/upload & done; wait
//! ```

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, routing::post};
use tokio::net::TcpListener;
use tollgate::{ConcurrencyLimitLayer, Memory, Redis, layer::client_ip, lease::LeaseStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse()?;
    let store: Arc<dyn LeaseStore> = match &args.redis {
        Some(url) => Arc::new(Redis::open(url)?),
        None => Arc::new(Memory::new()),
    };
    // What is refused is refused at once; the permits of a process that dies come back within two seconds.
    let limit = ConcurrencyLimitLayer::new(&store, "uploads", 2).by(client_ip()).lease(Duration::from_secs(2));
    let app = Router::new().route("/upload", post(upload)).layer(limit);
    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn upload() -> &'static str {
    tokio::time::sleep(Duration::from_millis(500)).await;
    "stored\n"
}

struct Args {
    listen: SocketAddr,
    redis: Option<String>,
}

impl Args {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut args = Self { listen: SocketAddr::from(([127, 0, 0, 1], 3000)), redis: None };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("listen") => args.listen = parser.value()?.parse()?,
                Long("redis") => args.redis = Some(parser.value()?.string()?),
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(args)
    }
}
