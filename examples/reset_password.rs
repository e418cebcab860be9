//! Password resets: one ticket a mail, redeemed by one caller, once, in time.
//!
//! ```text
//! cargo run --example reset_password [-- --redis redis://127.0.0.1:6379]
//! ```

use std::{env, sync::Arc, time::Duration};

use tollgate::{
    Error, Memory, Redis,
    lease::{RecordStore, Tickets},
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store: Arc<dyn RecordStore> = match env::args().skip_while(|word| word != "--redis").nth(1) {
        Some(url) => Arc::new(Redis::open(&url)?),
        None => Arc::new(Memory::new()),
    };
    let resets = Tickets::new(&store, "password-reset", Duration::from_secs(15 * 60));

    let ticket = resets.issue(b"user:42").await?;
    println!("mailed: https://example.com/reset?ticket={ticket}");

    // A double click, a mail scanner and the user come at once: one of them gets it.
    let redeem = || {
        let (resets, ticket) = (resets.clone(), ticket.clone());
        tokio::spawn(async move { resets.redeem(&ticket).await })
    };
    for task in [redeem(), redeem(), redeem()] {
        match task.await.expect("no panic")? {
            Some(user) => println!("may set a new password: {}", String::from_utf8_lossy(&user)),
            None => println!("this link has been used, or has expired"),
        }
    }
    println!("guessed: {:?}", resets.redeem("not-a-ticket").await?);
    Ok(())
}
