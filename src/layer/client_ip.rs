use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::request::Parts;

use super::key::{KeyExtractor, NoKey};
use crate::key::KeyWriter;

/// The address at the other end of the connection.
///
/// Put it into a request's extensions where the server is neither axum's (which leaves
/// `ConnectInfo<SocketAddr>`) nor tonic's (`TcpConnectInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

/// Counts for each client address; made by [`client_ip`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ClientIp {
    ipv6_prefix: u8,
}

/// Counts for each client address: that of the peer, since headers can be forged.
///
/// An IPv4 address counts alone, also when it comes mapped into IPv6. IPv6 addresses count by their /64, the
/// least that a client is given (RFC 6177).
///
/// Needs to know the peer: with axum, serve with `into_make_service_with_connect_info::<SocketAddr>()`; with tonic,
/// enable the feature `tonic`. Where it is not known the request is answered with HTTP 500 and a text that says so, rather than counted together
/// with all others.
pub const fn client_ip() -> ClientIp {
    ClientIp { ipv6_prefix: 64 }
}

impl ClientIp {
    /// Sets how many bits of an IPv6 address are one client: 1 to 128.
    ///
    /// # Panics
    ///
    /// If `bits` is not 1 to 128.
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        self.ipv6_prefix = bits;
        self
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match peer(request).ok_or(NoKey::PeerUnknown)?.to_canonical() {
            IpAddr::V4(address) => dotted(address, |text| key.plain(text)),
            IpAddr::V6(address) => {
                let kept = u128::MAX << (128 - u32::from(self.ipv6_prefix));
                let network = Ipv6Addr::from_bits(address.to_bits() & kept);
                key.display(format_args!("{network}/{}", self.ipv6_prefix));
            }
        }
        Ok(())
    }
}

/// Writes an IPv4 address as text, for a fraction of what formatting costs.
fn dotted(address: Ipv4Addr, write: impl FnOnce(&[u8])) {
    let (mut text, mut len) = ([b'.'; 15], 0);
    for (i, octet) in address.octets().into_iter().enumerate() {
        len += usize::from(i > 0); // over a dot that is there
        for (place, worth) in [(100, 100), (10, 10), (1, 0)] {
            if octet >= worth {
                text[len] = b'0' + octet / place % 10;
                len += 1;
            }
        }
    }
    write(&text[..len]);
}

fn peer(request: &Parts) -> Option<IpAddr> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_written_as_the_standard_library_writes_it() {
        let octets = [0, 1, 9, 10, 11, 99, 100, 101, 109, 110, 199, 200, 255];
        for a in octets {
            for b in octets {
                let address = Ipv4Addr::new(a, b, 255 - a, 255 - b);
                dotted(address, |text| assert_eq!(text, address.to_string().as_bytes()));
            }
        }
    }
}
