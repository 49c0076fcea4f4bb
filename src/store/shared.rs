//! What the store's tasks and handles share.
//!
//! Locks are taken in the order of the fields, and only `state` is held for
//! more than a few instructions: one bounded slice of work.

use super::ground::{Fetched, Ground};
use super::meter::Tally;
use super::{Error, Options, Position, Rot, Sizes};
use crate::env::Clock;
use crate::machine::State;
use crate::mvcc::Missing;
use crate::pagefile::{self, Label, Page, PageNumber, PageReader};
use bytes::Bytes;
use prost::Message;
use quorate_proto::quorate::v1::StoreMark;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

/// Compaction hashes that are remembered (C9).
const HASHES_MAX: usize = 10;

/// The last durable commit.
#[derive(Clone, Debug)]
pub struct Committed {
    pub mark_page: PageNumber,
    /// The mark as it was written.
    pub mark: Bytes,
    pub position: Position,
    pub revision: i64,
    pub compacted: i64,
    /// Pages of kind `BUCKETS` that count.
    pub buckets: Vec<PageNumber>,
    /// Draws the line between one history of page numbers and another.
    pub lineage: u64,
}

impl Committed {
    pub fn new(mark_page: PageNumber, mark: &StoreMark) -> Committed {
        Committed {
            mark_page,
            mark: Bytes::from(mark.encode_to_vec()),
            position: Position::of(mark),
            revision: mark.revision,
            compacted: mark.compacted,
            buckets: mark.bucket_pages.iter().copied().map(PageNumber).collect(),
            lineage: mark.lineage,
        }
    }

    /// The label of the mark's page: no later page begins below it.
    pub fn label(&self) -> Label {
        Label { first: u64::try_from(self.revision).unwrap_or(0), weight: 0 }
    }
}

pub struct Shared {
    pub state: RwLock<State>,
    /// Replaced together with the state, under its lock.
    ground: RwLock<Arc<Ground>>,
    committed: Mutex<Option<Committed>>,
    /// By revision: hash, and the compacted mark before.
    hashes: Mutex<BTreeMap<i64, (u32, i64)>>,
    pub applied: super::gate::Gate,
    pub compacted: super::gate::Gate,
    written: AtomicU64,
    /// As of the last census, and what was written when it was taken.
    in_use: AtomicU64,
    written_at_census: AtomicU64,
    /// Bytes ever appended, copies of the cleaner included.
    pub appended: AtomicU64,
    reserve: AtomicBool,
    /// A commit waits for space.
    pub starved: AtomicBool,
    /// Counts durable commits and installs.
    pub commits: watch::Sender<u64>,
    /// Told when there may be something to compact.
    pub compact_more: Notify,
    /// Told when there may be something to clean.
    pub clean_more: Notify,
    /// Held while records are dropped from the index, or while a copy is made
    /// that relies on none being dropped.
    pub physical: tokio::sync::Mutex<()>,
    /// Bytes that large replies may still take.
    pub replies: Semaphore,
    /// Who wants the store cleaned through; told when it is.
    pub defragment: mpsc::Sender<oneshot::Sender<()>>,
    pub rot: watch::Sender<Option<Rot>>,
    pub failure: watch::Sender<Option<String>>,
    /// Turns true when the writer has ended: so do all other tasks.
    pub closed: watch::Sender<bool>,
    pub tally: Tally,
    pub clock: Arc<dyn Clock>,
    pub options: Options,
}

impl Shared {
    pub fn new(
        state: State,
        ground: Ground,
        committed: Option<Committed>,
        defragment: mpsc::Sender<oneshot::Sender<()>>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Shared {
        let (applied, compacted) = (state.applied.0, state.mvcc().compacted());
        let replies = usize::try_from(options.reply_bytes).unwrap_or(usize::MAX);
        Shared {
            state: RwLock::new(state),
            ground: RwLock::new(Arc::new(ground)),
            committed: Mutex::new(committed),
            hashes: Mutex::default(),
            applied: super::gate::Gate::new(gate_value(applied)),
            compacted: super::gate::Gate::new(compacted),
            written: AtomicU64::new(0),
            in_use: AtomicU64::new(0),
            written_at_census: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            reserve: AtomicBool::new(true),
            starved: AtomicBool::new(false),
            commits: watch::Sender::new(0),
            compact_more: Notify::new(),
            clean_more: Notify::new(),
            physical: tokio::sync::Mutex::new(()),
            replies: Semaphore::new(replies.min(Semaphore::MAX_PERMITS)),
            defragment,
            rot: watch::Sender::new(None),
            failure: watch::Sender::new(None),
            closed: watch::Sender::new(false),
            tally: Tally::default(),
            clock,
            options,
        }
    }

    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic while the state is locked")
    }

