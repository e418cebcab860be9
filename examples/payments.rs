//! Payments that are executed once, however often they are sent.
//!
//! ```console
//! $ cargo run --example payments -- --redis redis://127.0.0.1:6379
//! $ curl -i -X POST -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' -d amount=7 http://127.0.0.1:3000/payments
//! $ curl -i -X POST -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' -d amount=7 http://127.0.0.1:3000/payments
//! $ curl -i -X POST -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' -d amount=8 http://127.0.0.1:3000/payments
//! $ curl -i -X POST -d amount=7 http://127.0.0.1:3000/payments
//! $ curl http://127.0.0.1:3000/payments/count
//! ```

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::net::TcpListener;
use tollgate::{
    IdempotencyLayer, Memory, Redis,
    layer::header,
    lease::{RecordStore, Token},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse()?;
    let store: Arc<dyn RecordStore> = match &args.redis {
        Some(url) => Arc::new(Redis::open(url)?),
        None => Arc::new(Memory::new()),
    };
    // Whose key it is: without an `Authorization` field all are the anonymous one. When a process dies, its payments are known
    // to have broken off within five seconds.
    let once = IdempotencyLayer::new(&store, header("authorization")).draft().lease(Duration::from_secs(5));
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(once.clone())
        .route(
            "/payments/count",
            get(|State(count): State<Count>| async move { count.load(Ordering::SeqCst).to_string() }),
        )
        .with_state(Count::default());
    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(stopped()).await?;
    // Payments go on whose clients are gone: their keys would be parked else.
    once.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

type Count = Arc<AtomicU64>;

async fn pay(State(count): State<Count>) -> Response {
    let Ok(id) = Token::random() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    count.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(300)).await;
    (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], format!(r#"{{"id":"{id}"}}"#)).into_response()
}

async fn stopped() {
    // Without signals it runs until it is ended.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
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
