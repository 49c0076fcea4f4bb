//! The page file: the one writer.
//!
//! Owns the batch, the current segment and the spare, and what every operation
//! promises. How bytes reach the disk, and in which order, is in `writing`.

use super::copying::{Copied, Copy, Made, Unlisted};
use super::manifest::{Extent, Manifest};
use super::segment::{Index, Segment};
use super::writing::make;
use super::{CommitNumber, Error, Label, Page, PageNumber, PageReader, WRITES_MAX};
use super::{header::footprint, manifest};
use crate::env::{Disk, File, Io, Rng};
use crate::reached;
use bytes::Bytes;
use std::{collections::VecDeque, path::PathBuf, sync::Arc};

/// Bytes of a replacement written between two syncs: nothing else is going on.
const REPLACE_SYNC_BYTES: u64 = 8 << 20;

/// A page that waits for its commit.
pub(super) struct Waiting {
    pub number: u64,
    pub kind: u8,
    pub label: Label,
    pub payload: Bytes,
}

/// The segment that is being written, or will be.
pub(super) struct Current {
    pub id: u128,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    /// Where the next commit goes, and the bytes preallocated.
    pub at: u64,
    pub size: u64,
    /// Pages in it, those without a number left out.
    pub pages: usize,
    /// Its last page; nothing is written behind it.
    pub directory: Option<manifest::Directory>,
}

/// The one writer. Pages appended since the last commit are in memory only.
pub struct PageFile {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) page_size: u64,
    pub(super) segment_size: u64,
    pub(super) rng: Rng,
    pub(super) index: Index,
    /// As on disk, but for the end of a last segment that was cut at open.
    /// Lists the segments of the index, in the same order.
    pub(super) manifest: Manifest,
    /// `None` after an open: writing goes on in a fresh segment (I5).
    pub(super) current: Option<Current>,
    /// Made in advance and listed nowhere.
    pub(super) spare: Option<Current>,
    /// The segment that is longer than it says, and what it says: the rest
    /// makes room for a manifest when none is left.
    pub(super) cushion: Option<(u128, Arc<dyn File>, u64)>,
    pub(super) batch: Vec<Waiting>,
    pub(super) next_page: u64,
    pub(super) next_commit: u64,
    /// Last commit with pages (marks left out).
    pub(super) last_paged: u64,
    /// Highest commit known to be synced.
    pub(super) synced: u64,
    /// Highest commit that a written page or the manifest names as synced ...
    pub(super) named: u64,
    /// ... and that a synced one names.
    pub(super) marked: u64,
    /// Writes submitted and not seen to end yet, all to the current segment.
    pub(super) writes: VecDeque<Io<()>>,
    /// Files to remove and to shorten once the next manifest stands.
    pub(super) doomed: Vec<PathBuf>,
    pub(super) untrimmed: Vec<(u128, Arc<dyn File>, u64)>,
    /// Set during every step whose failure leaves the disk in doubt.
    pub(super) poisoned: bool,
}

/// A segment made in advance, for [`PageFile::keep_reserve`]. Its file goes when this is dropped.
pub struct Reserve {
    spare: Current,
    unlisted: Unlisted,
}

impl PageFile {
    pub fn reader(&self) -> PageReader {
        PageReader { index: self.index.clone(), dir: self.dir.clone(), page_size: self.page_size }
    }

