//! Compaction, restarts, pages that go.

use super::*;

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

/// Keys, mains and kinds of the records that a finished compaction leaves; read on either way.
fn history(store: &mut Store) -> String {
    store.commit();
    let by_index = store.history((0, 0), b"\0", b"\0", true);
    assert_eq!(store.history((0, 0), b"\0", b"\0", false), by_index);
    let shown = by_index.iter().map(|change| {
        let key = Fields::decode(&change.key_value).unwrap().key;
        let mark = if change.tombstone { "t" } else { "" };
        format!("{}{}{mark}", String::from_utf8_lossy(key), change.main)
    });
    shown.collect::<Vec<_>>().join(" ")
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

/// A record alone in its page may be longer than an offset can say: a slice made while that page is
/// open must not claim to know the pages behind it.
#[test]
fn a_slice_behind_a_large_record_knows_no_later_one() {
    for bytes in [PAGE_BYTES - 200, PAGE_BYTES, 70_000, 140_000, 300_000] {
        let mut store = Store::scripted("put a 1\nput b 1");
        store.commit();
        let value = vec![b'v'; bytes].into();
        store.put(&pb::PutRequest { key: "a".into(), value, ..Default::default() }).unwrap();
        store.checkpoint(usize::MAX);
        store.run("del a");
        for _ in 0..4 {
            store.run("put b 2");
            store.reopen();
        }
        assert_eq!(store.show(all()), Ok("b=2".to_owned()), "{bytes}");
    }
}

#[test]
fn the_revision_is_that_of_the_mark_and_no_record_is_above_it() {
    let store = &mut Store::scripted("put a 1\nput a 2");
    store.commit();
    let load = |revision, compacted| {
        let mut loaded = Mvcc::default();
        loaded.load_mark(revision, compacted)?;
        for (page, (_, payload)) in &store.shelf.pages {
            loaded.load_page(*page, payload)?;
        }
        Ok::<_, String>((loaded.revision(), loaded.compacted()))
    };
    assert_eq!(load(3, -1), Ok((3, -1)));
    assert_eq!(load(7, 4), Ok((7, 4)));
    assert!(load(2, -1).is_err(), "a mark below its own records");
    assert!(load(8, 9).is_err(), "nothing is compacted ahead");
    assert!(load(0, -1).is_err() && load(3, -2).is_err(), "no store stands there");
}

#[test]
fn pages_out_of_order_or_damaged_are_refused() {
    let mut store = Store::scripted("put a 1");
    store.commit();
    store.run("put a 2");
    store.commit();
    let pages: Vec<_> =
        store.shelf.pages.iter().map(|(page, (_, payload))| (*page, payload.clone())).collect();
    let fresh = || {
        let mut mvcc = Mvcc::default();
        mvcc.load_mark(3, -1).unwrap();
        mvcc
    };
    let mut loaded = fresh();
    loaded.load_page(pages[1].0, &pages[1].1).unwrap();
    assert!(loaded.load_page(pages[0].0, &pages[0].1).is_err());
    for position in 0..pages[0].1.len() {
        for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
            let mut changed = pages[0].1.to_vec();
            changed[position] = value;
            let _ = fresh().load_page(pages[0].0, &changed);
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
