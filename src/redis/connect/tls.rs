use std::fmt;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
};

use super::{Connections, route::Route};
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

    /// Finds what is wrong before a server has to.
    fn check(&self) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in certificates("CA", ca)? {
                roots
                    .add(certificate)
                    .map_err(|error| bad("CA", "has a certificate that is none").with_source(error))?;
            }
        }
        let Some((chain, key)) = &self.client else { return Ok(()) };
        let chain = certificates("client certificate", chain)?;
        let what = "client key";
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound if is_pem(key) => bad(what, "holds no private key"),
            pem::Error::NoItemsFound => bad(what, "is not PEM"),
            // Its text may tell a part of the key.
            _ => bad(what, "is damaged PEM"),
        })?;
        ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_root_certificates(roots).with_client_auth_cert(chain, key))
            .map(drop)
            .map_err(|error| bad("client certificate", "cannot be used with its key").with_source(error))
    }

    /// Returns the address of a server, with these certificates.
    fn applied(&self, info: &ConnectionInfo) -> Result<ConnectionInfo, Error> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(Error::invalid("tls: the address is not rediss://, and would be spoken to in the clear"));
        }
        let client_tls =
            self.client.clone().map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let certificates = TlsCertificates { client_tls, root_cert: self.ca.clone() };
        let client = Client::build_with_tls(info.clone(), certificates)
            .map_err(|error| Error::invalid("tls: the certificates cannot be used").with_source(error))?;
        Ok(client.get_connection_info().clone())
    }
}

/// Tells what is set, and nothing of what it is set to.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, client) = (self.ca.is_some(), self.client.is_some());
        f.debug_struct("Tls").field("ca", &ca).field("client", &client).finish()
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
        tls.check()?;
        let route = match self.connections.route.clone() {
            Route::Server(info) => Route::Server(tls.applied(&info)?),
            #[cfg(feature = "sentinel")]
            Route::Sentinels(sentinels) => Route::Sentinels(sentinels.each_server(|info| tls.applied(info))?),
            #[cfg(feature = "cluster")]
            Route::Cluster(seeds) => Route::Cluster(seeds.each_server(|info| tls.applied(info))?),
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

/// Makes ring this process's provider of cryptography if it has none.
///
/// The client asks rustls for the process's, which panics where two are compiled in and none is chosen.
pub(super) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if somebody else has just chosen.
        let _ = ring::default_provider().install_default();
    }
}
