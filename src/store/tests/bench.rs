//! A store without tasks of its own, but for the writer: each step of the
//! others is taken by hand, so that a run is the same every time.

use super::super::checkpoint::Checkpoint;
use super::super::cleaner::Cleaner;
use super::super::compactor::{self, Compaction};
use super::super::open::{self, Still};
use super::super::{Applier, Error, Options, Position, Store};
use super::model::{Model, Op};
use crate::env::{Clock, Env, Moment, Rng, task};
use crate::machine::Entry;
use crate::members::Members;
use crate::mvcc::Fields;
use crate::pagefile::test_disk::TestDisk;
use futures::future::BoxFuture;
use prost::Message;
use quorate_proto::etcdserverpb as pb;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

pub const DIR: &str = "member/store";

/// Time passes only while someone sleeps, and then at once.
#[derive(Default)]
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        self.0.fetch_max(at.0, Ordering::Relaxed);
        Box::pin(task::yield_now())
    }
}

pub fn env(disk: &TestDisk) -> Env {
    // Each life of a disk draws other segment ids.
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&disk.operations().to_le_bytes());
    Env { disk: Arc::new(disk.clone()), clock: Arc::new(TestClock::default()), rng: Rng::from_seed(seed) }
}

/// Small, so that a short script fills many segments.
pub fn small() -> Options {
    Options {
        page_size: 512,
        segment_size: 4096,
        cache_bytes: 2048,
        checkpoint_segment_size: 2048,
        checkpoint_share: 1,
        checkpoint_step_bytes: 256,
        ..Options::default()
    }
}

pub struct Bench {
    pub store: Store,
    pub applier: Applier,
    pub position: Position,
    pub cleaner: Cleaner,
    pub checkpoint: Arc<tokio::sync::Mutex<Checkpoint>>,
    compactions: mpsc::Receiver<Compaction>,
}

impl Bench {
    pub async fn open(disk: &TestDisk) -> Result<Bench, Error> {
        Bench::open_with(disk, small()).await
    }

    pub async fn open_with(disk: &TestDisk, options: Options) -> Result<Bench, Error> {
        Bench::open_in(&env(disk), options).await
    }

    pub async fn open_with_seed(disk: &TestDisk, seed: u8) -> Result<Bench, Error> {
        Bench::open_in(&Env { rng: Rng::from_seed([seed; 32]), ..env(disk) }, small()).await
    }

    async fn open_in(env: &Env, options: Options) -> Result<Bench, Error> {
        let members = Members { cluster_id: 9, ..Members::default() };
        let still = open::open(env, PathBuf::from(DIR), options, members).await?;
        let Still { store, applier, position, writer, jobs, cleaner, compactions, checkpoint, .. } = still;
        drop(task::spawn(writer.run(jobs)));
        Ok(Bench { store, applier, position, cleaner, checkpoint, compactions })
    }

    /// Applies the next entry.
    pub async fn apply(&mut self, op: &Op) -> Result<(), Error> {
        let index = self.store.applied().0 + 1;
        let data = op.request().encode_to_vec().into();
        let applied = self.applier.apply(&Entry { index, term: 1, is_conf_change: false, data }).await?;
        assert!(applied.outcome.is_ok(), "{op:?}: {:?}", applied.outcome);
        Ok(())
    }

    /// Carries out every compaction that was applied and committed.
    pub async fn compact(&mut self) {
        while let Ok(compaction) = self.compactions.try_recv() {
            compactor::carry_out(&self.store.shared, compaction).await;
        }
        let shared = &self.store.shared;
        while shared.state().mvcc().compacting() {
            shared.state_mut().compact_step(64);
        }
    }

    /// Cleans as far as it goes.
    pub async fn clean(&mut self) -> Result<(), Error> {
        self.cleaner.defragment_now().await
    }

    pub async fn write_checkpoint(&self) -> Result<bool, Error> {
        self.checkpoint.lock().await.step(&self.store.shared).await
    }

    /// Rounds of the checkpoint that were finished.
    pub async fn rounds(&self) -> u64 {
        self.checkpoint.lock().await.rounds_finished()
    }

    pub async fn range(&self, revision: i64) -> Result<pb::RangeResponse, super::super::ReadError> {
        let request = pb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            revision,
            ..Default::default()
        };
        self.store.range(&request).await
    }

    /// Everything that can be seen, at every live revision, is the model's.
    pub async fn check(&self, model: &Model, about: &str) {
        let (revision, compacted) = self.store.revisions();
        assert_eq!((revision, compacted), (model.revision(), model.compacted), "{about}");
        for at in compacted.max(1)..=revision {
            let seen = self.range(at).await.unwrap_or_else(|error| panic!("{about}: at {at}: {error}"));
            let pairs: Vec<_> = model.at(at).into_values().collect();
            assert_eq!(seen.kvs, pairs, "{about}: at {at}");
            assert_eq!(seen.count, pairs.len() as i64, "{about}: at {at}");
            if !model.hashes.contains_key(&at) {
                let hash = self.store.hash_kv(at).await.unwrap();
                assert_eq!(
                    (hash.hash, hash.compact_revision),
                    (model.hash(at), compacted),
                    "{about}: at {at}"
                );
            }
        }
        assert_eq!(self.records().await, model.records(), "{about}");
        assert_eq!(self.store.keys(), model.at(revision).len() as u64, "{about}");
    }

    pub async fn records(&self) -> Vec<(i64, u64, String, bool)> {
        let mut history = self.store.view().records().await.unwrap();
        let mut records = Vec::new();
        while let Some(changes) = history.next().await.unwrap() {
            for change in changes {
                let key = Fields::decode(&change.key_value).unwrap().key.to_vec();
                records.push((change.main, change.sub, String::from_utf8(key).unwrap(), change.tombstone));
            }
        }
        records
    }

    /// The bytes of the index, as slices of a checkpoint would hold it.
    pub fn index(&self) -> bytes::Bytes {
        self.store.shared.state().mvcc().checkpoint_slice(&[], usize::MAX).payload
    }
}

/// Removes the checkpoint's files.
pub fn forget_checkpoint(disk: &TestDisk) {
    for path in disk.files() {
        if path.starts_with("member/index") {
            disk.forget(&path);
        }
    }
}

pub fn segments(disk: &TestDisk, dir: &str) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| {
        path.parent() == Some(Path::new(dir)) && path.extension().is_some_and(|end| end == "seg")
    };
    disk.files().into_iter().filter(is_segment).collect()
}
