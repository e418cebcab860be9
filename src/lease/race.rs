use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Which of two futures was ready first.
pub(super) enum First<A, B> {
    One(A),
    Other(B),
}

/// Waits for the first of two futures, and drops the other; the one if both are ready.
pub(super) async fn race<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> First<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        if let Poll::Ready(output) = one.as_mut().poll(cx) {
            return Poll::Ready(First::One(output));
        }
        other.as_mut().poll(cx).map(First::Other)
    })
    .await
}
