use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection, SendError},
};

use super::Known;
use crate::error::Error;

/// How to come to a connection.
#[derive(Clone)]
pub(in crate::redis) enum Route {
    Server(ConnectionInfo),
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
    #[cfg(feature = "redis-connection")]
    Owned(super::owned::Owned),
}

impl Route {
    /// Makes a connection; `known` is told once it ends.
    pub(super) async fn connect(&self, known: &Arc<Known>) -> Result<Handle, Error> {
        match self {
            Self::Server(info) => match connect(info, known).await {
                Ok(connection) => Ok(Handle::Ours(connection)),
                Err(error) => Err(Error::store("cannot connect to redis").with_source(error)),
            },
            #[cfg(feature = "sentinel")]
            Self::Sentinels(sentinels) => sentinels.master(known).await.map(Handle::Ours),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => Err(Error::store("a redis cluster is no one server")),
            #[cfg(feature = "redis-connection")]
            Self::Owned(owned) => Ok(Handle::Owned(owned.clone())),
        }
    }
}

impl Handle {
    fn get(&self) -> &dyn ConnectionLike {
        match self {
            Self::Ours(connection) => connection,
            #[cfg(feature = "redis-connection")]
            Self::Owned(owned) => owned.get(),
        }
    }

    fn get_mut(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Self::Ours(connection) => connection,
            #[cfg(feature = "redis-connection")]
            Self::Owned(owned) => owned.get_mut(),
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

/// Connects to a server; `known` is told once the connection ends.
pub(super) async fn connect(info: &ConnectionInfo, known: &Arc<Known>) -> Result<MultiplexedConnection, RedisError> {
    #[cfg(feature = "tls")]
    super::tls::choose_provider();
    // Deadlines are kept by whoever asks: a late answer is dropped there.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
    let closed = Arc::clone(known);
    let tell = move |push: PushInfo| -> Result<(), SendError> {
        if push.kind == PushKind::Disconnection {
            closed.broken.notify_one();
        }
        Ok(())
    };
    let resp3 = config.clone().set_push_sender(tell);
    // Only RESP3 has the crate tell at once when a connection ends.
    match client(info, ProtocolVersion::RESP3)?.get_multiplexed_async_connection_with_config(&resp3).await {
        // Some servers and proxies do not speak it.
        Err(error) if error.kind() == ErrorKind::RESP3NotSupported => {
            client(info, ProtocolVersion::RESP2)?.get_multiplexed_async_connection_with_config(&config).await
        }
        answer => answer,
    }
}

pub(super) fn client(info: &ConnectionInfo, protocol: ProtocolVersion) -> Result<Client, RedisError> {
    // Introducing itself would cost a right, and an old server an error in its log.
    let settings = info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
    Client::open(info.clone().set_redis_settings(settings))
}

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
