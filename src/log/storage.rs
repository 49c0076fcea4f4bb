//! What raft reads: entries, terms, ends, and the snapshot on offer.
//!
//! Owns the answers to raft's synchronous questions. Promises not to wait:
//! what is on disk only is refused with `LogTemporarilyUnavailable`, remembered
//! as wanted, and answered from what was fetched when raft asks again.

use super::{FETCHED_MAX, Log, State, tail};
use raft::{
    GetEntriesContext, RaftState, Storage, StorageError,
    eraftpb::{Entry, Snapshot},
};

/// Refused reads kept; a follower whose read was forgotten asks again with its
/// next heartbeat.
const WANTED_MAX: usize = 64;

/// A read that raft was refused: entries `low..high`, at most `bytes_max` bytes.
#[derive(Debug)]
pub struct Wanted {
    pub low: u64,
    pub high: u64,
    pub bytes_max: u64,
    /// For raft's `on_entries_fetched`.
    pub context: GetEntriesContext,
}

impl State {
    fn want(&mut self, wanted: Wanted) {
        // A follower waits for one read at a time: the later one counts.
        let name = format!("{:?}", wanted.context);
        self.wanted.retain(|other| format!("{:?}", other.context) != name);
        if self.wanted.len() == WANTED_MAX {
            self.wanted.pop_front();
        }
        self.wanted.push_back(wanted);
    }

    /// Keeps a run of fetched entries: the latest in any case, older ones
    /// within the bounds.
    pub(super) fn keep_fetched(&mut self, entries: Vec<Entry>) {
        self.fetched.push_back(entries);
        let mut bytes = self.fetched.iter().flatten().map(tail::weight).sum::<u64>();
        while self.fetched.len() > FETCHED_MAX || bytes > self.fetched_bytes_max && self.fetched.len() > 1 {
            let oldest = self.fetched.pop_front().unwrap_or_default();
            bytes -= oldest.iter().map(tail::weight).sum::<u64>();
        }
    }

    /// Fetched entries from `low` on, if they are still the log's.
    fn fetched(&self, low: u64, high: u64, bytes_max: u64) -> Option<Vec<Entry>> {
        let run = self.fetched.iter().rev().find_map(|run| {
            let at = low.checked_sub(run.first()?.index)?;
            run.get(usize::try_from(at).ok()?..).filter(|run| !run.is_empty())
        })?;
        // One term at an index is one entry, and so is everything before it;
        // what was replaced since it was fetched does not count.
        let asked = run.len().min((high - low) as usize);
        let current = |entry: &Entry| self.tail.term(entry.index) == Some(entry.term);
        let run = &run[..run[..asked].iter().rposition(current)? + 1];
        Some(tail::within(run.iter(), bytes_max).cloned().collect())
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let state = self.shared.lock();
        Ok(RaftState { hard_state: state.hard_state.clone(), conf_state: state.conf_state.clone() })
    }

    /// Answers `LogTemporarilyUnavailable` when the entries are on disk only.
    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let mut state = self.shared.lock();
        if low <= state.tail.start().0 {
            return Err(StorageError::Compacted.into());
        }
        let last = state.tail.last();
        assert!(
            low <= high && high <= last + 1,
            "entries {low}..{high} are asked of a log that ends at {last}"
        );
        if low == high {
            return Ok(Vec::new());
        }
        if let Some(entries) = state.tail.slice(low, high, bytes_max) {
            return Ok(entries);
        }
        if let Some(entries) = state.fetched(low, high, bytes_max) {
            return Ok(entries);
        }
        if context.can_async() {
            state.want(Wanted { low, high, bytes_max, context });
        }
        Err(StorageError::LogTemporarilyUnavailable.into())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let state = self.shared.lock();
        state.tail.term(index).ok_or_else(|| {
            let below = index < state.tail.start().0;
            if below { StorageError::Compacted.into() } else { StorageError::Unavailable.into() }
        })
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.shared.lock().tail.start().0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.shared.lock().tail.last())
    }

    /// `SnapshotTemporarilyUnavailable` unless one was offered with
    /// `offer_snapshot` that the log can continue from.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let state = self.shared.lock();
        let start = state.tail.start().0;
        match &state.offered {
            Some((index, term, conf_state)) if *index >= request_index && *index >= start => {
                let mut snapshot = Snapshot::default();
                let metadata = snapshot.mut_metadata();
                metadata.index = *index;
                metadata.term = *term;
                metadata.set_conf_state(conf_state.clone());
                Ok(snapshot)
            }
            _ => Err(StorageError::SnapshotTemporarilyUnavailable.into()),
        }
    }
}
