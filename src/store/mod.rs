//! The applied state on disk: page cache, commits, recovery, cleaning, views,
//! snapshots.
//!
//! | file | owns |
//! |---|---|
//! | `open`, `offline` | from a directory to a state: checkpoint, then the tail |
//! | `maker` | a new store from records that come in order |
//! | `applier`, `writer` | entries into the state, commits into the page file |
//! | `checkpoint` | the index on disk, slice by slice |
//! | `compactor` | physical compaction, and the hash before each |
//! | `census`, `cleaner`, `scrubber` | space given back; pages read to see that they are well |
//! | `meter` | what is counted and timed for metrics |
//! | `ground`, `cache`, `walk` | pages wherever they are |
//! | `view`, `range`, `history`, `hash` | reads at a revision |
//! | `snapshot` | the whole store for a peer |
//!
//! # Invariants
//! - **I3.** The applied mark and the effects it stands for are in one commit;
//!   the store may lag the log, never lead it.
//! - **Nothing physical before it is durable.** Records go, and pages are
//!   cleaned of them, only by a compaction that a durable mark holds: whatever
//!   a crash leaves is a whole state.
//! - **One writer.** One task owns the page file: commits, installs and
//!   adoptions pass through it one after the other; what comes too late for
//!   the pages that are there is dropped.
//! - **Nothing comes back.** A deletion's record is cleaned away only when
//!   neither a page nor a slice of the checkpoint can hold an older record of
//!   its key.
//! - Readers hold the state's lock for one bounded slice at most.
//!
//! **Never** knows raft.

mod applier;
mod cache;
mod census;
mod checkpoint;
mod cleaner;
mod compactor;
mod gate;
mod ground;
mod hash;
mod history;
mod maker;
mod meter;
mod offline;
mod open;
mod range;
mod scrubber;
mod shared;
mod snapshot;
#[cfg(test)]
mod tests;
mod view;
mod walk;
mod writer;

pub use applier::{Applier, CommitTicket};
pub use history::History;
pub use maker::Maker;
pub use meter::{Figures, Meter};
pub use scrubber::Rot;
pub use snapshot::SnapshotReader;
pub use view::View;

use crate::machine::UnknownEntry;
use crate::members::Members;
use crate::pagefile;
use quorate_proto::{quorate::v1::StoreMark, raftpb::ConfState};
use shared::{Shared, gate_value};
use std::sync::Arc;
use std::time::Duration;

/// Kinds of store pages; numbers are stored, and mean the same to every member.
pub mod kind {
    /// Records of mvcc.
    pub const RECORDS: u8 = 1;
    /// A `StoreMark`, last page of every commit.
    pub const MARK: u8 = 2;
    /// Buckets of an etcd snapshot that nothing here serves yet (`BucketPage`).
    pub const BUCKETS: u8 = 3;
}

