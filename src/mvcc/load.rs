//! Opening: the index from a mark, slices of a checkpoint and record pages.
//!
//! The last mark comes first, so that what is compacted is known; then the
//! slices of the checkpoint, oldest first, if there is one; then record pages
//! in order: all of them, or with a checkpoint that covers every key those from
//! the smallest `first_page` of its slices on.
//! **Promises**: the index is as a finished compaction leaves it, and the same
//! with a checkpoint and without; damaged input is refused without a panic.

use super::{
    Mvcc,
    checkpoint::{Coverage, SliceHead, SliceKeys},
    index::Version,
    keys::Keys,
    page::{Head, records},
    record::{Fields, Record},
};
use crate::pagefile::PageNumber;
use std::ops::Bound;

impl Mvcc {
    /// Takes the last mark of a store, before anything else of it.
    pub fn load_mark(&mut self, revision: i64, compacted: i64) -> Result<(), String> {
        assert_eq!((self.index.keys(), self.last), (0, (0, 0)), "the last mark is loaded first");
        if compacted < super::NEVER_COMPACTED
            || revision < super::FIRST_REVISION as i64
            || compacted > revision
        {
            return Err(format!("mark with revision {revision} and compacted {compacted}"));
        }
        self.revision = revision as u64;
        self.compacted = compacted;
        if let Ok(compacted) = u64::try_from(compacted) {
            self.index.set_compacted(compacted);
        }
        Ok(())
    }

    /// Takes a slice of the checkpoint, oldest first: what a newer one says of its range replaces what
    /// is there. After an error the state is to be thrown away.
    pub fn load_slice(&mut self, payload: &[u8]) -> Result<(), String> {
        assert_eq!(self.last, (0, 0), "slices come before record pages");
        let (head, rest) = SliceHead::of(payload).map_err(|error| error.to_string())?;
        if head.compacted > self.compacted {
            return Err(format!("slice is compacted at {}, the mark at {}", head.compacted, self.compacted));
        }
        let loading = self.loading.get_or_insert_default();
        loading.take(&head).map_err(|error| error.to_string())?;
        let upper = head.to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(&to[..]));
        let (index, tail) = (&mut self.index, &mut self.tail);
        let range = (Bound::Included(&head.from[..]), upper);
        if !index.is_free(range) {
            tail.settle();
            index.forget(range, |place| tail.discount(place));
        }
        let compacted = u64::try_from(self.compacted).ok();
        let mut keys = SliceKeys::new(&head, rest);
        let (mut run, mut values) = (Keys::default(), Vec::new());
        while let Some((key, mut revisions)) = keys.next().map_err(|error| error.to_string())? {
            if key < &head.from[..] || head.to.as_ref().is_some_and(|to| key >= &to[..]) {
                return Err("slice holds a key that is not in its range".to_owned());
            }
            if revisions.newest().main > self.revision {
                return Err(format!("slice knows revision {}, the mark does not", revisions.newest().main));
            }
            if compacted.is_some_and(|compacted| revisions.compact(compacted, &mut Vec::new())) {
                continue;
            }
            revisions.records().iter().for_each(|record| tail.count_loose(record.place.page()));
            run.insert(run.len(), key);
            values.push(revisions);
        }
        index.load_run(&run, values);
        Ok(())
    }

    /// The first page whose records are not all known from the slices that were loaded: record pages
    /// that reach up to it or beyond are to be loaded. The first of all unless the slices cover every key.
    pub fn first_page_to_load(&self) -> PageNumber {
        self.loading.as_ref().map_or(PageNumber(0), Coverage::first_page)
    }

    /// Takes a stored record page, as written or merged, oldest first. What a slice of the checkpoint
    /// holds already is passed over.
    pub fn load_page(&mut self, page: PageNumber, payload: &[u8]) -> Result<(), String> {
        self.tail.end_loose();
        let head = Head::of(payload).map_err(|error| error.to_string())?;
        let mut count = 0;
        // The page that the last record was first written to, and how many of its records are retained.
        let mut retained = (page, 0);
        for record in records(page, payload) {
            let (place, record) = record.map_err(|error| error.to_string())?;
            let Record { main, sub, tombstone, key_value } = record;
            let fields = Fields::decode(key_value).map_err(|error| error.to_string())?;
            if (main, sub) <= self.last {
                return Err(format!("record {main}/{sub} does not follow {}/{}", self.last.0, self.last.1));
            }
            if main < head.first || main > head.last || main > i64::MAX as u64 {
                return Err(format!("record {main}/{sub} does not belong in this page"));
            }
            if main > self.revision {
                return Err(format!("record {main}/{sub} is not known to the mark at {}", self.revision));
            }
            // What a bumped revision leaves in etcd: a put of no key that says nothing of itself.
            let bump = key_value.is_empty() && !tombstone;
            if !tombstone && !bump && fields.mod_revision != main as i64 {
                return Err(format!("record {main}/{sub} says revision {}", fields.mod_revision));
            }
            self.last = (main, sub);
            count += 1;
            if place.page() != retained.0 {
                self.check_known(retained)?;
                retained = (place.page(), 0);
            }
            retained.1 += u32::from(main as i64 > self.compacted);
            if self.loading.as_ref().is_some_and(|slices| place.word() < slices.as_of(fields.key)) {
                continue;
            }
            let at = Version { main, place };
            let number = |number: i64| u64::try_from(number).unwrap_or(0);
            let (create, version) =
                if bump { (main, 1) } else { (number(fields.create_revision), number(fields.version)) };
            let (index, tail) = (&mut self.index, &mut self.tail);
            let counts = if main as i64 <= self.compacted {
                let dropped = |place| tail.discount(place);
                index.load_compacted(self.compacted as u64, fields.key, at, (create, version), dropped)
            } else {
                index.load(fields.key, at, create, version).map(|()| true)
            };
            if counts.map_err(|what| format!("record {main}/{sub}: {what}"))? {
                self.tail.count(place.page());
            }
        }
        if count != head.records {
            return Err(format!("page holds {count} records, its head says {}", head.records));
        }
        self.check_known(retained)
    }

    /// Whether the index holds as many records of a page as it must: a slice that claims to know more
    /// than it does would hide some.
    fn check_known(&self, (page, retained): (PageNumber, u32)) -> Result<(), String> {
        if self.loading.is_none() {
            // Every record went in a moment ago.
            return Ok(());
        }
        let known = self.tail.live_records(page..=page);
        if known < retained {
            return Err(format!(
                "{retained} records of page {} are retained, the index knows {known}: its checkpoint claims more than it holds",
                page.0
            ));
        }
        Ok(())
    }
}
