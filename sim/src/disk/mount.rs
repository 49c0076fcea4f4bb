//! The product's view of a disk: `quorate::env::disk` for one life of a node.
//!
//! **Never** keeps anything: all of it is the node's disk's.

use super::{
    CAPACITY, DiskSim,
    work::{Answer, Lane, Work},
};
use bytes::Bytes;
use futures::FutureExt;
use madsim::task::NodeId;
use quorate::env::disk::{Disk, File, Io, Lock, Name, Open};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// One life's door to its node's disk.
#[derive(Clone)]
pub struct SimDisk {
    sim: Arc<DiskSim>,
    node: NodeId,
    epoch: u64,
}

impl SimDisk {
    /// The disk of the node that the calling task runs on.
    pub fn mount() -> SimDisk {
        let (sim, node) = (DiskSim::get(), madsim::plugin::node());
        let epoch = sim.with(node, |disk| disk.epoch);
        SimDisk { sim, node, epoch }
    }

    fn on_names<T: 'static>(&self, work: Work, pick: impl FnOnce(Answer) -> T + Send + 'static) -> Io<T> {
        let answer = self.sim.submit(self.node, self.epoch, Lane::Names, work);
        async move { answer.await.map(pick) }.boxed()
    }
}

fn done(_: Answer) {}

impl Disk for SimDisk {
    fn open(&self, path: &Path, how: Open) -> Io<Arc<dyn File>> {
        let disk = self.clone();
        self.on_names(Work::Open(path.to_owned(), how), move |answer| match answer {
            Answer::Opened { inode, token } => {
                Arc::new(SimFile { disk, inode, _token: token }) as Arc<dyn File>
            }
            _ => unreachable!("open answers with a file"),
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Io<()> {
        self.on_names(Work::Rename(from.to_owned(), to.to_owned()), done)
    }

    fn remove(&self, path: &Path) -> Io<()> {
        self.on_names(Work::Remove(path.to_owned()), done)
    }

    fn remove_dir(&self, path: &Path) -> Io<()> {
        self.on_names(Work::RemoveDir(path.to_owned()), done)
    }

    fn make_dir(&self, path: &Path) -> Io<()> {
        self.on_names(Work::MakeDir(path.to_owned()), done)
    }

    fn list_dir(&self, path: &Path) -> Io<Vec<Name>> {
        self.on_names(Work::ListDir(path.to_owned()), |answer| match answer {
            Answer::Names(names) => names,
            _ => unreachable!("list answers with names"),
        })
    }

    fn sync_dir(&self, path: &Path) -> Io<()> {
        self.on_names(Work::SyncDir(path.to_owned()), done)
    }

    fn lock(&self, path: &Path) -> Io<Box<dyn Lock>> {
        let disk = self.clone();
        self.on_names(Work::Lock(path.to_owned()), move |answer| match answer {
            Answer::Locked(path) => Box::new(SimLock { disk, path }) as Box<dyn Lock>,
            _ => unreachable!("lock answers with a lock"),
        })
    }

    fn free_space(&self, _path: &Path) -> Io<u64> {
        let free = self
            .sim
            .with(self.node, |disk| disk.faults.capacity.unwrap_or(CAPACITY).saturating_sub(disk.used()));
        async move { Ok(free) }.boxed()
    }
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.sim.with(self.disk.node, |disk| {
            if disk.epoch == self.disk.epoch {
                disk.locks.remove(&self.path);
            }
        });
    }
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
    _token: Arc<()>,
}

impl SimFile {
    fn submit<T: 'static>(&self, work: Work, pick: impl FnOnce(Answer) -> T + Send + 'static) -> Io<T> {
        let SimDisk { sim, node, epoch } = &self.disk;
        let answer = sim.submit(*node, *epoch, Lane::File(self.inode), work);
        async move { answer.await.map(pick) }.boxed()
    }
}

impl File for SimFile {
    fn preallocate(&self, size: u64) -> Io<()> {
        self.submit(Work::Preallocate(size), done)
    }

    fn append(&self, at: u64, data: Vec<Bytes>) -> Io<()> {
        self.submit(Work::Append(at, data), done)
    }

    fn read_at(&self, at: u64, length: usize) -> Io<Bytes> {
        self.submit(Work::ReadAt(at, length), |answer| match answer {
            Answer::Bytes(bytes) => bytes,
            _ => unreachable!("a read answers with bytes"),
        })
    }

    fn sync_data(&self) -> Io<()> {
        self.submit(Work::Sync, done)
    }

    fn length(&self) -> Io<u64> {
        self.submit(Work::Length, |answer| match answer {
            Answer::Length(length) => length,
            _ => unreachable!("length answers with a length"),
        })
    }

    fn truncate(&self, length: u64) -> Io<()> {
        self.submit(Work::Truncate(length), done)
    }
}
