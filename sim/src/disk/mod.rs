//! A disk for each node, with the crashes that real ones have.
//!
//! Promises (the contract of `quorate::env::disk`): operations are submitted
//! when called, those on one file are carried out in that order, each takes
//! some drawn virtual time, and a dropped future undoes nothing. A *process
//! kill* leaves every write that was carried out readable and no more durable
//! than before; a *power loss* ([`DiskSim::lose_power`]) keeps any subset of
//! what was not synced. Handles belong to one life of their node: a zombie is
//! refused. Overwritten bytes (I5) are reported, see [`DiskSim::take_overwrites`].
//!
//! **Never** decides when something fails: the plan does.

mod image;
mod mount;
mod names;
mod node;
mod work;

pub use image::Keep;
pub use mount::SimDisk;

use crate::dice::Dice;
use crate::journal::note;
use crate::plan::Decay;
use crate::time::{Until, ns};
use futures::FutureExt;
use madsim::{plugin::Simulator, task::NodeId, time::TimeHandle};
use node::NodeDisk;
use quorate::env::disk::Io;
use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use work::{Answer, Lane, Work, trace_submission};

/// What is wrong with a disk at the moment.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Operations take this many times as long.
    pub slow: u64,
    /// Reads take this many times as long, on top of that.
    pub slow_reads: u64,
    /// A sync fails with this probability.
    pub sync_error: f64,
    /// Bytes that fit; what is allocated already stays, even when it is more.
    pub capacity: Option<u64>,
    /// The next append lands elsewhere.
    pub misdirect: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { slow: 1, slow_reads: 1, sync_error: 0.0, capacity: None, misdirect: false }
    }
}

const CAPACITY: u64 = 1 << 40;

/// All disks of a run.
pub struct DiskSim {
    time: TimeHandle,
    seed: u64,
    nodes: Mutex<BTreeMap<NodeId, NodeDisk>>,
    frozen: tokio::sync::Notify,
}

impl Simulator for DiskSim {
    fn new(random: &madsim::rand::GlobalRng, time: &TimeHandle, _: &madsim::Config) -> Self {
        let seed = madsim::rand::Rng::r#gen::<u64>(&mut random.clone());
        DiskSim { time: time.clone(), seed, nodes: Mutex::default(), frozen: tokio::sync::Notify::new() }
    }

    fn create_node(&self, id: NodeId) {
        let disk = NodeDisk::new(Dice::new(&format!("disk {id}"), self.seed));
        self.locked().insert(id, disk);
    }

    /// A process kill; madsim calls it before the dead tasks' destructors run.
    fn reset_node(&self, id: NodeId) {
        let now = ns(&self.time);
        self.with(id, |disk| disk.kill(now));
    }
}

impl DiskSim {
    pub fn get() -> Arc<DiskSim> {
        madsim::plugin::simulator()
    }

