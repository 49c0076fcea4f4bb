//! What the page file needs of a disk, and no more.
//!
//! Contract of every implementation:
//! - Operations are **submitted when the method is called**, not when the
//!   returned future is first polled; those on one file are carried out in the
//!   order of submission. Dropping the future does not undo the operation.
//! - What was appended is durable once a later `sync_data` of that file has
//!   succeeded; a new or renamed or removed name once a later `sync_dir` has.
//! - After a failed `sync_data` nothing about the unsynced bytes is known; the
//!   caller poisons the file and never tries again.
//! - Every path is inside one data directory; parents must exist.

use bytes::Bytes;
use futures::future::BoxFuture;
use std::{io, path::Path, sync::Arc};

/// A disk operation under way.
pub type Io<T> = BoxFuture<'static, io::Result<T>>;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Must not be there yet.
    New,
    /// Must be there; read and written.
    Existing,
    /// Must be there; never written.
    ReadOnly,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub name: String,
    pub is_dir: bool,
}

/// Held while alive; released when dropped or when the process ends.
pub trait Lock: Send + Sync + 'static {}

/// A directory tree on stable storage.
pub trait Disk: Send + Sync + 'static {
    fn open(&self, path: &Path, how: Open) -> Io<Arc<dyn File>>;
    fn rename(&self, from: &Path, to: &Path) -> Io<()>;
    /// Removes a file; open handles stay readable.
    fn remove(&self, path: &Path) -> Io<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> Io<()>;
    /// Makes a directory and its parents; fine if it is there.
    fn make_dir(&self, path: &Path) -> Io<()>;
    /// Names in a directory, sorted; `NotFound` if there is none.
    fn list_dir(&self, path: &Path) -> Io<Vec<Name>>;
    fn sync_dir(&self, path: &Path) -> Io<()>;
    /// Locks `path` (made if missing) for this process alone; `WouldBlock` if
    /// another process holds it.
    fn lock(&self, path: &Path) -> Io<Box<dyn Lock>>;
    /// Bytes that can still be allocated.
    fn free_space(&self, path: &Path) -> Io<u64>;
}

/// An open file.
pub trait File: Send + Sync + 'static {
    /// Reserves `size` bytes; the file is then at least that long, zero-filled.
    fn preallocate(&self, size: u64) -> Io<()>;
    /// Writes the buffers one after the other from byte `at`. Never used to
    /// overwrite what was written before (I5).
    fn append(&self, at: u64, data: Vec<Bytes>) -> Io<()>;
    /// Reads up to `length` bytes from `at`; shorter only at the end of the file.
    fn read_at(&self, at: u64, length: usize) -> Io<Bytes>;
    fn sync_data(&self) -> Io<()>;
    fn length(&self) -> Io<u64>;
    fn truncate(&self, length: u64) -> Io<()>;
}

/// Puts a small file in place of the one named `name` in `dir`, durably and seen whole or not at all;
/// it is made beside it as `name.new`.
pub async fn put_in_place(disk: &dyn Disk, dir: &Path, name: &str, bytes: Bytes) -> io::Result<()> {
    let beside = dir.join(format!("{name}.new"));
    match disk.remove(&beside).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // A leftover of a crash, or none.
        _ => {}
    }
    let file = disk.open(&beside, Open::New).await?;
    file.append(0, vec![bytes]).await?;
    file.sync_data().await?;
    drop(file);
    disk.rename(&beside, &dir.join(name)).await?;
    disk.sync_dir(dir).await
}
