//! Any sequence of operations against a naive model: a whole copy of the keys
//! for each revision.

use super::*;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use prost::Message;

type Keys = BTreeMap<Bytes, KeyValue>;

struct Model {
    /// `states[revision]`, from 0.
    states: Vec<Keys>,
    /// (main, sub, tombstone, pair), never removed.
    log: Vec<(i64, u64, bool, KeyValue)>,
    compacted: i64,
}

/// A txn under way in the model.
struct Running {
    before: Keys,
    now: Keys,
    wrote: u64,
}

fn within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}

impl Model {
    fn new() -> Model {
        Model { states: vec![Keys::new(), Keys::new()], log: Vec::new(), compacted: -1 }
    }

    fn revision(&self) -> i64 {
        self.states.len() as i64 - 1
    }

    fn readable(&self, revision: i64) -> Result<i64, Error> {
        if revision <= 0 {
            Ok(self.revision())
        } else if revision > self.revision() {
            Err(Error::FutureRevision)
        } else if revision < self.compacted {
            Err(Error::Compacted)
        } else {
            Ok(revision)
        }
    }

    fn range(keys: &Keys, request: &pb::RangeRequest, revision: i64) -> pb::RangeResponse {
        let inside = keys.values().filter(|pair| within(&pair.key, &request.key, &request.range_end));
        let mut kvs: Vec<KeyValue> = inside.cloned().collect();
        let header = Some(pb::ResponseHeader { revision, ..Default::default() });
        let mut answer = pb::RangeResponse { header, count: kvs.len() as i64, ..Default::default() };
        if request.count_only {
            return answer;
        }
        let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
        let filters = (request.min_mod_revision, request.max_create_revision);
        if request.sort_order == 0 && filters == (0, 0) && limit < usize::MAX {
            kvs.truncate(limit + 1);
        }
        kvs.retain(|pair| request.min_mod_revision == 0 || pair.mod_revision >= request.min_mod_revision);
        kvs.retain(|pair| {
            request.max_create_revision == 0 || pair.create_revision <= request.max_create_revision
        });
        let number = |pair: &KeyValue| match request.sort_target {
            1 => pair.version,
            2 => pair.create_revision,
            3 => pair.mod_revision,
            _ => 0,
        };
        let by = |a: &KeyValue, b: &KeyValue| match request.sort_target {
            0 => a.key.cmp(&b.key),
            4 => a.value.cmp(&b.value),
            _ => number(a).cmp(&number(b)),
        };
        kvs.sort_by(|a, b| if request.sort_order == 2 { by(b, a) } else { by(a, b) });
        answer.more = kvs.len() > limit;
        kvs.truncate(limit);
        if request.keys_only {
            kvs.iter_mut().for_each(|pair| pair.value = Bytes::new());
        }
        answer.kvs = kvs;
        answer
    }

    fn holds(running: &Running, compare: &pb::Compare) -> bool {
        let inside =
            running.before.values().filter(|pair| within(&pair.key, &compare.key, &compare.range_end));
        let pairs: Vec<_> = inside.cloned().collect();
        let pairs = match pairs.is_empty() {
            true if compare.target == CompareTarget::Value as i32 => return false,
            true => vec![KeyValue::default()],
            false => pairs,
        };
        pairs.iter().all(|pair| {
            let ordering = match compare.target_union.as_ref().unwrap() {
                TargetUnion::Version(wanted) => pair.version.cmp(wanted),
                TargetUnion::ModRevision(wanted) => pair.mod_revision.cmp(wanted),
                TargetUnion::Value(wanted) => pair.value.cmp(wanted),
                other => panic!("{other:?}"),
            };
            [ordering.is_eq(), ordering.is_gt(), ordering.is_lt(), ordering.is_ne()][compare.result as usize]
        })
    }

