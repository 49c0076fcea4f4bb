//! The replicated state machine: (state, entry) -> (state', reply), or the
//! pages it lacks with nothing changed.
//!
//! | file | what |
//! |---|---|
//! | `entry.rs` | which request an entry carries; unknown fields |
//! | `apply.rs` | what each kind of entry does |
//! | `growth.rs` | what a request may add to the store |
//! | `mark.rs` | all small state as the mark of a commit, and back |
//!
//! **Invariant (I2).** Pure: no clock, randomness, I/O, locks, flags. Members
//! that applied the same entries hold the same state and gave the same
//! answers, whatever pages they had at hand and whatever was removed where.

mod apply;
mod entry;
mod growth;
mod mark;
#[cfg(test)]
mod tests;

pub use crate::mvcc::check;
pub use growth::{growth, growth_of_put, growth_of_txn};

use crate::members::{ChangeError, Members};
use crate::mvcc::{self, Missing, Mvcc, Pages, RangePlan, RangeSlice, View};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, raftpb};

/// Everything that entries change.
#[derive(Debug)]
pub struct State {
    pub members: Members,
    pub cluster_version: String,
    /// (member id, alarm type number).
    pub alarms: std::collections::BTreeSet<(u64, i32)>,
    /// Target version of a downgrade that is under way; empty: none.
    pub downgrade_target: String,
    /// Index and term of the last applied entry.
    pub applied: (u64, u64),
    /// Store pages with imported buckets, which every mark names.
    pub bucket_pages: Vec<u64>,
    mvcc: Mvcc,
}

/// An entry as the log holds it; etcd's meaning.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub index: u64,
    pub term: u64,
    /// `true`: `data` is a `raftpb.ConfChange`; `false`: an `InternalRaftRequest` (or empty: a new leader's).
    pub is_conf_change: bool,
    pub data: Bytes,
}

/// What a request answers with; headers are filled in by `api` (revision is set here).
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Put(pb::PutResponse),
    DeleteRange(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Range(pb::RangeResponse),
    Compaction(pb::CompactionResponse),
    Alarm(pb::AlarmResponse),
    /// Entries that answer with nothing (attributes, cluster version, members).
    Empty,
}

/// Refusals at apply, the same on every member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Mvcc(#[from] mvcc::Error),
    #[error("database space exceeded")]
    NoSpace,
    #[error("corrupt cluster")]
    Corrupt,
    /// A text of [`ChangeError`].
    #[error("rejected conf change: {0}")]
    Member(&'static str),
    /// A kind of request that this release knows but does not serve yet.
    #[error("not served")]
    NotServed,
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Refusal {
        Refusal::Member(error.text())
    }
}

/// What applying one entry did.
#[derive(Debug)]
pub struct Applied {
    /// Request id from the entry's header (of a conf change: its id); 0 = nobody waits.
    pub request_id: u64,
    pub outcome: Result<Reply, Refusal>,
    /// A conf change that took effect: raft must be told (an update of URLs never reaches raft). `None` for
    /// other entries; `is_conf_change` entries that are refused give `Some(None)`.
    pub conf_change: Option<Option<raftpb::ConfChange>>,
}

/// An entry that this release must not skip (I2): the member stops before applying it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownEntry {
    pub index: u64,
    /// 0: the bytes do not decode at all.
    pub field: u32,
}

impl std::fmt::Display for UnknownEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let UnknownEntry { index, field } = self;
        match field {
            0 => write!(f, "entry {index} does not decode"),
            _ => write!(f, "entry {index} carries field {field} which this release does not know"),
        }
    }
}

impl std::error::Error for UnknownEntry {}

/// Why an entry was not applied; nothing was changed.
#[derive(Debug)]
pub enum Held {
    Missing(Missing),
    Unknown(UnknownEntry),
}

impl From<Missing> for Held {
    fn from(missing: Missing) -> Held {
        Held::Missing(missing)
    }
}

impl From<UnknownEntry> for Held {
    fn from(unknown: UnknownEntry) -> Held {
        Held::Unknown(unknown)
    }
}

