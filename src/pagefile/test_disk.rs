//! A disk in memory for tests: knows what is durable and what is not, and
//! builds the image that any crash would leave.
//!
//! Asserts I5: no byte of a file is written twice, however often the member
//! crashed in between. Every operation completes at once.

use crate::env::{
    Disk, File, Io,
    disk::{Lock, Name, Open},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

pub(crate) const SECTOR: usize = 512;

/// What a power loss does to something that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Kept,
    Lost,
    /// Sectors only; the rest is lost.
    Garbled,
}

/// Something that a power loss decides about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Sector { file: u64, at: u64 },
    Length { file: u64 },
    Name,
}

#[derive(Clone)]
enum Unsynced {
    Write { at: u64, data: Vec<u8> },
    Length(u64),
}

#[derive(Clone, Default)]
struct Inode {
    data: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Unsynced>,
    /// First byte → byte behind, of everything ever written here.
    written: BTreeMap<u64, u64>,
}

#[derive(Clone)]
enum NameChange {
    Link(PathBuf, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf, u64),
}

#[derive(Clone, Default)]
struct World {
    inodes: BTreeMap<u64, Inode>,
    dirs: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    name_changes: Vec<NameChange>,
    next: u64,
    capacity: Option<u64>,
    operations: u64,
    allocations: u64,
    /// Allocations with these numbers find no space.
    full: std::ops::Range<u64>,
    /// The operation with this number, and all later ones, fail: the process died.
    dies_at: Option<u64>,
    sync_fails: bool,
}

/// Cheap clones share one disk.
#[derive(Clone, Default)]
pub(crate) struct TestDisk(Arc<Mutex<World>>);

fn done<T: Send + 'static>(result: io::Result<T>) -> Io<T> {
    Box::pin(future::ready(result))
}

fn apply_name(names: &mut BTreeMap<PathBuf, u64>, change: &NameChange) {
    match change {
        NameChange::Link(path, file) => {
            names.insert(path.clone(), *file);
        }
        NameChange::Unlink(path) => {
            names.remove(path);
        }
        NameChange::Rename(from, to, file) => {
            if names.get(from) == Some(file) {
                names.remove(from);
            }
            names.insert(to.clone(), *file);
        }
    }
}

fn put(data: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if data.len() < end {
        data.resize(end, 0);
    }
    data[at..end].copy_from_slice(bytes);
}

fn garble(bytes: &[u8], at: u64) -> Vec<u8> {
    let mut state = at ^ 0x9e37_79b9_7f4a_7c15;
    let mut garbled = bytes.to_vec();
    for byte in &mut garbled {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *byte ^= (state >> 56) as u8 | 1;
    }
    garbled
}

impl TestDisk {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// A process kill: everything written is readable, nothing more is durable.
    pub(crate) fn killed(&self) -> TestDisk {
        let mut world = self.world().clone();
        world.dies_at = None;
        world.sync_fails = false;
        world.capacity = None;
        world.full = 0..0;
        TestDisk(Arc::new(Mutex::new(world)))
    }

    /// A power loss: `fate` decides about each thing that was not synced.
    pub(crate) fn power_lost(&self, mut fate: impl FnMut(Point) -> Fate) -> TestDisk {
        let disk = self.killed();
        let mut world = disk.world();
        for (file, inode) in &mut world.inodes {
            let mut image = std::mem::take(&mut inode.durable);
            for change in inode.unsynced.drain(..) {
                match change {
                    Unsynced::Length(length) => {
                        if fate(Point::Length { file: *file }) == Fate::Kept {
                            image.resize(length as usize, 0);
                        }
                    }
                    Unsynced::Write { at, data } => {
                        let mut from = 0;
                        while from < data.len() {
                            let here = at + from as u64;
                            let to = (from + SECTOR - here as usize % SECTOR).min(data.len());
                            match fate(Point::Sector { file: *file, at: here }) {
                                Fate::Kept => put(&mut image, here, &data[from..to]),
                                Fate::Lost => {}
                                Fate::Garbled => put(&mut image, here, &garble(&data[from..to], here)),
                            }
                            from = to;
                        }
                    }
                }
            }
            inode.durable = image.clone();
            inode.data = image;
        }
        let mut names = std::mem::take(&mut world.durable_names);
        for change in std::mem::take(&mut world.name_changes) {
            if fate(Point::Name) == Fate::Kept {
                apply_name(&mut names, &change);
            }
        }
        world.names = names.clone();
        world.durable_names = names;
        drop(world);
        disk
    }

