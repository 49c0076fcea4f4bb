//! A snapshot that a real etcd restores and serves, from a stopped member or
//! from a snapshot of ours: the way back.

use super::{Session, args::Export, failed, say, source};
use crate::backup::{EtcdFile, View};
use crate::env::disk::Open;
use crate::layout::{Failure, printer};
use bytes::BytesMut;
use std::path::Path;

const WRITE_BYTES: usize = 1 << 20;

pub(super) async fn run(session: &Session, args: Export) -> Result<(), Failure> {
    let Some((target, sources)) = args.files.split_last() else {
        return Err(Failure::arguments("export requires the name of the file to write"));
    };
    let source = source::open(&session.env, sources, args.data_dir.as_deref()).await?;
    let part = super::part_of(target);
    let disk = &session.env.disk;
    match write(session, &source, &part).await {
        Ok(()) => {}
        Err(failure) => {
            // The first failure is the one to tell.
            let _ = disk.remove(&part).await;
            return Err(failure);
        }
    }
    disk.rename(&part, target).await.map_err(failed)?;
    printer::line(&format!("Snapshot saved at {}", target.display()));
    say(&format!(
        "revision {}, compacted revision {}",
        source.content().revision,
        source.content().compacted
    ));
    Ok(())
}

async fn write<V: View>(session: &Session, view: &V, path: &Path) -> Result<(), Failure> {
    // A leftover of an earlier try.
    let _ = session.env.disk.remove(path).await;
    let file = session.env.disk.open(path, Open::New).await;
    let file = file.map_err(|error| failed(format!("open {}: {error}", path.display())))?;
    let mut snapshot = EtcdFile::plan(view).await.map_err(failed)?;
    let (mut at, mut pending) = (0, BytesMut::new());
    loop {
        let part = snapshot.next().await.map_err(failed)?;
        let is_last = part.is_none();
        if let Some(part) = part {
            pending.extend_from_slice(&part.blob);
        }
        if pending.len() >= WRITE_BYTES || is_last {
            let data = pending.split().freeze();
            let length = data.len() as u64;
            file.append(at, vec![data]).await.map_err(failed)?;
            at += length;
        }
        if is_last {
            return file.sync_data().await.map_err(failed);
        }
    }
}
