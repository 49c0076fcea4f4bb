//! The steps below commit, sync and replace: buffers of a batch, making a
//! segment, putting a manifest in place.
//!
//! Owns the order of those steps, which is what crashes test. Promises that a
//! segment is durable, name and length, before a manifest lists it, and that
//! nothing is removed or shortened before the manifest that says so stands.

use super::directory::{self, Entry};
use super::header::{self, HEADER, Header, footprint};
use super::manifest::{Directory, Extent, Listed, Manifest};
use super::segment::{self, Segment};
use super::{CommitNumber, Current, Error, PAGE_SIZE_MAX, PageFile, PageNumber, at_path, late};
use crate::env::{Disk, disk::Open};
use crate::reached;
use bytes::{Bytes, BytesMut};
use std::{path::Path, sync::Arc};

static ZEROS: [u8; PAGE_SIZE_MAX as usize] = [0; PAGE_SIZE_MAX as usize];

/// Puts one page into `buffers`, padding included; returns the bytes it takes.
pub(super) fn lay(buffers: &mut Vec<Bytes>, header: Bytes, payload: Bytes, page_size: u64) -> u64 {
    let taken = footprint(payload.len(), page_size);
    let padding = (taken - (HEADER + payload.len()) as u64) as usize;
    buffers.push(header);
    if !payload.is_empty() {
        buffers.push(payload);
    }
    if padding > 0 {
        buffers.push(Bytes::from_static(&ZEROS[..padding]));
    }
    taken
}

/// Makes the file of a segment of `size` bytes and so many beyond, and makes
/// sure of name and length. Lack of space leaves nothing behind.
pub(super) async fn make(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    id: u128,
    size: u64,
    cushion: u64,
) -> Result<Current, Error> {
    let path = dir.join(segment::file_name(id));
    let file = disk.open(&path, Open::New).await.map_err(at_path(&path))?;
    if let Err(error) = file.preallocate(size + cushion).await {
        // Nothing is lost yet: no page is in it, and nothing lists it.
        drop(disk.remove(&path).await);
        return Err(at_path(&path)(error));
    }
    file.sync_data().await.map_err(late(&path))?;
    disk.sync_dir(dir).await.map_err(late(dir))?;
    Ok(Current { id, path, file, at: 0, size, pages: 0, directory: None })
}

impl PageFile {
    pub(super) fn check_sound(&self) -> Result<(), Error> {
        if self.poisoned { Err(Error::Poisoned { path: self.dir.clone() }) } else { Ok(()) }
    }

    /// Bytes that the batch takes on disk.
    pub(super) fn batch_size(&self) -> u64 {
        self.batch.iter().map(|page| footprint(page.payload.len(), self.page_size)).sum()
    }

