//! Leases: one function a script, arguments in the order of its header.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{
    Redis, apart,
    limit::{Call, Names},
    script::{
        ACQUIRE, ACQUIRE_IN_TURN, ACQUIRE_PERMIT, EXTEND, EXTEND_PERMIT, FORCE, HAND_OVER, HOLDERS, RELEASE,
        RELEASE_IN_TURN, RELEASE_PERMIT,
    },
    wake,
};
use crate::{
    error::Error,
    key::Key,
    lease::{Acquired, Fence, Holder, Keeper, LeaseId, LeaseStore, Reply, Share, Terms, Token, Watch},
};

impl Names {
    /// Returns the name of a key about a lease, by its letter.
    fn lease(&self, letter: char, name: &Key) -> Vec<u8> {
        self.tagged("l1", letter, name)
    }

    /// Returns the name of a key of which one name's all lie in one slot.
    pub(super) fn tagged(&self, version: &str, letter: char, name: &Key) -> Vec<u8> {
        format!("{}:{version}:{{{:016x}}}:{letter}:{}", self.prefix, name.hash(), name.as_str()).into_bytes()
    }

    /// Returns the key of the last fence of a name.
    pub(super) fn counter(&self, name: &Key) -> Vec<u8> {
        self.lease(COUNTER, name)
    }

    /// Returns the key of a value that is written under fences.
    pub(super) fn fenced(&self, name: &Key) -> Vec<u8> {
        self.lease(FENCED, name)
    }

    /// Returns the channel on which waiters for a name are told.
    pub(super) fn channel(&self, name: &Key) -> Vec<u8> {
        format!("{}:wake:{}", self.prefix, name.bucket(CHANNELS)).into_bytes()
    }
}

