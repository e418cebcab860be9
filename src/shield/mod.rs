//! Stores around a store: each wraps a [`Store`](crate::limit::Store) and is one.

mod failover;

pub(crate) use self::failover::Failover;
