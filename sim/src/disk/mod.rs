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
mod names;

pub use image::Keep;

use crate::dice::Dice;
use crate::journal::note;
use crate::time::{Until, ns};
use bytes::Bytes;
use futures::FutureExt;
use image::{Image, SECTOR};
use madsim::{plugin::Simulator, task::NodeId, time::TimeHandle};
use names::{Entry, Names};
use quorate::env::disk::{Disk, File, Io, Lock, Name, Open};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// What is wrong with a disk at the moment.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Operations take this many times as long.
    pub slow: u64,
    /// A sync fails with this probability.
    pub sync_error: f64,
    /// Bytes that fit.
    pub capacity: Option<u64>,
    /// The next append lands elsewhere.
    pub misdirect: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { slow: 1, sync_error: 0.0, capacity: None, misdirect: false }
    }
}

const CAPACITY: u64 = 1 << 40;

/// A queue whose operations keep their order: a file's, or that of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Names,
    File(u64),
}

#[derive(Debug)]
enum Work {
    Open(PathBuf, Open),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    RemoveDir(PathBuf),
    MakeDir(PathBuf),
    ListDir(PathBuf),
    SyncDir(PathBuf),
    Lock(PathBuf),
    Preallocate(u64),
    Append(u64, Vec<Bytes>),
    ReadAt(u64, usize),
    Sync,
    Length,
    Truncate(u64),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Open(..) => "open",
            Work::Rename(..) => "rename",
            Work::Remove(_) => "remove",
            Work::RemoveDir(_) => "remove-dir",
            Work::MakeDir(_) => "make-dir",
            Work::ListDir(_) => "list-dir",
            Work::SyncDir(_) => "sync-dir",
            Work::Lock(_) => "lock",
            Work::Preallocate(_) => "preallocate",
            Work::Append(..) => "append",
            Work::ReadAt(..) => "read-at",
            Work::Sync => "sync",
            Work::Length => "length",
            Work::Truncate(_) => "truncate",
        }
    }

    /// Virtual nanoseconds on a healthy disk.
    fn cost(&self, dice: &mut Dice) -> u64 {
        let micros = |dice: &mut Dice, low: u64, high: u64| dice.between(low * 1000, high * 1000);
        match self {
            Work::Length | Work::ListDir(_) | Work::Lock(_) => micros(dice, 1, 10),
            Work::ReadAt(..) => micros(dice, 10, 120),
            Work::Append(_, data) => {
                micros(dice, 5, 60) + data.iter().map(|part| part.len() as u64).sum::<u64>()
            }
            Work::Sync | Work::SyncDir(_) if dice.chance(0.02) => micros(dice, 5_000, 40_000),
            Work::Sync | Work::SyncDir(_) => micros(dice, 150, 3_000),
            _ => micros(dice, 10, 200),
        }
    }
}

enum Answer {
    Done,
    Opened { inode: u64, token: Arc<()> },
    Names(Vec<Name>),
    Locked(PathBuf),
    Bytes(Bytes),
    Length(u64),
}

type Slot = Arc<Mutex<Option<io::Result<Answer>>>>;

struct Queued {
    lane: Lane,
    work: Work,
    slot: Slot,
}

#[derive(Default)]
struct Inode {
    image: Image,
    /// Alive while some handle is.
    opened: Weak<()>,
}

#[derive(Default)]
struct NodeDisk {
    /// Which life of the node; handles of earlier ones are refused.
    epoch: u64,
    /// The disk answers nothing any more: the node is about to be killed.
    frozen: bool,
    names: Names,
    inodes: BTreeMap<u64, Inode>,
    inode_last: u64,
    busy_until: BTreeMap<Lane, u64>,
    /// By the time they will be carried out, then by submission.
    queue: BTreeMap<(u64, u64), Queued>,
    submitted: u64,
    /// Freeze at this operation.
    freeze_at: Option<u64>,
    locks: BTreeSet<PathBuf>,
    faults: Faults,
    dice: Option<Dice>,
    overwrites: Vec<String>,
}

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
        let disk =
            NodeDisk { dice: Some(Dice::new(&format!("disk {id}"), self.seed)), ..NodeDisk::default() };
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

    /// Whether a member may stop over what is wrong with its disk now.
    pub fn is_troubled(&self, id: NodeId) -> bool {
        self.with(id, |disk| {
            let Faults { sync_error, capacity, misdirect, .. } = &disk.faults;
            *sync_error > 0.0 || capacity.is_some() || *misdirect
        })
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

    /// Changes a bit of something that was synced long ago; says where.
    pub fn rot(&self, id: NodeId) -> Option<String> {
        self.with(id, |disk| {
            let (name, inode, at) = disk.old_place()?;
            let bit = disk.dice().below(8) as u8;
            let image = &mut disk.inodes.get_mut(&inode).expect("names point to files").image;
            image.damage(at, |_, byte| byte ^ (1 << bit), 1);
            Some(format!("bit {bit} of byte {at} of {}", name.display()))
        })
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

fn trace_submission(id: NodeId, lane: Lane, work: &Work) {
    let mut bytes = format!("{id} {} {lane:?}", work.name()).into_bytes();
    match work {
        Work::Append(at, data) => {
            bytes.extend(at.to_le_bytes());
            let sum = data.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part));
            bytes.extend(sum.to_le_bytes());
        }
        Work::ReadAt(at, length) => {
            bytes.extend(at.to_le_bytes());
            bytes.extend((*length as u64).to_le_bytes());
        }
        Work::Preallocate(length) | Work::Truncate(length) => bytes.extend(length.to_le_bytes()),
        Work::Rename(path, to) => {
            bytes.extend(path.as_os_str().as_encoded_bytes());
            bytes.extend(to.as_os_str().as_encoded_bytes());
        }
        Work::Open(path, _)
        | Work::Remove(path)
        | Work::RemoveDir(path)
        | Work::MakeDir(path)
        | Work::ListDir(path)
        | Work::SyncDir(path)
        | Work::Lock(path) => bytes.extend(path.as_os_str().as_encoded_bytes()),
        Work::Sync | Work::Length => {}
    }
    quorate::trace!("disk", &bytes);
}

