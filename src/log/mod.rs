//! The raft log on a page file: entries, hard state, truncation of a
//! conflicting suffix, compaction of a prefix, many entries under one sync.
//!
//! The recent tail stays in memory (bounded in bytes) and serves raft's
//! synchronous [`raft::Storage`]; older entries are fetched from disk.
//!
//! # Invariants
//! - Entries follow each other, terms never fall, the hard state's term never
//!   falls, a vote is cast once a term, committed entries are not replaced.
//! - **I3.** The log is compacted only up to what is durable here and applied;
//!   before a segment goes, hard state and the log's start stand in a newer one
//!   that is synced. After an open: log start <= mark + 1, log end >= mark.
//! - **I4's first half.** A ticket is told as persisted only after the sync.
//! - Never decodes bytes with rust-protobuf.
//!
//! # What stays in memory
//! Raft reads entries without waiting, except those it sends to a slow
//! follower. So everything not yet durable or not yet applied stays; of the
//! rest as much as [`Options::cache_bytes`] allows. Tell [`Log::set_applied`],
//! or nothing but compaction makes room.

#[doc(hidden)]
pub mod fuzz;
mod places;
mod record;
mod storage;
mod tail;
mod writer;

#[cfg(test)]
mod tests;

use crate::env::{Clock, Env};
use crate::pagefile::{self, PageFile, PageNumber, PageReader};
use crate::reached;
use places::Places;
use raft::eraftpb::{ConfState, Entry, HardState};
use record::Replay;
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};
use tail::Tail;
use tokio::sync::Notify;

pub use storage::Wanted;
pub use writer::Writer;

/// Pages read at once for a slow follower.
const FETCH_PAGES: usize = 16;
/// Runs of fetched entries kept for raft's next call.
const FETCHED_MAX: usize = 8;

#[derive(Clone, Debug)]
pub struct Options {
    pub page_size: u32,
    pub segment_size: u64,
    /// Entries kept in memory, in bytes of their data and of themselves.
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
    /// I3 was broken: entries that the store has not applied are gone.
    #[error("the log starts behind entry {start}, the store has applied only {applied}")]
    StartsLate { start: u64, applied: u64 },
}

/// The raft side: cheap clones share one state. Implements [`raft::Storage`].
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
    /// Ends the writer when the last clone goes.
    _alive: Arc<Alive>,
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

struct Shared {
    state: Mutex<State>,
    /// Wakes the writer.
    work: Notify,
    /// The writer's word: the spare segment stands, or is not known to lack space. Every proposal asks.
    has_reserve: AtomicBool,
}

/// What waits for the writer.
#[derive(Default)]
struct Pending {
    /// The log begins anew at its start.
    reset: bool,
    /// Entries from here on are to be written.
    from: Option<u64>,
    /// Highest ticket that waits.
    ticket: Option<u64>,
}

struct State {
    tail: Tail,
    places: Places,
    /// Reads the pages that `places` names.
    reader: PageReader,
    hard_state: HardState,
    conf_state: ConfState,
    pending: Pending,
    /// The log's start moved: segments may go.
    compacted: bool,
    /// The writer's idle timer rang.
    rang: bool,
    closed: bool,
    offered: Option<(u64, u64, ConfState)>,
    /// Reads that raft was refused, oldest first.
    wanted: VecDeque<Wanted>,
    /// Runs of entries fetched for it, oldest first.
    fetched: VecDeque<Vec<Entry>>,
    fetched_bytes_max: u64,
    /// The reserve, made aside for the writer.
    made: Option<Result<pagefile::Reserve, pagefile::Error>>,
    /// The writer's word: what waits is not written because no space is left.
    stalled: bool,
}

/// A look at the log's space, which does not keep its writer alive.
#[derive(Clone)]
pub struct Space(Arc<Shared>);

impl Space {
    /// See [`Log::has_reserve`].
    pub fn has_reserve(&self) -> bool {
        self.0.has_reserve.load(Ordering::Acquire)
    }
}

struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the log is locked")
    }
}

impl State {
    /// Takes over a later hard state.
    fn adopt(&mut self, new: &HardState) {
        let old = &self.hard_state;
        assert!(new.term >= old.term, "the hard state's term falls from {} to {}", old.term, new.term);
        assert!(
            new.term > old.term || old.vote == 0 || new.vote == old.vote,
            "a second vote in term {}: {} after {}",
            old.term,
            new.vote,
            old.vote
        );
        let commit = old.commit.max(new.commit);
        self.hard_state = HardState { term: new.term, vote: new.vote, commit, ..HardState::default() };
    }

