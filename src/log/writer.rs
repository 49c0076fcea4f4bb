//! The disk side of the log.
//!
//! Owns the page file and the order of what reaches it: many appends under one
//! sync, a reset as one atomic replacement, and hard state and start in a
//! synced newer page before a segment goes (I3). Promises to tell a ticket only
//! after the sync that covers it; while no space is left it tells nothing,
//! keeps what waits and tries again. Never touches raft.

use super::{Error, Persisted, Shared, record};
use crate::env::{Clock, task};
use crate::pagefile::{self, CommitNumber, Label, Page, PageFile, PageNumber};
use crate::reached;
use quorate_proto::quorate::v1 as stored;
use raft::eraftpb::HardState;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// After this long without work a mark is written that covers the last sync
/// (I6); after this long without space it is tried again.
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
    /// Could not be written for lack of space.
    held: Option<Batch>,
    /// No space was left, and the timer has not rung since.
    stalled: bool,
    rang: bool,
    /// The reserve is being made aside.
    making: bool,
}

/// What the writer takes in one turn.
pub(super) struct Batch {
    /// The log begins anew here, before the entries.
    reset: Option<(u64, u64)>,
    entries: Vec<stored::Entry>,
    hard_state: HardState,
    pub ticket: u64,
}

/// What became of a batch.
pub(super) enum Written {
    /// After a sync of so many seconds (`None`: nothing had to be written).
    Durable(Option<f64>),
    /// It is held until there is space.
    NoSpace,
}

/// How a turn ended.
pub(super) enum Turn {
    /// Everything up to the ticket is durable, after a sync of so many seconds
    /// (`None`: nothing had to be written).
    Said(u64, Option<f64>),
    /// Housekeeping was done; there may be more to do.
    Kept,
    /// The reserve is to be made.
    Lacking,
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
        Writer {
            shared,
            file,
            hard_state,
            last,
            clock,
            armed: false,
            busy: false,
            unmarked: true,
            held: None,
            stalled: false,
            rang: false,
            making: false,
        }
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
                Ok(Turn::Lacking) => drop(task::spawn(self.make_reserve())),
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
        if self.armed || !(self.unmarked || self.stalled) {
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
        let (compacted, closed) = {
            let mut state = self.shared.lock();
            if std::mem::take(&mut state.rang) {
                (self.rang, self.armed, self.stalled) = (true, false, false);
            }
            (state.compacted, state.closed)
        };
        self.take_reserve()?;
        // Begun before the next batch: under constant load there is always one, and the reserve is
        // for the batches that come when no more space is left.
        if !(closed || self.stalled || self.making || self.file.has_reserve()) {
            return Ok(Turn::Lacking);
        }
        if let Some(batch) = self.next_batch(closed) {
            let ticket = batch.ticket;
            match self.write(batch).await? {
                Written::Durable(seconds) => return Ok(Turn::Said(ticket, seconds)),
                Written::NoSpace => {}
            }
        }
        if compacted && !self.stalled {
            self.shared.lock().compacted = false;
            self.drop_segments().await?;
            return Ok(Turn::Kept);
        }
        if closed {
            // What is held was told to nobody.
            unless_full(self.file.mark_synced().await)?;
            return Ok(Turn::Over);
        }
        if std::mem::take(&mut self.rang) && !self.busy {
            self.unmarked = unless_full(self.file.mark_synced().await)?.is_none();
        }
        Ok(Turn::Idle)
    }

    /// Begins to make the reserve, to be awaited aside.
    pub(super) fn make_reserve(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let making = self.file.make_reserve();
        self.making = making.is_some();
        let shared = self.shared.clone();
        async move {
            if let Some(making) = making {
                let made = making.await;
                shared.lock().made = Some(made);
                shared.work.notify_one();
            }
        }
    }

    /// Takes the reserve that was made aside, or why it was not.
    fn take_reserve(&mut self) -> Result<(), Error> {
        let Some(made) = self.shared.lock().made.take() else { return Ok(()) };
        self.making = false;
        match unless_full(made)? {
            Some(reserve) => {
                self.file.keep_reserve(reserve);
                self.shared.has_reserve.store(true, Ordering::Release);
            }
            None => {
                self.stalled = true;
                self.shared.has_reserve.store(false, Ordering::Release);
            }
        }
        Ok(())
    }

