//! Copying, adopting, replacing and preparing against every crash and every
//! lack of space.
//!
//! The model is what was committed and what was done to it since, each with how
//! much of it is promised. After a crash the page file holds some of the
//! commits and some of the changes, in order, and all that were promised; every
//! page number reads what the model says.

use super::test_disk::{Fate, Point, TestDisk};
use super::tests::{DIR, label, options, payload};
use super::*;
use crate::env::Rng;
use futures::executor::block_on;
use std::sync::Arc;

/// A page as the model knows it: number, span, label, payload.
type Known = (u64, u16, Label, Vec<u8>);

fn known(page: &Page) -> Known {
    (page.number.0, page.span, page.label, page.payload.to_vec())
}

/// Pages with numbers in `from..end` become these.
#[derive(Clone, Debug)]
struct Change {
    from: u64,
    end: u64,
    pages: Vec<Known>,
}

#[derive(Clone, Debug, Default)]
struct Model {
    commits: Vec<Vec<Known>>,
    synced: usize,
    changes: Vec<Change>,
    changed: usize,
}

impl Model {
    fn holding(pages: Vec<Known>) -> Model {
        Model { commits: vec![pages], synced: 1, ..Model::default() }
    }

    /// With so many commits and changes.
    fn pages(&self, commits: usize, changes: usize) -> Vec<Known> {
        let mut pages = self.commits[..commits].concat();
        for change in &self.changes[..changes] {
            let from = pages.partition_point(|page| page.0 < change.from);
            let end = pages.partition_point(|page| page.0 < change.end);
            pages.splice(from..end, change.pages.clone());
        }
        pages
    }

    fn now(&self) -> Vec<Known> {
        self.pages(self.commits.len(), self.changes.len())
    }

    fn may_be(&self, found: &[Known]) -> bool {
        (self.synced..=self.commits.len()).any(|commits| {
            (self.changed..=self.changes.len()).any(|changes| self.pages(commits, changes) == found)
        })
    }
}

fn try_open(disk: &TestDisk, options: &Options, rng: Rng) -> Result<PageFile, Error> {
    let opening = PageFile::open(Arc::new(disk.clone()), DIR.into(), options.clone(), rng);
    block_on(opening).map(|(file, _)| file)
}

fn seeded(seed: u64) -> Rng {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    Rng::from_seed(bytes)
}

fn open(disk: &TestDisk, options: &Options, seed: u64) -> PageFile {
    try_open(disk, options, seeded(seed)).unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that is there, read in every way there is.
fn read_all(reader: &PageReader) -> Vec<Known> {
    let mut pages: Vec<Known> = Vec::new();
    let mut scan = reader.scan(PageNumber(0));
    while let Some(page) = block_on(scan.next()).unwrap() {
        pages.push(known(&page));
    }
    let facts = reader.pages(PageNumber(0), usize::MAX);
    assert!(
        facts.iter().map(|fact| (fact.number.0, fact.span)).eq(pages.iter().map(|page| (page.0, page.1)))
    );
    let mut next = 0;
    for page in &pages {
        for gone in next..page.0 {
            let read = block_on(reader.read(PageNumber(gone)));
            assert!(matches!(read, Err(Error::NoSuchPage { .. })), "{gone} is gone");
        }
        next = page.0 + u64::from(page.1) + 1;
        for number in page.0..next {
            assert_eq!(&known(&block_on(reader.read(PageNumber(number))).unwrap()), page);
            block_on(reader.verify(PageNumber(number))).unwrap();
        }
    }
    let segments = reader.segments();
    assert!(segments.windows(2).all(|pair| pair[0].end <= pair[1].first), "segments are disjoint");
    pages
}

/// One thing that an owner does, decided by `rng`. The model hears of it
/// before, as possible, and after, as promised.
fn step(file: &mut PageFile, rng: &Rng, model: &mut Model) -> Result<(), Error> {
    match rng.below(16) {
        0..6 => {
            // Now and then more than a segment holds.
            let longest = if rng.below(8) == 0 { 5000 } else { 900 };
            let lengths: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.below(longest) as usize).collect();
            let pages: Vec<Known> = (file.next_number().0..)
                .zip(&lengths)
                .map(|(number, length)| {
                    (number, 0, label(number, *length as u8), payload(*length, number).to_vec())
                })
                .collect();
            for page in &pages {
                file.append(page.3.len() as u8, page.2, page.3.clone().into());
            }
            model.commits.push(pages);
            if let Err(error) = block_on(file.commit()) {
                if error.is_no_space() {
                    file.abandon();
                    model.commits.pop();
                }
                return Err(error);
            }
        }
        6..9 => {
            block_on(file.sync())?;
            model.synced = model.commits.len();
        }
        9 => {
            block_on(file.mark_synced())?;
            model.synced = model.commits.len();
        }
        10 if rng.below(2) == 0 => block_on(file.prepare())?,
        10 => {
            let (commits, sealed) = (model.commits.len(), block_on(file.seal()));
            sealed?;
            model.synced = commits;
        }
        11 => {
            block_on(file.sync())?;
            model.synced = model.commits.len();
            let keep = file.next_number().0.saturating_sub(rng.below(12)).max(1);
            let gone =
                file.reader().segments().into_iter().take_while(|s| s.end.0 <= keep && s.sealed).last();
            let end = gone.map_or(0, |segment| segment.end.0);
            change(model, Change { from: 0, end, pages: Vec::new() }, || {
                block_on(file.drop_before(PageNumber(keep))).map(|_| true)
            })?;
        }
        12..15 => clean(file, rng, model)?,
        _ => {
            let mut next = 1 + rng.below(file.next_number().0 + 10);
            let mut pages = Vec::new();
            for _ in 0..1 + rng.below(8) {
                let (span, length) = (rng.below(3) as u16, rng.below(900) as usize);
                pages.push(Page {
                    number: PageNumber(next),
                    span,
                    kind: 3,
                    commit: CommitNumber(1),
                    label: label(next, 3),
                    payload: payload(length, next),
                });
                next += 1 + u64::from(span) + rng.below(2);
            }
            let new = pages.iter().map(known).collect();
            change(model, Change { from: 0, end: u64::MAX, pages: new }, || {
                block_on(file.replace(pages)).map(|_| true)
            })?;
            *model = Model::holding(model.now());
        }
    }
    Ok(())
}