impl NodeDisk {
    fn dice(&mut self) -> &mut Dice {
        self.dice.as_mut().expect("made with the disk")
    }

    fn enqueue(&mut self, now: u64, lane: Lane, work: Work) -> (u64, Slot) {
        self.submitted += 1;
        let cost = work.cost(self.dice.as_mut().expect("made with the disk"));
        let busy = self.busy_until.entry(lane).or_default();
        let finish = (*busy).max(now) + cost * self.faults.slow;
        *busy = finish;
        let slot = Slot::default();
        // What a frozen disk was asked never happens; the caller waits until it is killed.
        if !self.frozen {
            self.queue.insert((finish, self.submitted), Queued { lane, work, slot: slot.clone() });
        }
        (finish, slot)
    }

    /// Carries out what is due.
    fn settle(&mut self, now: u64) {
        while !self.frozen
            && let Some(first) = self.queue.first_entry()
            && first.key().0 <= now
        {
            let Queued { lane, work, slot } = first.remove();
            let answer = self.perform(lane, work);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        }
    }

    /// The process dies: of each file's queue some first part is still carried out.
    fn kill(&mut self, now: u64) {
        self.settle(now);
        let mut stopped = BTreeSet::new();
        for (_, Queued { lane, work, .. }) in std::mem::take(&mut self.queue) {
            if !stopped.contains(&lane) && self.dice().chance(0.5) {
                drop(self.perform(lane, work));
            } else {
                stopped.insert(lane);
            }
        }
        self.epoch += 1;
        self.frozen = false;
        self.freeze_at = None;
        self.locks.clear();
        self.busy_until.clear();
        self.collect(|_| true);
    }

    fn lose_power(&mut self, keep: Keep) {
        let mut dice = self.dice.take().expect("made with the disk");
        for inode in self.inodes.values_mut() {
            inode.image.lose_power(keep, &mut dice);
        }
        self.names.lose_power(keep, &mut dice);
        self.dice = Some(dice);
        self.collect(|_| true);
    }

    /// Forgets files that no name and no handle leads to any more.
    fn collect(&mut self, closed: impl Fn(&Inode) -> bool) {
        let NodeDisk { inodes, names, .. } = self;
        inodes.retain(|number, inode| !closed(inode) || names.holds(*number));
    }

    fn used(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.files().map(|(_, inode)| inode).collect();
        named.iter().filter_map(|inode| self.inodes.get(inode)).map(|inode| inode.image.length()).sum()
    }

