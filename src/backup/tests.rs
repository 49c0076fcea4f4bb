//! A view leaves as etcd's snapshot and comes back the same.

use super::*;
use crate::{env::Io, env::disk::File, mvcc::Fields};
use futures::executor::block_on;
use quorate_proto::quorate::v1::{MemberRecord, Membership, StoreMark};
use std::{collections::BTreeMap, sync::Arc};

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

/// A file whose bytes are given.
struct Given(Bytes);

impl File for Given {
    fn preallocate(&self, _: u64) -> Io<()> {
        unreachable!("read only")
    }
    fn append(&self, _: u64, _: Vec<Bytes>) -> Io<()> {
        unreachable!("read only")
    }
    fn read_at(&self, at: u64, length: usize) -> Io<Bytes> {
        let from = (at as usize).min(self.0.len());
        let bytes = self.0.slice(from..(from + length).min(self.0.len()));
        Box::pin(async move { Ok(bytes) })
    }
    fn sync_data(&self) -> Io<()> {
        unreachable!("read only")
    }
    fn length(&self) -> Io<u64> {
        let length = self.0.len() as u64;
        Box::pin(async move { Ok(length) })
    }
    fn truncate(&self, _: u64) -> Io<()> {
        unreachable!("read only")
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
    let mut out = Vec::new();
    while let Some(Part { remaining, blob }) = file.next().await.unwrap() {
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
    let file: Arc<dyn File> = Arc::new(Given(bytes));
    (file.clone(), EtcdSnapshot::open(file, length).await.unwrap())
}

async fn all<R: Records>(mut records: R) -> Vec<Stored> {
    let mut out = Vec::new();
    while let Some(record) = records.next().await.unwrap() {
        out.push(record);
    }
    out
}

#[test]
fn a_view_comes_back_from_its_snapshot() {
    block_on(async {
        let value = "v".repeat(40_000);
        let long: Vec<(String, Option<String>)> =
            (0..3000).map(|n| (format!("key{:03}", n % 700), (n % 5 != 4).then(|| format!("{n}")))).collect();
        let long: Vec<(&str, Option<&str>)> =
            long.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        for (changes, carried) in [
            (&[][..], vec![]),
            (&[("a", Some("1"))], vec![lease(7), lease(8)]),
            (&[("a", Some(&value[..])), ("a", None), ("b", Some(&value))], vec![]),
            (&long, vec![Carried { bucket: "zzz".into(), key: "unknown".into(), value: "kept".into() }]),
        ] {
            let view = memory(history(changes), -1, carried.clone());
            let bytes = file_of(&view).await;
            std::fs::write(format!("/tmp/utl/t{}.db", changes.len()), &bytes).unwrap();
            let (file, snapshot) = open(bytes.clone()).await;
            verify_digest(&file).await.unwrap();
            assert_eq!(all(snapshot.records()).await, *view.records);
            assert_eq!(snapshot.content(), view.content());
            assert_eq!(snapshot.content().carried().collect::<Vec<_>>(), carried);
            assert_eq!(snapshot.storage_version(), Some("3.7.0"));
            assert_eq!(hash(&snapshot).await.unwrap(), hash(&view).await.unwrap());
            let told = status(&snapshot).await.unwrap();
            assert_eq!(told.hash, walk::whole_hash(&view, false).await.unwrap());
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
            let file: Arc<dyn File> = Arc::new(Given(changed.into()));
            let error = verify_digest(&file).await.unwrap_err().to_string();
            assert!(error.starts_with("expected sha256 ["), "{error}");
        }
        let file: Arc<dyn File> = Arc::new(Given(bytes.slice(..bytes.len() - 32)));
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