    fn txn(&mut self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, Error> {
        let before = self.states.last().unwrap().clone();
        let mut running = Running { now: before.clone(), before, wrote: 0 };
        let length = self.log.len();
        let result = self.check(&running, request).and_then(|()| self.ops(&mut running, request));
        match result {
            Err(error) => {
                self.log.truncate(length);
                Err(error)
            }
            Ok(mut answer) => {
                if running.wrote > 0 {
                    self.states.push(running.now);
                }
                let header = pb::ResponseHeader { revision: self.revision(), ..Default::default() };
                answer.header = Some(header);
                Ok(answer)
            }
        }
    }

    fn branch<'a>(running: &Running, request: &'a pb::TxnRequest) -> (bool, &'a [pb::RequestOp]) {
        let succeeded = request.compare.iter().all(|compare| Model::holds(running, compare));
        (succeeded, if succeeded { &request.success } else { &request.failure })
    }

    fn check(&self, running: &Running, request: &pb::TxnRequest) -> Result<(), Error> {
        for op in Model::branch(running, request).1 {
            match op.request.as_ref().unwrap() {
                Request::RequestRange(range) if range.revision != 0 => {
                    if range.revision > self.revision() {
                        return Err(Error::FutureRevision);
                    }
                    if range.revision < self.compacted {
                        return Err(Error::Compacted);
                    }
                }
                Request::RequestPut(put) if put.ignore_value && !running.before.contains_key(&put.key) => {
                    return Err(Error::KeyNotFound);
                }
                Request::RequestTxn(txn) => self.check(running, txn)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn ops(&mut self, running: &mut Running, request: &pb::TxnRequest) -> Result<pb::TxnResponse, Error> {
        let (succeeded, ops) = Model::branch(running, request);
        let main = self.revision() + 1;
        let header = |running: &Running| {
            let revision = if running.wrote > 0 { main } else { main - 1 };
            Some(pb::ResponseHeader { revision, ..Default::default() })
        };
        let mut responses = Vec::new();
        for op in ops {
            responses.push(match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => {
                    let keys = match range.revision {
                        asked if asked > 0 => &self.states[asked as usize],
                        _ => &running.now,
                    };
                    Response::ResponseRange(Model::range(keys, range, header(running).unwrap().revision))
                }
                Request::RequestPut(put) => {
                    let prev = running.now.get(&put.key).cloned();
                    if put.ignore_value && prev.is_none() {
                        return Err(Error::KeyNotFound);
                    }
                    let pair = KeyValue {
                        key: put.key.clone(),
                        value: if put.ignore_value { prev.clone().unwrap().value } else { put.value.clone() },
                        create_revision: prev.as_ref().map_or(main, |prev| prev.create_revision),
                        mod_revision: main,
                        version: prev.as_ref().map_or(1, |prev| prev.version + 1),
                        lease: 0,
                    };
                    self.log.push((main, running.wrote, false, pair.clone()));
                    running.wrote += 1;
                    running.now.insert(put.key.clone(), pair);
                    let prev_kv = prev.filter(|_| put.prev_kv);
                    Response::ResponsePut(pb::PutResponse { header: header(running), prev_kv })
                }
                Request::RequestDeleteRange(delete) => {
                    let gone: Vec<KeyValue> = running
                        .now
                        .values()
                        .filter(|pair| within(&pair.key, &delete.key, &delete.range_end))
                        .cloned()
                        .collect();
                    for pair in &gone {
                        running.now.remove(&pair.key);
                        let stone = KeyValue { key: pair.key.clone(), ..Default::default() };
                        self.log.push((main, running.wrote, true, stone));
                        running.wrote += 1;
                    }
                    Response::ResponseDeleteRange(pb::DeleteRangeResponse {
                        header: header(running),
                        deleted: gone.len() as i64,
                        prev_kvs: if delete.prev_kv { gone } else { vec![] },
                    })
                }
                Request::RequestTxn(txn) => Response::ResponseTxn(self.ops(running, txn)?),
            });
        }
        let responses =
            responses.into_iter().map(|response| pb::ResponseOp { response: Some(response) }).collect();
        Ok(pb::TxnResponse { header: Some(Default::default()), succeeded, responses })
    }

    fn compact(&mut self, revision: i64) -> Result<(), Error> {
        if revision <= self.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.revision() {
            return Err(Error::FutureRevision);
        }
        self.compacted = revision;
        Ok(())
    }

    /// Positions in the log of each key's newest record at `revision`, where that is no tombstone.
    fn kept(&self, revision: i64) -> BTreeSet<usize> {
        let mut newest = BTreeMap::new();
        for (position, (main, _, tombstone, pair)) in self.log.iter().enumerate() {
            if *main <= revision {
                newest.insert(&pair.key, (position, *tombstone));
            }
        }
        newest.values().filter(|(_, tombstone)| !tombstone).map(|(position, _)| *position).collect()
    }

    /// The hash at a revision of a view with this compacted mark.
    fn hash(&self, revision: i64, compacted: i64) -> u32 {
        let (kept, stored) = (self.kept(revision), self.kept(compacted));
        let mut crc = crc32c::crc32c(b"key");
        for (position, (main, sub, tombstone, pair)) in self.log.iter().enumerate() {
            let counts =
                *main > compacted || if kept.is_empty() { &stored } else { &kept }.contains(&position);
            if *main <= revision && counts {
                let mark: &[u8] = if *tombstone { b"t" } else { b"" };
                let record =
                    [&main.to_be_bytes(), &b"_"[..], &sub.to_be_bytes(), mark, &pair.encode_to_vec()]
                        .concat();
                crc = crc32c::crc32c_append(crc, &record);
            }
        }
        crc
    }

    /// What a finished compaction leaves of a window.
    fn history(&self, (from, to): (i64, i64), key: &[u8], end: &[u8]) -> Vec<Change> {
        let kept = self.kept(self.compacted);
        let mut newest = BTreeMap::new();
        for (main, sub, _, pair) in self.log.iter().filter(|(main, ..)| *main <= self.compacted) {
            newest.insert(&pair.key, (*main, *sub));
        }
        let mut changes = Vec::new();
        for (position, (main, sub, tombstone, pair)) in self.log.iter().enumerate() {
            let at_mark = *main == self.compacted && newest[&pair.key] == (*main, *sub);
            let counts = *main > self.compacted || kept.contains(&position) || at_mark;
            if counts && *main >= from && *main <= to && within(&pair.key, key, end) {
                let key_value = pair.encode_to_vec().into();
                changes.push(Change { main: *main, sub: *sub, tombstone: *tombstone, key_value });
            }
        }
        changes
    }

    /// What was not committed is lost.
    fn back_to(&mut self, view: View) {
        self.states.truncate(view.revision as usize + 1);
        self.log.retain(|(main, ..)| *main <= view.revision);
        self.compacted = view.compacted;
    }
}

#[derive(Clone, Debug)]
enum Op {
    Txn(pb::TxnRequest),
    /// One op of a txn as a request of its own.
    Alone(Request),
    /// Back from the current revision.
    Compact(i64),
    CompactStep(usize),
    Commit,
    Reclaim,
    Reopen,
    Crash,
    /// A slice of the checkpoint, of so many bytes.
    Checkpoint(usize),
    /// Cleans so many pages from this share of them on.
    Clean(u64, usize),
    Pin,
    Unpin,
    /// A range in slices at this share of the revisions of a pinned view.
    LookBack(pb::RangeRequest, u64, usize),
    /// Between these shares of the live revisions.
    History(pb::RangeRequest, u64, u64),
    /// A range at this share of the live revisions.
    Look(pb::RangeRequest, u64),
    Hash(u64),
}

fn key() -> impl Strategy<Value = Bytes> {
    let short = prop::sample::select(vec!["a", "a\0", "b", "c", "d"]).prop_map(Bytes::from);
    // A deletion's record is as large as its key.
    let long = prop::sample::select(vec![17_000, 70_000]).prop_map(|length| Bytes::from(vec![b'b'; length]));
    prop_oneof![20 => short, 1 => long]
}

fn end() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec!["", "", "\0", "a", "b", "c", "e"]).prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Bytes> {
    // Some fill a third of a page, a few a page of their own, also beyond what an offset can say.
    let alone = prop::sample::select(vec![20_000_usize, 70_000, 140_000]);
    let size = prop_oneof![8 => 0..3_usize, 2 => 5_000..6_000_usize, 1 => alone];
    (size, any::<u8>()).prop_map(|(size, fill)| Bytes::from(vec![fill; size]))
}

fn range() -> impl Strategy<Value = pb::RangeRequest> {
    let options = (0..5_i64, 0..3_i32, 0..5_i32, any::<(bool, bool)>(), 0..4_i64, 0..4_i64);
    (key(), end(), options).prop_map(
        |(key, range_end, (limit, sort_order, sort_target, flags, low, high))| pb::RangeRequest {
            key,
            range_end,
            limit,
            sort_order,
            sort_target,
            keys_only: flags.0,
            count_only: flags.0 && flags.1,
            min_mod_revision: low,
            max_create_revision: high * 4,
            ..Default::default()
        },
    )
}

fn put() -> impl Strategy<Value = Request> {
    (key(), value(), any::<bool>(), 0..6).prop_map(|(key, value, prev_kv, kind)| {
        let ignore_value = kind == 0;
        let value = if ignore_value { Bytes::new() } else { value };
        Request::RequestPut(pb::PutRequest { key, value, prev_kv, ignore_value, ..Default::default() })
    })
}

fn delete() -> impl Strategy<Value = Request> {
    (key(), end(), any::<bool>()).prop_map(|(key, range_end, prev_kv)| {
        Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv })
    })
}