    /// Whether the current segment has room for so many more bytes of so many
    /// pages, and for its directory.
    pub(super) fn has_room(&self, size: u64, pages: usize) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let directory = directory::room(current.pages + pages, self.page_size);
            current.directory.is_none() && current.size - current.at >= size + directory
        })
    }

    /// Makes a segment with room for pages that take `size` bytes and their
    /// directory, durable but not listed.
    pub(super) async fn make_segment(&mut self, size: u64, pages: usize) -> Result<Current, Error> {
        let size = self.segment_size.max(size + directory::room(pages, self.page_size));
        assert!(size.is_multiple_of(self.page_size), "segments hold whole pages");
        assert!(size / self.page_size < 1 << 32, "a segment has less than 2^32 slots");
        let id = self.rng.next_u128();
        self.poisoned = true;
        let made = make(&self.disk, &self.dir, id, size, 0).await;
        self.poisoned = made.as_ref().is_err_and(|error| !error.is_no_space());
        made
    }

    /// Makes `fresh` the segment that is written from now on, with the pages it holds.
    pub(super) fn take_current(&mut self, fresh: Current, entries: Vec<Entry>) {
        assert!(self.writes.is_empty(), "writes under way belong to the current segment");
        assert_eq!(fresh.pages, entries.len(), "every page has an entry");
        self.index.lock().push(Segment {
            id: fresh.id,
            path: fresh.path.clone(),
            file: fresh.file.clone(),
            entries: Arc::new(entries),
            written: fresh.at,
            on_disk: fresh.size,
            sealed: false,
            directory: None,
        });
        self.current = Some(fresh);
    }

    /// Goes on in a fresh segment with room for so many bytes of so many pages.
    /// What the old one holds gets its directory, is synced and sealed first.
    pub(super) async fn roll(&mut self, size: u64, pages: usize) -> Result<(), Error> {
        let needed = size + directory::room(pages, self.page_size);
        let spare = self.spare.take_if(|spare| spare.size >= needed);
        let was_spare = spare.is_some();
        let fresh = match spare {
            Some(spare) => spare,
            None => self.make_segment(size, pages).await?,
        };
        self.poisoned = true;
        if self.current.as_ref().is_some_and(|old| old.pages > 0 && old.directory.is_none()) {
            self.write_directory();
        }
        self.sync_current().await?;
        let mut manifest = self.manifest.clone();
        if let Some(old) = &self.current {
            let listed = manifest.segments.last_mut().expect("the current segment is listed");
            let open = Extent::Open(old.size);
            assert!(
                listed.id == old.id && listed.extent == open,
                "the current segment is the last, and open"
            );
            listed.extent = Extent::Sealed(old.at);
            listed.directory = old.directory;
            if old.pages == 0 {
                // It was made for pages that turned out too large for it.
                manifest.segments.pop();
            }
        }
        let (first_page, first_commit) = (self.next_page, self.next_commit);
        let extent = Extent::Open(fresh.size);
        manifest.segments.push(Listed { id: fresh.id, first_page, first_commit, extent, directory: None });
        manifest.synced = self.synced;
        self.poisoned = false;
        if let Err(error) = self.put_manifest(manifest).await {
            if !self.poisoned {
                if was_spare {
                    self.spare = Some(fresh);
                } else {
                    drop(self.disk.remove(&fresh.path).await);
                }
            }
            return Err(error);
        }
        if was_spare {
            reached!("segment rolled into the spare");
        }
        if let Some(old) = self.current.take() {
            self.retire(old);
        }
        self.take_current(fresh, Vec::new());
        self.clear_away().await;
        Ok(())
    }

    /// What was the current segment is sealed, by a manifest that stands; or
    /// gone, if it held no page.
    fn retire(&mut self, old: Current) {
        self.cushion.take_if(|(id, ..)| *id == old.id);
        let empty = {
            let mut index = self.index.lock();
            let segment = index.last_mut().expect("the current segment is the last");
            assert_eq!(segment.id, old.id, "the current segment is the last");
            (segment.sealed, segment.directory) = (true, old.directory);
            if old.pages == 0 { index.pop() } else { None }
        };
        match empty {
            Some(empty) => {
                reached!("segment without pages given up");
                self.doomed.push(empty.path);
            }
            None => {
                self.untrimmed.push((old.id, old.file, old.at));
                self.trim();
            }
        }
    }

    /// Puts `manifest` in place and then clears away what it made void.
    /// Poisons the file unless the failure was a harmless lack of space.
    pub(super) async fn put_manifest(&mut self, mut manifest: Manifest) -> Result<(), Error> {
        manifest.next_page = self.next_page;
        manifest.next_commit = self.next_commit;
        assert!(manifest.synced < manifest.next_commit, "only commits are synced");
        let sound = !self.poisoned;
        self.poisoned = true;
        let mut written = manifest.write(&*self.disk, &self.dir).await;
        if written.as_ref().is_err_and(|failed| failed.harmless)
            && let Some((_, file, size)) = self.cushion.take()
        {
            // What a spare segment holds in excess is kept for this.
            reached!("manifest written into the cushion");
            drop(file.truncate(size).await);
            written = manifest.write(&*self.disk, &self.dir).await;
        }
        if let Err(failed) = written {
            self.poisoned = !(sound && failed.harmless);
            return Err(failed.error);
        }
        self.named = self.named.max(manifest.synced);
        self.marked = self.marked.max(manifest.synced);
        self.manifest = manifest;
        self.trim();
        self.clear_away().await;
        self.poisoned = !sound;
        Ok(())
    }

    /// Removes files that the manifest in place does not list.
    pub(super) async fn clear_away(&mut self) {
        for path in std::mem::take(&mut self.doomed) {
            // A file that stays is void, and goes at the next open.
            drop(self.disk.remove(&path).await);
        }
    }

    /// Gives back the preallocated rest of sealed segments.
    fn trim(&mut self) {
        let mut index = self.index.lock();
        for (id, file, end) in self.untrimmed.drain(..) {
            // Not waited for: it only gives space back.
            drop(file.truncate(end));
            if let Some(segment) = index.iter_mut().find(|segment| segment.id == id) {
                segment.on_disk = end;
            }
        }
    }

    /// Waits until at most `left` writes are under way.
    pub(super) async fn writes_end(&mut self, left: usize) -> Result<(), Error> {
        while self.writes.len() > left {
            let write = self.writes.pop_front().expect("the length was checked");
            if let Err(error) = write.await {
                let path = self.current.as_ref().map_or(&self.dir, |current| &current.path);
                return Err(late(path)(error));
            }
        }
        Ok(())
    }

    /// Syncs the current segment; the caller poisons the file around it.
    pub(super) async fn sync_current(&mut self) -> Result<(), Error> {
        assert!(self.poisoned, "a sync whose future is dropped must leave the file poisoned");
        let (last, named) = (self.next_commit - 1, self.named);
        let Some(current) = &self.current else {
            assert_eq!(self.synced, last, "without a segment there is nothing to sync");
            return Ok(());
        };
        if self.synced == last {
            return Ok(());
        }
        // Submitted right behind the writes, which need not be waited for first.
        let (sync, path) = (current.file.sync_data(), current.path.clone());
        self.writes_end(0).await?;
        sync.await.map_err(late(&path))?;
        self.synced = last;
        self.marked = named;
        Ok(())
    }

    /// Submits the batch as one write to the current segment, which has room.
    pub(super) fn write_batch(&mut self) -> CommitNumber {
        let batch = std::mem::take(&mut self.batch);
        let current = self.current.as_mut().expect("the caller made room");
        assert!(current.directory.is_none(), "the directory is a segment's last page");
        let (commit, start) = (self.next_commit, current.at);
        let mut headers = BytesMut::with_capacity(batch.len() * HEADER);
        let mut buffers = Vec::with_capacity(batch.len() * 3);
        let mut entries = Vec::with_capacity(batch.len());
        let last = batch.last().map(|page| page.number);
        for page in batch {
            assert_eq!(page.number, self.next_page, "pages are numbered in order");
            let header = Header {
                segment: current.id,
                position: current.at,
                number: page.number,
                span: 0,
                commit,
                synced: self.synced,
                kind: page.kind,
                end: Some(page.number) == last,
                internal: false,
                copy: false,
                label: page.label,
                length: page.payload.len() as u32,
            };
            let bytes = header.encode(&page.payload);
            entries.push(Entry::new(&header, header::checksum(&bytes), self.page_size));
            headers.extend_from_slice(&bytes);
            current.at += lay(&mut buffers, headers.split().freeze(), page.payload, self.page_size);
            self.next_page += 1;
        }
        current.pages += entries.len();
        assert!(
            current.at + directory::room(current.pages, self.page_size) <= current.size,
            "the segment has room for the commit and its directory"
        );
        self.writes.push_back(current.file.append(start, buffers));
        let written = current.at;
        self.wrote(written, entries);
        self.last_paged = commit;
        CommitNumber(commit)
    }

    /// Submits a mark page: it names the last sync, and is a commit of its own.
    pub(super) fn write_mark(&mut self) {
        self.write_internal(header::MARK, Bytes::new());
    }

    /// Submits the current segment's directory, after which nothing is written to it.
    fn write_directory(&mut self) {
        let entries = {
            let index = self.index.lock();
            index.last().expect("the current segment is the last").entries.clone()
        };
        let payload = directory::encode(&entries);
        let digest = directory::digest(&payload);
        let position = self.write_internal(header::DIRECTORY, payload);
        let current = self.current.as_mut().expect("the caller has a segment");
        assert_eq!(current.pages, entries.len(), "the directory lists every page");
        current.directory = Some(Directory { position, digest });
    }

    /// Submits a page of the page file's own, as a commit; where it stands.
    fn write_internal(&mut self, kind: u8, payload: Bytes) -> u64 {
        let current = self.current.as_mut().expect("the caller made sure of room");
        assert!(current.directory.is_none(), "the directory is a segment's last page");
        let position = current.at;
        let header = Header {
            length: payload.len() as u32,
            ..Header::internal(kind, current.id, position, self.next_commit, self.synced)
        };
        let mut buffers = Vec::new();
        let bytes = Bytes::copy_from_slice(&header.encode(&payload));
        current.at += lay(&mut buffers, bytes, payload, self.page_size);
        assert!(current.at <= current.size, "the segment has room for it");
        self.writes.push_back(current.file.append(position, buffers));
        let written = current.at;
        self.wrote(written, Vec::new());
        position
    }

    /// A commit was submitted to the current segment.
    fn wrote(&mut self, written: u64, entries: Vec<Entry>) {
        let mut index = self.index.lock();
        let segment = index.last_mut().expect("the current segment is the last");
        assert!(
            self.current.as_ref().is_some_and(|current| current.id == segment.id),
            "the current segment is the last"
        );
        if !entries.is_empty() {
            Arc::make_mut(&mut segment.entries).extend(entries);
        }
        segment.written = written;
        drop(index);
        self.next_commit += 1;
        self.named = self.named.max(self.synced);
    }

    /// Position in the manifest of these segments, if they stand there side by side.
    pub(super) fn stand_at(&self, ids: &[u128]) -> Option<usize> {
        let segments = &self.manifest.segments;
        let at = segments.iter().position(|listed| Some(&listed.id) == ids.first())?;
        let there = segments.get(at..at + ids.len())?;
        there.iter().zip(ids).all(|(listed, id)| listed.id == *id).then_some(at)
    }

    /// Number behind the last page of the segment at this place of the index.
    pub(super) fn end_of(&self, at: usize) -> PageNumber {
        PageNumber(self.index.lock()[at].end_page())
    }
}
