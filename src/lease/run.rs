use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use super::{
    Guard, Lease,
    hold::{Hold, Lost},
    renew,
};
use crate::error::Error;

/// Why a body did not run to its end under its lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::Lock};
///
/// let lock = Lock::new(&Memory::new(), "order:7").wait(Duration::from_millis(1));
/// let _other = lock.acquire().await?;
/// let error = lock.run(async |_| "shipped").await.expect_err("another one holds it");
/// assert!(!error.is_lost() && error.into_output().is_none());
/// # Ok(())
/// # }
/// ```
pub struct RunError<T> {
    error: Error,
    output: Option<T>,
}

impl<T> RunError<T> {
    /// Returns true if the lease was lost while the body ran; else it never began.
    pub fn is_lost(&self) -> bool {
        self.error.is_lost()
    }

    /// Returns what went wrong.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns what the body came to if it did finish, but only after the lease was lost.
    pub fn into_output(self) -> Option<T> {
        self.output
    }
}

impl<T> From<Error> for RunError<T> {
    fn from(error: Error) -> Self {
        Self { error, output: None }
    }
}

impl<T> From<RunError<T>> for Error {
    fn from(error: RunError<T>) -> Self {
        error.error
    }
}

impl<T> fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

/// What a body came to that was not to be broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RanAnyway<T> {
    /// What it returned.
    pub output: T,
    /// Why the lease was not held to the end, if it was not.
    pub lost: Option<Lost>,
}

/// Runs a body under a guard whose lease is renewed here, and releases.
pub(super) async fn run<T>(guard: Guard, body: impl AsyncFnOnce(Lease) -> T) -> Result<T, RunError<T>> {
    let lease = guard.lease();
    let ran = under(&lease.held().hold, renewal(&lease), body(lease.clone())).await;
    match ran {
        Ok(output) => {
            // It has finished in time: a release that fails takes nothing away from that.
            let _ = guard.release().await;
            Ok(output)
        }
        Err((lost, output)) => {
            tracing::warn!(%lost, "a body was broken off");
            drop(guard);
            Err(RunError { error: lost.into(), output })
        }
    }
}

/// Runs a body to its end whatever becomes of the lease, and releases.
pub(super) async fn run_or_warn<T>(guard: Guard, body: impl AsyncFnOnce(Lease) -> T) -> RanAnyway<T> {
    let lease = guard.lease();
    let (mut renewal, mut body) = (pin!(renewal(&lease)), pin!(body(lease.clone())));
    let mut renews = true;
    let output = poll_fn(|cx| {
        if renews && let Poll::Ready(lost) = renewal.as_mut().poll(cx) {
            tracing::warn!(%lost, "a body goes on without its lease");
            renews = false;
        }
        body.as_mut().poll(cx)
    })
    .await;
    let lost = lease.held().hold.left().err();
    if lost.is_none() {
        let _ = guard.release().await;
    }
    RanAnyway { output, lost }
}

/// Renews a lease for as long as it is polled.
pub(super) fn renewal(lease: &Lease) -> impl Future<Output = Lost> {
    let held = Arc::clone(lease.held());
    async move {
        let extend = || {
            let answer = held.store.extend(&[(held.id.clone(), held.terms.ttl)]);
            async move { answer.await.map(|held| held.first().copied().unwrap_or_default()) }
        };
        renew::renew(&held.hold, held.terms.ttl, held.id.token(), extend).await
    }
}

/// Polls a body and the renewal of what it runs under; starts no poll of the body past the deadline.
///
/// Returns why the lease was lost if it was, and the output of a body whose last poll ended too late.
pub(super) async fn under<T>(
    hold: &Hold,
    renewal: impl Future<Output = Lost>,
    body: impl Future<Output = T>,
) -> Result<T, (Lost, Option<T>)> {
    let (mut renewal, mut body) = (pin!(renewal), pin!(body));
    poll_fn(|cx| {
        // Its timer also sees to it that this is polled at the deadline.
        if let Poll::Ready(lost) = renewal.as_mut().poll(cx) {
            return Poll::Ready(Err((lost, None)));
        }
        if let Err(lost) = hold.left() {
            return Poll::Ready(Err((lost, None)));
        }
        let Poll::Ready(output) = body.as_mut().poll(cx) else { return Poll::Pending };
        Poll::Ready(match hold.left() {
            Ok(_) => Ok(output),
            Err(lost) => Err((lost, Some(output))),
        })
    })
    .await
}
