//! The newest records: the page being filled and full ones not yet taken over
//! by the store; and how many records of each page the index still points to.
//!
//! **Promises**: page numbers ascend; a record is readable here until its page
//! is taken.

use super::{
    page::{OpenPage, PAGE_BYTES, Place, key_value_at, record_at, word_of},
    record::Fields,
};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
};

#[derive(Debug)]
pub(crate) struct Tail {
    open: OpenPage,
    /// The number that the open page will have.
    number: PageNumber,
    sealed: VecDeque<(PageNumber, Bytes)>,
    /// Records that the index points to, by page; pages without any are left out.
    counts: BTreeMap<PageNumber, u32>,
    /// The same for the highest page that was counted, which is not in `counts`: most counting is there.
    newest: (PageNumber, u32),
    /// Counted in no order while a checkpoint is loaded, and not in `counts` yet.
    loose: Vec<PageNumber>,
}

/// Loose counts are sorted in when there are so many.
const LOOSE_MAX: usize = 1 << 16;

impl Tail {
    pub fn new() -> Tail {
        Tail {
            open: OpenPage::new(),
            number: PageNumber(1),
            sealed: VecDeque::new(),
            counts: BTreeMap::new(),
            newest: (PageNumber(0), 0),
            loose: Vec::new(),
        }
    }

    /// Writes a record that the index will point to.
    pub fn append(&mut self, main: u64, sub: u64, tombstone: bool, fields: &Fields<'_>) -> Place {
        if !self.open.has_room(fields) {
            self.seal();
        }
        let offset = self.open.push(main, sub, tombstone, fields);
        self.count(self.number);
        Place::new(self.number, offset, tombstone)
    }

    pub fn seal(&mut self) {
        if !self.open.is_empty() {
            self.sealed.push_back((self.number, self.open.take()));
            self.number.0 += 1;
        }
    }

    pub fn take_sealed(&mut self) -> Vec<(PageNumber, Bytes)> {
        self.sealed.drain(..).collect()
    }

    pub fn set_next(&mut self, next: PageNumber) {
        assert!(self.open.is_empty(), "the open page's records have their number already");
        assert!(next.0 > 0 && self.sealed.back().is_none_or(|(last, _)| *last < next), "page numbers ascend");
        assert!(self.newest.1 == 0 || self.newest.0 < next, "page numbers ascend");
        self.end_loose();
        self.number = next;
    }

    /// Bytes of records that were not taken yet.
    pub fn untaken_bytes(&self) -> u64 {
        let sealed: usize = self.sealed.iter().map(|(_, payload)| payload.len()).sum();
        (sealed + self.open.bytes().len()) as u64
    }

    /// The `KeyValue` bytes at a place, when it lies here.
    pub fn stored(&self, place: Place) -> Option<Bytes> {
        if place.page() == self.number {
            let (record, _) =
                record_at(self.open.bytes(), place.offset()).expect("the index points at whole records");
            return Some(Bytes::copy_from_slice(record.key_value));
        }
        let at = self.sealed.binary_search_by_key(&place.page(), |(number, _)| *number).ok()?;
        Some(key_value_at(&self.sealed[at].1, place))
    }

    /// The page being filled and a copy of what it holds so far, as a whole payload.
    pub fn open_page(&self) -> (PageNumber, Bytes) {
        (self.number, self.open.copy())
    }

    /// Whether a page is still here.
    pub fn holds(&self, page: PageNumber) -> bool {
        page == self.number || self.sealed.binary_search_by_key(&page, |(number, _)| *number).is_ok()
    }

    /// The payload of a page that is still here; a copy of what it holds so far for the open one.
    pub fn page(&self, page: PageNumber) -> Option<Bytes> {
        if page == self.number {
            return (!self.open.is_empty()).then(|| self.open.copy());
        }
        let at = self.sealed.binary_search_by_key(&page, |(number, _)| *number).ok()?;
        Some(self.sealed[at].1.clone())
    }

    /// Below every place that will be given out from now on, as a number.
    pub fn next_word(&self) -> u64 {
        // Behind a record that is larger than a page nothing goes in, and its length is no offset.
        match self.open.bytes().len() {
            length @ 0..=PAGE_BYTES => word_of(self.number) | (length as u64) << 1,
            _ => word_of(PageNumber(self.number.0 + 1)),
        }
    }

    /// One more record of `page` in the index.
    pub fn count(&mut self, page: PageNumber) {
        self.add(page, 1);
    }

    fn add(&mut self, page: PageNumber, records: u32) {
        let (newest, count) = self.newest;
        if page < newest {
            *self.counts.entry(page).or_insert(0) += records;
            return;
        }
        if page > newest {
            if count > 0 {
                self.counts.insert(newest, count);
            }
            self.newest = (page, 0);
        }
        self.newest.1 += records;
    }

    /// The same for records that come in the order of keys; [`Tail::settle`] has to follow.
    pub fn count_loose(&mut self, page: PageNumber) {
        self.loose.push(page);
        if self.loose.len() >= LOOSE_MAX {
            self.settle();
        }
    }

