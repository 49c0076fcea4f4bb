//! Reads, hashes, views, cleaning and the checkpoint, step by step.

use super::bench::{Bench, forget_checkpoint, segments, small};
use super::model::{Model, Op};
use crate::pagefile::test_disk::TestDisk;
use quorate_proto::etcdserverpb as pb;

fn put(key: usize, value: &str) -> Op {
    Op::Put(format!("key{key:03}"), value.to_owned())
}

async fn run(bench: &mut Bench, ops: &[Op]) -> Model {
    for op in ops {
        bench.apply(op).await.unwrap();
    }
    bench.applier.commit().await.unwrap();
    Model::of(ops)
}

#[tokio::test]
async fn what_was_committed_is_there_again_with_the_checkpoint_and_without() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> = (0..60).map(|key| put(key % 20, &"v".repeat(key))).collect();
    ops.push(Op::Delete("key003".into(), "key007".into()));
    ops.push(Op::Compact(40));
    let model = run(&mut bench, &ops).await;
    bench.check(&model, "before anything physical").await;
    bench.compact().await;
    bench.check(&model, "compacted").await;
    while bench.rounds().await < 2 {
        assert!(bench.write_checkpoint().await.unwrap());
    }
    let index = bench.index();
    for without in [false, true] {
        let disk = disk.killed();
        if without {
            forget_checkpoint(&disk);
        }
        let bench = Bench::open(&disk).await.unwrap();
        bench.check(&model, "opened again").await;
        assert_eq!(&bench.index()[24..], &index[24..], "the same index");
        assert_eq!(bench.position.index, ops.len() as u64);
    }
}

#[tokio::test]
async fn cleaning_gives_space_back_and_changes_nothing() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> = (0..400).map(|key| put(key % 40, &"v".repeat(key % 90))).collect();
    ops.push(Op::Delete("key010".into(), "key030".into()));
    ops.push(Op::Compact(402));
    let model = run(&mut bench, &ops).await;
    bench.compact().await;
    let before = bench.store.sizes();
    bench.clean().await.unwrap();
    bench.check(&model, "cleaned").await;
    let after = bench.store.sizes();
    assert!(after.0 * 3 < before.0, "{before:?} {after:?}");
    assert!(after.0 <= after.1 * 2, "little is dead: {after:?}");
    let index = bench.index();
    let again = Bench::open(&disk.killed()).await.unwrap();
    assert!(again.store.sizes().0 > 0, "what is there is told before any work is done");
    again.check(&model, "opened after cleaning").await;
    assert_eq!(&again.index()[24..], &index[24..]);
    drop(again);
    // All of it goes.
    ops.push(Op::Delete("\0".into(), "\0".into()));
    ops.push(Op::Compact(403));
    for op in &ops[402..] {
        bench.apply(op).await.unwrap();
    }
    bench.applier.commit().await.unwrap();
    bench.compact().await;
    bench.clean().await.unwrap();
    let model = Model::of(&ops);
    bench.check(&model, "emptied").await;
    assert!(bench.store.sizes().0 < 4096, "{:?}", bench.store.sizes());
    Bench::open(&disk.killed()).await.unwrap().check(&model, "emptied and opened").await;
}

#[tokio::test]
async fn a_view_outlives_compaction_and_cleaning() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> = (0..120).map(|key| put(key % 12, &"v".repeat(key % 50))).collect();
    let model = run(&mut bench, &ops).await;
    let view = bench.store.view();
    ops.extend([Op::Delete("key000".into(), "key006".into()), Op::Compact(122)]);
    for op in &ops[120..] {
        bench.apply(op).await.unwrap();
    }
    bench.applier.commit().await.unwrap();
    bench.compact().await;
    bench.clean().await.unwrap();
    for at in 1..=view.revision() {
        let slice = view.slice(&[0], &[0], at, 500, false).await.unwrap();
        assert_eq!(slice.kvs, model.at(at).into_values().collect::<Vec<_>>(), "at {at}");
        assert_eq!(view.hash(at).await.unwrap(), model.hash(at), "at {at}");
        assert_eq!(view.count(&[0], &[0], at).await.unwrap(), slice.kvs.len() as u64);
    }
    drop(view);
    bench.compact().await;
    bench.clean().await.unwrap();
    assert!(segments(&disk, super::bench::DIR).len() < 6);
    bench.check(&Model::of(&ops), "after the view").await;
}

