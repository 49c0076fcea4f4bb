//! The log against a simple model, through kills and power losses.

use super::writer::{Turn, Written};
use super::*;
use crate::env::{Rng, clock::StoppedClock};
use crate::pagefile::test_disk::{Fate, TestDisk};
use bytes::Bytes;
use futures::executor::block_on;
use raft::{GetEntriesContext, Storage, StorageError, eraftpb::EntryType};
use std::collections::BTreeMap;

fn env(disk: &TestDisk, rng: &Rng) -> Env {
    Env { disk: Arc::new(disk.clone()), clock: Arc::new(StoppedClock), rng: rng.clone() }
}

fn seeded(seed: u64) -> Rng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    Rng::from_seed(bytes)
}

fn small() -> Options {
    Options { page_size: 512, segment_size: 512 * 8, cache_bytes: 2000 }
}

fn try_open(
    disk: &TestDisk,
    rng: &Rng,
    options: &Options,
    applied: (u64, u64),
) -> Result<(Log, Writer, Opened), Error> {
    let env = env(disk, rng);
    block_on(Log::open(&env, "/data/log".into(), options.clone(), applied, ConfState::default()))
}

fn open(disk: &TestDisk, options: &Options, applied: (u64, u64)) -> (Log, Writer, Opened) {
    try_open(disk, &seeded(disk.operations()), options, applied).unwrap()
}

/// Turns until nothing is left to do; the highest ticket told.
fn work(writer: &mut Writer) -> Result<Option<u64>, Error> {
    let mut told = None;
    loop {
        match block_on(writer.turn())? {
            Turn::Said(ticket, _) => told = Some(ticket),
            Turn::Kept => {}
            Turn::Lacking => block_on(writer.make_reserve()),
            Turn::Idle | Turn::Over => return Ok(told),
        }
    }
}

/// What the writer's timer does.
fn ring(log: &Log) {
    log.shared.lock().rang = true;
}

fn entry(index: u64, term: u64, length: usize) -> Entry {
    let data: Bytes = (0..length).map(|at| (index * 7 + term * 13 + at as u64) as u8).collect();
    let entry_type =
        if index.is_multiple_of(5) { EntryType::EntryConfChange } else { EntryType::EntryNormal };
    let context = if index.is_multiple_of(3) { Bytes::from_static(b"context") } else { Bytes::new() };
    Entry { entry_type, term, index, data, context, ..Entry::default() }
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit, ..HardState::default() }
}

/// All entries, through fetches where they are on disk only.
fn read(log: &Log, low: u64, high: u64) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut next = low;
    while next < high {
        match log.entries(next, high, 1000, GetEntriesContext::empty(true)) {
            Ok(more) => {
                assert!(!more.is_empty());
                next += more.len() as u64;
                entries.extend(more);
            }
            Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable)) => {
                let wanted = log.take_wanted();
                assert_eq!(wanted.len(), 1);
                block_on(log.fetch(wanted[0].low, wanted[0].high, wanted[0].bytes_max)).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    entries
}

#[test]
fn entries_and_hard_state_come_back() {
    let disk = TestDisk::default();
    let (log, mut writer, opened) = open(&disk, &small(), (0, 0));
    assert_eq!((opened.first_index, opened.last_index), (1, 0));
    let entries: Vec<Entry> = (1..=50).map(|index| entry(index, 1 + index / 20, 60)).collect();
    log.append(&entries[..30], Some(&hard_state(2, 7, 0)), 1);
    log.append(&entries[30..], Some(&hard_state(3, 8, 12)), 2);
    assert_eq!(work(&mut writer).unwrap(), Some(2), "one sync for both");
    log.set_applied(50);
    assert!(log.cached_bytes().0 <= 2000);
    let (log, _writer, opened) = open(&disk.killed(), &small(), (12, 1));
    assert_eq!(opened.hard_state, hard_state(3, 8, 12));
    assert_eq!((opened.first_index, opened.last_index), (1, 50));
    assert_eq!(read(&log, 1, 51), entries);
    assert_eq!(log.initial_state().unwrap().hard_state, hard_state(3, 8, 12));
    let not_waiting = log.entries(13, 51, None, GetEntriesContext::empty(false)).unwrap();
    assert_eq!(not_waiting, entries[12..], "what is not applied is in memory");
}

