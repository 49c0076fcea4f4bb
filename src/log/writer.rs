//! The disk side of the log.
//!
//! Owns the page file and the order of what reaches it: many appends under one
//! sync, a reset as one atomic replacement, and hard state and start in a
//! synced newer page before a segment goes (I3). Promises to tell a ticket only
//! after the sync that covers it. Never touches raft.

use super::{Error, Persisted, Shared, record};
use crate::env::{Clock, task};
use crate::pagefile::{PageFile, PageNumber};
use quorate_proto::quorate::v1 as stored;
use raft::eraftpb::HardState;
use std::{sync::Arc, time::Duration};

/// After this long without work a mark is written that covers the last sync (I6).
const IDLE: Duration = Duration::from_millis(200);

/// The disk side: owns the page file; run it as a task of its own with [`Writer::run`].
pub struct Writer {
    shared: Arc<Shared>,
    file: PageFile,
    /// As on disk.
    hard_state: HardState,
    last: u64,
    clock: Arc<dyn Clock>,
    /// An idle timer is running.
    armed: bool,
    /// Something was written since it was set.
    busy: bool,
    /// Something was synced that no mark covers yet.
    unmarked: bool,
}

/// What the writer takes in one turn.
pub(super) struct Batch {
    /// The log begins anew here, before the entries.
    reset: Option<(u64, u64)>,
    entries: Vec<stored::Entry>,
    hard_state: HardState,
    pub ticket: u64,
}

