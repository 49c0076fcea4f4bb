//! The KV service: reads of the store, writes through the log.

use super::{
    Backend,
    errors::{self, Error},
    service::{Api, mismatched, service},
};
use crate::machine::{Reply, check, growth_of_put, growth_of_txn};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, stream};
use prost::Message;
use quorate_proto::etcdserverpb::{self as pb, InternalRaftRequest, request_op};
use std::pin::Pin;
use tonic::{Request, Response, Status};

service! {
    impl pb::kv_server::Kv as "KV" {
        async fn range(
            &self,
            request: Request<pb::RangeRequest>,
        ) -> Result<Response<pb::RangeResponse>, Status> {
            let request = request.into_inner();
            if !request.serializable && self.backend.status().is_learner {
                return Err(Error::NotSupportedForLearner.status());
            }
            check::check_range(&request).map_err(Error::from)?;
            if !request.serializable {
                self.read_index().await?;
            }
            let mut response = self.backend.range(&request).await.map_err(errors::read)?;
            self.fill(&mut response.header);
            Ok(Response::new(response))
        }

        type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<pb::RangeStreamResponse, Status>> + Send>>;

        async fn range_stream(
            &self,
            request: Request<pb::RangeRequest>,
        ) -> Result<Response<Self::RangeStreamStream>, Status> {
            let request = request.into_inner();
            check::check_range(&request).map_err(Error::from)?;
            check_stream(&request)?;
            if !request.serializable {
                self.read_index().await?;
            }
            let parts = Parts::new(self.clone(), request);
            Ok(Response::new(Box::pin(stream::try_unfold(parts, Parts::next))))
        }

        async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
            let request = request.into_inner();
            check::check_put(&request).map_err(Error::from)?;
            self.admit(Some(growth_of_put(&request))).await?;
            let entry = InternalRaftRequest { put: Some(request), ..InternalRaftRequest::default() };
            match self.propose(entry).await? {
                (Reply::Put(mut response), revision) => {
                    self.fill_or(&mut response.header, revision);
                    Ok(Response::new(response))
                }
                (reply, _) => mismatched("Put", &reply),
            }
        }

        async fn delete_range(
            &self,
            request: Request<pb::DeleteRangeRequest>,
        ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
            let request = request.into_inner();
            check::check_delete(&request).map_err(Error::from)?;
            let entry = InternalRaftRequest { delete_range: Some(request), ..InternalRaftRequest::default() };
            match self.propose(entry).await? {
                (Reply::DeleteRange(mut response), revision) => {
                    self.fill_or(&mut response.header, revision);
                    Ok(Response::new(response))
                }
                (reply, _) => mismatched("DeleteRange", &reply),
            }
        }

        async fn txn(&self, request: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
            let request = request.into_inner();
            check::check_txn(&request, self.settings.max_txn_ops).map_err(Error::from)?;
            if let Some(serializable) = read_only(&request) {
                if !serializable {
                    self.read_index().await?;
                }
                let mut response = self.backend.txn(&request).await.map_err(errors::read)?;
                self.fill(&mut response.header);
                return Ok(Response::new(response));
            }
            self.admit(growth_of_txn(&request)).await?;
            let entry = InternalRaftRequest { txn: Some(request), ..InternalRaftRequest::default() };
            match self.propose(entry).await? {
                (Reply::Txn(mut response), revision) => {
                    self.fill_or(&mut response.header, revision);
                    Ok(Response::new(response))
                }
                (reply, _) => mismatched("Txn", &reply),
            }
        }

        async fn compact(
            &self,
            request: Request<pb::CompactionRequest>,
        ) -> Result<Response<pb::CompactionResponse>, Status> {
            let request = request.into_inner();
            let entry = InternalRaftRequest { compaction: Some(request), ..InternalRaftRequest::default() };
            match self.propose(entry).await? {
                (Reply::Compaction(mut response), revision) => {
                    if request.physical {
                        self.backend.wait_compacted(request.revision).await;
                    }
                    self.fill_or(&mut response.header, revision);
                    Ok(Response::new(response))
                }
                (reply, _) => mismatched("Compaction", &reply),
            }
        }
    }
    unserved {}
}

