//! Which page holds which entries.
//!
//! Owns the lookup from index to page: one element for each page, in order of
//! index, without overlap. It describes the disk, which may lag what memory
//! holds; a reader compares terms. Never does I/O.

use crate::pagefile::PageNumber;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Places(VecDeque<Run>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    /// Last index that counts: what follows in the page was replaced.
    pub last: u64,
    pub page: PageNumber,
}

impl Places {
    /// `page` holds entries `first..=last`; they replace everything from `first` on.
    pub(super) fn put(&mut self, first: u64, last: u64, page: PageNumber) {
        assert!(first <= last, "a page holds one entry at least");
        while self.0.back().is_some_and(|run| run.first >= first) {
            self.0.pop_back();
        }
        if let Some(run) = self.0.back_mut() {
            assert!(run.last + 1 >= first, "pages leave no gap: {} to {first}", run.last);
            assert!(run.page < page, "later pages are written later");
            run.last = first - 1;
        }
        self.0.push_back(Run { first, last, page });
    }

    /// Entries up to and with `index` are not looked up any more.
    pub(super) fn compact(&mut self, index: u64) {
        while self.0.front().is_some_and(|run| run.last <= index) {
            self.0.pop_front();
        }
    }

    /// The run that holds `index`.
    pub(super) fn find(&self, index: u64) -> Option<Run> {
        let behind = self.0.partition_point(|run| run.first <= index);
        let run = *self.0.get(behind.checked_sub(1)?)?;
        (index <= run.last).then_some(run)
    }

    /// Up to `count` runs from the one that holds `index` on, those below `high` only.
    pub(super) fn from(&self, index: u64, high: u64, count: usize) -> Vec<Run> {
        let Some(at) = self.0.partition_point(|run| run.first <= index).checked_sub(1) else {
            return Vec::new();
        };
        let runs = self.0.range(at..).skip_while(|run| run.last < index);
        runs.take_while(|run| run.first < high).take(count).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_pages_win_and_early_ones_go() {
        let mut places = Places::default();
        for (first, last, page) in [(1, 4, 1), (5, 5, 2), (6, 9, 4), (8, 8, 5)] {
            places.put(first, last, PageNumber(page));
        }
        let page = |places: &Places, index| places.find(index).map(|run| run.page.0);
        let pages = |places: &Places| (0..10).map(|index| page(places, index)).collect::<Vec<_>>();
        let (one, two, four, five) = (Some(1), Some(2), Some(4), Some(5));
        assert_eq!(pages(&places), [None, one, one, one, one, two, four, four, five, None]);
        assert_eq!(places.from(5, 8, 9).len(), 2);
        places.compact(6);
        assert_eq!(pages(&places), [None, None, None, None, None, None, four, four, five, None]);
        places.put(7, 20, PageNumber(6));
        assert_eq!(places.find(7).unwrap().page.0, 6);
        places.compact(100);
        assert_eq!(places.find(7), None);
    }
}
