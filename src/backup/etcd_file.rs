//! A view as etcd's own snapshot: a bbolt file, then its SHA-256.
//!
//! Made on its way out, in two passes over the view: the first plans the pages,
//! the second makes them. The parts are those of Maintenance.Snapshot (X6).

use super::{Error, Item, View, Walk};
use crate::bolt::{Planner, Writer};
use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};

/// Bytes of a part at most.
pub const PART_BYTES: usize = 32768;
/// As etcd writes it on usual machines.
const PAGE_SIZE: u32 = 4096;
/// The number of the last commit; nothing but the metas shows it.
const TXID: u64 = 1;

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the database that are still to come.
    pub remaining: u64,
    /// The last one is the digest over all before.
    pub blob: Bytes,
}

/// A snapshot being made.
pub struct EtcdFile<V: View> {
    walk: Walk<V::Records>,
    /// `None` when everything was written.
    writer: Option<Writer>,
    ready: BytesMut,
    remaining: u64,
    digest: Option<Sha256>,
}

impl<V: View> EtcdFile<V> {
    /// First pass. The view is not needed any more: its records hold what they need.
    pub async fn plan(view: &V) -> Result<EtcdFile<V>, Error> {
        let mut planner = Planner::new(PAGE_SIZE);
        let mut walk = Walk::new(view);
        while let Some(item) = walk.next().await? {
            match item {
                Item::Bucket(name) => planner.bucket(&name),
                Item::Record { key, value } => planner.record(&key, value.len()),
            }
        }
        let plan = planner.finish();
        Ok(EtcdFile {
            walk: Walk::new(view),
            writer: Some(Writer::new(plan, TXID)),
            ready: BytesMut::new(),
            remaining: plan.total_bytes(),
            digest: Some(Sha256::new()),
        })
    }

    /// Bytes of the database that were not handed out yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The next part; `None` behind the digest.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        while self.ready.len() < PART_BYTES
            && let Some(mut writer) = self.writer.take()
        {
            match self.walk.next().await? {
                Some(Item::Bucket(name)) => writer.bucket(&name),
                Some(Item::Record { key, value }) => writer.record(&key, &value),
                None => {
                    self.ready.extend_from_slice(&writer.finish()?);
                    continue;
                }
            }
            self.ready.extend_from_slice(&writer.take());
            self.writer = Some(writer);
        }
        if !self.ready.is_empty() {
            let blob = self.ready.split_to(self.ready.len().min(PART_BYTES)).freeze();
            if let Some(digest) = &mut self.digest {
                digest.update(&blob);
            }
            let sent = blob.len() as u64;
            self.remaining = self.remaining.checked_sub(sent).ok_or(crate::bolt::PlanMismatch)?;
            return Ok(Some(Part { remaining: self.remaining, blob }));
        }
        assert_eq!(self.remaining, 0, "the writer checked the length against its plan");
        Ok(self
            .digest
            .take()
            .map(|digest| Part { remaining: 0, blob: Bytes::copy_from_slice(&digest.finalize()) }))
    }
}
