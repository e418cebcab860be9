//! One of several processes leads; run it more than once, and stop the one that leads.
//!
//! ```text
//! cargo run --example leader -- --redis redis://127.0.0.1:6379
//! ```
//!
//! Without an address two candidates of this process take turns.

use std::{env, sync::Arc, time::Duration};

use tokio::time::sleep;
use tollgate::{
    Error, Memory, Redis,
    lease::{Leader, LeaseStore},
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store: Arc<dyn LeaseStore> = match env::args().skip_while(|word| word != "--redis").nth(1) {
        Some(url) => Arc::new(Redis::open(&url)?),
        None => Arc::new(Memory::new()),
    };
    let candidates = ["one", "two"].map(|name| tokio::spawn(lead(Arc::clone(&store), name)));
    for candidate in candidates {
        candidate.await.expect("no panic")?;
    }
    Ok(())
}

async fn lead(store: Arc<dyn LeaseStore>, name: &'static str) -> Result<(), Error> {
    let leader = Leader::new(&store, "scheduler").ttl(Duration::from_secs(2)).label(name);
    let mut events = leader.events();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            println!("{name}: {event:?}");
        }
    });
    let work = async |term: tollgate::lease::Lease| {
        for round in 1..=3 {
            println!("{name}: round {round} under {:?}, {:.1?} left", term.fence(), term.remaining());
            sleep(Duration::from_millis(300)).await;
        }
    };
    leader.run(work).await?;
    println!("{name}: done, and the next one leads");
    Ok(())
}
