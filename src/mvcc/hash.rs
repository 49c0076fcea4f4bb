//! HashKV: etcd's hash over the records (tests/facts/storage.md, section 5).
//!
//! The caller pins a view and feeds every page that stands for one of
//! [`super::Mvcc::live_pages`], in order; they may be fetched with the state
//! unlocked in between, and merged by the cleaner meanwhile.
//! **Promises**: equal to etcd's for the same history at equal (revision,
//! compacted), whatever was physically removed or moved.

use super::{
    Mvcc,
    page::{Head, records},
    record::{Fields, Malformed},
    revision_key::RevisionKey,
    view::View,
};
use crate::pagefile::PageNumber;

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
    /// (main, sub) of the last record that was seen: a page may come again as part of a merged one.
    last: (u64, u64),
}

impl HashKv {
    /// `revision` as [`View::hash_revision`] gives it.
    pub fn new(revision: i64, view: View) -> HashKv {
        let bucket = crc32c::crc32c(b"key");
        let revision = u64::try_from(revision).unwrap_or(0);
        HashKv {
            revision,
            compacted: view.compacted,
            crc: bucket,
            crc_all_dead: bucket,
            lives: false,
            last: (0, 0),
        }
    }

    /// Takes the next page, as written or merged; `false` when no later page can matter.
    pub fn feed(&mut self, page: PageNumber, payload: &[u8], mvcc: &Mvcc) -> Result<bool, Malformed> {
        mvcc.assert_whole(self.compacted);
        if Head::of(payload)?.first > self.revision {
            return Ok(false);
        }
        for record in records(page, payload) {
            let (place, record) = record?;
            if record.main > self.revision {
                return Ok(false);
            }
            if (record.main, record.sub) <= self.last {
                continue;
            }
            self.last = (record.main, record.sub);
            let main = record.main as i64;
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
    let key = RevisionKey::from(record).encode();
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &key), record.key_value)
}
