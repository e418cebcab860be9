use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Memory, clock::micros};
use crate::{
    error::Error,
    key::Key,
    lease::{self, Begin, Begun, LeaseStore, Notices, OnUnknown, RecordStore, Reply, Token, Watch},
    limit::Micros,
};

/// All records of a store in memory.
pub(super) struct Records {
    notices: Notices,
    most: usize,
    most_bytes: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    records: HashMap<Key, Record>,
    bytes: usize,
    /// How many there may be before those are looked for that have ended.
    sweep_at: usize,
}

struct Record {
    token: Token,
    attempt: u32,
    fence: u64,
    print: Vec<u8>,
    state: State,
    /// When the record is forgotten.
    ends: Micros,
}

enum State {
    Running { until: Micros },
    Done { outcome: Vec<u8> },
}

impl Records {
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        Self { notices: Notices::default(), most, most_bytes, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, name: &Key, ask: &Begin, now: Micros) -> Result<Begun, Error> {
        let mut table = self.lock();
        let (mut attempt, mut fence) = (0, 0);
        if let Some(record) = table.records.get(name).filter(|record| record.ends > now) {
            let print = || record.print.clone();
            (attempt, fence) = (record.attempt, record.fence);
            if record.token != ask.token {
                match &record.state {
                    State::Done { outcome } => return Ok(Begun::Done { outcome: outcome.clone(), print: print() }),
                    State::Running { until } if *until > now => {
                        return Ok(Begun::Running { left: Duration::from_micros(until - now), print: print() });
                    }
                    State::Running { .. } if ask.on_unknown == OnUnknown::Park => {
                        return Ok(Begun::Unknown { attempt, print: print() });
                    }
                    State::Running { .. } => {}
                }
            } else if matches!(record.state, State::Done { .. }) {
                return Ok(Begun::Started { attempt, fence: fence.into() });
            }
            if record.token != ask.token {
                (attempt, fence) = (attempt.saturating_add(1), (fence + 1).max(now));
            }
        } else {
            (attempt, fence) = (attempt + 1, fence.max(now));
        }
        let (state, keep) = match &ask.outcome {
            Some(outcome) => (State::Done { outcome: outcome.clone() }, ask.retain),
            None => {
                let until = now.saturating_add(micros(ask.lease));
                (State::Running { until }, ask.lease.saturating_add(ask.retain))
            }
        };
        let ends = now.saturating_add(micros(keep));
        let record = Record { token: ask.token, attempt, fence, print: ask.print.clone(), state, ends };
        self.put(&mut table, *name, record, now)?;
        Ok(Begun::Started { attempt, fence: fence.into() })
    }

    /// Puts a record in its place; fails if there is no room for it.
    fn put(&self, table: &mut Table, name: Key, record: Record, now: Micros) -> Result<(), Error> {
        let old = table.records.get(&name).map_or(0, Record::bytes);
        let new = record.bytes();
        let is_full = |table: &Table| {
            let count = table.records.len() + usize::from(old == 0);
            count > self.most || table.bytes - old + new > self.most_bytes
        };
        if table.records.len() >= table.sweep_at || is_full(table) {
            table.sweep(&name, now);
        }
        if is_full(table) {
            return Err(Error::store("memory is full of records; set Memory::max_keys or Memory::max_record_bytes"));
        }
        table.bytes = table.bytes - old + new;
        table.records.insert(name, record);
        Ok(())
    }

    fn extend(&self, name: &Key, token: Token, lease: Duration, now: Micros) -> bool {
        let mut table = self.lock();
        let Some(record) = table.records.get_mut(name) else { return false };
        match &mut record.state {
            State::Running { until } if record.token == token && *until > now => {
                let new = now.saturating_add(micros(lease));
                record.ends = record.ends.saturating_add(new.saturating_sub(*until));
                *until = new;
                true
            }
            _ => false,
        }
    }

    fn complete(&self, name: &Key, token: Token, outcome: &[u8], retain: Duration, now: Micros) -> Result<bool, Error> {
        let mut table = self.lock();
        let Some(record) = table.records.get(name).filter(|record| record.ends > now && record.token == token) else {
            return Ok(false);
        };
        if matches!(record.state, State::Done { .. }) {
            return Ok(true);
        }
        let done = Record {
            token,
            attempt: record.attempt,
            fence: record.fence,
            print: record.print.clone(),
            state: State::Done { outcome: outcome.to_vec() },
            ends: now.saturating_add(micros(retain)),
        };
        self.put(&mut table, *name, done, now)?;
        drop(table);
        self.notices.tell(name.as_bytes(), None);
        Ok(true)
    }

    /// Removes a record that is as it should be.
    fn remove(&self, name: &Key, now: Micros, is_right: impl Fn(&Record) -> bool) -> Option<Record> {
        let mut table = self.lock();
        table.records.get(name).filter(|record| record.ends > now && is_right(record))?;
        let record = table.records.remove(name)?;
        table.bytes -= record.bytes();
        Some(record)
    }
}

impl Table {
    /// Forgets what has ended, but for one.
    fn sweep(&mut self, but: &Key, now: Micros) {
        let mut freed = 0;
        self.records.retain(|name, record| {
            let stays = record.ends > now || name == but;
            freed += if stays { 0 } else { record.bytes() };
            stays
        });
        self.bytes -= freed;
        // Twice as many as are left, so that sweeping costs each attempt the same.
        self.sweep_at = (2 * self.records.len()).max(64);
    }
}

impl Record {
    fn bytes(&self) -> usize {
        let outcome = match &self.state {
            State::Done { outcome } => outcome.len(),
            State::Running { .. } => 0,
        };
        RECORD_BYTES + self.print.len() + outcome
    }
}

impl RecordStore for Memory {
    fn begin(&self, name: &Key, attempt: &Begin) -> Reply<Begun> {
        Reply::ready(self.records.begin(name, attempt, self.clock.now()))
    }

    fn extend(&self, name: &Key, token: Token, lease: Duration) -> Reply<bool> {
        Reply::ready(Ok(self.records.extend(name, token, lease, self.clock.now())))
    }

    fn complete(&self, name: &Key, token: Token, outcome: &[u8], retain: Duration) -> Reply<bool> {
        Reply::ready(self.records.complete(name, token, outcome, retain, self.clock.now()))
    }

    fn abandon(&self, name: &Key, token: Token) -> Reply<bool> {
        let is_right = |record: &Record| record.token == token && matches!(record.state, State::Running { .. });
        let removed = self.records.remove(name, self.clock.now(), is_right).is_some();
        if removed {
            self.records.notices.tell(name.as_bytes(), None);
        }
        Reply::ready(Ok(removed))
    }

    fn take(&self, name: &Key) -> Reply<Option<Vec<u8>>> {
        let is_done = |record: &Record| matches!(record.state, State::Done { .. });
        let taken = self.records.remove(name, self.clock.now(), is_done).map(|record| record.state);
        Reply::ready(Ok(match taken {
            Some(State::Done { outcome }) => Some(outcome),
            _ => None,
        }))
    }

    fn watch(&self, name: &Key) -> Reply<Watch> {
        Reply::ready(Ok(Watch::of(self.records.notices.listen(name))))
    }

    fn clock(&self) -> lease::Clock {
        LeaseStore::clock(self)
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.lock();
        f.debug_struct("Records")
            .field("count", &table.records.len())
            .field("bytes", &table.bytes)
            .finish_non_exhaustive()
    }
}

/// What a record costs beside what it holds.
const RECORD_BYTES: usize = 256;
