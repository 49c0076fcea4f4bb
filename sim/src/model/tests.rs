//! The model against answers of etcd itself, and in words.

use super::*;
use pb::{compare::CompareTarget, compare::TargetUnion, range_request::SortTarget, request_op::Request};
use prost::Message;

const RECORDED: &str = include_str!("../../../tests/recorded/kv.tsv");

fn unhex(text: &str) -> Bytes {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

#[test]
fn answers_as_etcd_does() {
    let mut model = Model::new();
    for (nth, line) in RECORDED.lines().filter(|line| !line.starts_with('#')).enumerate() {
        let [method, request, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}")
        };
        let request = unhex(request);
        let call = match method {
            "range" => Call::Range(pb::RangeRequest::decode(request).expect("a request")),
            "put" => Call::Put(pb::PutRequest::decode(request).expect("a request")),
            "deleterange" => Call::DeleteRange(pb::DeleteRangeRequest::decode(request).expect("a request")),
            "txn" => Call::Txn(pb::TxnRequest::decode(request).expect("a request")),
            _ => Call::Compact(pb::CompactionRequest::decode(request).expect("a request")),
        };
        let difference = match (model.apply(&call), expected.split_once(' ')) {
            (Err(refusal), Some((code, text))) => {
                let seen = Refusal::from_status(code.parse().expect("a code"), text);
                if seen == Some(refusal) { None } else { Some(format!("{refusal}, not {expected}")) }
            }
            (Err(refusal), None) => Some(format!("{refusal}, not a reply")),
            (Ok(reply), Some(_)) => Some(format!("{}, not {expected}", reply.outcome)),
            (Ok(reply), None) => {
                let bytes = unhex(expected);
                let seen = match method {
                    "range" => Outcome::Range(pb::RangeResponse::decode(bytes).expect("a reply")),
                    "put" => Outcome::Put(pb::PutResponse::decode(bytes).expect("a reply")),
                    "deleterange" => {
                        Outcome::DeleteRange(pb::DeleteRangeResponse::decode(bytes).expect("a reply"))
                    }
                    "txn" => Outcome::Txn(pb::TxnResponse::decode(bytes).expect("a reply")),
                    _ => Outcome::Compact(pb::CompactionResponse::decode(bytes).expect("a reply")),
                };
                reply.difference(&call, &seen)
            }
        };
        assert_eq!(difference, None, "call {nth}: {call}");
    }
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(text: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest { key: key(text), value: key(value), ..Default::default() }
}

fn range(from: &str, to: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key(from), range_end: key(to), ..Default::default() }
}

fn delete(from: &str, to: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key(from), range_end: key(to), prev_kv: true }
}

fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn txn(compare: Vec<pb::Compare>, success: Vec<Request>, failure: Vec<Request>) -> pb::TxnRequest {
    let ops = |requests: Vec<Request>| requests.into_iter().map(op).collect();
    pb::TxnRequest { compare, success: ops(success), failure: ops(failure) }
}

fn equal(target: CompareTarget, of: &str, union: TargetUnion) -> pb::Compare {
    pb::Compare { target: target as i32, key: key(of), target_union: Some(union), ..Default::default() }
}

