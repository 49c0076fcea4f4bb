//! I5 and I6 against every crash image of small histories.
//!
//! A history is a list of steps with what it promised after each. A crash image
//! is what a process kill or a power loss leaves of it. After opening an image:
//! the commits found are the first ones of the history, byte for byte; all that
//! a returned sync promised are among them; and a second power loss right after
//! the open takes nothing away. (That nothing is overwritten, the disk asserts.)

use super::test_disk::{Fate, Point, SECTOR, TestDisk};
use super::tests::{
    Commit, Found, History, commit, label, open, open_with, options, pages, payload, sync, try_open,
};
use super::*;
use crate::env::Rng;
use futures::executor::block_on;

/// Commits of a history, and how many of them are promised.
#[derive(Default)]
struct Told {
    commits: History,
    promised: usize,
    /// The last one failed to replace all others: it may be found alone, or not at all.
    replacing: bool,
}

/// Opens an image and checks it against what was told; returns what was found.
fn check(image: &TestDisk, options: &Options, told: &Told) -> Found {
    let found = try_open(image, options, 99).unwrap_or_else(|error| panic!("{error}"));
    let count = found.history.len();
    assert!(count >= told.promised, "{} promised, {count} found", told.promised);
    assert!(count <= told.commits.len(), "{count} found, {} were written", told.commits.len());
    assert_eq!(found.history, told.commits[..count], "what is found was written");
    found
}

/// As `check`, and then once more after a power loss that takes all it can.
fn check_twice(image: &TestDisk, options: &Options, told: &Told) {
    let found = check(image, options, told);
    let again = open(&image.power_lost(|_| Fate::Lost), options, 98);
    assert_eq!(again.history, found.history, "what an open handed out is durable");
    assert_eq!(again.opened.rewritten_commits, 0, "what was rewritten lies below a mark");
}

fn small() -> Options {
    options(512, 32)
}

/// Two synced commits, then unsynced ones of these page lengths.
fn tail(options: &Options, lengths: &[&[usize]]) -> (TestDisk, Told) {
    let disk = TestDisk::default();
    let mut file = open(&disk, options, 1).file;
    let mut commits = vec![commit(&mut file, &[20]), commit(&mut file, &[30, 600])];
    sync(&mut file);
    commits.extend(lengths.iter().map(|lengths| commit(&mut file, lengths)));
    (disk, Told { commits, promised: 2, replacing: false })
}

/// Every sector of the unsynced tail kept, lost or garbled: 3^n images.
fn check_exhaustively(lengths: &[&[usize]]) {
    let (disk, told) = tail(&small(), lengths);
    let sectors = disk.unsynced_sectors();
    assert!(sectors <= 10, "{sectors} sectors are too many to go through");
    let mut counts = vec![0; told.commits.len() + 1];
    for mut image in 0..3_u64.pow(sectors as u32) {
        let image = disk.power_lost(|_| {
            let fate = [Fate::Kept, Fate::Lost, Fate::Garbled][(image % 3) as usize];
            image /= 3;
            fate
        });
        counts[check(&image, &small(), &told).history.len()] += 1;
    }
    assert!(counts[2..].iter().all(|count| *count > 0), "every prefix is reached: {counts:?}");
}

#[test]
fn every_image_of_ten_single_page_commits() {
    check_exhaustively(&[&[1], &[2], &[3], &[4], &[5], &[6], &[7], &[8], &[9], &[10]]);
}

#[test]
fn every_image_of_commits_of_several_pages() {
    check_exhaustively(&[&[1, 2, 3], &[4], &[5, 6], &[1000]]);
}

#[test]
fn every_image_of_pages_of_several_sectors() {
    check_exhaustively(&[&[1500], &[10, 900], &[20]]);
}

#[test]
fn every_image_is_durable_once_opened() {
    let (disk, told) = tail(&small(), &[&[1, 2], &[3], &[600], &[5]]);
    let sectors = disk.unsynced_sectors() as u32;
    for mut image in 0..3_u64.pow(sectors) {
        let image = disk.power_lost(|_| {
            let fate = [Fate::Kept, Fate::Lost, Fate::Garbled][(image % 3) as usize];
            image /= 3;
            fate
        });
        check_twice(&image, &small(), &told);
    }
}

