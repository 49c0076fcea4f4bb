//! The same script, out of space at every allocation: nothing is lost, commits
//! wait, and all of it goes on when space is back.

use super::bench::Bench;
use super::model::Op;
use super::script::{self, Script};
use crate::pagefile::test_disk::TestDisk;

/// Allocations of an opening, which may fail: nothing is there yet that could be lost.
async fn opened() -> u64 {
    let disk = TestDisk::default();
    drop(Bench::open(&disk).await.unwrap());
    disk.allocations()
}

#[tokio::test]
async fn no_space_at_any_allocation_only_costs_time() {
    let script = Script::new().await;
    let disk = TestDisk::default();
    script.run(&disk, script::options()).await.1.unwrap();
    let allocations = disk.allocations();
    assert!(allocations > 30, "the script allocates: {allocations}");
    for at in opened().await + 1..=allocations {
        // The space comes back after so many more tries.
        for tries in [1, 4] {
            let about = format!("allocation {at}, {tries} times");
            let disk = TestDisk::default();
            disk.full_at(at..at + tries);
            let (reached, done) = script.run(&disk, script::options()).await;
            let bench = done.unwrap_or_else(|error| panic!("{about}: {error}"));
            assert_eq!(reached.durable, reached.applied, "{about}");
            bench.check(script.last_model(), &about).await;
            assert!(bench.store.has_reserve(), "{about}");
            assert!(!bench.applier.is_starved(), "{about}");
            drop(bench);
            script.check(&disk.killed(), reached, &about).await;
        }
    }
}

/// Space runs out for good at some allocation; the process is stopped, and starts again with space.
#[tokio::test]
async fn what_waited_for_space_is_in_the_log() {
    let script = Script::new().await;
    let disk = TestDisk::default();
    script.run(&disk, script::options()).await.1.unwrap();
    for at in (opened().await + 1..=disk.allocations()).step_by(9) {
        let about = format!("no space from allocation {at} on");
        let disk = TestDisk::default();
        disk.full_at(at..u64::MAX);
        // The script waits for a commit that never ends: it is given up after a while.
        let run = script.run_while(&disk, script::options(), 600).await;
        let after = disk.killed();
        let bench = script.check(&after, run, &about).await;
        script.live_on(bench, &about).await;
    }
}

/// A commit that waits for space goes on when cleaning gives some back, on a disk that stays full.
#[tokio::test]
async fn cleaning_feeds_a_commit_that_waits() {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> = (0..200).map(|key| Op::Put(format!("key{}", key % 5), "v".repeat(100))).collect();
    ops.push(Op::Compact(200));
    for (index, op) in ops.iter().enumerate() {
        bench.apply(op).await.unwrap();
        if index % 10 == 0 {
            bench.applier.commit().await.unwrap();
        }
    }
    bench.applier.commit().await.unwrap();
    bench.compact().await;
    disk.fill(0);
    let mut waiting = None;
    while waiting.is_none() {
        let op = Op::Put("last".into(), "w".repeat(600));
        bench.apply(&op).await.unwrap();
        ops.push(op);
        let mut commit = Box::pin(bench.applier.begin_commit().await.unwrap().durable());
        for _ in 0..200 {
            if bench.applier.is_starved() {
                break;
            }
            crate::env::task::yield_now().await;
        }
        match bench.applier.is_starved() {
            true => waiting = Some(commit),
            false => drop((&mut commit).await.unwrap()),
        }
    }
    assert!(!bench.store.has_reserve());
    bench.clean().await.unwrap();
    let position = waiting.expect("it waits").await.unwrap();
    assert_eq!(position.index, ops.len() as u64);
    assert!(!bench.applier.is_starved());
    bench.check(&super::model::Model::of(&ops), "fed").await;
}
