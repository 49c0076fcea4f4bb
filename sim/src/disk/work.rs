//! What a disk is asked to do, how long each takes, and what it answers.
//!
//! Promises: every submission is in the trace, with the bytes that tell two
//! apart. **Never** carries anything out.

use crate::dice::Dice;
use bytes::Bytes;
use madsim::task::NodeId;
use quorate::env::disk::{Name, Open};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

/// A queue whose operations keep their order: a file's, or that of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Names,
    File(u64),
}

#[derive(Debug)]
pub enum Work {
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
    pub fn name(&self) -> &'static str {
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
    pub fn cost(&self, dice: &mut Dice) -> u64 {
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

pub enum Answer {
    Done,
    Opened { inode: u64, token: Arc<()> },
    Names(Vec<Name>),
    Locked(PathBuf),
    Bytes(Bytes),
    Length(u64),
}

pub type Slot = Arc<Mutex<Option<io::Result<Answer>>>>;

pub struct Queued {
    pub lane: Lane,
    pub work: Work,
    pub slot: Slot,
}

pub fn trace_submission(id: NodeId, lane: Lane, work: &Work) {
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
