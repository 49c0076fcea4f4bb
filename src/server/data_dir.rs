//! What lies in the data directory before a member opens it.
//!
//! Tells a new member from one that was here before, refuses what a real etcd
//! wrote, and warns of stray files. **Never** changes anything but making the
//! directory.

use super::logging::plain;
use crate::env::Disk;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The directory of a member's own files.
pub const MEMBER: &str = "member";
/// The file in it that says who the member is; `replica` writes it.
const IDENTITY: &str = "identity";

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing of a member.
    Empty,
    /// A member's files.
    Member,
}

impl Found {
    /// As etcd names it in the log.
    pub fn dir_type(self) -> &'static str {
        match self {
            Found::Empty => "empty",
            Found::Member => "member",
        }
    }
}

/// Why the directory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataDirError {
    #[error("{what}")]
    List { dir: PathBuf, what: String },
    #[error("cannot access data directory: {what}")]
    Make { dir: PathBuf, what: String },
    #[error(
        "data directory {0} was written by etcd: Quorate does not read its files and has changed nothing; start with an empty directory"
    )]
    Etcd(PathBuf),
}

/// Looks into `dir` and makes it if it is not there.
pub async fn inspect(disk: &dyn Disk, dir: &Path) -> Result<Found, DataDirError> {
    let list = |what: String| DataDirError::List { dir: dir.to_owned(), what };
    let Some(names) = names(disk, dir).await.map_err(|error| list(describe("readdirent", dir, &error)))?
    else {
        disk.make_dir(dir).await.map_err(|error| DataDirError::Make {
            dir: dir.to_owned(),
            what: describe("mkdir", dir, &error),
        })?;
        return Ok(Found::Empty);
    };
    for stray in names.iter().filter(|name| *name != MEMBER) {
        tracing::warn!(filename = %stray, "data-dir" = %dir.display(), "found invalid file under data directory");
    }
    if !names.iter().any(|name| name == MEMBER) {
        return Ok(Found::Empty);
    }
    let member = dir.join(MEMBER);
    let inside =
        names_or_none(disk, &member).await.map_err(|error| list(describe("readdirent", &member, &error)))?;
    if inside.iter().any(|name| name == "wal" || name == "snap") {
        return Err(DataDirError::Etcd(dir.to_owned()));
    }
    // The identity is the first file that a member writes.
    Ok(if inside.iter().any(|name| name == IDENTITY) { Found::Member } else { Found::Empty })
}

async fn names(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Vec<String>>> {
    match disk.list_dir(dir).await {
        Ok(names) => Ok(Some(names.into_iter().map(|name| name.name).collect())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn names_or_none(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    Ok(names(disk, dir).await?.unwrap_or_default())
}

/// `mkdir /x: permission denied`, as Go words a failed call on a path.
fn describe(call: &str, path: &Path, error: &io::Error) -> String {
    format!("{call} {}: {}", path.display(), plain(error))
}
