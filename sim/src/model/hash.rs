//! HashKV as it is observed of etcd (C9, C10): a number that members, releases
//! and other systems with the same data agree on.

use super::{Model, Moment};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;

impl Model {
    /// The hash at `moment.revision` of a store that was compacted at `moment.compacted`.
    ///
    /// All records up to the revision count, in order, after the word `key`; those at or below the
    /// compacted revision only if they are the newest of their key **at the revision** and no
    /// deletion, or if no key has such a one; a deletion at the compacted revision never.
    pub fn hash_kv(&self, moment: Moment) -> u32 {
        let Moment { revision, compacted } = moment;
        let newest = |versions: &Vec<super::Version>| {
            let after = versions.partition_point(|version| version.revision <= revision);
            versions[..after]
                .last()
                .filter(|version| version.pair.is_some())
                .map(|last| (last.revision, last.sub))
        };
        let keep: BTreeSet<(i64, i64)> = self.versions.values().filter_map(newest).collect();
        let mut hash = crc32c::crc32c(b"key");
        for record in self.records(moment) {
            let deleted = record.pair.is_none();
            let counts = if record.main > compacted {
                true
            } else if record.main == compacted && deleted {
                false
            } else {
                keep.is_empty() || keep.contains(&(record.main, record.sub))
            };
            if counts {
                hash = crc32c::crc32c_append(hash, &record_key(record.main, record.sub, deleted));
                hash = crc32c::crc32c_append(hash, &value(record.key, record.pair));
            }
        }
        hash
    }
}

/// Revision, `_`, place within it; a deletion has a `t` behind.
fn record_key(main: i64, sub: i64, deleted: bool) -> Vec<u8> {
    let mut key = main.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend(sub.to_be_bytes());
    if deleted {
        key.push(b't');
    }
    key
}

/// The pair as a message; a deletion is its key alone.
fn value(key: Bytes, pair: Option<quorate_proto::mvccpb::KeyValue>) -> Vec<u8> {
    pair.unwrap_or_else(|| quorate_proto::mvccpb::KeyValue { key, ..Default::default() }).encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hashes_to_what_the_real_one_says() {
        assert_eq!(Model::new().hash_kv(Model::new().now()), 1_084_519_789);
    }
}