#[test]
fn every_subset_of_large_pages_with_every_lost_sector() {
    let options = options(4096, 32);
    let (disk, told) = tail(&options, &[&[100], &[200, 4500], &[300], &[400, 500]]);
    let sectors = disk.unsynced_sectors();
    let pages = sectors / 8;
    assert_eq!(pages, 7);
    for subset in 0..1_u32 << pages {
        for lost in 0..=sectors {
            for fate in [Fate::Lost, Fate::Garbled] {
                let mut at = 0;
                let image = disk.power_lost(|_| {
                    let kept = subset >> (at / 8) & 1 == 1;
                    at += 1;
                    match (kept, at == lost) {
                        (true, true) => fate,
                        (true, false) => Fate::Kept,
                        (false, _) => Fate::Lost,
                    }
                });
                check(&image, &options, &told);
            }
        }
    }
}

#[test]
fn random_subsets_beyond() {
    let options = options(4096, 64);
    let (disk, told) = tail(&options, &[&[100; 3], &[9000], &[300], &[1, 5000], &[7], &[8], &[20_000], &[1]]);
    let rng = Rng::from_seed([7; 32]);
    for round in 0..2000 {
        // From rare damage to total loss.
        let odds = 1 + round % 64;
        let image = disk.power_lost(|_| match rng.below(64) {
            draw if draw >= odds => Fate::Kept,
            draw if draw % 2 == 0 => Fate::Lost,
            _ => Fate::Garbled,
        });
        check_twice(&image, &options, &told);
    }
}

#[test]
fn a_process_kill_loses_nothing_and_then_nothing_is_lost_any_more() {
    let (disk, told) = tail(&small(), &[&[1, 2], &[3], &[600]]);
    let image = disk.killed();
    let found = check(&image, &small(), &told);
    assert_eq!(found.history.len(), 5);
    assert_eq!(found.opened.rewritten_commits, 3);
    check_twice(&disk.killed(), &small(), &told);
}

