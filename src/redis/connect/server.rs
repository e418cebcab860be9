use std::{fmt, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, aio::SendError, io::tcp::TcpSettings,
};
use tokio::time;

#[cfg(feature = "tls")]
use super::tls::Trust;
use super::{connection::Known, route::Handle};

/// Where a server is, and how it is spoken to.
#[derive(Clone)]
pub(in crate::redis) struct Server {
    info: ConnectionInfo,
    /// Whom to trust, if it is spoken to by TLS.
    #[cfg(feature = "tls")]
    tls: Option<Trust>,
}

impl Server {
    /// Reads an address of the forms that the client knows, and the same with TLS.
    pub(super) fn read(url: &str) -> Result<Self, RedisError> {
        let by_tls = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "rediss" | "valkeys"));
        let plain = by_tls.map(|(_, rest)| format!("redis://{rest}"));
        let info = plain.as_deref().unwrap_or(url).into_connection_info()?;
        Ok(Self {
            // Small writes must not wait for the acknowledgement of the ones before them.
            info: info.set_tcp_settings(TcpSettings::default().set_nodelay(true)),
            #[cfg(feature = "tls")]
            tls: by_tls.map(|_| Trust::default()),
        })
    }

    /// Returns another server that is spoken to in the same way.
    #[cfg(any(feature = "sentinel", feature = "cluster"))]
    pub(super) fn at(&self, host: String, port: u16) -> Self {
        let mut server = self.clone();
        server.info = server.info.set_addr(redis::ConnectionAddr::Tcp(host, port));
        server
    }

    #[cfg(feature = "cluster")]
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        match self.info.addr() {
            redis::ConnectionAddr::Tcp(host, port) => (host, *port),
            _ => ("", 0),
        }
    }

    /// Returns the same with another trust; `None` if it is spoken to in the clear.
    #[cfg(feature = "tls")]
    pub(super) fn trusting(&self, trust: &Trust) -> Option<Self> {
        self.tls.as_ref()?;
        Some(Self { tls: Some(trust.clone()), ..self.clone() })
    }

    /// Connects; `known` is told once the connection ends.
    pub(super) async fn connect(&self, known: &Arc<Known>) -> Result<Handle, RedisError> {
        let closed = Arc::clone(known);
        let tell = move |push: PushInfo| -> Result<(), SendError> {
            if push.kind == PushKind::Disconnection {
                closed.breaks();
            }
            if push.kind == PushKind::Message {
                closed.wakes.hear(&push.data);
            }
            Ok(())
        };
        let connect = async {
            // Only RESP3 has the crate tell at once when a connection ends.
            match self.open(ProtocolVersion::RESP3, config().set_push_sender(tell)).await {
                // Some servers and proxies do not speak it.
                Err(error) if error.kind() == ErrorKind::RESP3NotSupported => {
                    self.open(ProtocolVersion::RESP2, config()).await
                }
                answer => answer,
            }
        };
        // The name is looked up each time: it may lead elsewhere by now.
        time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_else(|_| Err(too_long(CONNECT_TIMEOUT)))
    }

    /// Connects for a question or two, for as long as the caller waits.
    #[cfg(feature = "sentinel")]
    pub(super) async fn connect_once(&self) -> Result<Handle, RedisError> {
        self.open(ProtocolVersion::RESP2, config()).await
    }

    async fn open(&self, protocol: ProtocolVersion, config: AsyncConnectionConfig) -> Result<Handle, RedisError> {
        // Introducing itself would cost a right, and an old server an error in its log.
        let settings = self.info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
        let info = self.info.clone().set_redis_settings(settings);
        #[cfg(feature = "tls")]
        if let Some(trust) = &self.tls {
            return trust.connect(&info, config).await;
        }
        let connection = Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Handle::Ours(connection))
    }
}

/// Tells where it is, and nothing of how it is spoken to.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.addr().fmt(f)
    }
}

/// Deadlines are kept by whoever asks: a late answer is dropped there.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

fn too_long(time: Duration) -> RedisError {
    (ErrorKind::Io, "no connection in time", format!("it took longer than {time:?}")).into()
}

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
