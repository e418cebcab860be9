use std::{future, sync::Arc};

use redis::{
    Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

use super::{connection::Known, server::Server};
use crate::error::Error;

/// How to come to a connection.
#[derive(Clone)]
pub(in crate::redis) enum Route {
    Server(Server),
    #[cfg(feature = "sentinel")]
    Sentinels(super::sentinel::Sentinels),
    #[cfg(feature = "cluster")]
    Cluster(super::cluster::Seeds),
    #[cfg(feature = "redis-connection")]
    Owned(super::owned::Owned),
}

/// Something that takes commands.
#[derive(Clone)]
pub(in crate::redis) enum Handle {
    Ours(MultiplexedConnection),
    #[cfg(feature = "tls")]
    Tls(super::tls::Connection),
    #[cfg(feature = "redis-connection")]
    Owned(super::owned::Owned),
}

impl Route {
    /// Makes a connection; `known` is told once it ends.
    pub(super) async fn connect(&self, known: &Arc<Known>) -> Result<Handle, Error> {
        match self {
            Self::Server(server) => {
                server.connect(known).await.map_err(|error| Error::store("cannot connect to redis").with_source(error))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinels(sentinels) => sentinels.master(known).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => Err(Error::store("a redis cluster is no one server")),
            #[cfg(feature = "redis-connection")]
            Self::Owned(owned) => Ok(Handle::Owned(owned.clone())),
        }
    }

    /// Returns true if a new connection would lead where the last one led, as far as anybody can tell. Where another
    /// server may have taken over, the last one is no good when it comes back.
    pub(super) fn leads_to_one_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// Waits until a connection leads to a server that is not the one any more; for ever where nobody could tell.
    pub(super) async fn moved(&self, known: &Known) {
        #[cfg(feature = "sentinel")]
        if let (Self::Sentinels(sentinels), Some(master)) = (self, known.master.get()) {
            return sentinels.moved(master).await;
        }
        let _ = known;
        future::pending().await
    }
}

impl Handle {
    fn get(&self) -> &dyn ConnectionLike {
        match self {
            Self::Ours(connection) => connection,
            #[cfg(feature = "tls")]
            Self::Tls(connection) => connection.get(),
            #[cfg(feature = "redis-connection")]
            Self::Owned(owned) => owned.get(),
        }
    }

    fn get_mut(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Self::Ours(connection) => connection,
            #[cfg(feature = "tls")]
            Self::Tls(connection) => connection.get_mut(),
            #[cfg(feature = "redis-connection")]
            Self::Owned(owned) => owned.get_mut(),
        }
    }

    /// Subscribes to a channel; what is published there is heard by what is known of the connection.
    pub(super) async fn subscribe(&mut self, channel: &[u8]) -> Result<(), RedisError> {
        match self {
            Self::Ours(connection) => connection.subscribe(channel).await,
            #[cfg(feature = "tls")]
            Self::Tls(connection) => connection.get_mut().subscribe(channel).await,
            #[cfg(feature = "redis-connection")]
            Self::Owned(_) => Err((redis::ErrorKind::RESP3NotSupported, "what it hears goes to its owner").into()),
        }
    }

    pub(super) async fn unsubscribe(&mut self, channel: &[u8]) -> Result<(), RedisError> {
        match self {
            Self::Ours(connection) => connection.unsubscribe(channel).await,
            #[cfg(feature = "tls")]
            Self::Tls(connection) => connection.get_mut().unsubscribe(channel).await,
            #[cfg(feature = "redis-connection")]
            Self::Owned(_) => Ok(()),
        }
    }
}

impl ConnectionLike for Handle {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.get_mut().req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.get_mut().req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.get().get_db()
    }
}
