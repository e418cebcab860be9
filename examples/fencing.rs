//! A holder that is stopped past its lease, and whose late write is refused.
//!
//! ```text
//! cargo run --example fencing [-- --redis redis://127.0.0.1:6379]
//! ```
//!
//! No lock can keep a process from being stopped between a check and a write. The fence makes that harmless: the resource
//! has seen a greater one by then.

use std::{env, sync::Arc, thread, time::Duration};

use tollgate::{
    Error, Memory, Redis,
    lease::{Fence, FenceGate, LeaseStore, Lock},
};

// One thread, so that what stops the holder stops the renewal of its lease, too.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let address = env::args().skip_while(|word| word != "--redis").nth(1);
    let redis = address.as_deref().map(Redis::open).transpose()?;
    let store: Arc<dyn LeaseStore> = match &redis {
        Some(redis) => Arc::new(redis.clone()),
        None => Arc::new(Memory::new()),
    };
    let resource = Resource { redis, gate: FenceGate::new() };
    let lock = Lock::new(&store, "order:7").ttl(Duration::from_millis(200));

    let first = lock.acquire().await?;
    let old = first.fence().expect("a lock has a fence");
    println!("first holder, fence {old}: {}", resource.write(old, "paid").await);

    // It is stopped, as by a pause of its machine: its lease ends meanwhile, and somebody else holds.
    thread::sleep(Duration::from_millis(300));
    let second = lock.acquire().await?;
    let new = second.fence().expect("a lock has a fence");
    println!("second holder, fence {new}: {}", resource.write(new, "refunded").await);

    // It goes on where it was, and believes to hold; its write comes under the old fence.
    println!("first holder goes on, fence {old}: {}", resource.write(old, "shipped").await);
    println!("and its lease knows it, too: {:?}", first.check().map_err(|error| error.to_string()));
    second.release().await.map(drop)
}

/// What the lock is about: on Redis a value that only the newest holder may write, else something in this process.
struct Resource {
    redis: Option<Redis>,
    gate: FenceGate,
}

impl Resource {
    async fn write(&self, fence: Fence, value: &str) -> String {
        let written = match &self.redis {
            Some(redis) => redis.write_fenced("order:7", fence, value.as_bytes(), Duration::from_secs(60)).await,
            None => self.gate.pass("order:7", fence),
        };
        match written {
            Ok(()) => format!("`{value}` written"),
            Err(error) => format!("`{value}` refused: {error}"),
        }
    }
}
