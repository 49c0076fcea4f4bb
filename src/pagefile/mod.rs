//! Append-only pages: framing, checksums, commits, recovery, reclaiming.
//!
//! **Never** knows what a page means. The raft log and the store are both page
//! files: one format, one recovery, one set of crash tests.
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
//! - **Poisoned.** After a failed write or sync (or one whose future was
//!   dropped half-way) every later call is [`Error::Poisoned`]; nothing is
//!   tried again.
//! - **Space.** Segments are preallocated: lack of space shows when one is
//!   made (an [`Error::Io`] after which the file is still good), never at sync.
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
//! the next multiple. A commit lies in one segment.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `QrtmPage` |
//! | 8..12 | format version: 1 |
//! | 12..16 | payload length in bytes |
//! | 16..24 | incompatible features, one bit each: none yet |
//! | 24..40 | segment id |
//! | 40..48 | position: bytes from the start of the segment |
//! | 48..56 | page number, from 1, by one; 0 in an internal page |
//! | 56..64 | commit number, from 1, by one |
//! | 64..72 | highest commit known to be synced when this one was written |
//! | 72 | kind: the owner's business; 0 in an internal page |
//! | 73 | flags: 1 = last page of its commit; 2 = internal (a mark of a sync) |
//! | 74..76 | zero |
//! | 76..80 | CRC32C over bytes 0..76 and the payload |
//! | 80.. | payload |
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
//! | 56.. | 40 bytes for each segment: id (16), first page number (8), first commit number (8), extent (8) |
//! | last 4 | CRC32C over everything before |
//!
//! The extent of a sealed segment is the number of its bytes that count: all
//! of them are synced, and what may follow is void. The last segment alone may
//! be open: the highest bit of its extent is set, and the rest is the number of
//! bytes that were preallocated, durably, before it was listed.
//!
//! In every later version the magics, the version, the features, the two
//! lengths and the checksums keep their places, so that a release which does
//! not know a version can tell it from damage.

mod header;
mod manifest;
mod recovery;
mod segment;
mod writing;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
pub(crate) mod test_disk;
#[cfg(test)]
mod tests;

use crate::env::{Disk, File, Io, Rng, disk::Open};
use crate::reached;
use bytes::Bytes;
use header::{HEADER, Header};
use manifest::{Extent, Listed, Manifest};
use recovery::Whole;
use segment::{Index, Segment};
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use segment::PageReader;
use writing::{lay, place, take_stock};

const FORMAT_VERSION: u32 = 1;
/// Incompatible features that this release knows: none yet.
const FEATURES_KNOWN: u64 = 0;
/// Writes under way before `commit` waits for the oldest.
const WRITES_MAX: usize = 8;
const PAGE_SIZE_MAX: u32 = 65536;

const fn page_size_fits(page_size: u32) -> bool {
    page_size.is_power_of_two() && page_size >= 512 && page_size <= PAGE_SIZE_MAX
}

/// A page's number in its page file: counted from 1, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageNumber(pub u64);

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

/// A page as it was read. The payload may share a larger read buffer: copy
/// what is kept for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub number: PageNumber,
    pub kind: u8,
    pub payload: Bytes,
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
}

impl Error {
    /// No space was left to make a segment: the page file is still good, and
    /// the batch still waits for its commit.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::Io { source, .. } if manifest::out_of_space(source))
    }
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

/// A page that waits for its commit.
struct Waiting {
    number: u64,
    kind: u8,
    payload: Bytes,
}

/// The segment that is being written.
struct Current {
    id: u128,
    path: PathBuf,
    file: Arc<dyn File>,
    /// Where the next commit goes, and the bytes preallocated.
    at: u64,
    size: u64,
}

/// The one writer. Pages appended since the last commit are in memory only.
pub struct PageFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    page_size: u64,
    segment_size: u64,
    rng: Rng,
    index: Index,
    /// As on disk, but for the end of a last segment that was cut at open.
    manifest: Manifest,
    /// `None` after an open: writing goes on in a fresh segment (I5).
    current: Option<Current>,
    batch: Vec<Waiting>,
    next_page: u64,
    next_commit: u64,
    /// Last commit with pages (marks left out).
    last_paged: u64,
    /// Highest commit known to be synced.
    synced: u64,
    /// Highest commit that a written page or the manifest names as synced ...
    named: u64,
    /// ... and that a synced one names.
    marked: u64,
    /// Writes submitted and not seen to end yet, all to the current segment.
    writes: VecDeque<Io<()>>,
    /// Files to remove and to shorten once the next manifest stands.
    doomed: Vec<PathBuf>,
    untrimmed: Vec<(u128, Arc<dyn File>, u64)>,
    /// Set during every step whose failure leaves the disk in doubt.
    poisoned: bool,
}

