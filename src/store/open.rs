//! From a directory to a state that is served.
//!
//! The last mark first, so that what is compacted is known; then the slices of
//! the checkpoint; then the pages that came later. **Promises** the same state
//! with the checkpoint and without, as a finished compaction leaves it.

use super::applier::{Applier, Parts};
use super::cache::PageCache;
use super::checkpoint::Checkpoint;
use super::cleaner::{self, Cleaner};
use super::ground::Ground;
use super::shared::{Committed, Shared};
use super::writer::Writer;
use super::{Error, Options, Position, Store, census, compactor, kind, scrubber};
use crate::env::{Env, task};
use crate::machine::State;
use crate::members::Members;
use crate::pagefile::{self, PageFile, PageNumber, PageReader};
use prost::Message;
use quorate_proto::quorate::v1::StoreMark;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// The checkpoint's directory, beside the store's.
const CHECKPOINT: &str = "index";
/// Pages loaded between two chances for other tasks.
const LOAD_PAGES: usize = 64;

/// Everything that is open, before any task runs.
pub(super) struct Still {
    pub store: Store,
    pub applier: Applier,
    pub position: Position,
    pub writer: Writer,
    pub jobs: mpsc::Receiver<super::writer::Job>,
    pub cleaner: Cleaner,
    pub requests: mpsc::Receiver<oneshot::Sender<()>>,
    pub compactions: mpsc::Receiver<compactor::Compaction>,
    pub checkpoint: Arc<tokio::sync::Mutex<Checkpoint>>,
    /// Whether the checkpoint was there and good.
    pub from_checkpoint: bool,
}

impl Store {
    /// Opens or makes the store in `dir`, and its checkpoint beside it. `initial` gives a new store
    /// its cluster id (members come through entries). Returns the position of the last commit; zero in
    /// a new store.
    pub async fn open(
        env: &Env,
        dir: PathBuf,
        options: Options,
        initial: Members,
    ) -> Result<(Store, Applier, Position), Error> {
        let began = env.clock.now();
        let still = open(env, dir, options, initial).await?;
        tracing::info!(
            took = ?env.clock.now().since(began),
            keys = still.store.keys(),
            "applied-index" = still.position.index,
            "from-checkpoint" = still.from_checkpoint,
            "opened the store"
        );
        let shared = still.store.shared.clone();
        drop(task::spawn(still.writer.run(still.jobs)));
        // A thread of its own: what it takes from the others is what the system lets it.
        let (cleaner, requests) = (still.cleaner, still.requests);
        task::dedicated("quorate-store", async move {
            let tasks = [
                task::spawn(compactor::run(shared.clone(), still.compactions)),
                task::spawn(Checkpoint::run(still.checkpoint, shared.clone())),
                task::spawn(scrubber::run(shared.clone())),
                task::spawn(cleaner.run(requests)),
            ];
            drop(census::take(&shared).await);
            for one in tasks {
                // A panic has ended the process already.
                drop(one.await);
            }
        });
        Ok((still.store, still.applier, still.position))
    }
}

