//! Transactions: compares, the chosen path, execution (T7 to T17).

use super::{Model, Moment, Refusal, Reply, header};
use crate::history::Outcome;
use bytes::Bytes;
use quorate_proto::{
    etcdserverpb::{
        self as pb,
        compare::{CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
    },
    mvccpb::KeyValue,
};
use std::cmp::Ordering;

/// A txn with every compare decided (T11: all of them on the state before it).
struct Path<'a> {
    succeeded: bool,
    steps: Vec<Step<'a>>,
}

enum Step<'a> {
    Range(&'a pb::RangeRequest),
    Put(&'a pb::PutRequest),
    DeleteRange(&'a pb::DeleteRangeRequest),
    Txn(Path<'a>),
}

/// Execution in progress.
struct Run {
    /// The revision before the txn.
    before: i64,
    changed: bool,
    ties: Vec<Vec<KeyValue>>,
}

impl Model {
    /// What the state forbids, on the path that the compares choose.
    pub(super) fn check_txn(&self, request: &pb::TxnRequest, moment: Moment) -> Result<(), Refusal> {
        self.check_path(&self.choose(request, moment), moment)
    }

    /// [`Model::check_txn`] comes first.
    pub(super) fn txn(&mut self, request: &pb::TxnRequest) -> Reply {
        let moment = self.now();
        let path = self.choose(request, moment);
        let mut run = Run { before: moment.revision, changed: false, ties: Vec::new() };
        let mut reply = self.run(&path, &mut run);
        // T13, T14.
        self.revision += i64::from(run.changed);
        reply.header = header(self.revision);
        Reply { outcome: Outcome::Txn(reply), ties: run.ties }
    }

    /// A txn of ranges only, as of an earlier moment.
    pub(super) fn read_txn(&self, request: &pb::TxnRequest, moment: Moment) -> Reply {
        let path = self.choose(request, moment);
        let mut ties = Vec::new();
        let mut responses = Vec::new();
        for step in &path.steps {
            let Step::Range(range) = step else { panic!("a txn that is no read") };
            let (reply, tie) = self.range_at(range, moment.revision);
            ties.push(tie);
            responses.push(pb::ResponseOp { response: Some(Response::ResponseRange(reply)) });
        }
        let reply = pb::TxnResponse { header: header(moment.revision), succeeded: path.succeeded, responses };
        Reply { outcome: Outcome::Txn(reply), ties }
    }

    fn choose<'a>(&self, request: &'a pb::TxnRequest, moment: Moment) -> Path<'a> {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare, moment.revision));
        let ops = if succeeded { &request.success } else { &request.failure };
        let steps = ops.iter().map(|op| match op.request.as_ref().expect("checked before") {
            Request::RequestRange(request) => Step::Range(request),
            Request::RequestPut(request) => Step::Put(request),
            Request::RequestDeleteRange(request) => Step::DeleteRange(request),
            Request::RequestTxn(request) => Step::Txn(self.choose(request, moment)),
        });
        Path { succeeded, steps: steps.collect() }
    }

    /// T8, T9: on every key of the range; a range without keys is like one missing key.
    fn holds(&self, compare: &pb::Compare, revision: i64) -> bool {
        let pairs = self.select(&compare.key, &compare.range_end, revision);
        if pairs.is_empty() {
            let is_value = compare.target == CompareTarget::Value as i32;
            return !is_value && compare_pair(compare, &KeyValue::default());
        }
        pairs.iter().all(|kv| compare_pair(compare, kv))
    }

    /// T1, T15, T16: what the state forbids, on the chosen path, before anything runs.
    fn check_path(&self, path: &Path<'_>, moment: Moment) -> Result<(), Refusal> {
        path.steps.iter().try_for_each(|step| match step {
            Step::Range(request) if request.revision == 0 => Ok(()),
            Step::Range(request) if request.revision > moment.revision => Err(Refusal::FutureRevision),
            Step::Range(request) if request.revision < moment.compacted => Err(Refusal::Compacted),
            Step::Range(_) | Step::DeleteRange(_) => Ok(()),
            Step::Put(request) => self.check_put(request, moment.revision),
            Step::Txn(path) => self.check_path(path, moment),
        })
    }

    /// T12 to T14.
    fn run(&mut self, path: &Path<'_>, run: &mut Run) -> pb::TxnResponse {
        let mut responses = Vec::new();
        for step in &path.steps {
            let response = match step {
                Step::Range(request) => {
                    let (reply, ties) = self.range_at(request, run.before + i64::from(run.changed));
                    run.ties.push(ties);
                    Response::ResponseRange(reply)
                }
                Step::Put(request) => {
                    run.changed = true;
                    Response::ResponsePut(self.put(request, run.before + 1))
                }
                Step::DeleteRange(request) => {
                    let (reply, changed) = self.delete_range(request, run.before, run.changed);
                    run.changed = changed;
                    Response::ResponseDeleteRange(reply)
                }
                Step::Txn(path) => Response::ResponseTxn(self.run(path, run)),
            };
            responses.push(pb::ResponseOp { response: Some(response) });
        }
        // T14: a nested reply's header is there and empty; the outermost gets its own.
        pb::TxnResponse { header: header(0), succeeded: path.succeeded, responses }
    }
}

/// T10.
fn compare_pair(compare: &pb::Compare, kv: &KeyValue) -> bool {
    let union = compare.target_union.as_ref();
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => kv.version.cmp(&match union {
            Some(TargetUnion::Version(number)) => *number,
            _ => 0,
        }),
        Ok(CompareTarget::Create) => kv.create_revision.cmp(&match union {
            Some(TargetUnion::CreateRevision(number)) => *number,
            _ => 0,
        }),
        Ok(CompareTarget::Mod) => kv.mod_revision.cmp(&match union {
            Some(TargetUnion::ModRevision(number)) => *number,
            _ => 0,
        }),
        Ok(CompareTarget::Value) => kv.value.cmp(&match union {
            Some(TargetUnion::Value(value)) => value.clone(),
            _ => Bytes::new(),
        }),
        Ok(CompareTarget::Lease) => kv.lease.cmp(&match union {
            Some(TargetUnion::Lease(number)) => *number,
            _ => 0,
        }),
        Err(_) => Ordering::Equal,
    };
    match pb::compare::CompareResult::try_from(compare.result) {
        Ok(pb::compare::CompareResult::Equal) => order.is_eq(),
        Ok(pb::compare::CompareResult::Greater) => order.is_gt(),
        Ok(pb::compare::CompareResult::Less) => order.is_lt(),
        Ok(pb::compare::CompareResult::NotEqual) => order.is_ne(),
        Err(_) => true,
    }
}
