//! Compaction through restarts, checkpoints and cleaning; views that hold it back.

use super::*;

/// What may happen to a store at any time without any reader's seeing it.
#[derive(Clone, Copy, Debug)]
enum Upkeep {
    Step,
    Reclaim,
    Reopen,
    Checkpoint,
    Clean,
}

/// Every order of three of five pieces of upkeep.
fn every_upkeep(mut check: impl FnMut(&[Upkeep])) {
    use Upkeep::*;
    let kinds = [Step, Reclaim, Reopen, Checkpoint, Clean];
    for number in 0..kinds.len().pow(3) {
        let upkeep: Vec<_> =
            (0..3).map(|digit| kinds[number / kinds.len().pow(digit) % kinds.len()]).collect();
        check(&upkeep);
    }
}

fn keep_up(store: &mut Store, upkeep: Upkeep) {
    match upkeep {
        Upkeep::Step => drop(store.mvcc.compact_step(1)),
        Upkeep::Reclaim => store.reclaim(),
        Upkeep::Reopen => store.reopen(),
        Upkeep::Checkpoint => store.checkpoint(usize::MAX),
        Upkeep::Clean => {
            store.commit();
            store.clean(0..usize::MAX);
        }
    }
}

/// Keys, mains and kinds of a window of history.
fn shown(changes: &[Change]) -> String {
    let one = |change: &Change| {
        let key = String::from_utf8_lossy(Fields::decode(&change.key_value).unwrap().key).into_owned();
        format!("{key}{}{}", change.main, if change.tombstone { "t" } else { "" })
    };
    changes.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_delete_at_the_compacted_revision_stays_in_history_whatever_is_done_to_the_store() {
    every_upkeep(|upkeep| {
        let mut store = Store::scripted("put a 1\nput b 1");
        store.checkpoint(usize::MAX);
        store.run("del a");
        store.commit();
        store.run("compact 4");
        for upkeep in upkeep {
            keep_up(&mut store, *upkeep);
            store.commit();
            for by_index in [false, true] {
                assert_eq!(shown(&store.history((4, 4), b"a", b"", by_index)), "a4t", "{upkeep:?}");
                assert_eq!(shown(&store.history((0, 0), b"\0", b"\0", by_index)), "b3 a4t", "{upkeep:?}");
            }
        }
    });
}

#[test]
fn a_deleted_key_stays_deleted_whatever_is_done_to_the_store() {
    every_upkeep(|upkeep| {
        let mut store = Store::scripted("put a 1\nput b 1");
        store.checkpoint(usize::MAX);
        store.commit();
        for line in ["del a", "put c 1", "del b", "put c 2"] {
            store.run(line);
            store.commit();
        }
        store.run("compact 7");
        for upkeep in upkeep {
            keep_up(&mut store, *upkeep);
            assert_eq!(store.show(all()).unwrap(), "c=2", "{upkeep:?}");
            assert_eq!(store.mvcc.live_keys(), 1);
        }
        store.reopen();
        assert_eq!(store.show(all()).unwrap(), "c=2", "{upkeep:?}");
    });
}

#[test]
fn the_revision_never_falls_when_the_newest_records_are_deletions_compacted_away() {
    every_upkeep(|upkeep| {
        let mut store = Store::scripted("put a 1\nput b 1\ndel a\ndel b\ncompact 5");
        for upkeep in upkeep {
            keep_up(&mut store, *upkeep);
            assert_eq!((store.mvcc.revision(), store.mvcc.compacted()), (5, 5), "{upkeep:?}");
            assert_eq!(store.show(all()), Ok(String::new()), "a read at the head is served");
            assert_eq!(store.mvcc.compact(5), Err(Error::Compacted));
        }
        let put = pb::PutRequest { key: "c".into(), ..Default::default() };
        assert_eq!(store.put(&put).unwrap().header.unwrap().revision, 6);
    });
}

#[test]
fn after_compaction_reads_at_the_mark_work_and_below_it_fail_at_once() {
    let mut store = Store::scripted("put a 1\nput a 2\nput a 3\ncompact 3");
    let view = store.mvcc.view();
    for step in 0..4 {
        assert_eq!(store.show(pb::RangeRequest { revision: 3, ..all() }).unwrap(), "a=2");
        assert_eq!(store.show(pb::RangeRequest { revision: 2, ..all() }), Err(Error::Compacted));
        assert_eq!(view.hash_revision(2), Err(Error::Compacted));
        assert_eq!(view.hash_revision(3), Ok(3));
        let cost = ScanCost { pages: 1, records: 1 };
        let plan = |from, to| store.mvcc.history_plan(view, b"a", b"", (from, to), cost).map(drop);
        assert_eq!((plan(2, 0), plan(3, 9)), (Err(Error::Compacted), Err(Error::FutureRevision)));
        match step {
            0 => assert!(store.mvcc.compacting()),
            1 => store.reclaim(),
            _ => store.reopen(),
        }
    }
}

#[test]
fn a_pinned_view_reads_what_is_compacted_for_everyone_else() {
    let mut store = Store::scripted("put a 1\nput b 1\nput a 2\ncompact 3\ndel b");
    let view = store.mvcc.view();
    assert_eq!((store.mvcc.pin(), store.mvcc.pin()), (3, 3));
    store.run("put a 3");
    store.run("compact 6");
    // The pin is for the mark of its time: up to there compaction goes on.
    store.reclaim();
    assert_eq!((store.mvcc.physically_compacted(), store.mvcc.compacting()), (3, false));
    for (revision, expected) in [(3, "a=1 b=1"), (4, "a=2 b=1"), (5, "a=2"), (0, "a=2")] {
        assert_eq!(show(&store.slices(view, &all(), revision, 1)), expected, "at {revision}");
        assert_eq!(
            store.show(pb::RangeRequest { revision, ..all() }).is_err(),
            revision != 0,
            "what everyone else sees is compacted"
        );
    }
    assert_eq!(view.read_revision(6), Err(Error::FutureRevision));
    assert_eq!(view.read_revision(2), Err(Error::Compacted));
    // Two pins of one mark: the second one holds on.
    store.mvcc.unpin(3);
    assert!(!store.mvcc.compacting());
    store.mvcc.unpin(3);
    assert!(store.mvcc.compacting());
    store.reclaim();
    assert_eq!((store.mvcc.physically_compacted(), store.mvcc.index.keys()), (6, 1));
}

#[test]
#[should_panic(expected = "a view is pinned while it is read")]
fn a_view_that_is_not_pinned_is_not_read_after_a_compaction() {
    let mut store = Store::scripted("put a 1\nput a 2");
    let view = store.mvcc.view();
    store.run("compact 3");
    let _ = store.mvcc.count_slice(view, b"a", b"", 2, 1);
}

#[test]
fn a_compaction_on_top_of_another_that_is_under_way_reaches_every_key() {
    let mut store = Store::default();
    for round in 0..3 {
        for number in 0..40 {
            store.run(&format!("put k{number:02} {round}"));
        }
    }
    for compacted in [50, 60, 100, 121] {
        store.mvcc.compact(compacted).unwrap();
        assert!(!store.mvcc.compact_step(30));
    }
    let mut steps = 0;
    while !store.mvcc.compact_step(30) {
        steps += 1;
        assert!(steps < 20, "steps go forward");
    }
    let (keys, _) = picture(&store.mvcc);
    assert!(keys.len() == 40 && keys.iter().all(|(_, facts, records)| facts.1 == 3 && records.len() == 1));
    assert_eq!(store.mvcc.live_records(PageNumber(0)..=PageNumber(99)), 40);
}

#[test]
fn a_slice_that_knows_more_than_the_mark_is_refused() {
    let mut store = Store::scripted("put a 1\nput a 2");
    store.commit();
    store.mvcc.compact(3).unwrap();
    while !store.mvcc.compact_step(9) {}
    let compacted = store.mvcc.checkpoint_slice(b"", 99);
    store.run("put b 1");
    let later = store.mvcc.checkpoint_slice(b"", 99);
    let load = |slice: &Slice, revision, compacted| {
        let mut mvcc = Mvcc::default();
        mvcc.load_mark(revision, compacted).unwrap();
        mvcc.load_slice(&slice.payload)
    };
    assert!(load(&compacted, 3, -1).is_err() && load(&compacted, 3, 3).is_ok());
    assert!(load(&later, 3, 3).is_err() && load(&later, 4, 3).is_ok());
}

#[test]
fn damaged_slices_and_pages_fail_without_a_panic() {
    let mut store =
        Store::scripted("put apple 1\nput apricot 2\nput apple 3\ndel apricot\nput b 5\ncompact 3");
    let slice = store.mvcc.checkpoint_slice(b"a", 12).payload;
    store.commit();
    store.reclaim();
    store.clean(0..usize::MAX);
    let page = store.shelf.pages.values().next().unwrap().1.clone();
    for (bytes, decode) in [(slice, fuzz::slice as fn(&[u8])), (page, fuzz::record_page)] {
        decode(&bytes);
        for cut in 0..bytes.len() {
            decode(&bytes[..cut]);
        }
        for position in 0..bytes.len() {
            for value in [0, 1, 2, 3, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.to_vec();
                changed[position] = value;
                decode(&changed);
            }
        }
    }
}
