//! The index: key → its records through time → where each lies.
//!
//! A counted tree (`tree.rs`) of what is retained of each key (`revisions.rs`).
//! Memory beside the key's bytes, by resident size: 40 bytes for a key with one
//! record that came in order or from a checkpoint, about 70 for one of a million
//! in any order; about 20 for each older record (`benches/index_memory.rs`).
//!
//! **Promises**: an answer at a revision at or above the compacted one does not
//! depend on how far [`Index::compact_step`] has come.
//! **Never** looks at the records themselves.

use super::{
    keys::Keys,
    page::Place,
    revisions::{Revisions, check_first},
    tree::{self, Tree},
};
use std::ops::Bound;

pub use super::revisions::{Found, Version};

/// A range of keys, as requests mean it (R1, R2); never empty by its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span<'a> {
    One(&'a [u8]),
    /// Every key at or above.
    From(&'a [u8]),
    /// First and, excluded, last; first < last.
    Between(&'a [u8], &'a [u8]),
}

impl<'a> Span<'a> {
    /// `None`: an empty range.
    pub fn new(key: &'a [u8], range_end: &'a [u8]) -> Option<Span<'a>> {
        match range_end {
            [] => Some(Span::One(key)),
            [0] => Some(Span::From(key)),
            end if end <= key => None,
            end => Some(Span::Between(key, end)),
        }
    }

    pub fn bounds(self) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
        match self {
            Span::One(key) => (Bound::Included(key), Bound::Included(key)),
            Span::From(key) => (Bound::Included(key), Bound::Unbounded),
            Span::Between(key, end) => (Bound::Included(key), Bound::Excluded(end)),
        }
    }
}

/// Every key that has retained records.
#[derive(Debug, Default)]
pub struct Index {
    keys: Tree<Revisions>,
    /// A compaction's walk: every key below is done up to the revision where the walk began.
    walk: Option<(u64, Box<[u8]>)>,
    /// Every key is done up to here.
    done: Option<u64>,
    /// Dropped from their keys, not told to the caller yet.
    dropped: Vec<Place>,
}

impl Index {
    /// Keys that are live at the newest revision.
    pub fn live_keys(&self) -> u64 {
        self.keys.count()
    }

    /// Keys of a span that are live at the newest revision.
    pub fn count(&self, span: Span<'_>) -> u64 {
        self.keys.count_range(span.bounds())
    }

