//! A view as etcd's own snapshot: a bbolt file, then its SHA-256.
//!
//! Made on its way out, in two passes over the view: the first plans the pages,
//! the second makes them. The parts are those of Maintenance.Snapshot (X6).

use super::{
    Error, Item, View, Walk,
    parts::{Part, Parts},
};
use crate::bolt::{Planner, Writer};

/// As etcd writes it on usual machines.
const PAGE_SIZE: u32 = 4096;
/// The number of the last commit; nothing but the metas shows it.
const TXID: u64 = 1;

/// A snapshot being made.
pub struct EtcdFile<V: View> {
    walk: Walk<V::Records>,
    /// `None` when everything was written.
    writer: Option<Writer>,
    parts: Parts,
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
            parts: Parts::new(plan.total_bytes()),
        })
    }

    /// Bytes of the database that were not handed out yet.
    pub fn remaining(&self) -> u64 {
        self.parts.remaining()
    }

    /// The next part; `None` behind the digest.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        while self.parts.is_short()
            && let Some(mut writer) = self.writer.take()
        {
            match self.walk.next().await? {
                Some(Item::Bucket(name)) => writer.bucket(&name),
                Some(Item::Record { key, value }) => writer.record(&key, &value),
                None => {
                    self.parts.ready().extend_from_slice(&writer.finish()?);
                    continue;
                }
            }
            self.parts.ready().extend_from_slice(&writer.take());
            self.writer = Some(writer);
        }
        Ok(self.parts.cut()?)
    }
}
