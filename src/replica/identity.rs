//! The identity file: who this member is, in `<data-dir>/member/identity`.
//!
//! A text, so that people can read it; its last line is a CRC32C over the lines before it:
//!
//! ```text
//! quorate identity 1
//! member 8e9e05c52164694d
//! cluster cdf818194e3a8c32
//! state new
//! known {"id":10276657743932975437,"peerURLs":["http://localhost:2380"]}
//! crc32c 00000000
//! ```
//!
//! It is the first thing written into an empty directory and never changed: written beside, synced,
//! renamed, the directory synced. Until the log is bootstrapped from it raft has not run, so a crash
//! in between loses nothing and the next start goes on from the file, whatever the flags say by
//! then. It alone is local to the member: the store's segments hold nothing of it (I5).
//!
//! **Never** touches a directory that a real etcd wrote, and never makes a new identity beside a log
//! or store that lost theirs.

use super::StartError;
use crate::{
    env::{
        Disk,
        disk::{Lock, Open, put_in_place},
    },
    members::{Member, Members},
};
use bytes::Bytes;
use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
};

const FILE: &str = "identity";
/// What a crash may leave of making it.
const FILE_NEW: &str = "identity.new";
const LOCK: &str = "lock";
/// The version of this text; a later release reads this one too.
const FORMAT: u32 = 1;
/// Names of a real etcd's parts in the same place.
const ETCD: [&str; 2] = ["snap", "wal"];
const LENGTH_MAX: u64 = 1 << 20;

/// Who a member is and what it knew of the cluster when it first started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub member_id: u64,
    pub cluster_id: u64,
    /// `true`: the log begins with the initial members; `false`: it comes from the cluster.
    pub new_cluster: bool,
    /// The initial members, or those that the joiner was told of.
    pub members: Vec<Member>,
}

impl Known {
    pub fn as_members(&self) -> Members {
        Members {
            cluster_id: self.cluster_id,
            members: self.members.iter().map(|member| (member.id, member.clone())).collect(),
            ..Members::default()
        }
    }

    fn encode(&self) -> String {
        let mut text = format!(
            "quorate identity {FORMAT}\nmember {:x}\ncluster {:x}\nstate {}\n",
            self.member_id,
            self.cluster_id,
            if self.new_cluster { "new" } else { "existing" }
        );
        for member in &self.members {
            let json = serde_json::to_string(member).expect("a member is plain text and numbers");
            writeln!(text, "known {json}").expect("a string takes what it is given");
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        writeln!(text, "crc32c {checksum:08x}").expect("a string takes what it is given");
        text
    }

    fn decode(bytes: &[u8]) -> Result<Known, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let first = text.lines().next().unwrap_or_default();
        let format = first.strip_prefix("quorate identity ").ok_or("it does not begin as one")?;
        let known_format = format!("{FORMAT}");
        let (body, checksum) =
            text.rfind("crc32c ").map(|at| text.split_at(at)).ok_or("its checksum is missing")?;
        let expected = format!("crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
        if checksum != expected {
            return Err("its checksum does not match".to_owned());
        }
        if format != known_format {
            return Err(format!("format version {format} is not known to this release (it knows {FORMAT})"));
        }
        let mut known = Known { member_id: 0, cluster_id: 0, new_cluster: false, members: Vec::new() };
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| format!("{text} is no id"));
        for line in body.lines().skip(1) {
            match line.split_once(' ') {
                Some(("member", id)) => known.member_id = number(id)?,
                Some(("cluster", id)) => known.cluster_id = number(id)?,
                Some(("state", state)) => known.new_cluster = state == "new",
                Some(("known", json)) => {
                    known.members.push(serde_json::from_str(json).map_err(|error| error.to_string())?);
                }
                _ => return Err(format!("line `{line}` is not known to this release")),
            }
        }
        if known.member_id == 0 || known.cluster_id == 0 {
            return Err("it names no member or no cluster".to_owned());
        }
        Ok(known)
    }
}

fn other(what: &str, path: &Path, error: impl std::fmt::Display) -> StartError {
    StartError::Other(format!("{what} {}: {error}", path.display()))
}