#[test]
fn a_commit_index_alone_costs_no_sync() {
    let disk = TestDisk::default();
    let (log, mut writer, _) = open(&disk, &small(), (0, 0));
    log.append(&[entry(1, 1, 5)], Some(&hard_state(1, 1, 0)), 1);
    work(&mut writer).unwrap();
    let operations = disk.operations();
    log.append(&[], Some(&hard_state(1, 1, 1)), 2);
    assert_eq!(work(&mut writer).unwrap(), Some(2));
    assert_eq!(disk.operations(), operations);
    log.append(&[], Some(&hard_state(2, 0, 1)), 3);
    assert_eq!(work(&mut writer).unwrap(), Some(3));
    assert!(disk.operations() > operations);
}

#[test]
fn segments_go_when_the_log_is_compacted() {
    let disk = TestDisk::default();
    let (log, mut writer, _) = open(&disk, &small(), (0, 0));
    for index in 1..=100 {
        let state = (index == 1).then(|| hard_state(1, 9, 0));
        log.append(&[entry(index, 1, 100)], state.as_ref(), index);
        work(&mut writer).unwrap();
    }
    log.set_commit(100);
    let before = writer.size_on_disk();
    log.compact(90);
    work(&mut writer).unwrap();
    assert!(writer.size_on_disk() * 3 < before);
    assert!(matches!(
        log.entries(90, 95, None, GetEntriesContext::empty(true)),
        Err(raft::Error::Store(StorageError::Compacted))
    ));
    assert_eq!(log.term(90).unwrap(), 1);
    assert!(matches!(log.term(89), Err(raft::Error::Store(StorageError::Compacted))));
    assert!(matches!(log.term(101), Err(raft::Error::Store(StorageError::Unavailable))));
    let (log, _writer, opened) = open(&disk.killed(), &small(), (95, 1));
    assert!(opened.first_index <= 91 && opened.last_index == 100);
    assert_eq!((opened.hard_state.term, opened.hard_state.vote), (1, 9), "the vote outlives its segment");
    assert_eq!(read(&log, 91, 101).len(), 10);
    // The store is behind what was compacted: I3 was broken by someone.
    let refused = try_open(&disk.killed(), &seeded(3), &small(), (20, 1));
    assert!(matches!(refused, Err(Error::StartsLate { .. })));
}

#[test]
fn a_log_that_ends_below_the_mark_or_disagrees_begins_anew() {
    for (applied, anew) in [((10, 1), false), ((11, 1), true), ((5, 2), true), ((40, 3), true)] {
        let disk = TestDisk::default();
        let (log, mut writer, _) = open(&disk, &small(), (0, 0));
        let entries: Vec<Entry> = (1..=10).map(|index| entry(index, 1, 30)).collect();
        log.append(&entries, Some(&hard_state(2, 4, 3)), 1);
        work(&mut writer).unwrap();
        let (log, mut writer, opened) = open(&disk.killed(), &small(), applied);
        if anew {
            assert_eq!((opened.first_index, opened.last_index), (applied.0 + 1, applied.0));
            assert_eq!(log.term(applied.0).unwrap(), applied.1);
        } else {
            assert_eq!((opened.first_index, opened.last_index), (1, 10));
        }
        let expected = if applied.1 > 2 { hard_state(3, 0, 40) } else { hard_state(2, 4, applied.0) };
        assert_eq!(opened.hard_state, expected);
        let next = opened.last_index + 1;
        log.append(&[entry(next, 4, 5)], None, 1);
        work(&mut writer).unwrap();
    }
}

#[test]
fn a_snapshot_is_offered_only_where_the_log_goes_on() {
    let disk = TestDisk::default();
    let (log, mut writer, _) = open(&disk, &small(), (0, 0));
    let entries: Vec<Entry> = (1..=10).map(|index| entry(index, 1, 30)).collect();
    log.append(&entries, None, 1);
    work(&mut writer).unwrap();
    assert!(log.snapshot(0, 2).is_err());
    log.offer_snapshot(6, 1, ConfState { voters: vec![1, 2], ..ConfState::default() });
    let snapshot = log.snapshot(3, 2).unwrap();
    assert_eq!(snapshot.get_metadata().index, 6);
    assert_eq!(snapshot.get_metadata().get_conf_state().voters, [1, 2]);
    assert!(log.snapshot(7, 2).is_err());
    log.set_commit(9);
    log.compact(8);
    assert!(log.snapshot(3, 2).is_err());
}

