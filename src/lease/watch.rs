use std::{
    any::Any,
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::key::Key;

/// Tells a waiter that it may be worth while to try again.
///
/// A notice only makes that earlier: a waiter also tries when the time is up that it was told.
pub struct Watch {
    notices: Option<watch::Receiver<Notice>>,
    is_new: bool,
    /// Ends what is kept up for this watch when it is dropped.
    _end: Option<Box<dyn Any + Send + Sync>>,
}

/// What was told last: for one waiter, or for whoever waits.
type Notice = Option<Arc<[u8]>>;

impl Watch {
    /// Never tells anything: the waiter has to ask again and again.
    pub fn by_asking() -> Self {
        Self { notices: None, is_new: false, _end: None }
    }

    pub(crate) fn of(notices: watch::Receiver<Notice>) -> Self {
        Self { notices: Some(notices), is_new: true, _end: None }
    }

    /// Says what is to be dropped with the watch.
    #[cfg(feature = "redis")]
    pub(crate) fn with_end(self, end: impl Any + Send + Sync) -> Self {
        Self { _end: Some(Box::new(end)), ..self }
    }

    /// Returns true once if something may have been told before the watch began.
    pub(crate) fn begins(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    pub(crate) fn is_by_asking(&self) -> bool {
        self.notices.is_none()
    }

    /// Forgets what was told up to now.
    pub(crate) fn forget(&mut self) {
        if let Some(notices) = &mut self.notices {
            notices.mark_unchanged();
        }
    }

    /// Waits for a notice for everybody or for `waiter`; false if there will be no more.
    pub(crate) async fn told(&mut self, waiter: &[u8]) -> bool {
        let Some(notices) = &mut self.notices else { return std::future::pending().await };
        loop {
            if notices.changed().await.is_err() {
                return false;
            }
            if notices.borrow_and_update().as_deref().is_none_or(|head| head == waiter) {
                return true;
            }
        }
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
