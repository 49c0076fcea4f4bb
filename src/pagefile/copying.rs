//! Segments made whole: by the cleaner's copies, and by a replacement.
//!
//! Owns [`Copy`], which writes given pages into a segment of its own, and what
//! becomes of the file if that is given up. Promises that a finished copy is
//! durable, content and directory, before anything can list it, and that its
//! syncs are small. Never touches the page file that it is made for.

use super::directory::{self, Entry};
use super::header::{self, Header, footprint};
use super::manifest::{Directory, Extent, Listed};
use super::segment::{self, Segment};
use super::writing::lay;
use super::{Current, Error, Page, at_path, late};
use crate::env::{Disk, File, disk::Open};
use crate::reached;
use bytes::Bytes;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes that a cleaner's copy syncs at once: a long sync would hold up the log's.
const SYNC_BYTES: u64 = 1 << 20;

/// A segment in the making. Driven from any task. Given up when dropped.
pub struct Copy {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    page_size: u64,
    id: u128,
    path: PathBuf,
    victims: Vec<u128>,
    file: Option<(Arc<dyn File>, Unlisted)>,
    /// Bytes preallocated, and bytes written and synced.
    size: u64,
    at: u64,
    /// Bytes written between two syncs at most, unless one page alone has more.
    pub(super) sync_bytes: u64,
    buffers: Vec<Bytes>,
    buffered: u64,
    entries: Vec<Entry>,
    first_commit: u64,
    last_commit: u64,
    /// Cleared during every step whose failure leaves the file in doubt.
    sound: bool,
}

/// A finished copy, for [`super::PageFile::adopt`]. Given up when dropped.
pub struct Copied {
    pub(super) victims: Vec<u128>,
    /// `None`: no page survived.
    pub(super) made: Option<Made>,
}

pub(super) struct Made {
    pub segment: Segment,
    pub listed: Listed,
    pub unlisted: Unlisted,
}

impl Copied {
    /// Bytes on disk of the new segment; 0 if nothing was copied.
    pub fn size(&self) -> u64 {
        self.made.as_ref().map_or(0, |made| made.segment.on_disk)
    }
}

/// A file that nothing lists: removed when this is dropped, or at the next open.
pub(super) struct Unlisted(Option<(Arc<dyn Disk>, PathBuf)>);

impl Unlisted {
    pub(super) fn new(disk: &Arc<dyn Disk>, path: &Path) -> Unlisted {
        Unlisted(Some((disk.clone(), path.to_owned())))
    }

    /// A manifest that lists the file may stand from now on.
    pub(super) fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unlisted {
    fn drop(&mut self) {
        if let Some((disk, path)) = self.0.take() {
            // Submitted at once, not waited for: a file that stays is void.
            drop(disk.remove(&path));
        }
    }
}

impl Copy {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        page_size: u64,
        id: u128,
        victims: Vec<u128>,
    ) -> Copy {
        Copy {
            disk: disk.clone(),
            dir: dir.to_owned(),
            page_size,
            id,
            path: dir.join(segment::file_name(id)),
            victims,
            file: None,
            size: 0,
            at: 0,
            sync_bytes: SYNC_BYTES,
            buffers: Vec::new(),
            buffered: 0,
            entries: Vec::new(),
            first_commit: 0,
            last_commit: 0,
            sound: true,
        }
    }

    /// Makes the file with room for pages that take `bytes`, and their directory.
    pub(super) async fn make(&mut self, bytes: u64) -> Result<(), Error> {
        let file = self.disk.open(&self.path, Open::New).await.map_err(at_path(&self.path))?;
        let unlisted = Unlisted::new(&self.disk, &self.path);
        let size = self.size_for(bytes);
        file.preallocate(size).await.map_err(at_path(&self.path))?;
        self.file = Some((file, unlisted));
        self.size = size;
        Ok(())
    }

    pub(super) fn size_for(&self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(self.page_size);
        bytes + directory::room((bytes / self.page_size) as usize, self.page_size)
    }

    /// Takes a segment that was made in advance.
    pub(super) fn take(&mut self, spare: Current) {
        assert!(self.file.is_none() && spare.at == 0, "a fresh file for a fresh copy");
        let unlisted = Unlisted::new(&self.disk, &spare.path);
        (self.id, self.path, self.size) = (spare.id, spare.path, spare.size);
        self.file = Some((spare.file, unlisted));
    }

