//! Who holds what, until when: locks and what stands on the same ground.
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

mod clock;
mod guard;
mod hold;
mod keeper;
#[expect(clippy::module_inception)] // A lease is what this is about.
mod lease;
mod lock;
mod once;
mod race;
mod record;
mod renew;
mod reply;
mod run;
mod semaphore;
mod store;
mod tickets;
mod token;
mod wait;
mod watch;

pub(crate) use self::watch::Notices;
pub use self::{
    clock::Clock,
    guard::{Guard, Released},
    hold::Lost,
    keeper::Keeper,
    lease::Lease,
    lock::Lock,
    once::{Attempt, NotStarted, Once, Ran},
    record::{Begin, Begun, OnUnknown, RecordStore},
    reply::Reply,
    run::{RanAnyway, RunError},
    semaphore::{Permit, Semaphore},
    store::{Acquired, Holder, LeaseId, LeaseStore, Share, Terms},
    tickets::Tickets,
    token::{Fence, Token},
    watch::Watch,
};
