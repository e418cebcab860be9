use std::{
    collections::{HashMap, hash_map::Entry},
    hash::BuildHasher,
    net::IpAddr,
};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use http::request::Parts;

use crate::{
    error::Error,
    key::{Key, KeyWriter, Secrets},
    layer::{client_ip::Network, key::KeyExtractor},
    limit::{Policy, Quota},
};

/// What holds for one key in the place of a rule's quota.
///
/// ```
/// use tollgate::{Quota, layer::{Exception, Rule, header}};
///
/// let rule = Rule::new("api", Quota::per_minute(100))
///     .except(["203.0.113.7"], Exception::Quota(Quota::per_minute(1_000)))
///     .except(["198.51.100.0/24"], Exception::Blocked);
/// let by_tenant = Rule::new("tenant", Quota::per_minute(100))
///     .by((header("x-tenant"), header("x-region")))
///     .except(["large", "eu"], Exception::Unlimited);
/// # let _ = (rule, by_tenant);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exception {
    /// Another quota, counted as the rule counts; what is used stays when it changes.
    Quota(Quota),
    /// Another quota of a token bucket, and how many units that holds; an error for another algorithm.
    Bucket {
        /// The quota.
        quota: Quota,
        /// How many units the bucket holds.
        burst: u64,
    },
    /// The rule does not apply: nothing is charged, and nothing told.
    Unlimited,
    /// The request is refused with HTTP 403 (gRPC status 7).
    Blocked,
}

/// The exceptions of a rule, found without going through them.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions {
    /// Each of them once: many keys have the same.
    found: Vec<Found>,
    exact: HashTable<(Key, usize)>,
    hasher: RandomState,
    /// By the bits of a prefix, the longest first: what is shared of an address, and which exception it is.
    ranges: Vec<(u8, HashMap<u128, usize, RandomState>)>,
}

/// An exception, ready to be gone by.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Policy(Policy),
    Unlimited,
    Blocked,
}

impl Exceptions {
    /// Makes ready what was said of these values.
    pub(super) fn new(
        said: &[(Vec<String>, Exception)],
        policy: impl Fn(Quota, Option<u64>) -> Result<Policy, Error>,
        extractor: &dyn KeyExtractor,
        secrets: &Secrets,
    ) -> Result<Self, Error> {
        let mut all = Self::default();
        let mut places = HashMap::new();
        for (values, exception) in said {
            let place = match places.entry(exception) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(place) => {
                    all.found.push(match exception {
                        Exception::Quota(quota) => Found::Policy(policy(*quota, None)?),
                        Exception::Bucket { quota, burst } => Found::Policy(policy(*quota, Some(*burst))?),
                        Exception::Unlimited => Found::Unlimited,
                        Exception::Blocked => Found::Blocked,
                    });
                    *place.insert(all.found.len() - 1)
                }
            };
            let mut values = values.iter().map(String::as_str);
            let alone =
                |text: &str| text.parse().is_ok_and(|address: IpAddr| extractor.is_alone(address.to_canonical()));
            if values.len() == 1
                && let Some(range) = values.clone().next().filter(|text| !alone(text)).and_then(Network::parse)
            {
                let (bits, start) = range.bits_and_start();
                all.range(bits).insert(start, place);
            }
            let mut key = Key::EMPTY;
            let mut writer = KeyWriter::new(secrets, &mut key);
            extractor.write_values(&mut values, &mut writer);
            writer.finish();
            all.put(key, place);
        }
        Ok(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Finds the exception of a key: an exact one, else that of the longest range around the address.
    #[inline]
    pub(super) fn find(&self, key: &Key, extractor: &dyn KeyExtractor, request: &Parts) -> Option<&Found> {
        if self.found.is_empty() {
            return None;
        }
        let by_range = || {
            let address = if self.ranges.is_empty() { None } else { extractor.address(request) }?;
            let address = as_number(address);
            self.ranges.iter().find_map(|(bits, starts)| starts.get(&(address & mask(*bits))))
        };
        let exact = self.exact.find(self.hasher.hash_one(key.as_bytes()), |(other, _)| other == key);
        let place = exact.map(|(_, place)| *place).or_else(|| by_range().copied())?;
        self.found.get(place)
    }

    fn put(&mut self, key: Key, place: usize) {
        let hash = |key: &Key| self.hasher.hash_one(key.as_bytes());
        match self.exact.entry(hash(&key), |(other, _)| *other == key, |(other, _)| hash(other)) {
            hashbrown::hash_table::Entry::Occupied(mut entry) => entry.get_mut().1 = place,
            hashbrown::hash_table::Entry::Vacant(entry) => _ = entry.insert((key, place)),
        }
    }

    fn range(&mut self, bits: u8) -> &mut HashMap<u128, usize, RandomState> {
        let place = self.ranges.partition_point(|(other, _)| *other > bits);
        if self.ranges.get(place).is_none_or(|(other, _)| *other != bits) {
            self.ranges.insert(place, (bits, HashMap::default()));
        }
        &mut self.ranges[place].1
    }
}

/// Returns an address as one of IPv6, so that both families lie in one order.
fn as_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}
