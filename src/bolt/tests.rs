//! What the writer writes the reader reads; what is damaged is an error.

use super::{page::Meta, *};
use futures::executor::block_on;
use proptest::prelude::*;

type Buckets = Vec<(Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>)>;

fn write(page_size: u32, buckets: &Buckets) -> Bytes {
    let mut planner = Planner::new(page_size);
    for (name, records) in buckets {
        planner.bucket(name);
        records.iter().for_each(|(key, value)| planner.record(key, value.len()));
    }
    let plan = planner.finish();
    let mut writer = Writer::new(plan, 7);
    let mut out = writer.take();
    for (name, records) in buckets {
        writer.bucket(name);
        for (key, value) in records {
            writer.record(key, value);
            out.extend(writer.take());
        }
    }
    out.extend(writer.finish().unwrap());
    assert_eq!(out.len() as u64, plan.total_bytes());
    out.into()
}

fn read(bytes: &Bytes) -> Result<Buckets, Error> {
    block_on(async {
        let database = Database::open(bytes.clone()).await?;
        let mut scan = database.scan();
        let mut buckets: Buckets = Vec::new();
        while let Some(item) = scan.next().await? {
            match item {
                Item::Bucket(name) => buckets.push((name.to_vec(), Vec::new())),
                Item::Record { key, value } => {
                    buckets.last_mut().expect("a bucket").1.push((key.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(buckets)
    })
}

/// `count` records with keys of the form of revisions.
fn revisions(count: u64, value_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let key = |main: u64| [&main.to_be_bytes()[..], b"_", &[0; 8]].concat();
    (2..2 + count).map(|main| (key(main), vec![main as u8; value_bytes])).collect()
}

fn check(page_size: u32, buckets: Buckets) -> Bytes {
    let bytes = write(page_size, &buckets);
    assert!(read(&bytes).unwrap() == buckets, "page size {page_size}");
    bytes
}

#[test]
fn what_is_written_is_read() {
    for page_size in [1024, 4096, 65536] {
        check(page_size, vec![]);
        check(page_size, vec![(b"meta".to_vec(), vec![])]);
        for count in [1, 2, 3, 20, 200, 5000] {
            for value_bytes in [0, 10, 300, 3000] {
                check(
                    page_size,
                    vec![
                        (b"key".to_vec(), revisions(count, value_bytes)),
                        (b"lease".to_vec(), vec![]),
                        (b"meta".to_vec(), vec![(b"term".to_vec(), vec![0; 8])]),
                    ],
                );
            }
        }
    }
}

#[test]
fn records_larger_than_a_page_overflow() {
    let mut records = revisions(5, 100);
    records[2].1 = vec![9; 1 << 20];
    records[3].0.extend(vec![1; 30_000]);
    records[4].0.extend(vec![2; 30_000]);
    check(4096, vec![(b"key".to_vec(), records)]);
    // Branches whose keys are larger than a page.
    let long = |n: u16| ([&n.to_be_bytes()[..], &vec![7; 32_000]].concat(), vec![1]);
    for count in 1..40 {
        check(4096, vec![(b"long".to_vec(), (0..count).map(long).collect())]);
    }
}

#[test]
fn every_number_of_leaves_makes_a_sound_tree() {
    // Branches of 1024-byte pages hold about 30 children.
    for leaves in (1..70).chain([899, 900, 901, 930, 931, 1800]) {
        check(1024, vec![(b"key".to_vec(), revisions(leaves, 980))]);
    }
}

#[test]
fn one_bucket_is_found_without_the_others() {
    let bytes = check(
        1024,
        vec![(b"key".to_vec(), revisions(500, 90)), (b"meta".to_vec(), vec![(b"term".to_vec(), vec![3; 8])])],
    );
    block_on(async {
        let database = Database::open(bytes).await.unwrap();
        let mut scan = database.scan_bucket(b"meta");
        assert_eq!(scan.next().await.unwrap(), Some(Item::Bucket("meta".into())));
        let record = Item::Record { key: "term".into(), value: vec![3; 8].into() };
        assert_eq!(scan.next().await.unwrap(), Some(record));
        assert_eq!(scan.next().await.unwrap(), None);
        assert_eq!(database.scan_bucket(b"none").next().await.unwrap(), None);
        assert_eq!(database.scan_without(b"key").next().await.unwrap(), Some(Item::Bucket("meta".into())));
        let last = revisions(500, 0).pop().unwrap().0;
        assert_eq!(database.last_key(b"key").await.unwrap(), Some(last.into()));
        assert_eq!(database.last_key(b"none").await.unwrap(), None);
    });
}

#[test]
fn either_meta_will_do_and_the_newer_one_counts() {
    for page_size in [1024, 4096, 65536_u32] {
        let buckets = vec![(b"key".to_vec(), revisions(50, 90))];
        let good = check(page_size, buckets.clone());
        let size = page_size as usize;
        let spoilt = |at: &[usize]| {
            let mut bytes = good.to_vec();
            at.iter().for_each(|at| bytes[*at] ^= 1);
            Bytes::from(bytes)
        };
        for bad in [20, size + 20] {
            assert!(read(&spoilt(&[bad])).unwrap() == buckets, "page size {page_size}, {bad}");
        }
        assert!(matches!(read(&spoilt(&[20, size + 20])), Err(Error::NoMeta)));
        // A newer second meta that leads nowhere is believed.
        let newer = Meta { page_size, root: 3, high_water: 2, txid: 99 }.encode(1);
        let mut bytes = good.to_vec();
        bytes[size..2 * size].copy_from_slice(&newer);
        assert!(matches!(read(&bytes.into()), Err(Error::Page { page: 0, .. })));
    }
}

#[test]
fn what_is_missing_or_foreign_is_named() {
    let good = check(4096, vec![(b"key".to_vec(), revisions(500, 90))]);
    assert!(matches!(read(&good.slice(..good.len() - 1)), Err(Error::Cut { .. })));
    assert!(matches!(read(&Bytes::new()), Err(Error::NoMeta)));
    assert!(matches!(read(&Bytes::from(vec![0; 70_000])), Err(Error::NoMeta)));
    let mut other = good.to_vec();
    for meta in [16, 4096 + 16] {
        other[meta..meta + 4].reverse();
    }
    assert!(matches!(read(&other.into()), Err(Error::ByteOrder)));
    // Space taken ahead is ignored.
    let longer: Bytes = [&good[..], &[0xff; 5000]].concat().into();
    assert!(read(&longer).unwrap() == read(&good).unwrap());
}

#[test]
fn damaged_files_fail_without_a_panic() {
    let good = check(
        1024,
        vec![
            (b"key".to_vec(), revisions(60, 90)),
            (b"lease".to_vec(), vec![]),
            (b"meta".to_vec(), vec![(b"term".to_vec(), vec![3; 8])]),
        ],
    );
    for at in 0..good.len() {
        // Payload of values does not matter to the tree.
        for value in [0, 0xff, good[at] ^ 1] {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            let _ = block_on(fuzz::read(bytes.clone().into()));
            fuzz::database(&bytes);
        }
    }
    for cut in (0..good.len()).step_by(7) {
        assert!(read(&good.slice(..cut)).is_err());
    }
}

#[test]
fn a_page_is_not_used_twice() {
    let good = check(1024, vec![(b"key".to_vec(), revisions(60, 90))]).to_vec();
    // Leaves are pages 2, 3, ...; the branch over them names each in an element.
    let mut bytes = good.clone();
    let element = |bytes: &[u8], child: u64| {
        let places: Vec<usize> = (0..bytes.len() - 8)
            .filter(|at| bytes[*at..*at + 8] == child.to_le_bytes() && at % 8 == 0)
            .collect();
        *places.iter().find(|at| **at % 1024 != 0).expect("its parent names it")
    };
    let at = element(&good, 3);
    bytes[at..at + 8].copy_from_slice(&2_u64.to_le_bytes());
    let error = read(&bytes.into()).unwrap_err().to_string();
    assert_eq!(error, "page 2: it is pointed to twice");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_buckets_survive_the_round(
        page_size in prop::sample::select(vec![1024_u32, 2048, 4096]),
        buckets in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 1..9),
            prop::collection::btree_map(
                prop::collection::vec(any::<u8>(), 1..40),
                prop::collection::vec(any::<u8>(), 0..700),
                0..60,
            ),
            0..8,
        ),
    ) {
        let buckets: Buckets =
            buckets.into_iter().map(|(name, records)| (name, records.into_iter().collect())).collect();
        let bytes = write(page_size, &buckets);
        prop_assert!(read(&bytes).unwrap() == buckets);
    }
}
