//! Snapshots of either form for a fuzzer: bytes in, no panic.

use super::{
    EtcdSnapshot, OwnSnapshot, Settled, View, hash_kv, in_memory::InMemory, own_file, own_status, status,
    without_digest,
};
use crate::env::File;
use bytes::Bytes;
use futures::executor::block_on;
use std::sync::Arc;

fn file(bytes: Vec<u8>) -> (Arc<dyn File>, u64) {
    let (length, _) = without_digest(bytes.len() as u64);
    (Arc::new(InMemory(Bytes::from(bytes))), length)
}

/// A snapshot of our own form, its checksums made to match.
pub fn own(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let length = without_digest(bytes.len() as u64).0 as usize;
    own_file::seal(&mut bytes[..length]);
    let (file, length) = file(bytes);
    block_on(async {
        let Ok(snapshot) = OwnSnapshot::open(file, length).await else { return };
        if let Ok(snapshot) = Settled::new(snapshot).await
            && let Ok(told) = own_status(&snapshot).await
        {
            assert_eq!(told.revision, snapshot.content().revision);
        }
    });
}

/// A snapshot of etcd, the first meta's checksum made to match.
pub fn etcd(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    crate::bolt::fuzz::seal(&mut bytes);
    let (file, length) = file(bytes);
    block_on(async {
        let Ok(snapshot) = EtcdSnapshot::open(file, length).await else { return };
        // What is refused is an answer.
        let _ = status(&snapshot).await;
        let _ = hash_kv(&snapshot, 0).await;
    });
}
