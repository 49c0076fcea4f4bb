//! A view leaves as etcd's snapshot and comes back the same.

use super::{in_memory::InMemory, *};
use crate::env::{Env, File, Rng, clock::StoppedClock, disk::Open};
use crate::members::Members;
use crate::mvcc::Fields;
use crate::pagefile::test_disk::TestDisk;
use crate::store::{Maker, Options, Store};
use futures::executor::block_on;
use quorate_proto::quorate::v1::{MemberRecord, Membership, StoreMark};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Records in memory.
#[derive(Clone)]
struct Memory {
    records: Arc<Vec<Stored>>,
    content: Content,
}

struct Pass(Arc<Vec<Stored>>, usize);

impl Records for Pass {
    async fn next(&mut self) -> Result<Option<Stored>, Error> {
        self.1 += 1;
        Ok(self.0.get(self.1 - 1).cloned())
    }
}

impl View for Memory {
    type Records = Pass;

    fn records(&self) -> Pass {
        Pass(self.records.clone(), 0)
    }

    fn content(&self) -> &Content {
        &self.content
    }
}

/// Puts (`Some`) and deletes of keys, one a revision from 2 on.
fn history(changes: &[(&str, Option<&str>)]) -> Vec<Stored> {
    let mut lives: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    let mut out = Vec::new();
    for (main, (key, value)) in (2_i64..).zip(changes) {
        let mut key_value = Vec::new();
        match value {
            Some(value) => {
                let life = lives.entry(key).or_insert((main, 0));
                life.1 += 1;
                let fields = Fields {
                    key: key.as_bytes(),
                    create_revision: life.0,
                    mod_revision: main,
                    version: life.1,
                    value: value.as_bytes(),
                    lease: 0,
                };
                fields.encode(&mut key_value);
            }
            None => {
                lives.remove(key);
                Fields::tombstone(key.as_bytes()).encode(&mut key_value);
            }
        }
        out.push(Stored {
            main: main as u64,
            sub: 0,
            tombstone: value.is_none(),
            key_value: key_value.into(),
        });
    }
    out
}

fn mark(revision: i64, compacted: i64) -> StoreMark {
    let member = MemberRecord {
        id: 0x8e9e_05c5_2164_694d,
        name: "default".into(),
        peer_urls: vec!["http://localhost:2380".into()],
        client_urls: vec!["http://localhost:2379".into()],
        is_learner: false,
    };
    StoreMark {
        applied_index: 9,
        applied_term: 2,
        conf_state: Some(quorate_proto::raftpb::ConfState { voters: vec![member.id], ..Default::default() }),
        revision,
        compacted,
        membership: Some(Membership { cluster_id: 7, members: vec![member], removed: vec![0xab] }),
        cluster_version: "3.7.0".into(),
        ..StoreMark::default()
    }
}

fn memory(records: Vec<Stored>, compacted: i64, carried: Vec<Carried>) -> Memory {
    let revision = records.last().map_or(1, |last| last.main as i64).max(compacted);
    Memory { records: Arc::new(records), content: Content::new(&mark(revision, compacted), carried).unwrap() }
}

fn lease(id: u64) -> Carried {
    let key = Bytes::copy_from_slice(&id.to_be_bytes());
    Carried { bucket: "lease".into(), key, value: vec![8, 1, 16, 60].into() }
}

async fn file_of<V: View>(view: &V) -> Bytes {
    let mut file = EtcdFile::plan(view).await.unwrap();
    let total = file.remaining();
    whole(total, async || file.next().await.unwrap()).await
}

/// All parts of a snapshot of `total` bytes, which are held to what they say.
async fn whole(total: u64, mut next: impl AsyncFnMut() -> Option<Part>) -> Bytes {
    let mut out = Vec::new();
    while let Some(Part { remaining, blob }) = next().await {
        assert!(!blob.is_empty() && blob.len() <= PART_BYTES);
        out.extend_from_slice(&blob);
        assert_eq!(remaining, total.saturating_sub(out.len() as u64));
    }
    assert_eq!(out.len() as u64, total + 32);
    out.into()
}

async fn open(bytes: Bytes) -> (Arc<dyn File>, EtcdSnapshot) {
    let (length, digest) = without_digest(bytes.len() as u64);
    assert!(digest);
    let file: Arc<dyn File> = Arc::new(InMemory(bytes));
    (file.clone(), EtcdSnapshot::open(file, length).await.unwrap())
}

async fn all<R: Records>(mut records: R) -> Vec<Stored> {
    let mut out = Vec::new();
    while let Some(record) = records.next().await.unwrap() {
        out.push(record);
    }
    out
}

/// Hashes that etcdutl 3.7.3 gave for these very files.
const OF_ETCDUTL: [u32; 4] = [80_104_580, 773_084_901, 577_491_274, 3_694_191_110];

