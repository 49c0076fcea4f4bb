//! What a request must be before anyone proposes or serves it: checks that
//! look at nothing but the request, in etcd's order (semantics T1 to T4, R3, P3).

use quorate_proto::etcdserverpb as pb;
use std::collections::{BTreeMap, BTreeSet};

/// Why a request is refused as it stands; texts follow `etcdserver: `.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("key is not provided")]
    EmptyKey,
    /// A txn op without a member.
    #[error("key not found")]
    KeyNotFound,
    #[error("value is provided")]
    ValueProvided,
    #[error("lease is provided")]
    LeaseProvided,
    #[error("too many operations in txn request")]
    TooManyOperations,
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    #[error("invalid sort option")]
    InvalidSortOption,
}

fn check_key(key: &[u8]) -> Result<(), CheckError> {
    if key.is_empty() { Err(CheckError::EmptyKey) } else { Ok(()) }
}

pub fn check_range(request: &pb::RangeRequest) -> Result<(), CheckError> {
    check_key(&request.key)?;
    let order = pb::range_request::SortOrder::try_from(request.sort_order);
    let target = pb::range_request::SortTarget::try_from(request.sort_target);
    if order.is_err() || target.is_err() { Err(CheckError::InvalidSortOption) } else { Ok(()) }
}

pub fn check_put(request: &pb::PutRequest) -> Result<(), CheckError> {
    check_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(CheckError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(CheckError::LeaseProvided);
    }
    Ok(())
}

pub fn check_delete(request: &pb::DeleteRangeRequest) -> Result<(), CheckError> {
    check_key(&request.key)
}

/// `max_txn_ops`: operations that the longest list may hold, shared with nested txns.
pub fn check_txn(request: &pb::TxnRequest, max_txn_ops: usize) -> Result<(), CheckError> {
    check_form(request, max_txn_ops)?;
    check_branch(&request.success)?;
    check_branch(&request.failure)?;
    Ok(())
}

fn check_form(request: &pb::TxnRequest, budget: usize) -> Result<(), CheckError> {
    let longest = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(rest) = budget.checked_sub(longest) else {
        return Err(CheckError::TooManyOperations);
    };
    for compare in &request.compare {
        check_key(&compare.key)?;
    }
    for op in request.success.iter().chain(&request.failure) {
        use pb::request_op::Request;
        match op.request.as_ref().ok_or(CheckError::KeyNotFound)? {
            Request::RequestRange(range) => check_range(range)?,
            Request::RequestPut(put) => check_put(put)?,
            Request::RequestDeleteRange(delete) => check_delete(delete)?,
            Request::RequestTxn(txn) => check_form(txn, rest)?,
        }
    }
    Ok(())
}

/// The keys that a branch may put and the ranges that it may delete.
#[derive(Default)]
struct Touched<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Deleted<'a>,
}

/// T4: within one list, and through everything nested in it, a key is put
/// once at most and not put where a delete of the same list takes it away.
/// Ends that leave the range open are not looked at (T6): such txns are
/// applied in order.
fn check_branch(ops: &[pb::RequestOp]) -> Result<Touched<'_>, CheckError> {
    use pb::request_op::Request;
    let requests = || ops.iter().filter_map(|op| op.request.as_ref());
    let mut own_deletes = Deleted::default();
    for request in requests() {
        if let Request::RequestDeleteRange(delete) = request {
            own_deletes.insert(&delete.key, &delete.range_end);
        }
    }
    let mut nested = Touched::default();
    for request in requests() {
        let Request::RequestTxn(txn) = request else { continue };
        let branches = [check_branch(&txn.success)?, check_branch(&txn.failure)?];
        // Both branches against what stood before, never against each other: only one will run.
        for key in branches.iter().flat_map(|branch| &branch.puts) {
            if nested.puts.contains(key) || nested.deletes.covers(key) || own_deletes.covers(key) {
                return Err(CheckError::DuplicateKey);
            }
        }
        for branch in branches {
            nested.puts.extend(branch.puts);
            nested.deletes.extend(branch.deletes);
        }
    }
    for request in requests() {
        let Request::RequestPut(put) = request else { continue };
        let key = &*put.key;
        if own_deletes.covers(key) || nested.deletes.covers(key) || !nested.puts.insert(key) {
            return Err(CheckError::DuplicateKey);
        }
    }
    nested.deletes.extend(own_deletes);
    Ok(nested)
}

/// A union of ranges: start → end, none touching another, so that a lookup
/// costs the same however many were put in.
#[derive(Default)]
struct Deleted<'a>(BTreeMap<&'a [u8], End<'a>>);

/// Ordered: the key itself excluded, then included.
type End<'a> = (&'a [u8], bool);