    /// Adds a page to the batch; the number is known at once, the page can be
    /// read through a [`PageReader`] only after `commit`.
    pub fn append(&mut self, kind: u8, label: Label, payload: Bytes) -> PageNumber {
        assert!(u32::try_from(payload.len()).is_ok(), "a page holds less than 4 GiB");
        let number = self.next_number();
        self.batch.push(Waiting { number: number.0, kind, label, payload });
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
        let (size, pages) = (self.batch_size(), self.batch.len());
        if !self.has_room(size, pages) {
            self.roll(size, pages).await?;
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

    /// Drops the batch: its numbers are given again.
    pub fn abandon(&mut self) {
        self.batch.clear();
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
        self.discard(&dropped).await;
        reached!("segment dropped");
        Ok(dropped.iter().map(|segment| segment.on_disk).sum())
    }

    /// Replaces everything by these pages, as one commit (theirs does not
    /// count), synced; the old segments go. Pages keep numbers, spans, kinds
    /// and labels, and numbering goes on behind the last. Atomic under crashes.
    /// [`PageReader`]s made before keep reading the old pages; ask
    /// [`PageFile::reader`] for a new one. A batch that waits belonged to what
    /// was replaced: it is dropped. Lack of space ([`Error::is_no_space`])
    /// leaves everything as it was, the batch included.
    pub async fn replace(&mut self, pages: Vec<Page>) -> Result<CommitNumber, Error> {
        self.check_sound()?;
        let mut next_page = 1;
        for page in &pages {
            let last = page.number.0.checked_add(u64::from(page.span));
            match last {
                Some(last) if page.number.0 >= next_page && last < super::NUMBERS_END => next_page = last + 1,
                _ => return Err(Error::Disorder { path: self.dir.clone(), number: page.number }),
            }
        }
        let commit = CommitNumber(self.next_commit);
        let made = match self.make_whole(pages, commit).await {
            Ok(made) => made,
            Err(error) => {
                self.poisoned = !error.is_no_space();
                return Err(error);
            }
        };
        // Writes to the old segments do not matter any more, but their failure does.
        self.poisoned = true;
        self.writes_end(0).await?;
        self.poisoned = false;
        let before = (self.next_page, self.next_commit);
        (self.next_page, self.next_commit) = (next_page, commit.0 + 1);
        let mut manifest = self.manifest.clone();
        manifest.segments = made.iter().map(|made| made.listed.clone()).collect();
        manifest.synced = commit.0;
        let segments = self.list(manifest, made).await.inspect_err(|_| {
            (self.next_page, self.next_commit) = before;
        })?;
        let old = std::mem::replace(&mut self.index, Index::new(segments));
        self.doomed.extend(old.lock().iter().map(|segment| segment.path.clone()));
        self.untrimmed.clear();
        self.batch.clear();
        let spare = self.spare.as_ref().map(|spare| spare.id);
        self.cushion.take_if(|(id, ..)| Some(*id) != spare);
        self.current = None;
        (self.synced, self.last_paged) = (commit.0, commit.0);
        self.clear_away().await;
        reached!("page file replaced");
        Ok(commit)
    }

    /// Makes segments of these pages, durable but not listed.
    async fn make_whole(&mut self, pages: Vec<Page>, commit: CommitNumber) -> Result<Vec<Made>, Error> {
        let size = |page: &Page| footprint(page.payload.len(), self.page_size);
        let mut left: u64 = pages.iter().map(size).sum();
        let mut made = Vec::new();
        let mut copy: Option<Copy> = None;
        for page in pages {
            let taken = footprint(page.payload.len(), self.page_size);
            if let Some(full) = copy.take_if(|copy| copy.size() + taken > self.segment_size) {
                made.extend(full.finish().await?.made);
            }
            let open = match &mut copy {
                Some(open) => open,
                None => {
                    let id = self.rng.next_u128();
                    let mut fresh = Copy::new(&self.disk, &self.dir, self.page_size, id, Vec::new());
                    fresh.sync_bytes = REPLACE_SYNC_BYTES;
                    fresh.make(left.min(self.segment_size).max(taken)).await?;
                    copy.insert(fresh)
                }
            };
            open.append(Page { commit, ..page }).await?;
            left -= taken;
        }
        if let Some(last) = copy {
            made.extend(last.finish().await?.made);
        }
        Ok(made)
    }

    /// Puts a manifest in place that lists segments just made.
    async fn list(&mut self, manifest: Manifest, mut made: Vec<Made>) -> Result<Vec<Segment>, Error> {
        // From here on they may be listed, whatever becomes of this call ...
        made.iter_mut().for_each(|made| made.unlisted.keep());
        let listed = self.put_manifest(manifest).await;
        if listed.is_err() && !self.poisoned {
            // ... unless the old manifest certainly stands.
            for made in &made {
                drop(self.disk.remove(&made.segment.path).await);
            }
        }
        listed.map(|()| made.into_iter().map(|made| made.segment).collect())
    }

    /// Seals the segment that is being written, if there is anything in it: then it can be copied.
    /// Lack of space ([`Error::is_no_space`]) leaves it open.
    pub async fn seal(&mut self) -> Result<(), Error> {
        self.check_sound()?;
        match &self.current {
            Some(current) if current.pages > 0 => self.roll(self.page_size, 1).await,
            _ => Ok(()),
        }
    }

    /// Makes the spare segment if there is none: the reserve that the next
    /// roll uses, so that making a segment is off the hot path. Lack of space
    /// ([`Error::is_no_space`]) harms nothing.
    pub async fn prepare(&mut self) -> Result<(), Error> {
        self.check_sound()?;
        let Some(making) = self.make_reserve() else { return Ok(()) };
        self.poisoned = true;
        let made = making.await;
        self.poisoned = made.as_ref().is_err_and(|error| !error.is_no_space());
        self.keep_reserve(made?);
        Ok(())
    }

    /// The same, to be awaited aside while the file is used; then
    /// [`PageFile::keep_reserve`] takes what was made. `None`: it stands.
    pub fn make_reserve(&mut self) -> Option<impl Future<Output = Result<Reserve, Error>> + Send + 'static> {
        if self.spare.is_some() {
            return None;
        }
        let manifest = Manifest::length(self.manifest.segments.len() + 64) as u64;
        let cushion = 2 * manifest.next_multiple_of(self.page_size) + 2 * self.page_size;
        let (disk, dir) = (self.disk.clone(), self.dir.clone());
        let (id, size) = (self.rng.next_u128(), self.segment_size);
        Some(async move {
            let spare = make(&disk, &dir, id, size, cushion).await?;
            let unlisted = Unlisted::new(&disk, &spare.path);
            Ok(Reserve { spare, unlisted })
        })
    }

    /// Takes what [`PageFile::make_reserve`] made; what is one too many goes.
    pub fn keep_reserve(&mut self, reserve: Reserve) {
        let Reserve { spare, mut unlisted } = reserve;
        if self.spare.is_none() && !self.poisoned {
            unlisted.keep();
            self.cushion = Some((spare.id, spare.file.clone(), spare.size));
            self.spare = Some(spare);
        }
    }

    /// Whether the spare segment stands.
    pub fn has_reserve(&self) -> bool {
        self.spare.is_some()
    }

    /// Begins to copy what survives of `victims` (adjacent sealed segments, in
    /// order) into a new one: pages that take `bytes` on disk; a copy may turn
    /// out larger. When no space is left it takes the spare.
    pub async fn begin_copy(&mut self, victims: &[u128], bytes: u64) -> Result<Copy, Error> {
        self.check_sound()?;
        assert!(!victims.is_empty(), "a copy replaces something");
        let id = self.rng.next_u128();
        let mut copy = Copy::new(&self.disk, &self.dir, self.page_size, id, victims.to_vec());
        if bytes == 0 {
            return Ok(copy);
        }
        match copy.make(bytes).await {
            Err(error) if error.is_no_space() => {
                let size = copy.size_for(bytes);
                let Some(spare) = self.spare.take_if(|spare| spare.size >= size) else { return Err(error) };
                reached!("copy made in the spare");
                self.cushion.take_if(|(id, ..)| *id == spare.id);
                copy.take(spare);
            }
            made => made?,
        }
        Ok(copy)
    }

    /// Puts a finished copy in the place of its victims, in one step under
    /// crashes; their files go once that stands, and readers that are at it
    /// read on. Returns the bytes that came free; `None` if the victims are
    /// gone meanwhile (the store was replaced), and with them the copy.
    pub async fn adopt(&mut self, copied: Copied) -> Result<Option<u64>, Error> {
        self.check_sound()?;
        let Copied { victims, made } = copied;
        let Some(at) = self.stand_at(&victims) else {
            reached!("copy of what is gone dropped");
            return Ok(None);
        };
        let range = at..at + victims.len();
        let last = &self.manifest.segments[range.end - 1];
        assert!(matches!(last.extent, Extent::Sealed(_)), "only sealed segments are copied");
        if let Some(made) = &made {
            let (first, end) = (made.listed.first_page, made.segment.end_page());
            let inside = self.manifest.segments[at].first_page <= first
                && PageNumber(end) <= self.end_of(range.end - 1);
            assert!(inside, "a copy stays in the range of what it replaces");
        }
        let mut manifest = self.manifest.clone();
        let listed = made.as_ref().map(|made| made.listed.clone());
        manifest.segments.splice(range.clone(), listed);
        manifest.synced = self.synced;
        let fresh = self.list(manifest, made.into_iter().collect()).await?;
        let size: u64 = fresh.iter().map(|segment| segment.on_disk).sum();
        let gone: Vec<Segment> = self.index.lock().splice(range, fresh).collect();
        assert!(
            gone.iter().map(|segment| segment.id).eq(victims),
            "manifest and index list the same segments"
        );
        let freed: u64 = gone.iter().map(|segment| segment.on_disk).sum();
        self.discard(&gone).await;
        reached!("copy adopted");
        Ok(Some(freed.saturating_sub(size)))
    }

    /// Removes the files of segments that no manifest lists any more.
    async fn discard(&mut self, gone: &[Segment]) {
        self.untrimmed.retain(|(id, ..)| !gone.iter().any(|segment| segment.id == *id));
        self.doomed.extend(gone.iter().map(|segment| segment.path.clone()));
        self.clear_away().await;
    }

    /// After an idle moment or at a clean stop: makes sure that something
    /// durable names the last commit as synced, so that recovery can tell rot
    /// from a tear (I6). Costs nothing when that is so already.
    pub async fn mark_synced(&mut self) -> Result<(), Error> {
        self.sync().await?;
        if self.marked >= self.last_paged {
            return Ok(());
        }
        if !self.has_room(self.page_size, 0) {
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

    /// Bytes on disk, preallocation and the spare included.
    pub fn size_on_disk(&self) -> u64 {
        let spare = self.spare.as_ref().map_or(0, |spare| spare.size);
        spare + self.index.lock().iter().map(|segment| segment.on_disk).sum::<u64>()
    }

    /// Bytes of pages written so far in the segments that are there.
    pub fn size_written(&self) -> u64 {
        self.index.lock().iter().map(|segment| segment.written).sum()
    }
}
