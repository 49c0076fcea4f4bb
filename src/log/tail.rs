//! The raft log as memory knows it: where it starts, every term, and the
//! entries that are not only on disk.
//!
//! Owns the recent entries and the rule of what may leave memory: an entry goes
//! once it is durable *and* applied (raft reads unapplied entries without
//! waiting) and the bytes of such entries exceed the bound. Promises that
//! entries follow each other and that terms never fall. Never does I/O.

use raft::eraftpb::Entry;
use std::collections::VecDeque;

pub(super) struct Tail {
    /// The entry before the first one: (index, term).
    start: (u64, u64),
    last: u64,
    /// (first index, term) of each run of entries with one term, from `start.0 + 1` to `last`.
    terms: VecDeque<(u64, u64)>,
    /// The last entries, up to `last`.
    entries: VecDeque<Entry>,
    /// Highest index that is durable as it stands here.
    persisted: u64,
    applied: u64,
    /// Entries up to here may leave memory; those in memory weigh `settled_bytes`.
    settled: u64,
    settled_bytes: u64,
    bytes: u64,
    settled_bytes_max: u64,
}

/// Bytes that an entry takes in memory.
pub(super) fn weight(entry: &Entry) -> u64 {
    (size_of::<Entry>() + entry.data.len() + entry.context.len()) as u64
}

impl Tail {
    pub(super) fn new(start: (u64, u64), applied: u64, settled_bytes_max: u64) -> Tail {
        Tail {
            start,
            last: start.0,
            terms: VecDeque::new(),
            entries: VecDeque::new(),
            persisted: start.0,
            applied,
            settled: start.0,
            settled_bytes: 0,
            bytes: 0,
            settled_bytes_max,
        }
    }

    /// Index and term of the entry before the first one.
    pub(super) fn start(&self) -> (u64, u64) {
        self.start
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    /// First index in memory; `last() + 1` when there is none.
    pub(super) fn first_in_memory(&self) -> u64 {
        self.last + 1 - self.entries.len() as u64
    }

    /// Bytes of entries that may leave memory, and their bound.
    pub(super) fn settled_bytes(&self) -> (u64, u64) {
        (self.settled_bytes, self.settled_bytes_max)
    }

    /// Bytes of all entries in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Term of the entry at `index`; `None` outside `start().0..=last()`.
    pub(super) fn term(&self, index: u64) -> Option<u64> {
        if index == self.start.0 {
            return Some(self.start.1);
        }
        if index < self.start.0 || index > self.last {
            return None;
        }
        let run = self.terms.partition_point(|(first, _)| *first <= index);
        Some(self.terms[run - 1].1)
    }

    /// Adds entries; those from the first one's index on are replaced. Returns
    /// whether there were any.
    pub(super) fn append(&mut self, entries: &[Entry]) -> bool {
        let Some(first) = entries.first() else { return false };
        assert!(
            first.index > self.start.0,
            "entry {} lies before the log's start {}",
            first.index,
            self.start.0
        );
        assert!(first.index <= self.last + 1, "entry {} leaves a gap after {}", first.index, self.last);
        let replaced = first.index <= self.last;
        self.truncate(first.index);
        for entry in entries {
            assert_eq!(entry.index, self.last + 1, "entries follow each other");
            let before = self.term(self.last).expect("the last term is known");
            assert!(
                entry.term >= before,
                "the term falls from {before} to {} at {}",
                entry.term,
                entry.index
            );
            if entry.term != before || self.last == self.start.0 {
                self.terms.push_back((entry.index, entry.term));
            }
            self.last = entry.index;
            self.bytes += weight(entry);
            self.entries.push_back(entry.clone());
        }
        replaced
    }

    /// Removes the entries from `from` on.
    fn truncate(&mut self, from: u64) {
        while self.last >= from {
            if let Some(entry) = self.entries.pop_back() {
                self.bytes -= weight(&entry);
                if entry.index <= self.settled {
                    self.settled_bytes -= weight(&entry);
                }
                self.last -= 1;
            } else {
                // The rest is on disk only.
                self.last = from - 1;
            }
        }
        while self.terms.back().is_some_and(|(first, _)| *first > self.last) {
            self.terms.pop_back();
        }
        self.persisted = self.persisted.min(self.last);
        self.settled = self.settled.min(self.last);
    }

    /// Forgets the entries up to and with `index`.
    pub(super) fn compact(&mut self, index: u64) {
        assert!(index <= self.persisted, "I3: {index} is not durable, {} is", self.persisted);
        if index <= self.start.0 {
            return;
        }
        self.start = (index, self.term(index).expect("the index lies in the log"));
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            self.pop_front();
        }
        while self.terms.get(1).is_some_and(|(first, _)| *first <= index + 1) {
            self.terms.pop_front();
        }
        if self.last == index {
            self.terms.clear();
        } else {
            self.terms[0].0 = index + 1;
        }
        self.settled = self.settled.max(index);
        self.set_applied(index);
    }

    /// The entry before the first one is (`index`, `term`): what lies up to it
    /// is forgotten, and the term of the start is known from now on.
    pub(super) fn start_at(&mut self, index: u64, term: u64) {
        self.compact(index);
        assert_eq!(self.start.0, index, "the start does not fall");
        self.start.1 = term;
    }