/// A failure with the path it befell.
fn at_path(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::Io { path: path.to_owned(), source }
}

impl PageFile {
    /// Opens (or makes) the page file in directory `dir`: recovers as I6 says
    /// and calls `visit(page, commit, last page of that commit)` for every page
    /// of every complete commit, oldest first. What it returns is durable.
    pub async fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: Options,
        rng: Rng,
        mut visit: impl FnMut(Page, CommitNumber, bool) -> Result<(), Error> + Send,
    ) -> Result<(PageFile, Opened), Error> {
        assert!(page_size_fits(options.page_size), "the page size is a power of two from 512 to 65536");
        let manifest = take_stock(&*disk, &dir, options.page_size).await?;
        let page_size = u64::from(manifest.page_size);
        let mut file = PageFile {
            page_size,
            segment_size: options.segment_size.max(page_size).next_multiple_of(page_size),
            rng,
            index: Index::new(Vec::new()),
            current: None,
            batch: Vec::new(),
            next_page: manifest.next_page,
            next_commit: manifest.next_commit,
            last_paged: 0,
            synced: 0,
            named: 0,
            marked: 0,
            writes: VecDeque::new(),
            doomed: Vec::new(),
            untrimmed: Vec::new(),
            poisoned: false,
            manifest,
            disk,
            dir,
        };
        let mut opened = Opened::default();
        for at in 0..file.manifest.segments.len() {
            file.recover_segment(at, &mut opened, &mut visit).await?;
        }
        let last = file.next_commit - 1;
        if file.manifest.synced > last {
            let path = file.dir.join(manifest::NAME);
            return Err(Error::Rot { path, position: 0, what: "commits that were synced are missing" });
        }
        // Everything left is below a mark, or was just written again and synced.
        // That mark may be a killed process's page that is readable and not
        // durable: only the manifest's counts as a durable one.
        (file.synced, file.named, file.last_paged) = (last, last, last);
        file.marked = file.manifest.synced;
        opened.commit = CommitNumber(last);
        Ok((file, opened))
    }

    /// Walks one listed segment and takes over what it holds.
    async fn recover_segment(
        &mut self,
        at: usize,
        opened: &mut Opened,
        visit: &mut (dyn FnMut(Page, CommitNumber, bool) -> Result<(), Error> + Send),
    ) -> Result<(), Error> {
        let listed = self.manifest.segments[at].clone();
        let path = self.dir.join(segment::file_name(listed.id));
        let rot = |what| Err(Error::Rot { path: path.clone(), position: 0, what });
        let follows = listed.first_page == self.next_page && listed.first_commit == self.next_commit;
        if at > 0 && !follows {
            return rot("the segment does not follow the one before");
        }
        let file = match self.disk.open(&path, Open::Existing).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return rot("the segment is missing"),
            Err(error) => return Err(at_path(&path)(error)),
        };
        let synced = self.manifest.synced;
        let mut walked = recovery::walk(&file, &path, &listed, self.page_size, synced, visit).await?;
        opened.torn_bytes += walked.torn_bytes;
        if walked.torn_bytes > 0 {
            reached!("torn tail cut");
        }
        // The tail above the mark survived, but nothing says it is durable.
        let kept = walked.commits.partition_point(|commit| commit.number <= walked.synced);
        let tail = walked.commits.split_off(kept);
        let mut tail_pages = 0;
        if let Some(first) = tail.first() {
            walked.end = first.start;
            walked.last_commit = first.number - 1;
            tail_pages = walked.places.split_off(first.pages_before).len();
        }
        self.next_page = listed.first_page + walked.places.len() as u64;
        self.next_commit = walked.last_commit + 1;
        if walked.end == 0 {
            self.doomed.push(path.clone());
            self.manifest.segments.remove(at);
        } else {
            self.manifest.segments[at].extent = Extent::Sealed(walked.end);
            let on_disk = file.length().await.map_err(at_path(&path))?;
            if on_disk > walked.end {
                self.untrimmed.push((listed.id, file.clone(), walked.end));
            }
            self.index.lock().push(Segment {
                id: listed.id,
                path: path.clone(),
                file: file.clone(),
                first_page: listed.first_page,
                places: walked.places,
                written: walked.end,
                on_disk,
            });
        }
        if tail_pages > 0 {
            // A tail of marks alone may go: their word was heeded.
            opened.rewritten_commits = tail.iter().filter(|commit| !commit.internal).count() as u64;
            reached!("tail rewritten");
            self.rewrite(&file, &path, listed.id, &tail, walked.synced).await?;
        }
        Ok(())
    }

    /// Writes commits that survived above the mark into a fresh segment and
    /// syncs them there.
    async fn rewrite(
        &mut self,
        file: &Arc<dyn File>,
        path: &Path,
        id: u128,
        tail: &[Whole],
        synced: u64,
    ) -> Result<(), Error> {
        let size = tail.iter().map(|commit| commit.end - commit.start).sum();
        let mut fresh = self.make_segment(size).await?;
        let (first_page, first_commit) = (self.next_page, self.next_commit);
        let mut places = Vec::new();
        for commit in tail {
            let length = (commit.end - commit.start) as usize;
            let bytes = file.read_at(commit.start, length).await.map_err(at_path(path))?;
            let mut buffers = Vec::new();
            let mut at = 0;
            while at < bytes.len() {
                let position = commit.start + at as u64;
                let rest = bytes.slice(at..);
                let old = Header::check(&rest, id, position)
                    .map_err(|fault| segment::refusal(fault, path, position))?;
                let payload = rest.slice(HEADER..HEADER + old.length as usize);
                let header = Header { segment: fresh.id, position: fresh.at, synced, ..old };
                if !header.internal {
                    places.push(place(&header, self.page_size));
                    self.next_page += 1;
                }
                let header = Bytes::copy_from_slice(&header.encode(&payload));
                let taken = lay(&mut buffers, header, payload, self.page_size);
                at += taken as usize;
                fresh.at += taken;
            }
            let start = fresh.at - length as u64;
            fresh.file.append(start, buffers).await.map_err(at_path(&fresh.path))?;
            self.next_commit = commit.number + 1;
        }
        fresh.file.sync_data().await.map_err(at_path(&fresh.path))?;
        let mut manifest = self.manifest.clone();
        let extent = Extent::Open(fresh.size);
        manifest.segments.push(Listed { id: fresh.id, first_page, first_commit, extent });
        manifest.synced = self.next_commit - 1;
        self.take_current(fresh, first_page, places);
        self.put_manifest(manifest).await
    }

    pub fn reader(&self) -> PageReader {
        PageReader { index: self.index.clone(), dir: self.dir.clone(), page_size: self.page_size }
    }

    /// Adds a page to the batch; the number is known at once, the page can be
    /// read through a [`PageReader`] only after `commit`.
    pub fn append(&mut self, kind: u8, payload: Bytes) -> PageNumber {
        assert!(u32::try_from(payload.len()).is_ok(), "a page holds less than 4 GiB");
        let number = self.next_number();
        self.batch.push(Waiting { number: number.0, kind, payload });
        number
    }

    /// The number that the next [`PageFile::append`] will give. Internal pages
    /// (marks of syncs) take no number.
    pub fn next_number(&self) -> PageNumber {
        PageNumber(self.next_page + self.batch.len() as u64)
    }

    /// Writes the batch (at least one page) as one commit, seen whole or not at
    /// all after a crash. Not durable yet. Returns once the write is submitted;
    /// the next `commit` or `sync` tells whether it failed. When no space is
    /// left for a segment ([`Error::is_no_space`]) the batch stays.
    pub async fn commit(&mut self) -> Result<CommitNumber, Error> {
        self.check_sound()?;
        assert!(!self.batch.is_empty(), "a commit holds at least one page");
        let size = self.batch_size();
        if !self.has_room(size) {
            self.roll(size).await?;
        }
        if self.writes.len() >= WRITES_MAX {
            self.poisoned = true;
            self.writes_end(WRITES_MAX - 1).await?;
            self.poisoned = false;
        }
        let commit = self.write_batch();
        assert!(self.batch.is_empty() && commit.0 + 1 == self.next_commit, "the commit took the whole batch");
        Ok(commit)
    }

    /// Makes every commit so far durable and returns the highest.
    /// After a failure the file is poisoned for good.
    pub async fn sync(&mut self) -> Result<CommitNumber, Error> {
        self.check_sound()?;
        let last = self.next_commit - 1;
        assert!(self.synced <= last, "only commits are synced");
        if self.synced < last {
            self.poisoned = true;
            self.sync_current().await?;
            self.poisoned = false;
        }
        assert_eq!(self.synced, last, "every commit so far is synced");
        Ok(CommitNumber(last))
    }

    /// Bytes that [`PageFile::drop_before`] would give back.
    pub fn droppable(&self, keep: PageNumber) -> u64 {
        let index = self.index.lock();
        index[..self.droppable_segments(&index, keep)].iter().map(|segment| segment.on_disk).sum()
    }

    /// Leading segments without a page at or above `keep`; never the current one.
    fn droppable_segments(&self, index: &[Segment], keep: PageNumber) -> usize {
        let current = self.current.as_ref().map(|current| current.id);
        index.iter().take_while(|segment| segment.end_page() <= keep.0 && Some(segment.id) != current).count()
    }

    /// Drops whole segments that hold only pages below `keep`; returns freed
    /// bytes. What must outlive them has to be synced before.
    pub async fn drop_before(&mut self, keep: PageNumber) -> Result<u64, Error> {
        self.check_sound()?;
        assert!(keep <= PageNumber(self.next_page), "pages that are not there yet cannot be dropped");
        let count = self.droppable_segments(&self.index.lock(), keep);
        if count == 0 {
            return Ok(0);
        }
        let mut manifest = self.manifest.clone();
        let gone: Vec<u128> = manifest.segments.drain(..count).map(|listed| listed.id).collect();
        manifest.synced = self.synced;
        self.put_manifest(manifest).await?;
        // Only now: had the manifest failed for lack of space, all would stand as it was.
        let dropped: Vec<Segment> = self.index.lock().drain(..count).collect();
        assert!(
            dropped.iter().map(|segment| segment.id).eq(gone),
            "manifest and index list the same segments"
        );
        self.untrimmed.retain(|(id, ..)| !dropped.iter().any(|segment| segment.id == *id));
        self.doomed.extend(dropped.iter().map(|segment| segment.path.clone()));
        self.clear_away().await;
        reached!("segment dropped");
        Ok(dropped.iter().map(|segment| segment.on_disk).sum())
    }

    /// Replaces everything: the batch in memory becomes the only commit, in
    /// a fresh segment, synced; the old segments go. Atomic under crashes.
    /// When no space is left the old state and the batch stay.
    pub async fn replace(&mut self) -> Result<CommitNumber, Error> {
        self.check_sound()?;
        assert!(!self.batch.is_empty(), "a commit holds at least one page");
        let fresh = self.make_segment(self.batch_size()).await?;
        self.poisoned = true;
        self.writes_end(0).await?;
        let old = std::mem::take(&mut *self.index.lock());
        self.doomed.extend(old.into_iter().map(|segment| segment.path));
        self.untrimmed.clear();
        let (id, first_page, first_commit) = (fresh.id, self.next_page, self.next_commit);
        let extent = Extent::Open(fresh.size);
        self.take_current(fresh, first_page, Vec::new());
        let commit = self.write_batch();
        self.sync_current().await?;
        let mut manifest = self.manifest.clone();
        manifest.segments = vec![Listed { id, first_page, first_commit, extent }];
        manifest.synced = commit.0;
        self.put_manifest(manifest).await?;
        self.poisoned = false;
        Ok(commit)
    }

    /// After an idle moment or at a clean stop: makes sure that something
    /// durable names the last commit as synced, so that recovery can tell rot
    /// from a tear (I6). Costs nothing when that is so already.
    pub async fn mark_synced(&mut self) -> Result<(), Error> {
        self.sync().await?;
        if self.marked >= self.last_paged {
            return Ok(());
        }
        if !self.has_room(self.page_size) {
            // The manifest is as good a place, and needs no fresh segment.
            let mut manifest = self.manifest.clone();
            manifest.synced = self.synced;
            return self.put_manifest(manifest).await;
        }
        self.poisoned = true;
        self.write_mark();
        self.sync_current().await?;
        self.poisoned = false;
        assert!(self.marked >= self.last_paged, "the mark covers every page");
        Ok(())
    }

    /// Bytes on disk, preallocation included.
    pub fn size_on_disk(&self) -> u64 {
        self.index.lock().iter().map(|segment| segment.on_disk).sum()
    }

    /// Bytes of pages written so far in the segments that are there.
    pub fn size_written(&self) -> u64 {
        self.index.lock().iter().map(|segment| segment.written).sum()
    }
}
