//! The typed calls. Each says whether it is a read or a change; the rest is
//! the client's.

use super::{Client, Error, retry::Effect};
use crate::proto::etcdserverpb::{
    cluster_client::ClusterClient, kv_client::KvClient, maintenance_client::MaintenanceClient, *,
};
use std::time::Duration;

/// Replies are as long as the server makes them: etcd's clients set no limit either.
const REPLY_BYTES_MAX: usize = i32::MAX as usize;

macro_rules! call {
    ($client:expr, $how:expr, $stub:ident, $method:ident, $message:expr) => {{
        let message = $message;
        $client
            .anywhere($how, |endpoint, limit| {
                let request = $client.request(message.clone(), limit);
                let mut stub = $stub::new(endpoint.channel).max_decoding_message_size(REPLY_BYTES_MAX);
                async move { stub.$method(request).await }
            })
            .await
    }};
}

macro_rules! call_at {
    ($client:expr, $how:expr, $endpoint:expr, $stub:ident, $method:ident, $message:expr) => {{
        let message = $message;
        $client
            .at($how, $endpoint, |endpoint, limit: Duration| {
                let request = $client.request(message.clone(), limit);
                let mut stub = $stub::new(endpoint.channel).max_decoding_message_size(REPLY_BYTES_MAX);
                async move { stub.$method(request).await }
            })
            .await
    }};
}

impl Client {
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        call!(self, Effect::Read, KvClient, range, request)
    }

    pub async fn put(&self, request: PutRequest) -> Result<PutResponse, Error> {
        call!(self, Effect::Change, KvClient, put, request)
    }

    pub async fn delete_range(&self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse, Error> {
        call!(self, Effect::Change, KvClient, delete_range, request)
    }

    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        let effect = effect_of(&request);
        call!(self, effect, KvClient, txn, request)
    }

    pub async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse, Error> {
        call!(self, Effect::Change, KvClient, compact, request)
    }

    /// The status of the member at `endpoint`.
    pub async fn status(&self, endpoint: &str) -> Result<StatusResponse, Error> {
        call_at!(self, Effect::Read, endpoint, MaintenanceClient, status, StatusRequest {})
    }

    /// The hash of the member at `endpoint` over its history up to `revision`; 0 is the newest.
    pub async fn hash_kv(&self, endpoint: &str, revision: i64) -> Result<HashKvResponse, Error> {
        call_at!(self, Effect::Read, endpoint, MaintenanceClient, hash_kv, HashKvRequest { revision })
    }

    /// Cleans the store of the member at `endpoint`; waits out the whole call, for a second one would
    /// only wait for the first.
    pub async fn defragment(&self, endpoint: &str) -> Result<DefragmentResponse, Error> {
        call_at!(self, Effect::Change, endpoint, MaintenanceClient, defragment, DefragmentRequest {})
    }

    pub async fn member_list(&self, request: MemberListRequest) -> Result<MemberListResponse, Error> {
        call!(self, Effect::Read, ClusterClient, member_list, request)
    }

    pub async fn alarm(&self, request: AlarmRequest) -> Result<AlarmResponse, Error> {
        let reads = request.action == alarm_request::AlarmAction::Get as i32;
        let effect = if reads { Effect::Read } else { Effect::Change };
        call!(self, effect, MaintenanceClient, alarm, request)
    }
}

/// A transaction is a read if no branch of it can write.
fn effect_of(txn: &TxnRequest) -> Effect {
    use request_op::Request;
    let reads = txn.success.iter().chain(&txn.failure).all(|op| match &op.request {
        Some(Request::RequestRange(_)) | None => true,
        Some(Request::RequestTxn(txn)) => effect_of(txn) == Effect::Read,
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => false,
    });
    if reads { Effect::Read } else { Effect::Change }
}

#[cfg(test)]
mod tests {
    use super::{request_op::Request, *};

    #[test]
    fn only_a_transaction_without_writes_is_a_read() {
        let op = |request| RequestOp { request: Some(request) };
        let range = || op(Request::RequestRange(RangeRequest::default()));
        let put = || op(Request::RequestPut(PutRequest::default()));
        let delete = || op(Request::RequestDeleteRange(DeleteRangeRequest::default()));
        let txn = |success, failure| TxnRequest { compare: vec![], success, failure };
        let nested = |inner| op(Request::RequestTxn(inner));
        let check = |request, expected| assert_eq!(effect_of(&request), expected, "{request:?}");
        check(txn(vec![], vec![]), Effect::Read);
        check(txn(vec![range()], vec![range(), nested(txn(vec![], vec![range()]))]), Effect::Read);
        check(txn(vec![put()], vec![]), Effect::Change);
        check(txn(vec![range()], vec![delete()]), Effect::Change);
        check(txn(vec![nested(txn(vec![], vec![put()]))], vec![]), Effect::Change);
    }
}
