//! The index: key → its records through time → where each lies.
//!
//! Memory beside the key's bytes: 32 bytes and the tree's own share for a key
//! with one record; from the second record on a box of 64 bytes, and 16 bytes
//! for each record. What a reader needs beyond that (create revision, version)
//! follows from the position inside the generation, so it is kept once.
//!
//! **Promises**: an answer at a revision at or above the compacted one does not
//! depend on how far [`Index::compact_step`] has come.
//! **Never** looks at the records themselves.

use super::page::Place;
use std::{
    collections::{BTreeMap, btree_map},
    ops::Bound,
};

/// A record of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub main: u64,
    pub place: Place,
}

/// The index's facts about a live key at some revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub create_revision: u64,
    pub mod_revision: u64,
    /// Puts since creation, from 1.
    pub version: u64,
    pub place: Place,
}

/// All retained records of one key, oldest first. Several may share a main
/// revision (a txn that deletes and then puts): the last of them is the key's
/// state at that revision.
#[derive(Debug)]
enum Revisions {
    One {
        at: Version,
        /// Create revision and version of `at`; both 0 for a tombstone.
        create: u64,
        version: u64,
    },
    Many(Box<Generations>),
}

#[derive(Debug)]
struct Generations {
    /// Create revision and version of `records[0]`; both 0 for a tombstone.
    create: u64,
    version: u64,
    /// Where each generation but the first begins in `records`: right behind a tombstone.
    starts: Vec<u32>,
    records: Vec<Version>,
}

// The figures of DESIGN.md, "mvcc".
const _: () = assert!(size_of::<Version>() == 16);
const _: () = assert!(size_of::<Revisions>() == 32);

impl Generations {
    /// (create revision, version) of the put at `position`.
    fn facts(&self, position: usize) -> (u64, u64) {
        match self.starts.partition_point(|&start| start as usize <= position) {
            0 => (self.create, self.version + position as u64),
            later => {
                let start = self.starts[later - 1] as usize;
                (self.records[start].main, 1 + (position - start) as u64)
            }
        }
    }
}

impl Revisions {
    fn records(&self) -> &[Version] {
        match self {
            Revisions::One { at, .. } => std::slice::from_ref(at),
            Revisions::Many(many) => &many.records,
        }
    }

    fn newest(&self) -> Version {
        *self.records().last().expect("a key in the index has a record")
    }

    /// Position of the newest record at or below `revision`.
    fn position(&self, revision: u64) -> Option<usize> {
        let records = self.records();
        // Most reads are at the current revision.
        match records.last() {
            Some(last) if last.main <= revision => Some(records.len() - 1),
            _ => records.partition_point(|record| record.main <= revision).checked_sub(1),
        }
    }

    fn found(&self, position: usize) -> Option<Found> {
        let at = self.records()[position];
        if at.place.tombstone() {
            return None;
        }
        let (create_revision, version) = match self {
            Revisions::One { create, version, .. } => (*create, *version),
            Revisions::Many(many) => many.facts(position),
        };
        Some(Found { create_revision, mod_revision: at.main, version, place: at.place })
    }

    fn live(&self, revision: u64) -> Option<Found> {
        self.found(self.position(revision)?)
    }

    /// (create revision, version) that a put at `main` will have.
    fn next_put(&self, main: u64) -> (u64, u64) {
        match self.found(self.records().len() - 1) {
            Some(found) => (found.create_revision, found.version + 1),
            None => (main, 1),
        }
    }

    fn push(&mut self, record: Version) {
        assert!(self.newest().main <= record.main, "records of a key ascend");
        if let Revisions::One { at, create, version } = *self {
            let mut records = Vec::with_capacity(2);
            records.push(at);
            *self = Revisions::Many(Box::new(Generations { create, version, starts: Vec::new(), records }));
        }
        let Revisions::Many(many) = self else { unreachable!("made so above") };
        if many.records.last().is_some_and(|last| last.place.tombstone()) && !record.place.tombstone() {
            let start =
                u32::try_from(many.records.len()).expect("a key has fewer than 2^32 retained records");
            many.starts.push(start);
        }
        if many.records.len() == many.records.capacity() {
            // An eighth more, not double: slack counts against the bytes a revision may cost.
            many.records.reserve_exact(many.records.len() / 8 + 2);
        }
        many.records.push(record);
    }

