//! From what the plan asks to a request on the wire, given what the client has seen.

use crate::history::{Call, Outcome};
use crate::plan::{Against, Ask, At, Branches, Erase, Read, Store, Test};
use quorate_proto::{
    etcdserverpb::{self as pb, compare::TargetUnion, request_op::Request, response_op::Response},
    mvccpb::KeyValue,
};
use std::collections::BTreeMap;

/// What one client knows.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    newest: i64,
    /// Mod revision and value by key.
    keys: BTreeMap<Vec<u8>, (i64, bytes::Bytes)>,
}

impl Seen {
    fn at(&self, at: At) -> i64 {
        match at {
            At::Back(by) => (self.newest - by).max(1),
            At::Exactly(revision) => revision,
        }
    }

    pub fn call(&self, ask: &Ask) -> Call {
        match ask {
            Ask::Range(read) => Call::Range(self.range(read)),
            Ask::Put(store) => Call::Put(put(store)),
            Ask::Delete(erase) => Call::DeleteRange(delete(erase)),
            Ask::Txn(branches) => Call::Txn(self.txn(branches)),
            Ask::Compact { at, physical } => {
                Call::Compact(pb::CompactionRequest { revision: self.at(*at), physical: *physical })
            }
        }
    }

    fn range(&self, read: &Read) -> pb::RangeRequest {
        let at = |at: &Option<At>| at.map_or(0, |at| self.at(at));
        pb::RangeRequest {
            key: read.span.key.clone().into(),
            range_end: read.span.end.clone().into(),
            limit: read.limit,
            revision: at(&read.at),
            sort_order: read.sort_order,
            sort_target: read.sort_target,
            serializable: read.serializable,
            keys_only: read.keys_only,
            count_only: read.count_only,
            min_mod_revision: at(&read.min_mod),
            max_create_revision: at(&read.max_create),
            ..Default::default()
        }
    }

    fn txn(&self, branches: &Branches) -> pb::TxnRequest {
        pb::TxnRequest {
            compare: branches.tests.iter().map(|test| self.compare(test)).collect(),
            success: branches.then.iter().map(|ask| self.op(ask)).collect(),
            failure: branches.otherwise.iter().map(|ask| self.op(ask)).collect(),
        }
    }

    fn op(&self, ask: &Ask) -> pb::RequestOp {
        let request = match ask {
            Ask::Range(read) => Request::RequestRange(self.range(read)),
            Ask::Put(store) => Request::RequestPut(put(store)),
            Ask::Delete(erase) => Request::RequestDeleteRange(delete(erase)),
            Ask::Txn(branches) => Request::RequestTxn(self.txn(branches)),
            Ask::Compact { .. } => panic!("a plan never compacts inside a txn"),
        };
        pb::RequestOp { request: Some(request) }
    }

    fn compare(&self, test: &Test) -> pb::Compare {
        let seen = self.keys.get(test.span.key.as_bytes());
        let (target, union) = match &test.against {
            Against::SeenMod => (2, TargetUnion::ModRevision(seen.map_or(0, |(revision, _)| *revision))),
            Against::SeenValue => {
                (3, TargetUnion::Value(seen.map_or(bytes::Bytes::new(), |(_, value)| value.clone())))
            }
            Against::Version(version) => (0, TargetUnion::Version(*version)),
            Against::Create(at) => (1, TargetUnion::CreateRevision(self.at(*at))),
            Against::Mod(at) => (2, TargetUnion::ModRevision(self.at(*at))),
            Against::Value(value) => (3, TargetUnion::Value(value.clone().into())),
        };
        pb::Compare {
            result: test.result,
            target,
            key: test.span.key.clone().into(),
            range_end: test.span.end.clone().into(),
            target_union: Some(union),
        }
    }

    /// Takes in what a reply says.
    pub fn learn(&mut self, call: &Call, outcome: &Outcome) {
        let header = match outcome {
            Outcome::Range(reply) => reply.header.as_ref(),
            Outcome::Put(reply) => reply.header.as_ref(),
            Outcome::DeleteRange(reply) => reply.header.as_ref(),
            Outcome::Txn(reply) => reply.header.as_ref(),
            Outcome::Compact(reply) => reply.header.as_ref(),
            Outcome::Error { .. } | Outcome::Unknown => None,
        };
        let revision = header.map_or(0, |header| header.revision);
        self.newest = self.newest.max(revision);
        match (call, outcome) {
            (Call::Put(put), Outcome::Put(_)) if !put.ignore_value => {
                self.keys.insert(put.key.to_vec(), (revision, put.value.clone()));
            }
            // Only a read at now tells what to swap next.
            (Call::Range(range), Outcome::Range(reply)) if range.revision == 0 => {
                self.learn_pairs(&reply.kvs);
                if range.range_end.is_empty() && reply.kvs.is_empty() && range.min_mod_revision == 0 {
                    self.keys.remove(&range.key[..]);
                }
            }
            (Call::DeleteRange(delete), Outcome::DeleteRange(_)) if delete.range_end.is_empty() => {
                self.keys.remove(&delete.key[..]);
            }
            (Call::Txn(txn), Outcome::Txn(reply)) => {
                let ops = if reply.succeeded { &txn.success } else { &txn.failure };
                for (op, answer) in ops.iter().zip(&reply.responses) {
                    match (&op.request, &answer.response) {
                        (Some(Request::RequestPut(put)), _) if !put.ignore_value => {
                            self.keys.insert(put.key.to_vec(), (revision, put.value.clone()));
                        }
                        (Some(Request::RequestRange(range)), Some(Response::ResponseRange(reply)))
                            if range.revision == 0 =>
                        {
                            self.learn_pairs(&reply.kvs);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn learn_pairs(&mut self, pairs: &[KeyValue]) {
        for pair in pairs {
            self.keys.insert(pair.key.to_vec(), (pair.mod_revision, pair.value.clone()));
        }
    }
}

fn put(store: &Store) -> pb::PutRequest {
    pb::PutRequest {
        key: store.key.clone().into(),
        value: store.value.clone().into(),
        lease: store.lease,
        prev_kv: store.prev_kv,
        ignore_value: store.ignore_value,
        ignore_lease: false,
    }
}

fn delete(erase: &Erase) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: erase.span.key.clone().into(),
        range_end: erase.span.end.clone().into(),
        prev_kv: erase.prev_kv,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_stands_on_what_was_seen_last() {
        let mut seen = Seen::default();
        let put = pb::PutRequest { key: "a".into(), value: "1".into(), ..Default::default() };
        let header = Some(pb::ResponseHeader { revision: 7, ..Default::default() });
        seen.learn(&Call::Put(put), &Outcome::Put(pb::PutResponse { header, ..Default::default() }));
        let span = crate::plan::Span { key: "a".into(), end: String::new() };
        let compare = seen.compare(&Test { span, result: 0, against: Against::SeenMod });
        assert_eq!(compare.target_union, Some(TargetUnion::ModRevision(7)));
        assert_eq!(seen.at(At::Back(2)), 5);
        assert_eq!(seen.at(At::Back(100)), 1, "never below the first revision");
    }
}
