//! The applied state on disk: page cache, commits, recovery, snapshots.
//!
//! **Invariant (I3).** The applied mark and the effects it stands for are in
//! one commit; the store may lag the log, never lead it. One [`Applier`] task
//! writes; any task reads through [`Store`] and holds its lock for one bounded
//! slice at most. **Never** knows raft.

mod applier;
mod cache;
mod gate;
mod interim;
mod snapshot;
mod writer;

pub use applier::{Applier, CommitTicket};
pub use interim::{CompactionHash, Figures, Rot};
pub use snapshot::SnapshotReader;

use crate::env::Env;
use crate::machine::{State, UnknownEntry};
use crate::members::Members;
use crate::mvcc::Missing;
use crate::pagefile::{self, PageNumber, PageReader};
use bytes::Bytes;
use cache::{Fetched, PageCache};
use gate::Gate;
use prost::Message;
use quorate_proto::{etcdserverpb as pb, quorate::v1::StoreMark, raftpb::ConfState};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Kinds of store pages; numbers are stored.
mod kind {
    /// Records of mvcc.
    pub const RECORDS: u8 = 1;
    /// A `StoreMark`, last page of every commit.
    pub const MARK: u8 = 2;
}

#[derive(Clone, Debug)]
pub struct Options {
    pub page_size: u32,
    pub segment_size: u64,
    /// Pages read back from disk are kept up to this many bytes.
    pub cache_bytes: u64,
    /// A commit is due after this many bytes of records ...
    pub commit_bytes: u64,
    /// ... or this long after the first entry that it would hold.
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
    /// The writing task has stopped after an error that it reported.
    #[error("the store is closed")]
    Closed,
}

/// What a read answers with when it fails.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Mvcc(#[from] crate::mvcc::Error),
    #[error("{0}")]
    Disk(#[from] pagefile::Error),
    #[error("store page does not decode: {0}")]
    Decode(String),
}

/// An applied (index, term) and the configuration that belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Position {
    pub index: u64,
    pub term: u64,
    pub conf_state: ConfState,
}

impl Position {
    fn of(mark: &StoreMark) -> Position {
        Position {
            index: mark.applied_index,
            term: mark.applied_term,
            conf_state: mark.conf_state.clone().unwrap_or_default(),
        }
    }
}

/// Reads, from any task; cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    state: RwLock<State>,
    cache: PageCache,
    reader: RwLock<PageReader>,
    layout: Mutex<Layout>,
    applied: Gate,
    compacted: Gate,
    size_on_disk: AtomicU64,
}

/// Which pages the store consists of.
#[derive(Default)]
struct Layout {
    /// Record pages written or about to be, ascending.
    records: Vec<PageNumber>,
    /// The last durable commit: its mark page and position.
    committed: Option<(PageNumber, Position)>,
}

impl Shared {
    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic while the state is locked")
    }

    fn state_mut(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic while the state is locked")
    }

    fn layout(&self) -> std::sync::MutexGuard<'_, Layout> {
        self.layout.lock().expect("no panic while the layout is locked")
    }

    /// Reads the pages that a call lacks into `own`.
    async fn fetch(
        &self,
        missing: &Missing,
        own: &mut BTreeMap<PageNumber, Bytes>,
    ) -> Result<(), pagefile::Error> {
        crate::reached!("page fetched from disk");
        let reader = self.reader.read().expect("no panic while the reader is locked").clone();
        for number in &missing.0 {
            let page = reader.read(*number).await?;
            self.cache.insert(*number, page.payload.clone());
            own.insert(*number, page.payload);
        }
        Ok(())
    }

    /// Calls `look` under the read lock until it lacks no page.
    async fn read<T>(
        &self,
        look: impl Fn(&State, &Fetched<'_>) -> Result<T, Missing>,
    ) -> Result<T, pagefile::Error> {
        let mut own = BTreeMap::new();
        loop {
            let missing = {
                let state = self.state();
                match look(&state, &Fetched { cache: &self.cache, own: &own }) {
                    Ok(answer) => return Ok(answer),
                    Err(missing) => missing,
                }
            };
            assert!(!missing.0.is_empty(), "a call that lacks pages names them");
            self.fetch(&missing, &mut own).await?;
        }
    }
}