    /// Keys with any retained record.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    pub fn live(&self, key: &[u8], revision: u64) -> Option<Found> {
        self.keys.get(key)?.live(revision)
    }

    /// The key's newest record at or below `revision`, a tombstone too.
    pub fn newest(&self, key: &[u8], revision: u64) -> Option<Version> {
        let revisions = self.keys.get(key)?;
        Some(revisions.records()[revisions.position(revision)?])
    }

    /// Whether a record of `key` at `main` is retained and lies at `place`.
    pub fn holds(&self, key: &[u8], main: u64, place: Place) -> bool {
        let Some(revisions) = self.keys.get(key) else { return false };
        let records = revisions.records();
        let first = records.partition_point(|record| record.main < main);
        records[first..].iter().take_while(|record| record.main == main).any(|record| record.place == place)
    }

    /// Keys of a span in order, with their facts at `revision`; dead ones give
    /// `None` (so that a caller can bound the keys it walks over).
    pub fn walk<'a, 'k>(&'a self, span: Span<'k>, revision: u64) -> Walk<'a, 'k> {
        Walk(match span {
            Span::One(key) => {
                let found = self.keys.get_key_value(key);
                Steps::One(found.map(|(key, revisions)| (key, revisions.live(revision))))
            }
            span => Steps::Many(self.keys.range(span.bounds()), revision),
        })
    }

    /// The live keys of a span in order.
    pub fn scan<'a, 'k>(&'a self, span: Span<'k>, revision: u64) -> impl Iterator<Item = (&'a [u8], Found)> {
        self.walk(span, revision).filter_map(|(key, found)| Some((key, found?)))
    }

    /// Keys of a range in order, with all that is retained of them.
    pub fn entries<'a, 'k>(&'a self, bounds: tree::Bounds<'k>) -> tree::Iter<'a, 'k, Revisions> {
        self.keys.range(bounds)
    }

    /// Adds a put. `write` gets the (create revision, version) that it has and says where it lies.
    pub fn put(&mut self, key: &[u8], main: u64, write: impl FnOnce(u64, u64) -> Place) {
        self.keys.edit(key, |revisions| {
            let (create, version) = match &revisions {
                Some(revisions) => revisions.next_put(main),
                None => (main, 1),
            };
            let at = Version { main, place: write(create, version) };
            assert!(!at.place.tombstone(), "a put writes no tombstone");
            match revisions {
                Some(revisions) => {
                    revisions.push(at);
                    None
                }
                None => Some(Revisions::one(at, create, version)),
            }
        });
    }

    /// Adds a tombstone to a live key.
    pub fn delete(&mut self, key: &[u8], main: u64, place: Place) {
        self.keys.edit(key, |revisions| {
            let revisions = revisions.expect("only a live key is deleted");
            assert!(place.tombstone() && !revisions.newest().place.tombstone(), "only a live key is deleted");
            revisions.push(Version { main, place });
            None
        });
    }

    /// Adds a tombstone to every live key of a span, in order; returns how many.
    pub fn delete_all(&mut self, span: Span<'_>, main: u64, mut write: impl FnMut(&[u8]) -> Place) -> u64 {
        let mut deleted = 0;
        self.keys.visit(span.bounds(), |key, revisions| {
            if !revisions.newest().place.tombstone() {
                let place = write(key);
                assert!(place.tombstone());
                revisions.push(Version { main, place });
                deleted += 1;
            }
            true
        });
        deleted
    }

    /// Takes a stored record above the compacted revision, oldest first. The first one of a key says
    /// its own create revision and version (what came before is compacted away); later ones must
    /// continue the key's life. A key whose only record is a tombstone is known too.
    pub fn load(
        &mut self,
        key: &[u8],
        record: Version,
        create: u64,
        version: u64,
    ) -> Result<(), &'static str> {
        let put = !record.place.tombstone();
        // What a tombstone says of them is not looked at.
        let (create, version) = if put { (create, version) } else { (0, 0) };
        let mut result = Ok(());
        self.keys.edit(key, |revisions| {
            match revisions {
                None => match check_first(record, create, version) {
                    Ok(()) => return Some(Revisions::one(record, create, version)),
                    Err(what) => result = Err(what),
                },
                Some(revisions)
                    if record.main < revisions.newest().main || record.place <= revisions.newest().place =>
                {
                    result = Err("a key's records do not ascend");
                }
                Some(revisions) if !put && revisions.newest().place.tombstone() => {
                    result = Err("a stored tombstone follows a tombstone");
                }
                Some(revisions) if put && revisions.next_put(record.main) != (create, version) => {
                    result = Err("a stored pair does not continue its key's life");
                }
                Some(revisions) => revisions.push(record),
            }
            None
        });
        result
    }

    /// Takes a stored record at or below `compacted`, oldest first: only the newest of a key counts,
    /// and a tombstone below `compacted` leaves nothing. Returns whether the index points to the record
    /// now, and calls `dropped` for the places that it does not point to any more.
    pub fn load_compacted(
        &mut self,
        compacted: u64,
        key: &[u8],
        record: Version,
        (create, version): (u64, u64),
        mut dropped: impl FnMut(Place),
    ) -> Result<bool, &'static str> {
        assert!(record.main <= compacted, "what is above is loaded strictly");
        let put = !record.place.tombstone();
        let (create, version) = if put { (create, version) } else { (0, 0) };
        check_first(record, create, version)?;
        let stays = put || record.main == compacted;
        let mut gone = false;
        let mut ascends = true;
        self.keys.edit(key, |revisions| match revisions {
            Some(revisions) => {
                let newest = revisions.newest();
                ascends = newest.main <= record.main && newest.place < record.place;
                if ascends {
                    revisions.records().iter().for_each(|record| dropped(record.place));
                    gone = !stays;
                    if stays {
                        *revisions = Revisions::one(record, create, version);
                    }
                }
                None
            }
            None => stays.then(|| Revisions::one(record, create, version)),
        });
        if !ascends {
            return Err("a key's records do not ascend");
        }
        if gone {
            self.keys.remove(key).expect("seen a moment ago");
        }
        Ok(stays)
    }

    /// Takes all that a checkpoint knows of some keys in order, none of which is in the index.
    pub fn load_run(&mut self, keys: &Keys, revisions: Vec<Revisions>) {
        self.keys.insert_run(keys, revisions);
    }

    /// Whether no key of a range is in the index.
    pub fn is_free(&self, bounds: tree::Bounds<'_>) -> bool {
        self.keys.range(bounds).next().is_none()
    }

    /// Takes every key of a range out, as if it had never been there.
    pub fn forget(&mut self, bounds: tree::Bounds<'_>, mut dropped: impl FnMut(Place)) {
        let keys: Vec<Box<[u8]>> = self.keys.range(bounds).map(|(key, _)| key.into()).collect();
        for key in keys {
            let revisions = self.keys.remove(&key).expect("seen a moment ago");
            revisions.records().iter().for_each(|record| dropped(record.place));
        }
    }

    /// Up to where every key is compacted.
    pub fn done(&self) -> Option<u64> {
        self.done
    }

    /// Whether nothing more can be dropped by a compaction at `compacted`.
    pub fn compacted(&self, compacted: u64) -> bool {
        self.dropped.is_empty() && self.walk.is_none() && self.done.is_some_and(|done| done >= compacted)
    }

    /// The index is as a finished compaction at `compacted` leaves it.
    pub fn set_compacted(&mut self, compacted: u64) {
        self.done = Some(compacted);
    }

    /// Tells up to `work_max` places that were dropped and not told yet; returns how many.
    pub fn tell_dropped(&mut self, work_max: usize, dropped: impl FnMut(Place)) -> usize {
        let told = self.dropped.len().min(work_max);
        self.dropped.drain(self.dropped.len() - told..).for_each(dropped);
        if self.dropped.is_empty() && self.dropped.capacity() > 0 && self.walk.is_none() {
            self.dropped = Vec::new();
        }
        told
    }

    /// Whether every place that was dropped has been told.
    pub fn is_settled(&self) -> bool {
        self.dropped.is_empty()
    }

    /// Does about `work_max` more steps of a compaction at `compacted` (which never falls), one for
    /// each key visited and each record dropped (a key with very many records costs one step more
    /// than that, but only a copy of their places); `true` when nothing is left to do.
    pub fn compact_step(&mut self, compacted: u64, work_max: usize, mut dropped: impl FnMut(Place)) -> bool {
        assert!(work_max > 0, "a step goes forward");
        let mut work_left = work_max - self.tell_dropped(work_max, &mut dropped);
        if work_left == 0 || self.compacted(compacted) {
            return self.compacted(compacted);
        }
        // A walk that began below `compacted` goes on with it, and the next one begins at the front.
        let (began, from) = self.walk.take().unwrap_or((compacted, Box::default()));
        let mut gone: Vec<Box<[u8]>> = Vec::new();
        let mut next = None;
        let all_dropped = &mut self.dropped;
        self.keys.visit((Bound::Included(&from), Bound::Unbounded), |key, revisions| {
            if work_left == 0 {
                next = Some(key.into());
                return false;
            }
            let before = all_dropped.len();
            if revisions.compact(compacted, all_dropped) {
                gone.push(key.into());
            }
            work_left = work_left.saturating_sub(1 + all_dropped.len() - before);
            true
        });
        for key in gone {
            self.keys.remove(&key).expect("seen a moment ago");
        }
        match next {
            Some(next) => self.walk = Some((began, next)),
            None => self.done = Some(began),
        }
        self.compacted(compacted)
    }
}

