mod forwarded;
mod network;
mod peer;
mod source;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderName, request::Parts};

pub(super) use self::network::Network;
pub use self::peer::PeerAddr;
use self::{
    peer::peer,
    source::{List, Source, X_FORWARDED_FOR},
};
use super::{
    key::{KeyExtractor, NoKey},
    warn,
};
use crate::{error::Error, key::KeyWriter};

/// Counts for each client address; made by [`client_ip`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientIp {
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    /// What was asked for; whether it makes sense is known when a layer takes it.
    trust: Option<Vec<String>>,
    hops: Option<usize>,
    header: Option<String>,
    /// What that comes to: the peer for as long as it makes no sense.
    source: Source,
}

/// Counts for each client address: that of the peer, since headers can be forged.
///
/// An IPv4 address counts alone, also when it comes mapped into IPv6. IPv6 addresses count by their /64, the
/// least that a client is given (RFC 6177). Several prefixes at once are several rules.
///
/// Needs to know the peer: with axum, serve with `into_make_service_with_connect_info::<SocketAddr>()`; with tonic,
/// enable the feature `tonic`. Where it is not known the request is answered with HTTP 500 and a text that says so, rather
/// than counted together with all others.
///
/// # Behind proxies
///
/// Say which header to believe, and why, in one of these ways. [The manual](crate::guide::proxies) has the lines for
/// well-known ones.
///
/// ```
/// use tollgate::layer::client_ip;
///
/// // The proxies' addresses are known: the client is the last address that is none of theirs.
/// let by_address = client_ip().trust(["10.0.0.0/8", "2001:db8:1::/48"]);
/// // They are not, but how many there are: each appends one element, so the client's is the second from the end.
/// let by_count = client_ip().hops(2);
/// // The same with the header of RFC 7239 in the place of `X-Forwarded-For`.
/// let by_forwarded = client_ip().hops(1).header("forwarded");
/// // A provider writes the address into a header of its own, and nobody can reach the server but by way of it.
/// let by_provider = client_ip().header("cf-connecting-ip");
/// # let _ = (by_address, by_count, by_forwarded, by_provider);
/// ```
///
/// One header is read and never another: a proxy that sets one passes the client's own of the other kind on. What
/// cannot be read as an address (`unknown`, `_hidden`, nonsense) stops the search: the client is then the nearest
/// trusted proxy to its right, or the peer. A header that should hold one address and has two lines, or two addresses,
/// counts as absent, which gives the peer.
pub const fn client_ip() -> ClientIp {
    ClientIp { ipv4_prefix: 32, ipv6_prefix: 64, trust: None, hops: None, header: None, source: Source::Peer }
}

impl ClientIp {
    /// Trusts proxies at these addresses, such as `10.0.0.0/8` or `2001:db8::1`; called again, at these too.
    ///
    /// The header (`X-Forwarded-For` if nothing else is [named](Self::header)) is read only if the peer is one of them,
    /// and in a list the client is the last address that is none of them.
    pub fn trust<N: AsRef<str>>(mut self, networks: impl IntoIterator<Item = N>) -> Self {
        let networks = networks.into_iter().map(|network| network.as_ref().to_owned());
        self.trust.get_or_insert_default().extend(networks);
        self.resolved()
    }

    /// Trusts so many proxies, wherever they are: the client is that element of the list, counted from its end.
    ///
    /// One is a single proxy in front. Each proxy must append to the header; a list with fewer elements counts as
    /// absent. Nobody must be able to reach the server but by way of them.
    pub fn hops(mut self, proxies: usize) -> Self {
        self.hops = Some(proxies);
        self.resolved()
    }

