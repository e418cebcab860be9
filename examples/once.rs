//! Things that are done once, however often they are asked for: a mail, and a job that breaks off.
//!
//! ```text
//! cargo run --example once [-- --redis redis://127.0.0.1:6379]
//! ```

use std::{env, sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use tollgate::{
    Error, Memory, Redis,
    lease::{Once, RecordStore},
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store: Arc<dyn RecordStore> = match env::args().skip_while(|word| word != "--redis").nth(1) {
        Some(url) => Arc::new(Redis::open(&url)?),
        None => Arc::new(Memory::new()),
    };
    // New each time, so that a run does not find the outcome of the one before.
    let id = format!("user:{}", std::process::id());

    let mails = Once::new(&store, "welcome-mail", Duration::from_secs(60)).wait(Duration::from_secs(5));
    let sending = (1..=3).map(|caller| {
        let (mails, id) = (mails.clone(), id.clone());
        tokio::spawn(async move {
            let send = async |_| {
                sleep(Duration::from_millis(100)).await; // the mail goes out
                Ok(b"message 17".to_vec())
            };
            println!("caller {caller}: {:?}", mails.run(id, send).await?);
            Ok::<_, Error>(())
        })
    });
    for task in sending.collect::<Vec<_>>() {
        task.await.expect("no panic")?;
    }

    // One that breaks off in the middle is parked: nobody knows how far it came.
    let payouts = Once::new(&store, "payout", Duration::from_secs(60)).lease(Duration::from_millis(200));
    let half_way = payouts.run(id.clone(), async |_| std::future::pending().await);
    let _ = timeout(Duration::from_millis(50), half_way).await;
    println!("at once:   {:?}", payouts.run(id.clone(), async |_| Ok(Vec::new())).await?);
    sleep(Duration::from_millis(250)).await; // its lease ends
    println!("later:     {:?}", payouts.run(id.clone(), async |_| Ok(Vec::new())).await?);
    // Who may do it twice says so, and is told which attempt it is.
    let payouts = payouts.takeover();
    let again = payouts.run(id, async |attempt| Ok(format!("attempt {}", attempt.number()).into_bytes())).await?;
    println!("takes over: {}", String::from_utf8_lossy(again.outcome().unwrap_or_default()));
    Ok(())
}