#[derive(Clone, Debug)]
pub struct Options {
    pub page_size: u32,
    pub segment_size: u64,
    /// Pages read back from disk are kept up to this many bytes.
    pub cache_bytes: u64,
    /// A commit is due after this many bytes of records ...
    pub commit_bytes: u64,
    /// ... or this long after the first entry that it would hold.
    pub commit_interval: Duration,
    /// Bytes preallocated for each segment of the checkpoint.
    pub checkpoint_segment_size: u64,
    /// The checkpoint may write one byte for this many of the store ...
    pub checkpoint_share: u64,
    /// ... in portions of this many bytes.
    pub checkpoint_step_bytes: u64,
    /// Cleaning starts by itself at this share of dead bytes, in percent ...
    pub clean_from_percent: u8,
    /// ... and goes on down to this one.
    pub clean_to_percent: u8,
    /// Between two looks at how much is dead.
    pub clean_interval: Duration,
    /// One pass of the scrubber over every page; zero = none.
    pub scrub_interval: Duration,
    /// Bytes that all large replies together may hold while they are made.
    pub reply_bytes: u64,
    /// Between two tries to make a segment when no space is left.
    pub space_retry: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            page_size: 4096,
            segment_size: 32 << 20,
            cache_bytes: 32 << 20,
            commit_bytes: 4 << 20,
            commit_interval: Duration::from_millis(100),
            checkpoint_segment_size: 4 << 20,
            checkpoint_share: 4,
            checkpoint_step_bytes: 256 << 10,
            clean_from_percent: 25,
            clean_to_percent: 10,
            clean_interval: Duration::from_secs(5),
            scrub_interval: Duration::from_secs(24 * 60 * 60),
            reply_bytes: 256 << 20,
            space_retry: Duration::from_secs(1),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    PageFile(#[from] pagefile::Error),
    #[error("store page does not decode: {0}")]
    Decode(String),
    #[error(transparent)]
    Unknown(#[from] UnknownEntry),
    #[error("snapshot from a peer: {0}")]
    Snapshot(String),
    /// The writing task has stopped after an error that it reported.
    #[error("the store is closed")]
    Closed,
}

/// What a read answers with when it fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error(transparent)]
    Mvcc(#[from] crate::mvcc::Error),
    #[error("{0}")]
    Disk(#[from] pagefile::Error),
    #[error("store page does not decode: {0}")]
    Decode(String),
    /// A peer's snapshot took the place of what the view was of: take another view.
    #[error("the store was replaced by a peer's snapshot meanwhile")]
    Replaced,
    /// Large replies hold all the memory that they may.
    #[error("too many requests")]
    Busy,
}

/// An applied (index, term) and the configuration that belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Position {
    pub index: u64,
    pub term: u64,
    pub conf_state: ConfState,
}

impl Position {
    fn of(mark: &StoreMark) -> Position {
        Position {
            index: mark.applied_index,
            term: mark.applied_term,
            conf_state: mark.conf_state.clone().unwrap_or_default(),
        }
    }
}

/// Reads, from any task; cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What the store takes on disk, in bytes; the last look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Pages, paddings and marks, without preallocation.
    pub written: u64,
    /// Payload that still counts.
    pub in_use: u64,
}

impl Store {
    pub fn members(&self) -> Members {
        self.shared.state().members.clone()
    }

    pub fn cluster_version(&self) -> String {
        self.shared.state().cluster_version.clone()
    }

    /// (member id, alarm type number), ascending.
    pub fn alarms(&self) -> Vec<(u64, i32)> {
        self.shared.state().alarms.iter().copied().collect()
    }

    /// Current revision and compacted mark (-1 = never).
    pub fn revisions(&self) -> (i64, i64) {
        self.shared.state().revisions()
    }

    /// Applied index and term.
    pub fn applied(&self) -> (u64, u64) {
        self.shared.state().applied
    }

    /// Completes once the applied index is at least `index`.
    pub async fn wait_applied(&self, index: u64) {
        self.shared.applied.wait(gate_value(index)).await;
    }

    /// Bytes of the store's pages on disk, without preallocation; bytes of them that still
    /// count, as of the last census.
    pub fn sizes(&self) -> (u64, u64) {
        let sizes = self.shared.sizes();
        (sizes.written, sizes.in_use.min(sizes.written))
    }

    /// The first of [`Store::sizes`].
    pub fn db_bytes(&self) -> u64 {
        self.shared.sizes().written
    }

    /// What the store counted of its own work.
    pub fn figures(&self) -> Figures {
        self.shared.tally.figures()
    }

    /// Who sees how long its work takes.
    pub fn observe(&self, meter: Arc<dyn Meter>) {
        self.shared.tally.observe(meter);
    }

    /// Live keys.
    pub fn keys(&self) -> u64 {
        self.shared.state().live_keys()
    }

    /// Completes when physical compaction up to `revision` is done here.
    pub async fn wait_compacted(&self, revision: i64) {
        self.shared.compacted.wait(revision).await;
    }

    /// Whether the space for one more segment is set aside: enough for deletes, compactions and
    /// cleaning. While it is not, what grows the store should be refused before it is proposed.
    pub fn has_reserve(&self) -> bool {
        self.shared.has_reserve()
    }

    /// Turns `Some` when a page was read twice and is damaged: this member must not serve on.
    pub fn rot(&self) -> tokio::sync::watch::Receiver<Option<Rot>> {
        self.shared.rot.subscribe()
    }

    /// Completes with the reason when a task of the store cannot go on: the member must stop.
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // Unreachable: the sender lives in self. Nothing failed, then.
            None => std::future::pending().await,
        }
    }

    /// Hashes of the last compactions, as HashKV at that revision was just before each:
    /// (revision, hash, compacted mark before), ascending. At most ten; none from before a restart.
    pub fn compaction_hashes(&self) -> Vec<(i64, u32, i64)> {
        self.shared.compaction_hashes()
    }
}
