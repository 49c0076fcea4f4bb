//! Txn: compares on the state before it, checks of the chosen branches, then
//! the ops in order on a draft (T7 to T16).

use super::{
    Error, Missing, Mvcc, Pages,
    draft::{Draft, Write, check_put},
    index::{Found, Span},
    range::header,
};
use quorate_proto::{
    etcdserverpb::{
        self as pb,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
    },
    mvccpb::KeyValue,
};
use std::cmp::Ordering;

/// The branches that a txn and those nested in it take, in the order they are met.
type Path = Vec<bool>;

/// An answer and the writes that go with it.
pub(super) type Resolved<T> = Result<Result<(T, Vec<Write>), Error>, Missing>;

impl Mvcc {
    /// Works out a txn; the request has passed [`super::check::check_txn`].
    pub(super) fn resolve_txn(
        &self,
        request: &pb::TxnRequest,
        pages: &dyn Pages,
    ) -> Resolved<pb::TxnResponse> {
        let mut draft = Draft::new(self, pages, false);
        let mut path = Path::new();
        choose(&mut draft, request, &mut path);
        if draft.lacks() {
            let missing = draft.finish().expect_err("it lacks pages");
            return Err(missing);
        }
        if let Err(error) = check_ops(self, request, &mut path.iter().copied()) {
            return Ok(Err(error));
        }
        let mut response = match run(&mut draft, request, &mut path.iter().copied()) {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        response.header = Some(header(draft.revision()));
        Ok(Ok((response, draft.finish()?)))
    }

    /// A txn that only reads (T17), on the current state.
    pub fn read_txn(
        &self,
        request: &pb::TxnRequest,
        pages: &dyn Pages,
    ) -> Result<Result<pb::TxnResponse, Error>, Missing> {
        let resolved = self.resolve_txn(request, pages)?;
        Ok(resolved.map(|(response, writes)| {
            assert!(writes.is_empty(), "a read-only txn was asked for");
            response
        }))
    }
}

/// Whether both branches hold nothing but ranges, so that the txn needs no log entry (T17).
pub fn is_read_only(request: &pb::TxnRequest) -> bool {
    let ranges = |op: &pb::RequestOp| matches!(op.request, Some(Request::RequestRange(_)));
    request.success.iter().chain(&request.failure).all(ranges)
}

/// Whether a read-only txn may answer from this member at once (T17): every range is serializable.
pub fn is_serializable(request: &pb::TxnRequest) -> bool {
    let serializable =
        |op: &pb::RequestOp| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable);
    request.success.iter().chain(&request.failure).all(serializable)
}

/// Whether any branch, nested ones too, puts a key.
pub fn has_put(request: &pb::TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(txn)) => has_put(txn),
        _ => false,
    })
}

fn branch(request: &pb::TxnRequest, succeeded: bool) -> &[pb::RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// All compares, nested ones of the chosen branches too, see the state before the txn (T11).
fn choose(draft: &mut Draft<'_>, request: &pb::TxnRequest, path: &mut Path) {
    let mut succeeded = true;
    for compare in &request.compare {
        // What lacks pages counts as holding until they are there; a compare that fails decides alone.
        succeeded = succeeded && holds(draft, compare);
    }
    path.push(succeeded);
    for op in branch(request, succeeded) {
        if let Some(Request::RequestTxn(txn)) = &op.request {
            choose(draft, txn, path);
        }
    }
}

/// T8 to T10.
fn holds(draft: &mut Draft<'_>, compare: &pb::Compare) -> bool {
    let mvcc = draft.mvcc();
    let target = CompareTarget::try_from(compare.target).ok();
    let Some(span) = Span::new(&compare.key, &compare.range_end) else {
        return absent_holds(compare, target);
    };
    let mut any = false;
    for (_, found) in mvcc.index.scan(span, mvcc.revision) {
        any = true;
        let Some(ordering) = ordering(draft, compare, target, Some(&found)) else { continue };
        if !fits(compare.result, ordering) {
            return false;
        }
    }
    any || absent_holds(compare, target)
}

fn absent_holds(compare: &pb::Compare, target: Option<CompareTarget>) -> bool {
    target != Some(CompareTarget::Value) && fits(compare.result, number_ordering(compare, target, None, 0))
}

/// `None` while the page with the value lacks.
fn ordering(
    draft: &mut Draft<'_>,
    compare: &pb::Compare,
    target: Option<CompareTarget>,
    found: Option<&Found>,
) -> Option<Ordering> {
    let read = |draft: &mut Draft<'_>| -> Option<KeyValue> {
        let place = found.expect("a value belongs to a pair").place;
        let pair = draft.message(place);
        // Keys are never empty, so an empty pair is a page that lacks.
        (!pair.key.is_empty()).then_some(pair)
    };
    match target {
        Some(CompareTarget::Value) => {
            let wanted = match &compare.target_union {
                Some(TargetUnion::Value(value)) => &value[..],
                _ => &[],
            };
            Some((*read(draft)?.value).cmp(wanted))
        }
        Some(CompareTarget::Lease) => {
            let lease = read(draft)?.lease;
            Some(number_ordering(compare, target, found, lease))
        }
        _ => Some(number_ordering(compare, target, found, 0)),
    }
}