#[test]
fn the_writer_ends_with_the_last_handle_and_leaves_a_mark() {
    let disk = TestDisk::default();
    let (log, mut writer, _) = open(&disk, &small(), (0, 0));
    log.append(&[entry(1, 1, 5)], None, 1);
    let clone = log.clone();
    drop(log);
    assert!(matches!(block_on(writer.turn()).unwrap(), Turn::Lacking), "the reserve comes first ...");
    let made = writer.make_reserve();
    assert!(matches!(block_on(writer.turn()).unwrap(), Turn::Said(1, _)), "... and nothing waits for it");
    block_on(made);
    assert!(clone.has_reserve());
    assert!(matches!(block_on(writer.turn()).unwrap(), Turn::Idle));
    clone.append(&[entry(2, 1, 5)], None, 2);
    drop(clone);
    assert!(matches!(block_on(writer.turn()).unwrap(), Turn::Said(2, _)));
    assert!(matches!(block_on(writer.turn()).unwrap(), Turn::Over));
}

#[test]
fn lack_of_space_delays_and_loses_nothing() {
    for reset in [false, true] {
        let disk = TestDisk::default();
        let (log, mut writer, _) = open(&disk, &small(), (0, 0));
        let mut ticket = 0;
        let mut append = |log: &Log, index: u64| {
            ticket += 1;
            log.append(&[entry(index, 1, 300)], None, ticket);
        };
        append(&log, 1);
        assert_eq!(work(&mut writer).unwrap(), Some(1));
        assert!(log.has_reserve() && !log.is_stalled_by_space());
        disk.fill(0);
        let mut index = 1;
        let durable = loop {
            index += 1;
            append(&log, index);
            if work(&mut writer).unwrap().is_none() {
                break index - 1;
            }
        };
        assert!((8..60).contains(&durable), "the reserve took what the first segment did not: {durable}");
        assert!(log.is_stalled_by_space() && !log.has_reserve());
        // Nothing is tried before the timer rings, and then in vain: nothing is told.
        let operations = disk.operations();
        append(&log, index + 1);
        assert_eq!(work(&mut writer).unwrap(), None);
        assert_eq!(disk.operations(), operations);
        ring(&log);
        assert_eq!(work(&mut writer).unwrap(), None);
        assert!(disk.operations() > operations && log.is_stalled_by_space());
        // A kill now finds what was told.
        let opened = open(&disk.killed(), &small(), (0, 0)).2;
        assert_eq!(opened.last_index, durable);
        if reset {
            log.reset(40, 1, &hard_state(1, 0, 40), 100);
            assert_eq!(work(&mut writer).unwrap(), None);
        }
        disk.set_capacity(None);
        ring(&log);
        let told = work(&mut writer).unwrap();
        assert_eq!(told, Some(if reset { 100 } else { index + 1 }));
        assert!(!log.is_stalled_by_space() && log.has_reserve());
        let (again, _writer, opened) = open(
            &disk.power_lost(|_| Fate::Lost),
            &small(),
            (0, 0).max((if reset { 40 } else { 0 }, u64::from(reset))),
        );
        if reset {
            assert_eq!((opened.first_index, opened.last_index), (41, 40));
        } else {
            assert_eq!(
                read(&again, 1, index + 2),
                (1..index + 2).map(|i| entry(i, 1, 300)).collect::<Vec<_>>()
            );
        }
    }
}

/// Compaction makes room where none was left.
#[test]
fn a_full_log_is_compacted_and_goes_on() {
    let disk = TestDisk::default();
    let (log, mut writer, _) = open(&disk, &small(), (0, 0));
    for index in 1..=30 {
        log.append(&[entry(index, 1, 300)], None, index);
        work(&mut writer).unwrap();
    }
    disk.fill(0);
    let mut index = 30;
    while !log.is_stalled_by_space() {
        index += 1;
        log.append(&[entry(index, 1, 300)], None, index);
        work(&mut writer).unwrap();
        if index == 33 {
            // While the reserve stands, there is room for what compaction writes.
            log.set_commit(28);
            log.compact(28);
            assert_eq!(work(&mut writer).unwrap(), None);
        }
    }
    assert!(index > 40, "the log went on in the room that came free: {index}");
}

#[test]
fn damaged_pages_never_panic_the_replay() {
    let good = record::encode(
        (1..=3).map(|index| record::to_stored(&entry(index, 1, 20))).collect(),
        Some(&hard_state(1, 1, 1)),
        None,
    );
    let payload = good[0].payload.clone();
    for at in 0..payload.len() {
        for mask in 1..=255_u8 {
            let mut bad = payload.to_vec();
            bad[at] ^= mask;
            for cut in [bad.len(), at] {
                let mut replay = Replay::new(Tail::new((0, 0), 0, 1 << 20));
                let page = |number, payload| pagefile::Page {
                    number: pagefile::PageNumber(number),
                    span: 0,
                    kind: record::KIND,
                    commit: pagefile::CommitNumber(number),
                    label: pagefile::Label::default(),
                    payload,
                };
                replay.take(&page(1, Bytes::copy_from_slice(&bad[..cut])));
                replay.take(&page(2, payload.clone()));
                drop(replay.finish());
            }
        }
    }
}