#[test]
fn a_view_comes_back_from_its_snapshot() {
    block_on(async {
        let value = "v".repeat(40_000);
        let long: Vec<(String, Option<String>)> =
            (0..3000).map(|n| (format!("key{:03}", n % 700), (n % 5 != 4).then(|| format!("{n}")))).collect();
        let long: Vec<(&str, Option<&str>)> =
            long.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        let cases = [
            (&[][..], vec![]),
            (&[("a", Some("1"))], vec![lease(7), lease(8)]),
            (&[("a", Some(&value[..])), ("a", None), ("b", Some(&value))], vec![]),
            (&long, vec![Carried { bucket: "zzz".into(), key: "unknown".into(), value: "kept".into() }]),
        ];
        for ((changes, carried), of_etcdutl) in cases.into_iter().zip(OF_ETCDUTL) {
            let view = memory(history(changes), -1, carried.clone());
            let bytes = file_of(&view).await;
            let (file, snapshot) = open(bytes.clone()).await;
            verify_digest(&file).await.unwrap();
            assert_eq!(all(snapshot.records()).await, *view.records);
            assert_eq!(snapshot.content(), view.content());
            assert_eq!(snapshot.content().carried().collect::<Vec<_>>(), carried);
            assert_eq!(snapshot.storage_version(), Some("3.7.0"));
            assert_eq!(hash(&snapshot).await.unwrap(), hash(&view).await.unwrap());
            let told = status(&snapshot).await.unwrap();
            assert_eq!(told.hash, walk::whole_hash(&view, false).await.unwrap());
            assert_eq!(told.hash, of_etcdutl);
            assert_eq!(told.size, bytes.len() as u64 - 32);
            let last = view.records.last().map_or(0, |last| last.main as i64);
            assert_eq!(told.revision, last);
        }
    });
}

#[test]
fn a_changed_byte_breaks_the_digest() {
    block_on(async {
        let bytes = file_of(&memory(history(&[("a", Some("1"))]), -1, vec![])).await;
        for at in [0, 5000, bytes.len() - 33, bytes.len() - 1] {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            let file: Arc<dyn File> = Arc::new(InMemory(changed.into()));
            let error = verify_digest(&file).await.unwrap_err().to_string();
            assert!(error.starts_with("expected sha256 ["), "{error}");
        }
        let file: Arc<dyn File> = Arc::new(InMemory(bytes.slice(..bytes.len() - 32)));
        let error = verify_digest(&file).await.unwrap_err().to_string();
        assert_eq!(error, "snapshot missing hash but --skip-hash-check=false");
    });
}

#[test]
fn what_a_compaction_takes_away_is_told_from_the_records() {
    block_on(async {
        let changes = [
            ("a", Some("1")),
            ("a", Some("2")),
            ("b", Some("1")),
            ("b", None),
            ("c", Some("1")),
            ("a", None),
        ];
        let records = history(&changes);
        let left = |compacted: i64| {
            let records = records.clone();
            async move {
                let settled = Settled::new(memory(records, compacted, vec![])).await.unwrap();
                all(settled.records()).await.into_iter().map(|record| record.main).collect::<Vec<_>>()
            }
        };
        assert_eq!(left(-1).await, [2, 3, 4, 5, 6, 7]);
        assert_eq!(left(2).await, [2, 3, 4, 5, 6, 7]);
        assert_eq!(left(3).await, [3, 4, 5, 6, 7]);
        // The deletion at the mark itself stays.
        assert_eq!(left(5).await, [3, 5, 6, 7]);
        assert_eq!(left(6).await, [3, 6, 7]);
        assert_eq!(left(7).await, [6, 7]);
    });
}

#[test]
fn hashes_do_not_depend_on_what_was_removed() {
    block_on(async {
        let changes = [
            ("a", Some("1")),
            ("b", Some("1")),
            ("a", None),
            ("c", Some("1")),
            ("c", None),
            ("b", None),
            ("d", Some("1")),
        ];
        for compacted in [-1, 2, 3, 4, 5, 6, 7, 8] {
            let whole = memory(history(&changes), compacted, vec![]);
            let settled = Settled::new(whole.clone()).await.unwrap();
            for revision in compacted.max(1)..=8 {
                let hash = hash_kv(&settled, revision).await.unwrap();
                assert_eq!(hash, hash_kv(&whole, revision).await.unwrap(), "{compacted} {revision}");
            }
            assert!(matches!(hash_kv(&whole, 9).await, Err(Error::FutureRevision)));
            if compacted > 1 {
                assert!(matches!(hash_kv(&whole, compacted - 1).await, Err(Error::Compacted)));
            }
            assert_eq!(hash_kv(&whole, -5).await.unwrap(), (1_084_519_789, -5));
        }
    });
}

const DIR: &str = "data/member";

