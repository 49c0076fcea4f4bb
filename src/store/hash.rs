//! HashKV over a view: no pause, and etcd's value (C9, C10).

use super::view::View;
use super::walk::Walk;
use super::{ReadError, Store};
use crate::env::task;
use crate::mvcc::HashKv;
use crate::pagefile::PageNumber;
use quorate_proto::etcdserverpb as pb;

impl View {
    /// The hash at a revision of the view, as [`crate::mvcc::View::hash_revision`] gives it.
    pub async fn hash(&self, revision: i64) -> Result<u32, ReadError> {
        let mut hash = HashKv::new(revision, self.inner());
        let mut walk = Walk::new(self, PageNumber(0));
        while let Some(page) = walk.next().await? {
            let fed = self.look(|state| hash.feed(page.number, &page.payload, state.mvcc()))?;
            let goes_on =
                fed.map_err(|error| ReadError::Decode(format!("page {}: {error}", page.number.0)))?;
            if !goes_on {
                break;
            }
            task::yield_now().await;
        }
        Ok(hash.finish())
    }
}

impl Store {
    /// HashKV at `revision` (0 = current), as etcd computes it (C9, C10). A revision at which this
    /// member has compacted gets the hash of just before that.
    pub async fn hash_kv(&self, revision: i64) -> Result<pb::HashKvResponse, ReadError> {
        if revision > 0
            && let Some((hash, compacted)) = self.shared.compaction_hash(revision)
        {
            crate::reached!("hash of a compaction answered");
            let (current, _) = self.revisions();
            return Ok(response(current, revision, hash, compacted));
        }
        loop {
            let view = self.view();
            let at = view.inner().hash_revision(revision)?;
            match view.hash(at).await {
                Ok(hash) => return Ok(response(view.revision(), at, hash, view.compacted())),
                Err(ReadError::Replaced) => {
                    crate::reached!("hash begun again after an install");
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn response(current: i64, revision: i64, hash: u32, compacted: i64) -> pb::HashKvResponse {
    pb::HashKvResponse {
        header: Some(pb::ResponseHeader { revision: current, ..Default::default() }),
        hash,
        compact_revision: compacted,
        hash_revision: revision,
    }
}
