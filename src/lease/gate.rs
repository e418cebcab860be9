use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};

use super::Fence;
use crate::{error::Error, key::Key};

/// Refuses what comes under a lesser fence than it has seen for the same name: the check that a resource in this process
/// makes before each write.
///
/// A holder that was stopped, and goes on after its lease has gone to another one, comes too late here. For that the
/// resource has to see every write, and the check and the write must not be torn apart: hold the resource's own lock
/// around both. Where the resource is elsewhere, the check belongs there: for Redis there is `Redis::write_fenced`, for SQL
/// this, which changes one row or none:
///
/// ```sql
/// UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND fence <= $2
/// ```
///
/// ```
/// use tollgate::lease::{Fence, FenceGate};
///
/// let gate = FenceGate::new();
/// assert!(gate.pass("order:7", Fence::from(34)).is_ok());
/// assert!(gate.pass("order:7", Fence::from(34)).is_ok()); // the same holder again
/// assert!(gate.pass("order:7", Fence::from(33)).unwrap_err().is_lost()); // one that was there before
/// assert!(gate.pass("order:8", Fence::from(1)).is_ok()); // another name
/// ```
#[derive(Default)]
pub struct FenceGate {
    highest: Mutex<HashMap<Key, Fence>>,
}

impl FenceGate {
    /// Makes a gate that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a write pass under a fence, and from then on none under a lesser one.
    ///
    /// # Errors
    ///
    /// If a greater fence was seen ([`Error::is_lost`]), or a name is new and the gate has a million of them: none is ever
    /// forgotten, since a forgotten one would let everybody in.
    pub fn pass(&self, name: impl Into<Key>, fence: Fence) -> Result<(), Error> {
        let name = name.into();
        let mut all = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.len();
        match all.get_mut(&name) {
            Some(highest) if *highest > fence => {
                return Err(Error::lost(format!("fence {fence} is too old: {highest} was seen")));
            }
            Some(highest) => *highest = fence,
            None if count >= MOST_NAMES => {
                return Err(Error::store(format!("the gate is full: it knows {MOST_NAMES} names")));
            }
            None => _ = all.insert(name, fence),
        }
        Ok(())
    }
}

impl fmt::Debug for FenceGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.highest.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("FenceGate").field("names", &names).finish()
    }
}

/// Some hundred megabytes.
const MOST_NAMES: usize = 1_000_000;
