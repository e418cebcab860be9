//! `RateLimit` and `RateLimit-Policy` as Lists of named items, as of draft-ietf-httpapi-ratelimit-headers-11.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{RATE_LIMIT, RATE_LIMIT_POLICY, items::items, partition::PartitionKey};
use crate::{
    layer::{
        text::{Text, value},
        warn,
    },
    limit::{Outcome, Quota},
};

/// The values of both fields.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) policies: HeaderValue,
    pub(super) states: HeaderValue,
}

impl Lists {
    pub(super) fn write(self, headers: &mut HeaderMap) {
        // Names that are given away need not be cloned.
        if headers.append(RATE_LIMIT_POLICY, self.policies) {
            join(headers, RATE_LIMIT_POLICY);
        }
        if headers.append(RATE_LIMIT, self.states) {
            join(headers, RATE_LIMIT);
        }
    }
}

/// Returns the value of `RateLimit-Policy`: name, quota and window of each (section 3 of the draft).
///
/// A window that is not whole seconds has no `w`, since the draft has no way to say it.
pub(super) fn policies<'a>(policies: impl Iterator<Item = (&'a str, Quota)> + Clone) -> HeaderValue {
    value(policies.clone().count() * ITEM, |text| {
        for (i, (name, quota)) in policies.enumerate() {
            begin(text, i, name);
            text.raw(";q=");
            text.integer(quota.limit());
            if quota.window().subsec_millis() == 0 {
                text.raw(";w=");
                text.integer(quota.window().as_secs());
            }
        }
    })
}

/// Returns the value of `RateLimit`: name, units left and seconds until there is one more (section 4 of the draft).
pub(super) fn states(outcomes: &[Outcome], partitions: Option<&[PartitionKey]>) -> HeaderValue {
    value(outcomes.len() * ITEM, |text| {
        for (i, outcome) in outcomes.iter().enumerate() {
            begin(text, i, outcome.policy());
            let standing = outcome.standing();
            text.raw(";r=");
            text.integer(standing.remaining.into());
            text.raw(";t=");
            text.integer(standing.next.div_ceil(1_000_000));
            if let Some(partition) = partitions.and_then(|partitions| partitions.get(i)) {
                text.raw(";pk=:");
                text.raw(partition.as_str());
                text.raw(":");
            }
        }
    })
}

/// Tells of a limit of requests at a time: how many there may be, and for how many more there was room, if that is known
/// (section 3.1.1 of the draft: the unit is `concurrent-requests`, and there is no window).
pub(in crate::layer) fn write_concurrency(headers: &mut HeaderMap, name: &str, most: u32, free: Option<u32>) {
    let policy = value(ITEM, |text| {
        text.string(name);
        text.raw(";q=");
        text.integer(most.into());
        text.raw(";qu=\"concurrent-requests\"");
    });
    write_beside(headers, RATE_LIMIT_POLICY, policy);
    if let Some(free) = free {
        let state = value(ITEM, |text| {
            text.string(name);
            text.raw(";r=");
            text.integer(free.into());
        });
        write_beside(headers, RATE_LIMIT, state);
    }
}

fn begin(text: &mut Text<'_>, place: usize, name: &str) {
    if place > 0 {
        text.raw(", ");
    }
    text.string(name);
}

/// The most bytes of an item: a name of 64 in quotes, two parameters of 18, a partition key of 30, and a comma.
const ITEM: usize = 64 + 2 + 2 * 18 + 30 + 2;

/// Adds a field to those of a response, inner first, and what an inner layer has named too not a second time: clients join both fields
/// by names.
fn write_beside(headers: &mut HeaderMap, field: HeaderName, value: HeaderValue) {
    if headers.append(&field, value) {
        join(headers, field);
    }
}

/// Puts the last line of a field in order with those before it.
#[cold]
fn join(headers: &mut HeaderMap, field: HeaderName) {
    let mut lines: Vec<HeaderValue> = headers.get_all(&field).iter().cloned().collect();
    let Some(added) = lines.pop() else { return };
    let mut new: Vec<&[u8]> = Vec::new();
    for item in items(&added) {
        let name = item.name.unwrap_or_default();
        if lines.iter().any(|line| items(line).any(|other| other.name == Some(name))) {
            warn::NAME_TWICE.tell(format_args!(
                "two nested layers have a rule of the name `{}`; the outer one is not told to clients, so give it another",
                String::from_utf8_lossy(name)
            ));
        } else {
            new.push(item.text);
        }
    }
    // What is of another dialect is left alone: one List of both would be neither.
    if !new.is_empty() && lines.iter().all(|line| items(line).all(|item| item.name.is_some())) {
        lines.push(HeaderValue::from_bytes(&new.join(&b", "[..])).expect("parts of a value are one"));
    }
    headers.remove(&field);
    for line in lines {
        headers.append(&field, line);
    }
}
