use std::net::IpAddr;

use http::{HeaderName, request::Parts};

use super::{
    forwarded::{address, address_with_port, elements, forwarded_for, last_comma, last_unquoted_comma},
    network::Network,
};

/// Where the address of the client stands.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// At the other end of the connection.
    Peer,
    /// In a list, behind the last address that is not one of these.
    Beyond(List, Vec<Network>),
    /// In a list, so many places from its end.
    Back(List, usize),
    /// Alone in a header; if there are ranges, only when the peer lies in one of them.
    Alone(HeaderName, Vec<Network>),
}

/// A header to which each proxy appends from whom it has the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    XForwardedFor,
    Forwarded,
}

impl Source {
    /// Returns the address of the client; `None` if that is the peer's and it is not known.
    ///
    /// Where the header does not tell, this is the nearest address that a trusted proxy vouches for.
    pub(super) fn client(&self, request: &Parts, peer: Option<IpAddr>) -> Option<IpAddr> {
        match self {
            Self::Peer => peer,
            Self::Beyond(list, trusted) => {
                let mut client = peer?;
                let mut hops = list.hops(request);
                while trusted.iter().any(|network| network.contains(client)) {
                    match hops.next().flatten() {
                        Some(hop) => client = hop,
                        // Nothing further left can be believed, since nobody knows who wrote it.
                        None => break,
                    }
                }
                Some(client)
            }
            Self::Back(list, count) => {
                let (mut nearest, mut hops) = (peer, list.hops(request));
                for _ in 0..*count {
                    // Fewer than there are proxies: it did not come by way of them.
                    let Some(hop) = hops.next() else { return peer };
                    nearest = hop.or(nearest);
                }
                nearest
            }
            Self::Alone(name, trusted) => {
                let inside = |peer: IpAddr| trusted.iter().any(|network| network.contains(peer));
                if !trusted.is_empty() && !inside(peer?) {
                    return peer;
                }
                let mut lines = request.headers.get_all(name).iter();
                let (first, second) = (lines.next(), lines.next());
                let read = if *name == CLOUDFRONT { address_with_port } else { address };
                // Two lines are as good as none: one of them may be the client's.
                first
                    .filter(|_| second.is_none())
                    .and_then(|line| read(line.as_bytes()))
                    .map(|ip| ip.to_canonical())
                    .or(peer)
            }
        }
    }
}

impl List {
    /// Returns the list of that name; any other header holds one address.
    pub(super) fn named(name: &HeaderName) -> Option<Self> {
        match name.as_str() {
            "x-forwarded-for" => Some(Self::XForwardedFor),
            "forwarded" => Some(Self::Forwarded),
            _ => None,
        }
    }

    fn name(self) -> HeaderName {
        match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => http::header::FORWARDED,
        }
    }

    /// Goes through the hops of all lines, the nearest first; `None` is one whose address cannot be read.
    fn hops(self, request: &Parts) -> impl Iterator<Item = Option<IpAddr>> {
        type Read = (fn(&[u8]) -> Option<usize>, fn(&[u8]) -> Option<IpAddr>);
        let (comma, read): Read = match self {
            Self::XForwardedFor => (last_comma, address),
            Self::Forwarded => (last_unquoted_comma, forwarded_for),
        };
        let lines = request.headers.get_all(self.name()).iter().rev();
        lines
            .flat_map(move |line| elements(line.as_bytes(), comma))
            .map(move |element| read(element).map(|address| address.to_canonical()))
    }
}

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Has the port behind an IPv6 address without brackets.
const CLOUDFRONT: HeaderName = HeaderName::from_static("cloudfront-viewer-address");
