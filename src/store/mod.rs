//! The applied state on disk: page cache, commits, recovery, snapshots.
//!
//! **Invariant (I3).** The applied mark and the effects it stands for are in
//! one commit; the store may lag the log, never lead it. One [`Applier`] task
//! writes; any task reads through [`Store`].

use crate::env::Env;
use crate::machine::{Applied, Entry, State, UnknownEntry};
use crate::members::Members;
use crate::pagefile;
use quorate_proto::{etcdserverpb as pb, quorate::v1::SnapshotPage, raftpb};
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Options {
    pub page_size: u32,
    pub segment_size: u64,
    /// Values read from pages are kept up to this many bytes.
    pub cache_bytes: u64,
    /// A commit is due after this many bytes of records ...
    pub commit_bytes: u64,
    /// ... or this long after the first record that it would hold.
    pub commit_interval: std::time::Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            page_size: 4096,
            segment_size: 32 << 20,
            cache_bytes: 64 << 20,
            commit_bytes: 4 << 20,
            commit_interval: std::time::Duration::from_millis(100),
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
}

/// Reads, from any task; cheap to clone. Reads never block the applier for longer than a bounded slice.
#[derive(Clone)]
pub struct Store {
    _todo: (),
}

/// The one writer.
pub struct Applier {
    _todo: (),
}

/// What a read answers with when it fails.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Mvcc(#[from] crate::mvcc::Error),
    #[error("{0}")]
    Disk(String),
}

/// The durable or current position: applied (index, term) and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Position {
    pub index: u64,
    pub term: u64,
    pub conf_state: raftpb::ConfState,
}

impl Store {
    /// Opens or makes the store in `dir`. `initial` seeds a new store's cluster id (members come
    /// through entries). Returns the position of the last commit (zero in a new store).
    pub async fn open(
        env: &Env,
        dir: PathBuf,
        options: Options,
        initial: Members,
    ) -> Result<(Store, Applier, Position), Error> {
        let _ = (env, dir, options, initial);
        todo!()
    }

    /// Range at a revision (R1 to R12; the request was checked by `api`). Header has the revision only.
    pub async fn range(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, ReadError> {
        let _ = request;
        todo!()
    }

    /// A read-only txn (T17) on one consistent view. Header revision set.
    pub async fn txn(&self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, ReadError> {
        let _ = request;
        todo!()
    }

    /// C9: HashKV; the reply has no header but its revision.
    pub async fn hash_kv(&self, revision: i64) -> Result<pb::HashKvResponse, ReadError> {
        let _ = revision;
        todo!()
    }

    pub fn members(&self) -> Members {
        todo!()
    }
    pub fn cluster_version(&self) -> String {
        todo!()
    }
    /// (member id, alarm type number).
    pub fn alarms(&self) -> Vec<(u64, i32)> {
        todo!()
    }
    /// Current revision and compacted mark (-1 = never).
    pub fn revisions(&self) -> (i64, i64) {
        todo!()
    }
    /// Applied index and term.
    pub fn applied(&self) -> (u64, u64) {
        todo!()
    }
    /// Completes once the applied index is at least `index`.
    pub async fn wait_applied(&self, index: u64) {
        let _ = index;
        todo!()
    }
    /// Bytes on disk without preallocation; live bytes.
    pub fn sizes(&self) -> (u64, u64) {
        todo!()
    }
    /// Live keys.
    pub fn keys(&self) -> u64 {
        todo!()
    }
    /// Completes when physical compaction up to `revision` is done on this member.
    pub async fn wait_compacted(&self, revision: i64) {
        let _ = revision;
        todo!()
    }
    /// Every record up to the last commit as pages for a peer, and its position.
    pub async fn snapshot(&self) -> Result<SnapshotReader, Error> {
        todo!()
    }
}

/// Streams a snapshot; pins what it reads.
pub struct SnapshotReader {
    pub position: Position,
    pub pages: u64,
}

impl SnapshotReader {
    /// The next page, oldest first; `None` at the end. The last one is the mark.
    pub async fn next(&mut self) -> Result<Option<SnapshotPage>, Error> {
        todo!()
    }
}

impl Applier {
    /// Applies one entry: fetches pages that apply lacks, as often as it takes.
    pub async fn apply(&mut self, entry: &Entry) -> Result<Applied, Error> {
        let _ = entry;
        todo!()
    }

    /// Bytes waiting for a commit; 0 = nothing was applied since the last one.
    pub fn pending_bytes(&self) -> u64 {
        todo!()
    }

    /// Commits and syncs everything applied so far; returns the durable position.
    pub async fn commit(&mut self) -> Result<Position, Error> {
        todo!()
    }

    /// Replaces the whole state by a peer's snapshot (all its pages in order), durably, in one step.
    pub async fn install(&mut self, pages: Vec<SnapshotPage>) -> Result<Position, Error> {
        let _ = pages;
        todo!()
    }

    pub fn store(&self) -> Store {
        todo!()
    }

    /// For tests and the start-up of a new cluster: the state as it is.
    pub fn with_state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        let _ = look;
        todo!()
    }
}
