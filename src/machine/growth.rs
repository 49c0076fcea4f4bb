//! What a request adds to the store, before it is proposed: what quota and
//! disk reserve are judged by (semantics X1).
//!
//! **Never** looks at the state: a put that replaces a key costs as one that
//! makes it, for both write a record.

use quorate_proto::etcdserverpb::{self as pb, request_op::Request};

/// What a record costs besides its key and value, bytes.
const RECORD_BYTES: u64 = 256;
/// What a lease costs, bytes.
const LEASE_BYTES: u64 = 64;

/// Bytes that `request` may add; `None` for what passes however full the store
/// is: deletes, compaction, alarms, reads, members.
pub fn growth(request: &pb::InternalRaftRequest) -> Option<u64> {
    if let Some(put) = &request.put {
        return Some(growth_of_put(put));
    }
    if let Some(txn) = &request.txn {
        return growth_of_txn(txn);
    }
    request.lease_grant.as_ref().map(|_| LEASE_BYTES)
}

/// As [`growth`], of a put.
pub fn growth_of_put(put: &pb::PutRequest) -> u64 {
    RECORD_BYTES + put.key.len() as u64 + put.value.len() as u64
}

/// As [`growth`], of a txn: the larger branch's puts, nested ones too.
pub fn growth_of_txn(txn: &pb::TxnRequest) -> Option<u64> {
    Some(of_txn(txn)).filter(|bytes| *bytes > 0)
}

fn of_txn(txn: &pb::TxnRequest) -> u64 {
    let of = |ops: &[pb::RequestOp]| {
        ops.iter()
            .map(|op| match &op.request {
                Some(Request::RequestPut(put)) => growth_of_put(put),
                Some(Request::RequestTxn(txn)) => of_txn(txn),
                Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
            })
            .sum::<u64>()
    };
    of(&txn.success).max(of(&txn.failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn put(key: usize, value: usize) -> pb::PutRequest {
        pb::PutRequest {
            key: Bytes::from(vec![b'k'; key]),
            value: Bytes::from(vec![b'v'; value]),
            ..pb::PutRequest::default()
        }
    }

    fn op(request: Request) -> pb::RequestOp {
        pb::RequestOp { request: Some(request) }
    }

    #[test]
    fn puts_leases_and_the_larger_branch_cost() {
        let check = |request: pb::InternalRaftRequest, expected: Option<u64>| {
            assert_eq!(growth(&request), expected, "{request:?}");
        };
        let none = pb::InternalRaftRequest::default;
        check(none(), None);
        check(pb::InternalRaftRequest { put: Some(put(3, 10)), ..none() }, Some(269));
        check(
            pb::InternalRaftRequest { lease_grant: Some(pb::LeaseGrantRequest::default()), ..none() },
            Some(64),
        );
        check(
            pb::InternalRaftRequest { delete_range: Some(pb::DeleteRangeRequest::default()), ..none() },
            None,
        );
        check(pb::InternalRaftRequest { compaction: Some(pb::CompactionRequest::default()), ..none() }, None);
        check(pb::InternalRaftRequest { alarm: Some(pb::AlarmRequest::default()), ..none() }, None);

        let delete = || op(Request::RequestDeleteRange(pb::DeleteRangeRequest::default()));
        let range = || op(Request::RequestRange(pb::RangeRequest::default()));
        let nested = pb::TxnRequest {
            compare: vec![],
            success: vec![op(Request::RequestPut(put(1, 0)))],
            failure: vec![op(Request::RequestPut(put(1, 99)))],
        };
        let txn = |success, failure| pb::InternalRaftRequest {
            txn: Some(pb::TxnRequest { compare: vec![], success, failure }),
            ..none()
        };
        check(txn(vec![], vec![]), None);
        check(txn(vec![delete(), range()], vec![delete()]), None);
        check(
            txn(
                vec![op(Request::RequestPut(put(1, 1))), op(Request::RequestPut(put(1, 1)))],
                vec![op(Request::RequestPut(put(1, 100)))],
            ),
            Some(516),
        );
        check(txn(vec![delete()], vec![op(Request::RequestTxn(nested))]), Some(356));
    }
}
