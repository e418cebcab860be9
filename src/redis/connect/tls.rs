use std::{
    fmt, io,
    sync::{Arc, OnceLock},
};

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisError,
    aio::{ConnectionLike, MultiplexedConnection},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem, pem::PemObject},
};
use tokio::{net::TcpStream, task::AbortHandle};
use tokio_rustls::TlsConnector;

use super::{
    Connections,
    route::{Handle, Route},
    server::Server,
};
use crate::{error::Error, redis::Redis};

/// Says which certificates count on connections to `rediss://`, and which one to show.
///
/// Without one, the server's certificate must come from an authority that the system trusts, and none is shown.
///
/// ```no_run
/// use tollgate::{Redis, Tls};
///
/// let ca = std::fs::read("ca.pem").expect("readable");
/// let (cert, key) = (std::fs::read("client.pem").expect("readable"), std::fs::read("client.key").expect("readable"));
/// let redis = Redis::open("rediss://redis.internal:6380")?.tls(&Tls::new().ca_pem(ca).client_pem(cert, key))?;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Tls {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Trusts what the system trusts, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities, one or more certificates in PEM, and no others.
    pub fn ca_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(certificates.into());
        self
    }

    /// Shows this certificate to a server that asks: it and its chain, and its private key, in PEM.
    pub fn client_pem(mut self, certificates: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some((certificates.into(), key.into()));
        self
    }

    /// Returns the authorities that are trusted; `None` if they are the system's.
    fn authorities(&self) -> Result<Option<RootCertStore>, Error> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("CA", ca)? {
            roots.add(certificate).map_err(|error| bad("CA", "has a certificate that is none").with_source(error))?;
        }
        Ok(Some(roots))
    }

    fn config(&self, roots: RootCertStore) -> Result<ClientConfig, Error> {
        // The provider is named, since which one the process has, or whether it has one, is the user's affair.
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("tls: no protocol version is left").with_source(error))?
            .with_root_certificates(roots);
        let Some((chain, key)) = &self.client else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates("client certificate", chain)?;
        let what = "client key";
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound if is_pem(key) => bad(what, "holds no private key"),
            pem::Error::NoItemsFound => bad(what, "is not PEM"),
            // Its text may tell a part of the key.
            _ => bad(what, "is damaged PEM"),
        })?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| bad("client certificate", "cannot be used with its key").with_source(error))
    }
}

/// Tells what is set, and nothing of what it is set to.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, client) = (self.ca.is_some(), self.client.is_some());
        f.debug_struct("Tls").field("ca", &ca).field("client", &client).finish()
    }
}

/// What connections to one server go by. The system's authorities are read by the first.
#[derive(Clone, Default)]
pub(super) struct Trust {
    tls: Tls,
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl Trust {
    /// Finds what is wrong before a server has to.
    fn new(tls: &Tls) -> Result<Self, Error> {
        let authorities = tls.authorities()?;
        let own = authorities.is_some();
        let config = tls.config(authorities.unwrap_or_else(RootCertStore::empty))?;
        let config = if own { OnceLock::from(Arc::new(config)) } else { OnceLock::new() };
        Ok(Self { tls: tls.clone(), config: config.into() })
    }

    pub(super) async fn connect(
        &self,
        info: &ConnectionInfo,
        settings: AsyncConnectionConfig,
    ) -> Result<Handle, RedisError> {
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(io::Error::other("there is no TLS but over TCP").into());
        };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let config = self.config()?;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        let (commands, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, settings).await?;
        let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
        Ok(Handle::Tls(Connection { commands, _driver: driver }))
    }

    fn config(&self) -> Result<Arc<ClientConfig>, io::Error> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
            let why = format!("the system trusts no authority that can be read; set Tls::ca_pem {}", why.join("; "));
            return Err(io::Error::other(why));
        }
        let config = Arc::new(self.tls.config(roots).map_err(io::Error::other)?);
        Ok(Arc::clone(self.config.get_or_init(|| config)))
    }
}

/// A connection by TLS.
#[derive(Clone)]
pub(in crate::redis) struct Connection {
    commands: MultiplexedConnection,
    _driver: Arc<Driver>,
}

impl Connection {
    pub(super) fn get(&self) -> &dyn ConnectionLike {
        &self.commands
    }

    pub(super) fn get_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.commands
    }
}

/// The task that reads and writes. By itself it would wait for what is under way, for ever with a server that is gone.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Redis {
    /// Sets whom to trust, and what to show, on connections to `rediss://`, `rediss+sentinel://` and `rediss+cluster://`.
    ///
    /// # Errors
    ///
    /// If the address is not one of these, or something is not what it should be: PEM, certificates, the key that
    /// belongs to them.
    pub fn tls(mut self, tls: &Tls) -> Result<Self, Error> {
        let trust = Trust::new(tls)?;
        let apply = |server: &Server| {
            let clear = || Error::invalid("tls: the address is not rediss://, and would be spoken to in the clear");
            server.trusting(&trust).ok_or_else(clear)
        };
        let route = match self.connections.route.clone() {
            Route::Server(server) => Route::Server(apply(&server)?),
            #[cfg(feature = "sentinel")]
            Route::Sentinels(sentinels) => Route::Sentinels(sentinels.each_server(apply)?),
            #[cfg(feature = "cluster")]
            Route::Cluster(seeds) => Route::Cluster(seeds.each_server(apply)?),
            #[cfg(feature = "redis-connection")]
            Route::Owned(_) => return Err(Error::invalid("tls: the connection is not made here")),
        };
        self.connections = Connections::new(route, self.connections.names.clone()).into();
        Ok(self)
    }
}

fn certificates(what: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) if is_pem(text) => Err(bad(what, "holds no certificate")),
        Ok(_) => Err(bad(what, "is not PEM")),
        Err(_) => Err(bad(what, "is damaged PEM")),
    }
}

fn is_pem(text: &[u8]) -> bool {
    let begin = b"-----BEGIN ";
    text.windows(begin.len()).any(|window| window == begin)
}

fn bad(what: &str, is: &str) -> Error {
    Error::invalid(format!("tls: the {what} {is}"))
}
