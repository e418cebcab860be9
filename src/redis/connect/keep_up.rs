//! Makes a connection, and makes it anew.

use std::{
    future::{self, Future, poll_fn},
    hash::{BuildHasher, RandomState},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use tokio::{sync::watch, time};

use super::{
    State,
    connection::{Connection, Known},
    failure::cut_off,
    route::Route,
};
use crate::{
    error::Error,
    redis::{
        batch::{Batches, Queue},
        limit::Names,
    },
};

/// Connects, works until the connection is broken, and connects again, for as long as somebody may ask for it.
pub(super) async fn keep_up(route: Route, names: Names, queue: Arc<Queue>, state: watch::Sender<State>) {
    let mut failures: u32 = 0;
    let mut silent = None;
    loop {
        let wait = match connect(&route, &mut silent).await {
            Ok(connection) => {
                silent = None;
                let known = Arc::clone(&connection.known);
                queue.open();
                state.send_replace(State::Up(connection.clone()));
                let batches = Batches::new(&queue, &names, connection.clone());
                let end = work(&state, &known, route.moved(&known), batches).await;
                if matches!(end, End::Silent) && route.leads_to_one_server() {
                    silent = Some(Silent::new(connection));
                } else {
                    // Whoever still has it must let it go, whatever the reason.
                    known.breaks();
                }
                known.wakes.end();
                if matches!(end, End::Gone) {
                    return;
                }
                if matches!(end, End::Moved) || known.answered.load(Ordering::Relaxed) {
                    state.send_replace(State::Connecting);
                    failures = 0;
                    Duration::ZERO
                } else {
                    // A server that accepts and then fails at once is left alone like one that is down.
                    let error = known.why.get().cloned().unwrap_or_else(cut_off);
                    queue.close(&error);
                    state.send_replace(State::Down(error));
                    failures = failures.saturating_add(1);
                    pause(failures)
                }
            }
            Err(error) => {
                queue.close(&error);
                state.send_replace(State::Down(error));
                failures = failures.saturating_add(1);
                if silent.is_some() { pause_beside(failures) } else { pause(failures) }
            }
        };
        let waited = async {
            match &mut silent {
                Some(silent) => _ = time::timeout(wait, silent.awakes()).await,
                None => time::sleep(wait).await,
            }
        };
        if unless_closed(&state, waited).await.is_none() {
            return;
        }
    }
}

/// Makes a connection, unless the one that fell silent is the first of which something is heard.
async fn connect(route: &Route, silent: &mut Option<Silent>) -> Result<Connection, Error> {
    let known = Arc::new(Known::default());
    let mut made = pin!(route.connect(&known));
    let mut old = pin!(async {
        match silent {
            Some(silent) => silent.awakes().await,
            None => future::pending().await,
        }
    });
    poll_fn(|cx| match old.as_mut().poll(cx) {
        Poll::Ready(connection) => Poll::Ready(Ok(connection)),
        Poll::Pending => made.as_mut().poll(cx).map_ok(|handle| Connection { handle, known: Arc::clone(&known) }),
    })
    .await
}

/// A connection on which nothing comes back. It is kept while others are tried: if its server has stood still, it is
/// there at once when that goes on.
struct Silent {
    known: Arc<Known>,
    awakes: Pin<Box<dyn Future<Output = Connection> + Send>>,
    awake: Option<Connection>,
}

impl Silent {
    fn new(connection: Connection) -> Self {
        Self { known: Arc::clone(&connection.known), awakes: Box::pin(connection.awakes()), awake: None }
    }

    /// Waits until something comes back. If this goes away, it can be waited for again.
    async fn awakes(&mut self) -> Connection {
        if let Some(connection) = &self.awake {
            return connection.clone();
        }
        let connection = self.awakes.as_mut().await;
        self.awake.insert(connection).clone()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        if self.awake.is_none() {
            self.known.breaks();
        }
    }
}

/// Does something, unless nobody can ask for it any more.
async fn unless_closed<T>(state: &watch::Sender<State>, work: impl Future<Output = T>) -> Option<T> {
    let (mut closed, mut work) = (pin!(state.closed()), pin!(work));
    poll_fn(|cx| match closed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

/// Why work on a connection ended.
enum End {
    /// Nobody can ask any more.
    Gone,
    /// It leads to a server that is not the one any more.
    Moved,
    Broken,
    /// Nothing comes back on it.
    Silent,
}

/// Works until the connection is broken or leads to the wrong server, or nobody can ask any more.
async fn work(
    state: &watch::Sender<State>,
    known: &Known,
    moved: impl Future<Output = ()>,
    batches: Batches<'_, Connection>,
) -> End {
    let (mut gone, mut broken, mut batches) = (pin!(state.closed()), pin!(known.broken.notified()), pin!(batches));
    let mut moved = pin!(moved);
    poll_fn(|cx| {
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Gone);
        }
        let _ = batches.as_mut().poll(cx);
        if moved.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Moved);
        }
        while broken.as_mut().poll(cx).is_ready() {
            if known.is_broken.load(Ordering::Relaxed) {
                return Poll::Ready(End::Broken);
            }
            if known.is_silent.load(Ordering::Relaxed) {
                return Poll::Ready(End::Silent);
            }
            // It was silent for a while, and told so more than once.
            broken.set(known.broken.notified());
        }
        Poll::Pending
    })
    .await
}

/// Returns how long to leave a server alone after so many failures, with jitter so that a fleet spreads out.
pub(super) fn pause(failures: u32) -> Duration {
    spread(failures, SHORTEST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE))
}

/// Returns the same for attempts beside a connection that is kept. A server that stands still takes each of them, and
/// has them all to end when it goes on.
fn pause_beside(failures: u32) -> Duration {
    spread(failures, (LONGEST_PAUSE / 2).saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE_BESIDE))
}

/// Returns at least half of a time, and how much more by chance.
fn spread(failures: u32, longest: Duration) -> Duration {
    // A hasher's random seed is all the randomness that a pause needs.
    let random = u32::try_from(RandomState::new().hash_one(failures) >> 48).expect("sixteen bits");
    longest / 2 + longest / 2 * random / (1 << 16)
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Short enough that a server is in use again within a second of its start, and long enough to be nothing to it.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// What a network that swallowed all for long may add to its outage.
const LONGEST_PAUSE_BESIDE: Duration = Duration::from_secs(4);
