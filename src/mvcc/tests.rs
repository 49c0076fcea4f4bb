//! The behaviours of Range, Put, DeleteRange, Txn, Compact and HashKV, as data.

mod model;
mod session;

use super::*;
use pb::{
    compare::{CompareResult, CompareTarget, TargetUnion},
    range_request::{SortOrder, SortTarget},
    request_op::Request,
    response_op::Response,
};
use quorate_proto::mvccpb::KeyValue;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

/// Written pages, of which some have slipped the cache's mind.
#[derive(Default)]
struct Shelf {
    pages: BTreeMap<PageNumber, Bytes>,
    /// Forgets half of the pages, newly drawn at each look; 0: none.
    forgetful: Cell<u64>,
    /// Fetched for the call that is under way.
    fetched: RefCell<BTreeSet<PageNumber>>,
}

impl Pages for Shelf {
    fn get(&self, page: PageNumber) -> Option<Bytes> {
        let payload = self.pages.get(&page).expect("only written pages are asked for").clone();
        if self.forgetful.get() != 0 && !self.fetched.borrow().contains(&page) {
            // xorshift64
            let mut x = self.forgetful.get();
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            self.forgetful.set(x);
            if x & 8 == 0 {
                return None;
            }
        }
        Some(payload)
    }
}

/// A store in miniature: the state and the pages it has handed out.
#[derive(Default)]
struct Store {
    mvcc: Mvcc,
    shelf: Shelf,
}

impl Store {
    /// Calls until nothing lacks, as a driver does.
    fn until_there<T>(&mut self, mut call: impl FnMut(&mut Mvcc, &Shelf) -> Result<T, Missing>) -> T {
        loop {
            let before = (self.mvcc.revision, self.mvcc.last, self.mvcc.index.keys());
            match call(&mut self.mvcc, &self.shelf) {
                Ok(answer) => {
                    self.shelf.fetched.borrow_mut().clear();
                    return answer;
                }
                Err(Missing(pages)) => {
                    assert!(!pages.is_empty() && pages.is_sorted());
                    assert_eq!(before, (self.mvcc.revision, self.mvcc.last, self.mvcc.index.keys()));
                    let mut fetched = self.shelf.fetched.borrow_mut();
                    assert!(pages.iter().all(|page| fetched.insert(*page)), "asked for what is there");
                }
            }
        }
    }

    fn put(&mut self, request: &pb::PutRequest) -> Result<pb::PutResponse, Error> {
        assert_eq!(check::check_put(request), Ok(()));
        self.until_there(|mvcc, shelf| mvcc.put(request, shelf))
    }

    fn delete(&mut self, request: &pb::DeleteRangeRequest) -> pb::DeleteRangeResponse {
        assert_eq!(check::check_delete(request), Ok(()));
        self.until_there(|mvcc, shelf| mvcc.delete_range(request, shelf))
    }