    pub fn settle(&mut self) {
        let mut loose = std::mem::take(&mut self.loose);
        loose.sort_unstable();
        for run in loose.chunk_by(|one, other| one == other) {
            self.add(run[0], run.len() as u32);
        }
        loose.clear();
        self.loose = loose;
    }

    /// [`Tail::settle`] for the last time: nothing is counted loosely any more.
    pub fn end_loose(&mut self) {
        self.settle();
        self.loose = Vec::new();
    }

    /// The index has dropped a record.
    pub fn discount(&mut self, place: Place) {
        assert!(self.loose.is_empty(), "counts are settled before they are read");
        let page = place.page();
        if page == self.newest.0 {
            assert!(self.newest.1 > 0, "the record was counted");
            self.newest.1 -= 1;
            return;
        }
        let count = self.counts.get_mut(&page).expect("the record was counted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&page);
        }
    }

    /// Records in pages of these numbers that the index points to.
    pub fn live_records(&self, pages: RangeInclusive<PageNumber>) -> u32 {
        assert!(self.loose.is_empty(), "counts are settled before they are read");
        let newest = if pages.contains(&self.newest.0) { self.newest.1 } else { 0 };
        self.counts.range(pages).map(|(_, count)| count).sum::<u32>() + newest
    }

    /// The newest page when the index points to it.
    fn newest_live(&self) -> Option<PageNumber> {
        (self.newest.1 > 0).then_some(self.newest.0)
    }

    /// The oldest page that the index points to; the open one when there is none.
    pub fn oldest_live(&self) -> PageNumber {
        assert!(self.loose.is_empty(), "counts are settled before they are read");
        let older = self.counts.first_key_value().map(|(page, _)| *page);
        older.or(self.newest_live()).unwrap_or(self.number)
    }

    /// How many pages the index points to.
    pub fn live_page_count(&self) -> u64 {
        self.counts.len() as u64 + u64::from(self.newest.1 > 0)
    }

    /// Up to `pages_max` pages that the index points to, ascending, from `from`.
    pub fn live_pages(&self, from: PageNumber, pages_max: usize) -> Vec<PageNumber> {
        assert!(self.loose.is_empty(), "counts are settled before they are read");
        let older = self.counts.range(from..).map(|(page, _)| *page);
        older.chain(self.newest_live().filter(|page| *page >= from)).take(pages_max).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::page::PAGE_BYTES;

    #[test]
    fn pages_fill_in_turn_and_stay_readable_until_taken() {
        let mut tail = Tail::new();
        tail.set_next(PageNumber(5));
        let value = vec![7; PAGE_BYTES / 3];
        let fields = Fields { key: b"k", value: &value, ..Fields::default() };
        let places: Vec<_> = (0..5).map(|sub| tail.append(2, sub, false, &fields)).collect();
        assert_eq!(places.iter().map(|place| place.page().0).collect::<Vec<_>>(), [5, 5, 6, 6, 7]);
        let mut expected = Vec::new();
        fields.encode(&mut expected);
        assert!(places.iter().all(|place| tail.stored(*place).unwrap() == expected));
        let taken: Vec<_> = tail.take_sealed().into_iter().map(|(number, _)| number.0).collect();
        assert_eq!(taken, [5, 6]);
        assert_eq!(tail.stored(places[0]), None);
        assert!(tail.stored(places[4]).is_some());
        tail.seal();
        tail.seal();
        assert_eq!(tail.take_sealed().len(), 1);
        tail.set_next(PageNumber(9));
        assert_eq!(tail.append(3, 0, true, &Fields::tombstone(b"k")).page(), PageNumber(9));
    }

    #[test]
    fn the_oldest_live_page_follows_what_the_index_drops() {
        let mut tail = Tail::new();
        let places: Vec<_> = (0..3)
            .map(|sub| {
                let place = tail.append(2, sub, true, &Fields::tombstone(b"k"));
                tail.seal();
                place
            })
            .collect();
        tail.discount(places[1]);
        assert_eq!(tail.oldest_live(), PageNumber(1));
        assert_eq!(tail.live_pages(PageNumber(1), 9), [PageNumber(1), PageNumber(3)]);
        assert_eq!(tail.live_records(PageNumber(1)..=PageNumber(2)), 1);
        assert_eq!(tail.live_records(PageNumber(2)..=PageNumber(9)), 1);
        tail.discount(places[0]);
        assert_eq!(tail.oldest_live(), PageNumber(3));
        tail.discount(places[2]);
        assert_eq!(tail.oldest_live(), PageNumber(4));
    }

    #[test]
    fn loose_counts_are_the_same_counts() {
        let (mut tail, mut loose) = (Tail::new(), Tail::new());
        let mut pages: Vec<_> = (0..500_u64).map(|number| PageNumber(1 + number * 7919 % 83)).collect();
        pages.iter().for_each(|page| loose.count_loose(*page));
        loose.end_loose();
        pages.sort_unstable();
        pages.iter().for_each(|page| tail.count(*page));
        assert_eq!((&tail.counts, tail.newest), (&loose.counts, loose.newest));
    }
}