fn compares() -> impl Strategy<Value = Vec<pb::Compare>> {
    let union = prop_oneof![
        (0..3_i64).prop_map(TargetUnion::Version),
        (0..9_i64).prop_map(TargetUnion::ModRevision),
        value().prop_map(TargetUnion::Value),
    ];
    let compare = (key(), end(), 0..4_i32, union).prop_map(|(key, range_end, result, union)| pb::Compare {
        result,
        target: match &union {
            TargetUnion::Version(_) => CompareTarget::Version as i32,
            TargetUnion::ModRevision(_) => CompareTarget::Mod as i32,
            _ => CompareTarget::Value as i32,
        },
        key,
        range_end,
        target_union: Some(union),
    });
    prop::collection::vec(compare, 0..3)
}

fn a_txn() -> impl Strategy<Value = pb::TxnRequest> {
    let leaf = prop_oneof![
        4 => put(),
        3 => delete(),
        2 => (range(), -1..12_i64)
            .prop_map(|(range, at)| Request::RequestRange(pb::RangeRequest { revision: at.max(0), ..range })),
    ];
    let op = leaf.prop_recursive(2, 12, 3, |inner| {
        let ops =
            || prop::collection::vec(inner.clone().prop_map(|op| pb::RequestOp { request: Some(op) }), 0..3);
        (compares(), ops(), ops()).prop_map(|(compare, success, failure)| {
            Request::RequestTxn(pb::TxnRequest { compare, success, failure })
        })
    });
    let ops = || prop::collection::vec(op.clone().prop_map(|op| pb::RequestOp { request: Some(op) }), 0..4);
    (compares(), ops(), ops())
        .prop_map(|(compare, success, failure)| pb::TxnRequest { compare, success, failure })
        .prop_filter("as api would let it through", |txn| check::check_txn(txn, 128).is_ok())
}

