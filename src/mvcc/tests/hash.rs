//! HashKV against hashes that etcd 3.7.3 gave.

use super::*;

/// Every line of a session with etcd 3.7.3, restarted after each compaction (it forgets
/// hashes that it kept from before), gives the same hash, mark and revisions here.
#[test]
fn hashes_are_those_of_etcd() {
    for reclaiming in [false, true] {
        let mut store = Store::default();
        let mut compared = 0;
        for line in include_str!("etcd_hashes.txt").lines() {
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
fn a_hash_of_a_pinned_view_does_not_see_what_comes_meanwhile() {
    let mut store = Store::scripted("put a 1\nput b 1\nput a 2\ndel b\nput c 3");
    store.commit();
    let expected = store.hash(4).unwrap();
    let view = store.mvcc.view();
    assert_eq!(store.mvcc.pin(), -1);
    store.run("put a 4");
    store.run("compact 7");
    while !store.mvcc.compact_step(1) {}
    store.commit();
    let mut hash = HashKv::new(4, view);
    for (page, (_, payload)) in &store.shelf.pages {
        hash.feed(*page, payload, &store.mvcc).unwrap();
    }
    assert_eq!((hash.finish(), 4), expected);
    store.mvcc.unpin(view.compacted);
    assert!(store.mvcc.compacting());
}

#[test]
fn a_page_that_is_merged_during_a_hash_counts_once() {
    let mut store = Store::default();
    for number in 0..6 {
        store.run(&format!("put k{number} value"));
        store.commit();
    }
    let expected = store.hash(0).unwrap().0;
    let mut hash = HashKv::new(7, store.mvcc.view());
    let pages: Vec<_> = store.shelf.pages.clone().into_iter().collect();
    for (page, (_, payload)) in &pages[..3] {
        hash.feed(*page, payload, &store.mvcc).unwrap();
    }
    store.clean(1..6);
    assert_eq!(store.shelf.pages.len(), 2);
    let (page, (_, payload)) = store.shelf.pages.last_key_value().unwrap();
    hash.feed(*page, payload, &store.mvcc).unwrap();
    assert_eq!(hash.finish(), expected);
}
