//! A value that only the newest holder of a lease may write.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{
    Redis,
    lease::{integer, ms, number, unreadable},
    limit::Call,
    script::WRITE_FENCED,
};
use crate::{error::Error, key::Key, lease::Fence};

impl Redis {
    /// Writes a value beside the lease of the same name, and keeps it for so long; only under the newest fence.
    ///
    /// It is refused as soon as another holder has the lease, before that one has written anything. One step on the server:
    /// nothing comes between the check and the write.
    ///
    /// # Errors
    ///
    /// If a greater fence is known ([`Error::is_lost`]), or the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may be written.
    pub async fn write_fenced(
        &self,
        name: impl Into<Key>,
        fence: Fence,
        value: &[u8],
        keep: Duration,
    ) -> Result<(), Error> {
        if keep < Duration::from_millis(1) {
            return Err(Error::invalid(format!("a value that is kept for {keep:?}: must be 1ms at least")));
        }
        let (name, names) = (name.into(), self.connections.names());
        let keys = [names.fenced(&name), names.counter(&name)];
        let call = Call::plain(keys, vec![number(fence.into()), value.to_vec(), ms(keep)]);
        match integer(&Arc::clone(&self.connections).call(&WRITE_FENCED, &call).await?)? {
            1 => Ok(()),
            _ => Err(Error::lost(format!("fence {fence} is too old to write"))),
        }
    }

    /// Reads what was written last, and its fence.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn read_fenced(&self, name: impl Into<Key>) -> Result<Option<(Fence, Vec<u8>)>, Error> {
        let key = self.connections.names().fenced(&name.into());
        let mut command = redis::cmd("HMGET");
        command.arg(&key).arg(&["f", "v"]);
        let Value::Array(values) = self.connections.send(&key, &command).await? else { return Err(unreadable()) };
        match <[Value; 2]>::try_from(values) {
            Ok([Value::BulkString(fence), Value::BulkString(value)]) => {
                let fence = std::str::from_utf8(&fence).ok().and_then(|fence| fence.parse::<u64>().ok());
                Ok(Some((fence.ok_or_else(unreadable)?.into(), value)))
            }
            Ok([Value::Nil, Value::Nil]) => Ok(None),
            _ => Err(unreadable()),
        }
    }
}