impl Store {
    /// Opens or makes the store in `dir`. `initial` gives a new store its
    /// cluster id (members come through entries). Returns the position of the
    /// last commit; zero in a new store.
    pub async fn open(
        env: &Env,
        dir: PathBuf,
        options: Options,
        initial: Members,
    ) -> Result<(Store, Applier, Position), Error> {
        let mut state = State::new(initial);
        let mut layout = Layout::default();
        let mut broken = None;
        let (file, opened) = pagefile::PageFile::open(
            env.disk.clone(),
            dir,
            pagefile::Options { page_size: options.page_size, segment_size: options.segment_size },
            env.rng.clone(),
            |page, _, last_of_commit| {
                if broken.is_none() {
                    broken = load(&mut state, &mut layout, &page, last_of_commit).err();
                }
                Ok(())
            },
        )
        .await?;
        if let Some(what) = broken {
            return Err(Error::Decode(what));
        }
        if opened.torn_bytes > 0 {
            tracing::warn!(bytes = opened.torn_bytes, "cut off a torn tail of the store");
        }
        state.set_next_page(file.next_number());
        let position = layout.committed.as_ref().map(|(_, position)| position.clone()).unwrap_or_default();
        let applied = state.applied;
        assert_eq!(applied.0, position.index, "the state stands at the last mark");
        let compacted = state.mvcc().compacted();
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            cache: PageCache::new(options.cache_bytes),
            reader: RwLock::new(file.reader()),
            layout: Mutex::new(layout),
            applied: Gate::new(gate_value(applied.0)),
            compacted: Gate::new(compacted),
            size_on_disk: AtomicU64::new(file.size_written()),
        });
        let store = Store { shared: shared.clone() };
        let applier = Applier::new(shared, file);
        Ok((store, applier, position))
    }

    /// Range at a revision (R1 to R12; the request was checked by `api`). The
    /// header has the revision only.
    pub async fn range(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, ReadError> {
        Ok(self.shared.read(|state, pages| state.range(request, pages)).await??)
    }

    /// A read-only txn (T17) on one consistent view; header revision set.
    pub async fn txn(&self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, ReadError> {
        Ok(self.shared.read(|state, pages| state.txn(request, pages)).await??)
    }

    pub fn members(&self) -> Members {
        self.shared.state().members.clone()
    }

    pub fn cluster_version(&self) -> String {
        self.shared.state().cluster_version.clone()
    }

    /// (member id, alarm type number), ascending.
    pub fn alarms(&self) -> Vec<(u64, i32)> {
        self.shared.state().alarms.iter().copied().collect()
    }

    /// Current revision and compacted mark (-1 = never).
    pub fn revisions(&self) -> (i64, i64) {
        self.shared.state().revisions()
    }

    /// Applied index and term.
    pub fn applied(&self) -> (u64, u64) {
        self.shared.state().applied
    }

    /// Completes once the applied index is at least `index`.
    pub async fn wait_applied(&self, index: u64) {
        self.shared.applied.wait(gate_value(index)).await;
    }

    /// Bytes of the store on disk, without preallocation; bytes in use.
    pub fn sizes(&self) -> (u64, u64) {
        let on_disk = self.shared.size_on_disk.load(Ordering::Relaxed);
        let pages = self.shared.layout().records.len() as u64;
        let live = self.shared.state().mvcc().live_page_count();
        (
            on_disk,
            if pages == 0 {
                0
            } else {
                (u128::from(on_disk) * u128::from(live.min(pages)) / u128::from(pages)) as u64
            },
        )
    }

    /// Live keys.
    pub fn keys(&self) -> u64 {
        self.shared.state().live_keys()
    }

    /// Completes when physical compaction up to `revision` is done here.
    pub async fn wait_compacted(&self, revision: i64) {
        self.shared.compacted.wait(revision).await;
    }
}

/// One page of a store that is being opened.
fn load(
    state: &mut State,
    layout: &mut Layout,
    page: &pagefile::Page,
    last_of_commit: bool,
) -> Result<(), String> {
    match page.kind {
        kind::RECORDS => {
            layout.records.push(page.number);
            state.load_page(page.number, &page.payload)
        }
        kind::MARK => {
            if !last_of_commit {
                return Err(format!("page {}: a mark that does not end its commit", page.number.0));
            }
            let mark = StoreMark::decode(page.payload.clone()).map_err(|error| format!("mark: {error}"))?;
            layout.committed = Some((page.number, Position::of(&mark)));
            state.load_mark(&mark)
        }
        other => Err(format!("page {}: kind {other} is not a store page's", page.number.0)),
    }
}

/// Log indexes fit: raft counts up from 1 by one.
fn gate_value(index: u64) -> i64 {
    i64::try_from(index).expect("2^63 entries are out of reach")
}
