//! Copying, the spare, and reading beside it, in good days and on a full disk.

use super::test_disk::{Fate, TestDisk};
use super::tests::{DIR, History, commit, label, open, options, pages, payload, sync, told, try_history};
use super::*;
use futures::executor::block_on;
use std::sync::Arc;

/// Copies what `keep` says of these segments, through the reader, and adopts it.
pub(super) fn clean(
    file: &mut PageFile,
    victims: &[SegmentFacts],
    mut keep: impl FnMut(Page) -> Option<Page>,
) -> Result<Option<u64>, Error> {
    let ids: Vec<u128> = victims.iter().map(|segment| segment.id).collect();
    let bytes = victims.iter().map(|segment| segment.written).sum();
    let mut copy = block_on(file.begin_copy(&ids, bytes))?;
    let mut scan = file.reader().scan(victims[0].first);
    while let Some(page) = block_on(scan.next())? {
        if page.number >= victims[victims.len() - 1].end {
            break;
        }
        if let Some(page) = keep(page) {
            block_on(copy.append(page))?;
        }
    }
    let copied = block_on(copy.finish())?;
    block_on(file.adopt(copied))
}

#[test]
fn a_copy_takes_the_place_of_its_victims() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    let all: History = (0..8).map(|_| commit(&mut file, &[5, 5])).collect();
    sync(&mut file);
    let segments = file.reader().segments();
    assert_eq!(
        segments.iter().map(|s| (s.first.0, s.end.0)).collect::<Vec<_>>(),
        [(1, 5), (5, 9), (9, 13), (13, 17)]
    );
    assert_eq!(segments.iter().map(|s| s.sealed).collect::<Vec<_>>(), [true, true, true, false]);
    assert!(segments[2].digest.is_some() && segments[3].digest.is_none());
    let before = file.reader();
    let mut scan = before.scan(PageNumber(2));
    assert_eq!(block_on(scan.next()).unwrap().unwrap().number, PageNumber(2));
    // Pages 6 and 7 survive merged, 10 by itself, the rest is gone.
    let freed = clean(&mut file, &segments[1..3], |page| match page.number.0 {
        6 => Some(Page { span: 1, payload: payload(700, 6), ..page }),
        10 => Some(page),
        _ => None,
    });
    assert_eq!(freed.unwrap(), Some(2 * 2560 - 4 * 512));
    let reader = file.reader();
    for (number, found) in [
        (4, Some(4)),
        (5, None),
        (6, Some(6)),
        (7, Some(6)),
        (8, None),
        (10, Some(10)),
        (11, None),
        (13, Some(13)),
    ] {
        match block_on(reader.read(PageNumber(number))) {
            Ok(page) => assert_eq!(Some(page.number.0), found, "{number}"),
            Err(Error::NoSuchPage { .. }) => assert_eq!(found, None, "{number}"),
            Err(error) => panic!("{number}: {error}"),
        }
        assert_eq!(block_on(reader.verify(PageNumber(number))).is_ok(), found.is_some());
    }
    let facts = reader.pages(PageNumber(7), 3);
    assert_eq!(
        facts.iter().map(|page| (page.number.0, page.span)).collect::<Vec<_>>(),
        [(6, 1), (10, 0), (13, 0)]
    );
    assert_eq!((facts[0].length, facts[0].footprint, facts[0].label), (700, 1024, label(6, 5)));
    for (first, page) in [
        (9, None),
        (10, Some(1)),
        (59, Some(4)),
        (60, Some(6)),
        (99, Some(6)),
        (100, Some(10)),
        (999, Some(16)),
    ] {
        assert_eq!(reader.page_at(first), page.map(PageNumber), "{first}");
    }
    // A scan that was under way sees what it saw.
    let mut rest = Vec::new();
    while let Some(page) = block_on(scan.next()).unwrap() {
        rest.push(page.number.0);
    }
    assert_eq!(rest, (3..17).collect::<Vec<_>>());
    let numbers = |history: &History| -> Vec<u64> {
        history.iter().flat_map(|(_, pages)| pages.iter().map(|page| page.0)).collect()
    };
    let left = [1, 2, 3, 4, 6, 10, 13, 14, 15, 16];
    assert_eq!(numbers(&try_history(&reader).unwrap()), left);
    let mut found = open(&disk.power_lost(|_| Fate::Lost), &options, 2);
    assert_eq!((numbers(&found.history), found.history.last()), (left.to_vec(), all.last()));
    assert_eq!(commit(&mut found.file, &[1]).1[0].0, 17);
    // Of a run of segments nothing may survive at all.
    let segments = file.reader().segments();
    let files = disk.files().len();
    assert_eq!(clean(&mut file, &segments[..2], |_| None).unwrap(), Some(2560 + 4 * 512));
    assert_eq!(disk.files().len(), files - 2);
    assert_eq!(numbers(&open(&disk.killed(), &options, 3).history), [13, 14, 15, 16]);
}

