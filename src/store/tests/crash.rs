//! The whole script, killed at every disk operation: the process alone, or
//! the power with it. What is there afterwards is a whole state, no older than
//! what was told to be durable, with the checkpoint and without.

use super::bench::forget_checkpoint;
use super::script::{self, Script};
use crate::pagefile::test_disk::{Fate, Point, TestDisk};

/// What becomes of that which was not synced.
const LOSSES: [Option<Fate>; 4] = [None, Some(Fate::Kept), Some(Fate::Lost), Some(Fate::Garbled)];

fn left(disk: &TestDisk, loss: Option<Fate>, seed: u64) -> TestDisk {
    match loss {
        None => disk.killed(),
        Some(fate @ (Fate::Kept | Fate::Lost)) => disk.power_lost(|_| fate),
        Some(Fate::Garbled) => {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            disk.power_lost(|point| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                match (state >> 61, point) {
                    (0..3, _) => Fate::Kept,
                    (3, Point::Sector { .. }) => Fate::Garbled,
                    _ => Fate::Lost,
                }
            })
        }
    }
}

#[tokio::test]
async fn a_crash_at_any_disk_operation_leaves_a_whole_state() {
    let script = Script::new().await;
    let disk = TestDisk::default();
    let (reached, done) = script.run(&disk, script::options()).await;
    let whole = done.unwrap();
    whole.check(script.last_model(), "without a crash").await;
    assert_eq!(reached.durable, reached.applied);
    let operations = disk.operations();
    assert!(operations > 300, "the script does something: {operations} operations");
    for at in 1..=operations {
        let disk = TestDisk::default();
        disk.die_at(at);
        let (reached, done) = script.run(&disk, script::options()).await;
        drop(done);
        for (number, loss) in (0..).zip(LOSSES) {
            let about = format!("operation {at}, {loss:?}");
            let after = left(&disk, loss, at * 4 + number);
            let without = after.killed();
            forget_checkpoint(&without);
            let bench = script.check(&after, reached, &about).await;
            let index = bench.index();
            if at % 7 == number {
                let bench = script.live_on(bench, &about).await;
                drop(bench);
                let reached = script::Reached { applied: 1 << 20, durable: 0 };
                script.check(&after.killed(), reached, &format!("{about}, lived on")).await;
            }
            let other = script.check(&without, reached, &format!("{about}, no checkpoint")).await;
            assert_eq!(&other.index()[24..], &index[24..], "{about}: the same index");
        }
    }
}
