//! A page file in good and bad days, without crashes in the middle of writes
//! (those are in `crash_tests`).

use super::test_disk::TestDisk;
use super::*;
use crate::env::Rng;
use futures::executor::block_on;
use std::sync::Arc;

pub(super) const DIR: &str = "/data/pages";

pub(super) fn options(page_size: u32, pages: u64) -> Options {
    Options { page_size, segment_size: u64::from(page_size) * pages }
}

/// What a page file holds: commit by commit, (number, kind, payload) of each page.
pub(super) type History = Vec<Commit>;
pub(super) type Commit = (u64, Vec<(u64, u8, Vec<u8>)>);

pub(super) struct Found {
    pub file: PageFile,
    pub opened: Opened,
    pub history: History,
}

pub(super) fn try_open(disk: &TestDisk, options: &Options, seed: u8) -> Result<Found, Error> {
    open_with(disk, options, Rng::from_seed([seed; 32]))
}

pub(super) fn open_with(disk: &TestDisk, options: &Options, rng: Rng) -> Result<Found, Error> {
    let opening = PageFile::open(Arc::new(disk.clone()), DIR.into(), options.clone(), rng);
    let (file, opened) = block_on(opening)?;
    let history = try_history(&file.reader())?;
    assert_eq!(opened.last_page, file.reader().last_page());
    Ok(Found { file, opened, history })
}

/// Everything there is to read, commit by commit.
pub(super) fn try_history(reader: &PageReader) -> Result<History, Error> {
    let mut history: History = Vec::new();
    let mut scan = reader.scan(PageNumber(0));
    while let Some(page) = block_on(scan.next())? {
        if history.last().is_none_or(|(number, _)| *number != page.commit.0) {
            history.push((page.commit.0, Vec::new()));
        }
        history.last_mut().unwrap().1.push((page.number.0, page.kind, page.payload.to_vec()));
    }
    Ok(history)
}

/// Every page's label in tests: pure, so that what is found can be checked.
pub(super) fn label(number: u64, kind: u8) -> Label {
    Label { first: number * 10, weight: u32::from(kind) }
}

pub(super) fn open(disk: &TestDisk, options: &Options, seed: u8) -> Found {
    try_open(disk, options, seed).unwrap()
}

pub(super) fn payload(length: usize, salt: u64) -> Bytes {
    (0..length).map(|at| (at as u64).wrapping_mul(31).wrapping_add(salt * 7 + 1) as u8).collect()
}

/// Appends pages of these lengths, commits them and says what a later open must find.
pub(super) fn commit(file: &mut PageFile, lengths: &[usize]) -> Commit {
    let pages = lengths.iter().map(|length| {
        let bytes = payload(*length, file.next_number().0);
        let kind = *length as u8;
        (file.append(kind, label(file.next_number().0, kind), bytes.clone()).0, kind, bytes.to_vec())
    });
    let pages = pages.collect();
    (block_on(file.commit()).unwrap().0, pages)
}

/// Pages of these lengths for a replacement, numbered from `first` on.
pub(super) fn pages(first: u64, lengths: &[usize]) -> Vec<Page> {
    let page = |(number, length): (u64, &usize)| Page {
        number: PageNumber(number),
        span: 0,
        kind: *length as u8,
        commit: CommitNumber(1),
        label: label(number, *length as u8),
        payload: payload(*length, number),
    };
    (first..).zip(lengths).map(page).collect()
}

/// What a history says of such pages.
pub(super) fn told(pages: &[Page]) -> Vec<(u64, u8, Vec<u8>)> {
    pages.iter().map(|page| (page.number.0, page.kind, page.payload.to_vec())).collect()
}

pub(super) fn sync(file: &mut PageFile) {
    block_on(file.sync()).unwrap();
}