fn an_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => a_txn().prop_map(Op::Txn),
        6 => put().prop_map(Op::Alone),
        3 => delete().prop_map(Op::Alone),
        2 => (-1..6_i64).prop_map(Op::Compact),
        2 => (1..4_usize).prop_map(Op::CompactStep),
        2 => Just(Op::Commit),
        1 => Just(Op::Reclaim),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
        4 => (1..200_usize).prop_map(Op::Checkpoint),
        4 => (any::<u64>(), 1..8_usize).prop_map(|(from, pages)| Op::Clean(from, pages)),
        1 => Just(Op::Pin),
        1 => Just(Op::Unpin),
        2 => (range(), any::<u64>(), 1..4_usize).prop_map(|(range, at, limit)| Op::LookBack(range, at, limit)),
        3 => (range(), any::<u64>(), any::<u64>()).prop_map(|(range, from, to)| Op::History(range, from, to)),
        4 => (range(), any::<u64>()).prop_map(|(range, at)| Op::Look(range, at)),
        2 => any::<u64>().prop_map(Op::Hash),
    ]
}

/// What is compared, and the views that are pinned.
struct World {
    store: Store,
    model: Model,
    views: Vec<View>,
}

impl World {
    fn new(forgetful: u64) -> World {
        let store = Store::default();
        store.shelf.forgetful.set(forgetful);
        World { store, model: Model::new(), views: Vec::new() }
    }

