//! The steps below commit, sync and replace: buffers of a batch, making a
//! segment, putting a manifest in place.
//!
//! Owns the order of those steps, which is what crashes test. Promises that a
//! segment is durable, name and length, before a manifest lists it, and that
//! nothing is removed or shortened before the manifest that says so stands.

use super::header::{HEADER, Header, footprint};
use super::manifest::{self, Extent, Listed, Manifest};
use super::segment::{self, Place, Segment};
use super::{CommitNumber, Current, Error, PAGE_SIZE_MAX, PageFile, at_path};
use crate::env::{
    Disk,
    disk::{Name, Open},
};
use bytes::{Bytes, BytesMut};
use std::{io, path::Path};

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

pub(super) fn place(header: &Header, page_size: u64) -> Place {
    let slot = u32::try_from(header.position / page_size).expect("a segment has less than 2^32 slots");
    Place { slot, length: header.length }
}

/// Reads the manifest of `dir` (makes both when they are not there) and
/// removes what it does not list.
pub(super) async fn take_stock(disk: &dyn Disk, dir: &Path, page_size: u32) -> Result<Manifest, Error> {
    let names = match disk.list_dir(dir).await {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.make_dir(dir).await.map_err(at_path(dir))?;
            if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                disk.sync_dir(parent).await.map_err(at_path(parent))?;
            }
            Vec::new()
        }
        Err(error) => return Err(at_path(dir)(error)),
    };
    // What is seen may be a killed process's rename that is not durable yet:
    // nothing may be removed on its word before it is.
    disk.sync_dir(dir).await.map_err(at_path(dir))?;
    let files = || names.iter().filter(|name| !name.is_dir);
    if files().any(|name| name.name == manifest::NAME_NEW) {
        let path = dir.join(manifest::NAME_NEW);
        disk.remove(&path).await.map_err(at_path(&path))?;
    }
    let segments: Vec<&Name> = files().filter(|name| segment::is_segment_name(&name.name)).collect();
    let manifest = match Manifest::read(disk, dir).await? {
        Some(manifest) => manifest,
        None => {
            refuse_orphans(disk, dir, &segments).await?;
            let manifest =
                Manifest { page_size, synced: 0, next_page: 1, next_commit: 1, segments: Vec::new() };
            manifest.write(disk, dir).await.map_err(|failed| failed.error)?;
            manifest
        }
    };
    let listed: Vec<String> = manifest.segments.iter().map(|listed| segment::file_name(listed.id)).collect();
    for name in segments {
        if !listed.contains(&name.name) {
            let path = dir.join(&name.name);
            disk.remove(&path).await.map_err(at_path(&path))?;
        }
    }
    Ok(manifest)
}

/// The manifest is made before the first page: pages without one mean that it was lost.
async fn refuse_orphans(disk: &dyn Disk, dir: &Path, segments: &[&Name]) -> Result<(), Error> {
    for name in segments {
        let path = dir.join(&name.name);
        let file = disk.open(&path, Open::Existing).await.map_err(at_path(&path))?;
        let head = file.read_at(0, HEADER).await.map_err(at_path(&path))?;
        if head.iter().any(|byte| *byte != 0) {
            let path = dir.join(manifest::NAME);
            return Err(Error::Rot {
                path,
                position: 0,
                what: "the manifest is missing, segments are there",
            });
        }
    }
    Ok(())
}

impl PageFile {
    pub(super) fn check_sound(&self) -> Result<(), Error> {
        if self.poisoned { Err(Error::Poisoned { path: self.dir.clone() }) } else { Ok(()) }
    }

    /// Bytes that the batch takes on disk.
    pub(super) fn batch_size(&self) -> u64 {
        self.batch.iter().map(|page| footprint(page.payload.len(), self.page_size)).sum()
    }