/// A stopped member whose store was made of a view.
async fn made_of(view: &Memory, disk: &TestDisk) -> Env {
    let env =
        Env { disk: Arc::new(disk.clone()), clock: Arc::new(StoppedClock), rng: Rng::from_seed([3; 32]) };
    let options = Options { page_size: 512, segment_size: 4096, commit_bytes: 2000, ..Options::default() };
    let mut maker = Maker::create(&env, Path::new(DIR).join("store"), &options).await.unwrap();
    maker.buckets(view.content.carried().map(Into::into)).await.unwrap();
    for Stored { main, sub, tombstone, key_value } in view.records.iter() {
        maker.record((*main, *sub), *tombstone, key_value).await.unwrap();
    }
    maker.finish(mark(view.content.revision, view.content.compacted)).await.unwrap();
    env
}

fn busy_history() -> Vec<Stored> {
    let changes: Vec<(String, Option<String>)> = (0..400_usize)
        .map(|n| (format!("key{:02}", n * 7 % 31), (n % 6 != 5).then(|| "x".repeat(n % 97))))
        // A deletion of what is not there leaves no record.
        .scan(std::collections::BTreeSet::new(), |live, (key, value)| {
            let value = if live.contains(&key) { value } else { Some(String::new()) };
            if value.is_some() {
                live.insert(key.clone())
            } else {
                live.remove(&key)
            };
            Some((key, value))
        })
        .collect();
    let borrowed: Vec<(&str, Option<&str>)> =
        changes.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
    history(&borrowed)
}