#[tokio::test]
async fn the_hash_of_a_compaction_is_the_one_before_it() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> = (0..30).map(|key| put(key % 7, "value")).collect();
    for round in 0..14 {
        ops.push(put(round % 5, "again"));
        ops.push(Op::Delete(format!("key{:03}", round % 7), String::new()));
        ops.push(Op::Compact(10 + round as i64));
    }
    let model = run(&mut bench, &ops).await;
    bench.compact().await;
    let newest: Vec<_> = model.hashes.iter().rev().take(10).rev().collect();
    let expected: Vec<_> =
        newest.iter().map(|(revision, (hash, before))| (**revision, *hash, *before)).collect();
    assert_eq!(bench.store.compaction_hashes(), expected);
    for (revision, hash, before) in expected {
        let reply = bench.store.hash_kv(revision).await.unwrap();
        assert_eq!((reply.hash, reply.compact_revision, reply.hash_revision), (hash, before, revision));
    }
    let error = bench.store.hash_kv(12).await.unwrap_err();
    assert_eq!(error.to_string(), crate::mvcc::Error::Compacted.to_string());
    let current = bench.store.hash_kv(0).await.unwrap();
    assert_eq!((current.hash, current.compact_revision), (model.hash(model.revision()), model.compacted));
}

#[tokio::test]
async fn a_compaction_at_zero_leaves_no_stale_answer() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops = vec![put(1, "one"), Op::Compact(0), put(2, "two")];
    run(&mut bench, &ops).await;
    bench.compact().await;
    ops.push(put(3, "three"));
    bench.apply(&ops[3]).await.unwrap();
    let reply = bench.store.hash_kv(0).await.unwrap();
    let model = Model::of(&ops);
    assert_eq!((reply.hash, reply.compact_revision), (model.hash(model.revision()), 0));
    assert_eq!(bench.store.compaction_hashes(), []);
}

#[tokio::test]
async fn large_ranges_in_slices_answer_as_small_ones() {
    let disk = TestDisk::default();
    let mut bench =
        Bench::open_with(&disk, super::super::Options { cache_bytes: 8192, ..small() }).await.unwrap();
    let mut ops: Vec<Op> = Vec::new();
    for round in 0..3 {
        ops.extend((0..700).map(|key| put((key * 37 + round) % 700, &format!("{}", (key * 7919) % 1000))));
    }
    let model = run(&mut bench, &ops).await;
    let mut requests = Vec::new();
    for limit in [0, 1, 600, 699, 700, 5000] {
        for (order, target) in [(0, 0), (1, 0), (2, 0), (1, 1), (2, 2), (1, 3), (2, 4), (0, 3), (0, 4)] {
            for keys_only in [false, true] {
                for (revision, min_mod) in [(0, 0), (900, 0), (0, 1500), (1400, 700)] {
                    requests.push(pb::RangeRequest {
                        key: "key".into(),
                        range_end: "kez".into(),
                        limit,
                        revision,
                        sort_order: order,
                        sort_target: target,
                        keys_only,
                        min_mod_revision: min_mod,
                        ..Default::default()
                    });
                }
            }
        }
    }
    requests.push(pb::RangeRequest { count_only: true, ..requests[0].clone() });
    requests.push(pb::RangeRequest { count_only: true, revision: 300, ..requests[0].clone() });
    for request in requests {
        let sliced = bench.store.range(&request).await.unwrap();
        let whole =
            bench.store.shared.read(|state, pages| state.range(&request, pages)).await.unwrap().unwrap();
        assert_eq!(sliced, whole, "{request:?}");
        let at = if request.revision > 0 { request.revision } else { model.revision() };
        assert_eq!(sliced.count, model.at(at).len() as i64);
        // A part of a streamed reply is the same without the count.
        let (order, target) = (request.sort_order, request.sort_target);
        if (order, target, request.min_mod_revision) == (0, 0, 0) && !request.count_only {
            let part = bench.store.part(&request).await.unwrap();
            assert_eq!(part, pb::RangeResponse { count: 0, ..sliced }, "{request:?}");
        }
    }
}

#[tokio::test]
async fn a_range_beyond_the_budget_is_refused_and_gives_it_back() {
    let disk = TestDisk::default();
    let options = super::super::Options { reply_bytes: 3 << 20, ..small() };
    let mut bench = Bench::open_with(&disk, options).await.unwrap();
    let value = "v".repeat(1 << 20);
    let ops: Vec<Op> = (0..6).map(|key| put(key, &value)).collect();
    run(&mut bench, &ops).await;
    // More than the budget goes alone ...
    assert_eq!(bench.range(0).await.unwrap().kvs.len(), 6);
    // ... and waits in vain while others hold it.
    let held = bench.store.shared.replies.acquire_many(2 << 20).await.unwrap();
    assert!(matches!(bench.range(0).await, Err(super::super::ReadError::Busy)));
    drop(held);
    assert_eq!(bench.range(0).await.unwrap().kvs.len(), 6);
}

