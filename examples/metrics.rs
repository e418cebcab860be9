//! An axum server that tells Prometheus what its limit does.
//!
//! ```text
//! cargo run --example metrics                                 # listens on 127.0.0.1:3000
//! curl http://127.0.0.1:3000/; curl http://127.0.0.1:3000/metrics
//! ```
//!
//! `docs/grafana.json` is a dashboard for what it tells.

use std::{env, error::Error, future::ready, net::SocketAddr};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::net::TcpListener;
use tollgate::{Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // First of all: a counter belongs to the recorder that is there when it is first needed.
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("tollgate_".to_owned()), SECONDS)?
        .install_recorder()?;
    tollgate::metrics::describe();

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimitLayer::per_client(Quota::per_minute(60)))
        // Added after the limit, so that it does not count who looks at it.
        .route("/metrics", get(move || ready(recorder.render())));

    let listen = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// From what a Redis nearby takes to the longest deadline that anybody sets, and for waits for leases.
const SECONDS: &[f64] = &[0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];
