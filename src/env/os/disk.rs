//! Files of the operating system.
//!
//! **Promises** what [`crate::env::disk`] asks for: an operation is under way
//! when its method returns, and those on one file keep their order (each file
//! is a [`Strand`]). Reads are the exception that no one can see: bytes that
//! were written before do not change while no change is pending, so reading
//! them does not queue behind the file's sync, and what the page cache holds is
//! read at once, without a thread. **Never** a second try after an error.

use super::pool::{Pool, Strand};
use crate::env::disk::{Disk, File, Io, Lock, Name, Open};
use bytes::Bytes;
use rustix::{
    fs::{FallocateFlags, FlockOperation},
    io::{Errno, ReadWriteFlags},
};
use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::oneshot;

/// As etcd makes them: readable by their owner alone.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// Buffers that one system call takes (UIO_MAXIOV).
const BUFFERS_MAX: usize = 1024;
/// Longer reads always go to a thread: copying them would hold up the task.
const INLINE_READ_BYTES_MAX: usize = 128 << 10;

/// The file system, served by a few threads.
pub struct OsDisk {
    pool: Arc<Pool>,
    /// Operations on names keep their order too.
    names: Strand,
}

impl OsDisk {
    pub fn new(io_threads: usize) -> OsDisk {
        let pool = Arc::new(Pool::new(io_threads));
        OsDisk { names: Strand::new(pool.clone()), pool }
    }

    fn on_names<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Io<T> {
        submit(work, |job| self.names.submit(job))
    }
}

/// Hands `work` over now; the future yields its result.
fn submit<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
    hand_over: impl FnOnce(Box<dyn FnOnce() + Send>),
) -> Io<T> {
    let (sender, receiver) = oneshot::channel();
    hand_over(Box::new(move || {
        // A dropped future does not undo the operation; its result is not wanted.
        drop(sender.send(work()));
    }));
    Box::pin(async move {
        receiver.await.unwrap_or_else(|_| Err(io::Error::other("the I/O thread ended before the operation")))
    })
}

impl Disk for OsDisk {
    fn open(&self, path: &Path, how: Open) -> Io<Arc<dyn File>> {
        let path = path.to_owned();
        let pool = self.pool.clone();
        self.on_names(move || {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(how != Open::ReadOnly).create_new(how == Open::New).mode(FILE_MODE);
            let file = options.open(path)?;
            let length = file.metadata()?.len();
            Ok(Arc::new(OsFile {
                shared: Arc::new(Shared::new(file, length)),
                strand: Strand::new(pool.clone()),
                pool,
            }) as Arc<dyn File>)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Io<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.on_names(move || fs::rename(from, to))
    }

    fn remove(&self, path: &Path) -> Io<()> {
        let path = path.to_owned();
        self.on_names(move || fs::remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> Io<()> {
        let path = path.to_owned();
        self.on_names(move || fs::remove_dir(path))
    }

    fn make_dir(&self, path: &Path) -> Io<()> {
        let path = path.to_owned();
        self.on_names(move || fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path))
    }

    fn list_dir(&self, path: &Path) -> Io<Vec<Name>> {
        let path = path.to_owned();
        self.on_names(move || {
            let mut names = Vec::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let name = entry.file_name().into_string().map_err(|name| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("{name:?} is not a name of ours"))
                })?;
                names.push(Name { name, is_dir: entry.file_type()?.is_dir() });
            }
            names.sort();
            Ok(names)
        })
    }

    fn sync_dir(&self, path: &Path) -> Io<()> {
        // Only after the changes of names submitted so far, but holding up none that follow.
        let path = path.to_owned();
        self.on_names(move || fs::File::open(path)?.sync_all())
    }

    fn lock(&self, path: &Path) -> Io<Box<dyn Lock>> {
        let path = path.to_owned();
        self.on_names(move || {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
            let file = options.open(path)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(Box::new(OsLock(file)) as Box<dyn Lock>)
        })
    }

    fn free_space(&self, path: &Path) -> Io<u64> {
        let path: PathBuf = path.to_owned();
        self.on_names(move || {
            let space = rustix::fs::statvfs(&path)?;
            Ok(space.f_bavail.saturating_mul(space.f_frsize))
        })
    }
}

