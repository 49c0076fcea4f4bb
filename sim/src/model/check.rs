//! What a request's content alone forbids (R3, P3, T1 to T6), whatever the
//! state of the store. **Never** looks at a store.

use super::{Refusal, TXN_OPS_MAX};
use crate::history::Call;
use bytes::Bytes;
use quorate_proto::etcdserverpb::{self as pb, request_op::Request};
use std::collections::BTreeSet;

pub(super) fn call(call: &Call) -> Result<(), Refusal> {
    match call {
        Call::Range(request) => range(request),
        Call::Put(request) => put(request),
        Call::DeleteRange(request) => delete_range(request),
        Call::Txn(request) => {
            contents(request, TXN_OPS_MAX)?;
            overlaps(&request.success)?;
            overlaps(&request.failure)?;
            Ok(())
        }
        Call::Compact(_) => Ok(()),
    }
}

fn key(key: &Bytes) -> Result<(), Refusal> {
    if key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
}

fn range(request: &pb::RangeRequest) -> Result<(), Refusal> {
    key(&request.key)?;
    let order = pb::range_request::SortOrder::try_from(request.sort_order);
    let target = pb::range_request::SortTarget::try_from(request.sort_target);
    if order.is_err() || target.is_err() { Err(Refusal::InvalidSortOption) } else { Ok(()) }
}

fn put(request: &pb::PutRequest) -> Result<(), Refusal> {
    key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(Refusal::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 { Err(Refusal::LeaseProvided) } else { Ok(()) }
}

fn delete_range(request: &pb::DeleteRangeRequest) -> Result<(), Refusal> {
    key(&request.key)
}

/// T1 to T3: lengths, compare keys, contents; a nested txn in its place, with what its parent left.
fn contents(txn: &pb::TxnRequest, ops_max: usize) -> Result<(), Refusal> {
    let ops = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let ops_left = ops_max.checked_sub(ops).ok_or(Refusal::TooManyOps)?;
    txn.compare.iter().try_for_each(|compare| key(&compare.key))?;
    txn.success.iter().chain(&txn.failure).try_for_each(|op| match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => contents(request, ops_left),
        None => Err(Refusal::KeyNotFound),
    })
}

/// What one list of operations writes, nested ones included.
#[derive(Default)]
struct Writes {
    puts: BTreeSet<Bytes>,
    deletes: Vec<(Bytes, Bytes)>,
}

impl Writes {
    /// T6: a delete with an open end (one zero byte) covers nothing here.
    fn deletes(&self, key: &Bytes) -> bool {
        self.deletes
            .iter()
            .any(|(start, end)| if end.is_empty() { key == start } else { start <= key && key < end })
    }

    fn put(&mut self, key: &Bytes) -> Result<(), Refusal> {
        if self.deletes(key) || !self.puts.insert(key.clone()) { Err(Refusal::DuplicateKey) } else { Ok(()) }
    }
}

/// T4 and T5: within one list no key is put twice, nor put where a delete covers it. A nested
/// txn's puts meet the deletes of this level and of nested ones before it, not of later ones.
fn overlaps(ops: &[pb::RequestOp]) -> Result<Writes, Refusal> {
    let mut writes = Writes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(request)) = &op.request {
            writes.deletes.push((request.key.clone(), request.range_end.clone()));
        }
    }
    for op in ops {
        if let Some(Request::RequestTxn(request)) = &op.request {
            let mut then = overlaps(&request.success)?;
            let otherwise = overlaps(&request.failure)?;
            // Only one branch runs: a key may be put in both.
            then.puts.extend(otherwise.puts);
            for key in &then.puts {
                writes.put(key)?;
            }
            writes.deletes.extend(then.deletes);
            writes.deletes.extend(otherwise.deletes);
        }
    }
    for op in ops {
        if let Some(Request::RequestPut(request)) = &op.request {
            writes.put(&request.key)?;
        }
    }
    Ok(writes)
}