    /// Drops what no reader at or above `compacted` can see; `true` when nothing is left.
    fn compact(&mut self, compacted: u64, dropped: &mut Vec<Place>) -> bool {
        let Some(kept) = self.position(compacted) else { return false };
        let newest = self.records()[kept];
        // A tombstone exactly at the compacted revision stays: a watch from there shows it.
        let first = if newest.place.tombstone() && newest.main < compacted { kept + 1 } else { kept };
        if newest.place.tombstone() && newest.main == compacted {
            crate::reached!("compaction kept a tombstone at its own revision");
        }
        dropped.extend(self.records()[..first].iter().map(|record| record.place));
        if first == self.records().len() {
            return true;
        }
        let Revisions::Many(many) = self else { return false };
        if first == 0 {
            return false;
        }
        let (create, version) = match many.records[first].place.tombstone() {
            true => (0, 0),
            false => many.facts(first),
        };
        if many.records.len() - first == 1 {
            *self = Revisions::One { at: many.records[first], create, version };
            return false;
        }
        (many.create, many.version) = (create, version);
        many.records.drain(..first);
        many.records.shrink_to_fit();
        let begun = many.starts.partition_point(|&start| start as usize <= first);
        many.starts.drain(..begun);
        many.starts.shrink_to_fit();
        for start in &mut many.starts {
            *start -= first as u32;
        }
        false
    }
}

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
    keys: BTreeMap<Box<[u8]>, Revisions>,
    live: u64,
    /// Where a compaction's walk goes on: every key below it is done.
    walk: Option<Box<[u8]>>,
    /// Dropped from their keys, not told to the caller yet.
    dropped: Vec<Place>,
}

impl Index {
    /// Keys that are live at the newest revision.
    pub fn live_keys(&self) -> u64 {
        self.live
    }

    /// Keys with any retained record.
    #[cfg(test)]
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

    /// Keys of a span in order, with their facts at `revision`; dead ones give
    /// `None` (so that a caller can bound the keys it walks over).
    pub fn walk<'a>(&'a self, span: Span<'_>, revision: u64) -> Walk<'a> {
        Walk(match span {
            Span::One(key) => {
                let found = self.keys.get_key_value(key);
                Steps::One(found.map(|(key, revisions)| (&**key, revisions.live(revision))))
            }
            span => Steps::Many(self.keys.range::<[u8], _>(span.bounds()), revision),
        })
    }