    fn txn(&mut self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, Error> {
        assert_eq!(check::check_txn(request, 128), Ok(()));
        self.until_there(|mvcc, shelf| mvcc.txn(request, shelf))
    }

    fn range(&mut self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Error> {
        assert_eq!(check::check_range(request), Ok(()));
        self.until_there(|mvcc, shelf| mvcc.range(request, shelf))
    }

    /// Everything written leaves the state, as at a commit; page numbers jump over the mark.
    fn commit(&mut self) {
        self.mvcc.seal();
        let taken = self.mvcc.take_sealed();
        self.shelf.pages.extend(taken);
        let last = self.shelf.pages.last_key_value().map_or(0, |(page, _)| page.0);
        self.mvcc.set_next_page(PageNumber(last + 2));
    }

    /// A new life from what a commit left.
    fn reopen(&mut self) {
        self.commit();
        let (revision, compacted) = (self.mvcc.revision(), self.mvcc.compacted());
        self.mvcc = Mvcc::default();
        for (page, payload) in &self.shelf.pages {
            self.mvcc.load_page(*page, payload).unwrap();
        }
        self.mvcc.load_mark(revision, compacted).unwrap();
        let last = self.shelf.pages.last_key_value().map_or(0, |(page, _)| page.0);
        self.mvcc.set_next_page(PageNumber(last + 2));
    }

    /// What a member does that gives space back at once.
    fn reclaim(&mut self) {
        self.commit();
        while !self.mvcc.compact_step(1) {}
        let oldest = self.mvcc.oldest_live_page();
        self.shelf.pages.retain(|page, _| *page >= oldest);
    }

    fn hash(&mut self, revision: i64) -> Result<(u32, i64), Error> {
        let revision = self.mvcc.hash_revision(revision)?;
        self.commit();
        let mut hash = HashKv::new(revision, self.mvcc.compacted());
        let mut from = PageNumber(0);
        while let Some(page) = self.mvcc.live_pages(from, 1).first().copied() {
            if !hash.feed(page, &self.shelf.pages[&page], &self.mvcc).unwrap() {
                break;
            }
            from = PageNumber(page.0 + 1);
        }
        Ok((hash.finish(), revision))
    }

    /// One line of a script: `put K [V]`, `del K [END]`, `txn OP; OP; …`, `compact R`.
    fn run(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "put" | "del" => match op(line) {
                Request::RequestPut(put) => drop(self.put(&put).unwrap()),
                Request::RequestDeleteRange(delete) => drop(self.delete(&delete)),
                _ => unreachable!(),
            },
            "txn" => drop(self.txn(&txn(rest)).unwrap()),
            "compact" => self.mvcc.compact(rest.parse().unwrap()).unwrap(),
            _ => panic!("{line}"),
        }
    }

    fn scripted(script: &str) -> Store {
        let mut store = Store::default();
        script.split('\n').map(str::trim).filter(|line| !line.is_empty()).for_each(|line| store.run(line));
        store
    }

    /// `key=value` of a range, keys in the order given.
    fn show(&mut self, request: pb::RangeRequest) -> Result<String, Error> {
        Ok(show(&self.range(&request)?.kvs))
    }
}

fn show(kvs: &[KeyValue]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    kvs.iter().map(|kv| format!("{}={}", text(&kv.key), text(&kv.value))).collect::<Vec<_>>().join(" ")
}

/// Bytes with `\xNN` escapes.
fn bytes(text: &str) -> Bytes {
    let mut parts = text.split("\\x");
    let mut out = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(&part[..2], 16).unwrap());
        out.extend_from_slice(&part.as_bytes()[2..]);
    }
    out.into()
}

fn op(line: &str) -> Request {
    let words: Vec<_> = line.trim().split(' ').collect();
    let word = |at: usize| words.get(at).map_or_else(Bytes::new, |word| bytes(word));
    match words[0] {
        "put" => Request::RequestPut(pb::PutRequest { key: word(1), value: word(2), ..Default::default() }),
        "del" => Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key: word(1),
            range_end: word(2),
            prev_kv: words.get(3) == Some(&"prev"),
        }),
        "get" => {
            Request::RequestRange(pb::RangeRequest { key: word(1), range_end: word(2), ..Default::default() })
        }
        _ => panic!("{line}"),
    }
}

fn ops(line: &str) -> Vec<pb::RequestOp> {
    let ops = line.split(';').filter(|op| !op.trim().is_empty());
    ops.map(|line| pb::RequestOp { request: Some(op(line)) }).collect()
}

fn txn(line: &str) -> pb::TxnRequest {
    pb::TxnRequest { success: ops(line), ..Default::default() }
}

fn nested(success: Vec<pb::RequestOp>) -> pb::RequestOp {
    let txn = pb::TxnRequest { success, ..Default::default() };
    pb::RequestOp { request: Some(Request::RequestTxn(txn)) }
}

fn get(key: &str, range_end: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: bytes(key), range_end: bytes(range_end), ..Default::default() }
}

fn all() -> pb::RangeRequest {
    get("\\x00", "\\x00")
}

/// Every line of a session with etcd 3.7.3, restarted after each compaction (it forgets
/// hashes that it kept from before), gives the same hash, mark and revisions here.
#[test]
fn hashes_are_those_of_etcd() {
    for reclaiming in [false, true] {
        let mut store = Store::default();
        let mut compared = 0;
        for line in include_str!("tests/etcd_hashes.txt").lines() {
            let Some(asked) = line.strip_prefix("hash ") else {
                store.run(line);
                if reclaiming {
                    store.reclaim();
                    store.reopen();
                }
                continue;
            };
            let (asked, expected) = asked.split_once(" = ").unwrap();
            let ours = match store.hash(asked.parse().unwrap()) {
                Err(error) => format!("error etcdserver: {error}"),
                Ok((hash, at)) => {
                    let (compacted, current) = (store.mvcc.compacted(), store.mvcc.revision());
                    format!("{hash} compacted {compacted} at {at} current {current}")
                }
            };
            assert_eq!(ours, expected, "{line}");
            compared += 1;
        }
        assert!(compared > 100);
    }
}