    fn step(&mut self, op: &Op) {
        let World { store, model, views } = self;
        let (first, last) = (model.compacted.max(0), model.revision());
        let live = |share: u64| first + (share % (last - first + 1) as u64) as i64;
        match op {
            Op::Txn(request) => assert_eq!(store.txn(request), model.txn(request)),
            Op::Alone(op) => alone(store, model, op),
            Op::Compact(back) => assert_eq!(store.mvcc.compact(last - back), model.compact(last - back)),
            Op::CompactStep(keys) => drop(store.mvcc.compact_step(*keys)),
            Op::Commit => store.commit(),
            Op::Reclaim => store.reclaim(),
            Op::Reopen => {
                store.reopen();
                views.clear();
            }
            Op::Crash => {
                store.crash();
                model.back_to(store.mvcc.view());
                views.clear();
            }
            Op::Checkpoint(bytes_max) => store.checkpoint(*bytes_max),
            Op::Clean(share, pages) => {
                let from = (share % (store.shelf.pages.len() as u64 + 1)) as usize;
                store.clean(from..from + pages);
            }
            Op::Pin => {
                assert_eq!(store.mvcc.pin(), model.compacted);
                views.push(store.mvcc.view());
            }
            Op::Unpin => {
                if let Some(view) = views.pop() {
                    store.mvcc.unpin(view.compacted);
                }
            }
            Op::Look(request, share) => {
                let request = pb::RangeRequest { revision: live(*share), ..request.clone() };
                let wanted = model
                    .readable(request.revision)
                    .map(|at| Model::range(&model.states[at as usize], &request, model.revision()));
                assert_eq!(store.range(&request), wanted, "{request:?}");
            }
            Op::LookBack(request, share, limit) => {
                let view = views.first().copied().unwrap_or(store.mvcc.view());
                let (first, span) = (view.compacted.max(1), view.revision - view.compacted.max(1) + 1);
                let at = first + (share % span as u64) as i64;
                let wanted = model.states[at as usize].values();
                let wanted: Vec<_> = wanted
                    .filter(|pair| within(&pair.key, &request.key, &request.range_end))
                    .cloned()
                    .collect();
                assert_eq!(
                    store.slices(view, request, at, *limit),
                    wanted,
                    "{request:?} at {at} of {view:?}"
                );
            }
            Op::History(request, from, to) => {
                let window = (live(*from), live(*to));
                store.commit();
                let wanted = model.history(window, &request.key, &request.range_end);
                for by_index in [false, true] {
                    // An end of 0 means the current revision.
                    let ours = store.history(window, &request.key, &request.range_end, by_index);
                    let wanted = if window.1 == 0 {
                        model.history((window.0, last), &request.key, &request.range_end)
                    } else {
                        wanted.clone()
                    };
                    assert_eq!(ours, wanted, "{request:?} in {window:?}");
                }
            }
            Op::Hash(share) => {
                let revision = live(*share);
                let (hash, at) = store.hash(revision).unwrap();
                assert_eq!(hash, model.hash(at, model.compacted), "at {at}");
            }
        }
        assert_eq!(store.mvcc.view(), View { revision: model.revision(), compacted: model.compacted });
        assert_eq!(store.mvcc.live_keys(), model.states.last().unwrap().len() as u64);
    }

