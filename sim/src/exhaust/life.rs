//! One life of the store under the script, and the comparison with the model.

use super::script::{Script, Step};
use crate::clock::SimClock;
use crate::disk::SimDisk;
use crate::history::{Record, text};
use crate::inside;
use crate::journal::note;
use crate::model::Moment;
use crate::time::pass;
use quorate::env::{Env, Rng, disk::Disk};
use quorate::members::Members;
use quorate::store::{Applier, Error, Options, Store};
use quorate_proto::{etcdserverpb as pb, quorate::v1::SnapshotPage};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

pub const DIR: &str = "/data/store";
pub const INDEX_DIR: &str = "/data/index";

/// How often a life tries to open a store on a full disk.
const OPEN_TRIES: usize = 50;
/// A defragmentation makes its copies within so many ms.
const COPIES_MS: u64 = 32;
const SCRUB_INTERVAL: Duration = Duration::from_millis(400);

/// What the lives of one run have come to.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Where the accident is: what may come at any moment comes at another one for each.
    pub place: u64,
    /// The highest index that was told durable.
    pub durable: u64,
    pub lives: usize,
    /// The last life that came to its end.
    pub finished: usize,
    /// What the last life is at.
    pub at: String,
    pub wrong: Option<String>,
    /// Stopped over the disk, which is no wrong in itself.
    pub stopped: Option<String>,
}

pub type Shared = Arc<Mutex<Progress>>;

pub fn locked(progress: &Shared) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pages, segments and caches of a few hundred bytes: every mechanism is in every script.
fn options() -> Options {
    Options {
        page_size: 512,
        segment_size: 4096,
        cache_bytes: 2048,
        commit_bytes: 1024,
        checkpoint_segment_size: 4096,
        checkpoint_step_bytes: 256,
        clean_interval: Duration::from_millis(20),
        scrub_interval: SCRUB_INTERVAL,
        space_retry: Duration::from_millis(50),
        ..Options::default()
    }
}

fn env(life: usize) -> Env {
    Env {
        disk: Arc::new(SimDisk::mount()),
        clock: Arc::new(SimClock::current()),
        rng: Rng::from_seed([life as u8; 32]),
    }
}

