//! One node's disk: its files and names, what is queued, and what is wrong with it.
//!
//! Promises: operations on one file, and on names, are carried out in the order
//! of submission; space counts from the moment that it is allocated until the
//! last name **and** the last handle of a file are gone. **Never** knows why.

use super::{
    Faults, Keep,
    image::{Image, SECTOR},
    names::{Entry, Names},
    work::{Answer, Lane, Queued, Slot, Work},
};
use crate::dice::Dice;
use crate::journal::note;
use crate::plan::Decay;
use bytes::Bytes;
use quorate::env::disk::{Name, Open};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, Weak},
};

/// A file's name, its inode, and spans of it that are old.
type OldFile = (PathBuf, u64, Vec<(u64, u64)>);

/// A place that rotted, and what stands there since.
struct Rotten {
    inode: u64,
    at: u64,
    bytes: Bytes,
    sentence: String,
}

/// Files that were appended to last may end in what no later write vouches for.
const FRESH_FILES: usize = 3;

#[derive(Default)]
struct Inode {
    image: Image,
    /// Which submission of the disk appended last.
    appended: u64,
    /// Alive while some handle is.
    opened: Weak<()>,
}

#[derive(Default)]
pub struct NodeDisk {
    /// Which life of the node; handles of earlier ones are refused.
    pub epoch: u64,
    /// The disk answers nothing any more: the node is about to be killed.
    pub frozen: bool,
    names: Names,
    inodes: BTreeMap<u64, Inode>,
    inode_last: u64,
    busy_until: BTreeMap<Lane, u64>,
    /// By the time they will be carried out, then by submission.
    queue: BTreeMap<(u64, u64), Queued>,
    pub submitted: u64,
    pub allocations: u64,
    /// Full from this allocation on.
    pub fill_at: Option<u64>,
    /// Freeze at this operation.
    pub freeze_at: Option<u64>,
    pub locks: BTreeSet<PathBuf>,
    pub faults: Faults,
    dice: Option<Dice>,
    pub overwrites: Vec<String>,
    rotten: Vec<Rotten>,
    /// The most bytes that the files of each directory took.
    peaks: BTreeMap<PathBuf, u64>,
}

impl NodeDisk {
    pub fn new(dice: Dice) -> NodeDisk {
        NodeDisk { dice: Some(dice), ..NodeDisk::default() }
    }

    fn dice(&mut self) -> &mut Dice {
        self.dice.as_mut().expect("made with the disk")
    }

    pub fn enqueue(&mut self, now: u64, lane: Lane, work: Work) -> (u64, Slot) {
        self.submitted += 1;
        let cost = work.cost(self.dice.as_mut().expect("made with the disk"));
        let busy = self.busy_until.entry(lane).or_default();
        let slow = match work {
            Work::ReadAt(..) => self.faults.slow * self.faults.slow_reads,
            _ => self.faults.slow,
        };
        let finish = (*busy).max(now) + cost * slow;
        *busy = finish;
        let slot = Slot::default();
        // What a frozen disk was asked never happens; the caller waits until it is killed.
        if !self.frozen {
            self.queue.insert((finish, self.submitted), Queued { lane, work, slot: slot.clone() });
        }
        (finish, slot)
    }