#[tokio::test]
async fn history_of_one_key_and_of_all() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> = (0..300).map(|key| put(key % 30, "value")).collect();
    ops.push(Op::Delete("key005".into(), String::new()));
    ops.push(Op::Compact(100));
    run(&mut bench, &ops).await;
    bench.compact().await;
    let all = bench.records().await;
    for (key, range_end, from, to) in [
        ("key005", "", 0, 0),
        ("key005", "", 150, 250),
        ("key", "kez", 100, 0),
        ("key01", "key02", 200, 202),
        ("none", "", 0, 0),
    ] {
        let view = bench.store.view();
        let mut history = view.history(key.as_bytes(), range_end.as_bytes(), from, to).await.unwrap();
        let mut seen = Vec::new();
        while let Some(changes) = history.next().await.unwrap() {
            seen.extend(changes.into_iter().map(|change| (change.main, change.sub)));
        }
        let to = if to == 0 { i64::MAX } else { to };
        let expected: Vec<_> = all
            .iter()
            .filter(|(main, _, one, _)| {
                *main >= from && *main <= to && super::model::in_range(one, key, range_end)
            })
            .map(|(main, sub, ..)| (*main, *sub))
            .collect();
        assert_eq!(seen, expected, "{key}..{range_end} {from}..{to}");
    }
}

#[tokio::test]
async fn a_peers_snapshot_takes_the_place_of_everything() {
    let (one, other) = (TestDisk::default(), TestDisk::default());
    let mut sender = Bench::open(&one).await.unwrap();
    let mut ops: Vec<Op> = (0..200).map(|key| put(key % 20, &"v".repeat(key % 70))).collect();
    ops.push(Op::Compact(150));
    let model = run(&mut sender, &ops).await;
    sender.compact().await;
    sender.clean().await.unwrap();
    let mut receiver = Bench::open(&other).await.unwrap();
    run(&mut receiver, &[put(1, "other"), put(2, "other")]).await;
    while receiver.rounds().await == 0 {
        receiver.write_checkpoint().await.unwrap();
    }
    let view = receiver.store.view();
    let mut snapshot = sender.store.snapshot().await.unwrap();
    let mut pages = Vec::new();
    // What happens to the sender meanwhile does not matter.
    sender.apply(&Op::Delete("\0".into(), "\0".into())).await.unwrap();
    sender.apply(&Op::Compact(202)).await.unwrap();
    sender.applier.commit().await.unwrap();
    sender.compact().await;
    sender.clean().await.unwrap();
    while let Some(page) = snapshot.next().await.unwrap() {
        pages.push(page);
    }
    let position = receiver.applier.install(pages).await.unwrap();
    assert_eq!(position.index, ops.len() as u64);
    assert!(matches!(view.slice(&[0], &[0], 0, 9, false).await, Err(super::super::ReadError::Replaced)));
    drop(view);
    receiver.check(&model, "installed").await;
    assert_eq!(receiver.store.compaction_hashes(), []);
    ops.extend([put(3, "more"), Op::Compact(160), put(4, "and more")]);
    for op in &ops[201..] {
        receiver.apply(op).await.unwrap();
    }
    receiver.applier.commit().await.unwrap();
    receiver.compact().await;
    receiver.clean().await.unwrap();
    let model = Model::of(&ops);
    receiver.check(&model, "lived on").await;
    for without in [false, true] {
        let disk = other.killed();
        if without {
            forget_checkpoint(&disk);
        }
        Bench::open(&disk).await.unwrap().check(&model, "opened after the install").await;
    }
}

#[tokio::test]
async fn a_checkpoint_of_other_pages_is_dropped() {
    let (one, other) = (TestDisk::default(), TestDisk::default());
    let mut models = Vec::new();
    for (disk, value) in [(&one, "one"), (&other, "other")] {
        let mut bench = Bench::open_with_seed(disk, value.len() as u8).await.unwrap();
        let ops: Vec<Op> = (0..50).map(|key| put(key % 10, value)).collect();
        models.push(run(&mut bench, &ops).await);
        while bench.rounds().await == 0 {
            bench.write_checkpoint().await.unwrap();
        }
    }
    forget_checkpoint(&one);
    for path in other.files().iter().filter(|path| path.starts_with("member/index")) {
        one.place(path, other.contents(path));
    }
    Bench::open(&one).await.unwrap().check(&models[0], "with another's checkpoint").await;
}
