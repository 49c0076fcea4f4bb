//! Txn: compares, branches, order of ops, checks that abort.

use super::*;

fn compare(key: &str, end: &str, result: i32, target: i32, union: Option<TargetUnion>) -> pb::Compare {
    pb::Compare { result, target, key: bytes(key), target_union: union, range_end: bytes(end) }
}

#[test]
fn compares_look_at_one_fact_of_each_key() {
    let mut store = Store::scripted("put a 1\nput b 2\nput b 3");
    let mut check =
        |end: &str, key: &str, target: i32, result: i32, union: Option<TargetUnion>, expected: bool| {
            for committed in [false, true] {
                let compare = compare(key, end, result, target, union.clone());
                let request = pb::TxnRequest { compare: vec![compare], ..Default::default() };
                assert_eq!(store.txn(&request).unwrap().succeeded, expected, "{request:?}");
                if committed {
                    store.commit();
                }
            }
        };
    use TargetUnion::*;
    let [version, create, modified, value, lease] = [
        CompareTarget::Version as i32,
        CompareTarget::Create as i32,
        CompareTarget::Mod as i32,
        CompareTarget::Value as i32,
        CompareTarget::Lease as i32,
    ];
    let [equal, greater, less, not_equal] = [
        CompareResult::Equal as i32,
        CompareResult::Greater as i32,
        CompareResult::Less as i32,
        CompareResult::NotEqual as i32,
    ];
    check("", "b", version, equal, Some(Version(2)), true);
    check("", "b", version, greater, Some(Version(1)), true);
    check("", "b", create, less, Some(CreateRevision(4)), true);
    check("", "b", modified, not_equal, Some(ModRevision(4)), false);
    check("", "b", value, equal, Some(Value("3".into())), true);
    check("", "b", value, greater, Some(Value("2".into())), true);
    check("", "b", value, less, Some(Value("3".into())), false);
    check("", "b", lease, equal, Some(Lease(0)), true);
    check("", "b", lease, less, Some(Lease(1)), true);
    // A missing key counts as 0; its value compares with nothing.
    check("", "x", version, equal, Some(Version(0)), true);
    check("", "x", create, less, Some(CreateRevision(1)), true);
    check("", "x", lease, equal, None, true);
    for result in [equal, greater, less, not_equal, 9] {
        check("", "x", value, result, Some(Value(Bytes::new())), false);
    }
    // A range must hold for every key; an empty one is a missing key.
    check("c", "a", create, less, Some(CreateRevision(4)), true);
    check("c", "a", version, equal, Some(Version(1)), false);
    check("\\x00", "a", value, not_equal, Some(Value("1".into())), false);
    check("z", "x", version, equal, Some(Version(0)), true);
    check("z", "x", value, not_equal, Some(Value("1".into())), false);
    check("a", "b", version, equal, Some(Version(0)), true);
    // A missing or misfitting member is 0 or empty.
    check("", "a", value, greater, None, true);
    check("", "a", version, greater, Some(ModRevision(99)), true);
    check("", "a", value, greater, Some(Version(99)), true);
    // Unknown numbers.
    check("", "a", version, 9, Some(Version(99)), true);
    check("", "a", 9, equal, Some(Version(99)), true);
    check("", "a", 9, not_equal, Some(Version(99)), false);
}