    /// What is to be written now. A batch that is held comes first, unless the
    /// log begins anew: then it is void.
    fn next_batch(&mut self, closed: bool) -> Option<Batch> {
        if self.held.is_none() {
            return self.take_batch();
        }
        if self.stalled && !closed {
            return None;
        }
        if self.shared.lock().pending.reset {
            self.held = None;
            return self.take_batch();
        }
        self.held.take()
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

    /// Makes a batch durable and tells the shared state; keeps it if no space is left.
    pub(super) async fn write(&mut self, batch: Batch) -> Result<Written, Error> {
        let Batch { reset, entries, hard_state, .. } = &batch;
        let changed = (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote);
        if reset.is_none() && entries.is_empty() && !changed {
            return Ok(Written::Durable(None));
        }
        assert!(hard_state.term >= self.hard_state.term, "the hard state's term never falls");
        let hard_state_changed = reset.is_some() || *hard_state != self.hard_state;
        let mut last_index = reset.map_or(self.last, |(index, _)| index);
        if let Some((first, last)) = entries.first().zip(entries.last()) {
            assert!(first.index <= last_index + 1, "entry {} leaves a gap after {last_index}", first.index);
            last_index = last.index;
        }
        let records = record::encode(entries.clone(), hard_state_changed.then_some(hard_state), *reset);
        let began = self.clock.now();
        let runs = if reset.is_some() {
            let (pages, runs) = pages(self.file.next_number(), records);
            unless_full(self.file.replace(pages).await)?.map(|_| runs)
        } else {
            let mut runs = Vec::new();
            for record in records {
                let page = self.file.append(record::KIND, label(&record), record.payload);
                runs.extend(record.entries.map(|(first, last)| (first, last, page)));
            }
            unless_full(commit(&mut self.file).await)?.map(|_| runs)
        };
        let Some(runs) = runs else {
            self.file.abandon();
            reached!("log without space");
            self.held = Some(batch);
            self.stalled = true;
            self.shared.lock().stalled = true;
            self.shared.has_reserve.store(false, Ordering::Release);
            return Ok(Written::NoSpace);
        };
        let seconds = self.clock.now().since(began).as_secs_f64();
        let Batch { reset, hard_state, .. } = batch;
        (self.hard_state, self.last) = (hard_state, last_index);
        (self.busy, self.unmarked) = (true, true);
        let mut state = self.shared.lock();
        if reset.is_some() {
            (state.places, state.reader) = (super::Places::default(), self.file.reader());
        }
        for (first, last, page) in runs {
            state.places.put(first, last, page);
        }
        state.written(self.last);
        if std::mem::take(&mut state.stalled) {
            reached!("log has space again");
        }
        Ok(Written::Durable(Some(seconds)))
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
            self.file.append(record::KIND, label(&record), record.payload);
        }
        let mut dropped = unless_full(commit(&mut self.file).await)?;
        if dropped.is_some() {
            (self.busy, self.unmarked) = (true, true);
            dropped = unless_full(self.file.drop_before(keep).await)?.map(|_| ());
        }
        let mut state = self.shared.lock();
        if dropped.is_none() {
            // Not even room for that: once more when the timer rings.
            self.file.abandon();
            (self.stalled, state.compacted) = (true, true);
            self.shared.has_reserve.store(false, Ordering::Release);
        }
        Ok(())
    }
}

/// Commits and syncs what was appended.
async fn commit(file: &mut PageFile) -> Result<(), pagefile::Error> {
    file.commit().await?;
    file.sync().await.map(|_: CommitNumber| ())
}

/// `None` where no space was left, which a writer outlives.
fn unless_full<T>(done: Result<T, pagefile::Error>) -> Result<Option<T>, pagefile::Error> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.is_no_space() => Ok(None),
        Err(error) => Err(error),
    }
}

/// For those who look at log pages from outside: the first entry in it.
fn label(record: &record::Record) -> Label {
    Label { first: record.entries.map_or(0, |(first, _)| first), weight: 0 }
}

/// Pages numbered from `first`, and which entries are where.
fn pages(first: PageNumber, records: Vec<record::Record>) -> (Vec<Page>, Vec<(u64, u64, PageNumber)>) {
    let mut runs = Vec::new();
    let numbered = (first.0..).map(PageNumber).zip(records).map(|(number, record)| {
        runs.extend(record.entries.map(|(first, last)| (first, last, number)));
        let label = label(&record);
        let (kind, payload) = (record::KIND, record.payload);
        Page { number, span: 0, kind, commit: CommitNumber(0), label, payload }
    });
    (numbered.collect(), runs)
}

/// Replaces whatever the page file holds by a log without entries that starts at `start`.
pub(super) async fn begin_anew(
    file: &mut PageFile,
    hard_state: &HardState,
    start: (u64, u64),
) -> Result<(), Error> {
    let records = record::encode(Vec::new(), Some(hard_state), Some(start));
    file.replace(pages(file.next_number(), records).0).await?;
    Ok(())
}