    /// The live keys of a span in order.
    pub fn scan<'a>(&'a self, span: Span<'_>, revision: u64) -> impl Iterator<Item = (&'a [u8], Found)> {
        self.walk(span, revision).filter_map(|(key, found)| Some((key, found?)))
    }

    /// Adds a put. `write` gets the (create revision, version) that it has and says where it lies.
    pub fn put(&mut self, key: &[u8], main: u64, write: impl FnOnce(u64, u64) -> Place) {
        let Some(revisions) = self.keys.get_mut(key) else {
            let at = Version { main, place: write(main, 1) };
            assert!(!at.place.tombstone());
            self.live += 1;
            self.keys.insert(key.into(), Revisions::One { at, create: main, version: 1 });
            return;
        };
        let (create, version) = revisions.next_put(main);
        let place = write(create, version);
        assert!(!place.tombstone());
        if version == 1 {
            self.live += 1;
        }
        revisions.push(Version { main, place });
    }

    /// Adds a tombstone to a live key.
    pub fn delete(&mut self, key: &[u8], main: u64, place: Place) {
        let revisions = self.keys.get_mut(key).expect("only a live key is deleted");
        assert!(place.tombstone() && !revisions.newest().place.tombstone(), "only a live key is deleted");
        self.live -= 1;
        revisions.push(Version { main, place });
    }

    /// Adds a tombstone to every live key of a span, in order; returns how many.
    pub fn delete_all(&mut self, span: Span<'_>, main: u64, mut write: impl FnMut(&[u8]) -> Place) -> u64 {
        let mut deleted = 0;
        for (key, revisions) in self.keys.range_mut::<[u8], _>(span.bounds()) {
            if !revisions.newest().place.tombstone() {
                let place = write(key);
                assert!(place.tombstone());
                revisions.push(Version { main, place });
                deleted += 1;
            }
        }
        self.live -= deleted;
        deleted
    }

    /// Takes a stored record, oldest first. The first one of a key says its own create revision
    /// and version (what came before is compacted away); later ones must continue the key's life.
    /// A key whose only record is a tombstone is known too.
    pub fn load(
        &mut self,
        key: &[u8],
        record: Version,
        create: u64,
        version: u64,
    ) -> Result<(), &'static str> {
        let put = !record.place.tombstone();
        match self.keys.get_mut(key) {
            None => {
                let (create, version) = if put { (create, version) } else { (0, 0) };
                if put && (version == 0 || create == 0 || create > record.main) {
                    return Err("a stored pair has no create revision or version");
                }
                self.live += u64::from(put);
                self.keys.insert(key.into(), Revisions::One { at: record, create, version });
            }
            Some(revisions) => {
                let lived = !revisions.newest().place.tombstone();
                if !put && !lived {
                    return Err("a stored tombstone follows a tombstone");
                }
                if put && revisions.next_put(record.main) != (create, version) {
                    return Err("a stored pair does not continue its key's life");
                }
                revisions.push(record);
                self.live = self.live + u64::from(put && !lived) - u64::from(!put);
            }
        }
        Ok(())
    }

    /// Begins to drop what a compaction hides; [`Index::compact_step`] does it.
    pub fn begin_compaction(&mut self) {
        self.walk = Some(Box::default());
    }

    /// Whether the last compaction still has something to do.
    pub fn compacting(&self) -> bool {
        self.walk.is_some() || !self.dropped.is_empty()
    }

    /// Does about `work_max` more steps, one for each key visited and each record dropped (a key
    /// with very many records costs one step more than that, but only a copy of their places);
    /// `true` when the walk is done.
    pub fn compact_step(&mut self, compacted: u64, work_max: usize, mut dropped: impl FnMut(Place)) -> bool {
        assert!(work_max > 0, "a step goes forward");
        let told = self.dropped.len().min(work_max);
        self.dropped.drain(self.dropped.len() - told..).for_each(&mut dropped);
        let mut work_left = work_max - told;
        if work_left == 0 {
            return !self.compacting();
        }
        let Some(from) = self.walk.take() else { return true };
        let mut gone: Vec<Box<[u8]>> = Vec::new();
        let mut range = self.keys.range_mut::<[u8], _>((Bound::Included(&*from), Bound::Unbounded));
        while work_left > 0 {
            let Some((key, revisions)) = range.next() else { break };
            let before = self.dropped.len();
            if revisions.compact(compacted, &mut self.dropped) {
                gone.push(key.clone());
            }
            work_left = work_left.saturating_sub(1 + self.dropped.len() - before);
        }
        self.walk = range.next().map(|(key, _)| key.clone());
        for key in gone {
            self.keys.remove(&key).expect("seen a moment ago");
        }
        !self.compacting()
    }
}

/// See [`Index::walk`].
pub struct Walk<'a>(Steps<'a>);

enum Steps<'a> {
    One(Option<(&'a [u8], Option<Found>)>),
    Many(btree_map::Range<'a, Box<[u8]>, Revisions>, u64),
}

impl<'a> Iterator for Walk<'a> {
    type Item = (&'a [u8], Option<Found>);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Steps::One(step) => step.take(),
            Steps::Many(range, revision) => {
                let (key, revisions) = range.next()?;
                Some((&**key, revisions.live(*revision)))
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
            after.begin_compaction();
            while !after.compact_step(compacted, 1, |_| dropped += 1) {}
            assert_eq!(facts(&after, compacted, 12), before, "{life} at {compacted}");
            let records = after.keys.get(&b"k"[..]).map_or(vec![], |k| k.records().to_vec());
            assert_eq!(records.iter().map(|r| r.main).collect::<Vec<_>>(), kept, "{life} at {compacted}");
            assert_eq!(dropped + kept.len(), life.replace('.', "").len());
            // Again is the same again.
            after.begin_compaction();
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
    fn a_tombstone_left_by_compaction_goes_with_the_next_one() {
        let mut index = index("pt");
        for (compacted, keys) in [(3, 1), (4, 0)] {
            index.begin_compaction();
            while !index.compact_step(compacted, 10, |_| ()) {}
            assert_eq!(index.keys(), keys);
        }
    }

    #[test]
    fn a_put_after_a_lone_tombstone_begins_a_life() {
        let mut index = index("pt");
        index.begin_compaction();
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
        index.begin_compaction();
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
