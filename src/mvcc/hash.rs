//! HashKV: etcd's hash over the records (tests/facts/storage.md, section 5).
//!
//! The caller feeds every page that [`super::Mvcc::live_pages`] names, in
//! order; they may be fetched with the state unlocked in between.
//! **Promises**: equal to etcd's for the same history at equal (revision,
//! compacted), whatever was physically removed.

use super::{
    Error, Mvcc,
    page::{Head, Place, records},
    record::{Fields, Malformed},
};
use crate::pagefile::PageNumber;

/// Why a page was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// A compaction came in between: begin again with the state as it is now.
    #[error("the store was compacted meanwhile")]
    Compacted,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// A hash being taken.
#[derive(Clone, Debug)]
pub struct HashKv {
    revision: u64,
    compacted: i64,
    /// Over the records that count when some key lives at `revision`.
    crc: u32,
    /// The same when no key does: then records at or below the compacted revision count
    /// as they are stored. Only a record that is seen tells which, so both are kept.
    crc_all_dead: u32,
    lives: bool,
    next: PageNumber,
}

impl HashKv {
    /// `revision` as [`Mvcc::hash_revision`] gives it; `compacted` the state's mark.
    pub fn new(revision: i64, compacted: i64) -> HashKv {
        let bucket = crc32c::crc32c(b"key");
        let revision = u64::try_from(revision).unwrap_or(0);
        HashKv { revision, compacted, crc: bucket, crc_all_dead: bucket, lives: false, next: PageNumber(0) }
    }

    /// Takes the next page; `false` when no later page can matter.
    pub fn feed(&mut self, page: PageNumber, payload: &[u8], mvcc: &Mvcc) -> Result<bool, FeedError> {
        assert!(page >= self.next, "pages come in order");
        if mvcc.compacted() != self.compacted {
            crate::reached!("compaction during a hash");
            return Err(FeedError::Compacted);
        }
        let head = Head::of(payload)?;
        self.next = PageNumber(page.0 + 1);
        if head.first > self.revision {
            return Ok(false);
        }
        for record in records(payload) {
            let (offset, record) = record?;
            if record.main > self.revision {
                return Ok(false);
            }
            let main = record.main as i64;
            let place = Place::new(page, offset, record.tombstone);
            let lies_here = |key: &[u8], at: u64| {
                !record.tombstone && mvcc.index.newest(key, at).is_some_and(|newest| newest.place == place)
            };
            let recent = main > self.compacted;
            // Once a key is known to live, recent records need no look at the index.
            let keeps = (!recent || !self.lives) && {
                let key = Fields::decode(record.key_value)?.key;
                if !recent && !self.lives && lies_here(key, self.compacted as u64) {
                    self.crc_all_dead = append(self.crc_all_dead, &record);
                }
                lies_here(key, self.revision)
            };
            if recent || keeps {
                self.crc = append(self.crc, &record);
            }
            if recent {
                self.crc_all_dead = append(self.crc_all_dead, &record);
            }
            self.lives |= keeps;
        }
        Ok(true)
    }

    pub fn finish(&self) -> u32 {
        if self.lives { self.crc } else { self.crc_all_dead }
    }
}

/// Record key as etcd stores it, then the value; no lengths in between.
fn append(crc: u32, record: &super::record::Record<'_>) -> u32 {
    let mut key = [0; 18];
    key[..8].copy_from_slice(&record.main.to_be_bytes());
    key[8] = b'_';
    key[9..17].copy_from_slice(&record.sub.to_be_bytes());
    key[17] = b't';
    let length = if record.tombstone { 18 } else { 17 };
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &key[..length]), record.key_value)
}

impl Mvcc {
    /// The revision that a HashKV request means, or why it cannot be had (C9).
    /// A negative one is answered with the hash of nothing.
    pub fn hash_revision(&self, asked: i64) -> Result<i64, Error> {
        match asked {
            0 => Ok(self.revision()),
            asked if asked > self.revision() => Err(Error::FutureRevision),
            asked if asked > 0 && asked < self.compacted => Err(Error::Compacted),
            asked => Ok(asked),
        }
    }
}
