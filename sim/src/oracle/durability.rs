//! What was acknowledged is in the final states; revisions grow by one for
//! each writing txn, and never fall or repeat.
//!
//! Two ways, so that one wrong input does not blind both: against the replayed
//! log, and from replies and final states alone.

use super::order::Order;
use super::{Sweep, Violation, by_invocation};
use crate::history::{Call, Certainty, Evidence, FinalState, History, Op, Outcome, text};
use bytes::Bytes;
use quorate_proto::etcdserverpb::{self as pb, request_op::Request, response_op::Response};
use std::collections::BTreeMap;

/// Every final state is the replayed log's.
pub(super) fn against_log(evidence: &Evidence, order: &Order) -> Vec<Violation> {
    let mut violations = Vec::new();
    for state in &evidence.final_states {
        against_order(state, order, &mut violations);
    }
    violations
}

/// Revisions and final states against replies.
pub(super) fn judge(history: &History, evidence: &Evidence) -> Vec<Violation> {
    let mut violations = Vec::new();
    revisions(history, &mut violations);
    for state in &evidence.final_states {
        let before = |op: &&Op| op.certainty() == Certainty::Answered && op.settled_ns() <= state.at_ns;
        let last = history.ops.iter().filter(before).filter_map(|op| Some((op.revision()?, op.id))).max();
        if let Some((revision, op)) = last
            && revision > state.revision
        {
            violations.push(Violation {
                guarantee: "DUR",
                sentence: format!(
                    "member {:x} ended at revision {}, but #{op} had seen revision {revision}",
                    state.member, state.revision
                ),
                op: Some(op),
            });
        }
        against_replies(state, history, &mut violations);
    }
    violations
}

/// REV, from replies alone.
fn revisions(history: &History, violations: &mut Vec<Violation>) {
    let mut writers: BTreeMap<i64, u64> = BTreeMap::new();
    let mut sweep: Sweep<(i64, u64)> = Sweep::new();
    let mut highest = (1, 0);
    for at in by_invocation(history) {
        let op = &history.ops[at];
        let (Some(revision), Certainty::Answered) = (op.revision(), op.certainty()) else { continue };
        for over in sweep.over_before(op.invoke_ns) {
            highest = highest.max(over);
        }
        let mut report = |sentence: String| {
            violations.push(Violation { guarantee: "REV", sentence, op: Some(op.id) });
        };
        let wrote = writes(op).is_some();
        if wrote && let Some(other) = writers.insert(revision, op.id) {
            report(format!("{op}: its revision {revision} was also given to #{other}"));
        }
        if !op.call.is_serializable() {
            let (at_least, other) = (highest.0 + i64::from(wrote), highest.1);
            if revision < at_least {
                report(format!(
                    "{op}: revision {revision}, but #{other} was over before it began, at revision {}",
                    highest.0
                ));
            }
            sweep.push(op.settled_ns(), (revision, op.id));
        }
    }
}

/// The final state is the replayed log's state at its revision.
fn against_order(state: &FinalState, order: &Order, violations: &mut Vec<Violation>) {
    let member = state.member;
    let mut report = |sentence: String| {
        violations.push(Violation { guarantee: "DUR", sentence, op: None });
    };
    let Some((first, last)) = order.span(state.revision) else {
        return report(format!("member {member:x} ended at revision {}, which never was", state.revision));
    };
    if order.moments[first..=last].iter().all(|moment| moment.compacted != state.compacted) {
        report(format!(
            "member {member:x} ended at revision {} compacted at {}, should be {}",
            state.revision, state.compacted, order.moments[last].compacted
        ));
    }
    let mut held: BTreeMap<_, _> = state.kvs.iter().map(|kv| (&kv.key, kv)).collect();
    for kv in order.model.pairs(state.revision) {
        match held.remove(&kv.key) {
            None => report(format!(
                "member {member:x} ended without {}, put at revision {}",
                text(&kv.key),
                kv.mod_revision
            )),
            Some(here) if *here != kv => report(format!(
                "member {member:x} ended with {} at revision {} as {}, should be {} at revision {}",
                text(&kv.key),
                here.mod_revision,
                text(&here.value),
                text(&kv.value),
                kv.mod_revision
            )),
            Some(_) => {}
        }
    }
    for (key, kv) in held {
        report(format!(
            "member {member:x} ended with {} at revision {}, which should not be there",
            text(key),
            kv.mod_revision
        ));
    }
}