#[test]
fn a_compaction_during_a_hash_is_told() {
    let mut store = Store::scripted("put a 1\nput a 2");
    store.commit();
    let mut hash = HashKv::new(3, -1);
    store.mvcc.compact(2).unwrap();
    let page = store.mvcc.live_pages(PageNumber(0), 1)[0];
    assert_eq!(hash.feed(page, &store.shelf.pages[&page], &store.mvcc), Err(FeedError::Compacted));
}

#[test]
fn reads_are_at_a_revision() {
    let mut store = Store::scripted("put a 1\nput a 2\nput b 3\nput a 4\ncompact 3");
    let mut check = |revision, expected: Result<&str, Error>| {
        let answer = store.range(&pb::RangeRequest { revision, ..all() });
        let shown = answer.as_ref().map(|answer| show(&answer.kvs)).map_err(|error| *error);
        assert_eq!(shown, expected.map(str::to_owned), "at {revision}");
        // The header tells the current revision, whatever was asked.
        assert!(answer.is_err() || answer.unwrap().header.unwrap().revision == 5);
    };
    check(0, Ok("a=4 b=3"));
    check(-7, Ok("a=4 b=3"));
    check(5, Ok("a=4 b=3"));
    check(4, Ok("a=2 b=3"));
    check(3, Ok("a=2"));
    check(2, Err(Error::Compacted));
    check(6, Err(Error::FutureRevision));
}

#[test]
fn sorting_limits_and_filters() {
    // version, create, mod, value: a 2 2 5 z; b 1 3 3 y; c 1 4 4 x
    let mut store = Store::scripted("put a 1\nput b y\nput c x\nput a z");
    let mut check = |order: SortOrder, target: SortTarget, limit, expected: &str, more| {
        let request =
            pb::RangeRequest { sort_order: order as i32, sort_target: target as i32, limit, ..all() };
        let answer = store.range(&request).unwrap();
        assert_eq!(show(&answer.kvs), expected, "{order:?} {target:?} {limit}");
        assert_eq!((answer.more, answer.count), (more, 3), "{order:?} {target:?} {limit}");
    };
    use SortOrder::{Ascend, Descend, None};
    use SortTarget::{Create, Key, Mod, Value, Version};
    check(None, Key, 0, "a=z b=y c=x", false);
    check(None, Key, -1, "a=z b=y c=x", false);
    check(None, Key, 3, "a=z b=y c=x", false);
    check(None, Key, 2, "a=z b=y", true);
    check(Descend, Key, 2, "c=x b=y", true);
    check(Ascend, Mod, 0, "b=y c=x a=z", false);
    check(Descend, Mod, 1, "a=z", true);
    check(Descend, Create, 1, "c=x", true);
    check(Descend, Version, 1, "a=z", true);
    check(Ascend, Value, 2, "c=x b=y", true);
    check(Descend, Value, 1, "a=z", true);
    // Without an order the key-ordered list is cut to limit + 1 before it is sorted.
    check(None, Mod, 0, "b=y c=x a=z", false);
    check(None, Mod, 1, "b=y", true);
    check(None, Value, 1, "b=y", true);
    check(None, Value, 2, "c=x b=y", true);

    let mut check = |bounds: [i64; 4], limit, expected: &str, more| {
        let [min_mod_revision, max_mod_revision, min_create_revision, max_create_revision] = bounds;
        let request = pb::RangeRequest {
            min_mod_revision,
            max_mod_revision,
            min_create_revision,
            max_create_revision,
            limit,
            ..all()
        };
        let answer = store.range(&request).unwrap();
        assert_eq!(
            (show(&answer.kvs).as_str(), answer.more, answer.count),
            (expected, more, 3),
            "{bounds:?}"
        );
    };
    check([4, 0, 0, 0], 0, "a=z c=x", false);
    check([0, 4, 0, 0], 0, "b=y c=x", false);
    check([0, 0, 3, 3], 0, "b=y", false);
    check([0, -1, 0, 0], 0, "", false);
    check([-1, 0, 0, 0], 2, "a=z b=y", true);
    check([4, 0, 0, 0], 1, "a=z", true);
    check([5, 0, 0, 0], 1, "a=z", false);
}