    pub(super) fn has_room(&self, size: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.size - current.at >= size)
    }

    /// Makes a segment with room for `size` bytes, durable but not listed.
    pub(super) async fn make_segment(&mut self, size: u64) -> Result<Current, Error> {
        let id = self.rng.next_u128();
        let path = self.dir.join(segment::file_name(id));
        let size = size.max(self.segment_size);
        assert!(size.is_multiple_of(self.page_size), "segments hold whole pages");
        assert!(size / self.page_size < 1 << 32, "a segment has less than 2^32 slots");
        let file = self.disk.open(&path, Open::New).await.map_err(at_path(&path))?;
        if let Err(error) = file.preallocate(size).await {
            // Nothing is lost yet: no page is in it, and nothing lists it.
            drop(self.disk.remove(&path).await);
            return Err(at_path(&path)(error));
        }
        self.poisoned = true;
        file.sync_data().await.map_err(at_path(&path))?;
        self.disk.sync_dir(&self.dir).await.map_err(at_path(&self.dir))?;
        self.poisoned = false;
        Ok(Current { id, path, file, at: 0, size })
    }

    /// Makes `fresh` the segment that is written from now on, with the pages it holds.
    pub(super) fn take_current(&mut self, fresh: Current, first_page: u64, places: Vec<Place>) {
        assert!(self.writes.is_empty(), "writes under way belong to the current segment");
        self.index.lock().push(Segment {
            id: fresh.id,
            path: fresh.path.clone(),
            file: fresh.file.clone(),
            first_page,
            places,
            written: fresh.at,
            on_disk: fresh.size,
        });
        self.current = Some(fresh);
    }

    /// Goes on in a fresh segment with room for `size` bytes. What the old one
    /// holds is synced and sealed first.
    pub(super) async fn roll(&mut self, size: u64) -> Result<(), Error> {
        let fresh = self.make_segment(size).await?;
        self.poisoned = true;
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
        }
        let (first_page, first_commit) = (self.next_page, self.next_commit);
        let extent = Extent::Open(fresh.size);
        manifest.segments.push(Listed { id: fresh.id, first_page, first_commit, extent });
        manifest.synced = self.synced;
        // Shortened only once the manifest that seals it stands.
        let sealed = self.current.as_ref().map(|old| (old.id, old.file.clone(), old.at));
        self.poisoned = false;
        if let Err(error) = self.put_manifest(manifest).await {
            if !self.poisoned {
                drop(self.disk.remove(&fresh.path).await);
            }
            return Err(error);
        }
        self.untrimmed.extend(sealed);
        self.trim();
        self.take_current(fresh, first_page, Vec::new());
        Ok(())
    }

    /// Puts `manifest` in place and then clears away what it made void.
    /// Poisons the file unless the failure was a harmless lack of space.
    pub(super) async fn put_manifest(&mut self, mut manifest: Manifest) -> Result<(), Error> {
        manifest.next_page = self.next_page;
        manifest.next_commit = self.next_commit;
        assert!(manifest.synced < manifest.next_commit, "only commits are synced");
        let sound = !self.poisoned;
        self.poisoned = true;
        if let Err(failed) = manifest.write(&*self.disk, &self.dir).await {
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
            if let Err(source) = write.await {
                let path = self.current.as_ref().map_or(&self.dir, |current| &current.path);
                return Err(Error::Io { path: path.clone(), source });
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
        sync.await.map_err(at_path(&path))?;
        self.synced = last;
        self.marked = named;
        Ok(())
    }

    /// Submits the batch as one write to the current segment, which has room.
    pub(super) fn write_batch(&mut self) -> CommitNumber {
        let batch = std::mem::take(&mut self.batch);
        let current = self.current.as_mut().expect("the caller made room");
        let (commit, start) = (self.next_commit, current.at);
        let mut headers = BytesMut::with_capacity(batch.len() * HEADER);
        let mut buffers = Vec::with_capacity(batch.len() * 3);
        let mut places = Vec::with_capacity(batch.len());
        let last = batch.last().map(|page| page.number);
        for page in batch {
            assert_eq!(page.number, self.next_page, "pages are numbered in order");
            let header = Header {
                segment: current.id,
                position: current.at,
                number: page.number,
                commit,
                synced: self.synced,
                kind: page.kind,
                end: Some(page.number) == last,
                internal: false,
                length: page.payload.len() as u32,
            };
            headers.extend_from_slice(&header.encode(&page.payload));
            places.push(place(&header, self.page_size));
            current.at += lay(&mut buffers, headers.split().freeze(), page.payload, self.page_size);
            self.next_page += 1;
        }
        assert!(current.at <= current.size, "the segment has room for the commit");
        self.writes.push_back(current.file.append(start, buffers));
        let mut index = self.index.lock();
        let segment = index.last_mut().expect("the current segment is the last");
        assert_eq!(segment.id, current.id, "the current segment is the last");
        segment.places.extend(places);
        segment.written = current.at;
        drop(index);
        self.next_commit += 1;
        self.last_paged = commit;
        self.named = self.named.max(self.synced);
        CommitNumber(commit)
    }

    /// Submits a mark page: it names the last sync, and is a commit of its own.
    pub(super) fn write_mark(&mut self) {
        let current = self.current.as_mut().expect("the caller made sure of room");
        let header = Header {
            segment: current.id,
            position: current.at,
            number: 0,
            commit: self.next_commit,
            synced: self.synced,
            kind: 0,
            end: true,
            internal: true,
            length: 0,
        };
        let mut buffers = Vec::new();
        let bytes = Bytes::copy_from_slice(&header.encode(&[]));
        let taken = lay(&mut buffers, bytes, Bytes::new(), self.page_size);
        self.writes.push_back(current.file.append(current.at, buffers));
        current.at += taken;
        self.index.lock().last_mut().expect("the current segment is the last").written = current.at;
        self.next_commit += 1;
        self.named = self.named.max(self.synced);
    }
}