/// A key that was put and acknowledged stands at that revision or a later one, unless a later or
/// an unsettled delete may have taken it.
fn against_replies(state: &FinalState, history: &History, violations: &mut Vec<Violation>) {
    let mut puts: BTreeMap<Bytes, (i64, u64)> = BTreeMap::new();
    let mut deletes: Vec<(pb::DeleteRangeRequest, i64)> = Vec::new();
    for op in &history.ops {
        match (op.certainty(), op.revision()) {
            (Certainty::Answered, Some(revision)) => {
                let Some(writes) = writes(op) else { continue };
                for key in writes.puts {
                    let latest = puts.entry(key).or_insert((revision, op.id));
                    *latest = (*latest).max((revision, op.id));
                }
                deletes.extend(writes.deletes.into_iter().map(|delete| (delete, revision)));
            }
            // May have happened at any revision.
            (Certainty::Ambiguous, _) => {
                deletes.extend(all_deletes(&op.call).into_iter().map(|delete| (delete, i64::MAX)));
            }
            _ => {}
        }
    }
    let held: BTreeMap<_, _> = state.kvs.iter().map(|kv| (&kv.key, kv)).collect();
    for (key, (revision, op)) in puts {
        let stands = held.get(&key).is_some_and(|kv| kv.mod_revision >= revision);
        let deleted = || {
            deletes.iter().any(|(delete, at)| *at >= revision && covers(&delete.key, &delete.range_end, &key))
        };
        let gone = !held.contains_key(&key) && deleted();
        if revision <= state.revision && !stands && !gone {
            violations.push(Violation {
                guarantee: "DUR",
                sentence: format!(
                    "member {:x} ended without what #{op} put in {} at revision {revision}",
                    state.member,
                    text(&key)
                ),
                op: Some(op),
            });
        }
    }
}

#[derive(Default)]
struct Writes {
    puts: Vec<Bytes>,
    deletes: Vec<pb::DeleteRangeRequest>,
}

/// What an answered operation says it wrote; `None`: nothing.
fn writes(op: &Op) -> Option<Writes> {
    let mut writes = Writes::default();
    match (&op.call, &op.outcome) {
        (Call::Put(request), Outcome::Put(_)) => writes.puts.push(request.key.clone()),
        (Call::DeleteRange(request), Outcome::DeleteRange(reply)) if reply.deleted > 0 => {
            writes.deletes.push(request.clone());
        }
        (Call::Txn(request), Outcome::Txn(reply)) => txn_writes(request, reply, &mut writes),
        _ => {}
    }
    if writes.puts.is_empty() && writes.deletes.is_empty() { None } else { Some(writes) }
}

fn txn_writes(request: &pb::TxnRequest, reply: &pb::TxnResponse, writes: &mut Writes) {
    let ops = if reply.succeeded { &request.success } else { &request.failure };
    for (op, response) in ops.iter().zip(&reply.responses) {
        match (&op.request, &response.response) {
            (Some(Request::RequestPut(request)), _) => writes.puts.push(request.key.clone()),
            (Some(Request::RequestDeleteRange(request)), Some(Response::ResponseDeleteRange(reply)))
                if reply.deleted > 0 =>
            {
                writes.deletes.push(request.clone())
            }
            (Some(Request::RequestTxn(request)), Some(Response::ResponseTxn(reply))) => {
                txn_writes(request, reply, writes);
            }
            _ => {}
        }
    }
}

/// Every delete that a call might do, in whatever branch.
fn all_deletes(call: &Call) -> Vec<pb::DeleteRangeRequest> {
    fn of_txn(txn: &pb::TxnRequest) -> Vec<pb::DeleteRangeRequest> {
        txn.success
            .iter()
            .chain(&txn.failure)
            .flat_map(|op| match &op.request {
                Some(Request::RequestDeleteRange(request)) => vec![request.clone()],
                Some(Request::RequestTxn(request)) => of_txn(request),
                _ => Vec::new(),
            })
            .collect()
    }
    match call {
        Call::DeleteRange(request) => vec![request.clone()],
        Call::Txn(request) => of_txn(request),
        _ => Vec::new(),
    }
}

fn covers(key: &[u8], range_end: &[u8], asked: &[u8]) -> bool {
    match range_end {
        [] => asked == key,
        [0] => asked >= key,
        end => asked >= key && asked < end,
    }
}