#[test]
fn keys_and_counts_alone_need_no_page() {
    let mut store = Store::scripted("put a 1\nput a 2\nput b 3");
    store.commit();
    let nothing = Shelf::default();
    let keys = pb::RangeRequest { keys_only: true, ..all() };
    let answer = store.mvcc.range(&keys, &nothing).unwrap().unwrap();
    let pair = |key: &str, create_revision, mod_revision, version| KeyValue {
        key: bytes(key),
        create_revision,
        mod_revision,
        version,
        ..Default::default()
    };
    assert_eq!(answer.kvs, [pair("a", 2, 3, 2), pair("b", 4, 4, 1)]);
    let count = pb::RangeRequest { count_only: true, limit: 1, ..keys.clone() };
    let answer = store.mvcc.range(&count, &nothing).unwrap().unwrap();
    assert_eq!((answer.count, answer.more, answer.kvs.len()), (2, false, 0));
    // Sorted by value, values are read and then left out.
    let by_value = pb::RangeRequest {
        sort_target: SortTarget::Value as i32,
        sort_order: SortOrder::Descend as i32,
        ..keys
    };
    assert_eq!(store.range(&by_value).unwrap().kvs, [pair("b", 4, 4, 1), pair("a", 2, 3, 2)]);
}

#[test]
fn values_share_the_pages_memory() {
    let mut store = Store::scripted("put a 1");
    store.commit();
    let answer = store.range(&get("a", "")).unwrap();
    let page = store.shelf.pages.values().next().unwrap().as_ptr_range();
    assert!(page.contains(&answer.kvs[0].value.as_ptr()) && page.contains(&answer.kvs[0].key.as_ptr()));
}

#[test]
fn slices_of_a_range_give_the_range() {
    let mut store = Store::scripted("put a 1\nput b 2\nput c 3\nput d 4\nput e 5\ndel b d\nput f 6");
    for commit in [false, true] {
        for (revision, expected) in [(0, "a=1 d=4 e=5 f=6"), (6, "a=1 b=2 c=3 d=4 e=5")] {
            for limit in 1..8 {
                let (mut next, mut kvs) = (Some(bytes("\\x00")), Vec::new());
                while let Some(from) = next {
                    let slice = store
                        .until_there(|mvcc, shelf| {
                            mvcc.range_slice(&from, b"\0", revision, limit, false, shelf)
                        })
                        .unwrap();
                    assert!(slice.kvs.len() <= limit);
                    kvs.extend(slice.kvs);
                    next = slice.next;
                }
                assert_eq!(show(&kvs), expected);
                let (mut from, mut count) = (bytes("\\x00"), 0);
                loop {
                    let (part, next) = store.mvcc.count_slice(&from, b"\0", revision, limit).unwrap();
                    count += part;
                    let Some(next) = next else { break };
                    from = next;
                }
                assert_eq!(count as usize, kvs.len());
            }
        }
        if commit {
            store.commit();
        }
    }
    let future = store.mvcc.range_slice(b"a", b"", 9, 1, true, &store.shelf).unwrap();
    assert_eq!(future, Err(Error::FutureRevision));
}

#[test]
fn puts_count_revisions_and_versions() {
    let mut store = Store::default();
    assert_eq!(store.mvcc.revision(), 1);
    let put = |value: &str| pb::PutRequest {
        key: "k".into(),
        value: bytes(value),
        prev_kv: true,
        ..Default::default()
    };
    let first = store.put(&put("1")).unwrap();
    assert_eq!((first.header.unwrap().revision, first.prev_kv), (2, None));
    let second = store.put(&put("1")).unwrap();
    assert_eq!(second.header.unwrap().revision, 3);
    let prev = second.prev_kv.unwrap();
    assert_eq!((prev.create_revision, prev.mod_revision, prev.version), (2, 2, 1));
    store.run("del k");
    let third = store.put(&put("2")).unwrap();
    assert_eq!((third.header.unwrap().revision, third.prev_kv), (5, None));
    let now = store.range(&get("k", "")).unwrap().kvs.remove(0);
    assert_eq!((now.create_revision, now.mod_revision, now.version), (5, 5, 1));
}

