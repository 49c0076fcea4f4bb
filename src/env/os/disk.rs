//! Files of the operating system.
//!
//! **Promises** what [`crate::env::disk`] asks for: an operation is under way
//! when its method returns, and those on one file keep their order (each file
//! is a [`Strand`]). Reads are the exception that no one can see: while no
//! change of the file is pending they need no order, so they do not queue
//! behind its sync; what the page cache holds is read at once, without a
//! thread. **Never** a second try after an error.

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
            options.read(true).write(true).create_new(how == Open::New).mode(FILE_MODE);
            let file = Shared::new(options.open(path)?);
            Ok(Arc::new(OsFile { shared: Arc::new(file), strand: Strand::new(pool.clone()), pool })
                as Arc<dyn File>)
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

#[derive(Default)]
struct Pending {
    /// Changes of content or length, submitted and not done. A sync is none.
    changes: usize,
    /// Reads under way outside the strand.
    reads: usize,
}

impl Shared {
    fn new(file: fs::File) -> Shared {
        Shared {
            file,
            pending: Mutex::default(),
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
        self.change(move |shared| shared.write(at, &data))
    }

    fn read_at(&self, at: u64, length: usize) -> Io<Bytes> {
        let mut pending = self.shared.pending();
        if pending.changes > 0 {
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
