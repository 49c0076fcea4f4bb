//! The raft log on a page file: entries, hard state, truncation of a
//! conflicting suffix, compaction of a prefix, many entries under one sync.
//!
//! The recent tail stays in memory (bounded in bytes) and serves raft's
//! synchronous [`raft::Storage`]; older entries are fetched from disk.

use crate::env::Env;
use crate::pagefile;
use raft::eraftpb::{ConfState, Entry, HardState};
use std::{path::PathBuf, sync::Arc};

#[derive(Clone, Debug)]
pub struct Options {
    pub page_size: u32,
    pub segment_size: u64,
    /// Entries kept in memory, in bytes of their data.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { page_size: 4096, segment_size: 16 << 20, cache_bytes: 32 << 20 }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    PageFile(#[from] pagefile::Error),
    /// A page that passed its checksum does not decode: a mistake of ours or a foreign file.
    #[error("log page {page} does not decode: {what}")]
    Decode { page: u64, what: String },
}

/// The raft side: cheap clones share one state. Implements [`raft::Storage`].
#[derive(Clone)]
pub struct Log {
    _todo: Arc<()>,
}

/// The disk side: owns the page file; run it as a task of its own with [`Writer::run`].
pub struct Writer {
    _todo: (),
}

/// What the log held when it was opened.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    pub hard_state: HardState,
    /// First index that is there (1 in a new log); the entry before it is known by term only.
    pub first_index: u64,
    /// Last index; `first_index - 1` when empty.
    pub last_index: u64,
}

/// Word from the writer to the raft loop.
#[derive(Debug)]
pub enum Persisted {
    /// Everything up to this ticket is durable.
    Upto(u64),
    /// The disk failed; nothing more will be durable. The member must stop.
    Failed(Error),
}

impl Log {
    /// Opens or makes the log in `dir`. `applied` is the store's durable mark
    /// (index, term): a log that ends below it, or disagrees with it in term,
    /// begins anew right after it (I3; a crash between installing a snapshot
    /// and resetting the log). `conf_state`: the store's.
    pub async fn open(
        env: &Env,
        dir: PathBuf,
        options: Options,
        applied: (u64, u64),
        conf_state: ConfState,
    ) -> Result<(Log, Writer, Opened), Error> {
        let _ = (env, dir, options, applied, conf_state);
        todo!()
    }

    /// Takes entries (replacing any suffix from the first one's index on) and
    /// the hard state; they can be read at once and are durable when the writer
    /// says [`Persisted::Upto`] a ticket >= `ticket`. Never waits. Tickets rise.
    pub fn append(&self, entries: &[Entry], hard_state: Option<&HardState>, ticket: u64) {
        let _ = (entries, hard_state, ticket);
        todo!()
    }

    /// Records the commit index in the in-memory hard state (it reaches the
    /// disk with the next append).
    pub fn set_commit(&self, commit: u64) {
        let _ = commit;
        todo!()
    }

    /// The conf state that raft's `initial_state` returns.
    pub fn set_conf_state(&self, conf_state: ConfState) {
        let _ = conf_state;
        todo!()
    }

    /// Entries up to and with `index` may go, in memory at once, on disk by
    /// whole segments. `index` must not exceed the store's durable mark (I3).
    pub fn compact(&self, index: u64) {
        let _ = index;
        todo!()
    }

    /// Begins anew after an installed snapshot: no entries, start at (index, term).
    pub fn reset(&self, index: u64, term: u64, hard_state: &HardState, ticket: u64) {
        let _ = (index, term, hard_state, ticket);
        todo!()
    }

    /// Reads entries `low..high` from disk for a slow follower, at most
    /// `bytes_max` (but one at least), and keeps them ready for raft's next
    /// `entries` call (see raft's `on_entries_fetched`).
    pub async fn fetch(&self, low: u64, high: u64, bytes_max: u64) -> Result<(), Error> {
        let _ = (low, high, bytes_max);
        todo!()
    }

    /// Bytes of the tail in memory and its bound (I10).
    pub fn cached_bytes(&self) -> (u64, u64) {
        todo!()
    }
}

impl raft::Storage for Log {
    fn initial_state(&self) -> raft::Result<raft::RaftState> {
        todo!()
    }
    /// Answers `LogTemporarilyUnavailable` when the entries are on disk only.
    fn entries(
        &self,
        _low: u64,
        _high: u64,
        _max_size: impl Into<Option<u64>>,
        _context: raft::GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        todo!()
    }
    fn term(&self, _index: u64) -> raft::Result<u64> {
        todo!()
    }
    fn first_index(&self) -> raft::Result<u64> {
        todo!()
    }
    fn last_index(&self) -> raft::Result<u64> {
        todo!()
    }
    /// `SnapshotTemporarilyUnavailable` unless one was offered with `offer_snapshot`.
    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<raft::eraftpb::Snapshot> {
        todo!()
    }
}

impl Log {
    /// What `snapshot` answers with: (index, term, conf state) of the store's
    /// last commit; the data travels beside raft.
    pub fn offer_snapshot(&self, index: u64, term: u64, conf_state: ConfState) {
        let _ = (index, term, conf_state);
        todo!()
    }
}

impl Writer {
    /// Writes and syncs what [`Log::append`] hands in, many appends under one
    /// sync, until the last [`Log`] is gone. `said` is called after each sync.
    /// `synced` sees each sync's duration in seconds (metrics).
    pub async fn run(self, said: impl FnMut(Persisted) + Send + 'static, synced: impl FnMut(f64) + Send + 'static) {
        let _ = (said, synced);
        todo!()
    }
}