/// How a turn ended.
pub(super) enum Turn {
    /// Everything up to the ticket is durable, after a sync of so many seconds
    /// (`None`: nothing had to be written).
    Said(u64, Option<f64>),
    /// Housekeeping was done; there may be more to do.
    Kept,
    /// Nothing to do.
    Idle,
    /// The last [`super::Log`] is gone and all is written.
    Over,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        file: PageFile,
        hard_state: HardState,
        clock: Arc<dyn Clock>,
    ) -> Writer {
        let last = shared.lock().tail.last();
        // What a kill left may lie below no durable mark.
        Writer { shared, file, hard_state, last, clock, armed: false, busy: false, unmarked: true }
    }

    /// Writes and syncs what [`super::Log::append`] hands in, many appends under one
    /// sync, until the last [`super::Log`] is gone. `said` is called after each sync.
    /// `synced` sees each sync's duration in seconds (metrics).
    pub async fn run(
        mut self,
        mut said: impl FnMut(Persisted) + Send + 'static,
        mut synced: impl FnMut(f64) + Send + 'static,
    ) {
        loop {
            match self.turn().await {
                Ok(Turn::Said(ticket, seconds)) => {
                    if let Some(seconds) = seconds {
                        synced(seconds);
                    }
                    said(Persisted::Upto(ticket));
                }
                Ok(Turn::Kept) => {}
                Ok(Turn::Idle) => {
                    self.arm();
                    self.shared.work.notified().await;
                }
                Ok(Turn::Over) => return,
                Err(error) => {
                    said(Persisted::Failed(error));
                    return;
                }
            }
        }
    }

    /// Bytes on disk, preallocation included.
    pub fn size_on_disk(&self) -> u64 {
        self.file.size_on_disk()
    }

    /// Sets the idle timer: a task of its own, so that no timer is built for
    /// each turn. One runs at a time.
    fn arm(&mut self) {
        if self.armed || !self.unmarked {
            return;
        }
        (self.armed, self.busy) = (true, false);
        let (shared, clock) = (self.shared.clone(), self.clock.clone());
        task::spawn(async move {
            clock.sleep(IDLE).await;
            shared.lock().rang = true;
            shared.work.notify_one();
        });
    }

    /// Does the most urgent thing: what waits to be durable, then space, then marks.
    pub(super) async fn turn(&mut self) -> Result<Turn, Error> {
        if let Some(batch) = self.take_batch() {
            let ticket = batch.ticket;
            let seconds = self.write(batch).await?;
            return Ok(Turn::Said(ticket, seconds));
        }
        let (compacted, rang, closed) = {
            let mut state = self.shared.lock();
            (std::mem::take(&mut state.compacted), std::mem::take(&mut state.rang), state.closed)
        };
        if rang {
            self.armed = false;
        }
        if compacted {
            self.drop_segments().await?;
            return Ok(Turn::Kept);
        }
        if closed || rang && !self.busy {
            self.file.mark_synced().await?;
            self.unmarked = false;
        }
        Ok(if closed { Turn::Over } else { Turn::Idle })
    }

    pub(super) fn take_batch(&self) -> Option<Batch> {
        let mut state = self.shared.lock();
        let ticket = state.pending.ticket?;
        let pending = std::mem::take(&mut state.pending);
        let mut entries = Vec::new();
        if let Some(from) = pending.from {
            entries.extend(state.tail.from(from).map(record::to_stored));
        }
        let mut hard_state = state.hard_state.clone();
        // On disk, too, nothing is committed that is not there.
        hard_state.commit = hard_state.commit.min(state.tail.last());
        Some(Batch { reset: pending.reset.then(|| state.tail.start()), entries, hard_state, ticket })
    }

    /// Makes a batch durable and tells the shared state.
    pub(super) async fn write(&mut self, batch: Batch) -> Result<Option<f64>, Error> {
        let Batch { reset, entries, hard_state, .. } = batch;
        let changed = (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote);
        if reset.is_none() && entries.is_empty() && !changed {
            return Ok(None);
        }
        assert!(hard_state.term >= self.hard_state.term, "the hard state's term never falls");
        let hard_state_changed = reset.is_some() || hard_state != self.hard_state;
        if let Some((index, _)) = reset {
            self.last = index;
        }
        if let Some((first, last)) = entries.first().zip(entries.last()) {
            assert!(first.index <= self.last + 1, "entry {} leaves a gap after {}", first.index, self.last);
            self.last = last.index;
        }
        let records = record::encode(entries, hard_state_changed.then_some(&hard_state), reset);
        let mut runs: Vec<(u64, u64, PageNumber)> = Vec::new();
        for record in records {
            let page = self.file.append(record::KIND, record.payload);
            runs.extend(record.entries.map(|(first, last)| (first, last, page)));
        }
        let began = self.clock.now();
        if reset.is_some() {
            self.file.replace().await?;
        } else {
            self.file.commit().await?;
            self.file.sync().await?;
        }
        let seconds = self.clock.now().since(began).as_secs_f64();
        self.hard_state = hard_state;
        (self.busy, self.unmarked) = (true, true);
        let mut state = self.shared.lock();
        if reset.is_some() {
            state.places = super::Places::default();
        }
        for (first, last, page) in runs {
            state.places.put(first, last, page);
        }
        state.written(self.last);
        Ok(Some(seconds))
    }

    /// Gives back the segments that hold only entries before the log's start.
    async fn drop_segments(&mut self) -> Result<(), Error> {
        let (start, keep) = {
            let mut state = self.shared.lock();
            if state.pending.reset {
                // The replacement to come frees everything.
                return Ok(());
            }
            let start = state.tail.start();
            state.places.compact(start.0);
            let next = state.places.find(start.0 + 1);
            (start, next.map_or(self.file.next_number(), |run| run.page))
        };
        if self.file.droppable(keep) == 0 {
            return Ok(());
        }
        for record in record::encode(Vec::new(), Some(&self.hard_state), Some(start)) {
            self.file.append(record::KIND, record.payload);
        }
        self.file.commit().await?;
        self.file.sync().await?;
        (self.busy, self.unmarked) = (true, true);
        self.file.drop_before(keep).await?;
        Ok(())
    }
}

/// Replaces whatever the page file holds by a log without entries that starts at `start`.
pub(super) async fn begin_anew(
    file: &mut PageFile,
    hard_state: &HardState,
    start: (u64, u64),
) -> Result<(), Error> {
    for record in record::encode(Vec::new(), Some(hard_state), Some(start)) {
        file.append(record::KIND, record.payload);
    }
    file.replace().await?;
    Ok(())
}