#[test]
fn what_was_committed_is_read_and_found_again() {
    let disk = TestDisk::default();
    let options = options(512, 16);
    let mut found = open(&disk, &options, 1);
    assert_eq!((found.opened.commit, found.history.len()), (CommitNumber(0), 0));
    let mut expected = Vec::new();
    for lengths in [&[0, 1, 416][..], &[417], &[2000, 3], &[10], &[7000], &[100, 100, 100, 100]] {
        expected.push(commit(&mut found.file, lengths));
    }
    sync(&mut found.file);
    let reader = found.file.reader();
    for (number, kind, bytes) in expected.iter().flat_map(|(_, pages)| pages) {
        let page = block_on(reader.read(PageNumber(*number))).unwrap();
        assert_eq!((page.number.0, page.kind, &page.payload[..]), (*number, *kind, &bytes[..]));
    }
    for missing in [0, found.file.next_number().0, u64::MAX] {
        assert!(matches!(block_on(reader.read(PageNumber(missing))), Err(Error::NoSuchPage { .. })));
    }
    let (next, written) = (found.file.next_number(), found.file.size_written());
    let found = open(&disk.killed(), &options, 2);
    assert_eq!(found.history, expected);
    assert_eq!((found.file.next_number(), found.file.size_written()), (next, written));
}

#[test]
fn a_commit_larger_than_a_segment_gets_one_that_fits() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    let expected = vec![commit(&mut file, &[10]), commit(&mut file, &[100_000, 5]), commit(&mut file, &[10])];
    sync(&mut file);
    assert_eq!(open(&disk.power_lost(|_| super::test_disk::Fate::Lost), &options, 2).history, expected);
}

#[test]
fn marks_take_no_page_number_and_cost_nothing_twice() {
    let disk = TestDisk::default();
    let options = options(512, 16);
    let mut file = open(&disk, &options, 1).file;
    block_on(file.mark_synced()).unwrap();
    let first = commit(&mut file, &[5]);
    block_on(file.mark_synced()).unwrap();
    let operations = disk.operations();
    block_on(file.mark_synced()).unwrap();
    assert_eq!(disk.operations(), operations, "a second mark is not written");
    let second = commit(&mut file, &[6]);
    assert_eq!((first.1[0].0, second.1[0].0), (1, 2), "page numbers have no gap");
    sync(&mut file);
    let found = open(&disk.killed(), &options, 2);
    assert_eq!(found.history, vec![first, second]);
}

#[test]
fn after_a_clean_stop_nothing_is_rewritten() {
    let disk = TestDisk::default();
    let options = options(512, 16);
    let mut file = open(&disk, &options, 1).file;
    let expected = vec![commit(&mut file, &[5]), commit(&mut file, &[6, 7])];
    block_on(file.mark_synced()).unwrap();
    let mut found = open(&disk.killed(), &options, 2);
    assert_eq!(found.history, expected);
    assert_eq!((found.opened.rewritten_commits, found.opened.torn_bytes), (0, 0));
    let third = commit(&mut found.file, &[8]);
    assert_eq!(third.1[0].0, 4);
}

#[test]
fn a_failed_sync_poisons_for_good() {
    let disk = TestDisk::default();
    let mut file = open(&disk, &options(512, 16), 1).file;
    commit(&mut file, &[5]);
    disk.fail_syncs();
    assert!(matches!(block_on(file.sync()), Err(Error::Io { .. })));
    let healed = disk.killed();
    assert!(matches!(block_on(file.sync()), Err(Error::Poisoned { .. })));
    file.append(1, Label::default(), Bytes::new());
    assert!(matches!(block_on(file.commit()), Err(Error::Poisoned { .. })));
    assert!(matches!(block_on(file.mark_synced()), Err(Error::Poisoned { .. })));
    assert!(matches!(block_on(file.replace(pages(1, &[5]))), Err(Error::Poisoned { .. })));
    assert!(matches!(block_on(file.prepare()), Err(Error::Poisoned { .. })));
    assert!(matches!(block_on(file.drop_before(PageNumber(1))), Err(Error::Poisoned { .. })));
    // What is readable is written again, and durable then.
    let found = open(&healed, &options(512, 16), 2);
    assert_eq!(found.opened.rewritten_commits, 1);
}

