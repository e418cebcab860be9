use std::sync::Arc;

use redis::aio::ConnectionLike;

use super::{Connections, route::Route};
use crate::redis::{Redis, default_names};

/// A connection that the user made.
#[derive(Clone)]
pub(in crate::redis) struct Owned(Box<dyn Cloned>);

impl Redis {
    /// Takes a connection of yours: a `MultiplexedConnection`, a `ConnectionManager`, or what works like them.
    ///
    /// Decisions mean the same as on one that is made by [`open`](Self::open), and share calls as they do. What is
    /// yours stays yours:
    ///
    /// - To connect anew. A `MultiplexedConnection` that ended stays ended, and from then on policies decide by their
    ///   `on_error`; a `ConnectionManager` makes itself anew.
    /// - To send each command at most once. A connection that sends again what may have arrived charges twice.
    /// - The runtime that drives it, which must live as long as it is used, and its database, user and TLS.
    /// - Its response timeout (of the `redis` crate half a second by default), where that ends before the deadline.
    ///
    /// It must lead to one server that takes writes: a connection to a Cluster or a replica does not serve.
    pub fn from_connection(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        let route = Route::Owned(Owned(Box::new(connection)));
        Self { connections: Arc::new(Connections::new(route, default_names())), now: None }
    }
}

/// A connection that can be cloned without its type being known.
trait Cloned: ConnectionLike + Send + Sync {
    fn cloned(&self) -> Box<dyn Cloned>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Cloned for C {
    fn cloned(&self) -> Box<dyn Cloned> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Cloned> {
    fn clone(&self) -> Self {
        (**self).cloned()
    }
}

impl Owned {
    pub(super) fn get(&self) -> &dyn ConnectionLike {
        &*self.0
    }

    pub(super) fn get_mut(&mut self) -> &mut dyn ConnectionLike {
        &mut *self.0
    }
}