/// What the log is, without its limits: every entry ever, by index.
#[derive(Clone, Default, Debug, PartialEq)]
struct Model {
    entries: BTreeMap<u64, Entry>,
    start: (u64, u64),
    term: u64,
    vote: u64,
}

impl Model {
    fn last(&self) -> u64 {
        self.entries.keys().next_back().copied().unwrap_or(0).max(self.start.0)
    }

    fn term_of(&self, index: u64) -> u64 {
        if index == self.start.0 {
            self.start.1
        } else {
            self.entries.get(&index).map_or(0, |entry| entry.term)
        }
    }

    /// Whether a log just opened is this one (it may start earlier: segments go whole).
    fn is(&self, log: &Log, opened: &Opened) -> bool {
        let first = self.start.0 + 1;
        opened.last_index == self.last()
            && opened.first_index <= first
            && (opened.hard_state.term, opened.hard_state.vote) == (self.term, self.vote)
            && log.term(self.start.0).ok() == Some(self.start.1)
            && read(log, first, opened.last_index + 1)
                .iter()
                .eq(self.entries.range(first..).map(|(_, entry)| entry))
    }
}

/// One life after another: any sequence of append, truncate, compact and reset,
/// the writer turning or not, ended by a kill or a power loss at any disk
/// operation. What was told as persisted is there; what is there was appended.
#[test]
fn any_life_is_remembered() {
    for seed in 0..400 {
        let rng = seeded(seed);
        let mut disk = TestDisk::default();
        // Every state since the one that was last told as persisted.
        let mut states = vec![(0, Model::default())];
        let (mut commit, mut mark) = (0_u64, (0_u64, 0_u64));
        for life in 0..6 {
            disk.die_at(disk.operations() + 5 + rng.below(120));
            let options = Options { cache_bytes: rng.below(4000), ..small() };
            if let Ok((log, mut writer, opened)) = try_open(&disk, &rng, &options, mark) {
                let mut model = match states.iter().rev().find(|(_, state)| state.is(&log, &opened)) {
                    Some((_, state)) => state.clone(),
                    None => {
                        // The store's mark was ahead: the log begins anew there.
                        let anew = opened.first_index == mark.0 + 1 && opened.last_index == mark.0;
                        assert!(anew, "seed {seed}, life {life}: no such log: {opened:?}, mark {mark:?}");
                        let durable = &states[0].1;
                        assert!(
                            durable.last() < mark.0 || durable.term_of(mark.0) != mark.1 || states.len() > 1,
                            "seed {seed}, life {life}: a good log was thrown away"
                        );
                        let hard = &opened.hard_state;
                        assert!(hard.term >= durable.term);
                        Model { entries: BTreeMap::new(), start: mark, term: hard.term, vote: hard.vote }
                    }
                };
                commit = commit.max(mark.0);
                states = vec![(0, model.clone())];
                let (mut ticket, mut held) = (0, None);
                loop {
                    let durable_last = states[0].1.last().min(model.last());
                    match rng.below(18) {
                        16 => disk.fill(rng.below(6000)),
                        17 => {
                            disk.set_capacity(None);
                            ring(&log);
                        }
                        0..6 => {
                            let low = commit.max(model.start.0) + 1;
                            let last = model.last();
                            // Mostly at the end, sometimes over a suffix.
                            let first = if rng.below(4) > 0 || low > last {
                                last + 1
                            } else {
                                low + rng.below(last + 1 - low)
                            };
                            if first <= last || rng.below(6) == 0 {
                                (model.term, model.vote) = (model.term + 1, rng.below(3));
                            }
                            model.term = model.term.max(1);
                            model.entries.split_off(&first);
                            let entries: Vec<Entry> = (0..rng.below(4) + 1)
                                .map(|at| entry(first + at, model.term, rng.below(700) as usize))
                                .collect();
                            model.entries.extend(entries.iter().map(|entry| (entry.index, entry.clone())));
                            ticket += 1;
                            log.append(&entries, Some(&hard_state(model.term, model.vote, commit)), ticket);
                            states.push((ticket, model.clone()));
                        }
                        6..8 if held.is_none() && !log.is_stalled_by_space() => held = writer.take_batch(),
                        6..11 => {
                            // A batch that was taken a while ago first; what came since may follow.
                            let told = match held.take() {
                                Some(batch) => {
                                    let ticket = batch.ticket;
                                    block_on(writer.write(batch)).map(|written| {
                                        matches!(written, Written::Durable(_)).then_some(ticket)
                                    })
                                }
                                None => work(&mut writer),
                            };
                            let Ok(told) = told else { break };
                            if let Some(told) = told {
                                let promised = states.iter().rposition(|(ticket, _)| *ticket <= told);
                                states.drain(..promised.unwrap());
                            }
                        }
                        11..13 => {
                            // What all states since the promise agree on may be committed.
                            if states.len() == 1 && durable_last > commit {
                                commit += 1 + rng.below(durable_last - commit);
                                log.set_commit(commit);
                                mark = (commit, model.term_of(commit));
                                log.set_applied(commit);
                            }
                        }
                        13 => {
                            if states.len() == 1 && mark.0 > model.start.0 && mark.0 <= durable_last {
                                let index = model.start.0 + 1 + rng.below(mark.0 - model.start.0);
                                log.compact(index);
                                model.start = (index, model.term_of(index));
                                model.entries = model.entries.split_off(&(index + 1));
                                states = vec![(ticket, model.clone())];
                            }
                        }
                        14 => {
                            if rng.below(4) > 0 {
                                continue;
                            }
                            let index = model.last().max(commit) + 1 + rng.below(20);
                            model.term += 1;
                            model.vote = 0;
                            mark = (index, model.term);
                            commit = index;
                            if rng.below(3) == 0 {
                                // Dies between installing the snapshot and telling the log.
                                break;
                            }
                            model.entries.clear();
                            model.start = mark;
                            ticket += 1;
                            log.reset(mark.0, mark.1, &hard_state(model.term, 0, commit), ticket);
                            states.push((ticket, model.clone()));
                        }
                        _ => {
                            let first = model.start.0 + 1;
                            let high = model.last() + 1;
                            let low = first + rng.below(high + 1 - first);
                            if low >= high {
                                continue;
                            }
                            let expected: Vec<Entry> =
                                model.entries.range(low..).map(|(_, entry)| entry.clone()).collect();
                            assert_eq!(read(&log, low, high), expected, "seed {seed}, life {life}");
                            let (cached, bound) = log.cached_bytes();
                            assert!(cached <= bound);
                        }
                    }
                }
            }
            disk = if rng.below(3) == 0 {
                disk.killed()
            } else {
                let odds = rng.below(9);
                disk.power_lost(|_| match (rng.below(8) < odds, rng.below(4)) {
                    (true, _) => Fate::Kept,
                    (false, 0) => Fate::Garbled,
                    (false, _) => Fate::Lost,
                })
            };
        }
    }
}