#[test]
fn lack_of_space_shows_when_a_segment_is_made_and_harms_nothing() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    let mut expected = vec![commit(&mut file, &[5, 5, 5, 5])];
    sync(&mut file);
    for capacity in [0, 2560 + 100] {
        // No room for a segment; then none for the manifest beside it.
        disk.set_capacity(Some(
            disk.files().iter().map(|path| disk.contents(path).len() as u64).sum::<u64>() + capacity,
        ));
        if file.batch.is_empty() {
            file.append(9, label(5, 9), payload(9, 5));
        }
        let error = block_on(file.commit()).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert_eq!(disk.files().len(), 2, "nothing is left behind");
        sync(&mut file);
    }
    disk.set_capacity(None);
    expected.push((block_on(file.commit()).unwrap().0, vec![(5, 9, payload(9, 5).to_vec())]));
    sync(&mut file);
    assert_eq!(open(&disk.killed(), &options, 2).history, expected);
}

#[test]
fn whole_segments_are_dropped_and_nothing_else() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    let all: History = (0..10).map(|_| commit(&mut file, &[5, 5])).collect();
    sync(&mut file);
    let before = file.size_on_disk();
    // Two commits, four pages a segment.
    assert_eq!(block_on(file.drop_before(PageNumber(4))).unwrap(), 0);
    assert_eq!(file.droppable(PageNumber(8)), 2560);
    assert_eq!(block_on(file.drop_before(PageNumber(8))).unwrap(), 2560);
    assert_eq!(file.size_on_disk(), before - 2560);
    assert!(matches!(block_on(file.reader().read(PageNumber(4))), Err(Error::NoSuchPage { .. })));
    assert!(block_on(file.reader().read(PageNumber(5))).is_ok());
    assert_eq!(open(&disk.killed(), &options, 2).history, all[2..]);
    block_on(file.drop_before(file.next_number())).unwrap();
    let mut found = open(&disk.killed(), &options, 3);
    assert_eq!(found.history, all[8..], "the current segment stays");
    // Nothing but sealed segments now: all may go, and numbers still rise.
    block_on(found.file.drop_before(found.file.next_number())).unwrap();
    assert_eq!(found.file.size_on_disk(), 0);
    let last = commit(&mut found.file, &[1]);
    assert_eq!((last.0 > all[9].0, last.1[0].0), (true, 21));
}

#[test]
fn replace_leaves_one_commit() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    for _ in 0..5 {
        commit(&mut file, &[5, 5]);
    }
    let new = pages(7, &[3000, 10]);
    let old = file.reader();
    file.append(1, Label::default(), Bytes::new());
    let number = block_on(file.replace(new.clone())).unwrap();
    assert_eq!(
        file.next_number(),
        PageNumber(9),
        "the batch is gone, and numbering goes on behind what is given"
    );
    let mut expected: History = vec![(number.0, told(&new))];
    assert_eq!(open(&disk.power_lost(|_| super::test_disk::Fate::Lost), &options, 2).history, expected);
    assert!(matches!(block_on(file.reader().read(PageNumber(10))), Err(Error::NoSuchPage { .. })));
    assert_eq!(block_on(old.read(PageNumber(10))).unwrap().payload, payload(5, 10));
    assert_eq!(try_history(&old).unwrap().len(), 5, "a reader of the old pages reads on");
    expected.push(commit(&mut file, &[5]));
    sync(&mut file);
    assert_eq!(open(&disk.killed(), &options, 3).history, expected);
    assert_eq!(disk.files().len(), 4, "manifest, two segments of the replacement, one behind it");
}