impl LeaseStore for Redis {
    fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        let names = self.connections.names();
        if names.apart && id.names().len() > 1 {
            return apart::acquire(self.clone(), id, terms);
        }
        let token = id.token().to_string().into_bytes();
        let (ttl, label) = (ms(terms.ttl), terms.label.as_bytes().to_vec());
        let (script, call) = match id.share() {
            Share::OneOf(most) => {
                let keys = id.names().iter().take(1).map(|name| names.lease(PERMITS, name));
                (&ACQUIRE_PERMIT, Call::plain(keys, vec![token, ttl, number(most.get().into())]))
            }
            Share::InTurn(keep) => {
                let keys = id
                    .names()
                    .iter()
                    .take(1)
                    .flat_map(|name| [LEASE, COUNTER, QUEUE, PLACES].map(|letter| names.lease(letter, name)));
                (&ACQUIRE_IN_TURN, Call::plain(keys, vec![token, ttl, label, ms(keep)]))
            }
            _ => (&ACQUIRE, Call::plain(leases_and_counters(names, id), vec![token, ttl, label])),
        };
        let (is_permit, connections) = (matches!(id.share(), Share::OneOf(_)), Arc::clone(&self.connections));
        Reply::pending(async move { acquired(&connections.call(script, &call).await?, is_permit) })
    }

    fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
        let names = self.connections.names();
        if names.apart && (leases.len() > 1 || leases.iter().any(|(id, _)| id.names().len() > 1)) {
            return apart::extend(self.clone(), leases);
        }
        // Permits and leases are extended by scripts of their own.
        let (mut keys, mut counters, mut tokens, mut ttls) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut permits, mut permit_tokens, mut permit_ttls) = (Vec::new(), Vec::new(), Vec::new());
        let mut of = Vec::with_capacity(leases.len());
        for (id, ttl) in leases {
            let is_permit = matches!(id.share(), Share::OneOf(_));
            of.push((is_permit, id.names().len()));
            for name in id.names() {
                let (token, ttl) = (id.token().to_string().into_bytes(), ms(*ttl));
                if is_permit {
                    permits.push(names.lease(PERMITS, name));
                    permit_tokens.push(token);
                    permit_ttls.push(ttl);
                } else {
                    keys.push(names.lease(LEASE, name));
                    counters.push(names.lease(COUNTER, name));
                    tokens.push(token);
                    ttls.push(ttl);
                }
            }
        }
        keys.append(&mut counters);
        tokens.append(&mut ttls);
        permit_tokens.append(&mut permit_ttls);
        let calls = [(&EXTEND, keys, tokens), (&EXTEND_PERMIT, permits, permit_tokens)];
        let connections = Arc::clone(&self.connections);
        Reply::pending(async move {
            let mut answers = [Vec::new(), Vec::new()];
            for ((script, keys, arguments), answer) in calls.into_iter().zip(&mut answers) {
                if !keys.is_empty() {
                    *answer = integers(&connections.call(script, &Call::plain(keys, arguments)).await?)?;
                }
            }
            let mut answers = answers.map(Vec::into_iter);
            // A lease on several names is held if all of them are.
            let held = |(is_permit, count): (bool, usize)| {
                answers[usize::from(is_permit)].by_ref().take(count).filter(|held| *held == 1).count() == count
            };
            Ok(of.into_iter().map(held).collect())
        })
    }

    fn release(&self, id: &LeaseId) -> Reply<bool> {
        let names = self.connections.names();
        if names.apart && id.names().len() > 1 {
            return apart::release(self.clone(), id);
        }
        let mut arguments = vec![id.token().to_string().into_bytes()];
        id.names().iter().for_each(|name| arguments.extend([names.channel(name), name.as_bytes().to_vec()]));
        let letters: &[char] = match id.share() {
            Share::OneOf(_) => &[PERMITS],
            Share::InTurn(_) => &[LEASE, QUEUE, PLACES],
            _ => &[LEASE],
        };
        let keys = id.names().iter().flat_map(|name| letters.iter().map(|letter| names.lease(*letter, name)));
        let call = Call::plain(keys, arguments);
        let script = match id.share() {
            Share::OneOf(_) => &RELEASE_PERMIT,
            Share::InTurn(_) => &RELEASE_IN_TURN,
            _ => &RELEASE,
        };
        let (connections, count) = (Arc::clone(&self.connections), id.names().len() as u64);
        Reply::pending(async move { Ok(integer(&connections.call(script, &call).await?)? == count) })
    }

    fn hand_over(&self, from: &LeaseId, to: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        let names = self.connections.names();
        if names.apart && from.names().len() > 1 {
            // It would be no one step.
            return Reply::ready(Ok(Acquired::Taken { left: Duration::ZERO, name: 0 }));
        }
        let keys = leases_and_counters(names, from);
        let tokens = [from.token(), to.token()].map(|token| token.to_string().into_bytes());
        let [token, heir] = tokens;
        let call = Call::plain(keys, vec![token, heir, ms(terms.ttl), terms.label.as_bytes().to_vec()]);
        let connections = Arc::clone(&self.connections);
        Reply::pending(async move { acquired(&connections.call(&HAND_OVER, &call).await?, false) })
    }

    fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>> {
        let key = self.connections.names().lease(letter_of(share), name);
        let call = Call::plain([key], vec![number(MOST_HOLDERS)]);
        let connections = Arc::clone(&self.connections);
        Reply::pending(async move { holders(&connections.call(&HOLDERS, &call).await?) })
    }

    fn force(&self, name: &Key, share: Share) -> Reply<u64> {
        let names = self.connections.names();
        let keys = [letter_of(share), COUNTER].map(|letter| names.lease(letter, name));
        let call = Call::plain(keys, vec![names.channel(name), name.as_bytes().to_vec()]);
        let connections = Arc::clone(&self.connections);
        Reply::pending(async move { integer(&connections.call(&FORCE, &call).await?) })
    }

    fn watch(&self, name: &Key) -> Reply<Watch> {
        let (connections, name) = (Arc::clone(&self.connections), *name);
        Reply::pending(async move {
            let names = connections.names();
            let connection = connections.of_key(&names.lease(LEASE, &name)).await?;
            wake::watch(connection, names, &name).await
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn keeper(&self) -> &Keeper {
        self.connections.keeper()
    }
}

pub(super) fn leases_and_counters(names: &Names, id: &LeaseId) -> Vec<Vec<u8>> {
    [LEASE, COUNTER]
        .into_iter()
        .flat_map(|letter| id.names().iter().map(move |name| names.lease(letter, name)))
        .collect()
}

fn letter_of(share: Share) -> char {
    if matches!(share, Share::OneOf(_)) { PERMITS } else { LEASE }
}

pub(super) fn ms(time: Duration) -> Vec<u8> {
    time.as_millis().to_string().into_bytes()
}

pub(super) fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Reads fences, or how long somebody else holds which name.
fn acquired(reply: &Value, is_permit: bool) -> Result<Acquired, Error> {
    let numbers = integers(reply)?;
    match numbers.as_slice() {
        [0, left, name] => Ok(Acquired::Taken {
            left: Duration::from_millis(*left),
            name: usize::try_from(*name).map_err(|_| unreadable())?,
        }),
        [1, free] if is_permit => Ok(Acquired::Permit { free: u32::try_from(*free).map_err(|_| unreadable())? }),
        fences => Ok(Acquired::Held { fences: fences.iter().copied().map(Fence::from).collect() }),
    }
}

fn holders(reply: &Value) -> Result<Vec<Holder>, Error> {
    let Value::Array(values) = reply else { return Err(unreadable()) };
    let (now, found) = values.split_first().ok_or_else(unreadable)?;
    let now = integer(now)?;
    let holder = |pair: &[Value]| {
        let [number, Value::BulkString(text)] = pair else { return Err(unreadable()) };
        let (number, text) = (integer(number)?, std::str::from_utf8(text).map_err(|_| unreadable())?);
        let mut words = text.splitn(4, ' ');
        let token = words.next().and_then(read_token).ok_or_else(unreadable)?;
        let mut numbers = || words.next().and_then(|word| word.parse::<u64>().ok());
        Ok(match (numbers(), numbers()) {
            (Some(fence), Some(since)) => Holder::new(
                token,
                Some(fence.into()),
                Duration::from_micros(now.saturating_sub(since)),
                Duration::from_millis(number),
                words.next().unwrap_or_default().to_owned(),
            ),
            _ => {
                let left = Duration::from_micros(number.saturating_sub(now));
                Holder::new(token, None, Duration::ZERO, left, String::new())
            }
        })
    };
    found.chunks(2).map(holder).collect()
}

fn read_token(text: &str) -> Option<Token> {
    let mut bytes = [0; 16];
    if text.len() != 32 {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes.into())
}

pub(super) fn integers(reply: &Value) -> Result<Vec<u64>, Error> {
    match reply {
        Value::Array(values) => values.iter().map(integer).collect(),
        _ => Err(unreadable()),
    }
}

pub(super) fn integer(value: &Value) -> Result<u64, Error> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| unreadable()),
        _ => Err(unreadable()),
    }
}

pub(super) fn unreadable() -> Error {
    Error::store("redis answered what our script does not return")
}

/// What a key holds, by its letter.
const LEASE: char = 'l';
const COUNTER: char = 'f';
const QUEUE: char = 'q';
const PLACES: char = 'p';
const PERMITS: char = 's';
const FENCED: char = 'v';

/// Enough that a notice wakes few who do not wait for it, and few enough to subscribe to.
const CHANNELS: u16 = 256;

/// An operator reads no more.
const MOST_HOLDERS: u64 = 1_000;