    /// Adds a page as it is: number, span, commit, kind and label stay. Pages
    /// come in order. When no space is left ([`Error::is_no_space`]: more was
    /// added than was foreseen) the copy is best given up.
    pub async fn append(&mut self, page: Page) -> Result<(), Error> {
        self.check_sound()?;
        let before = self.entries.last().map_or(0, Entry::last);
        assert!(page.number.0 > before, "copies come in order: {:?} after {before}", page.number);
        assert!(page.commit.0 >= self.last_commit.max(1), "commits never fall");
        assert!(u32::try_from(page.payload.len()).is_ok(), "a page holds less than 4 GiB");
        let taken = footprint(page.payload.len(), self.page_size);
        if self.buffered > 0 && self.buffered + taken > self.sync_bytes {
            self.flush().await?;
        }
        let header = Header {
            segment: self.id,
            position: self.at + self.buffered,
            number: page.number.0,
            span: page.span,
            commit: page.commit.0,
            synced: 0,
            kind: page.kind,
            end: false,
            internal: false,
            copy: true,
            label: page.label,
            length: page.payload.len() as u32,
        };
        if self.entries.is_empty() {
            self.first_commit = page.commit.0;
        }
        self.last_commit = page.commit.0;
        let bytes = header.encode(&page.payload);
        self.entries.push(Entry::new(&header, header::checksum(&bytes), self.page_size));
        let header = Bytes::copy_from_slice(&bytes);
        self.buffered += lay(&mut self.buffers, header, page.payload, self.page_size);
        Ok(())
    }

    /// Bytes on disk of the pages so far.
    pub fn size(&self) -> u64 {
        self.at + self.buffered
    }

    fn check_sound(&self) -> Result<(), Error> {
        if self.sound { Ok(()) } else { Err(Error::Poisoned { path: self.path.clone() }) }
    }

    /// Makes room for what is buffered.
    async fn reserve(&mut self) -> Result<Arc<dyn File>, Error> {
        if self.file.is_none() {
            self.make(self.buffered).await?;
        }
        let Some((file, _)) = &self.file else { unreachable!("it was just made") };
        let needed = self.at + self.buffered;
        if needed > self.size {
            reached!("copy outgrew what was foreseen");
            file.preallocate(needed).await.map_err(at_path(&self.path))?;
            self.size = needed;
        }
        Ok(file.clone())
    }

    /// Writes what is buffered and syncs it.
    async fn flush(&mut self) -> Result<(), Error> {
        let file = self.reserve().await?;
        self.sound = false;
        let buffers = std::mem::take(&mut self.buffers);
        let written = file.append(self.at, buffers);
        let synced = file.sync_data();
        written.await.map_err(late(&self.path))?;
        synced.await.map_err(late(&self.path))?;
        self.at += std::mem::take(&mut self.buffered);
        self.sound = true;
        Ok(())
    }

    /// Adds the directory and makes it all durable. A copy without pages makes no file.
    pub async fn finish(mut self) -> Result<Copied, Error> {
        self.check_sound()?;
        let victims = std::mem::take(&mut self.victims);
        let Some(first) = self.entries.first() else {
            return Ok(Copied { victims, made: None });
        };
        let first_page = first.number;
        let payload = directory::encode(&self.entries);
        let taken = footprint(payload.len(), self.page_size);
        if self.buffered > 0 && self.buffered + taken > self.sync_bytes {
            self.flush().await?;
        }
        let position = self.at + self.buffered;
        let header = Header {
            length: payload.len() as u32,
            ..Header::internal(header::DIRECTORY, self.id, position, self.last_commit, 0)
        };
        let directory = Directory { position, digest: directory::digest(&payload) };
        let header = Bytes::copy_from_slice(&header.encode(&payload));
        self.buffered += lay(&mut self.buffers, header, payload, self.page_size);
        let file = self.reserve().await?;
        let end = self.at + self.buffered;
        // Nothing lists the file yet: the rest goes before the last sync.
        file.truncate(end).await.map_err(at_path(&self.path))?;
        self.flush().await?;
        self.disk.sync_dir(&self.dir).await.map_err(late(&self.dir))?;
        let (file, unlisted) = self.file.take().expect("the copy has pages, so it has a file");
        let extent = Extent::Sealed(end);
        Ok(Copied {
            victims,
            made: Some(Made {
                listed: Listed {
                    id: self.id,
                    first_page,
                    first_commit: self.first_commit,
                    extent,
                    directory: Some(directory),
                },
                segment: Segment {
                    id: self.id,
                    path: self.path.clone(),
                    file,
                    entries: Arc::new(std::mem::take(&mut self.entries)),
                    written: end,
                    on_disk: end,
                    sealed: true,
                    directory: Some(directory),
                },
                unlisted,
            }),
        })
    }
}
