//! Append-only pages: framing, checksums, commits, recovery, reclaiming.
//!
//! **Never** knows what a page means. The raft log, the store and its
//! checkpoint are page files: one format, one recovery, one set of crash tests.
//!
//! # Invariants
//! - **I5, never overwritten.** Bytes once written are not written again,
//!   synced or not. After an open, writing goes on in a fresh segment. Nothing
//!   in a segment is local to the member that wrote it.
//! - **I6, torn is not rotten.** Each page names the highest commit that was
//!   known to be synced when it was written; so do mark pages (after an idle
//!   moment, at a clean stop) and the manifest. On open, a bad page at or below
//!   the highest such mark is [`Error::Rot`]; the first bad page above it cuts
//!   off everything after it; what survives above the mark is written again
//!   into a fresh segment and synced before it is handed out as durable.
//!   Rot in a tail that no mark covers cannot be told from a tear: that is the
//!   limit.
//! - **A page number is an address for ever.** Copying ([`PageFile::begin_copy`],
//!   [`PageFile::adopt`]) keeps numbers, or merges neighbours into one page that
//!   stands for the run of their numbers. Segments hold disjoint ranges of
//!   numbers, in order; numbers may be missing (what was there is dead).
//! - **Sealed is immutable.** A sealed segment ends with a directory of its
//!   pages, and the manifest holds the directory's digest. Opening reads
//!   directories, not pages; only a segment that a crash sealed (it has none) is
//!   walked. A page's checksum stands in the directory as well: what is read
//!   later is what was written, at the place that it was written to.
//! - **Poisoned.** After a failed write or sync (or one whose future was
//!   dropped half-way) every later call is [`Error::Poisoned`]; nothing is
//!   tried again. A [`Copy`] that fails spoils itself only.
//! - **Space.** Segments are preallocated, room for their directory included:
//!   lack of space shows when one is made (an [`Error::Io`] for which
//!   [`Error::is_no_space`] holds, and after which the file is still good),
//!   never at sync. [`PageFile::prepare`] makes a spare one in advance, with a
//!   cushion that makes room for the manifest that will list it. A spare that a
//!   crash leaves is void, like every segment that no manifest lists.
//!
//! # Assumptions about the medium
//! - A sync that succeeded made durable what was written to that file before.
//! - A crash keeps, loses or garbles each 512-byte sector of what was not
//!   synced, independently; it harms nothing that was synced and nothing that
//!   was not being written.
//! - A rename is seen whole or not at all; names made, changed or removed since
//!   the directory's last sync may each be there or not.
//! - A process kill loses nothing, and makes nothing durable.
//! - Preallocated bytes that were never written read as zeros.
//! - A file that was removed can be read through handles that are open.
//!
//! # Format, version 1
//! All numbers are little-endian. A page file is a directory:
//! - `manifest`: the segments, in order. Replaced as a whole: `manifest.new`
//!   is written and synced, renamed, and the directory synced.
//! - `<id>.seg`: a segment; the id is 128 random bits in 32 hexadecimal
//!   digits. One that the manifest does not list is void and is removed.
//!
//! ## Page
//! Pages begin at multiples of the page size (a power of two, 4096 in
//! production), follow each other without gaps, and are padded with zeros up to
//! the next multiple. Page and commit numbers are below 2^62.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `QrtmPage` |
//! | 8..12 | format version: 1 |
//! | 12..16 | payload length in bytes |
//! | 16..24 | incompatible features, one bit each: none yet |
//! | 24..40 | segment id |
//! | 40..48 | position: bytes from the start of the segment |
//! | 48..56 | page number, from 1; 0 in an internal page |
//! | 56..64 | commit number, from 1 |
//! | 64..72 | highest commit known to be synced when this one was written; 0 in a copy |
//! | 72 | kind: the owner's business; in an internal page 0 = mark of a sync, 1 = directory |
//! | 73 | flags: 1 = last page of its commit; 2 = internal; 4 = copy |
//! | 74..76 | span: the page stands for this many numbers more than its own; 0 but in copies |
//! | 76..80 | label: weight, the owner's business |
//! | 80..88 | label: first, the owner's business |
//! | 88..92 | zero |
//! | 92..96 | CRC32C over bytes 0..92 and the payload |
//! | 96.. | payload |
//!
//! There are two sorts of segments:
//! - **Written**: commits, each whole in the segment, numbered by one; pages
//!   numbered by one. Internal pages are commits of their own. When the segment
//!   is full, its directory is its last page.
//! - **Copied** (every page but the directory has the flag): made by copying, or
//!   by a replacement of everything, which may go through several. Numbers rise;
//!   commits never fall and need not be whole. Synced, directory included,
//!   before it is listed. (Its directory names the commit of the last page.)
//!
//! ## Directory
//! The payload of the internal page that ends a sealed segment:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | number of entries |
//! | 4..8 | zero |
//! | 8.. | 36 bytes for each page that has a number, in order: number (8), label's first (8), label's weight (4), position in units of the page size (4), payload length (4), CRC32C from its header (4), span (2), kind (1), zero (1) |
//!
//! ## Manifest
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `QrtmList` |
//! | 8..12 | format version: 1 |
//! | 12..16 | length of the whole manifest in bytes |
//! | 16..24 | incompatible features |
//! | 24..28 | page size in bytes |
//! | 28..32 | number of segments |
//! | 32..40 | highest commit known to be synced |
//! | 40..48 | next page number |
//! | 48..56 | next commit number |
//! | 56.. | 80 bytes for each segment: id (16), first page number (8), first commit number (8), extent (8), directory's position (8), SHA-256 of the directory's payload (32) |
//! | last 4 | CRC32C over everything before |
//!
//! The extent of a sealed segment is the number of its bytes that count (its
//! directory is the last of them): all of them are synced, and what may follow
//! is void. The last segment alone may be open: the highest bit of its extent is
//! set, and the rest is the number of bytes that were preallocated, durably,
//! before it was listed. Position and digest are zero where there is no
//! directory. If the last segment is open, the next numbers follow from what it
//! holds; otherwise they are the manifest's.
//!
//! In every later version the magics, the version, the features, the two
//! lengths and the checksums keep their places, so that a release which does
//! not know a version can tell it from damage.

