//! The behaviours of Range, Put, DeleteRange, Txn, Compact and HashKV, as data.

mod compaction;
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
    /// Each with its span.
    pages: BTreeMap<PageNumber, (u16, Bytes)>,
    /// Forgets half of the pages, newly drawn at each look; 0: none.
    forgetful: Cell<u64>,
    /// Fetched for the call that is under way.
    fetched: RefCell<BTreeSet<PageNumber>>,
}

impl Pages for Shelf {
    fn get(&self, page: PageNumber) -> Option<Bytes> {
        let payload = self.covering(page).expect("only written pages are asked for").clone();
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

impl Shelf {
    fn covering(&self, page: PageNumber) -> Option<&Bytes> {
        let (number, (span, payload)) = self.pages.range(..=page).next_back()?;
        (page.0 <= number.0 + u64::from(*span)).then_some(payload)
    }
}

/// What the last commit's mark says, and the number of the page behind it.
#[derive(Clone, Copy)]
struct Durable {
    view: View,
    next: PageNumber,
}

/// A store in miniature: the state and the pages it has handed out.
#[derive(Default)]
struct Store {
    mvcc: Mvcc,
    shelf: Shelf,
    durable: Option<Durable>,
    /// Of the checkpoint, oldest first; the last one says where to go on.
    slices: Vec<Slice>,
}

/// All that an index holds: keys with their records, and how many records each page has.
type Picture = (Vec<(Vec<u8>, (u64, u64), Vec<index::Version>)>, Vec<(PageNumber, u32)>);

fn picture(mvcc: &Mvcc) -> Picture {
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let keys = mvcc
        .index
        .entries(all)
        .map(|(key, revisions)| (key.to_vec(), revisions.first(), revisions.records().to_vec()));
    let pages = mvcc.live_pages(PageNumber(0), usize::MAX);
    (keys.collect(), pages.into_iter().map(|page| (page, mvcc.live_records(page..=page))).collect())
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

    /// Everything written leaves the state, as at a commit.
    fn commit(&mut self) {
        self.mvcc.seal();
        let taken = self.mvcc.take_sealed();
        let last = taken.last().map(|(number, _)| *number);
        self.shelf.pages.extend(taken.into_iter().map(|(number, payload)| (number, (0, payload))));
        let before = self.durable.map_or(PageNumber(1), |durable| durable.next);
        // Page numbers jump over the mark.
        let next = PageNumber(last.map_or(before.0, |last| last.0 + 1) + 1);
        self.mvcc.set_next_page(next);
        self.durable = Some(Durable { view: self.mvcc.view(), next });
    }

    /// A new life from what a commit left, without the checkpoint and with it: the same.
    fn reopen(&mut self) {
        self.commit();
        self.crash();
    }

    /// The same without a commit: what was not committed is lost.
    fn crash(&mut self) {
        self.mvcc = self.opened(&[]);
        let (end, compacted) =
            self.durable.map_or((0, -1), |durable| (word_of(durable.next), durable.view.compacted));
        self.slices.retain(|slice| slice.as_of <= end && slice.compacted <= compacted);
        let with_checkpoint = self.opened(&self.slices);
        assert_eq!(picture(&with_checkpoint), picture(&self.mvcc));
        if self.slices.len() % 2 == 1 {
            self.mvcc = with_checkpoint;
        }
    }

    /// What opening gives: from the last commit's mark, these slices, and pages.
    fn opened(&self, slices: &[Slice]) -> Mvcc {
        let mut mvcc = Mvcc::default();
        let Some(Durable { view, next }) = self.durable else { return mvcc };
        mvcc.load_mark(view.revision, view.compacted).unwrap();
        for slice in slices {
            mvcc.load_slice(&slice.payload).unwrap();
        }
        let from = mvcc.first_page_to_load();
        for (page, (span, payload)) in &self.shelf.pages {
            if page.0 + u64::from(*span) >= from.0 {
                mvcc.load_page(*page, payload).unwrap();
            }
        }
        mvcc.set_next_page(next);
        mvcc
    }

    /// Writes the next slice of the checkpoint; the ring holds some more than it needs.
    fn checkpoint(&mut self, bytes_max: usize) {
        let from = self.slices.last().and_then(|slice| slice.next.clone()).unwrap_or_default();
        self.slices.push(self.mvcc.checkpoint_slice(&from, bytes_max));
        if self.slices.len() > 12 {
            self.slices.remove(0);
        }
    }

    /// What a member does that gives space back at once.
    fn reclaim(&mut self) {
        self.commit();
        while !self.mvcc.compact_step(1) {}
        let oldest = self.mvcc.oldest_live_page().min(page_of(self.oldest_slice()));
        self.shelf.pages.retain(|page, (span, _)| page.0 + u64::from(*span) >= oldest.0);
    }

    fn oldest_slice(&self) -> u64 {
        self.slices.iter().map(|slice| slice.as_of).min().unwrap_or(u64::MAX)
    }

    /// Cleans the pages at these positions of the shelf, as the cleaner would: what survives goes
    /// into merged pages, all at once.
    fn clean(&mut self, positions: std::ops::Range<usize>) {
        while !self.mvcc.settle(1) {}
        let goal = self.mvcc.compaction_goal();
        if self.durable.is_some_and(|durable| durable.view.compacted >= goal) {
            let victim = |at: &usize| positions.contains(at);
            let pages = || self.shelf.pages.iter().enumerate();
            let dead = |number: &PageNumber, (span, payload): &(u16, Bytes)| {
                let end = PageNumber(number.0 + u64::from(*span));
                self.mvcc.live_records(*number..=end) < Head::of(payload).unwrap().records
            };
            let mut others = pages().filter(|(at, _)| !victim(at)).map(|(_, page)| page);
            let oldest_dead = others.find(|(number, page)| dead(number, page)).map(|(number, _)| *number);
            let oldest_dead = oldest_dead.unwrap_or(PageNumber(u64::MAX));
            let oldest_slice = self.oldest_slice();
            let victims: Vec<_> = pages()
                .filter(|(at, _)| victim(at))
                .map(|(_, (number, (_, page)))| (*number, page.clone()))
                .collect();
            let (mut merge, mut merged) = (Merge::new(), Vec::new());
            for (number, payload) in &victims {
                let survivors: Vec<_> = records(*number, payload)
                    .map(Result::unwrap)
                    .filter(|(place, record)| self.mvcc.survives(record, *place, oldest_dead, oldest_slice))
                    .collect();
                if !merge.has_room(&survivors) {
                    merged.push(std::mem::take(&mut merge).finish());
                }
                merge.push(&survivors);
            }
            if !merge.is_empty() {
                merged.push(merge.finish());
            }
            victims.iter().for_each(|(number, _)| drop(self.shelf.pages.remove(number)));
            let merged = merged.into_iter().map(|page| (page.number, (page.span, page.payload)));
            self.shelf.pages.extend(merged);
        }
    }

    /// A window of history of committed records, on the way asked for.
    fn history(&self, window: (i64, i64), key: &[u8], end: &[u8], by_index: bool) -> Vec<Change> {
        let cost = if by_index { 1 << 20 } else { 0 };
        let cost = ScanCost { pages: cost, records: cost };
        let view = self.mvcc.view();
        let mut plan = self.mvcc.history_plan(view, key, end, window, cost).unwrap();
        while !plan.step(&self.mvcc, 1) {}
        let (mut history, mut changes) = (plan.finish(), Vec::new());
        if history.wants_pages() {
            for (page, (_, payload)) in &self.shelf.pages {
                let (part, more) = history.feed(&self.mvcc, *page, payload).unwrap();
                changes.extend(part);
                if !more {
                    break;
                }
            }
            return changes;
        }
        loop {
            match history.slice(&self.mvcc, &self.shelf, 2) {
                Err(Missing(pages)) => self.shelf.fetched.borrow_mut().extend(pages),
                Ok(part) if part.is_empty() => break,
                Ok(part) => changes.extend(part),
            }
        }
        self.shelf.fetched.borrow_mut().clear();
        changes
    }

    /// A range of a view, slice by slice; its count too.
    fn slices(&mut self, view: View, request: &pb::RangeRequest, at: i64, limit: usize) -> Vec<KeyValue> {
        let end = request.range_end.clone();
        let (mut next, mut kvs) = (Some(request.key.clone()), Vec::new());
        while let Some(from) = next {
            let slice = self
                .until_there(|mvcc, shelf| mvcc.range_slice(view, &from, &end, at, limit, false, shelf))
                .unwrap();
            assert!(slice.kvs.len() <= limit);
            kvs.extend(slice.kvs);
            next = slice.next;
        }
        let (mut next, mut count) = (Some(request.key.clone()), 0);
        while let Some(from) = next {
            let (part, then) = self.mvcc.count_slice(view, &from, &end, at, limit).unwrap();
            count += part;
            next = then;
        }
        assert_eq!(count, kvs.len() as u64);
        kvs
    }

    fn hash(&mut self, revision: i64) -> Result<(u32, i64), Error> {
        let view = self.mvcc.view();
        let revision = view.hash_revision(revision)?;
        self.commit();
        let mut hash = HashKv::new(revision, view);
        for (page, (_, payload)) in &self.shelf.pages {
            if !hash.feed(*page, payload, &self.mvcc).unwrap() {
                break;
            }
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