    /// Carries out what is due.
    pub fn settle(&mut self, now: u64) {
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
    pub fn kill(&mut self, now: u64) {
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

    pub fn lose_power(&mut self, keep: Keep) {
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

    /// A file takes its space until its last name and its last handle are gone.
    pub fn used(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.files().map(|(_, inode)| inode).collect();
        let taken =
            |(number, inode): &(&u64, &Inode)| named.contains(number) || inode.opened.strong_count() > 0;
        self.inodes.iter().filter(taken).map(|(_, inode)| inode.image.length()).sum()
    }

    pub fn peak(&self, directory: &Path) -> u64 {
        self.peaks.get(directory).copied().unwrap_or(0)
    }

    /// A file grew: so did its directory.
    fn note_growth(&mut self, number: u64) {
        let Some(directory) = self.names.files().find(|(_, inode)| *inode == number) else { return };
        let Some(directory) = directory.0.parent().map(Path::to_owned) else { return };
        let files = self.names.files().filter(|(name, _)| name.parent() == Some(&directory));
        let now =
            files.filter_map(|(_, inode)| self.inodes.get(&inode)).map(|inode| inode.image.length()).sum();
        let peak = self.peaks.entry(directory).or_insert(0);
        *peak = (*peak).max(now);
    }

    fn room_for(&mut self, more: u64) -> io::Result<()> {
        if more == 0 {
            return Ok(());
        }
        self.allocations += 1;
        if self.fill_at.is_some_and(|at| self.allocations >= at) {
            self.fill_at = None;
            self.faults.capacity = Some(self.used());
        }
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
                    self.note_growth(number);
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
        let submitted = self.submitted;
        self.inode(number)?.appended = submitted;
        if self.faults.misdirect
            && let Some((name, victim, place)) = self.old_place(Path::new("/"))
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
        if position > length {
            self.note_growth(number);
        }
        Ok(())
    }

    fn inode(&mut self, number: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// A byte of a page that was synced long ago: some later mark covers it, or its file is closed.
    /// Bytes of zero are spared: they may be padding, which nobody reads.
    fn old_place(&mut self, below: &Path) -> Option<(PathBuf, u64, u64)> {
        let mut last: BTreeMap<Option<&Path>, Vec<(u64, u64)>> = BTreeMap::new();
        for (name, inode) in self.names.files() {
            last.entry(name.parent()).or_default().push((self.inodes[&inode].appended, inode));
        }
        last.values_mut().for_each(|files| files.sort_unstable_by(|one, other| other.cmp(one)));
        let fresh = |name: &Path, inode: u64| {
            last[&name.parent()].iter().take(FRESH_FILES).any(|(_, other)| *other == inode)
        };
        let mut old: Vec<OldFile> = Vec::new();
        for (name, inode) in self.names.files().filter(|(name, _)| name.starts_with(below)) {
            let image = &self.inodes[&inode].image;
            let spans = image.old_spans(!fresh(name, inode));
            if !spans.is_empty() {
                old.push((name.clone(), inode, spans));
            }
        }
        if old.is_empty() {
            return None;
        }
        let dice = self.dice.as_mut().expect("made with the disk");
        for _ in 0..100 {
            let (name, inode, spans) = dice.pick(&old);
            let (start, end) = *dice.pick(spans);
            let at = dice.between(start, end - 1);
            if self.inodes[inode].image.read(at, 1)[..] != [0] {
                return Some((name.clone(), *inode, at));
            }
        }
        None
    }

    /// Damages something old below `directory`; says what.
    pub fn rot(&mut self, directory: &Path, decay: Decay) -> Option<String> {
        let place = self.old_place(directory)?;
        let other = self.old_place(directory)?;
        let word = self.dice().word();
        self.rot_at(place, other, word, decay)
    }

    /// Sectors of files below `directory` that hold something, by name and position: each with the
    /// bytes that are not zero.
    pub fn sectors(&self, directory: &Path) -> Vec<(PathBuf, u64, Vec<u64>)> {
        let mut sectors = Vec::new();
        for (name, inode) in self.names.files().filter(|(name, _)| name.starts_with(directory)) {
            let image = &self.inodes[&inode].image;
            for at in (0..image.length()).step_by(SECTOR as usize) {
                let bytes = image.read(at, SECTOR as usize);
                let set: Vec<u64> =
                    (at..).zip(&bytes[..]).filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
                if !set.is_empty() {
                    sectors.push((name.clone(), inode, set));
                }
            }
        }
        sectors
    }

    /// Damages the n-th of [`NodeDisk::sectors`] (from 1), a byte of it that depends on n.
    pub fn rot_sector(&mut self, directory: &Path, nth: u64, decay: Decay) -> Option<String> {
        let sectors = self.sectors(directory);
        let place = |nth: u64| {
            let (name, inode, bytes) = &sectors[(nth % sectors.len() as u64) as usize];
            (name.clone(), *inode, bytes[(nth * 31 % bytes.len() as u64) as usize])
        };
        if sectors.is_empty() {
            return None;
        }
        self.rot_at(place(nth - 1), place(nth + 6), nth, decay)
    }

    /// Damages one place, perhaps by what stands at another one.
    fn rot_at(
        &mut self,
        (name, inode, at): (PathBuf, u64, u64),
        other: (PathBuf, u64, u64),
        word: u64,
        decay: Decay,
    ) -> Option<String> {
        let sector = at - at % SECTOR;
        let place = |image: &Image, at: u64| image.read(at - at % SECTOR, SECTOR as usize);
        let stray = place(&self.inodes[&other.1].image, other.2);
        let bit = word % 8;
        let image = &mut self.inodes.get_mut(&inode).expect("names point to files").image;
        let before = place(image, at);
        let name = name.display();
        let sentence = match decay {
            Decay::Bit => {
                image.damage(at, |_, byte| byte ^ (1 << bit), 1);
                format!("bit {bit} of byte {at} of {name}")
            }
            Decay::Sector => {
                let noise = word.to_le_bytes();
                image.damage(sector, |index, byte| byte ^ noise[index % 8] ^ index as u8 | 1, before.len());
                format!("the sector at {sector} of {name}")
            }
            Decay::Stray => {
                let length = before.len().min(stray.len());
                image.damage(sector, |index, _| stray[index], length);
                format!("the sector at {sector} of {name}, by that at {} of {}", other.2, other.0.display())
            }
        };
        let bytes = place(image, at);
        if bytes == before {
            return None;
        }
        self.rotten.push(Rotten { inode, at: sector, bytes, sentence: sentence.clone() });
        Some(sentence)
    }

    /// Places below `directory` that rotted and that a name still leads to.
    pub fn rotten(&self, directory: &Path) -> Vec<String> {
        let files = self.names.files().filter(|(name, _)| name.starts_with(directory));
        let named: BTreeSet<u64> = files.map(|(_, inode)| inode).collect();
        let there = |one: &&Rotten| {
            named.contains(&one.inode)
                && self
                    .inodes
                    .get(&one.inode)
                    .is_some_and(|inode| inode.image.read(one.at, one.bytes.len()) == one.bytes)
        };
        self.rotten.iter().filter(there).map(|one| one.sentence.clone()).collect()
    }

    pub fn forget(&mut self, directory: &Path) {
        self.names.forget(directory);
        self.collect(|_| true);
    }
}
