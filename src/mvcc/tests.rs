//! The behaviours of Range, Put, DeleteRange, Txn, Compact and HashKV, as data.

mod hash;
mod model;
mod range;
mod recovery;
mod session;
mod txn;

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
