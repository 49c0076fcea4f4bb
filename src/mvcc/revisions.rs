//! All retained records of one key.
//!
//! Memory: 32 bytes for a key with one record. Up to [`FEW`] records lie in one
//! buffer of 16 bytes each; beyond that in a box with room to grow. What a
//! reader needs more (create revision, version) follows from a record's
//! position inside its generation, so it is kept once.

use super::page::Place;

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

/// A version in seven bytes: no key is put 2^56 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Puts([u8; 7]);

impl Puts {
    fn new(version: u64) -> Puts {
        let bytes = version.to_le_bytes();
        assert_eq!(bytes[7], 0, "a version is below 2^56");
        Puts([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6]])
    }

    fn get(self) -> u64 {
        let [a, b, c, d, e, f, g] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, 0])
    }
}

/// Versions from here on are refused where they are read; what is put after them still fits.
const VERSION_END: u64 = 1 << 55;

/// Records that lie in one buffer without room to grow.
const FEW: usize = 32;

/// Oldest first. Several may share a main revision (a txn that deletes and then
/// puts): the last of them is the key's state at that revision. `create` and
/// `version` are those of the oldest; both 0 for a tombstone.
#[derive(Debug)]
pub enum Revisions {
    One { at: Version, create: u64, version: Puts },
    Few { records: Box<[Version]>, create: u64, version: Puts },
    Many(Box<Generations>),
}

#[derive(Debug)]
pub struct Generations {
    create: u64,
    version: u64,
    /// Where each generation but the first begins in `records`: right behind a tombstone.
    starts: Vec<u32>,
    records: Vec<Version>,
}

// The figures of DESIGN.md, "mvcc".
const _: () = assert!(size_of::<Version>() == 16);
const _: () = assert!(size_of::<Revisions>() == 32);

impl super::tree::Counts for Revisions {
    /// Whether the key is live at the newest revision.
    fn counts(&self) -> bool {
        !self.newest().place.tombstone()
    }
}

impl Revisions {
    /// A key's first record; create revision and version are 0 for a tombstone.
    pub fn one(at: Version, create: u64, version: u64) -> Revisions {
        assert_eq!(at.place.tombstone(), version == 0, "puts have a version, tombstones none");
        Revisions::One { at, create, version: Puts::new(version) }
    }

    /// At least one record, ascending; create revision and version are those of the first.
    fn new(mut records: Vec<Version>, create: u64, version: u64) -> Revisions {
        match records.len() {
            0 => unreachable!("a key in the index has a record"),
            1 => Revisions::one(records[0], create, version),
            2..=FEW => {
                records.shrink_to_fit();
                Revisions::Few { records: records.into(), create, version: Puts::new(version) }
            }
            _ => {
                let lives = records.windows(2).enumerate().filter(|(_, pair)| pair[0].place.tombstone());
                let starts =
                    lives.map(|(at, _)| u32::try_from(at + 1).expect("fewer than 2^32 records")).collect();
                Revisions::Many(Box::new(Generations { create, version, starts, records }))
            }
        }
    }

