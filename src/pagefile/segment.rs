//! Segments as readers see them: which page lies where.
//!
//! Owns the in-memory index from page number to place (eight bytes a page) and
//! the reading of one page. Promises that what it hands out was checked against
//! number, segment and position. Never writes.

use super::header::{Fault, HEADER, Header};
use super::{Error, Page, PageNumber};
use crate::env::File;
use crate::reached;
use bytes::Bytes;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

/// Where a page begins, in units of the page size, and its payload's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub slot: u32,
    pub length: u32,
}

/// A segment that can be read.
pub(super) struct Segment {
    pub id: u128,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub first_page: u64,
    /// Pages `first_page..first_page + places.len()`, without gaps.
    pub places: Vec<Place>,
    /// Bytes of pages.
    pub written: u64,
    /// Bytes of the file, preallocation included.
    pub on_disk: u64,
}

impl Segment {
    /// Number behind its last page.
    pub(super) fn end_page(&self) -> u64 {
        self.first_page + self.places.len() as u64
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

/// The segments of a page file, oldest first; shared by the writer and all readers.
#[derive(Clone)]
pub(super) struct Index(Arc<Mutex<Vec<Segment>>>);

impl Index {
    pub(super) fn new(segments: Vec<Segment>) -> Index {
        Index(Arc::new(Mutex::new(segments)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Segment>> {
        self.0.lock().expect("no panic while the index is locked")
    }

    fn find(&self, number: u64, page_size: u64) -> Option<Target> {
        let segments = self.lock();
        let at = segments.partition_point(|segment| segment.first_page <= number).checked_sub(1)?;
        let segment = &segments[at];
        let place = segment.places.get(usize::try_from(number - segment.first_page).ok()?)?;
        Some(Target {
            file: segment.file.clone(),
            path: segment.path.clone(),
            segment: segment.id,
            position: u64::from(place.slot) * page_size,
            length: place.length as usize,
        })
    }
}

/// Where one page is to be read. Keeps the file readable, dropped or not.
struct Target {
    file: Arc<dyn File>,
    path: PathBuf,
    segment: u128,
    position: u64,
    /// Bytes of payload.
    length: usize,
}

/// Reads pages, from any task; cheap to clone.
#[derive(Clone)]
pub struct PageReader {
    pub(super) index: Index,
    pub(super) dir: PathBuf,
    pub(super) page_size: u64,
}

impl PageReader {
    /// Reads and verifies one page. A page that was dropped meanwhile is
    /// [`Error::NoSuchPage`]; a damaged one is [`Error::Rot`].
    pub async fn read(&self, number: PageNumber) -> Result<Page, Error> {
        let Some(target) = self.index.find(number.0, self.page_size) else {
            return Err(Error::NoSuchPage { path: self.dir.clone(), number });
        };
        let Target { file, path, segment, position, length } = target;
        let bytes = match file.read_at(position, HEADER + length).await {
            Ok(bytes) => bytes,
            Err(source) => return Err(Error::Io { path, source }),
        };
        let header = match Header::check(&bytes, segment, position) {
            Ok(header) if header.number == number.0 && header.length as usize == length => header,
            Ok(_) => return Err(Error::Rot { path, position, what: "another page stands here" }),
            Err(fault) => {
                reached!("rot read");
                return Err(refusal(fault, &path, position));
            }
        };
        Ok(page(&header, &bytes))
    }
}

/// The page that `bytes` (header first) hold; shares their buffer.
pub(super) fn page(header: &Header, bytes: &Bytes) -> Page {
    let payload = bytes.slice(HEADER..HEADER + header.length as usize);
    Page { number: PageNumber(header.number), kind: header.kind, payload }
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
