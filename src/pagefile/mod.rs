//! Append-only pages: framing, checksums, commits, recovery, reclaiming.
//!
//! **Never** knows what a page means.

use crate::env::{Disk, Rng};
use bytes::Bytes;
use std::{path::PathBuf, sync::Arc};

/// A page's number in its page file: counted from 1, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageNumber(pub u64);

/// A commit's number in its page file: counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitNumber(pub u64);

/// Sizes of a page file.
#[derive(Clone, Debug)]
pub struct Options {
    /// Alignment of pages: 4096 in production, 512 in exhaustive tests.
    pub page_size: u32,
    /// Bytes preallocated for each segment; a larger page gets a segment that fits it.
    pub segment_size: u64,
}

/// A page as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub number: PageNumber,
    pub kind: u8,
    pub payload: Bytes,
}

/// Why a page file cannot be used. (The owner of this room refines the list.)
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A page at or below the highest synced commit is bad (I6).
    #[error("{path}: page at byte {position} is damaged: {what}")]
    Rot { path: PathBuf, position: u64, what: &'static str },
    #[error("{path}: format version {version} is not known to this release (it knows {known})")]
    Version { path: PathBuf, version: u32, known: u32 },
    #[error("{path}: incompatible features {features:#x} are not known to this release")]
    Features { path: PathBuf, features: u64 },
    /// A sync failed earlier; nothing is tried again.
    #[error("{path}: an earlier sync failed; the file is not used any more")]
    Poisoned { path: PathBuf },
    #[error("{path}: no such page: {number:?}")]
    NoSuchPage { path: PathBuf, number: PageNumber },
}

/// The one writer. Pages appended since the last commit are in memory only.
pub struct PageFile {
    _todo: (),
}

/// Reads pages, from any task; cheap to clone.
#[derive(Clone)]
pub struct PageReader {
    _todo: (),
}

/// What `open` found, before the pages are handed out.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Highest commit recovered; 0 in a new file.
    pub commit: CommitNumber,
    /// Bytes of a torn tail that were cut off.
    pub torn_bytes: u64,
    /// Unsynced commits that survived and were rewritten and synced.
    pub rewritten_commits: u64,
}

impl PageFile {
    /// Opens (or makes) the page file in directory `dir`: recovers as I6 says
    /// and calls `visit(page, commit, last page of that commit)` for every page
    /// of every complete commit, oldest first.
    pub async fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: Options,
        rng: Rng,
        visit: impl FnMut(Page, CommitNumber, bool) -> Result<(), Error> + Send,
    ) -> Result<(PageFile, Opened), Error> {
        let _ = (disk, dir, options, rng, visit);
        todo!()
    }

    pub fn reader(&self) -> PageReader {
        todo!()
    }

    /// Adds a page to the batch; the number is known at once, the page can be
    /// read through a [`PageReader`] only after `commit`.
    pub fn append(&mut self, kind: u8, payload: Bytes) -> PageNumber {
        let _ = (kind, payload);
        todo!()
    }

    /// The number that the next [`PageFile::append`] will give. Internal pages
    /// (marks of syncs) take no number.
    pub fn next_number(&self) -> PageNumber {
        todo!()
    }

    /// Writes the batch (at least one page) as one commit, seen whole or not at
    /// all after a crash. Not durable yet.
    pub async fn commit(&mut self) -> Result<CommitNumber, Error> {
        todo!()
    }

    /// Makes every commit so far durable and returns the highest.
    /// After a failure the file is poisoned for good.
    pub async fn sync(&mut self) -> Result<CommitNumber, Error> {
        todo!()
    }

    /// Drops whole segments that hold only pages below `keep`; returns freed bytes.
    pub async fn drop_before(&mut self, keep: PageNumber) -> Result<u64, Error> {
        let _ = keep;
        todo!()
    }

    /// Replaces everything: the batch in memory becomes the only commit, in
    /// fresh segments, synced; the old segments go. Atomic under crashes.
    pub async fn replace(&mut self) -> Result<CommitNumber, Error> {
        todo!()
    }

    /// After an idle moment or at a clean stop: a commit that names the last
    /// sync, so that recovery can tell rot from a tear (I6). Synced.
    pub async fn mark_synced(&mut self) -> Result<(), Error> {
        todo!()
    }

    /// Bytes on disk, preallocation included.
    pub fn size_on_disk(&self) -> u64 {
        todo!()
    }

    /// Bytes of pages written so far in the segments that are there.
    pub fn size_written(&self) -> u64 {
        todo!()
    }
}

impl PageReader {
    /// Reads and verifies one page.
    pub async fn read(&self, number: PageNumber) -> Result<Page, Error> {
        let _ = number;
        todo!()
    }
}
