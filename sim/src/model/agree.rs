//! Whether a reply that was seen is the model's, to the byte but for header
//! ids and terms, and but for the order of ties, which no one promises (R7).

use super::Reply;
use crate::history::{Call, Outcome};
use quorate_proto::{
    etcdserverpb::{self as pb, range_request::SortTarget, request_op::Request, response_op::Response},
    mvccpb::KeyValue,
};

impl Reply {
    /// `None`: the reply is right.
    pub fn difference(&self, call: &Call, seen: &Outcome) -> Option<String> {
        let mut seen_bare = seen.clone();
        bare(&mut seen_bare);
        let mut ties = self.ties.iter();
        let right = match (call, &self.outcome, &seen_bare) {
            (Call::Range(request), Outcome::Range(reply), Outcome::Range(seen)) => {
                same_range(request, reply, seen, ties.next().expect("a pool for each range"))
            }
            (Call::Txn(request), Outcome::Txn(reply), Outcome::Txn(seen)) => {
                same_txn(request, reply, seen, &mut ties)
            }
            (_, reply, seen) => reply == seen,
        };
        if right { None } else { Some(format!("got {seen}, should be {}", self.outcome)) }
    }
}

/// Ids and term go, the revision stays.
fn bare(outcome: &mut Outcome) {
    let header = match outcome {
        Outcome::Range(reply) => &mut reply.header,
        Outcome::Put(reply) => &mut reply.header,
        Outcome::DeleteRange(reply) => &mut reply.header,
        Outcome::Txn(reply) => &mut reply.header,
        Outcome::Compact(reply) => &mut reply.header,
        Outcome::Error { .. } | Outcome::Unknown => return,
    };
    if let Some(header) = header {
        *header = pb::ResponseHeader { revision: header.revision, ..Default::default() };
    }
}

fn same_range(
    request: &pb::RangeRequest,
    reply: &pb::RangeResponse,
    seen: &pb::RangeResponse,
    pool: &[KeyValue],
) -> bool {
    if reply == seen {
        return true;
    }
    if pool.is_empty() || (reply.header, reply.more, reply.count) != (seen.header, seen.more, seen.count) {
        return false;
    }
    // Each place must hold a pair that ties with the model's there, and none twice.
    let mut left: Vec<&KeyValue> = pool.iter().collect();
    reply.kvs.len() == seen.kvs.len()
        && reply.kvs.iter().zip(&seen.kvs).all(|(here, kv)| {
            let found = left.iter().position(|candidate| *candidate == kv);
            let tied = tie(request, here, kv, pool);
            found.map(|at| left.swap_remove(at)).is_some() && tied
        })
}

/// Whether the sort cannot tell two shown pairs apart.
fn tie(request: &pb::RangeRequest, one: &KeyValue, other: &KeyValue, pool: &[KeyValue]) -> bool {
    match SortTarget::try_from(request.sort_target) {
        Ok(SortTarget::Version) => one.version == other.version,
        Ok(SortTarget::Create) => one.create_revision == other.create_revision,
        Ok(SortTarget::Mod) => one.mod_revision == other.mod_revision,
        // Without the values nothing can be said of their order.
        Ok(SortTarget::Value) => request.keys_only && !pool.is_empty() || one.value == other.value,
        _ => one == other,
    }
}

fn same_txn<'a>(
    request: &pb::TxnRequest,
    reply: &pb::TxnResponse,
    seen: &pb::TxnResponse,
    ties: &mut impl Iterator<Item = &'a Vec<KeyValue>>,
) -> bool {
    let ops = if reply.succeeded { &request.success } else { &request.failure };
    if (reply.header, reply.succeeded, reply.responses.len())
        != (seen.header, seen.succeeded, seen.responses.len())
    {
        return false;
    }
    // Every pool is taken, right or wrong, so that the next range meets its own.
    let mut right = true;
    for ((op, reply), seen) in ops.iter().zip(&reply.responses).zip(&seen.responses) {
        right &= match (&op.request, &reply.response, &seen.response) {
            (
                Some(Request::RequestRange(request)),
                Some(Response::ResponseRange(reply)),
                Some(Response::ResponseRange(seen)),
            ) => same_range(request, reply, seen, ties.next().expect("a pool for each range")),
            (
                Some(Request::RequestTxn(request)),
                Some(Response::ResponseTxn(reply)),
                Some(Response::ResponseTxn(seen)),
            ) => same_txn(request, reply, seen, ties),
            (_, reply, seen) => reply == seen,
        };
        if !right {
            return false;
        }
    }
    right
}
