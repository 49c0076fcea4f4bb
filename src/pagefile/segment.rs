//! Segments as readers see them: which page lies where.
//!
//! Owns the in-memory index from page number to place (some forty bytes a page).
//! Promises that segments stand in order of page number and do not overlap.
//! Never does I/O.

use super::directory::Entry;
use super::header::Fault;
use super::{Error, PageFacts, PageNumber, SegmentFacts};
use crate::env::File;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

/// A segment that can be read.
#[derive(Clone)]
pub(super) struct Segment {
    pub id: u128,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    /// Its pages in order; shared with scans, copied if one is under way when a page is added.
    pub entries: Arc<Vec<Entry>>,
    /// Bytes of pages, the directory included.
    pub written: u64,
    /// Bytes of the file, preallocation included.
    pub on_disk: u64,
    pub sealed: bool,
    pub directory: Option<super::manifest::Directory>,
}

impl Segment {
    /// Number of its first page; `None` while it has none.
    pub(super) fn first_page(&self) -> Option<u64> {
        self.entries.first().map(|entry| entry.number)
    }

    /// Number behind its last page; 0 while it has none.
    pub(super) fn end_page(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.last() + 1)
    }

    /// Position in `entries` of the page that covers or follows `number`.
    pub(super) fn at_or_behind(&self, number: u64) -> usize {
        self.entries.partition_point(|entry| entry.last() < number)
    }

    fn target(&self, entry: Entry, page_size: u64) -> Target {
        Target {
            file: self.file.clone(),
            path: self.path.clone(),
            segment: self.id,
            position: u64::from(entry.slot) * page_size,
            entry,
        }
    }
}

/// A segment's file name.
pub(super) fn file_name(id: u128) -> String {
    format!("{id:032x}.seg")
}

/// Whether a name could have come from [`file_name`].
pub(super) fn is_segment_name(name: &str) -> bool {
    name.strip_suffix(".seg").is_some_and(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The segments of a page file in order; shared by the writer and all readers.
/// Only the last may be without pages, for a moment.
#[derive(Clone)]
pub(super) struct Index(Arc<Mutex<Vec<Segment>>>);

impl Index {
    pub(super) fn new(segments: Vec<Segment>) -> Index {
        Index(Arc::new(Mutex::new(segments)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Segment>> {
        self.0.lock().expect("no panic while the index is locked")
    }

    /// The page that covers `number`.
    pub(super) fn find(&self, number: u64, page_size: u64) -> Option<Target> {
        let segments = self.lock();
        let segment = segments.get(first_with(&segments, number))?;
        let entry = segment.entries.get(segment.at_or_behind(number))?;
        (entry.number <= number).then(|| segment.target(*entry, page_size))
    }

    pub(super) fn pages(&self, from: u64, max: usize, page_size: u64) -> Vec<PageFacts> {
        let segments = self.lock();
        let at = first_with(&segments, from);
        let start = segments.get(at).map_or(0, |segment| segment.at_or_behind(from));
        let entries = segments[at..].iter().flat_map(|segment| segment.entries.iter());
        entries.skip(start).take(max).map(|entry| entry.facts(page_size)).collect()
    }

    /// The last page whose label's first is at most `first`.
    pub(super) fn page_at(&self, first: u64) -> Option<PageNumber> {
        let segments = self.lock();
        let reaches = |segment: &Segment| segment.entries.first().is_some_and(|e| e.label.first <= first);
        let segment = &segments[segments.partition_point(reaches).checked_sub(1)?];
        let at = segment.entries.partition_point(|entry| entry.label.first <= first).checked_sub(1)?;
        Some(PageNumber(segment.entries[at].number))
    }

    pub(super) fn last_page(&self) -> Option<PageNumber> {
        let segments = self.lock();
        let last = segments.iter().rev().find_map(|segment| segment.entries.last())?;
        Some(PageNumber(last.number))
    }

    pub(super) fn facts(&self) -> Vec<SegmentFacts> {
        let facts = |segment: &Segment| {
            Some(SegmentFacts {
                id: segment.id,
                first: PageNumber(segment.first_page()?),
                end: PageNumber(segment.end_page()),
                written: segment.written,
                on_disk: segment.on_disk,
                sealed: segment.sealed,
                digest: segment.directory.map(|directory| directory.digest),
            })
        };
        self.lock().iter().filter_map(facts).collect()
    }

    /// The directory of the segment whose last page covers `number`.
    pub(super) fn directory_behind(&self, number: u64) -> Option<(Segment, super::manifest::Directory)> {
        let segments = self.lock();
        let segment = segments.get(first_with(&segments, number))?;
        let last = segment.entries.last()?;
        (last.number <= number).then_some(())?;
        Some((segment.clone(), segment.directory?))
    }
}

/// Position of the first segment with a page that covers or follows `number`.
fn first_with(segments: &[Segment], number: u64) -> usize {
    let before = |segment: &Segment| !segment.entries.is_empty() && segment.end_page() <= number;
    segments.partition_point(before)
}

/// Where one page is to be read. Keeps the file readable, dropped or not.
pub(super) struct Target {
    pub file: Arc<dyn File>,
    pub path: PathBuf,
    pub segment: u128,
    pub position: u64,
    pub entry: Entry,
}

/// The error of a fault where a tear is out of the question.
pub(super) fn refusal(fault: Fault, path: &Path, position: u64) -> Error {
    let path = path.to_owned();
    match fault {
        Fault::Bad(what) => Error::Rot { path, position, what },
        Fault::Version(version) => Error::Version { path, version, known: super::FORMAT_VERSION },
        Fault::Features(features) => Error::Features { path, features },
    }
}
