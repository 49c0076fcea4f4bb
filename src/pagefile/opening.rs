//! Opening: taking stock of a directory, recovering each segment, writing
//! again what survived and is not known to be durable (I6).
//!
//! Owns the way from files to an index. Promises that what [`PageFile::open`]
//! returns is durable, and that [`PageFile::open_read_only`] changes nothing.
//! Sealed segments with a directory are not read.

use super::directory::{self, Entry};
use super::header::{self, HEADER, Header};
use super::manifest::{self, Extent, Listed, Manifest};
use super::reading;
use super::recovery::{self, Whole};
use super::segment::{self, Index, Segment};
use super::writing::lay;
use super::{CommitNumber, Error, Opened, Options, PageFile, PageReader, at_path, page_size_fits};
use crate::env::{
    Disk, Rng,
    disk::{Name, Open},
};
use crate::reached;
use bytes::Bytes;
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

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

/// A segment as it was found.
struct Recovered {
    segment: Segment,
    first_commit: u64,
    last_commit: u64,
    /// Highest commit that anything in it names as synced.
    synced: u64,
    /// Whole commits; of an open segment only.
    commits: Vec<Whole>,
    torn_bytes: u64,
}

/// Recovers one listed segment: reads its directory, or all of it if it has none.
async fn recover(
    disk: &dyn Disk,
    dir: &Path,
    listed: &Listed,
    page_size: u64,
    synced: u64,
) -> Result<Recovered, Error> {
    let path = dir.join(segment::file_name(listed.id));
    let rot = |what| Err(Error::Rot { path: path.clone(), position: 0, what });
    let file = match disk.open(&path, Open::Existing).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return rot("the segment is missing"),
        Err(error) => return Err(at_path(&path)(error)),
    };
    let on_disk = file.length().await.map_err(at_path(&path))?;
    let mut segment = Segment {
        id: listed.id,
        path: path.clone(),
        file,
        entries: Arc::default(),
        written: 0,
        on_disk,
        sealed: true,
        directory: listed.directory,
    };
    if let (Some(at), Extent::Sealed(end)) = (listed.directory, listed.extent) {
        if on_disk < end {
            // Its length was durable before the manifest listed it.
            let what = "the segment is too short";
            return Err(Error::Rot { path, position: on_disk, what });
        }
        segment.written = end;
        let (last_commit, entries) = reading::directory(&segment, at, page_size).await?;
        let first = entries.first().map(|entry| entry.number);
        if first != Some(listed.first_page) || last_commit < listed.first_commit {
            return rot("manifest and directory contradict each other");
        }
        segment.entries = Arc::new(entries);
        let (first_commit, commits) = (listed.first_commit, Vec::new());
        return Ok(Recovered { segment, first_commit, last_commit, synced, commits, torn_bytes: 0 });
    }
    reached!("segment without a directory walked");
    let walked = recovery::walk(&segment.file, &path, listed, page_size, synced).await?;
    segment.written = walked.end;
    segment.entries = Arc::new(walked.entries);
    Ok(Recovered {
        segment,
        first_commit: listed.first_commit,
        last_commit: walked.last_commit,
        synced: walked.synced,
        commits: walked.commits,
        torn_bytes: walked.torn_bytes,
    })
}

/// Recovers every segment of a manifest and checks that they follow each other.
async fn recover_all(disk: &dyn Disk, dir: &Path, manifest: &Manifest) -> Result<Vec<Recovered>, Error> {
    let mut recovered: Vec<Recovered> = Vec::with_capacity(manifest.segments.len());
    for listed in &manifest.segments {
        let page_size = u64::from(manifest.page_size);
        let found = recover(disk, dir, listed, page_size, manifest.synced).await?;
        // A replacement may go through several segments in one commit.
        let first_commit = listed.first_commit + u64::from(found.segment.directory.is_some());
        if let Some(before) = recovered.last()
            && (listed.first_page < before.segment.end_page() || first_commit <= before.last_commit)
        {
            let (path, position) = (found.segment.path, 0);
            return Err(Error::Rot { path, position, what: "the segment does not follow the one before" });
        }
        let open = matches!(listed.extent, Extent::Open(_));
        let ahead =
            found.segment.end_page() > manifest.next_page || found.last_commit >= manifest.next_commit;
        if ahead && !open {
            let (path, position) = (dir.join(manifest::NAME), 0);
            return Err(Error::Rot { path, position, what: "a sealed segment goes on behind the manifest" });
        }
        recovered.push(found);
    }
    Ok(recovered)
}