#[test]
fn what_was_sealed_by_hand_can_be_copied_and_an_empty_segment_is_given_up() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    let mut expected = vec![commit(&mut file, &[5])];
    block_on(file.seal()).unwrap();
    block_on(file.seal()).unwrap();
    let segments = file.reader().segments();
    assert_eq!((segments.len(), segments[0].sealed), (1, true));
    assert_eq!(open(&disk.killed(), &options, 2).history, expected);
    assert!(clean(&mut file, &segments, Some).unwrap().is_some());
    block_on(file.mark_synced()).unwrap();
    expected.push(commit(&mut file, &[5000]));
    sync(&mut file);
    assert_eq!(disk.files().len(), 3, "manifest, the copy, and the segment made for the large commit");
    assert_eq!(open(&disk.killed(), &options, 3).history, expected);
}

#[test]
fn a_copy_of_what_was_replaced_is_dropped() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    for _ in 0..5 {
        commit(&mut file, &[5, 5]);
    }
    let victims = [file.reader().segments()[1].id];
    let mut copy = block_on(file.begin_copy(&victims, 1000)).unwrap();
    block_on(copy.append(block_on(file.reader().read(PageNumber(5))).unwrap())).unwrap();
    let copied = block_on(copy.finish()).unwrap();
    let given_up = block_on(file.begin_copy(&victims, 1000)).unwrap();
    block_on(file.replace(pages(1, &[9]))).unwrap();
    assert_eq!(block_on(file.adopt(copied)).unwrap(), None);
    drop(given_up);
    assert_eq!(disk.files().len(), 2, "manifest and one segment");
    let error = block_on(file.replace([pages(5, &[9]), pages(5, &[9])].concat())).unwrap_err();
    assert!(matches!(error, Error::Disorder { number: PageNumber(5), .. }));
    assert_eq!(open(&disk.killed(), &options, 2).history, [(file.next_commit - 1, told(&pages(1, &[9])))]);
}

#[test]
fn a_roll_takes_the_spare_and_a_full_disk_leaves_room_for_that() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    block_on(file.prepare()).unwrap();
    assert!(file.has_reserve());
    let full = |disk: &TestDisk| {
        let used = disk.files().iter().map(|path| disk.contents(path).len() as u64).sum();
        disk.set_capacity(Some(used));
    };
    full(&disk);
    let mut expected = vec![commit(&mut file, &[5, 5, 5, 5])];
    assert!(!file.has_reserve(), "the manifest went into the spare's cushion");
    full(&disk);
    assert!(block_on(file.prepare()).unwrap_err().is_no_space());
    sync(&mut file);
    file.append(1, label(5, 1), payload(1, 5));
    assert!(block_on(file.commit()).unwrap_err().is_no_space());
    disk.set_capacity(None);
    block_on(file.prepare()).unwrap();
    full(&disk);
    let victims: Vec<SegmentFacts> = file.reader().segments();
    expected.push((block_on(file.commit()).unwrap().0, vec![(5, 1, payload(1, 5).to_vec())]));
    sync(&mut file);
    disk.set_capacity(None);
    block_on(file.prepare()).unwrap();
    full(&disk);
    // So does cleaning.
    let freed = clean(&mut file, &victims, |page| (page.number.0 < 3).then_some(page)).unwrap();
    assert!(freed.is_some_and(|freed| freed >= 512));
    expected[0].1.truncate(2);
    assert!(!file.has_reserve(), "the copy was made in it");
    assert_eq!(open(&disk.killed(), &options, 2).history, expected);
}

