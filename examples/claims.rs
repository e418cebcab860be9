//! Jobs that several workers share: one that fails is tried again, one that can never be done is put aside.
//!
//! ```text
//! cargo run --example claims [-- --redis redis://127.0.0.1:6379]
//! ```

use std::{env, sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use tollgate::{
    Error, Memory, Redis,
    lease::{Claims, NewJob, QueueStore},
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store: Arc<dyn QueueStore> = match env::args().skip_while(|word| word != "--redis").nth(1) {
        Some(url) => Arc::new(Redis::open(&url)?),
        None => Arc::new(Memory::new()),
    };
    let mails = Claims::new(&store, "mails").visibility(Duration::from_secs(5));
    for payload in ["to user:1", "to user:2", "to nobody", "to user:3 (server busy)"] {
        mails.push(payload.as_bytes()).await?;
    }
    mails.push_job(&NewJob::new("urgent", "to user:4, urgent").priority(9)).await?;

    let workers = ["one", "two"].map(|name| tokio::spawn(work(mails.clone(), name)));
    for worker in workers {
        worker.await.expect("no panic")?;
    }
    for dead in mails.dead(10).await? {
        println!("put aside: {} ({})", String::from_utf8_lossy(&dead.payload), dead.reason);
    }
    Ok(())
}

async fn work(mails: Claims, name: &str) -> Result<(), Error> {
    // Ends when there is nothing to do for a while; a real one goes on.
    while let Ok(claim) = timeout(Duration::from_millis(500), mails.claim()).await {
        let claim = claim?;
        let mail = String::from_utf8_lossy(claim.payload()).into_owned();
        println!("{name}: {mail}, attempt {}", claim.attempt());
        sleep(Duration::from_millis(50)).await;
        match () {
            () if mail.contains("nobody") => claim.bury("has no address").await?,
            () if mail.contains("busy") && claim.attempt() == 1 => claim.nack(Duration::from_millis(200)).await?,
            () => claim.ack().await?,
        }
    }
    Ok(())
}
