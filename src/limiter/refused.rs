use std::{
    mem,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{key::Key, limit::Policy};

/// Who was refused most of late, in a fixed number of places.
///
/// Counts by space-saving (Metwally, Agrawal, El Abbadi, 2005): when all places are taken, the newcomer takes that of
/// the least, and goes on from its count. So a count is too high by [`Most::over`] at most, and whoever has more than
/// one in so many of all refusals has a place. Two spans are kept, so that what is long over does not stay on top.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<Option<Spans>>);

#[derive(Debug)]
struct Spans {
    began: Instant,
    now: Vec<Most>,
    before: Vec<Most>,
}

/// One of those who were refused most.
#[derive(Clone, Debug)]
pub(crate) struct Most {
    pub(crate) policy: Policy,
    pub(crate) key: Key,
    pub(crate) count: u64,
    /// By how much the count may be too high.
    pub(crate) over: u64,
}

impl Refused {
    pub(super) fn add(&self, policy: &Policy, key: &Key) {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = spans.get_or_insert_with(|| Spans { began: Instant::now(), now: Vec::new(), before: Vec::new() });
        spans.turn();
        let is_it = |most: &&mut Most| most.key == *key && most.policy.tag() == policy.tag();
        if let Some(most) = spans.now.iter_mut().find(is_it) {
            most.count += 1;
            return;
        }
        let new = |over| Most { policy: policy.clone(), key: *key, count: over + 1, over };
        if spans.now.len() < PLACES {
            spans.now.push(new(0));
        } else if let Some(least) = spans.now.iter_mut().min_by_key(|most| most.count) {
            *least = new(least.count);
        }
    }

    /// Returns those who were refused most in the present span and the one before, the most first.
    pub(super) fn most(&self, count: usize) -> Vec<Most> {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(spans) = &mut *spans else { return Vec::new() };
        spans.turn();
        let mut all = spans.now.clone();
        for old in &spans.before {
            let is_it = |most: &&mut Most| most.key == old.key && most.policy.tag() == old.policy.tag();
            match all.iter_mut().find(is_it) {
                Some(most) => {
                    most.count += old.count;
                    most.over += old.over;
                }
                None => all.push(old.clone()),
            }
        }
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.as_str().cmp(b.key.as_str())));
        all.truncate(count);
        all
    }
}

impl Spans {
    /// Begins another span if this one is over.
    fn turn(&mut self) {
        let spans = self.began.elapsed().as_millis() / SPAN.as_millis();
        if spans == 0 {
            return;
        }
        self.before = mem::take(&mut self.now);
        if spans > 1 {
            self.before.clear();
        }
        self.began = Instant::now();
    }
}

/// Finds whoever has one in a hundred of all refusals, and costs some twenty kilobytes.
const PLACES: usize = 128;

/// How long a span is: what is shown is of the last five to ten minutes.
pub(crate) const SPAN: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Quota;

    static API: Policy = Policy::fixed_window("api", Quota::per_second(1));

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_most_is_found_among_a_flood_of_others() {
        let refused = Refused::default();
        for i in 0..20_000u32 {
            refused.add(&API, &Key::from(i));
            if i % 20 == 0 {
                refused.add(&API, &"the-one".into());
            }
        }
        let most = refused.most(10);
        assert_eq!((most.len(), most[0].key.as_str()), (10, "the-one"));
        assert!((most[0].count - most[0].over..=most[0].count).contains(&1_000), "{:?}", most[0]);
        assert_eq!(refused.most(1_000).len(), PLACES, "no more than that is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_long_over_is_forgotten() {
        let refused = Refused::default();
        (0..5).for_each(|_| refused.add(&API, &"old".into()));
        tokio::time::advance(SPAN).await;
        (0..3).for_each(|_| refused.add(&API, &"new".into()));
        let counts = |refused: &Refused| {
            let most = refused.most(10);
            most.iter().map(|most| (most.key.as_str().to_owned(), most.count)).collect::<Vec<_>>()
        };
        assert_eq!(counts(&refused), [("old".to_owned(), 5), ("new".to_owned(), 3)]);
        tokio::time::advance(SPAN).await;
        assert_eq!(counts(&refused), [("new".to_owned(), 3)]);
        tokio::time::advance(SPAN * 3).await;
        assert!(counts(&refused).is_empty());
    }
}