/// A talk that meets the finer points, each answer in words.
#[test]
fn a_conversation() {
    let by = |target: SortTarget, request| pb::RangeRequest { sort_target: target as i32, ..request };
    let talk = vec![
        Call::Range(range("a", "")),
        Call::Compact(pb::CompactionRequest { revision: 0, physical: false }),
        Call::Compact(pb::CompactionRequest { revision: 0, physical: false }),
        Call::Put(put("a", "3")),
        Call::Put(pb::PutRequest { prev_kv: true, ..put("a", "3") }),
        Call::Put(put("b", "2")),
        Call::Put(put("c", "1")),
        Call::Put(pb::PutRequest { ignore_value: true, prev_kv: true, ..put("c", "") }),
        Call::Put(pb::PutRequest { ignore_value: true, ..put("d", "") }),
        Call::Put(pb::PutRequest { lease: 7, ignore_value: true, ..put("d", "") }),
        Call::Range(range("a", "c")),
        Call::Range(range("c", "a")),
        Call::Range(range("b", "\0")),
        Call::Range(pb::RangeRequest { limit: 2, ..range("a", "z") }),
        Call::Range(pb::RangeRequest { count_only: true, limit: 1, ..range("a", "z") }),
        // Cut first, then sorted; sorted first, then cut.
        Call::Range(by(SortTarget::Value, pb::RangeRequest { limit: 1, ..range("a", "z") })),
        Call::Range(by(SortTarget::Value, pb::RangeRequest { limit: 1, sort_order: 1, ..range("a", "z") })),
        Call::Range(pb::RangeRequest { min_mod_revision: 4, limit: 1, ..range("a", "z") }),
        Call::Range(pb::RangeRequest { revision: 4, keys_only: true, ..range("a", "z") }),
        Call::Range(pb::RangeRequest { revision: 7, ..range("a", "") }),
        // Compares see the state before; the range sees the put before it.
        Call::Txn(txn(
            vec![equal(CompareTarget::Version, "a", TargetUnion::Version(2))],
            vec![
                Request::RequestRange(range("e", "")),
                Request::RequestPut(put("e", "5")),
                Request::RequestTxn(txn(
                    vec![equal(CompareTarget::Version, "e", TargetUnion::Version(0))],
                    vec![Request::RequestRange(range("e", "")), Request::RequestDeleteRange(delete("x", ""))],
                    vec![],
                )),
            ],
            vec![],
        )),
        // A missing key's value fails every compare.
        Call::Txn(txn(
            vec![equal(CompareTarget::Value, "none", TargetUnion::Value(Bytes::new()))],
            vec![],
            vec![Request::RequestDeleteRange(delete("none", ""))],
        )),
        Call::Txn(txn(
            vec![],
            vec![Request::RequestDeleteRange(delete("a", "z")), Request::RequestPut(put("b", "9"))],
            vec![],
        )),
        // An open end is not seen to overlap.
        Call::Txn(txn(
            vec![],
            vec![Request::RequestDeleteRange(delete("a", "\0")), Request::RequestPut(put("b", "9"))],
            vec![],
        )),
        Call::Range(range("b", "")),
        Call::Compact(pb::CompactionRequest { revision: 8, physical: true }),
        Call::Range(pb::RangeRequest { revision: 7, ..range("a", "") }),
        Call::Range(pb::RangeRequest { revision: 8, ..range("b", "") }),
        Call::Range(pb::RangeRequest { revision: -1, ..range("b", "") }),
        Call::Txn(txn(
            vec![],
            vec![Request::RequestRange(pb::RangeRequest { revision: -1, ..range("b", "") })],
            vec![],
        )),
        Call::Txn(txn(vec![], vec![Request::RequestTxn(txn(vec![], vec![], vec![]))], vec![])),
        Call::DeleteRange(delete("none", "")),
        Call::DeleteRange(delete("a", "z")),
        Call::Put(put("b", "10")),
    ];
    let mut model = Model::new();
    let mut text = String::new();
    for call in talk {
        let answer = match model.apply(&call) {
            Ok(reply) => reply.outcome.to_string(),
            Err(refusal) => refusal.to_string(),
        };
        text += &format!("{call}\n    {answer}\n");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_past_moment_still_answers() {
    let mut model = Model::new();
    let mut moments = vec![(model.now(), model.pairs(1))];
    for nth in 0..50 {
        let name = format!("k{}", nth % 7);
        let call = match nth % 5 {
            4 => Call::DeleteRange(delete(&name, "")),
            _ => Call::Put(put(&name, &nth.to_string())),
        };
        model.apply(&call).expect("nothing refuses these");
        moments.push((model.now(), model.pairs(model.now().revision)));
    }
    for (moment, pairs) in moments {
        let reply = model.read(moment, &Call::Range(range("k", "l"))).expect("never compacted");
        let Outcome::Range(reply) = reply.outcome else { panic!("a range") };
        assert_eq!(reply.kvs, pairs);
    }
}

#[test]
fn ties_may_stand_in_any_order() {
    let mut model = Model::new();
    for name in ["a", "b", "c"] {
        model.apply(&Call::Put(put(name, name))).expect("a put");
    }
    let call = Call::Range(pb::RangeRequest {
        limit: 2,
        sort_order: 2,
        sort_target: SortTarget::Version as i32,
        ..range("a", "z")
    });
    let reply = model.apply(&call).expect("a range");
    let Outcome::Range(right) = reply.outcome.clone() else { panic!("a range") };
    let all = model.pairs(4);
    let shown = |kvs: &[&KeyValue]| {
        let kvs = kvs.iter().map(|kv| (*kv).clone()).collect();
        reply.difference(&call, &Outcome::Range(pb::RangeResponse { kvs, ..right.clone() }))
    };
    assert_eq!(shown(&[&all[2], &all[0]]), None);
    assert_eq!(shown(&[&all[1], &all[2]]), None);
    assert!(shown(&[&all[1], &all[1]]).is_some(), "a pair twice");
    assert!(shown(&[&all[1]]).is_some(), "a pair too few");
    let stranger = KeyValue { version: 2, ..all[0].clone() };
    assert!(shown(&[&all[1], &stranger]).is_some(), "a pair that is not there");
}

#[test]
fn limits_of_a_txn_are_shared_with_nested_ones() {
    let gets = |count: usize| (0..count).map(|_| Request::RequestRange(range("a", ""))).collect::<Vec<_>>();
    let nested = |outer: usize, inner: usize| {
        let mut ops = gets(outer - 1);
        ops.push(Request::RequestTxn(txn(vec![], gets(inner), vec![])));
        Model::check_content(&Call::Txn(txn(vec![], ops, vec![])))
    };
    assert_eq!(nested(100, 28), Ok(()));
    assert_eq!(nested(100, 29), Err(Refusal::TooManyOps));
    assert_eq!(Model::check_content(&Call::Txn(txn(vec![], gets(129), vec![]))), Err(Refusal::TooManyOps));
}