impl<'a> Deleted<'a> {
    fn insert(&mut self, key: &'a [u8], range_end: &'a [u8]) {
        match range_end {
            [] => self.add(key, (key, true)),
            end if end <= key || end == [0] => {}
            end => self.add(key, (end, false)),
        }
    }

    fn add(&mut self, mut start: &'a [u8], mut end: End<'a>) {
        // Everything that overlaps melts into one.
        while let Some((&other, &other_end)) = self.0.range(..=end.0).next_back() {
            if other_end < (start, true) {
                break;
            }
            self.0.remove(other);
            start = start.min(other);
            end = end.max(other_end);
        }
        self.0.insert(start, end);
    }

    fn extend(&mut self, other: Deleted<'a>) {
        for (start, end) in other.0 {
            self.add(start, end);
        }
    }

    fn covers(&self, key: &[u8]) -> bool {
        let mut before =
            self.0.range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(key)));
        before.next_back().is_some_and(|(_, &end)| (key, false) < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pb::request_op::Request;

    fn op(request: Request) -> pb::RequestOp {
        pb::RequestOp { request: Some(request) }
    }

    fn put(key: &str) -> pb::RequestOp {
        op(Request::RequestPut(pb::PutRequest { key: key.to_owned().into(), ..Default::default() }))
    }

    fn delete(key: &str, end: &str) -> pb::RequestOp {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        op(Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: false }))
    }

    fn range(key: &str) -> pb::RequestOp {
        op(Request::RequestRange(pb::RangeRequest { key: key.to_owned().into(), ..Default::default() }))
    }

    fn nest(success: Vec<pb::RequestOp>, failure: Vec<pb::RequestOp>) -> pb::RequestOp {
        op(Request::RequestTxn(pb::TxnRequest { compare: vec![], success, failure }))
    }

    fn compare(key: &str) -> pb::Compare {
        pb::Compare { key: key.to_owned().into(), ..Default::default() }
    }

    #[test]
    fn requests_are_refused_by_their_form() {
        let range = |key: &str, order, target| {
            check_range(&pb::RangeRequest {
                key: key.to_owned().into(),
                sort_order: order,
                sort_target: target,
                ..Default::default()
            })
        };
        assert_eq!(range("k", 2, 4), Ok(()));
        assert_eq!(range("", 9, 0), Err(CheckError::EmptyKey));
        assert_eq!(range("k", 3, 0), Err(CheckError::InvalidSortOption));
        assert_eq!(range("k", 0, -1), Err(CheckError::InvalidSortOption));
        let put = |key: &str, value: &str, lease, ignore_value, ignore_lease| {
            check_put(&pb::PutRequest {
                key: key.to_owned().into(),
                value: value.to_owned().into(),
                lease,
                prev_kv: false,
                ignore_value,
                ignore_lease,
            })
        };
        assert_eq!(put("k", "", 0, true, true), Ok(()));
        assert_eq!(put("", "v", 1, true, true), Err(CheckError::EmptyKey));
        assert_eq!(put("k", "v", 1, true, true), Err(CheckError::ValueProvided));
        assert_eq!(put("k", "", 1, true, true), Err(CheckError::LeaseProvided));
        assert_eq!(check_delete(&pb::DeleteRangeRequest::default()), Err(CheckError::EmptyKey));
    }

    #[test]
    fn the_longest_list_counts_and_nested_txns_share_what_is_left() {
        let puts = |count: usize| (0..count).map(|n| put(&format!("k{n}"))).collect::<Vec<_>>();
        let check = |compares: usize, success: Vec<_>, failure: Vec<_>| {
            let compare = (0..compares).map(|_| compare("k")).collect();
            check_txn(&pb::TxnRequest { compare, success, failure }, 128)
        };
        assert_eq!(check(128, puts(128), puts(128)), Ok(()));
        assert_eq!(check(129, vec![], vec![]), Err(CheckError::TooManyOperations));
        assert_eq!(check(0, puts(129), vec![]), Err(CheckError::TooManyOperations));
        assert_eq!(check(0, vec![], puts(129)), Err(CheckError::TooManyOperations));
        assert_eq!(check(0, vec![nest(puts(127), vec![])], vec![]), Ok(()));
        assert_eq!(check(0, vec![nest(puts(128), vec![])], vec![]), Err(CheckError::TooManyOperations));
        assert_eq!(check(100, vec![nest(puts(28), vec![])], vec![]), Ok(()));
        assert_eq!(check(100, vec![nest(puts(29), vec![])], vec![]), Err(CheckError::TooManyOperations));
        // List lengths of a nested txn come when it is reached, after the ops before it.
        let bad_first = vec![put(""), nest(puts(128), vec![])];
        assert_eq!(check(0, bad_first, vec![]), Err(CheckError::EmptyKey));
        let bad_last = vec![nest(puts(128), vec![]), put("")];
        assert_eq!(check(0, bad_last, vec![]), Err(CheckError::TooManyOperations));
    }

    #[test]
    fn contents_are_checked_in_order_and_before_overlaps() {
        let check = |compare, success, failure| check_txn(&pb::TxnRequest { compare, success, failure }, 128);
        assert_eq!(
            check(vec![compare("")], vec![pb::RequestOp::default()], vec![]),
            Err(CheckError::EmptyKey)
        );
        let none = vec![pb::RequestOp::default()];
        assert_eq!(check(vec![], none.clone(), vec![put("")]), Err(CheckError::KeyNotFound));
        assert_eq!(check(vec![], vec![put("a"), put("a")], none), Err(CheckError::KeyNotFound));
    }

    #[test]
    fn a_key_is_put_once_in_a_branch_and_not_where_it_is_deleted() {
        let refused = |ops: Vec<pb::RequestOp>| {
            for (success, failure) in [(ops.clone(), vec![]), (vec![], ops.clone())] {
                let txn = pb::TxnRequest { compare: vec![], success, failure };
                assert_eq!(check_txn(&txn, 128), Err(CheckError::DuplicateKey), "{txn:?}");
            }
            let deep = pb::TxnRequest { success: vec![nest(vec![], ops)], ..Default::default() };
            assert_eq!(check_txn(&deep, 128), Err(CheckError::DuplicateKey), "{deep:?}");
        };
        refused(vec![put("a"), put("a")]);
        refused(vec![put("b"), delete("a", "c")]);
        refused(vec![delete("a", "c"), put("b")]);
        refused(vec![delete("a", "b"), delete("b", "c"), put("b")]);
        refused(vec![delete("b", ""), put("b")]);
        refused(vec![nest(vec![put("a")], vec![]), nest(vec![], vec![put("a")])]);
        refused(vec![nest(vec![put("a")], vec![]), put("a")]);
        refused(vec![put("a"), nest(vec![], vec![put("a")])]);
        refused(vec![put("b"), nest(vec![delete("a", "c")], vec![])]);
        refused(vec![nest(vec![delete("a", "c")], vec![]), put("b")]);
        refused(vec![nest(vec![put("b")], vec![]), delete("a", "c")]);
        refused(vec![delete("a", "c"), nest(vec![], vec![put("b")])]);
        refused(vec![nest(vec![delete("a", "c")], vec![]), nest(vec![put("b")], vec![])]);
        refused(vec![nest(vec![nest(vec![put("b")], vec![])], vec![]), put("b")]);
    }

    #[test]
    fn what_cannot_collide_is_allowed() {
        let allowed = |ops: Vec<pb::RequestOp>| {
            let txn = pb::TxnRequest { compare: vec![], success: ops.clone(), failure: ops };
            assert_eq!(check_txn(&txn, 128), Ok(()), "{txn:?}");
        };
        allowed(vec![nest(vec![put("a")], vec![put("a")])]);
        allowed(vec![nest(vec![put("b")], vec![delete("a", "c")])]);
        allowed(vec![delete("a", "c"), delete("b", "d"), delete("b", "")]);
        allowed(vec![delete("a", "b"), put("b")]);
        allowed(vec![nest(vec![put("b")], vec![]), nest(vec![delete("a", "c")], vec![])]);
        allowed(vec![range("a"), put("a"), range("a"), range("a")]);
        allowed(vec![delete("c", "a"), put("b")]);
        // An end that leaves the range open is not seen.
        allowed(vec![delete("a", "\0"), put("b")]);
        allowed(vec![put("b"), nest(vec![delete("a", "\0")], vec![])]);
    }

    #[test]
    fn unions_of_ranges_cover_what_their_parts_cover() {
        let keys: Vec<Vec<u8>> = (b'a'..=b'h').map(|byte| vec![byte]).collect();
        // Every set of three ranges over eight keys, single keys among them.
        let ranges: Vec<(usize, usize)> =
            (0..8).flat_map(|from| (from..8).map(move |to| (from, to))).collect();
        for a in &ranges {
            for b in &ranges {
                for c in ranges.iter().step_by(3) {
                    let mut union = Deleted::default();
                    for &(from, to) in [a, b, c] {
                        let end: &[u8] = if from == to { &[] } else { &keys[to] };
                        union.insert(&keys[from], end);
                    }
                    for (at, key) in keys.iter().enumerate() {
                        let covered = [a, b, c]
                            .iter()
                            .any(|(from, to)| (*from..*to).contains(&at) || (from == to && *from == at));
                        assert_eq!(union.covers(key), covered, "{a:?} {b:?} {c:?} {at}");
                    }
                }
            }
        }
    }
}
