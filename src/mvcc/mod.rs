//! Keys through time: an index in memory, records in pages.
//!
//! The owner of this room splits it (index, record, range, txn, compact, hash).
//! **Never** I/O: what is not in memory is named and fetched by the caller.

pub mod check;

use crate::pagefile::PageNumber;
use bytes::Bytes;

/// Looks up pages that are in memory; a page that is not is to be fetched by the caller.
pub trait Pages {
    /// The page's payload if it is in memory.
    fn get(&self, page: PageNumber) -> Option<Bytes>;
}

/// Pages that a call needs and that are not in memory: nothing was changed;
/// fetch them and call again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Vec<PageNumber>);

/// Answers of mvcc that are errors; texts in `api`'s table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("key not found")]
    KeyNotFound,
    #[error("requested lease not found")]
    LeaseNotFound,
}