/// Does something that may turn out to have been done when it fails, unless
/// it failed for lack of space.
fn change(model: &mut Model, change: Change, act: impl FnOnce() -> Result<bool, Error>) -> Result<(), Error> {
    model.changes.push(change);
    match act() {
        Ok(true) => {}
        Ok(false) => drop(model.changes.pop()),
        Err(error) => {
            if error.is_no_space() {
                model.changes.pop();
            }
            return Err(error);
        }
    }
    model.changed = model.changes.len();
    Ok(())
}

/// Copies a run of sealed segments: pages survive, are merged with the next, or go.
fn clean(file: &mut PageFile, rng: &Rng, model: &mut Model) -> Result<(), Error> {
    let sealed: Vec<SegmentFacts> = file.reader().segments().into_iter().filter(|s| s.sealed).collect();
    if sealed.is_empty() {
        return Ok(());
    }
    let at = rng.below(sealed.len() as u64) as usize;
    let victims = &sealed[at..(at + 1 + rng.below(3) as usize).min(sealed.len())];
    let ids: Vec<u128> = victims.iter().map(|segment| segment.id).collect();
    let (from, end) = (victims[0].first.0, victims[victims.len() - 1].end.0);
    let reader = file.reader();
    let mut pages: Vec<Page> = Vec::new();
    for fact in reader.pages(PageNumber(from), usize::MAX).into_iter().take_while(|f| f.number.0 < end) {
        let page = block_on(reader.read(fact.number))?;
        match (rng.below(3), pages.last_mut()) {
            (0, _) => {}
            (1, Some(last)) => {
                last.span = (page.number.0 + u64::from(page.span) - last.number.0) as u16;
                last.payload = [&last.payload[..], &page.payload[..]].concat().into();
                last.commit = page.commit;
            }
            _ => pages.push(page),
        }
    }
    // What is foreseen may be too little, right or too much.
    let bytes = rng.below(3) * pages.len() as u64 * 512;
    let mut copy = block_on(file.begin_copy(&ids, bytes))?;
    for page in &pages {
        block_on(copy.append(page.clone()))?;
    }
    let copied = block_on(copy.finish())?;
    let pages = pages.iter().map(known).collect();
    change(model, Change { from, end, pages }, || Ok(block_on(file.adopt(copied))?.is_some()))
}

/// What the crash leaves: by number, from mild to bad.
fn crashed(disk: &TestDisk, image: u64, rng: &Rng) -> TestDisk {
    match image {
        0 => disk.killed(),
        1 => disk.power_lost(|_| Fate::Lost),
        2 => disk.power_lost(|_| Fate::Kept),
        _ => disk.power_lost(|point| match (rng.below(3), point) {
            (0, _) => Fate::Kept,
            (1, Point::Sector { .. }) => Fate::Garbled,
            _ => Fate::Lost,
        }),
    }
}