#[test]
fn kept_values_need_a_key_and_leases_must_exist() {
    let mut store = Store::scripted("put k old");
    store.commit();
    let mut check = |key: &str, lease, ignore_value, ignore_lease, expected: Result<&str, Error>| {
        let put = pb::PutRequest { key: bytes(key), lease, ignore_value, ignore_lease, ..Default::default() };
        let before = store.mvcc.revision();
        let answer = store.put(&put);
        match expected {
            Err(error) => {
                assert_eq!(answer, Err(error));
                assert_eq!(store.mvcc.revision(), before);
            }
            Ok(expected) => {
                assert_eq!(answer.unwrap().prev_kv, None);
                assert_eq!(store.show(get(key, "")).unwrap(), expected);
            }
        }
    };
    check("k", 0, true, false, Ok("k=old"));
    check("k", 0, true, true, Ok("k=old"));
    check("x", 0, true, false, Err(Error::KeyNotFound));
    check("x", 0, false, true, Err(Error::KeyNotFound));
    check("k", 5, false, false, Err(Error::LeaseNotFound));
    // An unknown lease is told before a missing key.
    check("x", 5, true, false, Err(Error::LeaseNotFound));
    check("k", 0, false, true, Ok("k="));
}

#[test]
fn deletes_take_one_revision_or_none() {
    let mut store = Store::scripted("put a 1\nput b 2\nput c 3\nput d 4");
    let mut check = |key: &str, end: &str, deleted, revision, prev: &str| {
        let request =
            pb::DeleteRangeRequest { key: bytes(key), range_end: bytes(end), prev_kv: !prev.is_empty() };
        let answer = store.delete(&request);
        assert_eq!((answer.deleted, answer.header.unwrap().revision), (deleted, revision), "{key} {end}");
        assert_eq!(show(&answer.prev_kvs), prev);
    };
    check("x", "", 0, 5, "");
    check("b", "a", 0, 5, "");
    check("a", "c", 2, 6, "a=1 b=2");
    check("a", "c", 0, 6, "");
    check("c", "\\x00", 2, 7, "");
    assert_eq!(store.mvcc.live_keys(), 0);
}

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