#[test]
fn a_txn_takes_one_branch_and_one_revision() {
    let mut store = Store::scripted("put a 1");
    let holds = compare("a", "", 0, 0, Some(TargetUnion::Version(1)));
    let fails = compare("a", "", 0, 0, Some(TargetUnion::Version(2)));
    let request =
        |compare| pb::TxnRequest { compare, success: ops("put s 1; put t 1"), failure: ops("put f 1") };
    let answer = store.txn(&request(vec![holds.clone()])).unwrap();
    assert_eq!((answer.succeeded, answer.header.unwrap().revision), (true, 3));
    let answer = store.txn(&request(vec![holds, fails])).unwrap();
    assert_eq!((answer.succeeded, answer.header.unwrap().revision), (false, 4));
    assert_eq!(store.show(all()).unwrap(), "a=1 f=1 s=1 t=1");
    // No compare: success. No effect: no revision.
    let answer = store.txn(&pb::TxnRequest { failure: ops("put n 1"), ..Default::default() }).unwrap();
    assert_eq!((answer.succeeded, answer.header.unwrap().revision), (true, 4));
    assert_eq!(store.txn(&txn("del nothing; get a")).unwrap().header.unwrap().revision, 4);
}

/// Revision of an op's header, and its pairs.
fn told(response: &pb::ResponseOp) -> (i64, String) {
    let revision = |header: &Option<pb::ResponseHeader>| header.as_ref().unwrap().revision;
    match response.response.as_ref().unwrap() {
        Response::ResponseRange(range) => (revision(&range.header), show(&range.kvs)),
        Response::ResponsePut(put) => (revision(&put.header), show(put.prev_kv.as_slice())),
        Response::ResponseDeleteRange(delete) => (revision(&delete.header), show(&delete.prev_kvs)),
        Response::ResponseTxn(txn) => (revision(&txn.header), String::new()),
    }
}

#[test]
fn ops_of_a_txn_run_in_order_and_see_each_other() {
    let mut store = Store::scripted("put a 1\nput c 3");
    store.commit();
    let mut request = txn("get a z; put b 2; get a z; del a  prev; get a z; del c z prev; get a z");
    request.success.insert(2, nested(ops("get b")));
    let answer = store.txn(&request).unwrap();
    assert_eq!(answer.header.unwrap().revision, 4);
    let told: Vec<_> = answer.responses.iter().map(told).collect();
    let expected = [
        (3, "a=1 c=3"),
        (4, ""),
        // A nested answer has an empty header.
        (0, ""),
        (4, "a=1 b=2 c=3"),
        (4, "a=1"),
        (4, "b=2 c=3"),
        (4, "c=3"),
        (4, "b=2"),
    ];
    assert_eq!(told, expected.map(|(revision, text)| (revision, text.to_owned())));
    let Response::ResponseTxn(inner) = answer.responses[2].response.as_ref().unwrap() else { panic!() };
    assert_eq!((inner.header, inner.succeeded), (Some(Default::default()), true));
    assert_eq!(self::told(&inner.responses[0]), (4, "b=2".to_owned()));
    assert_eq!(store.show(all()).unwrap(), "b=2");
}

#[test]
fn nested_compares_see_the_state_before_the_txn() {
    let mut store = Store::default();
    let created = compare("a", "", 0, 0, Some(TargetUnion::Version(1)));
    let inner =
        pb::TxnRequest { compare: vec![created], success: ops("put yes 1"), failure: ops("put no 1") };
    let mut request = txn("put a 1");
    request.success.push(pb::RequestOp { request: Some(Request::RequestTxn(inner)) });
    store.txn(&request).unwrap();
    assert_eq!(store.show(all()).unwrap(), "a=1 no=1");
}

