//! Everything of a store beside its records, as the buckets of etcd.
//!
//! Members, alarms, versions and marks come from the mark of a commit; leases,
//! users, roles and buckets that nobody knows are carried as they came
//! ([`Carried`]) until a service owns them. What a bucket holds is in
//! tests/facts/storage.md, section 3.

use super::Error;
use crate::bolt::KEY_BYTES_MAX;
use crate::members::Members;
use crate::mvcc::RevisionKey;
use bytes::Bytes;
use prost::Message;
use quorate_proto::{
    etcdserverpb::AlarmMember,
    quorate::v1::{BucketRecord, StoreMark},
    raftpb::ConfState,
};
use serde_json::json;
use std::collections::BTreeMap;

/// Name of the bucket of records.
pub const KEY: &[u8] = b"key";
pub const META: &[u8] = b"meta";
/// Buckets whose content Quorate makes anew from its own state.
const OWN: [&[u8]; 6] = [b"alarm", b"cluster", KEY, b"members", b"members_removed", META];
/// Buckets that a real etcd always has.
const ALWAYS: [&[u8]; 4] = [b"auth", b"authRoles", b"authUsers", b"lease"];
/// What etcd calls the version of its buckets.
const STORAGE_VERSION: &str = "3.7.0";

pub(super) type Bucket = BTreeMap<Bytes, Bytes>;

/// A record of a bucket that is kept for a service to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    pub bucket: Bytes,
    pub key: Bytes,
    pub value: Bytes,
}

impl From<BucketRecord> for Carried {
    fn from(BucketRecord { bucket, key, value }: BucketRecord) -> Carried {
        Carried { bucket, key, value }
    }
}

impl From<Carried> for BucketRecord {
    fn from(Carried { bucket, key, value }: Carried) -> BucketRecord {
        BucketRecord { bucket, key, value }
    }
}

impl Carried {
    /// Whether a bucket of this name is carried, or made anew.
    pub fn takes(bucket: &[u8]) -> bool {
        !OWN.contains(&bucket)
    }
}

/// The small buckets of one state, and its marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub revision: i64,
    /// -1: never compacted.
    pub compacted: i64,
    /// All but the records; bucket `key` is there and empty.
    buckets: BTreeMap<Bytes, Bucket>,
}

impl Content {
    /// The state at `mark`. Fails on what no mark or carried record can be.
    pub fn new(mark: &StoreMark, carried: impl IntoIterator<Item = Carried>) -> Result<Content, Error> {
        if mark.revision < 1 || !(-1..=mark.revision).contains(&mark.compacted) {
            return Err(Error::Malformed(format!(
                "a mark with revision {} and compacted revision {}",
                mark.revision, mark.compacted
            )));
        }
        let mut content =
            Content { revision: mark.revision, compacted: mark.compacted, buckets: BTreeMap::new() };
        for name in OWN.iter().chain(&ALWAYS) {
            content.buckets.insert(Bytes::from_static(name), Bucket::new());
        }
        for Carried { bucket, key, value } in carried {
            let sizes = [bucket.len(), key.len()];
            if !Carried::takes(&bucket) || !sizes.iter().all(|size| (1..=KEY_BYTES_MAX).contains(size)) {
                return Err(Error::malformed("a carried record is not of a bucket that is carried"));
            }
            content.buckets.entry(bucket).or_default().insert(key, value);
        }
        let membership = mark.membership.clone().unwrap_or_default();
        let members = Members::from_membership(&membership);
        for member in members.members.values() {
            let json = serde_json::to_vec(member).expect("a member is plain text and numbers");
            content.put(b"members", id(member.id), json);
        }
        for removed in &members.removed {
            content.put(b"members_removed", id(*removed), "removed");
        }
        for alarm in &mark.alarms {
            let key = AlarmMember { member_id: alarm.member_id, alarm: alarm.alarm }.encode_to_vec();
            content.put(b"alarm", key, "");
        }
        if !mark.cluster_version.is_empty() {
            content.put(b"cluster", "clusterVersion", mark.cluster_version.clone());
        }
        if !mark.downgrade_target.is_empty() {
            let downgrade = json!({"target-version": mark.downgrade_target, "enabled": true});
            content.put(b"cluster", "downgrade", downgrade.to_string());
        }
        content.put(META, "consistent_index", mark.applied_index.to_be_bytes().to_vec());
        content.put(META, "term", mark.applied_term.to_be_bytes().to_vec());
        content.put(META, "confState", conf_state(mark.conf_state.as_ref()));
        content.put(META, "storageVersion", STORAGE_VERSION);
        content.mark_compacted();
        Ok(content)
    }

    /// As the buckets of a real etcd are, bucket `key` left out.
    pub(super) fn of_buckets(revision: i64, compacted: i64, mut buckets: BTreeMap<Bytes, Bucket>) -> Content {
        buckets.insert(Bytes::from_static(KEY), Bucket::new());
        Content { revision, compacted, buckets }
    }

    /// Both marks of a compaction that is finished, as the records are handed out by then.
    fn mark_compacted(&mut self) {
        let Ok(compacted) = u64::try_from(self.compacted) else { return };
        for name in ["scheduledCompactRev", "finishedCompactRev"] {
            self.put(META, name, RevisionKey::mark(compacted).encode().to_vec());
        }
    }

    fn put(&mut self, bucket: &'static [u8], key: impl Into<Bytes>, value: impl Into<Bytes>) {
        let (key, value) = (key.into(), value.into());
        if key.is_empty() {
            // An alarm of no kind and no member encodes to nothing, and is none.
            return;
        }
        self.buckets.entry(Bytes::from_static(bucket)).or_default().insert(key, value);
    }

    /// Names and records of all buckets in order.
    pub fn buckets(&self) -> &BTreeMap<Bytes, Bucket> {
        &self.buckets
    }

    /// A record of a small bucket.
    pub fn get(&self, bucket: &[u8], key: &[u8]) -> Option<&Bytes> {
        self.buckets.get(bucket)?.get(key)
    }

    /// Everything that is carried.
    pub fn carried(&self) -> impl Iterator<Item = Carried> {
        let buckets = self.buckets.iter().filter(|(name, _)| Carried::takes(name));
        buckets.flat_map(|(bucket, records)| {
            let one = move |(key, value): (&Bytes, &Bytes)| Carried {
                bucket: bucket.clone(),
                key: key.clone(),
                value: value.clone(),
            };
            records.iter().map(one)
        })
    }

    /// Whether users must log in.
    pub fn auth_enabled(&self) -> bool {
        self.get(b"auth", b"authEnabled").is_some_and(|value| value[..] == [1])
    }

    pub fn leases(&self) -> usize {
        self.buckets.get(&b"lease"[..]).map_or(0, BTreeMap::len)
    }
}

/// Ids in keys: hexadecimal without leading zeros.
fn id(id: u64) -> String {
    format!("{id:x}")
}

fn conf_state(state: Option<&ConfState>) -> String {
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave } =
        state.cloned().unwrap_or_default();
    let mut json = serde_json::Map::new();
    let lists = [
        ("voters", voters),
        ("learners", learners),
        ("voters_outgoing", voters_outgoing),
        ("learners_next", learners_next),
    ];
    for (name, ids) in lists {
        if !ids.is_empty() {
            json.insert(name.to_owned(), json!(ids));
        }
    }
    json.insert("auto_leave".to_owned(), json!(auto_leave));
    serde_json::Value::Object(json).to_string()
}
