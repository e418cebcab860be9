use std::hash::{BuildHasher, Hasher};

use foldhash::quality::RandomState;

use crate::limit::Demand;

/// Stands for a policy's name and a subject: two hashes with seeds of this process.
pub(super) type Print = [u64; 2];

/// Makes prints.
#[derive(Debug, Default)]
pub(super) struct Printer([RandomState; 2]);

impl Printer {
    pub(super) fn print(&self, demand: &Demand<'_>) -> Print {
        self.0.each_ref().map(|hasher| {
            let mut hasher = hasher.build_hasher();
            hasher.write_u64(demand.policy().tag());
            hasher.write(demand.subject().as_bytes());
            hasher.finish()
        })
    }
}