    pub fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic while the state is locked")
    }

    pub fn ground(&self) -> Arc<Ground> {
        self.ground.read().expect("no panic while the ground is locked").clone()
    }

    /// Puts another state on another ground.
    pub fn replace(&self, state: State, ground: Ground) {
        let mut current = self.state_mut();
        *self.ground.write().expect("no panic while the ground is locked") = Arc::new(ground);
        *current = state;
        self.locked_hashes().clear();
    }

    pub fn committed(&self) -> Option<Committed> {
        self.committed.lock().expect("no panic while the commit is locked").clone()
    }

    pub fn set_committed(&self, committed: Committed) {
        let mut current = self.committed.lock().expect("no panic while the commit is locked");
        let before = current.as_ref().map_or(0, |before| before.position.index);
        assert!(before <= committed.position.index, "the durable mark never falls (I3)");
        *current = Some(committed);
        drop(current);
        self.commits.send_modify(|count| *count += 1);
        self.compact_more.notify_one();
    }

    fn locked_hashes(&self) -> MutexGuard<'_, BTreeMap<i64, (u32, i64)>> {
        self.hashes.lock().expect("no panic while the hashes are locked")
    }

    pub fn remember_hash(&self, revision: i64, hash: u32, compacted_before: i64) {
        let mut hashes = self.locked_hashes();
        hashes.insert(revision, (hash, compacted_before));
        while hashes.len() > HASHES_MAX {
            hashes.pop_first();
        }
    }

    /// (hash, compacted mark before) of the compaction at this revision.
    pub fn compaction_hash(&self, revision: i64) -> Option<(u32, i64)> {
        self.locked_hashes().get(&revision).copied()
    }

    pub fn compaction_hashes(&self) -> Vec<(i64, u32, i64)> {
        self.locked_hashes().iter().map(|(revision, (hash, before))| (*revision, *hash, *before)).collect()
    }

    /// Reads one page; damage is believed only when it is read twice.
    pub async fn read_page(&self, reader: &PageReader, number: PageNumber) -> Result<Page, pagefile::Error> {
        match reader.read(number).await {
            Err(pagefile::Error::Rot { .. }) => {
                let again = reader.read(number).await;
                if let Err(error) = &again {
                    self.told_twice(reader, number, error);
                }
                again
            }
            read => read,
        }
    }

    /// Damage that was read twice is told.
    pub fn told_twice(&self, reader: &PageReader, number: PageNumber, error: &pagefile::Error) {
        let pagefile::Error::Rot { path, position, what } = error else { return };
        // The page that was found bad may stand for more than the one number.
        let covers = |page: &pagefile::PageFacts| page.number <= number;
        let page = reader.pages(number, 1).into_iter().find(covers);
        let (first, last) = page.map_or((number, number), |page| (page.number, page.number.last(page.span)));
        self.rotten(Rot { path: path.clone(), position: *position, first, last, what });
    }

    /// The member must not serve on.
    pub fn rotten(&self, rot: Rot) {
        crate::reached!("rot told");
        let first = self.rot.send_if_modified(|told| {
            let first = told.is_none();
            told.get_or_insert_with(|| rot.clone());
            first
        });
        if first {
            tracing::error!(
                path = %rot.path.display(),
                position = rot.position,
                first_page = rot.first.0,
                last_page = rot.last.0,
                what = rot.what,
                "a page of the store is damaged"
            );
        }
    }

    /// A task of the store cannot go on.
    pub fn fail(&self, what: &str, error: &Error) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| format!("{what}: {error}"));
            first
        });
    }

    /// Calls `look` under the read lock until it lacks no page.
    pub async fn read<T>(
        &self,
        look: impl Fn(&State, &Fetched) -> Result<T, Missing>,
    ) -> Result<T, pagefile::Error> {
        let mut pages = Fetched::new(self.ground());
        loop {
            let missing = {
                let state = self.state();
                pages.follow(&self.ground());
                match look(&state, &pages) {
                    Ok(answer) => return Ok(answer),
                    Err(missing) => missing,
                }
            };
            pages.fetch(self, &missing).await?;
        }
    }

    pub fn has_reserve(&self) -> bool {
        self.reserve.load(Ordering::Acquire)
    }

    pub fn set_reserve(&self, stands: bool) {
        let stood = self.reserve.swap(stands, Ordering::AcqRel);
        if stood != stands {
            match stands {
                true => tracing::info!("the store's reserve of disk space stands again"),
                false => {
                    crate::reached!("store without reserve");
                    tracing::warn!("no disk space for the store's reserve");
                }
            }
        }
    }

    pub fn set_written(&self, bytes: u64) {
        self.written.store(bytes, Ordering::Release);
    }

    /// A census has seen `in_use` of `written` bytes to count.
    pub fn set_in_use(&self, in_use: u64, written: u64) {
        self.in_use.store(in_use, Ordering::Release);
        self.written_at_census.store(written, Ordering::Release);
    }

    /// What was written since the census counts until the next one.
    pub fn sizes(&self) -> Sizes {
        let written = self.written.load(Ordering::Acquire);
        let since = written.saturating_sub(self.written_at_census.load(Ordering::Acquire));
        Sizes { written, in_use: self.in_use.load(Ordering::Acquire) + since }
    }

    /// Completes when the writer has ended.
    pub async fn until_closed(&self) {
        let mut closed = self.closed.subscribe();
        // An error means that the sender, and so the store, is gone.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// Log indexes fit: raft counts up from 1 by one.
pub fn gate_value(index: u64) -> i64 {
    i64::try_from(index).expect("2^63 entries are out of reach")
}