    /// Reads this header; the default is `X-Forwarded-For`.
    ///
    /// `x-forwarded-for` and `forwarded` are lists, and need [`trust`](Self::trust) or [`hops`](Self::hops). Any other
    /// holds one address, and is believed from every peer unless `trust` says from which.
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.header = Some(name.into());
        self.resolved()
    }

    /// Sets how many bits of an IPv6 address are one client: 1 to 128; the default is 64.
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    /// Sets how many bits of an IPv4 address are one client: 1 to 32; the default is 32.
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.ipv4_prefix = bits;
        self
    }

    fn resolved(mut self) -> Self {
        self.source = self.resolve().unwrap_or(Source::Peer);
        self
    }

    fn resolve(&self) -> Result<Source, Error> {
        let header = self.header.as_deref().unwrap_or("x-forwarded-for");
        let name: HeaderName = header.parse().map_err(|_| {
            let header = header.escape_debug();
            Error::invalid(format!("client address: `{header}` is not a header name; write one like `x-forwarded-for`"))
        })?;
        let trusted = self.trust.as_ref().map(|networks| trusted(networks)).transpose()?;
        let wrong = |what: String| Err(Error::invalid(format!("client address: {what}")));
        match (trusted, self.hops, List::named(&name)) {
            (Some(_), Some(_), _) => wrong(
                "`trust` and `hops` together; write `trust` where the proxies' addresses are known, else `hops` alone"
                    .to_owned(),
            ),
            (_, Some(0), _) => wrong(
                "no hops; leave `hops` and `header` out to count by the peer, or write how many proxies there are"
                    .to_owned(),
            ),
            (_, Some(_), None) => wrong(format!(
                "`hops` counts the elements of a list, and `{name}` holds one address; leave `hops` out, or write \
                 `trust` with the proxies' addresses"
            )),
            (None, None, Some(_)) if self.header.is_none() => Ok(Source::Peer),
            (None, None, Some(_)) => wrong(format!(
                "`{name}` without `trust` or `hops` could be the client's own; write `trust` with the proxies' \
                 addresses, or `hops` with how many there are"
            )),
            (Some(trusted), None, Some(list)) => Ok(Source::Beyond(list, trusted)),
            (None, Some(count), Some(list)) => Ok(Source::Back(list, count)),
            (trusted, None, None) => Ok(Source::Alone(name, trusted.unwrap_or_default())),
        }
    }
}

fn trusted(networks: &[String]) -> Result<Vec<Network>, Error> {
    if networks.is_empty() {
        let what = "client address: `trust` names nobody; leave it out to count by the peer";
        return Err(Error::invalid(what));
    }
    let parse = |text: &String| {
        Network::parse(text).ok_or_else(|| {
            let text = text.escape_debug();
            Error::invalid(format!(
                "client address: `trust` of `{text}`: not a range of addresses; write `10.0.0.0/8`, `2001:db8::/32` or \
                 one address"
            ))
        })
    };
    networks.iter().map(parse).collect()
}

impl KeyExtractor for ClientIp {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        self.write(self.client(request).ok_or(NoKey::PeerUnknown)?, key);
        Ok(())
    }

    fn address(&self, request: &Parts) -> Option<IpAddr> {
        self.client(request)
    }

    fn is_alone(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.ipv4_prefix >= 32 } else { self.ipv6_prefix >= 128 }
    }

    fn write_values(&self, values: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
        match values.next().unwrap_or_default() {
            // As long as the prefix or longer: one address is no network of many.
            text if text.contains('/') => key.text(text),
            text => match text.parse::<IpAddr>() {
                Ok(address) if self.is_alone(address.to_canonical()) => self.write(address.to_canonical(), key),
                _ => key.text(text),
            },
        }
    }

    fn tells_apart(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), Error> {
        let source = self.resolve()?;
        if let Source::Beyond(_, trusted) | Source::Alone(_, trusted) = &source
            && trusted.iter().any(Network::is_everything)
        {
            warn::TRUSTS_EVERYBODY.tell(
                "a rule trusts proxies at all addresses, so clients can choose the address that they are counted by; \
                 write the proxies' ranges, or `hops` with how many there are",
            );
        }
        for (family, bits, most) in [("ipv4_prefix", self.ipv4_prefix, 32), ("ipv6_prefix", self.ipv6_prefix, 128)] {
            if !(1..=most).contains(&bits) {
                let what = format!("client address: `{family}` of {bits}: write 1 to {most} bits");
                return Err(Error::invalid(what));
            }
        }
        Ok(())
    }
}