#[test]
fn reading_only_changes_nothing() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    let mut all: History = (0..4).map(|_| commit(&mut file, &[5, 5])).collect();
    sync(&mut file);
    all.push(commit(&mut file, &[8]));
    block_on(file.prepare()).unwrap();
    let image = disk.killed();
    let operations = image.operations();
    let (reader, opened) = block_on(PageFile::open_read_only(Arc::new(image.clone()), DIR.into())).unwrap();
    assert_eq!(try_history(&reader).unwrap(), all);
    assert_eq!((opened.commit.0, opened.rewritten_commits), (all[4].0, 1));
    assert_eq!(opened.last_page, Some(PageNumber(9)));
    assert_eq!((image.operations(), image.files()), (operations, disk.files()));
    let nothing = block_on(PageFile::open_read_only(Arc::new(image), "/elsewhere".into()));
    assert!(matches!(nothing, Err(Error::Io { .. })));
}

/// On a real disk, with readers at work all the time: whatever is copied,
/// adopted and dropped, a page that survives is read, and scans see all they began with.
#[cfg(not(madsim))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_read_on_while_segments_are_cleaned() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = std::env::temp_dir().join(format!("quorate-cleaned-{}", std::process::id()));
    let disk: Arc<dyn crate::env::Disk> = Arc::new(crate::env::os::OsDisk::new(2));
    let options = options(4096, 8);
    let rng = crate::env::Rng::from_seed([3; 32]);
    let (mut file, _) =
        PageFile::open(disk.clone(), dir.clone(), options.clone(), rng.clone()).await.unwrap();
    for _ in 0..12 {
        for _ in 0..4 {
            let number = file.next_number().0;
            file.append(1, label(number, 1), payload(100, number));
        }
        file.commit().await.unwrap();
    }
    file.sync().await.unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let reading = crate::env::task::spawn({
        let (reader, ended) = (file.reader(), ended.clone());
        async move {
            let mut rounds = 0;
            while !ended.load(Ordering::Relaxed) || rounds == 0 {
                // Multiples of four survive everything.
                for number in (4..48).step_by(4) {
                    let page = reader.read(PageNumber(number)).await.unwrap();
                    assert_eq!((page.number.0, page.payload), (number, payload(100, number)));
                }
                let expected = reader.pages(PageNumber(0), usize::MAX).len();
                let mut scan = reader.scan(PageNumber(0));
                let mut seen = 0;
                while let Some(page) = scan.next().await.unwrap() {
                    assert_eq!(page.payload, payload(100, page.number.0));
                    seen += 1;
                }
                assert!((12..=expected).contains(&seen));
                rounds += 1;
            }
        }
    });
    for round in 0..10 {
        let sealed: Vec<u128> = file
            .reader()
            .segments()
            .iter()
            .filter(|segment| segment.sealed)
            .map(|segment| segment.id)
            .collect();
        for victims in sealed.chunks(1 + round % 3) {
            let facts = file.reader().segments();
            let of = |id: &u128| facts.iter().find(|segment| segment.id == *id).unwrap();
            let (first, end) = (of(&victims[0]).first, of(&victims[victims.len() - 1]).end);
            let mut copy = file.begin_copy(victims, 4096).await.unwrap();
            let mut scan = file.reader().scan(first);
            while let Some(page) = scan.next().await.unwrap() {
                if page.number < end && (page.number.0.is_multiple_of(4) || page.number.0 % 10 > round as u64)
                {
                    copy.append(page).await.unwrap();
                }
            }
            file.adopt(copy.finish().await.unwrap()).await.unwrap().unwrap();
        }
    }
    ended.store(true, Ordering::Relaxed);
    reading.await.unwrap();
    let left = try_history(&file.reader()).unwrap();
    drop(file);
    let (again, _) = PageFile::open(disk.clone(), dir.clone(), options, rng).await.unwrap();
    assert_eq!(try_history(&again.reader()).unwrap(), left);
    drop(again);
    for name in disk.list_dir(&dir).await.unwrap() {
        disk.remove(&dir.join(name.name)).await.unwrap();
    }
    disk.remove_dir(&dir).await.unwrap();
}
