//! A view as etcd's buckets in order, and etcd's hash over them.

use super::{
    Content, Error, Records, View,
    content::{KEY, META},
};
use bytes::Bytes;
use std::collections::btree_map;

/// What a walk hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Bucket(Bytes),
    Record { key: Bytes, value: Bytes },
}

type Buckets = btree_map::IntoIter<Bytes, std::collections::BTreeMap<Bytes, Bytes>>;

/// One pass over all buckets.
pub struct Walk<R> {
    buckets: Buckets,
    /// Records of the bucket that began last.
    small: btree_map::IntoIter<Bytes, Bytes>,
    /// Taken when their bucket begins.
    waiting: Option<R>,
    records: Option<R>,
}

impl<R: Records> Walk<R> {
    pub fn new<V: View<Records = R>>(view: &V) -> Walk<R> {
        Walk {
            buckets: Content::buckets(view.content()).clone().into_iter(),
            small: btree_map::BTreeMap::new().into_iter(),
            waiting: Some(view.records()),
            records: None,
        }
    }

    /// The next item; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Item>, Error> {
        if let Some(records) = &mut self.records {
            if let Some(record) = records.next().await? {
                let key = record.key();
                return Ok(Some(Item::Record {
                    key: Bytes::copy_from_slice(&key.encode()),
                    value: record.key_value,
                }));
            }
            self.records = None;
        }
        if let Some((key, value)) = self.small.next() {
            return Ok(Some(Item::Record { key, value }));
        }
        let Some((name, records)) = self.buckets.next() else { return Ok(None) };
        self.small = records.into_iter();
        if name == KEY {
            self.records = self.waiting.take();
        }
        Ok(Some(Item::Bucket(name)))
    }
}

/// etcd's hash over buckets (tests/facts/storage.md, section 5).
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketsHash {
    crc: u32,
    /// Leaves out what members differ in: index, term, storage version.
    shared_only: bool,
    in_meta: bool,
}

impl BucketsHash {
    pub fn new(shared_only: bool) -> BucketsHash {
        BucketsHash { crc: 0, shared_only, in_meta: false }
    }

    pub fn bucket(&mut self, name: &[u8]) {
        self.in_meta = name == META;
        self.crc = crc32c::crc32c_append(self.crc, name);
    }

    pub fn record(&mut self, key: &[u8], value: &[u8]) {
        const OF_MEMBER: [&[u8]; 3] = [b"consistent_index", b"term", b"storageVersion"];
        if self.shared_only && self.in_meta && OF_MEMBER.contains(&key) {
            return;
        }
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, key), value);
    }

    pub fn finish(self) -> u32 {
        self.crc
    }
}

/// The older hash call (Maintenance.Hash): over everything that members share.
/// Equal on members with equal content, whatever they removed and cleaned.
pub async fn hash<V: View>(view: &V) -> Result<u32, Error> {
    whole_hash(view, true).await
}

pub(super) async fn whole_hash<V: View>(view: &V, shared_only: bool) -> Result<u32, Error> {
    let mut walk = Walk::new(view);
    let mut hash = BucketsHash::new(shared_only);
    while let Some(item) = walk.next().await? {
        match item {
            Item::Bucket(name) => hash.bucket(&name),
            Item::Record { key, value } => hash.record(&key, &value),
        }
    }
    Ok(hash.finish())
}