#[tokio::test]
async fn a_store_made_of_a_view_is_that_view() {
    for compacted in [-1, 5, 200, 401] {
        let view = memory(busy_history(), compacted, (0..900).map(lease).collect());
        let disk = TestDisk::default();
        let env = made_of(&view, &disk).await;
        let stopped = StoppedStore::open(&env, Path::new(DIR), 1).await.unwrap();
        assert_eq!(stopped.covered, Covered { stored: 9, applied: 9, uncertain: 0 });
        assert_eq!(stopped.content(), view.content());
        let settled = Settled::new(view.clone()).await.unwrap();
        assert_eq!(all(stopped.records()).await, all(settled.records()).await);
        assert_eq!(hash(&stopped).await.unwrap(), hash(&settled).await.unwrap());
        for revision in [0, compacted.max(2), 300.max(compacted)] {
            let wanted = hash_kv(&view, revision).await.unwrap();
            assert_eq!(hash_kv(&stopped, revision).await.unwrap(), wanted, "{compacted} {revision}");
        }
        assert_eq!(stopped.marks().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_store_that_was_left_half_made_is_no_store() {
    let view = memory(busy_history(), -1, vec![lease(1)]);
    let disk = TestDisk::default();
    let env =
        Env { disk: Arc::new(disk.clone()), clock: Arc::new(StoppedClock), rng: Rng::from_seed([3; 32]) };
    let options = Options { page_size: 512, segment_size: 4096, commit_bytes: 2000, ..Options::default() };
    let dir = Path::new(DIR).join("store");
    let mut maker = Maker::create(&env, dir.clone(), &options).await.unwrap();
    for Stored { main, sub, tombstone, key_value } in view.records.iter() {
        maker.record((*main, *sub), *tombstone, key_value).await.unwrap();
    }
    assert!(maker.record((2, 0), false, b"").await.is_err(), "records ascend");
    drop(maker);
    assert!(StoppedStore::open(&env, Path::new(DIR), 1).await.is_err());
    assert!(Maker::create(&env, dir, &options).await.is_err(), "nothing is added to a store that is there");
}

/// Our own snapshot of a store made of `view`.
async fn own_file_of(view: &Memory) -> Bytes {
    let disk = TestDisk::default();
    let env = made_of(view, &disk).await;
    let opened = Store::open_read_only(&env, Path::new(DIR).join("store"), Members::default()).await;
    let (store, _applier, ..) = opened.unwrap();
    let mut file = OwnFile::plan(store.snapshot_from(9).await.unwrap()).await.unwrap();
    let total = file.remaining();
    assert_eq!(total % 512, 0);
    whole(total, async || file.next().await.unwrap()).await
}

async fn open_own(bytes: Bytes) -> Result<Settled<OwnSnapshot>, Error> {
    let (length, _) = without_digest(bytes.len() as u64);
    Settled::new(OwnSnapshot::open(Arc::new(InMemory(bytes)), length).await?).await
}

#[tokio::test]
async fn a_view_comes_back_from_our_own_snapshot() {
    for compacted in [-1, 200, 401] {
        let view = memory(busy_history(), compacted, vec![lease(7), lease(8)]);
        let bytes = own_file_of(&view).await;
        let file: Arc<dyn File> = Arc::new(InMemory(bytes.clone()));
        verify_digest(&file).await.unwrap();
        let snapshot = open_own(bytes.clone()).await.unwrap();
        assert_eq!(snapshot.content(), view.content());
        let settled = Settled::new(view).await.unwrap();
        assert_eq!(all(snapshot.records()).await, all(settled.records()).await);
        let told = own_status(&snapshot).await.unwrap();
        let (_, etcds) = open(file_of(&settled).await).await;
        assert_eq!(Status { size: 0, ..told }, Status { size: 0, ..status(&etcds).await.unwrap() });
    }
}

#[tokio::test]
async fn a_damaged_own_snapshot_is_found_out_without_its_digest() {
    let changes = [("a", Some("1")), ("b", Some("2")), ("a", None), ("c", Some("3")), ("b", None)];
    let view = memory(history(&changes), 3, vec![lease(7)]);
    let good = own_file_of(&view).await;
    let read = |bytes: Bytes| async {
        let snapshot = open_own(bytes).await?;
        let mut records = snapshot.records();
        while records.next().await?.is_some() {}
        Ok::<_, Error>(())
    };
    read(good.clone()).await.unwrap();
    // Behind the pages are zeros, whose change means nothing.
    let behind = good.len() - 32;
    let pages_end = good[..behind].iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for at in 0..pages_end {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1 << (at % 8);
        fuzz::own(&bytes);
        assert!(read(bytes.into()).await.is_err(), "byte {at}");
    }
    for cut in (0..behind).step_by(13) {
        assert!(read(good.slice(..cut)).await.is_err(), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_bumped_revision_is_a_record_of_no_key() {
    let mut records = busy_history();
    let bumped = records.last().unwrap().main + 1000;
    records.push(Stored { main: bumped, sub: 0, tombstone: false, key_value: Bytes::new() });
    let view = memory(records, bumped as i64, vec![]);
    let env = made_of(&view, &TestDisk::default()).await;
    let stopped = StoppedStore::open(&env, Path::new(DIR), 1).await.unwrap();
    let settled = Settled::new(view.clone()).await.unwrap();
    assert_eq!(all(stopped.records()).await, all(settled.records()).await);
    assert_eq!(hash_kv(&stopped, 0).await.unwrap(), hash_kv(&view, 0).await.unwrap());
}

#[test]
fn what_is_no_snapshot_is_refused_without_a_panic() {
    for bytes in [&b""[..], b"QrtmSnap", &[0; 70_000], b"QrtmSnap\x01\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0"]
    {
        fuzz::own(bytes);
        fuzz::etcd(bytes);
        assert!(block_on(open_own(Bytes::copy_from_slice(bytes))).is_err());
    }
}

#[tokio::test]
async fn a_snapshot_file_is_found_by_name_and_not_changed() {
    let disk = TestDisk::default();
    let bytes = file_of(&memory(busy_history(), -1, vec![])).await;
    let env = Env { disk: Arc::new(disk), clock: Arc::new(StoppedClock), rng: Rng::from_seed([3; 32]) };
    let path = Path::new("snapshot");
    let file = env.disk.open(path, Open::New).await.unwrap();
    file.append(0, vec![bytes.clone()]).await.unwrap();
    let file = env.disk.open(path, Open::ReadOnly).await.unwrap();
    let (length, _) = without_digest(bytes.len() as u64);
    let snapshot = EtcdSnapshot::open(file.clone(), length).await.unwrap();
    status(&snapshot).await.unwrap();
    assert_eq!(file.read_at(0, bytes.len() + 1).await.unwrap(), bytes);
}

/// Files of the formats as they are: one by the real etcd 3.7.3, one by this release's own.
#[test]
fn files_that_were_written_before_are_read() {
    block_on(async {
        let etcd = Bytes::from_static(include_bytes!("../../tests/format/etcd-3.7.3.snapshot"));
        let (file, snapshot) = open(etcd).await;
        verify_digest(&file).await.unwrap();
        snapshot.verify_version().unwrap();
        let told = status(&snapshot).await.unwrap();
        // As etcdutl 3.7.3 says.
        let version = "3.7.0".to_owned();
        assert_eq!(told, Status { hash: 574592, revision: 6, keys: 2, size: 20480, version });
        let own = Bytes::from_static(include_bytes!("../../tests/format/snapshot-v1"));
        let file: Arc<dyn File> = Arc::new(InMemory(own.clone()));
        verify_digest(&file).await.unwrap();
        let restored = open_own(own).await.unwrap();
        assert_eq!(restored.content().leases(), 1);
        assert_eq!(hash_kv(&restored, 0).await.unwrap(), hash_kv(&snapshot, 0).await.unwrap());
        assert_eq!(all(restored.records()).await, all(Settled::new(snapshot).await.unwrap().records()).await);
    });
}