#[test]
fn rot_below_a_mark_is_refused_and_above_it_cut() {
    let disk = TestDisk::default();
    let options = small();
    let mut file = open(&disk, &options, 1).file;
    let commits: History = (1..5)
        .map(|length| {
            let told = commit(&mut file, &[length, length]);
            sync(&mut file);
            told
        })
        .collect();
    // Commit 4 names 3; what names 4 comes with the mark.
    for marked in [false, true] {
        if marked {
            block_on(file.mark_synced()).unwrap();
        }
        let path = file.current.as_ref().unwrap().path.clone();
        for page in 0..8 {
            for (what, byte) in [("header", 60), ("payload", 96)] {
                let rotten = disk.killed();
                rotten.damage(&path, |data| data[page * SECTOR + byte] ^= 4);
                let covered = page < 6 || marked;
                match try_open(&rotten, &options, 2) {
                    Err(Error::Rot { position, .. }) => {
                        assert!(covered, "{what} of page {page}: no mark covers it");
                        assert_eq!(position, (page * SECTOR) as u64);
                    }
                    Ok(found) => {
                        assert!(!covered, "{what} of page {page}: a mark covers it");
                        assert_eq!(found.history, commits[..3]);
                        assert!(found.opened.torn_bytes > 0);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

/// Every byte of a small page file flipped, and every length it could be cut
/// to: an error or the first commits, never a panic, never less than the mark.
#[test]
fn every_flipped_byte_and_every_cut() {
    let disk = TestDisk::default();
    let options = options(512, 6);
    let mut file = open(&disk, &options, 1).file;
    let mut commits = vec![commit(&mut file, &[20, 30])];
    sync(&mut file);
    // Names the first one as synced.
    commits.push(commit(&mut file, &[40]));
    commits.push(commit(&mut file, &[500]));
    let told = Told { commits, promised: 1, replacing: false };
    let judge = |image: TestDisk, what: &str| match try_open(&image, &options, 2) {
        Ok(found) => {
            let count = found.history.len();
            assert!(count >= told.promised, "{what}: lost what a mark covers");
            assert_eq!(found.history, told.commits[..count], "{what}");
        }
        Err(Error::Rot { .. } | Error::Version { .. } | Error::Features { .. }) => {}
        Err(error) => panic!("{what}: {error}"),
    };
    for path in disk.files() {
        let length = disk.contents(&path).len();
        for at in 0..length {
            for mask in [0x01, 0x80, 0xff] {
                let image = disk.killed();
                image.damage(&path, |data| data[at] ^= mask);
                judge(image, &format!("byte {at} of {path:?} changed by {mask:#x}"));
            }
            let image = disk.killed();
            image.damage(&path, |data| data.truncate(at));
            judge(image, &format!("{path:?} cut to {at}"));
        }
    }
}

/// The number of a commit that did not return.
const UNTOLD: u64 = 0;

fn same(told: &Commit, found: &Commit) -> bool {
    told.1 == found.1 && (told.0 == found.0 || told.0 == UNTOLD)
}

/// One step of a longer life.
fn step(file: &mut PageFile, rng: &Rng, told: &mut Told, dropped: &mut u64) -> Result<(), Error> {
    match rng.below(20) {
        0..10 => {
            let lengths: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.below(900) as usize).collect();
            let first = file.next_number().0;
            let pages = lengths.iter().enumerate().map(|(at, length)| {
                (first + at as u64, *length as u8, payload(*length, first + at as u64).to_vec())
            });
            // It may be found whether or not the commit returns.
            told.commits.push((UNTOLD, pages.collect()));
            for (at, length) in lengths.iter().enumerate() {
                let number = first + at as u64;
                file.append(*length as u8, label(number, *length as u8), payload(*length, number));
            }
            told.commits.last_mut().unwrap().0 = block_on(file.commit())?.0;
        }
        10..15 => {
            block_on(file.sync())?;
            told.promised = told.commits.len();
        }
        15..17 => {
            block_on(file.mark_synced())?;
            told.promised = told.commits.len();
        }
        17..19 => {
            block_on(file.sync())?;
            told.promised = told.commits.len();
            let keep = file.next_number().0.saturating_sub(rng.below(12)).max(1);
            *dropped = (*dropped).max(keep);
            block_on(file.drop_before(PageNumber(keep)))?;
        }
        _ => {
            // A peer's pages: numbered lower or higher, in one segment or several.
            let first = 1 + rng.below(file.next_number().0 + 10);
            let lengths: Vec<usize> = (0..1 + rng.below(9)).map(|_| rng.below(900) as usize).collect();
            let pages = pages(first, &lengths);
            told.commits.push((UNTOLD, super::tests::told(&pages)));
            told.replacing = true;
            told.commits.last_mut().unwrap().0 = block_on(file.replace(pages))?.0;
            told.commits.drain(..told.commits.len() - 1);
            (told.promised, told.replacing, *dropped) = (1, false, 0);
        }
    }
    Ok(())
}

/// Whether what was found is a possible outcome: a run of the told commits that
/// ends at or behind the promise and begins where dropping may have got to; or
/// a replacement alone.
fn possible(found: &History, told: &Told, dropped: u64) -> bool {
    let (commits, replacing) = (&told.commits, told.replacing);
    if replacing && found.len() == 1 && commits.last().is_some_and(|last| same(last, &found[0])) {
        return true;
    }
    let commits = if replacing { &commits[..commits.len() - 1] } else { &commits[..] };
    let promised = told.promised.min(commits.len());
    let gone = |pages: &[(u64, u8, Vec<u8>)]| pages.iter().all(|page| page.0 < dropped);
    let Some(first) = found.first() else {
        return commits[..promised].iter().all(|(_, pages)| gone(pages));
    };
    // A replacement goes through several segments, of which the first may be dropped.
    let ends = |(number, pages): &Commit| {
        let cut = pages.len().saturating_sub(first.1.len());
        same(&(*number, pages[cut..].to_vec()), first) && gone(&pages[..cut])
    };
    let Some(from) = commits.iter().position(ends) else { return false };
    let end = from + found.len();
    let rest = commits.get(from + 1..end);
    commits[..from].iter().all(|(_, pages)| gone(pages))
        && end >= promised
        && rest.is_some_and(|told| told.iter().zip(&found[1..]).all(|(a, b)| same(a, b)))
}

/// For a message: each commit's number, and number and length of its pages.
fn numbers(history: &History) -> Vec<(u64, Vec<(u64, usize)>)> {
    let pages = |pages: &Vec<(u64, u8, Vec<u8>)>| pages.iter().map(|page| (page.0, page.2.len())).collect();
    history.iter().map(|(number, list)| (*number, pages(list))).collect()
}

/// Lives with crashes at any disk operation (inside rolls, manifests, drops,
/// replacements and recoveries), by kill or power loss, again and again.
#[test]
fn lives_with_a_crash_at_any_operation() {
    for seed in 0..1000_u64 {
        let rng = Rng::from_seed([(seed % 251) as u8; 32].map(|byte| byte ^ (seed / 251) as u8));
        let options = options(512, 4 + rng.below(8));
        let mut disk = TestDisk::default();
        let mut told = Told::default();
        let mut dropped = 0;
        for life in 0..5 {
            disk.die_at(disk.operations() + 1 + rng.below(60));
            let opened = open_with(&disk, &options, rng.clone());
            if let Ok(mut found) = opened {
                let history = &found.history;
                assert!(
                    possible(history, &told, dropped),
                    "seed {seed}, life {life}: promised {} of {:?}, dropped {dropped}, found {:?}",
                    told.promised,
                    numbers(&told.commits),
                    numbers(history),
                );
                // What an open handed out is durable.
                told = Told { promised: history.len(), commits: found.history, replacing: false };
                dropped = 0;
                let error = loop {
                    if let Err(error) = step(&mut found.file, &rng, &mut told, &mut dropped) {
                        break error;
                    }
                };
                assert!(!matches!(error, Error::Rot { .. }), "seed {seed}, life {life}: {error}");
            } else if let Err(error @ (Error::Rot { .. } | Error::NoSuchPage { .. })) = opened {
                panic!("seed {seed}, life {life}: {error}");
            }
            disk = if rng.below(3) == 0 {
                disk.killed()
            } else {
                let odds = rng.below(17);
                disk.power_lost(|point| match (rng.below(16) < odds, point) {
                    (true, _) => Fate::Kept,
                    (false, Point::Sector { .. }) if rng.below(3) == 0 => Fate::Garbled,
                    (false, _) => Fate::Lost,
                })
            };
        }
    }
}

/// A process dies at each operation of a drop or a replacement, its successor
/// at each operation of its open, and then the power goes, keeping any subset
/// of the names changed since: what is removed on a manifest's word must not
/// outlive that manifest.
#[test]
fn names_outlive_no_manifest() {
    let options = options(512, 5);
    let end = |file: &mut PageFile, replace: bool| {
        if replace {
            block_on(file.replace(pages(9, &[700]))).map(drop)
        } else {
            block_on(file.drop_before(PageNumber(7))).map(drop)
        }
    };
    for (replace, first_death, second_death) in [false, true]
        .iter()
        .flat_map(|replace| (1..16).flat_map(move |a| (1..10).map(move |b| (*replace, a, b))))
    {
        let disk = TestDisk::default();
        let mut file = open(&disk, &options, 1).file;
        let commits: History = (0..5).map(|_| commit(&mut file, &[5, 5])).collect();
        sync(&mut file);
        disk.die_at(disk.operations() + first_death);
        let _ = end(&mut file, replace);
        let successor = disk.killed();
        successor.die_at(successor.operations() + second_death);
        if let Ok(mut found) = try_open(&successor, &options, 2) {
            found.file.append(1, Label::default(), payload(1, 1));
            let _ = block_on(found.file.commit());
        }
        for subset in 0..64_u32 {
            let mut names = 0;
            let image = successor.power_lost(|point| match point {
                Point::Name => {
                    names += 1;
                    if subset >> (names - 1) & 1 == 1 { Fate::Kept } else { Fate::Lost }
                }
                _ => Fate::Lost,
            });
            assert!(names <= 6, "{names} names are too many to go through");
            let found = open(&image, &options, 3).history;
            let kept = found.len() == 1 || found.ends_with(&commits[3..]);
            assert!(kept, "replace {replace}, deaths at {first_death} and {second_death}: {found:?}");
        }
    }
}
