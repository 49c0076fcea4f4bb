//! Reading: single pages, the list of pages, and scans.
//!
//! Owns the reading of pages from segments. Promises that what it hands out was
//! checked against number, checksum, segment and position, and that an adoption
//! or a drop in between takes nothing from a scan under way. Never writes.

use super::directory;
use super::header::{self, Fault, HEADER, Header, footprint};
use super::segment::{Index, Segment, Target, refusal};
use super::{Error, Page, PageFacts, PageNumber, SegmentFacts};
use crate::reached;
use bytes::Bytes;
use std::{collections::VecDeque, path::PathBuf};

/// Bytes that a scan reads at once; larger pages are read whole.
const SCAN_BYTES: u64 = 1 << 20;

/// Reads pages, from any task; cheap to clone.
#[derive(Clone)]
pub struct PageReader {
    pub(super) index: Index,
    pub(super) dir: PathBuf,
    pub(super) page_size: u64,
}

impl PageReader {
    /// Reads and verifies the page that covers `number`: after copying it may
    /// be one that stands for a run of numbers. One that was dropped meanwhile
    /// is [`Error::NoSuchPage`]; a damaged one is [`Error::Rot`].
    pub async fn read(&self, number: PageNumber) -> Result<Page, Error> {
        let mut target = self.target(number)?;
        loop {
            let failed = match fetch(&target).await {
                Err(failed @ Error::Io { .. }) => failed,
                done => return done,
            };
            // An adoption may have replaced the segment while it was read.
            let again = self.target(number)?;
            if again.segment == target.segment {
                return Err(failed);
            }
            target = again;
        }
    }

    fn target(&self, number: PageNumber) -> Result<Target, Error> {
        let found = self.index.find(number.0, self.page_size);
        found.ok_or_else(|| Error::NoSuchPage { path: self.dir.clone(), number })
    }

    /// Reads from the disk and checks, for a scrubber: the page that covers
    /// `number`, and behind the last page of a sealed segment its directory.
    /// [`Error::Rot`] names path and position.
    pub async fn verify(&self, number: PageNumber) -> Result<(), Error> {
        self.read(number).await?;
        match self.index.directory_behind(number.0) {
            Some((segment, at)) => directory(&segment, at, self.page_size).await.map(drop),
            None => Ok(()),
        }
    }

    /// Facts of at most `max` pages in order, beginning with the one that
    /// covers or follows `from`.
    pub fn pages(&self, from: PageNumber, max: usize) -> Vec<PageFacts> {
        self.index.pages(from.0, max, self.page_size)
    }

    /// The last page whose label's `first` is at most `first`. Means something
    /// only if labels never fall from page to page.
    pub fn page_at(&self, first: u64) -> Option<PageNumber> {
        self.index.page_at(first)
    }

    /// The last page that was committed.
    pub fn last_page(&self) -> Option<PageNumber> {
        self.index.last_page()
    }

    /// The segments that hold pages, in order.
    pub fn segments(&self) -> Vec<SegmentFacts> {
        self.index.facts()
    }

    /// Pages as they stand now, in order, beginning with the one that covers or
    /// follows `from`. Whatever is copied, dropped or replaced later, the scan
    /// goes on over the same pages (and keeps their files until it has passed them).
    pub fn scan(&self, from: PageNumber) -> Scan {
        let segments: VecDeque<Segment> =
            self.index.lock().iter().filter(|segment| segment.end_page() > from.0).cloned().collect();
        let at = segments.front().map_or(0, |segment| segment.at_or_behind(from.0));
        Scan { segments, at, page_size: self.page_size, piece: Bytes::new(), piece_at: 0 }
    }
}

/// A walk over pages in order.
pub struct Scan {
    /// What is left; the first is being read.
    segments: VecDeque<Segment>,
    /// Position of the next page in the first one's entries.
    at: usize,
    page_size: u64,
    /// Bytes read ahead, from this position of the first segment.
    piece: Bytes,
    piece_at: u64,
}