    /// A panic elsewhere must not hide behind a poisoned lock.
    fn locked(&self) -> MutexGuard<'_, BTreeMap<NodeId, NodeDisk>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, id: NodeId, act: impl FnOnce(&mut NodeDisk) -> T) -> T {
        act(self.locked().get_mut(&id).expect("madsim made a disk for every node"))
    }

    /// The node's machine loses power: to be followed by a kill of the node.
    pub fn lose_power(&self, id: NodeId, keep: Keep) {
        let now = ns(&self.time);
        self.with(id, |disk| {
            disk.kill(now);
            disk.lose_power(keep);
        });
    }

    pub fn set_faults(&self, id: NodeId, change: impl FnOnce(&mut Faults)) {
        self.with(id, |disk| change(&mut disk.faults));
    }

    /// Whether a member that runs may stop over what is wrong with its disk now. Lack of space is
    /// no reason to.
    pub fn is_troubled(&self, id: NodeId) -> bool {
        self.with(id, |disk| disk.faults.sync_error > 0.0 || disk.faults.misdirect)
    }

    pub fn is_full(&self, id: NodeId) -> bool {
        self.with(id, |disk| disk.faults.capacity.is_some())
    }

    /// The disk freezes at the n-th operation from now (1 = the next one); see [`DiskSim::frozen`].
    pub fn freeze_after(&self, id: NodeId, operations: u64) {
        assert!(operations > 0, "the next operation is the first");
        self.with(id, |disk| disk.freeze_at = Some(disk.submitted + operations));
    }

    pub fn cancel_freeze(&self, id: NodeId) {
        self.with(id, |disk| disk.freeze_at = None);
    }

    pub fn is_frozen(&self, id: NodeId) -> bool {
        self.with(id, |disk| disk.frozen)
    }

    /// Completes when some disk froze.
    pub async fn frozen(&self) {
        self.frozen.notified().await;
    }

    /// Bytes that files take now.
    pub fn used(&self, id: NodeId) -> u64 {
        self.with(id, |disk| disk.used())
    }

    /// The most bytes that the files of a directory ever took.
    pub fn peak(&self, id: NodeId, directory: &Path) -> u64 {
        self.with(id, |disk| disk.peak(directory))
    }

    /// Damages something below `directory` that was synced long ago; says where.
    pub fn rot(&self, id: NodeId, directory: &Path, decay: Decay) -> Option<String> {
        self.with(id, |disk| disk.rot(directory, decay))
    }

    /// The disk is full from the n-th allocation on (1 = the next one).
    pub fn fill_at(&self, id: NodeId, allocation: u64) {
        self.with(id, |disk| disk.fill_at = Some(disk.allocations + allocation));
    }

    /// Operations and allocations so far.
    pub fn counts(&self, id: NodeId) -> (u64, u64) {
        self.with(id, |disk| (disk.submitted, disk.allocations))
    }

    /// Sectors below `directory` that hold something durable.
    pub fn sectors(&self, id: NodeId, directory: &Path) -> u64 {
        self.with(id, |disk| disk.sectors(directory).len() as u64)
    }

    /// Damages the n-th of those (from 1); says what.
    pub fn rot_sector(&self, id: NodeId, directory: &Path, nth: u64, decay: Decay) -> Option<String> {
        self.with(id, |disk| disk.rot_sector(directory, nth, decay))
    }

    /// Places below `directory` that rotted and that a name still leads to.
    pub fn rotten(&self, id: NodeId, directory: &Path) -> Vec<String> {
        self.with(id, |disk| disk.rotten(directory))
    }

    /// Takes a directory away with all that is in it, as if it had never been.
    pub fn forget(&self, id: NodeId, directory: &Path) {
        self.with(id, |disk| disk.forget(directory));
    }

    /// Bytes that were written twice, one sentence each.
    pub fn take_overwrites(&self) -> Vec<String> {
        self.locked().values_mut().flat_map(|disk| std::mem::take(&mut disk.overwrites)).collect()
    }

    fn submit(self: &Arc<Self>, id: NodeId, epoch: u64, lane: Lane, work: Work) -> Io<Answer> {
        let now = ns(&self.time);
        let submitted = self.with(id, |disk| {
            disk.settle(now);
            if disk.epoch != epoch {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            if disk.freeze_at.is_some_and(|at| disk.submitted + 1 >= at) {
                disk.frozen = true;
                disk.freeze_at = None;
                self.frozen.notify_one();
            }
            note(|| format!("{id} disk {} {lane:?}", work.name()));
            trace_submission(id, lane, &work);
            Ok(disk.enqueue(now, lane, work))
        });
        let (finish, slot) = match submitted {
            Ok(submitted) => submitted,
            Err(error) => return async move { Err(error) }.boxed(),
        };
        let sim = self.clone();
        let end = Until::new(&self.time, finish);
        async move {
            end.await;
            sim.with(id, |disk| disk.settle(ns(&sim.time)));
            let answer = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            match answer {
                Some(answer) => answer,
                // The disk froze or the node died: nobody will ever be told.
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