    /// Entries up to `disk_last` were written as they stood when the writer took them.
    fn written(&mut self, disk_last: u64) {
        if self.pending.reset {
            // All of it is void already.
            return;
        }
        let unchanged = self.pending.from.map_or(u64::MAX, |from| from - 1);
        self.tail.set_persisted(disk_last.min(unchanged).min(self.tail.last()));
    }
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
        let sizes = pagefile::Options { page_size: options.page_size, segment_size: options.segment_size };
        let mut replay = Replay::new(Tail::new((0, 0), applied.0, options.cache_bytes));
        let (mut file, _) = PageFile::open(env.disk.clone(), dir, sizes, env.rng.clone()).await?;
        let mut pages = file.reader().scan(PageNumber(0));
        while let Some(page) = pages.next().await? {
            replay.take(&page);
        }
        drop(pages);
        let (mut tail, mut places, mut hard_state) = replay.finish()?;
        let start = tail.start().0;
        if start > applied.0 {
            return Err(Error::StartsLate { start, applied: applied.0 });
        }
        if tail.term(applied.0) != Some(applied.1) {
            reached!("log begun anew behind the store's mark");
            if applied.1 > hard_state.term {
                hard_state = HardState { term: applied.1, ..HardState::default() };
            }
            hard_state.commit = applied.0;
            tail.reset(applied.0, applied.1);
            places = Places::default();
            writer::begin_anew(&mut file, &hard_state, applied).await?;
        }
        hard_state.commit = hard_state.commit.max(applied.0);
        assert!(tail.start().0 <= applied.0 && applied.0 <= tail.last(), "I3: the mark lies in the log");
        let opened = Opened {
            hard_state: hard_state.clone(),
            first_index: tail.start().0 + 1,
            last_index: tail.last(),
        };
        let shared = Arc::new(Shared {
            work: Notify::new(),
            has_reserve: AtomicBool::new(true),
            state: Mutex::new(State {
                tail,
                places,
                reader: file.reader(),
                hard_state: hard_state.clone(),
                conf_state,
                pending: Pending::default(),
                compacted: false,
                rang: false,
                closed: false,
                offered: None,
                wanted: VecDeque::new(),
                fetched: VecDeque::new(),
                fetched_bytes_max: options.cache_bytes / 4,
                made: None,
                stalled: false,
            }),
        });
        let clock: Arc<dyn Clock> = env.clock.clone();
        let writer = Writer::new(shared.clone(), file, hard_state, clock);
        Ok((Log { _alive: Arc::new(Alive(shared.clone())), shared }, writer, opened))
    }

    /// Takes entries (replacing any suffix from the first one's index on) and
    /// the hard state; they can be read at once and are durable when the writer
    /// says [`Persisted::Upto`] a ticket >= `ticket`. Never waits. Tickets rise.
    /// (A hard state that differs in `commit` only is no reason for a write:
    /// it goes with the next one.)
    pub fn append(&self, entries: &[Entry], hard_state: Option<&HardState>, ticket: u64) {
        let mut state = self.shared.lock();
        if let Some(first) = entries.first() {
            let commit = state.hard_state.commit;
            let replaces = first.index <= state.tail.last();
            assert!(!replaces || first.index > commit, "{} is committed up to {commit}", first.index);
            if state.tail.append(entries) {
                reached!("log suffix replaced");
            }
            let from = state.pending.from.map_or(first.index, |from| from.min(first.index));
            state.pending.from = Some(from);
        }
        if let Some(hard_state) = hard_state {
            state.adopt(hard_state);
        }
        state.await_ticket(ticket);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Records the commit index in the in-memory hard state (it reaches the
    /// disk with the next append).
    pub fn set_commit(&self, commit: u64) {
        let mut state = self.shared.lock();
        assert!(commit <= state.tail.last(), "{commit} is not in the log");
        state.hard_state.commit = state.hard_state.commit.max(commit);
    }

    /// The conf state that raft's `initial_state` returns.
    pub fn set_conf_state(&self, conf_state: ConfState) {
        self.shared.lock().conf_state = conf_state;
    }

    /// Raft was told (`advance_apply`) that entries up to `index` are applied:
    /// they may leave memory once durable. Without this word only compaction
    /// makes room.
    pub fn set_applied(&self, index: u64) {
        self.shared.lock().tail.set_applied(index);
    }

    /// Entries up to and with `index` may go, in memory at once, on disk by
    /// whole segments. `index` must not exceed the store's durable mark (I3).
    pub fn compact(&self, index: u64) {
        let mut state = self.shared.lock();
        if index <= state.tail.start().0 {
            return;
        }
        state.tail.compact(index);
        state.compacted = true;
        drop(state);
        self.shared.work.notify_one();
    }

    /// Begins anew after an installed snapshot: no entries, start at (index, term).
    pub fn reset(&self, index: u64, term: u64, hard_state: &HardState, ticket: u64) {
        let mut state = self.shared.lock();
        assert!(index >= state.tail.start().0, "the start does not fall");
        state.adopt(hard_state);
        state.hard_state.commit = state.hard_state.commit.max(index);
        state.tail.reset(index, term);
        state.fetched.clear();
        state.pending.reset = true;
        state.pending.from = None;
        state.await_ticket(ticket);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Reads entries `low..high` from disk for a slow follower, at most
    /// `bytes_max` (but one at least), and keeps them ready for raft's next
    /// `entries` call (see raft's `on_entries_fetched`).
    pub async fn fetch(&self, low: u64, high: u64, bytes_max: u64) -> Result<(), Error> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut next = low;
        while next < high && (entries.is_empty() || bytes < bytes_max) {
            let (runs, reader) = {
                let state = self.shared.lock();
                if next <= state.tail.start().0 || next >= state.tail.first_in_memory() {
                    break;
                }
                let runs = state.places.from(next, high, FETCH_PAGES);
                assert!(!runs.is_empty(), "entry {next} left memory, so a page holds it");
                (runs, state.reader.clone())
            };
            let pages = runs.iter().map(|run| reader.read(run.page));
            let pages = futures::future::join_all(pages).await;
            let before = next;
            for (run, page) in runs.iter().zip(pages) {
                let page = match page {
                    // Dropped meanwhile: raft will hear that the entries are compacted.
                    Err(pagefile::Error::NoSuchPage { .. }) => return Ok(()),
                    page => page?,
                };
                for entry in record::decode_entries(&page)? {
                    if entry.index == next && entry.index <= run.last && next < high {
                        let size = tail::weight(&entry);
                        if entries.is_empty() || bytes + size <= bytes_max {
                            bytes += size;
                            next += 1;
                            entries.push(entry);
                        } else {
                            bytes = bytes_max;
                        }
                    }
                }
            }
            if next == before {
                break;
            }
        }
        if !entries.is_empty() {
            reached!("log entries fetched from disk");
            self.shared.lock().keep_fetched(entries);
        }
        Ok(())
    }

    /// Reads that raft was refused because they need the disk. For each:
    /// [`Log::fetch`] it, then hand its context to raft's `on_entries_fetched`.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        self.shared.lock().wanted.drain(..).collect()
    }

    /// Bytes kept in memory that could be read from disk, and their bound (I10).
    pub fn cached_bytes(&self) -> (u64, u64) {
        self.shared.lock().tail.settled_bytes()
    }

    /// Bytes of all entries in memory, those included that must stay because
    /// they are not durable or not applied yet.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.lock().tail.bytes()
    }

    /// Whether a segment stands in reserve: the log can go on for a while
    /// though no space is left on the disk. A reserve that was just used and
    /// is being made again counts: only one that could not be made is missing.
    pub fn has_reserve(&self) -> bool {
        self.shared.has_reserve.load(Ordering::Acquire)
    }

    /// For those who ask about space and outlive the log.
    pub fn space(&self) -> Space {
        Space(self.shared.clone())
    }

    /// Whether what waits cannot be written because no space is left. Its
    /// tickets are told once there is: the writer tries again by itself.
    pub fn is_stalled_by_space(&self) -> bool {
        self.shared.lock().stalled
    }

    /// What `snapshot` answers with: (index, term, conf state) of the store's
    /// last commit; the data travels beside raft.
    pub fn offer_snapshot(&self, index: u64, term: u64, conf_state: ConfState) {
        self.shared.lock().offered = Some((index, term, conf_state));
    }
}

impl State {
    fn await_ticket(&mut self, ticket: u64) {
        assert!(self.pending.ticket.is_none_or(|waiting| waiting <= ticket), "tickets rise");
        self.pending.ticket = Some(ticket);
    }
}