/// Rings as soon as it is set.
#[cfg(not(madsim))]
struct EagerClock;

#[cfg(not(madsim))]
impl Clock for EagerClock {
    fn now(&self) -> crate::env::Moment {
        StoppedClock.now()
    }
    fn wall(&self) -> std::time::Duration {
        StoppedClock.wall()
    }
    fn sleep_until(&self, _at: crate::env::Moment) -> futures::future::BoxFuture<'static, ()> {
        Box::pin(crate::env::task::yield_now())
    }
}

/// The loop itself, with appends that arrive while it works, and a disk that
/// is full for a while.
#[cfg(not(madsim))]
#[tokio::test]
async fn the_running_writer_tells_every_ticket() {
    let disk = TestDisk::default();
    let env = Env { clock: Arc::new(EagerClock), ..env(&disk, &seeded(1)) };
    let opening = Log::open(&env, "/data/log".into(), small(), (0, 0), ConfState::default());
    let (log, writer, _) = opening.await.unwrap();
    let (told, mut tickets) = tokio::sync::mpsc::channel(100);
    let said = move |word| match word {
        Persisted::Upto(ticket) => told.try_send(ticket).unwrap(),
        Persisted::Failed(error) => panic!("{error}"),
    };
    let running = crate::env::task::spawn(writer.run(said, |seconds| assert!(seconds >= 0.0)));
    while !log.has_reserve() {
        crate::env::task::yield_now().await;
    }
    for ticket in 1..=100 {
        log.append(&[entry(ticket, 1, 300)], None, ticket);
        if ticket == 50 {
            disk.fill(0);
        }
        if ticket % 7 == 0 && ticket < 50 {
            while tickets.recv().await.unwrap() < ticket {}
        }
    }
    while !log.is_stalled_by_space() {
        crate::env::task::yield_now().await;
    }
    disk.set_capacity(None);
    while tickets.recv().await.unwrap() < 100 {}
    assert!(!log.is_stalled_by_space());
    drop(log);
    running.await.unwrap();
    assert_eq!(open(&disk.power_lost(|_| Fate::Lost), &small(), (0, 0)).2.last_index, 100);
}
