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
fn a_compaction_during_a_hash_is_told() {
    let mut store = Store::scripted("put a 1\nput a 2");
    store.commit();
    let mut hash = HashKv::new(3, -1);
    store.mvcc.compact(2).unwrap();
    let page = store.mvcc.live_pages(PageNumber(0), 1)[0];
    assert_eq!(hash.feed(page, &store.shelf.pages[&page], &store.mvcc), Err(FeedError::Compacted));
}
