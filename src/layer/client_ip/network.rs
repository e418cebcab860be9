use std::net::IpAddr;

/// A range of addresses: those that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layer) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reads `10.0.0.0/8`, `2001:db8::/32`, or one address. Bits behind the prefix mean nothing.
    ///
    /// A range of IPv4 addresses that is mapped into IPv6, `::ffff:10.0.0.0/104`, is that range of IPv4 addresses.
    pub(in crate::layer) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) if bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (address, Some(bits.parse().ok()?))
            }
            Some(_) => return None,
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = bits.unwrap_or(width(address));
        if bits > width(address) {
            return None;
        }
        Some(match address.to_canonical() {
            v4 @ IpAddr::V4(_) if address.is_ipv6() => Self { address: v4, bits: bits.checked_sub(MAPPED)? },
            _ => Self { address, bits },
        })
    }

    /// Returns how many bits of an address of IPv6 the range shares, and its first address as one.
    pub(in crate::layer) fn bits_and_start(&self) -> (u8, u128) {
        let (bits, address) = match self.address {
            IpAddr::V4(address) => (self.bits + MAPPED, address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) => (self.bits, address.to_bits()),
        };
        (bits, address & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0))
    }

    /// Returns true if a canonical address lies in the range.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }

    /// Returns true if all addresses of the family lie in the range.
    pub(super) fn is_everything(&self) -> bool {
        self.bits == 0
    }
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The bits before an IPv4 address that is mapped into IPv6 (RFC 4291, section 2.5.5.2).
const MAPPED: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_shares_its_first_bits() {
        for (range, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3/8", "10.9.9.9", "9.255.255.255"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.0"),
            ("192.0.2.0/31", "192.0.2.1", "192.0.2.2"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("::/0", "2001:db8::1", "1.2.3.4"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("::1", "::1", "::2"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.0"),
            ("::ffff:a00:1", "10.0.0.1", "10.0.0.2"),
        ] {
            let network = Network::parse(range).expect(range);
            assert!(network.contains(inside.parse().expect("an address")), "{range} {inside}");
            assert!(!network.contains(outside.parse().expect("an address")), "{range} {outside}");
        }
    }

    #[test]
    fn what_is_no_range_is_told_from_one() {
        for wrong in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/0008",
            "10.0.0.0/255.0.0.0",
            "10.0.0/8",
            "10.0.0.0/8 ",
            "::/129",
            "[::1]",
            "[::1]/128",
            "fe80::1%1",
            "localhost",
            "::ffff:10.0.0.0/95",
            "010.0.0.0/8",
        ] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }
}