/// Black-box case 019: etcd 3.7.3 ends at the compaction.
#[test]
fn a_put_behind_a_delete_to_the_end_survives_compaction_and_restart() {
    let mut store = Store::scripted("put m1 old\ntxn del m \\x00; put m1 new\ncompact 3");
    for step in 0..4 {
        let pair = store.range(&get("m1", "")).unwrap().kvs.remove(0);
        assert_eq!((&pair.value[..], pair.create_revision, pair.version), (&b"new"[..], 3, 1), "step {step}");
        match step {
            0 => store.reclaim(),
            1 | 2 => store.reopen(),
            _ => {}
        }
    }
    store.run("put m1 newer");
    let pair = store.range(&get("m1", "")).unwrap().kvs.remove(0);
    assert_eq!((pair.create_revision, pair.version), (3, 2));
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

#[test]
fn compaction_moves_forward_only() {
    let mut store = Store::scripted("put a 1\nput a 2");
    let mut check = |revision, expected| assert_eq!(store.mvcc.compact(revision), expected, "{revision}");
    check(-1, Err(Error::Compacted));
    check(-5, Err(Error::Compacted));
    check(4, Err(Error::FutureRevision));
    check(0, Ok(()));
    check(0, Err(Error::Compacted));
    check(2, Ok(()));
    check(2, Err(Error::Compacted));
    check(1, Err(Error::Compacted));
    check(3, Ok(()));
    check(4, Err(Error::FutureRevision));
}

/// Mains and kinds of the records that still count, from pages.
fn history(store: &mut Store) -> String {
    store.commit();
    let mut shown = Vec::new();
    for page in store.mvcc.live_pages(PageNumber(0), 99) {
        for (offset, record) in records(&store.shelf.pages[&page]).map(Result::unwrap) {
            let key = Fields::decode(record.key_value).unwrap().key;
            let at = Place::new(page, offset, record.tombstone);
            let counts = record.main as i64 > store.mvcc.compacted
                || store
                    .mvcc
                    .index
                    .newest(key, store.mvcc.compacted as u64)
                    .is_some_and(|newest| newest.place == at);
            if counts {
                let mark = if record.tombstone { "t" } else { "" };
                shown.push(format!("{}{}{mark}", String::from_utf8_lossy(key), record.main));
            }
        }
    }
    shown.join(" ")
}

#[test]
fn a_tombstone_exactly_at_the_compacted_revision_is_kept() {
    for reopened in [false, true] {
        let mut store = Store::scripted("put a 1\ndel a\nput b 2\ncompact 3");
        store.reclaim();
        if reopened {
            store.reopen();
            store.reclaim();
        }
        assert_eq!(history(&mut store), "a3t b4");
        // The next compaction takes it.
        store.run("compact 4");
        store.reclaim();
        assert_eq!(history(&mut store), "b4");
    }
}

#[test]
fn a_key_whose_only_record_is_a_tombstone_is_known_after_a_restart() {
    let mut store = Store::scripted("put a 1\ndel a\ncompact 3");
    store.reclaim();
    store.reopen();
    assert_eq!(history(&mut store), "a3t");
    assert_eq!(store.mvcc.live_keys(), 0);
    // A compaction that was under way goes on after the restart, with the same result.
    store.reclaim();
    assert_eq!(history(&mut store), "a3t");
    store.run("put a 2");
    let pair = store.range(&get("a", "")).unwrap().kvs.remove(0);
    assert_eq!((pair.create_revision, pair.version, pair.mod_revision), (4, 1, 4));
}

#[test]
fn after_compaction_at_the_head_and_a_restart_reads_work_and_revisions_go_on() {
    let mut store = Store::scripted("put a 1\ndel a\nput b 1\ndel b\ncompact 5");
    store.reclaim();
    store.reopen();
    assert_eq!((store.mvcc.revision(), store.mvcc.compacted()), (5, 5));
    assert_eq!(store.show(all()), Ok(String::new()));
    assert_eq!(store.show(pb::RangeRequest { revision: 5, ..all() }), Ok(String::new()));
    // Once the tombstone too is gone, the mark alone holds the revision.
    store.run("put c 1");
    store.run("del c");
    store.run("put c 1");
    store.run("compact 6");
    store.shelf.pages.clear();
    store.mvcc = Mvcc::default();
    store.mvcc.load_mark(9, 9).unwrap();
    assert_eq!(store.show(all()), Ok(String::new()));
    store.run("put d 1");
    assert_eq!(store.mvcc.revision(), 10);
}

#[test]
fn the_revision_is_never_below_a_record_or_the_mark() {
    let store = &mut Store::scripted("put a 1\nput a 2");
    store.commit();
    let mut loaded = Mvcc::default();
    for (page, payload) in &store.shelf.pages {
        loaded.load_page(*page, payload).unwrap();
    }
    assert_eq!(loaded.revision(), 3);
    assert!(loaded.load_mark(2, -1).is_err(), "a mark below its own records");
    loaded.load_mark(7, 4).unwrap();
    assert_eq!((loaded.revision(), loaded.compacted()), (7, 4));
    assert!(loaded.load_mark(7, 3).is_err(), "a compaction never goes back");
    assert!(loaded.load_mark(8, 9).is_err(), "nothing is compacted ahead");
}

#[test]
fn pages_out_of_order_or_damaged_are_refused() {
    let mut store = Store::scripted("put a 1");
    store.commit();
    store.run("put a 2");
    store.commit();
    let pages: Vec<_> = store.shelf.pages.iter().map(|(page, payload)| (*page, payload.clone())).collect();
    let mut loaded = Mvcc::default();
    loaded.load_page(pages[1].0, &pages[1].1).unwrap();
    assert!(loaded.load_page(pages[0].0, &pages[0].1).is_err());
    for position in 0..pages[0].1.len() {
        for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
            let mut changed = pages[0].1.to_vec();
            changed[position] = value;
            let _ = Mvcc::default().load_page(pages[0].0, &changed);
        }
    }
}

#[test]
fn compacted_pages_can_go() {
    let mut store = Store::default();
    for number in 0..10 {
        store.run(&format!("put k{number} old"));
        store.commit();
    }
    for number in 0..10 {
        store.run(&format!("put k{number} new"));
    }
    store.run("compact 21");
    assert_eq!(store.mvcc.oldest_live_page(), PageNumber(1));
    assert!(!store.mvcc.compact_step(3), "steps are bounded");
    store.reclaim();
    assert_eq!(store.shelf.pages.len(), 1);
    store.reopen();
    assert_eq!(store.range(&all()).unwrap().count, 10);
}

#[test]
fn a_value_larger_than_a_page_goes_alone() {
    let mut store = Store::scripted("put a 1");
    let value = Bytes::from(vec![b'x'; 5 * PAGE_BYTES]);
    let put = pb::PutRequest { key: "b".into(), value: value.clone(), ..Default::default() };
    store.put(&put).unwrap();
    store.run("put c 3");
    store.commit();
    assert_eq!(store.shelf.pages.len(), 3);
    store.reopen();
    assert_eq!(store.range(&get("b", "")).unwrap().kvs[0].value, value);
}
