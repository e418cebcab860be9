//! How waiters are woken: releases are published, and heard on the connection that is there anyway.
//!
//! There is a channel for each bucket of names, subscribed to while somebody waits for one of them and a second longer.
//! Where channels are refused (by RESP2, by rights), waiters ask again and again instead. A watch ends with its
//! connection, and the waiter who learns it begins a new one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tokio::{runtime::Handle, sync::Mutex, time};

use super::{connect::Connection, limit::Names};
use crate::{
    error::Error,
    key::Key,
    lease::{Notices, Watch},
};

/// Who waits for what on one connection.
#[derive(Default)]
pub(super) struct Wakes {
    notices: Notices,
    /// How many watches there are of each channel that is subscribed to.
    channels: Mutex<HashMap<Vec<u8>, usize>>,
    is_refused: AtomicBool,
}

impl Wakes {
    /// Hears what was published: a name, and the waiter who is next if they stand in a queue.
    pub(super) fn hear(&self, data: &[Value]) {
        let [Value::BulkString(_), Value::BulkString(told)] = data else { return };
        let mut words = told.splitn(2, |byte| *byte == b' ');
        let name = words.next().unwrap_or_default();
        self.notices.tell(name, words.next().map(Arc::from));
    }

    /// Ends all watches, since the connection is of no more use.
    pub(super) fn end(&self) {
        self.notices.end();
    }
}

/// Watches a name on a connection.
pub(super) async fn watch(connection: Connection, names: &Names, name: &Key) -> Result<Watch, Error> {
    let wakes = Arc::clone(connection.wakes());
    if wakes.is_refused.load(Ordering::Relaxed) {
        return Ok(Watch::by_asking());
    }
    let heard = wakes.notices.listen(name);
    let channel = names.channel(name);
    let mut channels = wakes.channels.lock().await;
    if !channels.contains_key(&channel)
        && let Err(error) = connection.subscribe(&channel).await
    {
        if connection.is_broken() {
            return Err(error);
        }
        tracing::info!(%error, "waiters ask again and again, since they cannot subscribe");
        wakes.is_refused.store(true, Ordering::Relaxed);
        return Ok(Watch::by_asking());
    }
    *channels.entry(channel.clone()).or_default() += 1;
    drop(channels);
    let end = End { connection, channel, runtime: Handle::current() };
    Ok(Watch::of(heard).with_end(end))
}

/// Ends a subscription when the last watch of it has been dropped for a while.
struct End {
    connection: Connection,
    channel: Vec<u8>,
    runtime: Handle,
}

impl Drop for End {
    fn drop(&mut self) {
        let (connection, channel) = (self.connection.clone(), std::mem::take(&mut self.channel));
        self.runtime.spawn(async move {
            time::sleep(STAYS_SUBSCRIBED).await;
            let wakes = Arc::clone(connection.wakes());
            // Held until the server has answered, so that who comes meanwhile subscribes after that.
            let mut channels = wakes.channels.lock().await;
            if let Some(watches) = channels.get_mut(&channel) {
                *watches -= 1;
                if *watches == 0 {
                    channels.remove(&channel);
                    let _ = connection.unsubscribe(&channel).await;
                }
            }
        });
    }
}

/// Waiters come and go, and the next one need not subscribe anew.
const STAYS_SUBSCRIBED: Duration = Duration::from_secs(1);