/// See [`Index::walk`].
pub struct Walk<'a, 'k>(Steps<'a, 'k>);

enum Steps<'a, 'k> {
    One(Option<(&'a [u8], Option<Found>)>),
    Many(tree::Iter<'a, 'k, Revisions>, u64),
}

impl<'a> Iterator for Walk<'a, '_> {
    type Item = (&'a [u8], Option<Found>);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Steps::One(step) => step.take(),
            Steps::Many(range, revision) => {
                let (key, revisions) = range.next()?;
                Some((key, revisions.live(*revision)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagefile::PageNumber;

    fn place(main: u64, tombstone: bool) -> Place {
        Place::new(PageNumber(main), 24, tombstone)
    }

    /// Builds key `k` from a line of life: `p` a put, `t` a tombstone, at revisions 2, 3, ...
    fn index(life: &str) -> Index {
        let mut index = Index::default();
        for (step, kind) in life.chars().enumerate() {
            let main = step as u64 + 2;
            match kind {
                'p' => index.put(b"k", main, |_, _| place(main, false)),
                't' => index.delete(b"k", main, place(main, true)),
                _ => {}
            }
        }
        index
    }

    /// `create/version` of `k` at each revision from `from`; `-` when dead.
    fn facts(index: &Index, from: u64, to: u64) -> String {
        let facts = (from..=to).map(|revision| match index.live(b"k", revision) {
            Some(found) => format!("{}/{}", found.create_revision, found.version),
            None => "-".to_owned(),
        });
        facts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn create_revision_and_version_follow_from_the_generation() {
        let check = |life, expected| assert_eq!(facts(&index(life), 1, 8), expected, "{life}");
        check("", "- - - - - - - -");
        check("p", "- 2/1 2/1 2/1 2/1 2/1 2/1 2/1");
        check("ppp", "- 2/1 2/2 2/3 2/3 2/3 2/3 2/3");
        check("pt", "- 2/1 - - - - - -");
        check("pptp.pt", "- 2/1 2/2 - 5/1 5/1 5/2 -");
        check("ptptptp", "- 2/1 - 4/1 - 6/1 - 8/1");
    }

    #[test]
    fn compaction_keeps_the_newest_below_and_the_tombstone_at_the_revision() {
        let check = |life: &str, compacted: u64, kept: &[u64]| {
            let mut after = index(life);
            let before = facts(&after, compacted, 12);
            let mut dropped = 0;
            while !after.compact_step(compacted, 1, |_| dropped += 1) {}
            assert_eq!(facts(&after, compacted, 12), before, "{life} at {compacted}");
            let records = after.keys.get(&b"k"[..]).map_or(vec![], |k| k.records().to_vec());
            assert_eq!(records.iter().map(|r| r.main).collect::<Vec<_>>(), kept, "{life} at {compacted}");
            assert_eq!(dropped + kept.len(), life.replace('.', "").len());
            // Again is the same again.
            after.done = None;
            while !after.compact_step(compacted, 1, |_| panic!("{life}: nothing is left to drop")) {}
            assert_eq!(facts(&after, compacted, 12), before);
        };
        check("ppp", 1, &[2, 3, 4]);
        check("ppp", 3, &[3, 4]);
        check("ppp", 9, &[4]);
        check("ppt", 4, &[4]);
        check("ppt", 5, &[]);
        check("pptpp", 4, &[4, 5, 6]);
        check("pptpp", 5, &[5, 6]);
        check("ppt.pp", 5, &[6, 7]);
        check("pptpptp", 6, &[6, 7, 8]);
        check("pptpptp", 7, &[7, 8]);
        check("ptptp", 5, &[5, 6]);
    }

    #[test]
    fn long_lives_are_the_same_however_they_are_kept() {
        for pattern in ["p", "pt", "ppppt.", "pppppppppppppppppppppppppppppppppppppppt"] {
            let life: String = pattern.chars().cycle().take(150).collect();
            // What each revision shows, counted along.
            let (mut create, mut version, mut shown) = (0, 0, Vec::new());
            for (step, kind) in life.chars().enumerate() {
                match kind {
                    'p' if version == 0 => (create, version) = (step as u64 + 2, 1),
                    'p' => version += 1,
                    't' => version = 0,
                    _ => {}
                }
                shown.push(if version == 0 { "-".to_owned() } else { format!("{create}/{version}") });
            }
            for compacted in [2, 20, 40, 41, 42, 80, 115, 118, 119, 120, 140, 151] {
                let mut index = index(&life);
                while !index.compact_step(compacted, 10, |_| ()) {}
                let expected = shown[compacted as usize - 2..].join(" ");
                assert_eq!(facts(&index, compacted, 151), expected, "{pattern} at {compacted}");
            }
        }
    }

    #[test]
    fn a_tombstone_left_by_compaction_goes_with_the_next_one() {
        let mut index = index("pt");
        for (compacted, keys) in [(3, 1), (4, 0)] {
            while !index.compact_step(compacted, 10, |_| ()) {}
            assert_eq!(index.keys(), keys);
        }
    }

    #[test]
    fn a_put_after_a_lone_tombstone_begins_a_life() {
        let mut index = index("pt");
        index.compact_step(3, 10, |_| ());
        index.put(b"k", 9, |create, version| {
            assert_eq!((create, version), (9, 1));
            place(9, false)
        });
        index.put(b"k", 10, |create, version| {
            assert_eq!((create, version), (9, 2));
            place(10, false)
        });
        assert_eq!(facts(&index, 3, 10), "- - - - - - 9/1 9/2");
        assert_eq!(index.live_keys(), 1);
    }

    #[test]
    fn the_last_record_of_one_revision_is_the_state_there() {
        let mut index = index("pp");
        index.delete(b"k", 4, Place::new(PageNumber(4), 24, true));
        index.put(b"k", 4, |create, version| {
            assert_eq!((create, version), (4, 1));
            Place::new(PageNumber(4), 60, false)
        });
        assert_eq!(facts(&index, 3, 5), "2/2 4/1 4/1");
        index.compact_step(4, 10, |_| ());
        assert_eq!(facts(&index, 4, 5), "4/1 4/1");
        assert_eq!(index.newest(b"k", 4).unwrap().place.offset(), 60);
    }

    #[test]
    fn loading_continues_a_life_or_fails() {
        let version = |main, tombstone| Version { main, place: place(main, tombstone) };
        let mut index = Index::default();
        index.load(b"k", version(9, false), 5, 3).unwrap();
        index.load(b"k", version(10, false), 5, 4).unwrap();
        assert_eq!(facts(&index, 8, 10), "- 5/3 5/4");
        assert!(index.load(b"k", version(11, false), 5, 6).is_err());
        index.load(b"k", version(11, true), 0, 0).unwrap();
        assert!(index.load(b"k", version(12, true), 0, 0).is_err());
        assert!(index.load(b"k", version(12, false), 11, 1).is_err());
        index.load(b"k", version(12, false), 12, 1).unwrap();
        index.load(b"dead", version(13, true), 0, 0).unwrap();
        assert_eq!((index.live_keys(), index.keys()), (1, 2));
        assert!(index.load(b"new", version(14, false), 0, 0).is_err());
    }

    #[test]
    fn ranges_mean_what_requests_mean() {
        let check = |key: &'static str, end: &'static str, expected: &[&str]| {
            let mut index = Index::default();
            for (main, key) in ["a", "b", "b\0", "c"].into_iter().enumerate() {
                index.put(key.as_bytes(), main as u64 + 2, |_, _| place(9, false));
            }
            let span = Span::new(key.as_bytes(), end.as_bytes());
            let found: Vec<_> =
                span.into_iter().flat_map(|span| index.scan(span, 9)).map(|(key, _)| key).collect();
            let expected: Vec<_> = expected.iter().map(|key| key.as_bytes()).collect();
            assert_eq!(found, expected, "{key:?} to {end:?}");
        };
        check("b", "", &["b"]);
        check("x", "", &[]);
        check("b", "\0", &["b", "b\0", "c"]);
        check("\0", "\0", &["a", "b", "b\0", "c"]);
        check("a", "c", &["a", "b", "b\0"]);
        check("b", "b", &[]);
        check("c", "a", &[]);
        check("", "b", &["a"]);
    }
}
