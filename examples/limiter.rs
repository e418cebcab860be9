//! Limits without HTTP: a job that asks before it works, pays what the work truly cost, and waits for its turn.
//!
//! ```text
//! cargo run --example limiter
//! ```

use std::time::Duration;

use tollgate::{Demand, Error, Limiter, Memory, Policy, Quota};

static MAILS: Policy = Policy::sliding_window("mails", Quota::per_minute(3));
static TOKENS: Policy = Policy::fixed_window("tokens", Quota::per_hour(1_000));
static OUTBOUND: Policy = Policy::token_bucket("outbound", Quota::per_second(4)).burst(1);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let limiter = Limiter::new(Memory::new());

    for mail in 1..=4 {
        let decision = limiter.check(&MAILS, "user:42").await;
        match decision.retry_after() {
            None => println!("mail {mail}: sent, {} more may follow", decision.remaining().unwrap_or_default()),
            Some(wait) => println!("mail {mail}: in {wait:.0?}"),
        }
    }

    // All or nothing, and corrected afterwards.
    let ask = [Demand::new(&MAILS, "user:43"), Demand::new(&TOKENS, "user:43").cost(400)];
    let (decision, charge) = limiter.decide(&ask).await;
    println!("a prompt: {}", if decision.is_allowed() { "accepted" } else { "refused" });
    charge.settle_policy("tokens", 250).await?;
    let left = limiter.peek(&TOKENS, "user:43").await.remaining();
    println!("it took 250 tokens, {} are left", left.unwrap_or_default());

    for call in 1..=3 {
        limiter.until_allowed(&OUTBOUND, "upstream", Duration::from_secs(1)).await?;
        println!("call {call} goes out");
    }
    Ok(())
}
