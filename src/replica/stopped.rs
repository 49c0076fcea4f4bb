//! A member that does not run: for tools that look at its directory or make one.
//!
//! **Promises**: the directory is locked for as long as the value lives; a
//! directory in use, or a real etcd's, is refused unchanged; a new one gets its
//! identity last, so that one which was left half made never starts.

use super::{
    StartError,
    identity::{self, Known},
};
use crate::env::{Env, disk::Lock};
use crate::members::Members;
use std::path::{Path, PathBuf};

/// The directory of a member that is stopped, or not made yet.
pub struct StoppedMember {
    /// `<data-dir>/member`.
    pub dir: PathBuf,
    pub member_id: u64,
    pub cluster_id: u64,
    _lock: Box<dyn Lock>,
}

impl StoppedMember {
    /// Takes the directory of a member that was here before.
    pub async fn open(env: &Env, dir: &Path) -> Result<StoppedMember, StartError> {
        let disk = &*env.disk;
        identity::refuse_foreign(disk, dir).await?;
        let missing = || StartError::Other(format!("there is no member in {}", dir.display()));
        if disk.list_dir(dir).await.is_err() {
            // Looking does not make a directory.
            return Err(missing());
        }
        let lock = identity::claim(disk, dir).await?;
        let known = identity::read(disk, dir).await?.ok_or_else(missing)?;
        Ok(StoppedMember {
            dir: dir.to_owned(),
            member_id: known.member_id,
            cluster_id: known.cluster_id,
            _lock: lock,
        })
    }

    /// Takes a directory that [`StoppedMember::complete`] will make a member's.
    pub async fn begin(
        env: &Env,
        dir: &Path,
        member_id: u64,
        cluster_id: u64,
    ) -> Result<StoppedMember, StartError> {
        let lock = identity::claim(&*env.disk, dir).await?;
        if identity::read(&*env.disk, dir).await?.is_some() {
            return Err(StartError::Other(format!("there is a member in {}", dir.display())));
        }
        Ok(StoppedMember { dir: dir.to_owned(), member_id, cluster_id, _lock: lock })
    }

    /// Writes who the member is, its store being whole and durable: from now on it starts. `members` are
    /// those of the store's mark; the log begins behind that mark.
    pub async fn complete(self, env: &Env, members: &Members) -> Result<(), StartError> {
        let known = Known {
            member_id: self.member_id,
            cluster_id: self.cluster_id,
            new_cluster: true,
            members: members.members.values().cloned().collect(),
        };
        identity::write(&*env.disk, &self.dir, &known).await
    }
}
