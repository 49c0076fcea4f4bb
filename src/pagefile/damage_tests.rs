//! Damage to a sealed page file: it is noticed, and never served.

use super::copy_tests::clean;
use super::test_disk::TestDisk;
use super::tests::{DIR, commit, options, sync, try_history, try_open};
use super::*;
use futures::executor::block_on;
use std::sync::Arc;

const SLOT: usize = 512;

/// A written segment and a copied one, both sealed, and one that is open.
fn sealed() -> (TestDisk, PageFile) {
    let disk = TestDisk::default();
    let mut file = super::tests::open(&disk, &options(512, 5), 1).file;
    for lengths in [&[5, 6, 7, 8][..], &[9, 10], &[600], &[700, 3], &[4], &[2]] {
        commit(&mut file, lengths);
    }
    sync(&mut file);
    let victims = file.reader().segments();
    clean(&mut file, &victims[1..2], |page| (page.number.0 != 6).then_some(page)).unwrap().unwrap();
    (disk, file)
}

/// Opens and reads everything: what was written, or rot; never something else.
fn judge(image: &TestDisk, whole: &PageFile, what: &str) -> bool {
    let expected = try_history(&whole.reader()).unwrap();
    let reader = match try_open(image, &options(512, 5), 9) {
        Ok(found) => {
            assert_eq!(found.history, expected, "{what}");
            found.file.reader()
        }
        Err(Error::Rot { .. }) => {
            match block_on(PageFile::open_read_only(Arc::new(image.clone()), DIR.into())) {
                Ok((reader, _)) => reader,
                Err(Error::Rot { .. }) => return true,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let mut rotten = false;
    for facts in whole.reader().pages(PageNumber(0), usize::MAX) {
        let verified = block_on(reader.verify(facts.number));
        match block_on(reader.read(facts.number)) {
            Ok(page) => {
                assert_eq!(page, block_on(whole.reader().read(facts.number)).unwrap(), "{what}");
                assert!(verified.is_ok(), "{what}");
            }
            Err(Error::Rot { path, .. }) => {
                assert!(image.files().contains(&path), "{what}: the error names the file");
                assert!(matches!(verified, Err(Error::Rot { .. })), "{what}");
                rotten = true;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    rotten
}

/// Every byte that counts in pages and directories of sealed segments.
#[test]
fn every_flipped_byte_of_sealed_segments_is_noticed() {
    let (disk, file) = sealed();
    let segments: Vec<segment::Segment> = file.index.lock().iter().filter(|s| s.sealed).cloned().collect();
    assert_eq!(segments.len(), 3);
    for segment in &segments {
        // (position, bytes that count) of each page, the directory last.
        let mut pages: Vec<(usize, usize)> = segment
            .entries
            .iter()
            .map(|entry| (entry.slot as usize * SLOT, header::HEADER + entry.length as usize))
            .collect();
        let directory = segment.directory.unwrap().position as usize;
        pages.push((directory, header::HEADER + 8 + 36 * segment.entries.len()));
        for (position, length) in pages {
            for at in (position..position + length).step_by(if length > 300 { 7 } else { 1 }) {
                let image = disk.killed();
                image.damage(&segment.path, |data| data[at] ^= 1 << (at % 8));
                let what = format!("byte {at} of {:?}, page at {position}", segment.path);
                assert!(judge(&image, &file, &what), "{what}: not noticed");
                if position == directory {
                    let opened = try_open(&image, &options(512, 5), 9);
                    assert!(matches!(opened, Err(Error::Rot { .. })), "{what}: opened");
                }
            }
        }
    }
}

/// Each slot of the sealed segments is written where each other one belongs.
#[test]
fn misdirected_pages_are_noticed() {
    let (disk, file) = sealed();
    let paths: Vec<PathBuf> =
        file.index.lock().iter().filter(|s| s.sealed).map(|segment| segment.path.clone()).collect();
    let slots = |path: &PathBuf| disk.contents(path).len() / SLOT;
    let places: Vec<(&PathBuf, usize)> =
        paths.iter().flat_map(|path| (0..slots(path)).map(move |slot| (path, slot))).collect();
    for (from, slot) in &places {
        let page = disk.contents(from)[slot * SLOT..(slot + 1) * SLOT].to_vec();
        for (to, at) in &places {
            if disk.contents(to)[at * SLOT..(at + 1) * SLOT] == page {
                continue;
            }
            let image = disk.killed();
            image.damage(to, |data| data[at * SLOT..(at + 1) * SLOT].copy_from_slice(&page));
            let what = format!("slot {slot} of {from:?} in slot {at} of {to:?}");
            assert!(judge(&image, &file, &what), "{what}: not noticed");
        }
    }
}

/// A segment file in another's place, or an older manifest that lists what is gone.
#[test]
fn swapped_and_stale_files_are_noticed() {
    let (disk, mut file) = sealed();
    let paths: Vec<PathBuf> = file.index.lock().iter().map(|segment| segment.path.clone()).collect();
    for (at, path) in paths.iter().enumerate() {
        let image = disk.killed();
        let other = disk.contents(&paths[(at + 1) % paths.len()]);
        image.damage(path, |data| *data = other.clone());
        assert!(matches!(try_open(&image, &options(512, 5), 9), Err(Error::Rot { .. })), "{path:?}");
    }
    let manifest = PathBuf::from(DIR).join(manifest::NAME);
    let stale = disk.contents(&manifest);
    let victims = file.reader().segments();
    clean(&mut file, &victims[..2], |page| page.number.0.is_multiple_of(2).then_some(page)).unwrap().unwrap();
    disk.damage(&manifest, |data| *data = stale);
    assert!(matches!(try_open(&disk.killed(), &options(512, 5), 9), Err(Error::Rot { .. })));
}
