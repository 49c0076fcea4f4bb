//! The replicated state machine: (state, entry) -> (state', reply, events), or
//! the pages it lacks with nothing changed.
//!
//! **Invariant (I2).** Pure: no clock, randomness, I/O, locks, flags.

use crate::members::Members;
use crate::mvcc::{self, Missing, Pages};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, quorate::v1::StoreMark, raftpb};

pub use crate::mvcc::check;

/// Everything that entries change.
pub struct State {
    pub members: Members,
    pub cluster_version: String,
    /// (member id, alarm type number).
    pub alarms: std::collections::BTreeSet<(u64, i32)>,
    pub applied: (u64, u64),
    // mvcc: mvcc::Mvcc,
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
#[derive(Clone, Debug)]
pub enum Reply {
    Put(pb::PutResponse),
    DeleteRange(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Range(pb::RangeResponse),
    Compaction(pb::CompactionResponse),
    Alarm(pb::AlarmResponse),
    /// Entries that answer with nothing (attributes, cluster version).
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
    #[error("rejected conf change: {0}")]
    Member(&'static str),
    /// A kind of request that this release knows but does not serve yet.
    #[error("not served")]
    NotServed,
}

/// What applying one entry did.
#[derive(Debug)]
pub struct Applied {
    /// Request id from the entry's header; 0 = nobody waits.
    pub request_id: u64,
    pub outcome: Result<Reply, Refusal>,
    /// A conf change that took effect: raft must be told. `None` for others and for refused ones
    /// (`is_conf_change` entries that are refused give `Some(None)`).
    pub conf_change: Option<Option<raftpb::ConfChange>>,
}

/// An entry that this release must not skip (I2): the member stops before applying it.
#[derive(Debug, thiserror::Error)]
#[error("entry {index} carries field {field} which this release does not know")]
pub struct UnknownEntry {
    pub index: u64,
    pub field: u32,
}

/// Why an entry was not applied; nothing was changed.
#[derive(Debug)]
pub enum Held {
    Missing(Missing),
    Unknown(UnknownEntry),
}

impl State {
    pub fn new(members: Members) -> State {
        let _ = members;
        todo!()
    }

    /// Applies one entry. `pages` reads; new records go to the state's own open
    /// page, see [`State::take_sealed`].
    pub fn apply(&mut self, entry: &Entry, pages: &dyn Pages) -> Result<Applied, Held> {
        let _ = (entry, pages);
        todo!()
    }

    /// Pages of records that are full, in order, each with the number that
    /// records point to. The caller keeps them readable and writes them.
    pub fn take_sealed(&mut self) -> Vec<(PageNumber, Bytes)> {
        todo!()
    }

    /// Seals the open page too (before a commit).
    pub fn seal(&mut self) {
        todo!()
    }

    /// Tells the number that the (empty) open page will have; called by the store after each
    /// commit and at the start. Full pages in between count on by one.
    pub fn set_next_page(&mut self, next: PageNumber) {
        let _ = next;
        todo!()
    }

    /// Pages below this hold nothing that any reader may still ask for (all of it compacted
    /// away): whole segments below it may go.
    pub fn oldest_live_page(&self) -> PageNumber {
        todo!()
    }

    /// The mark that must stand in the same commit as every page taken so far (I3).
    pub fn mark(&self) -> StoreMark {
        todo!()
    }

    /// Rebuilds from a store: call `load_page` for each record page in order, then `load_mark`
    /// of each commit as it comes; the last one wins.
    pub fn load_page(&mut self, page: PageNumber, payload: &Bytes) -> Result<(), String> {
        let _ = (page, payload);
        todo!()
    }

    pub fn load_mark(&mut self, mark: &StoreMark) -> Result<(), String> {
        let _ = mark;
        todo!()
    }
}