/// The kernel drops the lock with the descriptor.
struct OsLock(#[allow(dead_code)] fs::File);

impl Lock for OsLock {}

struct OsFile {
    shared: Arc<Shared>,
    strand: Strand,
    pool: Arc<Pool>,
}

/// What a file's operations share.
struct Shared {
    file: fs::File,
    pending: Mutex<Pending>,
    /// Notified when the last read under way has ended.
    no_reads: Condvar,
    /// The file system answers `RWF_NOWAIT`.
    reads_inline: AtomicBool,
}

struct Pending {
    /// Changes of content or length, submitted and not done. A sync is none.
    changes: usize,
    /// Reads under way outside the strand.
    reads: usize,
    /// Below this byte the file holds what was written; no append touches that again (I5).
    written: u64,
}

impl Shared {
    fn new(file: fs::File, written: u64) -> Shared {
        Shared {
            file,
            pending: Mutex::new(Pending { changes: 0, reads: 0, written }),
            no_reads: Condvar::new(),
            reads_inline: AtomicBool::new(true),
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().expect("nothing panics while this is locked")
    }

    /// Reads from the page cache only; `None` if that does not hold it all.
    fn read_cached(&self, at: u64, length: usize) -> Option<Bytes> {
        if length > INLINE_READ_BYTES_MAX || !self.reads_inline.load(Ordering::Relaxed) {
            return None;
        }
        let mut buffer = vec![0; length];
        let slices = &mut [IoSliceMut::new(&mut buffer)];
        match rustix::io::preadv2(&self.file, slices, at, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == length => Some(buffer.into()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.reads_inline.store(false, Ordering::Relaxed);
                None
            }
            // Not in the cache, cut short, at the end of the file, failed: the full read tells.
            _ => None,
        }
    }

    fn read(&self, at: u64, length: usize) -> io::Result<Bytes> {
        let mut buffer = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match rustix::io::pread(&self.file, &mut buffer[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        buffer.truncate(filled);
        Ok(buffer.into())
    }

    fn write(&self, mut at: u64, data: &[Bytes]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = data.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0); // Skips empty buffers at the front.
        while !rest.is_empty() {
            let count = rest.len().min(BUFFERS_MAX);
            match rustix::io::pwritev(&self.file, &rest[..count], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, size) {
            // A file system that cannot reserve still makes the file as long; lack of space
            // then shows when it is written.
            Err(Errno::OPNOTSUPP) if self.file.metadata()?.len() < size => self.file.set_len(size),
            Err(Errno::OPNOTSUPP) => Ok(()),
            result => Ok(result?),
        }
    }
}

impl OsFile {
    /// Runs `work` after what was submitted before.
    fn ordered<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> io::Result<T> + Send + 'static,
    ) -> Io<T> {
        let shared = self.shared.clone();
        submit(move || work(&shared), |job| self.strand.submit(job))
    }

    /// The same for work that changes what a read returns: reads submitted
    /// later queue behind it.
    fn change(&self, work: impl FnOnce(&Shared) -> io::Result<()> + Send + 'static) -> Io<()> {
        self.shared.pending().changes += 1;
        self.ordered(move |shared| {
            let result = work(shared);
            shared.pending().changes -= 1;
            result
        })
    }
}

impl File for OsFile {
    fn preallocate(&self, size: u64) -> Io<()> {
        self.change(move |shared| shared.reserve(size))
    }

    fn append(&self, at: u64, data: Vec<Bytes>) -> Io<()> {
        let end = at + data.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        self.change(move |shared| {
            shared.write(at, &data)?;
            let mut pending = shared.pending();
            pending.written = pending.written.max(end);
            Ok(())
        })
    }

    fn read_at(&self, at: u64, length: usize) -> Io<Bytes> {
        let mut pending = self.shared.pending();
        if pending.changes > 0 || at.saturating_add(length as u64) > pending.written {
            drop(pending);
            return self.ordered(move |shared| shared.read(at, length));
        }
        // Counted before the lock goes, so that no truncation can slip in between.
        pending.reads += 1;
        drop(pending);
        let shared = self.shared.clone();
        if let Some(bytes) = shared.read_cached(at, length) {
            shared.read_done();
            return Box::pin(std::future::ready(Ok(bytes)));
        }
        let work = move || {
            let result = shared.read(at, length);
            shared.read_done();
            result
        };
        submit(work, |job| self.pool.submit(job))
    }

    fn sync_data(&self) -> Io<()> {
        self.ordered(|shared| Ok(rustix::fs::fdatasync(&shared.file)?))
    }

    fn length(&self) -> Io<u64> {
        self.ordered(|shared| Ok(shared.file.metadata()?.len()))
    }

    fn truncate(&self, length: u64) -> Io<()> {
        let pool = self.pool.clone();
        self.change(move |shared| {
            // The one change that takes away what a read submitted before must still see.
            shared.await_reads(&pool);
            let mut pending = shared.pending();
            pending.written = pending.written.min(length);
            drop(pending);
            shared.file.set_len(length)
        })
    }
}

impl Shared {
    /// Returns when no read is under way outside the strand. Meanwhile this
    /// thread does other work, for those reads may wait for a thread.
    fn await_reads(&self, pool: &Pool) {
        const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(1);
        loop {
            if pool.help() {
                continue;
            }
            let pending = self.pending();
            if pending.reads == 0 {
                return;
            }
            drop(self.no_reads.wait_timeout(pending, LOOK_AGAIN));
        }
    }

    fn read_done(&self) {
        let mut pending = self.pending();
        assert!(pending.reads > 0, "a read was counted when it began");
        pending.reads -= 1;
        if pending.reads == 0 {
            self.no_reads.notify_all();
        }
    }
}

#[cfg(test)]
#[cfg(not(madsim))]
mod tests {
    use super::*;
    use futures::future::join_all;

    /// A directory of its own under the system's temporary one, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("quorate-os-disk-{}-{name}", std::process::id()));
            drop(fs::remove_dir_all(&path));
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[tokio::test]
    async fn what_is_appended_can_be_read() {
        let scratch = Scratch::new("append");
        let disk = OsDisk::new(2);
        let file = disk.open(&scratch.join("a"), Open::New).await.unwrap();
        let parts = vec![Bytes::new(), "ab".into(), Bytes::new(), "cde".into(), Bytes::new()];
        file.append(0, parts).await.unwrap();
        file.append(5, vec![]).await.unwrap();
        file.append(5, vec!["f".into()]).await.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(file.length().await.unwrap(), 6);
        let check = async |at, length, expected: &str| {
            assert_eq!(file.read_at(at, length).await.unwrap(), expected, "{length} bytes from {at}");
        };
        check(0, 6, "abcdef").await;
        check(1, 3, "bcd").await;
        check(4, 100, "ef").await;
        check(6, 10, "").await;
        check(1_000, 10, "").await;
        check(2, 0, "").await;
        // More buffers than one system call takes.
        let many: Vec<Bytes> = (0..3_000u32).map(|n| Bytes::from(n.to_le_bytes().to_vec())).collect();
        file.append(6, many.clone()).await.unwrap();
        assert_eq!(file.read_at(6, 12_000).await.unwrap(), many.concat());
        let long = Bytes::from(vec![9; 3 * INLINE_READ_BYTES_MAX]);
        file.append(12_006, vec![long.clone()]).await.unwrap();
        assert_eq!(file.read_at(12_006, long.len()).await.unwrap(), long);
    }

    /// Submitted together and awaited together: each sees what came before it and nothing after.
    #[tokio::test]
    async fn operations_on_a_file_keep_their_order() {
        for threads in [1, 2, 4] {
            let scratch = Scratch::new(&format!("order-{threads}"));
            let disk = OsDisk::new(threads);
            let mut rounds = Vec::new();
            for number in 0..4 {
                let file = disk.open(&scratch.join(&number.to_string()), Open::New).await.unwrap();
                rounds.push(async move {
                    for round in 0..40u8 {
                        let before = file.read_at(0, 1 << 10);
                        let written = file.append(0, vec![vec![round; 1_000].into()]);
                        let synced = file.sync_data();
                        let after = file.read_at(0, 1 << 10);
                        let cut = file.truncate(500);
                        let short = file.read_at(0, 1 << 10);
                        let length = file.length();
                        let gone = file.truncate(0);
                        assert_eq!(before.await.unwrap(), "");
                        written.await.unwrap();
                        synced.await.unwrap();
                        assert_eq!(after.await.unwrap(), vec![round; 1_000]);
                        cut.await.unwrap();
                        assert_eq!(short.await.unwrap(), vec![round; 500]);
                        assert_eq!(length.await.unwrap(), 500);
                        gone.await.unwrap();
                    }
                });
            }
            join_all(rounds).await;
        }
    }

    #[tokio::test]
    async fn a_read_under_way_is_not_cut_short() {
        let scratch = Scratch::new("cut");
        let disk = OsDisk::new(1);
        let file = disk.open(&scratch.join("a"), Open::New).await.unwrap();
        let long = Bytes::from(vec![3; 4 * INLINE_READ_BYTES_MAX]);
        for _ in 0..20 {
            file.append(0, vec![long.clone()]).await.unwrap();
            let (synced, read) = (file.sync_data(), file.read_at(0, long.len()));
            let cut = file.truncate(0);
            synced.await.unwrap();
            assert_eq!(read.await.unwrap().len(), long.len());
            cut.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_dropped_future_undoes_nothing() {
        let scratch = Scratch::new("dropped");
        let disk = OsDisk::new(2);
        let file = disk.open(&scratch.join("a"), Open::New).await.unwrap();
        drop(file.append(0, vec!["abc".into()]));
        assert_eq!(file.read_at(0, 3).await.unwrap(), "abc");
    }

    #[tokio::test]
    async fn names() {
        let scratch = Scratch::new("names");
        let disk = OsDisk::new(2);
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let opened = |result: io::Result<Arc<dyn File>>| result.map(drop);
        disk.make_dir(&scratch.join("d/e")).await.unwrap();
        disk.make_dir(&scratch.join("d/e")).await.unwrap();
        let file = disk.open(&scratch.join("d/b"), Open::New).await.unwrap();
        disk.open(&scratch.join("d/a"), Open::New).await.unwrap();
        let again = disk.open(&scratch.join("d/a"), Open::New).await;
        assert_eq!(kind(opened(again)), io::ErrorKind::AlreadyExists);
        let missing = disk.open(&scratch.join("d/c"), Open::Existing).await;
        assert_eq!(kind(opened(missing)), io::ErrorKind::NotFound);
        let list = async |path: &str| {
            let names = disk.list_dir(&scratch.join(path)).await?;
            Ok::<_, io::Error>(names.into_iter().map(|name| (name.name, name.is_dir)).collect::<Vec<_>>())
        };
        let name = |text: &str, is_dir| (text.to_owned(), is_dir);
        assert_eq!(list("d").await.unwrap(), [name("a", false), name("b", false), name("e", true)]);
        assert_eq!(list("nowhere").await.unwrap_err().kind(), io::ErrorKind::NotFound);
        disk.rename(&scratch.join("d/b"), &scratch.join("d/a")).await.unwrap();
        disk.sync_dir(&scratch.join("d")).await.unwrap();
        assert_eq!(list("d").await.unwrap(), [name("a", false), name("e", true)]);
        assert_eq!(kind(disk.remove_dir(&scratch.join("d")).await), io::ErrorKind::DirectoryNotEmpty);
        disk.remove(&scratch.join("d/a")).await.unwrap();
        disk.remove_dir(&scratch.join("d/e")).await.unwrap();
        assert_eq!(list("d").await.unwrap(), []);
        // An open handle outlives its name.
        file.append(0, vec!["x".into()]).await.unwrap();
        assert_eq!(file.read_at(0, 1).await.unwrap(), "x");
    }

    #[tokio::test]
    async fn reserved_space_is_there_and_zero() {
        let scratch = Scratch::new("reserve");
        let disk = OsDisk::new(1);
        assert!(disk.free_space(&scratch.0).await.unwrap() > 1 << 20);
        let file = disk.open(&scratch.join("a"), Open::New).await.unwrap();
        file.append(0, vec!["abc".into()]).await.unwrap();
        file.preallocate(10_000).await.unwrap();
        file.preallocate(100).await.unwrap(); // Never shorter.
        file.preallocate(0).await.unwrap();
        assert_eq!(file.length().await.unwrap(), 10_000);
        let read = file.read_at(0, 20_000).await.unwrap();
        assert_eq!(&read[..3], b"abc");
        assert!(read.len() == 10_000 && read[3..].iter().all(|byte| *byte == 0));
    }

    #[tokio::test]
    async fn a_lock_is_held_once() {
        let scratch = Scratch::new("lock");
        let disk = OsDisk::new(1);
        let lock = disk.lock(&scratch.join("lock")).await.unwrap();
        let refused = disk.lock(&scratch.join("lock")).await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        drop(disk.lock(&scratch.join("lock")).await.unwrap());
    }
}
