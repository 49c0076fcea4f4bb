//! What a command reads: a snapshot of either form, or a stopped member.

use super::failed;
use crate::backup::{
    self, Content, EtcdRecords, EtcdSnapshot, OwnRecords, OwnSnapshot, Records, Settled, SettledRecords,
    StoppedStore, StoreRecords, Stored, View,
};
use crate::env::{Env, File, disk::Open};
use crate::layout::Failure;
use crate::replica::StoppedMember;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub enum Source {
    Etcd(EtcdSnapshot),
    Own(Box<Settled<OwnSnapshot>>),
    Stopped(Box<StoppedView>),
}

/// A stopped member and what of it may or may not count.
pub struct StoppedView {
    pub store: StoppedStore,
    _member: StoppedMember,
}

pub enum SourceRecords {
    Etcd(EtcdRecords),
    Own(SettledRecords<OwnRecords>),
    Stopped(StoreRecords),
}

impl View for Source {
    type Records = SourceRecords;

    fn records(&self) -> SourceRecords {
        match self {
            Source::Etcd(snapshot) => SourceRecords::Etcd(snapshot.records()),
            Source::Own(snapshot) => SourceRecords::Own(snapshot.records()),
            Source::Stopped(stopped) => SourceRecords::Stopped(stopped.store.records()),
        }
    }

    fn content(&self) -> &Content {
        match self {
            Source::Etcd(snapshot) => snapshot.content(),
            Source::Own(snapshot) => snapshot.content(),
            Source::Stopped(stopped) => stopped.store.content(),
        }
    }
}

impl Records for SourceRecords {
    async fn next(&mut self) -> Result<Option<Stored>, backup::Error> {
        match self {
            SourceRecords::Etcd(records) => records.next().await,
            SourceRecords::Own(records) => records.next().await,
            SourceRecords::Stopped(records) => records.next().await,
        }
    }
}

/// The file or the directory that a command names, exactly one of them.
pub async fn open(env: &Env, files: &[PathBuf], data_dir: Option<&Path>) -> Result<Source, Failure> {
    match (files, data_dir) {
        ([file], None) => open_file(env, file).await,
        ([], Some(dir)) => open_stopped(env, dir).await,
        _ => Err(failed("one snapshot file or --data-dir is needed, and not both")),
    }
}

async fn file(env: &Env, path: &Path) -> Result<Arc<dyn File>, Failure> {
    env.disk.open(path, Open::ReadOnly).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed(format!("stat {}: no such file or directory", path.display())),
        _ => failed(format!("open {}: {error}", path.display())),
    })
}

/// Compares a snapshot with its digest.
pub async fn verify_digest(env: &Env, path: &Path) -> Result<(), Failure> {
    backup::verify_digest(&file(env, path).await?).await.map_err(failed)
}

/// Opens a snapshot; its beginning tells which form it has.
pub async fn open_file(env: &Env, path: &Path) -> Result<Source, Failure> {
    let file = file(env, path).await?;
    let (length, _) = backup::without_digest(file.length().await.map_err(failed)?);
    let beginning = file.read_at(0, 16).await.map_err(failed)?;
    if OwnSnapshot::is_one(&beginning) {
        let snapshot = OwnSnapshot::open(file, length).await.map_err(failed)?;
        return Ok(Source::Own(Box::new(Settled::new(snapshot).await.map_err(failed)?)));
    }
    Ok(Source::Etcd(EtcdSnapshot::open(file, length).await.map_err(failed)?))
}

/// Opens a stopped member with the committed tail of its log applied, and says what that covers.
pub async fn open_stopped(env: &Env, data_dir: &Path) -> Result<Source, Failure> {
    let member = StoppedMember::open(env, &data_dir.join("member")).await.map_err(failed)?;
    let store = StoppedStore::open(env, &member.dir, member.member_id).await.map_err(failed)?;
    let covered = &store.covered;
    super::say(&format!(
        "covers revision {} (entry {}; the store itself stands at entry {})",
        store.content().revision,
        covered.applied,
        covered.stored
    ));
    if covered.uncertain > 0 {
        super::say(&format!(
            "warning: {} entries behind it in the log may or may not be committed; they are left out",
            covered.uncertain
        ));
    }
    Ok(Source::Stopped(Box::new(StoppedView { store, _member: member })))
}