/// Looks at the directory, changing nothing: refuses one that a real etcd wrote.
pub(super) async fn refuse_foreign(disk: &dyn Disk, dir: &Path) -> Result<(), StartError> {
    let names = match disk.list_dir(dir).await {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(other("cannot access data directory", dir, error)),
    };
    match names.iter().find(|name| name.is_dir && ETCD.contains(&name.name.as_str())) {
        Some(found) => Err(StartError::Other(format!(
            "data directory {} was written by etcd (it holds {}): it is left as it is; \
             use another directory, or bring the data over with a snapshot",
            dir.display(),
            found.name
        ))),
        None => Ok(()),
    }
}

/// Makes the directory and takes its lock.
pub(super) async fn claim(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Lock>, StartError> {
    disk.make_dir(dir).await.map_err(|error| other("cannot access data directory", dir, error))?;
    disk.lock(&dir.join(LOCK)).await.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StartError::Locked(dir.to_owned()),
        _ => other("cannot lock data directory", dir, error),
    })
}

/// Reads the identity; `None` in a directory where no member ever started.
pub(super) async fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Known>, StartError> {
    let path = dir.join(FILE);
    let file = match disk.open(&path, Open::Existing).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let names = disk.list_dir(dir).await.map_err(|error| other("cannot list", dir, error))?;
            return match names.iter().find(|name| ![LOCK, FILE_NEW].contains(&name.name.as_str())) {
                None => Ok(None),
                Some(found) => Err(StartError::Other(format!(
                    "data directory {} holds {} but no identity file: it lost a part of itself, or is not Quorate's",
                    dir.display(),
                    found.name
                ))),
            };
        }
        Err(error) => return Err(other("cannot open", &path, error)),
    };
    let length = file.length().await.map_err(|error| other("cannot read", &path, error))?;
    if length > LENGTH_MAX {
        return Err(other("cannot use identity file", &path, "it is too long"));
    }
    let bytes = file.read_at(0, length as usize).await.map_err(|error| other("cannot read", &path, error))?;
    Known::decode(&bytes).map(Some).map_err(|error| other("cannot use identity file", &path, error))
}

/// Writes the identity, durably, before anything else of this member.
pub(super) async fn write(disk: &dyn Disk, dir: &Path, known: &Known) -> Result<(), StartError> {
    assert!(known.member_id != 0 && known.cluster_id != 0, "an identity has ids");
    store(disk, dir, known).await.map_err(|error| other("cannot write", &dir.join(FILE), error))?;
    let again = read(disk, dir).await?;
    assert_eq!(again.as_ref(), Some(known), "the identity reads as it was written");
    Ok(())
}

async fn store(disk: &dyn Disk, dir: &Path, known: &Known) -> io::Result<()> {
    put_in_place(disk, dir, FILE, Bytes::from(known.encode())).await?;
    // The directories' own names must last too. Above the data directory that may not be ours to do.
    let mut above = dir.to_owned();
    for level in 0..2 {
        let Some(parent) = above.parent().map(PathBuf::from) else { break };
        let named = if parent.as_os_str().is_empty() { Path::new(".") } else { &parent };
        match disk.sync_dir(named).await {
            Err(error) if level == 0 => return Err(error),
            _ => above = parent,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let member = |id, name: &str| Member {
            id,
            name: name.to_owned(),
            peer_urls: vec![format!("http://n{id}:2380")],
            ..Member::default()
        };
        Known {
            member_id: 0x8e9e_05c5_2164_694d,
            cluster_id: 0xcdf8,
            new_cluster: true,
            members: vec![member(1, ""), member(2, "two crc32c words\n")],
        }
    }

    #[test]
    fn an_identity_reads_as_it_was_written() {
        for new_cluster in [true, false] {
            let known = Known { new_cluster, ..known() };
            assert_eq!(Known::decode(known.encode().as_bytes()).unwrap(), known);
            assert_eq!(known.as_members().members.len(), 2);
        }
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let bytes = known().encode().into_bytes();
        for at in 0..bytes.len() {
            for flip in [1_u8, 0x20, 0xff] {
                let mut spoilt = bytes.clone();
                spoilt[at] ^= flip;
                assert!(Known::decode(&spoilt).is_err(), "byte {at}");
            }
            assert!(Known::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_later_format_is_refused_by_name() {
        let body = known().encode().replace("identity 1", "identity 2");
        let body = &body[..body.rfind("crc32c").unwrap()];
        let text = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
        let error = Known::decode(text.as_bytes()).unwrap_err();
        assert_eq!(error, "format version 2 is not known to this release (it knows 1)");
    }
}