/// Building, pages, recovery.
impl State {
    /// The state before the first entry. Only the cluster id is taken from `members`: members come
    /// through entries (and through [`State::load_mark`]).
    pub fn new(members: Members) -> State {
        State {
            members: Members { cluster_id: members.cluster_id, ..Members::default() },
            cluster_version: String::new(),
            alarms: std::collections::BTreeSet::new(),
            downgrade_target: String::new(),
            applied: (0, 0),
            bucket_pages: Vec::new(),
            mvcc: Mvcc::default(),
        }
    }

    /// Pages of records that are full, in order, each with the number that
    /// records point to. The caller keeps them readable and writes them.
    pub fn take_sealed(&mut self) -> Vec<(PageNumber, Bytes)> {
        self.mvcc.take_sealed()
    }

    /// Seals the open page too (before a commit).
    pub fn seal(&mut self) {
        self.mvcc.seal();
    }

    /// Tells the number that the (empty) open page will have; called by the store after each
    /// commit and at the start. Full pages in between count on by one.
    pub fn set_next_page(&mut self, next: PageNumber) {
        self.mvcc.set_next_page(next);
    }

    /// Pages below this hold nothing that any reader may still ask for (all of it compacted
    /// away): whole segments below it may go. It moves with [`State::compact_step`].
    pub fn oldest_live_page(&self) -> PageNumber {
        self.mvcc.oldest_live_page()
    }

    /// Bytes of records that were written and not taken yet.
    pub fn untaken_bytes(&self) -> u64 {
        self.mvcc.untaken_bytes()
    }

    /// Frees what a compaction hides, about `work_max` keys and records of the index at a time (a
    /// thousand take well under a millisecond); `true` when nothing is left to do. No answer and no
    /// hash depends on it.
    pub fn compact_step(&mut self, work_max: usize) -> bool {
        self.mvcc.compact_step(work_max)
    }

    /// See [`Mvcc::pin`].
    pub fn pin(&mut self) -> i64 {
        self.mvcc.pin()
    }

    /// See [`Mvcc::unpin`].
    pub fn unpin(&mut self, compacted: i64) {
        self.mvcc.unpin(compacted);
    }

    /// See [`Mvcc::settle`].
    pub fn settle(&mut self, work_max: usize) -> bool {
        self.mvcc.settle(work_max)
    }

    /// Rebuilds from a store: its last mark first ([`State::load_mark`]), then the slices of a checkpoint
    /// if there is one, then record pages in order; see [`Mvcc::load_slice`] and [`Mvcc::load_page`].
    pub fn load_slice(&mut self, payload: &[u8]) -> Result<(), String> {
        self.mvcc.load_slice(payload)
    }

    pub fn load_page(&mut self, page: PageNumber, payload: &[u8]) -> Result<(), String> {
        self.mvcc.load_page(page, payload)
    }
}

/// Reading. Each answer is one consistent view; see the methods of the same names in [`Mvcc`].
impl State {
    /// The records and their index.
    pub fn mvcc(&self) -> &Mvcc {
        &self.mvcc
    }

    /// Current revision and compacted mark (-1 = never).
    pub fn revisions(&self) -> (i64, i64) {
        (self.mvcc.revision(), self.mvcc.compacted())
    }

    pub fn live_keys(&self) -> u64 {
        self.mvcc.live_keys()
    }

    pub fn range(
        &self,
        request: &pb::RangeRequest,
        pages: &dyn Pages,
    ) -> Result<Result<pb::RangeResponse, mvcc::Error>, Missing> {
        self.mvcc.range(request, pages)
    }

    pub fn range_plan(&self, request: &pb::RangeRequest) -> Result<RangePlan, mvcc::Error> {
        self.mvcc.range_plan(request)
    }

    #[allow(clippy::too_many_arguments)]
    pub fn range_slice(
        &self,
        view: View,
        key: &[u8],
        range_end: &[u8],
        revision: i64,
        limit: usize,
        keys_only: bool,
        pages: &dyn Pages,
    ) -> Result<Result<RangeSlice, mvcc::Error>, Missing> {
        self.mvcc.range_slice(view, key, range_end, revision, limit, keys_only, pages)
    }

    /// A txn of ranges only (`mvcc::is_read_only`).
    pub fn txn(
        &self,
        request: &pb::TxnRequest,
        pages: &dyn Pages,
    ) -> Result<Result<pb::TxnResponse, mvcc::Error>, Missing> {
        self.mvcc.read_txn(request, pages)
    }
}
