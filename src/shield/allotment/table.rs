use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::account::{Account, Draw};
use crate::{
    key::{Print, Printer},
    limit::{Algorithm, Demand, Micros, Policy},
};

/// The accounts of the subjects that were asked for last: a bounded number.
pub(super) struct Table<T> {
    printer: Printer,
    shards: Box<[Mutex<Shard<T>>]>,
}

struct Shard<T> {
    entries: HashTable<Entry<T>>,
    /// The bucket that is looked at next for one to give way.
    next: usize,
}

struct Entry<T> {
    print: Print,
    algorithm: Algorithm,
    account: Account<T>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        let shard = || Mutex::new(Shard { entries: HashTable::new(), next: 0 });
        Self { printer: Printer::default(), shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    pub(super) fn print(&self, demand: &Demand<'_>) -> Print {
        self.printer.print(demand.policy().tag(), demand.subject())
    }

    /// Locks the accounts of one call together.
    pub(super) fn lock(&self, prints: &[Print]) -> Locked<'_, T> {
        let mut shards: SmallVec<[usize; 4]> = prints.iter().map(|print| index(*print)).collect();
        // In one order for all, so that nobody waits in a circle.
        shards.sort_unstable();
        shards.dedup();
        Locked(shards.into_iter().map(|index| (index, lock(&self.shards[index]))).collect())
    }

    /// Does something to an account, if there is one.
    pub(super) fn at<R>(&self, print: Print, act: impl FnOnce(&mut Account<T>) -> R) -> Option<R> {
        let mut shard = lock(&self.shards[index(print)]);
        shard.entries.find_mut(print.0[0], |entry| entry.print == print).map(|entry| act(&mut entry.account))
    }

    /// Takes draws out of all accounts, by what each gives.
    pub(super) fn take(&self, mut give: impl FnMut(&mut Account<T>) -> Vec<Draw<T>>) -> Vec<(Print, Draw<T>)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            for entry in lock(shard).entries.iter_mut().filter(|entry| entry.account.is_live()) {
                taken.extend(give(&mut entry.account).into_iter().map(|draw| (entry.print, draw)));
            }
        }
        taken
    }

    /// Returns true if units are in any account or on their way.
    pub(super) fn is_live(&self) -> bool {
        self.shards.iter().any(|shard| lock(shard).entries.iter().any(|entry| entry.account.is_live()))
    }
}

/// The shards in which the accounts of one call lie.
pub(super) struct Locked<'a, T>(SmallVec<[(usize, MutexGuard<'a, Shard<T>>); 4]>);

impl<T> Locked<'_, T> {
    /// Returns an account, which is opened if there is none; `None` if there is no room for it.
    pub(super) fn account(&mut self, print: Print, policy: &Policy, now: Micros) -> Option<&mut Account<T>> {
        let found = self.0.iter_mut().find(|(shard, _)| *shard == index(print));
        let algorithm = policy.algorithm();
        let entry = found.expect("the shards of all prints are locked").1.entry(print, algorithm, now)?;
        if entry.algorithm != algorithm {
            // The state starts anew in the store, so units of the old one are no units of this.
            entry.account.forget();
            entry.algorithm = algorithm;
        }
        Some(&mut entry.account)
    }
}

impl<T> Shard<T> {
    fn entry(&mut self, print: Print, algorithm: Algorithm, now: Micros) -> Option<&mut Entry<T>> {
        let same = |entry: &Entry<T>| entry.print == print;
        if self.entries.len() >= MOST_IN_SHARD && self.entries.find(print.0[0], same).is_none() && !self.make_room(now)
        {
            return None;
        }
        let new = || Entry { print, algorithm, account: Account::default() };
        Some(self.entries.entry(print.0[0], same, |entry| entry.print.0[0]).or_insert_with(new).into_mut())
    }

    /// Drops one account that means nothing any more, if it is found at once.
    fn make_room(&mut self, now: Micros) -> bool {
        for _ in 0..LOOKS {
            self.next = if self.next + 1 < self.entries.num_buckets() { self.next + 1 } else { 0 };
            if let Ok(bucket) = self.entries.get_bucket_entry(self.next)
                && bucket.get().account.is_idle(now)
            {
                bucket.remove();
                return true;
            }
        }
        false
    }
}

/// Not by the hash that finds a place within the shard.
fn index(print: Print) -> usize {
    usize::try_from(print.0[1] % SHARDS).expect("a small remainder")
}

fn lock<T>(shard: &Mutex<Shard<T>>) -> MutexGuard<'_, Shard<T>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> fmt::Debug for Table<T> {
    /// Tells nothing of keys or of how they are hashed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

/// Enough that two threads seldom want the same one.
const SHARDS: u64 = 64;

/// Sixteen thousand accounts in all: more subjects than one process finds hot. Others are decided by the store.
const MOST_IN_SHARD: usize = 256;

/// What a full shard looks at for a new account.
const LOOKS: usize = 8;

#[cfg(test)]
mod tests {
    use super::{super::account::Told, *};
    use crate::limit::Quota;

    #[test]
    fn a_flood_of_subjects_finds_a_bound_and_frees_no_account_in_use() {
        let table = Table::<()>::new();
        let policy = Policy::fixed_window("p", Quota::per_second(1));
        let ask = |subject: u64, now: Micros| {
            let print = table.print(&Demand::new(&policy, subject));
            let opened =
                table.lock(&[print]).account(print, &policy, now).map(|account| account.note(now, 1)).is_some();
            (print, opened)
        };
        let (used, opened) = ask(0, 0);
        assert!(opened);
        table.at(used, |account| {
            (0..9).for_each(|_| account.note(0, 1));
            account.learn(Told { at: 0, remaining: 1_000, next: 0, full: 0 });
            assert!(account.begin(0, 100, 1).is_some());
        });
        let opened = (1..100_000).filter(|subject| ask(*subject, 0).1).count();
        assert!(opened < 16_384, "{opened} opened at once");
        // A second later those give way that nobody asks for any more.
        let later = (100_000..110_000).filter(|subject| ask(*subject, 1_000_000).1).count();
        assert!(later > 9_000, "{later} of 10000");
        let kept: usize = table.shards.iter().map(|shard| lock(shard).entries.len()).sum();
        assert!(kept <= 16_384, "{kept} kept");
        assert_eq!(table.at(used, |account| account.is_live()), Some(true));
    }

    #[test]
    fn units_of_one_algorithm_are_none_of_another() {
        let table = Table::<()>::new();
        let quota = Quota::per_second(1);
        let (fixed, sliding) = (Policy::fixed_window("p", quota), Policy::sliding_window("p", quota));
        let print = table.print(&Demand::new(&fixed, "a"));
        let mut locked = table.lock(&[print]);
        let account = locked.account(print, &fixed, 0).expect("room");
        (0..9).for_each(|_| account.note(0, 1));
        let told = Told { at: 0, remaining: 1_000, next: 0, full: 0 };
        account.learn(told);
        let begun = account.begin(0, 100, 1).expect("due");
        account.arrive(begun, Draw { units: 9, left: 9, expires: 100, slip: () }, told, 0);
        assert!(locked.account(print, &fixed, 0).expect("there").has(0, 9));
        assert!(!locked.account(print, &sliding, 0).expect("there").has(0, 1));
    }
}
