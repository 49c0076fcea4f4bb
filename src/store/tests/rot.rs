//! Flipped bits and misdirected writes at every page of a small store:
//! detected, never served.

use super::super::open;
use super::bench::{self, Bench, DIR, segments};
use super::model::{Model, Op};
use crate::pagefile::test_disk::TestDisk;
use std::path::PathBuf;

/// A store of several segments, cleaned in part, with a checkpoint.
async fn store() -> (TestDisk, Model) {
    let disk = TestDisk::default();
    let mut bench = Bench::open(&disk).await.unwrap();
    let mut ops: Vec<Op> =
        (0..60).map(|key| Op::Put(format!("key{:02}", key % 25), format!("{key:03}").repeat(key))).collect();
    ops.push(Op::Compact(30));
    for (number, op) in ops.iter().enumerate() {
        bench.apply(op).await.unwrap();
        if number % 9 == 0 {
            bench.applier.commit().await.unwrap();
        }
        if number % 20 == 0 {
            bench.applier.commit().await.unwrap();
            bench.write_checkpoint().await.unwrap();
        }
    }
    bench.applier.commit().await.unwrap();
    bench.compact().await;
    bench.clean().await.unwrap();
    bench.apply(&Op::Put("last".into(), "one".into())).await.unwrap();
    ops.push(Op::Put("last".into(), "one".into()));
    bench.applier.commit().await.unwrap();
    bench.applier.mark_synced().await.unwrap();
    (disk, Model::of(&ops))
}

/// Opens and reads everything: either some error is told, or all is as it should be. Damage that an
/// opening does not read is found by the scrubber.
async fn look(disk: &TestDisk, model: &Model, about: &str) -> bool {
    let members = crate::members::Members { cluster_id: 9, ..Default::default() };
    let still = open::open(&bench::env(disk), PathBuf::from(DIR), bench::small(), members).await;
    let Ok(still) = still else { return true };
    let store = still.store.clone();
    let (revision, compacted) = store.revisions();
    assert_eq!((revision, compacted), (model.revision(), model.compacted), "{about}");
    let mut failed = false;
    for at in compacted..=revision {
        let request = quorate_proto::etcdserverpb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            revision: at,
            ..Default::default()
        };
        match store.range(&request).await {
            Ok(seen) => {
                assert_eq!(seen.kvs, model.at(at).into_values().collect::<Vec<_>>(), "{about} at {at}")
            }
            Err(_) => failed = true,
        }
    }
    let told_by_reads = store.rot().borrow().is_some();
    assert!(told_by_reads || !failed, "{about}: what is read twice is told");
    let ground = store.shared.ground();
    for page in ground.reader.pages(Default::default(), usize::MAX) {
        super::super::scrubber::look(&store.shared, &ground, &page).await;
    }
    let told = store.rot().borrow().is_some();
    drop(still);
    told
}

#[tokio::test]
async fn a_flipped_bit_in_any_page_is_found_and_never_served() {
    let (disk, model) = store().await;
    assert!(!look(&disk.killed(), &model, "unharmed").await);
    for path in segments(&disk, DIR) {
        let contents = disk.contents(&path);
        let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for (number, at) in (0..used).step_by(61).enumerate() {
            let after = disk.killed();
            after.damage(&path, |bytes| bytes[at] ^= 1 << (number % 8));
            let about = format!("{}, byte {at}", path.display());
            let told = look(&after, &model, &about).await;
            if last_of_open(&contents).is_none_or(|last| at < last) {
                assert_eq!(told, !padding(&contents, at), "{about}");
            }
        }
    }
}

/// Where the last page begins in a segment that is still open: nothing names it as synced, so it may
/// be cut off as torn (I6).
fn last_of_open(contents: &[u8]) -> Option<usize> {
    let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let starts_page = |at: &usize| contents[*at..].starts_with(b"QrtmPage");
    let last = (0..used).step_by(512).rfind(starts_page)?;
    (contents.len() > used.next_multiple_of(512)).then_some(last)
}

/// Whether a byte belongs to no page: pages begin with their magic at multiples of the page size,
/// and say their length.
fn padding(contents: &[u8], at: usize) -> bool {
    const HEADER: usize = 96;
    let mut start = 0;
    let mut end = 0;
    for slot in (0..=at).step_by(512) {
        if contents[slot..].starts_with(b"QrtmPage") {
            start = slot;
            let length = u32::from_le_bytes(contents[slot + 12..slot + 16].try_into().unwrap());
            end = slot + HEADER + length as usize;
        }
    }
    !(start..end).contains(&at)
}

#[tokio::test]
async fn a_misdirected_write_over_any_page_is_found_and_never_served() {
    let (disk, model) = store().await;
    let all = segments(&disk, DIR);
    for (number, path) in all.iter().enumerate() {
        let contents = disk.contents(path);
        let other = disk.contents(&all[(number + 1) % all.len()]);
        let slots = contents.len() / 512;
        for slot in 0..slots {
            let place = slot * 512..(slot + 1) * 512;
            if contents[place.clone()].iter().all(|byte| *byte == 0) {
                continue;
            }
            if last_of_open(&contents).is_some_and(|last| place.start >= last) {
                continue;
            }
            for source in [&contents[(slot + 1) % slots * 512..], &other[..]] {
                let written = &source[..512.min(source.len())];
                if written == &contents[place.clone()] {
                    continue;
                }
                let after = disk.killed();
                after.damage(path, |bytes| {
                    bytes[place.start..place.start + written.len()].copy_from_slice(written)
                });
                let about = format!("{}, slot {slot}", path.display());
                assert!(look(&after, &model, &about).await, "{about}");
            }
        }
    }
}

/// Damage to the checkpoint costs time, never data.
#[tokio::test]
async fn a_damaged_checkpoint_is_read_around() {
    let (disk, model) = store().await;
    for path in disk.files().into_iter().filter(|path| path.starts_with("member/index")) {
        let contents = disk.contents(&path);
        let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for at in (0..used).step_by(101) {
            let after = disk.killed();
            after.damage(&path, |bytes| bytes[at] ^= 0x10);
            let bench = Bench::open(&after).await.unwrap();
            bench.check(&model, &format!("{}, byte {at}", path.display())).await;
        }
        let after = disk.killed();
        after.forget(&path);
        Bench::open(&after).await.unwrap().check(&model, "a file is missing").await;
    }
}