/// Opens the store as a member does: its directory is there for good, and a full disk is tried again.
async fn open_at_last(life: usize) -> Result<(Store, Applier, u64), Error> {
    let disk = SimDisk::mount();
    let made = async {
        disk.make_dir(Path::new(DIR)).await?;
        disk.sync_dir(Path::new("/")).await?;
        disk.sync_dir(Path::new("/data")).await
    };
    made.await.expect("this disk takes names at any time");
    let mut tries = 0;
    loop {
        match open(life, DIR).await {
            Err(error) if tries < OPEN_TRIES && error.to_string().contains("no storage space") => {
                tries += 1;
                pass(Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
}

/// Opens the store in `dir`.
pub async fn open(life: usize, dir: &str) -> Result<(Store, Applier, u64), Error> {
    let initial = Members { cluster_id: 7, ..Members::default() };
    let (store, applier, position) = Store::open(&env(life), PathBuf::from(dir), options(), initial).await?;
    Ok((store, applier, position.index))
}

/// Reads the pages of a peer's store that applied up to `index`.
pub async fn peers_snapshot(script: &Script, index: u64) -> Result<Vec<SnapshotPage>, Error> {
    let (store, mut applier, _) = open(99, "/peer/store").await?;
    for at in 1..=index {
        applier.apply(script.entry(at)).await?;
        if at % 5 == 0 {
            applier.commit().await?;
        }
    }
    applier.commit().await?;
    let mut snapshot = store.snapshot().await?;
    let mut pages = Vec::new();
    while let Some(page) = snapshot.next().await? {
        pages.push(page);
    }
    Ok(pages)
}

/// A life: opens, compares, goes on with the script where the store stands, compares again.
pub async fn live(script: Arc<Script>, progress: Shared) {
    let life = {
        let mut progress = locked(&progress);
        progress.lives += 1;
        progress.lives
    };
    let end = try_live(&script, &progress, life).await;
    let mut progress = locked(&progress);
    match end {
        Ok(()) => progress.finished = life,
        Err(Fault::Wrong(what)) => progress.wrong = Some(format!("life {life}: {what}")),
        Err(Fault::Disk(what)) => progress.stopped = Some(format!("life {life}: {what}")),
    }
}

pub enum Fault {
    Wrong(String),
    Disk(String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Disk(error.to_string())
    }
}

async fn try_live(script: &Script, progress: &Shared, life: usize) -> Result<(), Fault> {
    let (store, mut applier, index) = open_at_last(life).await?;
    let durable = locked(progress).durable;
    if index < durable {
        return Err(Fault::Wrong(format!("opened at entry {index}, though {durable} was durable")));
    }
    compare(&store, script, index).await?;
    for step in &script.steps {
        let applied = store.applied().0;
        locked(progress).at = format!("{step:?}");
        note(|| format!("life {life}: {step:?}"));
        match step {
            Step::Apply(index) if *index == applied + 1 => {
                applier.apply(script.entry(*index)).await?;
            }
            Step::Apply(_) => {}
            Step::Install(index) if applied < *index => {
                // Both would put something in the place of what is there.
                applier.commit().await?;
                let after_ms = locked(progress).place % COPIES_MS;
                let install = async {
                    pass(Duration::from_millis(after_ms)).await;
                    applier.install(script.snapshot.clone()).await
                };
                let (_, position) = futures::future::join(store.defragment(), install).await;
                locked(progress).durable = position?.index;
                compare(&store, script, *index).await?;
            }
            Step::Install(_) => {}
            Step::Commit => {
                let position = applier.commit().await?;
                locked(progress).durable = position.index;
            }
            Step::MarkSynced => applier.mark_synced().await?,
            Step::Compacted => {
                // Nothing is removed before the compaction is durable.
                let position = applier.commit().await?;
                locked(progress).durable = position.index;
                store.wait_compacted(store.revisions().1).await;
            }
            Step::Defragment => {
                // The checkpoint waits for what is applied to be durable, and nobody else commits here.
                let position = applier.commit().await?;
                locked(progress).durable = position.index;
                store.defragment().await;
            }
            Step::DefragmentAhead => {
                let commit = async {
                    pass(Duration::from_millis(1)).await;
                    applier.commit().await
                };
                let (_, position) = futures::future::join(store.defragment(), commit).await;
                locked(progress).durable = position?.index;
            }
            Step::Rest(ms) => pass(Duration::from_millis(*ms)).await,
        }
    }
    locked(progress).at = "the end".to_owned();
    compare(&store, script, script.last()).await?;
    // The scrubber has been everywhere by then.
    pass(SCRUB_INTERVAL * 3).await;
    match store.rot().borrow().clone() {
        Some(rot) => Err(Fault::Disk(format!("{rot:?}"))),
        None => Ok(()),
    }
}

/// Whether the store holds what the model does after entry `index`.
async fn compare(store: &Store, script: &Script, index: u64) -> Result<(), Fault> {
    let truth = script.truth(index);
    let wrong = |what: String| Err(Fault::Wrong(format!("at entry {index}: {what}")));
    let (revision, compacted) = store.revisions();
    if (revision, compacted) != (truth.moment.revision, truth.moment.compacted) {
        return wrong(format!("stands at {:?}, should at {:?}", (revision, compacted), truth.moment));
    }
    let (key, range_end) = crate::workload::everything();
    let all = pb::RangeRequest { key, range_end, ..Default::default() };
    match store.range(&all).await {
        Ok(reply) if reply.kvs == truth.pairs && reply.count == truth.pairs.len() as i64 => {}
        Ok(reply) => {
            return wrong(format!("holds {} pairs {:?}, should {:?}", reply.count, reply.kvs, truth.pairs));
        }
        Err(error) => return Err(Fault::Disk(error.to_string())),
    }
    let records = inside::records(store, revision).await.map_err(Fault::Disk)?;
    let history: Vec<Record> =
        (truth.records.iter()).filter(|record| record.main >= compacted).cloned().collect();
    if records.all != truth.records {
        return wrong(format!("records are {}, should be {}", words(&records.all), words(&truth.records)));
    }
    if records.history != history {
        return wrong(format!("history is {}, should be {}", words(&records.history), words(&history)));
    }
    let reply = match store.hash_kv(revision).await {
        Ok(reply) => reply,
        Err(error) => return Err(Fault::Disk(error.to_string())),
    };
    // That of a compaction just made is kept, as it was before records went (C9).
    let told = Moment { revision: reply.hash_revision, compacted: reply.compact_revision };
    if told.revision != revision || told.compacted > compacted {
        return wrong(format!("the hash stands for {told:?}, should for {:?}", truth.moment));
    }
    let hash = script.hash_kv(told);
    if reply.hash != hash {
        return wrong(format!("hash at {told:?} is {:08x}, should be {hash:08x}", reply.hash));
    }
    Ok(())
}

fn words(records: &[Record]) -> String {
    let word = |record: &Record| {
        let what = if record.pair.is_some() { "" } else { " deleted" };
        format!("({}, {}) {}{what}", record.main, record.sub, text(&record.key))
    };
    records.iter().map(word).collect::<Vec<_>>().join(", ")
}