/// A union member that does not fit the target counts as 0; an unknown target compares as equal.
fn number_ordering(
    compare: &pb::Compare,
    target: Option<CompareTarget>,
    found: Option<&Found>,
    lease: i64,
) -> Ordering {
    let number = |of: fn(&Found) -> u64| found.map_or(0, of) as i64;
    let (ours, wanted) = match (target, &compare.target_union) {
        (Some(CompareTarget::Version), union) => (
            number(|found| found.version),
            if let Some(TargetUnion::Version(wanted)) = union { *wanted } else { 0 },
        ),
        (Some(CompareTarget::Create), union) => (
            number(|found| found.create_revision),
            if let Some(TargetUnion::CreateRevision(wanted)) = union { *wanted } else { 0 },
        ),
        (Some(CompareTarget::Mod), union) => (
            number(|found| found.mod_revision),
            if let Some(TargetUnion::ModRevision(wanted)) = union { *wanted } else { 0 },
        ),
        (Some(CompareTarget::Lease), union) => {
            (lease, if let Some(TargetUnion::Lease(wanted)) = union { *wanted } else { 0 })
        }
        (Some(CompareTarget::Value) | None, _) => (0, 0),
    };
    ours.cmp(&wanted)
}

fn fits(result: i32, ordering: Ordering) -> bool {
    match CompareResult::try_from(result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        // T10: an unknown result holds.
        Err(_) => true,
    }
}

/// Checks of the chosen ops against the state before the txn (T1, T15); the first one aborts it whole (T16).
fn check_ops(
    mvcc: &Mvcc,
    request: &pb::TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> Result<(), Error> {
    let succeeded = path.next().expect("the path has a step for each txn on it");
    for op in branch(request, succeeded) {
        match op.request.as_ref().ok_or(Error::KeyNotFound)? {
            Request::RequestRange(range) => match range.revision {
                0 => {}
                asked if asked > mvcc.revision() => return Err(Error::FutureRevision),
                asked if asked < mvcc.compacted() => return Err(Error::Compacted),
                _ => {}
            },
            Request::RequestPut(put) => {
                check_put(put, || mvcc.index.live(&put.key, mvcc.revision).is_some())?;
            }
            Request::RequestDeleteRange(_) => {}
            Request::RequestTxn(txn) => check_ops(mvcc, txn, path)?,
        }
    }
    Ok(())
}

fn run(
    draft: &mut Draft<'_>,
    request: &pb::TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> Result<pb::TxnResponse, Error> {
    let succeeded = path.next().expect("the path has a step for each txn on it");
    let mut responses = Vec::new();
    for op in branch(request, succeeded) {
        let response = match op.request.as_ref().ok_or(Error::KeyNotFound)? {
            Request::RequestRange(range) => Response::ResponseRange(draft.range(range)?),
            Request::RequestPut(put) => Response::ResponsePut(draft.put(put)?),
            Request::RequestDeleteRange(delete) => Response::ResponseDeleteRange(draft.delete(delete)),
            Request::RequestTxn(txn) => Response::ResponseTxn(run(draft, txn, path)?),
        };
        responses.push(pb::ResponseOp { response: Some(response) });
    }
    // T14: a nested answer has an empty header; the outer one gets its own at the end.
    Ok(pb::TxnResponse { header: Some(pb::ResponseHeader::default()), succeeded, responses })
}