#[test]
fn a_failing_check_aborts_the_whole_txn() {
    let mut store = Store::scripted("put a 1\nput a 2\nput a 3\ncompact 3");
    let mut check = |op: Request, expected: Result<(), Error>| {
        let before = store.mvcc.revision();
        let mut request = txn("put x 1");
        request.success.push(nested(vec![pb::RequestOp { request: Some(op.clone()) }]));
        let answer = store.txn(&request);
        assert_eq!(answer.map(drop), expected, "{op:?}");
        if expected.is_err() {
            assert_eq!(store.mvcc.revision(), before);
            assert_eq!(store.show(get("x", "")).unwrap(), "");
        } else {
            store.run("del x");
        }
        // The same check applies where the txn only reads, but not in the branch that is not taken.
        if let Request::RequestRange(_) = op {
            let op = pb::RequestOp { request: Some(op) };
            let failing = pb::TxnRequest { failure: vec![op.clone()], ..Default::default() };
            assert!(store.txn(&failing).is_ok());
            let reading = pb::TxnRequest { success: vec![op], ..Default::default() };
            assert!(is_read_only(&reading));
            let read = store.mvcc.read_txn(&reading, &store.shelf).unwrap();
            assert_eq!(read.map(drop), expected);
        }
    };
    let at = |revision| Request::RequestRange(pb::RangeRequest { revision, ..get("a", "") });
    check(at(2), Err(Error::Compacted));
    check(at(-1), Err(Error::Compacted));
    check(at(99), Err(Error::FutureRevision));
    check(at(3), Ok(()));
    let put =
        |lease, ignore_value| pb::PutRequest { key: "y".into(), lease, ignore_value, ..Default::default() };
    check(Request::RequestPut(put(7, true)), Err(Error::LeaseNotFound));
    check(Request::RequestPut(put(0, true)), Err(Error::KeyNotFound));
    // The revision that the txn itself makes is a future one for its ranges.
    let next = store.mvcc.revision() + 1;
    let mut request = txn("put x 1");
    let range = pb::RangeRequest { revision: next, ..get("a", "") };
    request.success.push(pb::RequestOp { request: Some(Request::RequestRange(range)) });
    assert_eq!(store.txn(&request), Err(Error::FutureRevision));
}

#[test]
fn a_negative_revision_in_a_txn_passes_on_a_store_never_compacted() {
    let mut store = Store::scripted("put a 1");
    let mut check = |revision, expected: Result<&str, Error>| {
        let range = pb::RangeRequest { revision, ..get("a", "") };
        let op = pb::RequestOp { request: Some(Request::RequestRange(range)) };
        let answer = store.txn(&pb::TxnRequest { success: vec![op], ..Default::default() });
        assert_eq!(answer.map(|answer| told(&answer.responses[0]).1), expected.map(str::to_owned));
    };
    check(-1, Ok("a=1"));
    check(-2, Err(Error::Compacted));
}

#[test]
fn kinds_of_txns_are_told_apart() {
    let check = |request: &pb::TxnRequest, read_only, serializable, put| {
        let kinds = (is_read_only(request), is_serializable(request), has_put(request));
        assert_eq!(kinds, (read_only, serializable, put), "{request:?}");
    };
    let serializable = pb::RangeRequest { serializable: true, ..get("a", "") };
    let serializable = pb::RequestOp { request: Some(Request::RequestRange(serializable)) };
    check(&txn(""), true, true, false);
    check(&txn("get a"), true, false, false);
    check(&pb::TxnRequest { failure: vec![serializable.clone()], ..Default::default() }, true, true, false);
    check(&pb::TxnRequest { failure: vec![serializable.clone()], ..txn("get a") }, true, false, false);
    check(
        &pb::TxnRequest { success: vec![nested(vec![serializable])], ..Default::default() },
        false,
        false,
        false,
    );
    check(&pb::TxnRequest { failure: ops("put a"), ..Default::default() }, false, false, true);
    check(&pb::TxnRequest { success: vec![nested(ops("put a"))], ..Default::default() }, false, false, true);
    check(&txn("del a"), false, false, false);
}

#[test]
fn a_kept_value_of_a_key_that_the_txn_deletes_first_is_refused_whole() {
    let mut store = Store::scripted("put a 1");
    let mut request = txn("del a \\x00");
    let put = pb::PutRequest { key: "a".into(), ignore_value: true, ..Default::default() };
    request.success.push(pb::RequestOp { request: Some(Request::RequestPut(put)) });
    assert_eq!(store.txn(&request), Err(Error::KeyNotFound));
    assert_eq!((store.show(all()).unwrap().as_str(), store.mvcc.revision()), ("a=1", 2));
}