mod copying;
mod directory;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod header;
mod manifest;
mod opening;
mod reading;
mod recovery;
mod segment;
mod writing;

#[cfg(test)]
mod copy_crash_tests;
#[cfg(test)]
mod copy_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
pub(crate) mod test_disk;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use std::{
    io,
    path::{Path, PathBuf},
};

pub use copying::{Copied, Copy};
use file::Current;
pub use file::{PageFile, Reserve};
pub use reading::{PageReader, Scan};

const FORMAT_VERSION: u32 = 1;
/// Incompatible features that this release knows: none yet.
const FEATURES_KNOWN: u64 = 0;
/// Writes under way before `commit` waits for the oldest.
const WRITES_MAX: usize = 8;
const PAGE_SIZE_MAX: u32 = 65536;
/// Page and commit numbers lie below: sums of them do not overflow.
const NUMBERS_END: u64 = 1 << 62;

const fn page_size_fits(page_size: u32) -> bool {
    page_size.is_power_of_two() && page_size >= 512 && page_size <= PAGE_SIZE_MAX
}

/// A page's number in its page file: counted from 1, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageNumber(pub u64);

impl PageNumber {
    /// The last number that a page with this number and span stands for.
    pub fn last(self, span: u16) -> PageNumber {
        PageNumber(self.0 + u64::from(span))
    }

    /// The number behind all that such a page stands for.
    pub fn behind(self, span: u16) -> PageNumber {
        PageNumber(self.last(span).0 + 1)
    }
}

/// A commit's number in its page file: counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitNumber(pub u64);

/// Sizes of a page file.
#[derive(Clone, Debug)]
pub struct Options {
    /// Alignment of pages: 4096 in production, 512 in exhaustive tests. Counts
    /// for a new page file; an old one keeps its own.
    pub page_size: u32,
    /// Bytes preallocated for each segment; a larger commit gets a segment that fits it.
    pub segment_size: u64,
}

/// What the owner wants to know of a page without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Label {
    /// Should not fall from page to page: [`PageReader::page_at`] looks for it.
    pub first: u64,
    pub weight: u32,
}

/// A page as it was read. The payload may share a larger read buffer: copy
/// what is kept for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub number: PageNumber,
    /// It stands for the numbers `number..=number + span`; 0 unless copying merged pages.
    pub span: u16,
    pub kind: u8,
    pub commit: CommitNumber,
    pub label: Label,
    pub payload: Bytes,
}

/// What is known of a page without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFacts {
    pub number: PageNumber,
    pub span: u16,
    pub kind: u8,
    pub label: Label,
    /// Bytes of payload.
    pub length: u32,
    /// Bytes on disk, header and padding included.
    pub footprint: u32,
}

/// What is known of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    pub id: u128,
    pub first: PageNumber,
    /// Number behind its last page.
    pub end: PageNumber,
    /// Bytes of pages, the page file's own included.
    pub written: u64,
    /// Bytes of the file, preallocation included.
    pub on_disk: u64,
    /// Nothing is added to it any more.
    pub sealed: bool,
    /// SHA-256 of its directory; `None` while it is written, or if a crash sealed it.
    pub digest: Option<[u8; 32]>,
}

/// Why a page file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// A page at or below the highest synced commit is bad (I6).
    #[error("{path}: page at byte {position} is damaged: {what}")]
    Rot { path: PathBuf, position: u64, what: &'static str },
    #[error("{path}: format version {version} is not known to this release (it knows {known})")]
    Version { path: PathBuf, version: u32, known: u32 },
    #[error("{path}: incompatible features {features:#x} are not known to this release")]
    Features { path: PathBuf, features: u64 },
    /// A write or sync failed earlier; nothing is tried again.
    #[error("{path}: an earlier sync failed; the file is not used any more")]
    Poisoned { path: PathBuf },
    #[error("{path}: no such page: {number:?}")]
    NoSuchPage { path: PathBuf, number: PageNumber },
    /// Pages handed in (a peer's) do not come in order.
    #[error("{path}: pages are out of order at {number:?}")]
    Disorder { path: PathBuf, number: PageNumber },
}

impl Error {
    /// No space was left to make a segment: the page file is still good, and
    /// the batch still waits for its commit.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::Io { source, .. } if manifest::out_of_space(source))
    }
}

/// What `open` found.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Highest commit recovered; 0 in a new file.
    pub commit: CommitNumber,
    /// Bytes of a torn tail that were cut off.
    pub torn_bytes: u64,
    /// Unsynced commits that survived and were rewritten and synced.
    pub rewritten_commits: u64,
    /// The last page; `None` if there is none.
    pub last_page: Option<PageNumber>,
}

/// As [`at_path`], where something was written already: lack of space is no
/// longer harmless and must not pass for that.
fn late(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |source| {
        let source = if manifest::out_of_space(&source) { io::Error::other(source) } else { source };
        Error::Io { path: path.to_owned(), source }
    }
}

/// A failure with the path it befell.
fn at_path(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::Io { path: path.to_owned(), source }
}
