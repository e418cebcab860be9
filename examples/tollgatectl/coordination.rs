//! Who holds what, and which jobs have died.

use serde_json::{Value, json};
use tollgate::lease::{Claims, Holder, Lock, Semaphore};

use crate::{Failure, args::Args, limits::redis, show};

/// Tells who holds a lock, or the permits of a semaphore; false if nobody does.
pub(crate) async fn holders(args: &Args, name: &str) -> Result<bool, Failure> {
    let redis = redis(args)?;
    let holders: Vec<Holder> = match args.permits {
        Some(permits) => Semaphore::new(&redis, name, permits)?.holders().await?,
        None => Lock::new(&redis, name).holder().await?.into_iter().collect(),
    };
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if args.json {
        let holders: Vec<Value> = holders
            .iter()
            .map(|holder| {
                json!({
                    "label": holder.label,
                    "token": holder.token.to_string(),
                    "fence": holder.fence.map(u64::from),
                    "held_for_ms": ms(holder.held_for),
                    "left_ms": ms(holder.left),
                })
            })
            .collect();
        show::print(&format!("{}\n", json!({ "name": name, "holders": holders })))?;
    } else if holders.is_empty() {
        show::print(&format!("nobody holds {name}\n"))?;
    } else {
        let row = |holder: &Holder| {
            let fence = holder.fence.map_or_else(|| "-".to_owned(), |fence| u64::from(fence).to_string());
            vec![
                holder.label.clone(),
                fence,
                show::span(holder.held_for),
                show::span(holder.left),
                holder.token.to_string(),
            ]
        };
        let rows: Vec<_> = holders.iter().map(row).collect();
        show::print(&show::table(&["label", "fence", "held for", "left", "token"], &rows))?;
    }
    Ok(!holders.is_empty())
}

/// Tells the dead letters of a queue; false if there are any.
pub(crate) async fn dead(args: &Args, queue: &str) -> Result<bool, Failure> {
    let most = u32::try_from(args.most).unwrap_or(u32::MAX);
    let dead = Claims::new(&redis(args)?, queue).dead(most).await?;
    if args.json {
        let letters: Vec<Value> = dead
            .iter()
            .map(|job| {
                json!({
                    "id": job.id,
                    "attempts": job.attempts,
                    "reason": job.reason,
                    "payload": String::from_utf8_lossy(&job.payload),
                })
            })
            .collect();
        show::print(&format!("{}\n", json!({ "queue": queue, "dead": letters })))?;
    } else if dead.is_empty() {
        show::print(&format!("no dead letters in {queue}\n"))?;
    } else {
        let rows: Vec<_> = dead
            .iter()
            .map(|job| {
                let payload: String = String::from_utf8_lossy(&job.payload).escape_debug().take(60).collect();
                vec![job.id.clone(), job.attempts.to_string(), job.reason.escape_debug().to_string(), payload]
            })
            .collect();
        show::print(&show::table(&["id", "attempts", "reason", "payload"], &rows))?;
    }
    Ok(dead.is_empty())
}