    /// The same from stored numbers, which may be wrong.
    pub fn stored(records: Vec<Version>, create: u64, version: u64) -> Result<Revisions, &'static str> {
        let Some(first) = records.first() else { return Err("a key has no records") };
        if u32::try_from(records.len()).is_err() {
            return Err("a key has too many records");
        }
        check_first(*first, create, version)?;
        for pair in records.windows(2) {
            if pair[1].main < pair[0].main || pair[1].place <= pair[0].place {
                return Err("a key's records do not ascend");
            }
            if pair[0].place.tombstone() && pair[1].place.tombstone() {
                return Err("a stored tombstone follows a tombstone");
            }
        }
        Ok(Revisions::new(records, create, version))
    }

    pub fn records(&self) -> &[Version] {
        match self {
            Revisions::One { at, .. } => std::slice::from_ref(at),
            Revisions::Few { records, .. } => records,
            Revisions::Many(many) => &many.records,
        }
    }

    /// Create revision and version of the oldest record.
    pub fn first(&self) -> (u64, u64) {
        match self {
            Revisions::One { create, version, .. } | Revisions::Few { create, version, .. } => {
                (*create, version.get())
            }
            Revisions::Many(many) => (many.create, many.version),
        }
    }

    pub fn newest(&self) -> Version {
        *self.records().last().expect("a key in the index has a record")
    }

    /// Position of the newest record at or below `revision`.
    pub fn position(&self, revision: u64) -> Option<usize> {
        let records = self.records();
        // Most reads are at the current revision.
        match records.last() {
            Some(last) if last.main <= revision => Some(records.len() - 1),
            _ => records.partition_point(|record| record.main <= revision).checked_sub(1),
        }
    }

    /// (create revision, version) of the put at `position`.
    fn facts(&self, position: usize) -> (u64, u64) {
        let begun = match self {
            Revisions::One { .. } => None,
            Revisions::Few { records, .. } => {
                let lived = records[..position].iter().rposition(|record| record.place.tombstone());
                lived.map(|tombstone| tombstone + 1)
            }
            Revisions::Many(many) => {
                let later = many.starts.partition_point(|&start| start as usize <= position);
                later.checked_sub(1).map(|at| many.starts[at] as usize)
            }
        };
        match begun {
            None => {
                let (create, version) = self.first();
                (create, version + position as u64)
            }
            Some(start) => (self.records()[start].main, 1 + (position - start) as u64),
        }
    }

    fn found(&self, position: usize) -> Option<Found> {
        let at = self.records()[position];
        if at.place.tombstone() {
            return None;
        }
        let (create_revision, version) = self.facts(position);
        Some(Found { create_revision, mod_revision: at.main, version, place: at.place })
    }

    pub fn live(&self, revision: u64) -> Option<Found> {
        self.found(self.position(revision)?)
    }

    /// (create revision, version) that a put at `main` will have.
    pub fn next_put(&self, main: u64) -> (u64, u64) {
        match self.found(self.records().len() - 1) {
            Some(found) => (found.create_revision, found.version + 1),
            None => (main, 1),
        }
    }

    pub fn push(&mut self, record: Version) {
        let newest = self.newest();
        assert!(newest.main <= record.main && newest.place < record.place, "records of a key ascend");
        match self {
            Revisions::One { at, create, version } => {
                let records = Box::new([*at, record]);
                *self = Revisions::Few { records, create: *create, version: *version };
            }
            Revisions::Few { records, create, version } => {
                let mut all = std::mem::take(records).into_vec();
                all.reserve_exact(1);
                all.push(record);
                *self = Revisions::new(all, *create, version.get());
            }
            Revisions::Many(many) => many.push(record),
        }
    }

    /// Drops what no reader at or above `compacted` can see; `true` when nothing is left.
    pub fn compact(&mut self, compacted: u64, dropped: &mut Vec<Place>) -> bool {
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
        if first == 0 {
            return false;
        }
        let (create, version) = match self.records()[first].place.tombstone() {
            true => (0, 0),
            false => self.facts(first),
        };
        if let Revisions::Many(many) = self
            && many.records.len() - first > FEW
        {
            many.drop_before(first);
            (many.create, many.version) = (create, version);
            return false;
        }
        *self = Revisions::new(self.records()[first..].to_vec(), create, version);
        false
    }
}

/// Whether a stored record can be the first one known of its key.
pub fn check_first(record: Version, create: u64, version: u64) -> Result<(), &'static str> {
    if record.place.tombstone() {
        return if (create, version) == (0, 0) { Ok(()) } else { Err("a stored tombstone has a version") };
    }
    if version == 0 || version >= VERSION_END || create == 0 || create > record.main {
        return Err("a stored pair has no create revision or version");
    }
    Ok(())
}

impl Generations {
    fn push(&mut self, record: Version) {
        if self.records.last().is_some_and(|last| last.place.tombstone()) && !record.place.tombstone() {
            let start =
                u32::try_from(self.records.len()).expect("a key has fewer than 2^32 retained records");
            self.starts.push(start);
        }
        if self.records.len() == self.records.capacity() {
            // A sixteenth more, not double: slack counts against the bytes a revision may cost.
            self.records.reserve_exact(self.records.len() / 16 + 1);
        }
        self.records.push(record);
    }

    fn drop_before(&mut self, first: usize) {
        self.records.drain(..first);
        self.records.shrink_to_fit();
        let begun = self.starts.partition_point(|&start| start as usize <= first);
        self.starts.drain(..begun);
        self.starts.shrink_to_fit();
        for start in &mut self.starts {
            *start -= first as u32;
        }
    }
}