impl PageFile {
    /// Opens (or makes) the page file in directory `dir` and recovers as I6
    /// says. What is there then is durable: read it through [`PageFile::reader`].
    pub async fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: Options,
        rng: Rng,
    ) -> Result<(PageFile, Opened), Error> {
        assert!(page_size_fits(options.page_size), "the page size is a power of two from 512 to 65536");
        let manifest = take_stock(&*disk, &dir, options.page_size).await?;
        let recovered = recover_all(&*disk, &dir, &manifest).await?;
        let page_size = u64::from(manifest.page_size);
        let mut file = PageFile {
            page_size,
            segment_size: options.segment_size.max(page_size).next_multiple_of(page_size),
            rng,
            index: Index::new(Vec::new()),
            current: None,
            spare: None,
            cushion: None,
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
        for found in recovered {
            file.take_over(found, &mut opened).await?;
        }
        let last = file.next_commit - 1;
        assert!(file.manifest.synced <= last, "recovery keeps what was synced");
        // Everything left is below a mark, or was just written again and synced.
        // That mark may be a killed process's page that is readable and not
        // durable: only the manifest's counts as a durable one.
        (file.synced, file.named, file.last_paged) = (last, last, last);
        file.marked = file.manifest.synced;
        opened.commit = CommitNumber(last);
        opened.last_page = file.index.last_page();
        Ok((file, opened))
    }

    /// Opens the page file in `dir` for reading, as offline tools do: nothing
    /// is written, removed or written again. Commits that survived and are not
    /// known to be durable are there ([`Opened::rewritten_commits`] counts them).
    pub async fn open_read_only(disk: Arc<dyn Disk>, dir: PathBuf) -> Result<(PageReader, Opened), Error> {
        let Some(manifest) = Manifest::read(&*disk, &dir).await? else {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(at_path(&dir.join(manifest::NAME))(source));
        };
        let recovered = recover_all(&*disk, &dir, &manifest).await?;
        let mut opened = Opened { commit: CommitNumber(manifest.next_commit - 1), ..Opened::default() };
        let mut segments = Vec::with_capacity(recovered.len());
        for (found, listed) in recovered.into_iter().zip(&manifest.segments) {
            if let Extent::Open(_) = listed.extent {
                let above = |commit: &&Whole| commit.number > found.synced && !commit.internal;
                opened.rewritten_commits = found.commits.iter().filter(above).count() as u64;
                opened.torn_bytes = found.torn_bytes;
                opened.commit = CommitNumber(found.last_commit);
            }
            if !found.segment.entries.is_empty() {
                segments.push(found.segment);
            }
        }
        let index = Index::new(segments);
        opened.last_page = index.last_page();
        Ok((PageReader { index, dir, page_size: u64::from(manifest.page_size) }, opened))
    }

    /// Takes over what was found of one segment.
    async fn take_over(&mut self, found: Recovered, opened: &mut Opened) -> Result<(), Error> {
        let Recovered { mut segment, first_commit, mut last_commit, synced, mut commits, torn_bytes } = found;
        let at = self.index.lock().len();
        let open = matches!(self.manifest.segments[at].extent, Extent::Open(_));
        opened.torn_bytes += torn_bytes;
        if torn_bytes > 0 {
            reached!("torn tail cut");
        }
        // The tail above the mark survived, but nothing says it is durable.
        let kept = commits.partition_point(|commit| commit.number <= synced);
        let tail = commits.split_off(kept);
        let mut tail_pages = 0;
        if let Some(first) = tail.first() {
            segment.written = first.start;
            last_commit = first.number - 1;
            tail_pages = Arc::make_mut(&mut segment.entries).split_off(first.pages_before).len();
        }
        if open {
            let first_page = self.manifest.segments[at].first_page;
            self.next_page = segment.end_page().max(first_page);
            self.next_commit = last_commit + 1;
            assert!(self.next_commit >= first_commit, "the walk began at the segment's first commit");
        }
        let from = segment.clone();
        if segment.entries.is_empty() {
            self.doomed.push(segment.path);
            self.manifest.segments.remove(at);
        } else {
            self.manifest.segments[at].extent = Extent::Sealed(segment.written);
            if segment.on_disk > segment.written {
                self.untrimmed.push((segment.id, segment.file.clone(), segment.written));
            }
            self.index.lock().push(segment);
        }
        if tail_pages > 0 {
            // A tail of marks alone may go: their word was heeded.
            opened.rewritten_commits = tail.iter().filter(|commit| !commit.internal).count() as u64;
            reached!("tail rewritten");
            self.rewrite(&from, &tail, tail_pages, synced).await?;
        }
        Ok(())
    }

    /// Writes commits that survived above the mark into a fresh segment and
    /// syncs them there.
    async fn rewrite(
        &mut self,
        from: &Segment,
        tail: &[Whole],
        pages: usize,
        synced: u64,
    ) -> Result<(), Error> {
        let size = tail.iter().map(|commit| commit.end - commit.start).sum();
        let mut fresh = self.make_segment(size, pages).await?;
        let (first_page, first_commit) = (self.next_page, self.next_commit);
        let mut entries = Vec::new();
        for commit in tail {
            let length = (commit.end - commit.start) as usize;
            let read = from.file.read_at(commit.start, length).await;
            let bytes = read.map_err(at_path(&from.path))?;
            let mut buffers = Vec::new();
            let (mut at, start) = (0, fresh.at);
            while at < bytes.len() {
                let position = commit.start + at as u64;
                let rest = bytes.slice(at..);
                let old = Header::check(&rest, from.id, position)
                    .map_err(|fault| segment::refusal(fault, &from.path, position))?;
                at += header::footprint(old.length as usize, self.page_size) as usize;
                let (header, payload) = if old.internal {
                    // A directory would describe the segment that it stood in.
                    let mark = Header::internal(header::MARK, fresh.id, fresh.at, old.commit, synced);
                    (mark, Bytes::new())
                } else {
                    let payload = rest.slice(HEADER..HEADER + old.length as usize);
                    (Header { segment: fresh.id, position: fresh.at, synced, ..old }, payload)
                };
                let bytes = header.encode(&payload);
                if !header.internal {
                    entries.push(Entry::new(&header, header::checksum(&bytes), self.page_size));
                    self.next_page += 1;
                }
                let header = Bytes::copy_from_slice(&bytes);
                fresh.at += lay(&mut buffers, header, payload, self.page_size);
            }
            fresh.file.append(start, buffers).await.map_err(at_path(&fresh.path))?;
            self.next_commit = commit.number + 1;
        }
        fresh.file.sync_data().await.map_err(at_path(&fresh.path))?;
        assert!(fresh.at + directory::room(pages, self.page_size) <= fresh.size, "the tail has room");
        let mut manifest = self.manifest.clone();
        let extent = Extent::Open(fresh.size);
        manifest.segments.push(Listed { id: fresh.id, first_page, first_commit, extent, directory: None });
        manifest.synced = self.next_commit - 1;
        fresh.pages = pages;
        self.take_current(fresh, entries);
        self.put_manifest(manifest).await
    }
}