/// T17: `None` for a txn that goes through the log; else whether it may be answered at once.
fn read_only(request: &pb::TxnRequest) -> Option<bool> {
    let mut serializable = true;
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(request_op::Request::RequestRange(range)) => serializable &= range.serializable,
            _ => return None,
        }
    }
    Some(serializable)
}

/// RS1, after the checks of Range.
fn check_stream(request: &pb::RangeRequest) -> Result<(), Status> {
    use pb::range_request::{SortOrder, SortTarget};
    let by_key = request.sort_target == SortTarget::Key as i32;
    let in_order = request.sort_order == SortOrder::None as i32
        || request.sort_order == SortOrder::Ascend as i32 && by_key;
    if !in_order {
        return Err(Error::StreamSortOrder.status());
    }
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    if filters.iter().any(|bound| *bound != 0) {
        return Err(Error::StreamFilters.status());
    }
    Ok(())
}

/// First part's size in keys (RS4).
const PART_KEYS_FIRST: i64 = 10;

/// A range cut into parts that together, merged, are the Range reply (RS2 to RS5).
struct Parts<B: Backend> {
    api: Api<B>,
    /// The rest of the range; its revision is pinned by the first part.
    request: pb::RangeRequest,
    /// Keys that the caller's limit still allows; `None` = no limit.
    remaining: Option<i64>,
    part_keys: i64,
    /// Store revision and whole count, as the first part saw them.
    begun: Option<(i64, i64)>,
    done: bool,
}

impl<B: Backend> Parts<B> {
    fn new(api: Api<B>, mut request: pb::RangeRequest) -> Parts<B> {
        let remaining = (request.limit > 0).then_some(request.limit);
        // Key order is what the store gives by itself; another target with no order means nothing.
        request.sort_order = pb::range_request::SortOrder::None as i32;
        request.sort_target = pb::range_request::SortTarget::Key as i32;
        Parts { api, request, remaining, part_keys: PART_KEYS_FIRST, begun: None, done: false }
    }

    async fn next(mut self) -> Result<Option<(pb::RangeStreamResponse, Self)>, Status> {
        if self.done {
            return Ok(None);
        }
        self.request.limit = self.remaining.map_or(self.part_keys, |remaining| remaining.min(self.part_keys));
        // The count is the first part's, who sees the whole range.
        let part = match self.begun {
            None => self.api.backend.range(&self.request).await,
            Some(_) => self.api.backend.range_part(&self.request).await,
        };
        let mut part = part.map_err(errors::read)?;
        let seen = part.header.take().map_or(0, |header| header.revision);
        let (revision, count) = *self.begun.get_or_insert((seen, part.count));
        if self.request.revision <= 0 {
            self.request.revision = revision;
        }
        let sent = i64::try_from(part.kvs.len()).expect("a list in memory has fewer than 2^63 items");
        if let Some(remaining) = &mut self.remaining {
            assert!(sent <= *remaining, "a range gave more keys than its limit");
            *remaining -= sent;
        }
        self.done = !part.more || self.remaining == Some(0);
        if self.done {
            part.header = self.api.header(revision);
            part.count = count;
        } else {
            let last = part.kvs.last().expect("a range with more to come gave a key");
            self.request.key = successor(&last.key);
            self.part_keys =
                resized(self.part_keys, part.encoded_len() as u64, self.api.settings.max_request_bytes);
            part.more = false;
            part.count = 0;
        }
        Ok(Some((pb::RangeStreamResponse { range_response: Some(part) }, self)))
    }
}

/// The next part's size in keys (RS4).
fn resized(part_keys: i64, part_bytes: u64, max_request_bytes: u64) -> i64 {
    if part_bytes < max_request_bytes / 2 {
        part_keys.saturating_mul(2)
    } else if part_bytes > max_request_bytes.saturating_mul(2) {
        (part_keys / 2).max(1)
    } else {
        part_keys
    }
}

/// The first key after `key`.
fn successor(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}