    fn room_for(&self, more: u64) -> io::Result<()> {
        match self.faults.capacity {
            Some(capacity) if self.used() + more > capacity => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn perform(&mut self, lane: Lane, work: Work) -> io::Result<Answer> {
        match lane {
            Lane::Names => self.perform_on_names(work),
            Lane::File(number) => self.perform_on_file(number, work),
        }
    }

    fn perform_on_names(&mut self, work: Work) -> io::Result<Answer> {
        let names = &mut self.names;
        match work {
            Work::Open(path, how) => {
                let number = match how {
                    Open::New => {
                        names.create(&path, self.inode_last + 1)?;
                        self.inode_last += 1;
                        self.inodes.insert(self.inode_last, Inode::default());
                        self.inode_last
                    }
                    Open::Existing | Open::ReadOnly => names.file(&path)?,
                };
                let inode = self.inodes.get_mut(&number).expect("a name's file is kept");
                let token = inode.opened.upgrade().unwrap_or_default();
                inode.opened = Arc::downgrade(&token);
                return Ok(Answer::Opened { inode: number, token });
            }
            Work::Rename(from, to) => names.rename(&from, &to)?,
            Work::Remove(path) => names.remove(&path)?,
            Work::RemoveDir(path) => names.remove_dir(&path)?,
            Work::MakeDir(path) => names.make_dir(&path)?,
            Work::ListDir(path) => {
                let list = names.list(&path)?;
                let name = |(name, entry)| Name { name, is_dir: entry == Entry::Dir };
                return Ok(Answer::Names(list.into_iter().map(name).collect()));
            }
            Work::SyncDir(path) => {
                let error = self.faults.sync_error;
                if error > 0.0 && self.dice().chance(error) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                self.names.sync_dir(&path)?;
                self.collect(|inode| inode.opened.strong_count() == 0);
            }
            Work::Lock(path) => {
                if names.get(&path).is_none() {
                    names.create(&path, self.inode_last + 1)?;
                    self.inode_last += 1;
                    self.inodes.insert(self.inode_last, Inode::default());
                }
                if !self.locks.insert(path.clone()) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                return Ok(Answer::Locked(path));
            }
            _ => unreachable!("work on a file goes to the file's lane"),
        }
        Ok(Answer::Done)
    }

    fn perform_on_file(&mut self, number: u64, work: Work) -> io::Result<Answer> {
        let length = self.inode(number)?.image.length();
        match work {
            Work::Preallocate(size) => {
                self.room_for(size.saturating_sub(length))?;
                if size > length {
                    self.inode(number)?.image.set_length(size);
                }
            }
            Work::Append(at, data) => self.append(number, at, data)?,
            Work::ReadAt(at, size) => return Ok(Answer::Bytes(self.inode(number)?.image.read(at, size))),
            Work::Sync => {
                let error = self.faults.sync_error;
                let mut dice = self.dice.take().expect("made with the disk");
                let fails = error > 0.0 && dice.chance(error);
                let image = &mut self.inodes.get_mut(&number).expect("looked up above").image;
                if fails {
                    image.fail_sync(&mut dice)
                } else {
                    image.sync()
                }
                self.dice = Some(dice);
                if fails {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
            }
            Work::Length => return Ok(Answer::Length(length)),
            Work::Truncate(size) => {
                self.room_for(size.saturating_sub(length))?;
                self.inode(number)?.image.set_length(size);
            }
            _ => unreachable!("work on names goes to the names' lane"),
        }
        Ok(Answer::Done)
    }

    fn append(&mut self, number: u64, at: u64, data: Vec<Bytes>) -> io::Result<()> {
        let size: u64 = data.iter().map(|part| part.len() as u64).sum();
        let length = self.inode(number)?.image.length();
        self.room_for((at + size).saturating_sub(length))?;
        if self.faults.misdirect
            && let Some((name, victim, place)) = self.old_place()
        {
            self.faults.misdirect = false;
            let place = place - place % SECTOR;
            note(|| {
                format!("a write to byte {at} of file {number} lands on byte {place} of {}", name.display())
            });
            let whole = data.concat();
            let image = &mut self.inodes.get_mut(&victim).expect("names point to files").image;
            image.damage(place, |index, _| whole[index], whole.len());
            _ = self.inode(number)?.image.pretend(at, size);
            return Ok(());
        }
        let mut position = at;
        for part in data {
            let next = position + part.len() as u64;
            if let Err(byte) = self.inode(number)?.image.write(position, part) {
                let name = self.names.files().find(|(_, inode)| *inode == number);
                let name = name.map_or("a removed file".into(), |(name, _)| name.display().to_string());
                self.overwrites.push(format!("byte {byte} of {name} was written twice"));
            }
            position = next;
        }
        Ok(())
    }

    fn inode(&mut self, number: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// A byte that was synced in a file that is not the newest of its directory: some later
    /// mark covers it, or its segment is sealed.
    fn old_place(&mut self) -> Option<(PathBuf, u64, u64)> {
        let files: Vec<(PathBuf, u64)> =
            self.names.files().map(|(name, inode)| (name.clone(), inode)).collect();
        let newest: BTreeMap<Option<&Path>, u64> =
            files.iter().fold(BTreeMap::new(), |mut newest, (name, inode)| {
                let last = newest.entry(name.parent()).or_insert(0);
                *last = (*last).max(*inode);
                newest
            });
        let old: Vec<&(PathBuf, u64)> = files
            .iter()
            .filter(|(name, inode)| newest[&name.parent()] != *inode)
            .filter(|(_, inode)| self.inodes[inode].image.is_synced())
            .filter(|(_, inode)| !self.inodes[inode].image.synced_spans().is_empty())
            .collect();
        if old.is_empty() {
            return None;
        }
        let dice = self.dice.as_mut().expect("made with the disk");
        let (name, inode) = (*dice.pick(&old)).clone();
        let spans = self.inodes[&inode].image.synced_spans();
        let (start, end) = *dice.pick(&spans);
        Some((name, inode, dice.between(start, end - 1)))
    }
}

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

#[cfg(test)]
mod tests;
