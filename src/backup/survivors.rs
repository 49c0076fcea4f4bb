//! What of a history counts: after a compaction, and in HashKV.
//!
//! Told from the records alone, in two passes and with some fifty bytes for
//! each key, so it works for every view, files of a stopped member and
//! snapshots among them. Rules: tests/facts/storage.md, sections 4 and 5.

use super::{Content, Error, Records, Stored, View};
use crate::mvcc::Fields;
use sha2::{Digest, Sha256};
use std::{collections::HashMap, sync::Arc};

/// Keys by half of their SHA-256, which no two keys share; never iterated.
type ByKey<T> = HashMap<u128, T>;

pub(super) fn identity(key: &[u8]) -> u128 {
    let digest = Sha256::digest(key);
    u128::from_le_bytes(digest[..16].try_into().expect("a digest has 32 bytes"))
}

fn key_of(record: &Stored) -> Result<u128, Error> {
    let fields = Fields::decode(&record.key_value)
        .map_err(|what| Error::Malformed(format!("record {}/{}: {what}", record.main, record.sub)))?;
    Ok(identity(fields.key))
}

/// The newest record of each key up to a revision.
pub struct Survivors {
    revision: i64,
    newest: ByKey<(u64, u64, bool)>,
    /// Keys whose newest record is a put.
    live: u64,
}

impl Survivors {
    /// First pass, over the records with main at or below `revision`.
    pub async fn find<R: Records>(records: &mut R, revision: i64) -> Result<Survivors, Error> {
        let mut found = Survivors { revision, newest: ByKey::new(), live: 0 };
        while let Some(record) = records.next().await? {
            if record.main as i64 > revision {
                break;
            }
            found.note(&record)?;
        }
        Ok(found)
    }

    fn note(&mut self, record: &Stored) -> Result<(), Error> {
        let at = (record.main, record.sub, record.tombstone);
        let before = self.newest.insert(key_of(record)?, at);
        self.live -= u64::from(before.is_some_and(|(_, _, tombstone)| !tombstone));
        self.live += u64::from(!record.tombstone);
        Ok(())
    }

    /// Keys that live at the revision.
    pub fn live_keys(&self) -> u64 {
        self.live
    }

    fn is_newest(&self, record: &Stored) -> Result<bool, Error> {
        let at = (record.main, record.sub, record.tombstone);
        Ok(self.newest.get(&key_of(record)?) == Some(&at))
    }

    /// Whether a compaction at the revision leaves this record.
    pub fn survives(&self, record: &Stored) -> Result<bool, Error> {
        let main = record.main as i64;
        if main > self.revision {
            return Ok(true);
        }
        Ok(self.is_newest(record)? && !(record.tombstone && main < self.revision))
    }
}

/// A view as a finished compaction leaves it.
pub struct Settled<V> {
    view: V,
    survivors: Arc<Survivors>,
}

impl<V: View> Settled<V> {
    pub async fn new(view: V) -> Result<Settled<V>, Error> {
        let survivors = Survivors::find(&mut view.records(), view.content().compacted).await?;
        Ok(Settled { view, survivors: Arc::new(survivors) })
    }

    /// What was wrapped.
    pub fn view(&self) -> &V {
        &self.view
    }
}

impl<V: View> View for Settled<V> {
    type Records = SettledRecords<V::Records>;

    fn records(&self) -> Self::Records {
        SettledRecords { records: self.view.records(), survivors: self.survivors.clone() }
    }

    fn content(&self) -> &Content {
        self.view.content()
    }
}

pub struct SettledRecords<R> {
    records: R,
    survivors: Arc<Survivors>,
}

impl<R: Records> Records for SettledRecords<R> {
    async fn next(&mut self) -> Result<Option<Stored>, Error> {
        while let Some(record) = self.records.next().await? {
            if self.survivors.survives(&record)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

/// HashKV of a view at `revision` (0 = current): the hash and the revision
/// that it was taken at. Equal to etcd's for the same history.
pub async fn hash_kv<V: View>(view: &V, revision: i64) -> Result<(u32, i64), Error> {
    let (current, compacted) = (view.content().revision, view.content().compacted);
    let at = match revision {
        0 => current,
        revision if revision > current => return Err(Error::FutureRevision),
        revision if revision > 0 && revision < compacted => return Err(Error::Compacted),
        revision => revision,
    };
    let mut hash = crc32c::crc32c(super::content::KEY);
    let keeps = Survivors::find(&mut view.records(), at).await?;
    // When no key lives at the revision, what the compaction left counts as it is stored.
    let left = match keeps.live_keys() {
        0 => Some(Survivors::find(&mut view.records(), compacted).await?),
        _ => None,
    };
    let mut records = view.records();
    while let Some(record) = records.next().await? {
        let main = record.main as i64;
        if main > at {
            break;
        }
        let counts = if main > compacted {
            true
        } else if record.tombstone {
            // Below the mark none is left; those at it are not counted.
            false
        } else {
            match &left {
                Some(left) => left.survives(&record)?,
                None => keeps.is_newest(&record)?,
            }
        };
        if counts {
            let key = record.key();
            hash = crc32c::crc32c_append(crc32c::crc32c_append(hash, &key.encode()), &record.key_value);
        }
    }
    Ok((hash, at))
}
