//! A store on its way out and back in: etcd's buckets, snapshots, hashes.
//!
//! | file | what |
//! |---|---|
//! | `content.rs` | everything beside the records, as etcd's other buckets |
//! | `walk.rs` | a view as buckets in order; the hash over them (Hash) |
//! | `survivors.rs` | what of a history a finished compaction leaves; HashKV of any view |
//! | `etcd_file.rs` | a view as etcd's own snapshot, made on its way out |
//! | `etcd_snapshot.rs` | etcd's snapshot as a view |
//! | `store_view.rs` | a store that is served, or a stopped member's, as a view |
//! | `outgoing.rs` | a served store's snapshot, in either form |
//! | `own_file.rs` | our own snapshot: made, and as a view |
//! | `parts.rs` | a snapshot's bytes in parts, with their digest |
//!
//! Everything reads a [`View`]: records in the order of history, as often as
//! they are wanted, and what stands beside them. A running store, the files of
//! a stopped member and snapshots of either kind are views.
//!
//! **Promises**: bounded memory (small buckets whole; a few dozen bytes a key
//! where survivors must be told), nobody waits, the bytes are those that etcd
//! would have stored (tests/facts/storage.md).
//! **Never** decides what a store holds, never changes a view.

mod content;
mod etcd_file;
mod etcd_snapshot;
#[doc(hidden)]
pub mod fuzz;
mod in_memory;
mod outgoing;
mod own_file;
mod parts;
mod store_view;
mod survivors;
#[cfg(test)]
mod tests;
mod walk;

pub use content::{Carried, Content};
pub use etcd_file::EtcdFile;
pub use etcd_snapshot::{
    EtcdRecords, EtcdSnapshot, FileSource, Status, status, verify_digest, without_digest,
};
pub use outgoing::{Form, Outgoing};
pub use own_file::{OwnFile, OwnRecords, OwnSnapshot, own_status};
pub use parts::{PART_BYTES, Part};
pub use store_view::{Covered, Mark, StoppedStore, StoreRecords, StoreView};
pub use survivors::{Settled, SettledRecords, Survivors, hash_kv};
pub use walk::{Item, Walk, hash};

use crate::{bolt, mvcc::RevisionKey, pagefile, store};
use bytes::Bytes;
use std::{future::Future, io};

/// A record as every form of the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub main: u64,
    pub sub: u64,
    pub tombstone: bool,
    /// The encoded `mvccpb.KeyValue`; empty in the record that a bumped revision leaves.
    pub key_value: Bytes,
}

impl Stored {
    /// As etcd's bucket has it.
    pub fn key(&self) -> RevisionKey {
        RevisionKey { main: self.main, sub: self.sub, tombstone: self.tombstone }
    }
}

/// One pass over records, ascending by (main, sub).
pub trait Records: Send {
    /// The next one; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Stored>, Error>> + Send;
}

/// One state of a store; every pass over it sees the same.
pub trait View: Send + Sync {
    type Records: Records;

    /// What a finished compaction leaves; a view whose files may hold more is wrapped in [`Settled`]
    /// where that matters.
    fn records(&self) -> Self::Records;

    fn content(&self) -> &Content;
}

/// Why a view cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Bolt(#[from] bolt::Error),
    #[error(transparent)]
    PageFile(#[from] pagefile::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Read(#[from] store::ReadError),
    #[error(transparent)]
    Changed(#[from] bolt::PlanMismatch),
    /// Bytes that passed their checksums are not what they should be.
    #[error("{0}")]
    Malformed(String),
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
}

impl Error {
    fn malformed(what: impl Into<String>) -> Error {
        Error::Malformed(what.into())
    }
}