impl Scan {
    /// The next page; `None` at the end. The payload shares a large buffer:
    /// copy what is kept for long. After an error the same page is tried again.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        while self.segments.front().is_some_and(|segment| self.at >= segment.entries.len()) {
            self.segments.pop_front();
            (self.at, self.piece, self.piece_at) = (0, Bytes::new(), 0);
        }
        let Some(segment) = self.segments.front() else { return Ok(None) };
        let entry = segment.entries[self.at];
        let position = u64::from(entry.slot) * self.page_size;
        let length = HEADER as u64 + u64::from(entry.length);
        let held = self.piece_at + self.piece.len() as u64;
        if position < self.piece_at || position + length > held {
            let left = segment.written.saturating_sub(position);
            let wanted = footprint(entry.length as usize, self.page_size).max(SCAN_BYTES.min(left));
            let read = segment.file.read_at(position, wanted as usize).await;
            self.piece = read.map_err(|source| Error::Io { path: segment.path.clone(), source })?;
            self.piece_at = position;
        }
        let from = (position - self.piece_at) as usize;
        let bytes = self.piece.slice(from.min(self.piece.len())..);
        let header = match Header::check(&bytes, segment.id, position) {
            Ok(header) if entry.is(&header, header::checksum(&bytes)) => header,
            Ok(_) => return Err(refusal(Fault::Bad("another page stands here"), &segment.path, position)),
            Err(fault) => {
                reached!("rot read");
                // Read afresh if it is asked for again.
                let refused = refusal(fault, &segment.path, position);
                (self.piece, self.piece_at) = (Bytes::new(), 0);
                return Err(refused);
            }
        };
        self.at += 1;
        Ok(Some(page(&header, &bytes)))
    }
}

/// Reads and verifies one page.
async fn fetch(target: &Target) -> Result<Page, Error> {
    let Target { file, path, segment, position, entry } = target;
    let read = file.read_at(*position, HEADER + entry.length as usize).await;
    let bytes = read.map_err(|source| Error::Io { path: path.clone(), source })?;
    match Header::check(&bytes, *segment, *position) {
        Ok(header) if entry.is(&header, header::checksum(&bytes)) => Ok(page(&header, &bytes)),
        Ok(_) => Err(refusal(Fault::Bad("another page stands here"), path, *position)),
        Err(fault) => {
            reached!("rot read");
            Err(refusal(fault, path, *position))
        }
    }
}

/// The page that `bytes` (header first) hold; shares their buffer.
fn page(header: &Header, bytes: &Bytes) -> Page {
    Page {
        number: PageNumber(header.number),
        span: header.span,
        kind: header.kind,
        commit: super::CommitNumber(header.commit),
        label: header.label,
        payload: bytes.slice(HEADER..HEADER + header.length as usize),
    }
}

/// Reads and verifies a segment's directory; its commit and what it lists.
/// It is the last page of its segment (`written` bytes).
pub(super) async fn directory(
    segment: &Segment,
    at: super::manifest::Directory,
    page_size: u64,
) -> Result<(u64, Vec<directory::Entry>), Error> {
    let Segment { file, path, id, written, .. } = segment;
    let position = at.position;
    let rot = |what| {
        reached!("rot refused");
        Error::Rot { path: path.clone(), position, what }
    };
    let io = |source| Error::Io { path: path.clone(), source };
    let length = written.checked_sub(position).filter(|_| position.is_multiple_of(page_size));
    let Some(length) = length.filter(|length| *length < 1 << 30) else {
        return Err(rot("the directory's position is impossible"));
    };
    let bytes = file.read_at(position, length as usize).await.map_err(io)?;
    let header = Header::check(&bytes, *id, position).map_err(|fault| {
        reached!("rot refused");
        refusal(fault, path, position)
    })?;
    if !header.internal || header.kind != header::DIRECTORY {
        return Err(rot("another page stands here"));
    }
    if footprint(header.length as usize, page_size) != length {
        return Err(rot("the directory does not end its segment"));
    }
    let payload = &bytes[HEADER..HEADER + header.length as usize];
    if directory::digest(payload) != at.digest {
        return Err(rot("the directory is not the one that the manifest names"));
    }
    let entries = directory::decode(payload, page_size, position).map_err(rot)?;
    Ok((header.commit, entries))
}