impl ClientIp {
    /// Returns the address that is counted for, as a whole.
    fn client(&self, request: &Parts) -> Option<IpAddr> {
        let peer = peer(request).map(|peer| peer.to_canonical());
        match &self.source {
            Source::Peer => {
                look_for_proxies(request);
                peer
            }
            source => source.client(request, peer),
        }
    }

    fn write(&self, client: IpAddr, key: &mut KeyWriter<'_>) {
        match client {
            IpAddr::V4(address) if self.ipv4_prefix >= 32 => {
                let (text, len) = dotted(address);
                key.plain_word(text, len);
            }
            IpAddr::V4(address) => {
                let kept = u32::MAX.checked_shl(32 - u32::from(self.ipv4_prefix)).unwrap_or(0);
                let network = Ipv4Addr::from_bits(address.to_bits() & kept);
                key.display(format_args!("{network}/{}", self.ipv4_prefix));
            }
            IpAddr::V6(address) => {
                let kept = u128::MAX.checked_shl(u32::from(128 - self.ipv6_prefix.min(128))).unwrap_or(0);
                let network = Ipv6Addr::from_bits(address.to_bits() & kept);
                key.display(format_args!("{network}/{}", self.ipv6_prefix));
            }
        }
    }
}

/// Warns where a proxy tells for whom it asks, and nobody listens: then all clients are one.
fn look_for_proxies(request: &Parts) {
    if warn::FORWARDED_NOT_TRUSTED.is_told() || !warn::is_sampled() {
        return;
    }
    if let Some(name) = PROXY_HEADERS.iter().find(|name| request.headers.contains_key(*name)) {
        warn::FORWARDED_NOT_TRUSTED.tell(format_args!(
            "a request has the header `{name}`, and a rule counts by the address of the peer; if that is a proxy of \
             yours, all clients behind it share one budget: write `client_ip().trust([...])` with its address or \
             `client_ip().hops(1)`; if not, clients send it and it is rightly ignored"
        ));
    }
}

const PROXY_HEADERS: [HeaderName; 6] = [
    X_FORWARDED_FOR,
    http::header::FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("fly-client-ip"),
];

/// Returns an IPv4 address as text, the first character in the lowest byte, for a fraction of what formatting costs.
fn dotted(address: Ipv4Addr) -> (u128, usize) {
    let (mut text, mut len) = (0, 0);
    for octet in address.octets() {
        let (digits, count) = OCTETS[usize::from(octet)];
        text |= u128::from(digits) << (8 * len);
        len += count;
    }
    // Without the last dot.
    len -= 1;
    (text & ((1 << (8 * len)) - 1), len)
}

/// The digits of each octet and a dot, and how many characters that are.
static OCTETS: [(u32, usize); 256] = {
    let mut octets = [(0, 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let mut i = if octet >= 100 {
            0
        } else if octet >= 10 {
            1
        } else {
            2
        };
        let (mut text, mut len) = (0, 0);
        while i < 3 {
            text |= (b'0' as u32 + digits[i]) << (8 * len);
            (len, i) = (len + 1, i + 1);
        }
        octets[octet as usize] = (text | (b'.' as u32) << (8 * len), len + 1);
        octet += 1;
    }
    octets
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_written_as_the_standard_library_writes_it() {
        let octets = [0, 1, 9, 10, 11, 99, 100, 101, 109, 110, 199, 200, 255];
        for a in octets {
            for b in octets {
                let address = Ipv4Addr::new(a, b, 255 - a, 255 - b);
                let (text, len) = dotted(address);
                assert_eq!(&text.to_le_bytes()[..len], address.to_string().as_bytes());
                assert_eq!(text >> (8 * len), 0, "zeros behind it");
            }
        }
    }
}