/// Opens without starting any task.
pub(super) async fn open(
    env: &Env,
    dir: PathBuf,
    options: Options,
    initial: Members,
) -> Result<Still, Error> {
    let sizes = pagefile::Options { page_size: options.page_size, segment_size: options.segment_size };
    let (file, opened) = PageFile::open(env.disk.clone(), dir.clone(), sizes, env.rng.clone()).await?;
    if opened.torn_bytes > 0 {
        tracing::warn!(bytes = opened.torn_bytes, "cut off a torn tail of the store");
    }
    let reader = file.reader();
    let mark = last_mark(&reader).await?;
    let end = opened.last_page.unwrap_or_default();
    let mut state = marked(&initial, mark.as_ref())?;
    let lineage = match &mark {
        Some((_, mark)) => mark.lineage,
        None => env.rng.next_u64(),
    };
    let beside = beside(&dir);
    let (checkpoint, from) =
        Checkpoint::open(env, beside, &options, lineage, &mut state, PageNumber(end.0 + 1)).await?;
    if from.is_none() {
        state = marked(&initial, mark.as_ref())?;
    }
    let from_checkpoint = from.is_some();
    load(&mut state, &reader, from.unwrap_or_default()).await?;
    state.set_next_page(file.next_number());

    let committed = mark.map(|(page, mark)| Committed::new(page, &mark));
    let position = committed.as_ref().map(|committed| committed.position.clone()).unwrap_or_default();
    assert_eq!(state.applied.0, position.index, "the state stands at the last mark (I3)");
    let ground = Ground { reader, cache: PageCache::new(options.cache_bytes) };
    let (defragment, requests) = mpsc::channel(cleaner::REQUESTS_MAX);
    let shared = Arc::new(Shared::new(state, ground, committed, defragment, env.clock.clone(), options));
    // Before any commit or count is made: whoever looks at once is told what is there.
    shared.set_written(file.size_written());
    let checkpoint = Arc::new(tokio::sync::Mutex::new(checkpoint));
    // One commit is written while the next gathers; more would only delay the mark.
    let (jobs_in, jobs) = mpsc::channel(2);
    let (chores_in, chores) = mpsc::channel(1);
    let (compactions_in, compactions) = mpsc::channel(compactor::WAITING_MAX);
    let next_page = file.next_number();
    let applier = Applier::new(Parts {
        shared: shared.clone(),
        jobs: Some(jobs_in),
        compactions: compactions_in,
        rng: env.rng.clone(),
        next_page,
        lineage,
    });
    let writer = Writer {
        file,
        shared: shared.clone(),
        checkpoint: checkpoint.clone(),
        chores,
        reserve: None,
        is_resting: false,
    };
    let cleaner = Cleaner::new(shared.clone(), chores_in, checkpoint.clone());
    let store = Store { shared };
    Ok(Still {
        store,
        applier,
        position,
        writer,
        jobs,
        cleaner,
        requests,
        compactions,
        checkpoint,
        from_checkpoint,
    })
}

pub(super) fn beside(dir: &Path) -> PathBuf {
    dir.parent().unwrap_or(Path::new("")).join(CHECKPOINT)
}

/// The mark of the last commit; `None` in a new store.
pub(super) async fn last_mark(reader: &PageReader) -> Result<Option<(PageNumber, StoreMark)>, Error> {
    let Some(last) = reader.last_page() else { return Ok(None) };
    let page = reader.read(last).await?;
    if page.kind != kind::MARK {
        return Err(Error::Decode(format!("page {}: a commit that does not end with a mark", last.0)));
    }
    let mark = StoreMark::decode(page.payload).map_err(|error| Error::Decode(format!("mark: {error}")))?;
    Ok(Some((page.number, mark)))
}

/// The state that holds nothing but a mark.
pub(super) fn marked(initial: &Members, mark: Option<&(PageNumber, StoreMark)>) -> Result<State, Error> {
    let mut state = State::new(initial.clone());
    if let Some((_, mark)) = mark {
        state.load_mark(mark).map_err(Error::Decode)?;
    }
    Ok(state)
}

/// Loads every page of records from `from` on.
pub(super) async fn load(state: &mut State, reader: &PageReader, from: PageNumber) -> Result<(), Error> {
    let mut scan = reader.scan(from);
    let mut loaded = 0;
    while let Some(page) = scan.next().await? {
        match page.kind {
            kind::RECORDS => state
                .load_page(page.number, &page.payload)
                .map_err(|what| Error::Decode(format!("page {}: {what}", page.number.0)))?,
            // Only the last one counts, and it was loaded first.
            kind::MARK => {}
            // Whoever owns what is in it asks for it.
            kind::BUCKETS => {}
            other => {
                return Err(Error::Decode(format!(
                    "page {}: kind {other} is not a store page's",
                    page.number.0
                )));
            }
        }
        loaded += 1;
        if loaded % LOAD_PAGES == 0 {
            task::yield_now().await;
        }
    }
    Ok(())
}