    /// Every live revision, whole.
    fn look_at_all(&mut self) {
        let World { store, model, .. } = self;
        for revision in model.compacted.max(1)..=model.revision() {
            let request = pb::RangeRequest { revision, ..all() };
            let wanted = Model::range(&model.states[revision as usize], &request, model.revision());
            assert_eq!(store.range(&request), Ok(wanted));
            assert_eq!(store.hash(revision).unwrap().0, model.hash(revision, model.compacted));
        }
        for by_index in [false, true] {
            let wanted = model.history((0, model.revision()), b"\0", b"\0");
            assert_eq!(store.history((0, 0), b"\0", b"\0", by_index), wanted);
        }
    }
}

fn alone(store: &mut Store, model: &mut Model, op: &Request) {
    let request =
        pb::TxnRequest { success: vec![pb::RequestOp { request: Some(op.clone()) }], ..Default::default() };
    let wanted = model.txn(&request).map(|mut answer| answer.responses.remove(0).response.unwrap());
    let answer = match op {
        Request::RequestPut(put) => store.put(put).map(Response::ResponsePut),
        Request::RequestDeleteRange(delete) => Ok(Response::ResponseDeleteRange(store.delete(delete))),
        other => panic!("{other:?}"),
    };
    assert_eq!(answer, wanted);
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn any_history_reads_as_the_naive_model_does() {
    let histories = (prop::collection::vec(an_op(), 1..80), any::<u64>());
    let run = |(ops, forgetful): (Vec<Op>, u64)| {
        let mut world = World::new(forgetful);
        for op in &ops {
            world.step(op);
        }
        // At the end, after new lives, and after a cleaning of everything.
        world.look_at_all();
        world.step(&Op::Reopen);
        world.look_at_all();
        let dropped = picture(&world.store.mvcc);
        world.store.clean(0..usize::MAX);
        assert!(world.store.shelf.pages.values().all(|(_, page)| {
            let head = Head::of(page).unwrap();
            head.records > 0
        }));
        world.store.reopen();
        assert_eq!(picture(&world.store.mvcc), dropped, "cleaning changes nothing");
        world.look_at_all();
        Ok(())
    };
    runner(300).run(&histories, run).unwrap();
}

/// Few keys, much deleting, compacting and cleaning: nothing comes back from the dead.
#[test]
fn no_key_comes_back_whatever_is_cleaned_in_which_order() {
    let key = || prop::sample::select(vec!["a", "b", "c"]).prop_map(Bytes::from);
    let put = || {
        let put = key().prop_map(|key| pb::PutRequest { key, value: "v".into(), ..Default::default() });
        put.prop_map(Request::RequestPut)
    };
    let delete = key().prop_map(|key| pb::DeleteRangeRequest { key, ..Default::default() });
    let op = prop_oneof![
        4 => put().prop_map(Op::Alone),
        4 => delete.prop_map(Request::RequestDeleteRange).prop_map(Op::Alone),
        4 => Just(Op::Commit),
        3 => (0..3_i64).prop_map(Op::Compact),
        3 => (1..20_usize).prop_map(Op::CompactStep),
        6 => (any::<u64>(), 1..4_usize).prop_map(|(from, pages)| Op::Clean(from, pages)),
        2 => (1..30_usize).prop_map(Op::Checkpoint),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ];
    let run = |ops: Vec<Op>| {
        let mut world = World::new(0);
        for op in &ops {
            world.step(op);
            if let Op::Clean(..) = op {
                // Opened from pages alone, and with the checkpoint, nothing but what lives is there.
                let durable = world
                    .store
                    .durable
                    .map(|durable| durable.view)
                    .unwrap_or(View { revision: 1, compacted: -1 });
                let opened = world.store.opened(&[]);
                let live = world.model.states[durable.revision as usize].len();
                assert_eq!(opened.live_keys(), live as u64);
            }
        }
        world.step(&Op::Crash);
        world.look_at_all();
        Ok(())
    };
    runner(600).run(&prop::collection::vec(op, 1..90), run).unwrap();
}
