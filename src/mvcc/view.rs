//! What a reader sees: a revision, and how far the past is readable.
//!
//! A view taken with the state locked is consistent for ever; while its
//! compacted mark is pinned ([`Mvcc::pin`]) all that it may read stays too.

use super::{Error, Mvcc};

/// A revision and the compacted mark that belongs to it (-1: never compacted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub revision: i64,
    pub compacted: i64,
}

impl View {
    /// The revision that a plain range reads at (R4).
    pub fn read_revision(&self, asked: i64) -> Result<i64, Error> {
        match asked {
            asked if asked <= 0 => Ok(self.revision),
            asked if asked > self.revision => Err(Error::FutureRevision),
            asked if asked < self.compacted => Err(Error::Compacted),
            asked => Ok(asked),
        }
    }

    /// The revision that a HashKV request means, or why it cannot be had (C9).
    /// A negative one is answered with the hash of nothing.
    pub fn hash_revision(&self, asked: i64) -> Result<i64, Error> {
        match asked {
            0 => Ok(self.revision),
            asked if asked > self.revision => Err(Error::FutureRevision),
            asked if asked > 0 && asked < self.compacted => Err(Error::Compacted),
            asked => Ok(asked),
        }
    }
}

impl Mvcc {
    /// The state as it is now.
    pub fn view(&self) -> View {
        View { revision: self.revision(), compacted: self.compacted() }
    }
}