#[test]
fn sealed_segments_give_their_rest_back() {
    let disk = TestDisk::default();
    let options = options(512, 1000);
    for seed in 1..10 {
        let mut file = open(&disk, &options, seed).file;
        commit(&mut file, &[5]);
        sync(&mut file);
        assert!(file.size_on_disk() <= 512 * (1000 + u64::from(seed)), "one preallocated segment at most");
    }
}

#[test]
fn a_lost_segment_or_manifest_is_rot() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    let mut file = open(&disk, &options, 1).file;
    for _ in 0..5 {
        commit(&mut file, &[5, 5]);
    }
    sync(&mut file);
    for path in disk.files() {
        let damaged = disk.killed();
        damaged.forget(&path);
        assert!(matches!(try_open(&damaged, &options, 2), Err(Error::Rot { .. })), "{path:?}");
    }
}

#[test]
fn files_that_the_manifest_does_not_list_are_removed() {
    let disk = TestDisk::default();
    let options = options(512, 5);
    commit(&mut open(&disk, &options, 1).file, &[5]);
    let stray = Path::new(DIR).join(format!("{:032x}.seg", 77));
    disk.place(&stray, vec![1; 2048]);
    disk.place(&Path::new(DIR).join("manifest.new"), vec![1; 5]);
    disk.place(&Path::new(DIR).join("README"), vec![1; 5]);
    open(&disk, &options, 2);
    let left = disk.files();
    assert!(!left.contains(&stray) && !left.iter().any(|path| path.ends_with("manifest.new")));
    assert!(left.iter().any(|path| path.ends_with("README")), "what is not ours stays");
}

/// One page file of each released format stays readable, and what is written
/// today is that format, byte for byte. When this fails the format has changed:
/// then it needs a new version number, a new golden folder beside the old ones,
/// and a way to open the old ones. (The message shows the new bytes.)
#[test]
fn the_format_of_version_1_is_kept() {
    macro_rules! golden {
        ($name:literal) => {
            ($name, include_bytes!(concat!("../../tests/format/pagefile-v1/", $name)) as &[u8])
        };
    }
    // A segment made by copying (two pages merged, one gone), one sealed with a
    // directory, one that is open and ends with a mark.
    const GOLDEN: [(&str, &[u8]); 4] = [
        golden!("manifest"),
        golden!("064bb63be13d59fdbde37a515712fe71.seg"),
        golden!("0c409152f165a60772dbf4d34aeb22bd.seg"),
        golden!("4445a2a3872abed2fba76ec79b10a5b5.seg"),
    ];
    let options = options(512, 5);
    let disk = TestDisk::default();
    let mut file = open(&disk, &options, 42).file;
    for lengths in [&[5, 6, 7][..], &[100, 0], &[600], &[9]] {
        commit(&mut file, lengths);
    }
    let victims = [file.reader().segments()[0].id];
    let mut copy = block_on(file.begin_copy(&victims, 1024)).unwrap();
    let merged = Page { span: 1, commit: CommitNumber(1), ..pages(1, &[11]).remove(0) };
    block_on(copy.append(merged)).unwrap();
    let copied = block_on(copy.finish()).unwrap();
    block_on(file.adopt(copied)).unwrap().unwrap();
    block_on(file.mark_synced()).unwrap();
    let written: Vec<(String, Vec<u8>)> = disk
        .files()
        .iter()
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), disk.contents(path)))
        .collect();
    for (name, bytes) in &written {
        let golden = GOLDEN.iter().find(|(golden, _)| golden == name).map(|(_, bytes)| *bytes);
        let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert!(golden == Some(&bytes[..]), "{name}: {}", hex());
    }
    assert_eq!(written.len(), GOLDEN.len());
    let old = TestDisk::default();
    for (name, bytes) in GOLDEN {
        old.place(&Path::new(DIR).join(name), bytes.to_vec());
    }
    let expected = try_history(&file.reader()).unwrap();
    assert_eq!(expected.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3, 4, 6]);
    assert_eq!(open(&old, &options, 1).history, expected);
}
