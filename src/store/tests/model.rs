//! What a store must show: a list of changes and a compacted mark.

use quorate_proto::etcdserverpb::InternalRaftRequest;
use quorate_proto::{etcdserverpb as pb, mvccpb::KeyValue};
use std::collections::BTreeMap;

/// One thing that is asked of a store.
#[derive(Clone, Debug)]
pub enum Op {
    Put(String, String),
    Delete(String, String),
    Compact(i64),
}

impl Op {
    pub fn request(&self) -> InternalRaftRequest {
        let mut request = InternalRaftRequest::default();
        match self.clone() {
            Op::Put(key, value) => {
                request.put =
                    Some(pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() });
            }
            Op::Delete(key, range_end) => {
                let (key, range_end) = (key.into(), range_end.into());
                request.delete_range = Some(pb::DeleteRangeRequest { key, range_end, ..Default::default() });
            }
            Op::Compact(revision) => {
                request.compaction = Some(pb::CompactionRequest { revision, ..Default::default() });
            }
        }
        request
    }
}

#[derive(Clone, Debug)]
struct Change {
    main: i64,
    sub: i64,
    key: String,
    /// `None`: a deletion.
    pair: Option<KeyValue>,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    changes: Vec<Change>,
    last: i64,
    pub compacted: i64,
    /// By revision of a compaction: the hash just before, and the mark then.
    pub hashes: BTreeMap<i64, (u32, i64)>,
}

impl Model {
    pub fn of(ops: &[Op]) -> Model {
        let mut model = Model { last: 1, compacted: -1, ..Model::default() };
        ops.iter().for_each(|op| model.apply(op));
        model
    }

    pub fn revision(&self) -> i64 {
        self.last
    }

    pub fn apply(&mut self, op: &Op) {
        let main = self.last + 1;
        match op {
            Op::Put(key, value) => {
                let before = self.newest(key, self.last);
                let (create_revision, version) =
                    before.map_or((main, 1), |before| (before.create_revision, before.version + 1));
                let pair = KeyValue {
                    key: key.clone().into(),
                    create_revision,
                    mod_revision: main,
                    version,
                    value: value.clone().into(),
                    lease: 0,
                };
                self.changes.push(Change { main, sub: 0, key: key.clone(), pair: Some(pair) });
                self.last = main;
            }
            Op::Delete(key, range_end) => {
                let keys: Vec<String> =
                    self.at(self.last).into_keys().filter(|one| in_range(one, key, range_end)).collect();
                for (sub, key) in (0..).zip(&keys) {
                    self.changes.push(Change { main, sub, key: key.clone(), pair: None });
                }
                self.last += i64::from(!keys.is_empty());
            }
            Op::Compact(revision) => {
                assert!(*revision > self.compacted && *revision <= self.last, "the script is sound");
                self.hashes.insert(*revision, (self.hash(*revision), self.compacted));
                self.compacted = *revision;
            }
        }
    }

    fn newest(&self, key: &str, at: i64) -> Option<&KeyValue> {
        let change = self.changes.iter().rev().find(|change| change.main <= at && change.key == key)?;
        change.pair.as_ref()
    }

    /// All pairs at a revision.
    pub fn at(&self, revision: i64) -> BTreeMap<String, KeyValue> {
        let mut pairs = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.main <= revision) {
            match &change.pair {
                Some(pair) => pairs.insert(change.key.clone(), pair.clone()),
                None => pairs.remove(&change.key),
            };
        }
        pairs
    }

    /// HashKV (tests/facts/storage.md, section 5).
    pub fn hash(&self, revision: i64) -> u32 {
        let keep: Vec<i64> = self.at(revision).values().map(|pair| pair.mod_revision).collect();
        let mut crc = crc32c::crc32c(b"key");
        for change in self.stored(revision) {
            let Change { main, sub, key, pair } = change;
            let included = if *main > self.compacted {
                true
            } else if pair.is_none() {
                false
            } else {
                keep.is_empty() || keep.contains(main)
            };
            if !included {
                continue;
            }
            let mut head = main.to_be_bytes().to_vec();
            head.push(b'_');
            head.extend(sub.to_be_bytes());
            if pair.is_none() {
                head.push(b't');
            }
            let bare = KeyValue { key: key.clone().into(), ..KeyValue::default() };
            let value = prost::Message::encode_to_vec(pair.as_ref().unwrap_or(&bare));
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &head), &value);
        }
        crc
    }

    /// What a finished compaction leaves, up to a revision, in order.
    fn stored(&self, revision: i64) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| {
            let newer = |other: &&Change| {
                other.key == change.key && other.main <= self.compacted && other.main > change.main
            };
            let left = change.main > self.compacted
                || (self.changes.iter().filter(newer).count() == 0
                    && (change.pair.is_some() || change.main == self.compacted));
            left && change.main <= revision
        })
    }

    /// (main, sub, key, deletion) of all records that a finished compaction leaves.
    pub fn records(&self) -> Vec<(i64, u64, String, bool)> {
        let show =
            |change: &Change| (change.main, change.sub as u64, change.key.clone(), change.pair.is_none());
        self.stored(self.last).map(show).collect()
    }
}

pub fn in_range(key: &str, from: &str, range_end: &str) -> bool {
    match range_end {
        "" => key == from,
        "\0" => key >= from,
        end => key >= from && key < end,
    }
}