    /// No entries any more; the next one follows (`index`, `term`).
    pub(super) fn reset(&mut self, index: u64, term: u64) {
        *self = Tail::new((index, term), index, self.settled_bytes_max);
    }

    /// Entries up to `index` are durable as they stand here.
    pub(super) fn set_persisted(&mut self, index: u64) {
        assert!(index <= self.last, "only what is in the log can be durable");
        self.persisted = index.max(self.start.0);
        self.settle();
    }

    /// Raft will not read entries up to `index` without being able to wait.
    pub(super) fn set_applied(&mut self, index: u64) {
        self.applied = self.applied.max(index);
        self.settle();
    }

    fn settle(&mut self) {
        while self.settled < self.persisted.min(self.applied) {
            self.settled += 1;
            let first = self.first_in_memory();
            // What lies before `first` has left memory.
            if let Some(at) = self.settled.checked_sub(first) {
                self.settled_bytes += weight(&self.entries[at as usize]);
            }
        }
        while self.settled_bytes > self.settled_bytes_max {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        let entry = self.entries.pop_front().expect("bytes are counted for entries that are there");
        self.bytes -= weight(&entry);
        if entry.index <= self.settled {
            self.settled_bytes -= weight(&entry);
        }
    }

    /// Entries in memory from `low` up to before `high`, at most `bytes_max`
    /// of data, one at least; `None` when `low` is on disk only.
    pub(super) fn slice(&self, low: u64, high: u64, bytes_max: u64) -> Option<Vec<Entry>> {
        let first = self.first_in_memory();
        if low < first {
            return None;
        }
        let entries = self.entries.range((low - first) as usize..(high - first) as usize);
        Some(within(entries, bytes_max).cloned().collect())
    }

    /// Every entry in memory from `low` on.
    pub(super) fn from(&self, low: u64) -> impl Iterator<Item = &Entry> {
        let first = self.first_in_memory();
        assert!(low >= first, "what is not durable yet is in memory");
        self.entries.range((low - first) as usize..)
    }
}

/// As many entries as weigh at most `bytes_max` in a message, one at least.
pub(super) fn within<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    bytes_max: u64,
) -> impl Iterator<Item = &'a Entry> {
    /// Field tags, lengths, index, term.
    const FRAME: u64 = 24;
    let mut bytes = 0_u64;
    let mut first = true;
    entries.take_while(move |entry| {
        bytes = bytes.saturating_add(FRAME + (entry.data.len() + entry.context.len()) as u64);
        std::mem::take(&mut first) || bytes <= bytes_max
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: vec![index as u8; 10].into(), ..Entry::default() }
    }

    fn tail(bytes_max: u64) -> Tail {
        let mut tail = Tail::new((0, 0), 0, bytes_max);
        tail.append(&[entry(1, 1), entry(2, 1), entry(3, 2), entry(4, 2), entry(5, 4)]);
        tail
    }

    #[test]
    fn terms_are_known_for_every_index() {
        let mut tail = tail(0);
        let terms = |tail: &Tail| (0..7).map(|index| tail.term(index)).collect::<Vec<_>>();
        let all = [Some(0), Some(1), Some(1), Some(2), Some(2), Some(4), None];
        assert_eq!(terms(&tail), all);
        tail.set_persisted(5);
        tail.compact(3);
        assert_eq!(terms(&tail), [None, None, None, Some(2), Some(2), Some(4), None]);
        assert!(tail.append(&[entry(5, 5), entry(6, 5)]));
        assert_eq!(terms(&tail), [None, None, None, Some(2), Some(2), Some(5), Some(5)]);
        tail.set_persisted(6);
        tail.compact(6);
        assert_eq!(terms(&tail), [None, None, None, None, None, None, Some(5)]);
        tail.append(&[entry(7, 5)]);
        assert_eq!(tail.term(7), Some(5));
    }

    #[test]
    fn only_what_is_durable_and_applied_leaves_memory() {
        let one = weight(&entry(1, 1));
        let mut tail = tail(2 * one);
        let bytes = |tail: &Tail| (tail.first_in_memory(), tail.settled_bytes().0 / one, tail.bytes() / one);
        assert_eq!(bytes(&tail), (1, 0, 5));
        tail.set_persisted(5);
        assert_eq!(bytes(&tail), (1, 0, 5));
        tail.set_applied(4);
        assert_eq!(bytes(&tail), (3, 2, 3));
        assert!(tail.slice(2, 4, u64::MAX).is_none());
        assert_eq!(tail.slice(3, 6, u64::MAX).unwrap().len(), 3);
        assert_eq!(tail.slice(3, 6, 0).unwrap().len(), 1);
        // A suffix that reaches below memory is replaced.
        assert!(tail.append(&[entry(2, 6)]));
        assert_eq!((bytes(&tail), tail.persisted), ((2, 0, 1), 1));
        tail.set_persisted(2);
        assert_eq!(bytes(&tail), (2, 1, 1));
    }

    #[test]
    #[should_panic(expected = "leaves a gap")]
    fn a_gap_stops_the_member() {
        tail(0).append(&[entry(7, 4)]);
    }

    #[test]
    #[should_panic(expected = "the term falls")]
    fn a_falling_term_stops_the_member() {
        tail(0).append(&[entry(6, 3)]);
    }
}
