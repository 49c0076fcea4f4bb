//! Range: revisions, order, limits, filters, slices.

use super::*;

#[test]
fn reads_are_at_a_revision() {
    let mut store = Store::scripted("put a 1\nput a 2\nput b 3\nput a 4\ncompact 3");
    let mut check = |revision, expected: Result<&str, Error>| {
        let answer = store.range(&pb::RangeRequest { revision, ..all() });
        let shown = answer.as_ref().map(|answer| show(&answer.kvs)).map_err(|error| *error);
        assert_eq!(shown, expected.map(str::to_owned), "at {revision}");
        // The header tells the current revision, whatever was asked.
        assert!(answer.is_err() || answer.unwrap().header.unwrap().revision == 5);
    };
    check(0, Ok("a=4 b=3"));
    check(-7, Ok("a=4 b=3"));
    check(5, Ok("a=4 b=3"));
    check(4, Ok("a=2 b=3"));
    check(3, Ok("a=2"));
    check(2, Err(Error::Compacted));
    check(6, Err(Error::FutureRevision));
}

#[test]
fn sorting_limits_and_filters() {
    // version, create, mod, value: a 2 2 5 z; b 1 3 3 y; c 1 4 4 x
    let mut store = Store::scripted("put a 1\nput b y\nput c x\nput a z");
    let mut check = |order: SortOrder, target: SortTarget, limit, expected: &str, more| {
        let request =
            pb::RangeRequest { sort_order: order as i32, sort_target: target as i32, limit, ..all() };
        let answer = store.range(&request).unwrap();
        assert_eq!(show(&answer.kvs), expected, "{order:?} {target:?} {limit}");
        assert_eq!((answer.more, answer.count), (more, 3), "{order:?} {target:?} {limit}");
    };
    use SortOrder::{Ascend, Descend, None};
    use SortTarget::{Create, Key, Mod, Value, Version};
    check(None, Key, 0, "a=z b=y c=x", false);
    check(None, Key, -1, "a=z b=y c=x", false);
    check(None, Key, 3, "a=z b=y c=x", false);
    check(None, Key, 2, "a=z b=y", true);
    check(Descend, Key, 2, "c=x b=y", true);
    check(Ascend, Mod, 0, "b=y c=x a=z", false);
    check(Descend, Mod, 1, "a=z", true);
    check(Descend, Create, 1, "c=x", true);
    check(Descend, Version, 1, "a=z", true);
    check(Ascend, Value, 2, "c=x b=y", true);
    check(Descend, Value, 1, "a=z", true);
    // Without an order the key-ordered list is cut to limit + 1 before it is sorted.
    check(None, Mod, 0, "b=y c=x a=z", false);
    check(None, Mod, 1, "b=y", true);
    check(None, Value, 1, "b=y", true);
    check(None, Value, 2, "c=x b=y", true);

    let mut check = |bounds: [i64; 4], limit, expected: &str, more| {
        let [min_mod_revision, max_mod_revision, min_create_revision, max_create_revision] = bounds;
        let request = pb::RangeRequest {
            min_mod_revision,
            max_mod_revision,
            min_create_revision,
            max_create_revision,
            limit,
            ..all()
        };
        let answer = store.range(&request).unwrap();
        assert_eq!(
            (show(&answer.kvs).as_str(), answer.more, answer.count),
            (expected, more, 3),
            "{bounds:?}"
        );
    };
    check([4, 0, 0, 0], 0, "a=z c=x", false);
    check([0, 4, 0, 0], 0, "b=y c=x", false);
    check([0, 0, 3, 3], 0, "b=y", false);
    check([0, -1, 0, 0], 0, "", false);
    check([-1, 0, 0, 0], 2, "a=z b=y", true);
    check([4, 0, 0, 0], 1, "a=z", true);
    check([5, 0, 0, 0], 1, "a=z", false);
}

#[test]
fn keys_and_counts_alone_need_no_page() {
    let mut store = Store::scripted("put a 1\nput a 2\nput b 3");
    store.commit();
    let nothing = Shelf::default();
    let keys = pb::RangeRequest { keys_only: true, ..all() };
    let answer = store.mvcc.range(&keys, &nothing).unwrap().unwrap();
    let pair = |key: &str, create_revision, mod_revision, version| KeyValue {
        key: bytes(key),
        create_revision,
        mod_revision,
        version,
        ..Default::default()
    };
    assert_eq!(answer.kvs, [pair("a", 2, 3, 2), pair("b", 4, 4, 1)]);
    let count = pb::RangeRequest { count_only: true, limit: 1, ..keys.clone() };
    let answer = store.mvcc.range(&count, &nothing).unwrap().unwrap();
    assert_eq!((answer.count, answer.more, answer.kvs.len()), (2, false, 0));
    // Sorted by value, values are read and then left out.
    let by_value = pb::RangeRequest {
        sort_target: SortTarget::Value as i32,
        sort_order: SortOrder::Descend as i32,
        ..keys
    };
    assert_eq!(store.range(&by_value).unwrap().kvs, [pair("b", 4, 4, 1), pair("a", 2, 3, 2)]);
}

#[test]
fn values_share_the_pages_memory() {
    let mut store = Store::scripted("put a 1");
    store.commit();
    let answer = store.range(&get("a", "")).unwrap();
    let page = store.shelf.pages.values().next().unwrap().1.as_ptr_range();
    assert!(page.contains(&answer.kvs[0].value.as_ptr()) && page.contains(&answer.kvs[0].key.as_ptr()));
}

#[test]
fn slices_of_a_range_give_the_range() {
    let mut store = Store::scripted("put a 1\nput b 2\nput c 3\nput d 4\nput e 5\ndel b d\nput f 6");
    for commit in [false, true] {
        for (revision, expected) in [(0, "a=1 d=4 e=5 f=6"), (6, "a=1 b=2 c=3 d=4 e=5")] {
            for limit in 1..8 {
                let (mut next, mut kvs) = (Some(bytes("\\x00")), Vec::new());
                while let Some(from) = next {
                    let slice = store
                        .until_there(|mvcc, shelf| {
                            mvcc.range_slice(mvcc.view(), &from, b"\0", revision, limit, false, shelf)
                        })
                        .unwrap();
                    assert!(slice.kvs.len() <= limit);
                    kvs.extend(slice.kvs);
                    next = slice.next;
                }
                assert_eq!(show(&kvs), expected);
                let (mut from, mut count) = (bytes("\\x00"), 0);
                loop {
                    let (part, next) =
                        store.mvcc.count_slice(store.mvcc.view(), &from, b"\0", revision, limit).unwrap();
                    count += part;
                    let Some(next) = next else { break };
                    from = next;
                }
                assert_eq!(count as usize, kvs.len());
            }
        }
        if commit {
            store.commit();
        }
    }
    let future = store.mvcc.range_slice(store.mvcc.view(), b"a", b"", 9, 1, true, &store.shelf).unwrap();
    assert_eq!(future, Err(Error::FutureRevision));
}