    /// Sectors that a power loss would decide about, in order.
    pub(crate) fn unsynced_sectors(&self) -> usize {
        let mut sectors = 0;
        self.power_lost(|point| {
            sectors += usize::from(matches!(point, Point::Sector { .. }));
            Fate::Lost
        });
        sectors
    }

    /// Operations that changed something so far.
    pub(crate) fn operations(&self) -> u64 {
        self.world().operations
    }

    pub(crate) fn die_at(&self, operation: u64) {
        self.world().dies_at = Some(operation);
    }

    pub(crate) fn fail_syncs(&self) {
        self.world().sync_fails = true;
    }

    pub(crate) fn set_capacity(&self, bytes: Option<u64>) {
        self.world().capacity = bytes;
    }

    /// No more than `more` bytes are left from now on.
    pub(crate) fn fill(&self, more: u64) {
        let mut world = self.world();
        let used: usize = world.names.values().map(|file| world.inodes[file].data.len()).sum();
        world.capacity = Some(used as u64 + more);
    }

    /// Allocations asked for so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.world().allocations
    }

    /// These allocations (counted from 1) will find no space.
    pub(crate) fn full_at(&self, allocations: std::ops::Range<u64>) {
        self.world().full = allocations;
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.world().names.keys().cloned().collect()
    }

    pub(crate) fn contents(&self, path: &Path) -> Vec<u8> {
        let world = self.world();
        world.inodes[&world.names[path]].data.clone()
    }

    /// Changes a file behind everyone's back, durably: rot.
    pub(crate) fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let file = world.names[path];
        let inode = world.inodes.get_mut(&file).unwrap();
        change(&mut inode.data);
        inode.durable = inode.data.clone();
    }

    pub(crate) fn forget(&self, path: &Path) {
        let mut world = self.world();
        world.names.remove(path);
        world.durable_names.remove(path);
    }

    /// Puts a file there, durable.
    pub(crate) fn place(&self, path: &Path, data: Vec<u8>) {
        let mut world = self.world();
        world.next += 1;
        let file = world.next;
        world.inodes.insert(file, Inode { durable: data.clone(), data, ..Inode::default() });
        world.names.insert(path.to_owned(), file);
        world.durable_names.insert(path.to_owned(), file);
        let dir = path.parent().unwrap().to_owned();
        world.dirs.insert(dir);
    }
}

impl World {
    /// Counts an operation that changes something; after death nothing is accepted.
    fn operate(&mut self) -> io::Result<()> {
        self.operations += 1;
        self.alive()
    }

    fn alive(&self) -> io::Result<()> {
        match self.dies_at {
            Some(at) if self.operations >= at => Err(io::Error::other("the process died")),
            _ => Ok(()),
        }
    }

    fn change_name(&mut self, change: NameChange) {
        apply_name(&mut self.names, &change);
        self.name_changes.push(change);
    }
}

struct TestLock;
impl Lock for TestLock {}

struct TestFile {
    disk: TestDisk,
    file: u64,
}

impl TestFile {
    fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut World, u64) -> io::Result<T>) -> Io<T> {
        done(work(&mut self.disk.world(), self.file))
    }
}

impl Disk for TestDisk {
    fn open(&self, path: &Path, how: Open) -> Io<Arc<dyn File>> {
        let mut world = self.world();
        let found = world.names.get(path).copied();
        let file = match (how, found) {
            (Open::New, Some(_)) => Err(ErrorKind::AlreadyExists.into()),
            (Open::New, None) => world.operate().map(|()| {
                world.next += 1;
                let file = world.next;
                world.inodes.insert(file, Inode::default());
                world.change_name(NameChange::Link(path.to_owned(), file));
                file
            }),
            (Open::Existing, found) => found.ok_or(ErrorKind::NotFound.into()),
        };
        drop(world);
        done(file.map(|file| Arc::new(TestFile { disk: self.clone(), file }) as Arc<dyn File>))
    }

    fn rename(&self, from: &Path, to: &Path) -> Io<()> {
        let mut world = self.world();
        done(world.operate().and_then(|()| {
            let file = *world.names.get(from).ok_or(ErrorKind::NotFound)?;
            world.change_name(NameChange::Rename(from.to_owned(), to.to_owned(), file));
            Ok(())
        }))
    }

