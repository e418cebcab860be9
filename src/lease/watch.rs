use std::{
    any::Any,
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use tokio::sync::watch;

use crate::key::Key;

/// Tells a waiter that it may be worth while to try again.
///
/// A notice only makes that earlier: a waiter also tries when the time is up that it was told.
pub struct Watch {
    notices: Vec<watch::Receiver<Notice>>,
    is_new: bool,
    /// What ends with this watch.
    ends: Vec<Box<dyn Any + Send + Sync>>,
}

/// What was told last: for one waiter, or for whoever waits.
type Notice = Option<Arc<[u8]>>;

impl Watch {
    /// Never tells anything: the waiter has to ask again and again.
    pub fn by_asking() -> Self {
        Self { notices: Vec::new(), is_new: false, ends: Vec::new() }
    }

    pub(crate) fn of(notices: watch::Receiver<Notice>) -> Self {
        Self { notices: vec![notices], is_new: true, ends: Vec::new() }
    }

    /// Tells what any of several tells.
    pub(super) fn any(watches: Vec<Self>) -> Self {
        let mut all = Self { is_new: true, ..Self::by_asking() };
        for mut watch in watches {
            all.notices.append(&mut watch.notices);
            all.ends.append(&mut watch.ends);
        }
        all
    }

    /// Says what is to be dropped with the watch.
    #[cfg(feature = "redis")]
    pub(crate) fn with_end(mut self, end: impl Any + Send + Sync) -> Self {
        self.ends.push(Box::new(end));
        self
    }

    /// Returns true once if something may have been told before the watch began.
    pub(crate) fn begins(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    pub(crate) fn is_by_asking(&self) -> bool {
        self.notices.is_empty()
    }

    /// Forgets what was told up to now.
    pub(crate) fn forget(&mut self) {
        self.notices.iter_mut().for_each(watch::Receiver::mark_unchanged);
    }

    /// Waits for a notice for everybody or for `waiter`; false if there will be no more.
    pub(crate) async fn told(&mut self, waiter: &[u8]) -> bool {
        loop {
            if !self.changed().await {
                return false;
            }
            // All are looked at, so that each is told once.
            let told = self.notices.iter_mut().filter(|notices| notices.has_changed().is_ok_and(|changed| changed));
            let mut heads = told.map(|notices| notices.borrow_and_update().clone()).collect::<Vec<_>>().into_iter();
            if heads.any(|head| head.as_deref().is_none_or(|head| head == waiter)) {
                return true;
            }
        }
    }

    /// Waits until one of them has changed; false if one has ended.
    async fn changed(&mut self) -> bool {
        let mut waiting: Vec<_> = self
            .notices
            .iter()
            .map(|notices| {
                let mut notices = notices.clone();
                Box::pin(async move { notices.changed().await.is_ok() })
            })
            .collect();
        poll_fn(|cx| {
            let mut ready = waiting.iter_mut().filter_map(|waiting| match waiting.as_mut().poll(cx) {
                Poll::Ready(is_there) => Some(is_there),
                Poll::Pending => None,
            });
            ready.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_by_asking() { "Watch(by asking)" } else { "Watch(by notices)" })
    }
}

/// Who waits for which name in this process.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<HashMap<Box<[u8]>, watch::Sender<Notice>>>);

impl Notices {
    /// Begins to listen for a name.
    pub(crate) fn listen(&self, name: &Key) -> watch::Receiver<Notice> {
        let mut all = self.lock();
        // Who has gone is forgotten when it can be told from who stays.
        if all.len() >= 64 && all.len().is_power_of_two() {
            all.retain(|_, sender| sender.receiver_count() > 0);
        }
        all.entry(name.as_bytes().into()).or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    /// Tells whoever waits for a name: all, or the one who is the next in turn.
    pub(crate) fn tell(&self, name: &[u8], head: Notice) {
        let mut all = self.lock();
        let Some(sender) = all.get(name) else { return };
        if sender.receiver_count() == 0 {
            all.remove(name);
        } else {
            sender.send_replace(head);
        }
    }

    /// Tells everybody that there will be no more.
    #[cfg(feature = "redis")]
    pub(crate) fn end(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, watch::Sender<Notice>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
