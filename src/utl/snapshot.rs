//! snapshot save, snapshot status, hashkv.

use super::{
    Session, args, failed,
    source::{self, Source},
};
use crate::backup::{self, View};
use crate::client::{Client, ClientOptions};
use crate::env::disk::Open;
use crate::layout::{
    Failure,
    printer::{self, Fields, Format, table},
};
use bytes::{Bytes, BytesMut};
use quorate_proto::etcdserverpb::{SnapshotRequest, maintenance_client::MaintenanceClient};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::Path;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;
const DIGEST_BYTES: usize = 32;
/// A failed save's exit code.
const SAVE_FAILED: i32 = 5;

pub(super) async fn save(session: &Session, save: args::Save) -> Result<(), Failure> {
    let [file] = &save.files[..] else {
        return Err(Failure::arguments("snapshot save expects one argument"));
    };
    let endpoints: Vec<String> = save.endpoints.split(',').map(|name| name.trim().to_owned()).collect();
    if endpoints.len() != 1 {
        return Err(Failure::new(
            SAVE_FAILED,
            format!(
                "snapshot must be requested to one selected node, not multiple [{}]",
                endpoints.join(" ")
            ),
        ));
    }
    let client = Client::new(endpoints, ClientOptions::default(), session.env.clone());
    let part = super::part_of(file);
    let disk = &session.env.disk;
    let saved = receive(session, &client, &part).await;
    let version = match saved {
        Ok(version) => version,
        Err(text) => {
            // The first failure is the one to tell.
            let _ = disk.remove(&part).await;
            return Err(Failure::new(SAVE_FAILED, text));
        }
    };
    let renamed = disk.rename(&part, file).await;
    renamed.map_err(|error| Failure::new(SAVE_FAILED, format!("{}: {error}", file.display())))?;
    printer::line(&format!("Snapshot saved at {}", file.display()));
    if !version.is_empty() {
        printer::line(&format!("Server version {version}"));
    }
    Ok(())
}

/// Writes what the member sends, checks the digest, syncs; returns the member's version.
async fn receive(session: &Session, client: &Client, path: &Path) -> Result<String, String> {
    let at = |error: std::io::Error| format!("could not open {} ({error})", path.display());
    let channel = client.channel().ok_or("no endpoint")?;
    // A leftover of an earlier try.
    let _ = session.env.disk.remove(path).await;
    let file = session.env.disk.open(path, Open::New).await.map_err(at)?;
    let mut stub = MaintenanceClient::new(channel);
    let told =
        |status: tonic::Status| format!("rpc error: code = {:?} desc = {}", status.code(), status.message());
    let mut parts = stub.snapshot(SnapshotRequest {}).await.map_err(told)?.into_inner();
    let (mut written, mut pending) = (0_u64, BytesMut::new());
    // What came last may be the digest: it is hashed once more follows.
    let (mut digest, mut last) = (Sha256::new(), Bytes::new());
    let mut version = String::new();
    while let Some(part) = parts.message().await.map_err(told)? {
        if !part.version.is_empty() {
            version = part.version;
        }
        digest.update(&last);
        last = part.blob;
        pending.extend_from_slice(&last);
        if pending.len() >= WRITE_BYTES {
            let data = pending.split().freeze();
            let length = data.len() as u64;
            file.append(written, vec![data]).await.map_err(at)?;
            written += length;
        }
    }
    let rest = pending.freeze();
    let total = written + rest.len() as u64;
    file.append(written, vec![rest]).await.map_err(at)?;
    let (covered, told_digest) = last.split_at(last.len().saturating_sub(DIGEST_BYTES));
    digest.update(covered);
    if !backup::without_digest(total).1 || digest.finalize()[..] != *told_digest {
        return Err(
            "sha256 checksum not found or not that of what came: the snapshot is not whole".to_owned()
        );
    }
    file.sync_data().await.map_err(at)?;
    Ok(version)
}

pub(super) async fn status(session: &Session, status: args::Status) -> Result<(), Failure> {
    let [file] = &status.files[..] else {
        return Err(Failure::arguments("snapshot status requires exactly one argument"));
    };
    let source = source::open_file(&session.env, file).await?;
    let backup::Status { hash, revision, keys, size, version } = match &source {
        Source::Etcd(snapshot) => backup::status(snapshot).await.map_err(failed)?,
        Source::Own(snapshot) => backup::own_status(snapshot).await.map_err(failed)?,
        Source::Stopped(_) => unreachable!("a file is no directory"),
    };
    let humanized = printer::size(i64::try_from(size).unwrap_or(i64::MAX));
    match session.format {
        Format::Simple => printer::line(&format!("{hash:x}, {revision}, {keys}, {humanized}, {version}")),
        Format::Json => printer::json(
            &json!({"hash": hash, "revision": revision, "totalKey": keys, "totalSize": size, "version": version}),
        ),
        Format::Fields => {
            let mut fields = Fields::default();
            fields.plain("Hash", hash);
            fields.plain("Revision", revision);
            fields.plain("Keys", keys);
            fields.plain("Size", size);
            fields.plain("Version", version);
            fields.print();
        }
        Format::Table => {
            let row = vec![format!("{hash:x}"), revision.to_string(), keys.to_string(), humanized, version];
            let header = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"];
            printer::out(table(&header, &[row]).as_bytes());
        }
        Format::Protobuf => return Err(session.format.unsupported()),
    }
    Ok(())
}

pub(super) async fn hash_kv(session: &Session, args: args::HashKv) -> Result<(), Failure> {
    let source = source::open(&session.env, &args.files, args.data_dir.as_deref()).await?;
    let (hash, revision) = backup::hash_kv(&source, args.rev).await.map_err(failed)?;
    let compacted = source.content().compacted;
    match session.format {
        Format::Simple => printer::line(&format!("{hash}, {revision}, {compacted}")),
        Format::Json => {
            printer::json(&json!({"hash": hash, "hashRevision": revision, "compactRevision": compacted}))
        }
        Format::Fields => {
            let mut fields = Fields::default();
            fields.plain("Hash", hash);
            fields.plain("Hash revision", revision);
            fields.plain("Compact revision", compacted);
            fields.print();
        }
        Format::Table => {
            let row = vec![hash.to_string(), revision.to_string(), compacted.to_string()];
            let header = ["HASH", "HASH REVISION", "COMPACT REVISION"];
            printer::out(table(&header, &[row]).as_bytes());
        }
        Format::Protobuf => return Err(session.format.unsupported()),
    }
    Ok(())
}
