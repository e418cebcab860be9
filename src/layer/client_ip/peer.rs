use std::net::{IpAddr, SocketAddr};

use http::request::Parts;

/// The address at the other end of the connection.
///
/// Put it into a request's extensions where the server is neither axum's (which leaves
/// `ConnectInfo<SocketAddr>`) nor tonic's (`TcpConnectInfo`).
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tollgate::PeerAddr;
///
/// let peer = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 4_711)));
/// let request = Request::get("/").extension(peer).body(()).expect("a request");
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

/// Returns the address at the other end of the connection, if the server tells it.
pub(super) fn peer(request: &Parts) -> Option<IpAddr> {
    let extensions = &request.extensions;
    if let Some(PeerAddr(address)) = extensions.get() {
        return Some(address.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(address.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(mock) = extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>() {
        return Some(mock.0.ip());
    }
    // tonic leaves this for connections with and without TLS.
    #[cfg(feature = "tonic")]
    if let Some(address) = extensions.get().and_then(tonic::transport::server::TcpConnectInfo::remote_addr) {
        return Some(address.ip());
    }
    None
}
