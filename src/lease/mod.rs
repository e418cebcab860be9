//! Who holds what, until when: locks and what stands on the same ground.
//!
//! [`Lock`], [`Semaphore`] and [`Leader`] stand on a [`LeaseStore`], which [`Redlock`] is too; [`Once`] and [`Tickets`] on a
//! [`RecordStore`]; [`Claims`] on a [`QueueStore`]. [`Memory`](crate::Memory) and `Redis` are all three. What each promises,
//! and what it does not, is told in [the manual](crate::guide::leases).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tollgate::Error> {
//! use tollgate::{Memory, lease::Lock};
//!
//! let store = Memory::new(); // Redis::open("redis://127.0.0.1:6379")? where processes share it
//! let paid = Lock::new(&store, "order:7").run(async |lease| {
//!     // The fence goes with each write, so that the resource can refuse those of a former holder.
//!     lease.fence()
//! }).await?;
//! assert!(paid.is_some());
//! # Ok(())
//! # }
//! ```

mod claims;
mod clock;
mod gate;
mod guard;
mod hold;
mod keeper;
mod leader;
#[expect(clippy::module_inception)] // A lease is what this is about.
mod lease;
mod lock;
mod once;
mod queue;
mod race;
mod record;
mod redlock;
mod renew;
mod reply;
mod run;
mod semaphore;
mod store;
mod tickets;
mod token;
mod wait;
mod watch;

pub use self::{
    claims::{Claim, Claims},
    clock::Clock,
    gate::FenceGate,
    guard::{Guard, Released},
    hold::Lost,
    keeper::Keeper,
    leader::{Election, Elections, Leader, Term},
    lease::Lease,
    lock::Lock,
    once::{Attempt, NotStarted, Once, Ran},
    queue::{ClaimAsk, Claimed, DeadJob, Job, NewJob, QueueStore},
    record::{Begin, Begun, OnUnknown, RecordStore},
    redlock::{Incarnation, Node, Redlock, RedlockBuilder},
    reply::Reply,
    run::{RanAnyway, RunError},
    semaphore::{Permit, Semaphore},
    store::{Acquired, Holder, LeaseId, LeaseStore, Share, Terms},
    tickets::Tickets,
    token::{Fence, Token},
    watch::Watch,
};
pub(crate) use self::{
    hold::Hold,
    renew::{call_deadline, in_time, renew},
    watch::Notices,
};