/// Opens an image, checks it, and checks that it stays so when the power goes at once.
fn check(image: &TestDisk, options: &Options, model: &Model, what: &str) -> (PageFile, Vec<Known>) {
    let file = open(image, options, image.operations());
    let found = read_all(&file.reader());
    assert!(
        model.may_be(&found),
        "{what}: {:?} of {:?}",
        found.iter().map(|page| page.0).collect::<Vec<_>>(),
        model.now().iter().map(|page| page.0).collect::<Vec<_>>()
    );
    let last = found.last().map_or(0, |page| page.0 + u64::from(page.1));
    assert!(file.next_number().0 > last, "{what}: no number is given twice");
    let again = open(&image.power_lost(|_| Fate::Lost), options, u64::MAX);
    assert_eq!(read_all(&again.reader()), found, "{what}: what an open hands out is durable");
    let (listed, files) = (file.reader().segments().len(), image.files().len());
    assert!(files <= listed + 3, "{what}: {files} files for {listed} segments: something was left lying");
    (file, found)
}

/// A short life that does everything, told step by step.
fn script(disk: &TestDisk, options: &Options, seed: u64, steps: usize) -> Result<Model, (Model, Error)> {
    let mut model = Model::default();
    let mut file = try_open(disk, options, seeded(seed)).map_err(|error| (model.clone(), error))?;
    let rng = seeded(seed + 1000);
    for _ in 0..steps {
        if let Err(error) = step(&mut file, &rng, &mut model) {
            return Err((model, error));
        }
    }
    Ok(model)
}

/// Dies at every disk operation of some lives; its successor is whole, and so
/// is the successor of one that died at any operation of its own open.
#[test]
fn every_operation_may_be_the_last() {
    let options = options(512, 5);
    for seed in 0..2 {
        let whole = TestDisk::default();
        script(&whole, &options, seed, 40).map_err(|(_, error)| error).unwrap();
        let operations = whole.operations();
        assert!(operations > 100, "a life of {operations} operations is no life");
        for death in 1..=operations {
            let disk = TestDisk::default();
            disk.die_at(death);
            // Nothing is promised where even the end came to nothing.
            let model = match script(&disk, &options, seed, 40) {
                Ok(model) | Err((model, _)) => model,
            };
            let rng = seeded(death);
            for image in 0..4 {
                let left = crashed(&disk, image, &rng);
                let what = format!("seed {seed}, death at {death}, image {image}");
                check(&left.killed(), &options, &model, &what);
                // A second death after a kill, or after a power loss that took all it could.
                for second in 1..=if image == death % 2 { 8 } else { 0 } {
                    let successor = left.killed();
                    successor.die_at(successor.operations() + second);
                    if let Ok(mut file) = try_open(&successor, &options, seeded(5)) {
                        if second < 8 {
                            break;
                        }
                        drop(block_on(file.prepare()));
                    }
                    let lost = crashed(&successor, 1 + rng.below(3), &rng);
                    check(&lost, &options, &model, &format!("{what}, second death at {second}"));
                }
            }
        }
    }
}

/// Many lives one after another, each ended by a crash somewhere.
#[test]
fn lives_that_clean() {
    for seed in 0..150 {
        let rng = seeded(seed);
        let options = options(512, 4 + rng.below(8));
        let mut disk = TestDisk::default();
        let mut model = Model::default();
        for life in 0..6 {
            let (mut file, found) = check(&disk, &options, &model, &format!("seed {seed}, life {life}"));
            model = Model::holding(found);
            disk.die_at(disk.operations() + 1 + rng.below(150));
            let error = loop {
                if let Err(error) = step(&mut file, &rng, &mut model) {
                    break error;
                }
            };
            assert!(!matches!(error, Error::Rot { .. } | Error::NoSuchPage { .. }), "seed {seed}: {error}");
            drop(file);
            disk = crashed(&disk, rng.below(8), &rng);
        }
    }
}

/// Every allocation of some lives finds no space, once or three times in a
/// row: nothing is poisoned, nothing is lost, and it goes on when space returns.
#[test]
fn every_allocation_may_find_no_space() {
    let options = options(512, 5);
    for seed in 0..4 {
        let whole = TestDisk::default();
        script(&whole, &options, seed, 60).map_err(|(_, error)| error).unwrap();
        for first in 1..=whole.allocations() {
            for times in [1, 3] {
                let disk = TestDisk::default();
                let mut model = Model::default();
                let rng = seeded(seed + 1000);
                let mut file = open(&disk, &options, seed);
                disk.full_at(first + 1..first + 1 + times);
                for at in 0..60 {
                    let what = format!("seed {seed}, allocation {first}, step {at}");
                    match step(&mut file, &rng, &mut model) {
                        Ok(()) => {}
                        Err(error) => {
                            assert!(error.is_no_space(), "{what}: {error}");
                            assert_eq!(read_all(&file.reader()), model.now(), "{what}");
                            check(&crashed(&disk, at % 4, &rng), &options, &model, &what);
                        }
                    }
                }
                assert_eq!(read_all(&file.reader()), model.now(), "seed {seed}, allocation {first}");
            }
        }
    }
}
