//! The log as raft sees it, and the window between raft and apply.
//!
//! Owns two things that raft-rs leaves to its user. First, credit: committed entries are handed
//! out only while what apply holds is below a bound, so that nothing in the cycle
//! raft → apply → raft ever waits to send (I10); the rest stays in the log. Second, entries that
//! are on disk only: a request of raft's that may wait is noted and fetched by the loop, one that
//! may not is answered without them in a way that is safe.
//!
//! **Never** waits and never fails on an entry that is merely not in memory.

use crate::log::Log;
use raft::{
    GetEntriesContext, RaftState, Storage, StorageError,
    eraftpb::{Entry, EntryType, Snapshot},
};
use std::sync::{Arc, Mutex, MutexGuard};

/// Entries that were handed to apply and are not applied yet.
pub(super) const WINDOW_ENTRIES_MAX: usize = 8_192;
pub(super) const WINDOW_BYTES_MAX: usize = 32 << 20;

/// Entries to fetch from disk.
#[derive(Debug)]
pub(super) struct Wanted {
    pub low: u64,
    pub high: u64,
    pub bytes_max: u64,
    /// What raft wants to be reminded with; `None`: they are for apply.
    pub context: Option<GetEntriesContext>,
}

#[derive(Default)]
struct Held {
    /// `ready` is being called: raft asks for committed entries.
    handing_out: bool,
    entries_out: usize,
    bytes_out: usize,
    wanted: Vec<Wanted>,
}

/// Cheap to clone; clones share one state.
#[derive(Clone)]
pub(super) struct LogView {
    log: Log,
    applied_at_start: (u64, u64),
    held: Arc<Mutex<Held>>,
}

impl LogView {
    /// `applied`: index and term of the store's durable mark, which the hard state may lag (I3).
    pub fn new(log: Log, applied: (u64, u64)) -> LogView {
        LogView { log, applied_at_start: applied, held: Arc::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no panic while the view is locked")
    }

    /// Brackets the call of `ready`, in which raft asks for committed entries.
    pub fn handing_out(&self, now: bool) {
        let mut held = self.held();
        assert!(held.handing_out != now, "the bracket opens and closes in turn");
        held.handing_out = now;
    }

    /// Entries went to apply.
    pub fn handed(&self, entries: usize, bytes: usize) {
        let mut held = self.held();
        held.entries_out += entries;
        held.bytes_out += bytes;
    }

    /// Entries came back applied: their credit returns.
    pub fn applied(&self, entries: usize, bytes: usize) {
        let mut held = self.held();
        assert!(
            held.entries_out >= entries && held.bytes_out >= bytes,
            "only what was handed out comes back"
        );
        held.entries_out -= entries;
        held.bytes_out -= bytes;
    }

    /// Entries and bytes that apply holds.
    pub fn out(&self) -> (usize, usize) {
        let held = self.held();
        (held.entries_out, held.bytes_out)
    }

    /// What raft asked for and the disk has.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        std::mem::take(&mut self.held().wanted)
    }

    fn want(&self, wanted: Wanted) {
        let mut held = self.held();
        // Raft asks again at each heartbeat: the first request for a place stands for all.
        if !held.wanted.iter().any(|other| other.low == wanted.low) {
            held.wanted.push(wanted);
        }
    }

    /// Reads entries; `None` when they are on disk only.
    fn in_memory(&self, low: u64, high: u64, bytes_max: Option<u64>) -> raft::Result<Option<Vec<Entry>>> {
        match self.log.entries(low, high, bytes_max, GetEntriesContext::empty(true)) {
            Ok(entries) => Ok(Some(entries)),
            Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn committed(&self, low: u64, high: u64, bytes_max: Option<u64>) -> raft::Result<Vec<Entry>> {
        let (entries_out, bytes_out) = self.out();
        if entries_out >= WINDOW_ENTRIES_MAX || bytes_out >= WINDOW_BYTES_MAX {
            crate::reached!("apply window full");
            return Ok(Vec::new());
        }
        let high = high.min(low + (WINDOW_ENTRIES_MAX - entries_out) as u64);
        let bytes_max = bytes_max.unwrap_or(u64::MAX).min((WINDOW_BYTES_MAX - bytes_out) as u64);
        match self.in_memory(low, high, Some(bytes_max))? {
            Some(entries) => Ok(entries),
            None => {
                self.want(Wanted { low, high, bytes_max, context: None });
                Ok(Vec::new())
            }
        }
    }
}

impl Storage for LogView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut state = self.log.initial_state()?;
        let (index, term) = self.applied_at_start;
        let hard_state = &mut state.hard_state;
        // What is applied was committed, though the commit index may not have reached the log.
        hard_state.commit = hard_state.commit.max(index);
        if hard_state.term < term {
            // A snapshot of a later term was installed and the vote for it never written: then
            // none was given.
            hard_state.term = term;
            hard_state.vote = 0;
        }
        assert!(
            hard_state.commit <= self.log.last_index()?,
            "the log ends at or above the commit index (I3)"
        );
        Ok(state)
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let bytes_max = max_size.into();
        if context.can_async() {
            return self.in_memory(low, high, bytes_max)?.ok_or_else(|| {
                let bytes_max = bytes_max.unwrap_or(u64::MAX);
                self.want(Wanted { low, high, bytes_max, context: Some(context) });
                StorageError::LogTemporarilyUnavailable.into()
            });
        }
        if self.held().handing_out {
            return self.committed(low, high, bytes_max);
        }
        // A would-be candidate asks whether a conf change waits to be applied. Where that cannot be
        // told at once, one may: it will campaign later.
        let in_memory = self.in_memory(low, high, bytes_max)?;
        Ok(in_memory.unwrap_or_else(|| {
            vec![Entry { entry_type: EntryType::EntryConfChange, index: low, ..Entry::default() }]
        }))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.log.term(index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        self.log.first_index()
    }

    fn last_index(&self) -> raft::Result<u64> {
        self.log.last_index()
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        self.log.snapshot(request_index, to)
    }
}