    fn remove(&self, path: &Path) -> Io<()> {
        let mut world = self.world();
        done(world.operate().and_then(|()| {
            if !world.names.contains_key(path) {
                return Err(ErrorKind::NotFound.into());
            }
            world.change_name(NameChange::Unlink(path.to_owned()));
            Ok(())
        }))
    }

    fn remove_dir(&self, _path: &Path) -> Io<()> {
        done(Err(ErrorKind::Unsupported.into()))
    }

    fn make_dir(&self, path: &Path) -> Io<()> {
        self.world().dirs.insert(path.to_owned());
        done(Ok(()))
    }

    fn list_dir(&self, path: &Path) -> Io<Vec<Name>> {
        let world = self.world();
        if !world.dirs.contains(path) {
            return done(Err(ErrorKind::NotFound.into()));
        }
        let here = world.names.keys().filter(|name| name.parent() == Some(path));
        done(Ok(here
            .map(|name| Name { name: name.file_name().unwrap().to_str().unwrap().to_owned(), is_dir: false })
            .collect()))
    }

    fn sync_dir(&self, _path: &Path) -> Io<()> {
        let mut world = self.world();
        done(world.operate().and_then(|()| {
            if world.sync_fails {
                return Err(io::Error::other("sync failed"));
            }
            world.name_changes.clear();
            world.durable_names = world.names.clone();
            Ok(())
        }))
    }

    fn lock(&self, _path: &Path) -> Io<Box<dyn Lock>> {
        done(Ok(Box::new(TestLock)))
    }

    fn free_space(&self, _path: &Path) -> Io<u64> {
        done(Ok(u64::MAX))
    }
}

impl File for TestFile {
    fn preallocate(&self, size: u64) -> Io<()> {
        self.with(|world, file| {
            world.operate()?;
            world.allocations += 1;
            if world.full.contains(&world.allocations) {
                return Err(ErrorKind::StorageFull.into());
            }
            let used: usize = world.names.values().map(|file| world.inodes[file].data.len()).sum();
            if world.capacity.is_some_and(|capacity| used as u64 + size > capacity) {
                return Err(ErrorKind::StorageFull.into());
            }
            let inode = world.inodes.get_mut(&file).unwrap();
            let length = size.max(inode.data.len() as u64);
            inode.data.resize(length as usize, 0);
            inode.unsynced.push(Unsynced::Length(length));
            Ok(())
        })
    }

    fn append(&self, at: u64, data: Vec<Bytes>) -> Io<()> {
        self.with(|world, file| {
            world.alive()?;
            // The operation it dies in may still reach the disk in part.
            let outcome = world.operate();
            let data = data.concat();
            let inode = world.inodes.get_mut(&file).unwrap();
            let end = at + data.len() as u64;
            let overwritten = inode.written.range(..end).next_back().is_some_and(|(_, behind)| *behind > at);
            assert!(!overwritten, "I5: bytes from {at} were written before");
            inode.written.insert(at, end);
            put(&mut inode.data, at, &data);
            inode.unsynced.push(Unsynced::Write { at, data });
            outcome
        })
    }

    fn read_at(&self, at: u64, length: usize) -> Io<Bytes> {
        self.with(|world, file| {
            let data = &world.inodes[&file].data;
            let from = (at as usize).min(data.len());
            Ok(Bytes::copy_from_slice(&data[from..(from + length).min(data.len())]))
        })
    }

    fn sync_data(&self) -> Io<()> {
        self.with(|world, file| {
            world.operate()?;
            let fails = world.sync_fails;
            let inode = world.inodes.get_mut(&file).unwrap();
            if fails {
                return Err(io::Error::other("sync failed"));
            }
            inode.unsynced.clear();
            inode.durable = inode.data.clone();
            Ok(())
        })
    }

    fn length(&self) -> Io<u64> {
        self.with(|world, file| Ok(world.inodes[&file].data.len() as u64))
    }

    fn truncate(&self, length: u64) -> Io<()> {
        self.with(|world, file| {
            world.operate()?;
            let inode = world.inodes.get_mut(&file).unwrap();
            inode.data.resize(length as usize, 0);
            inode.unsynced.push(Unsynced::Length(length));
            Ok(())
        })
    }
}
