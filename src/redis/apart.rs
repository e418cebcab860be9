//! Leases whose names lie on several servers: one call a name.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use super::Redis;
use crate::{
    error::Error,
    lease::{Acquired, LeaseId, LeaseStore, Reply, Terms},
};

/// Returns the lease as it is on one of its names.
fn part(id: &LeaseId, name: usize) -> LeaseId {
    LeaseId::new([id.names()[name]], id.share(), id.token())
}

/// Takes names in their order, which is the same for everybody, and gives all back when one is taken.
pub(super) fn acquire(redis: Redis, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
    let (id, terms) = (id.clone(), terms.clone());
    Reply::pending(async move {
        let mut all = Vec::with_capacity(id.names().len());
        for name in 0..id.names().len() {
            match redis.acquire(&part(&id, name), &terms).await? {
                Acquired::Held { mut fences } => all.append(&mut fences),
                // A permit has one name.
                Acquired::Permit { .. } => {}
                Acquired::Taken { left, .. } => {
                    redis.release(&id).await?;
                    return Ok(Acquired::Taken { left, name });
                }
            }
        }
        Ok(Acquired::Held { fences: all })
    })
}

/// Gives all names up, whatever becomes of some; none was held if one was not.
pub(super) fn release(redis: Redis, id: &LeaseId) -> Reply<bool> {
    let id = id.clone();
    Reply::pending(async move {
        let parts = (0..id.names().len()).map(|name| redis.release(&part(&id, name))).collect();
        together(parts).await.into_iter().try_fold(true, |all, held| Ok(held? && all))
    })
}

pub(super) fn extend(redis: Redis, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
    let leases = leases.to_vec();
    Reply::pending(async move {
        let parts = leases.iter().flat_map(|(id, ttl)| (0..id.names().len()).map(|name| (part(id, name), *ttl)));
        let answers = together(parts.map(|part| redis.extend(&[part])).collect()).await;
        let mut answers = answers.into_iter();
        let held = |(id, _): &(LeaseId, Duration)| {
            let parts = answers.by_ref().take(id.names().len()).collect::<Result<Vec<_>, Error>>()?;
            Ok(parts.into_iter().all(|held| held == [true]))
        };
        leases.iter().map(held).collect()
    })
}

/// Waits for several replies at once.
async fn together<T: Unpin>(mut replies: Vec<Reply<T>>) -> Vec<Result<T, Error>> {
    let mut answers: Vec<Option<Result<T, Error>>> = replies.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut is_done = true;
        for (reply, answer) in replies.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match Pin::new(reply).poll(cx) {
                    Poll::Ready(ready) => *answer = Some(ready),
                    Poll::Pending => is_done = false,
                }
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}
