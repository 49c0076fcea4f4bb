//! Merged pages: what the cleaner leaves of a run of pages.
//!
//! A merged page stands for every page number from its own to its own plus
//! its span. Its payload, layout 2; numbers are little-endian:
//!
//! | offset | size | content |
//! |---|---|---|
//! | 0 | 24 | the head, as in layout 1 (`page.rs`) but for the 2 |
//! | 24 | 8 | number of this page |
//! | 32 | 6 each | for each record: page number less this page's (2), offset in that page as first written (2), offset in this payload (2) |
//! | | | the records, as in layout 1, without gaps, to the end of the payload |
//!
//! Entries ascend, so that a place is found by halving. A merged page can be
//! merged again: nothing in it depends on how often its records moved. What
//! survives of one page stays in one page, even where the table beside it makes
//! the payload larger than a full page; a page that survives whole is better
//! copied as it is.

use super::{
    page::{HEAD_BYTES, Head, LAYOUT_MERGED, PAGE_BYTES, Place, RECORD_HEAD_BYTES, put_record_head, word},
    record::{Malformed, Record},
};
use crate::pagefile::PageNumber;
use bytes::Bytes;

const TABLE_START: usize = HEAD_BYTES + 8;
const ENTRY_BYTES: usize = 6;

/// A merged page's table.
pub(super) struct Table<'a> {
    pub number: PageNumber,
    entries: &'a [u8],
}

fn quarter(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl<'a> Table<'a> {
    pub fn of(payload: &'a [u8], head: Head) -> Result<Table<'a>, Malformed> {
        let bytes = (head.records as usize).checked_mul(ENTRY_BYTES);
        let end = bytes.and_then(|bytes| bytes.checked_add(TABLE_START));
        let entries = end.and_then(|end| payload.get(TABLE_START..end));
        let entries = entries.ok_or(Malformed("merged page is shorter than its table"))?;
        Ok(Table { number: PageNumber(word(payload, HEAD_BYTES)), entries })
    }

    pub fn records_start(&self) -> usize {
        TABLE_START + self.entries.len()
    }

    /// Page delta and offset in that page; offset in this payload.
    fn read(&self, position: usize) -> ((u16, u16), usize) {
        let at = position * ENTRY_BYTES;
        let offset = quarter(self.entries, at + 4) as usize;
        ((quarter(self.entries, at), quarter(self.entries, at + 2)), offset)
    }

    fn len(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// Page and offset as first written of the record at `position`, which stands at `offset`.
    pub fn entry(&self, position: usize, offset: usize) -> Result<(PageNumber, usize), Malformed> {
        if position >= self.len() {
            return Err(Malformed("merged page has more records than its table"));
        }
        let ((delta, first), stands) = self.read(position);
        if stands != offset {
            return Err(Malformed("merged page's table contradicts its records"));
        }
        let number =
            self.number.0.checked_add(u64::from(delta)).ok_or(Malformed("record stands at no place"))?;
        Ok((PageNumber(number), usize::from(first)))
    }

    /// Where the record of a place stands in this payload.
    pub fn find(&self, place: Place) -> Option<usize> {
        let delta = place.page().0.checked_sub(self.number.0)?;
        let wanted = (u16::try_from(delta).ok()?, u16::try_from(place.offset()).ok()?);
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            let (entry, offset) = self.read(middle);
            match entry.cmp(&wanted) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(offset),
            }
        }
        None
    }
}

/// A merged page and what its page header says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedPage {
    /// Of the first record's page.
    pub number: PageNumber,
    /// The last record's page is this much further.
    pub span: u16,
    /// The label: main revision of the first record, and how many there are.
    pub first: u64,
    pub weight: u32,
    pub payload: Bytes,
}

/// A merged page that is being filled.
#[derive(Debug, Default)]
pub struct Merge {
    /// Main revision of the first record; place and revisions of the last one.
    first: u64,
    last: Option<(Place, u64, u64)>,
    number: PageNumber,
    table: Vec<u8>,
    /// Records; offsets in the table are from their start until the page is finished.
    records: Vec<u8>,
}

impl Merge {
    pub fn new() -> Merge {
        Merge::default()
    }

    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Whether all that survives of one more page number (or of a whole page, as written or merged) still
    /// goes in. It stays together, so that no two merged pages stand for one page number; an empty
    /// page takes any.
    pub fn has_room(&self, survivors: &[(Place, Record<'_>)]) -> bool {
        let Some((last, _)) = survivors.last() else { return true };
        let each =
            |(_, record): &(Place, Record<'_>)| ENTRY_BYTES + RECORD_HEAD_BYTES + record.key_value.len();
        let bytes = TABLE_START + self.table.len() + self.records.len();
        let more: usize = survivors.iter().map(each).sum();
        let delta = last.page().0.wrapping_sub(self.number.0);
        self.is_empty() || (bytes + more <= PAGE_BYTES && delta <= u64::from(u16::MAX))
    }

    /// Whether survivors of one page fill no more than a page: with many small ones the table may take
    /// more than what was dropped gave.
    pub fn fits(survivors: &[(Place, Record<'_>)]) -> bool {
        let each =
            |(_, record): &(Place, Record<'_>)| ENTRY_BYTES + RECORD_HEAD_BYTES + record.key_value.len();
        survivors.len() == 1 || TABLE_START + survivors.iter().map(each).sum::<usize>() <= PAGE_BYTES
    }

    /// Adds all that survives of a page; it follows what is there.
    pub fn push(&mut self, survivors: &[(Place, Record<'_>)]) {
        assert!(self.has_room(survivors), "the page is finished before it overflows");
        if let (Some((last, ..)), Some((first, _))) = (&self.last, survivors.first()) {
            assert!(last.page() < first.page(), "a page's survivors stay together");
        }
        for (place, record) in survivors {
            self.push_one(*place, record);
        }
    }

    fn push_one(&mut self, place: Place, record: &Record<'_>) {
        assert_eq!(place.tombstone(), record.tombstone, "a place says what stands there");
        match self.last {
            None => (self.number, self.first) = (place.page(), record.main),
            Some((last, main, sub)) => {
                assert!(last < place && (main, sub) < (record.main, record.sub), "records ascend");
            }
        }
        let delta = u16::try_from(place.page().0 - self.number.0).expect("a page spans less than 2^16");
        let offset = u16::try_from(place.offset()).expect("a place's offset has 16 bits");
        let stands = u16::try_from(self.records.len()).expect("a record begins within a page");
        self.table.extend([delta, offset, stands].into_iter().flat_map(u16::to_le_bytes));
        put_record_head(&mut self.records, record.key_value.len(), record.tombstone, record.main, record.sub);
        self.records.extend_from_slice(record.key_value);
        self.last = Some((place, record.main, record.sub));
    }

    /// The finished page; it holds a record.
    pub fn finish(mut self) -> MergedPage {
        let (last, last_main, _) = self.last.expect("an empty page is not finished");
        let weight = (self.table.len() / ENTRY_BYTES) as u32;
        let start = TABLE_START + self.table.len();
        for entry in self.table.chunks_exact_mut(ENTRY_BYTES) {
            let stands = u16::try_from(start + usize::from(quarter(entry, 4))).expect("within a page");
            entry[4..].copy_from_slice(&stands.to_le_bytes());
        }
        let mut payload = Vec::with_capacity(start + self.records.len());
        payload.resize(HEAD_BYTES, 0);
        payload.extend_from_slice(&self.number.0.to_le_bytes());
        payload.append(&mut self.table);
        payload.append(&mut self.records);
        Head { records: weight, first: self.first, last: last_main }.write(LAYOUT_MERGED, &mut payload);
        let span = u16::try_from(last.page().0 - self.number.0).expect("a page spans less than 2^16");
        MergedPage { number: self.number, span, first: self.first, weight, payload: payload.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::{
        page::{key_value_at, records},
        record::Fields,
    };

    fn record(main: u64, tombstone: bool, key_value: &[u8]) -> Record<'_> {
        Record { main, sub: 0, tombstone, key_value }
    }

    fn push(merge: &mut Merge, page: u64, records: &[(usize, u64, bool, &[u8])]) {
        let survivors: Vec<_> = records
            .iter()
            .map(|(offset, main, tombstone, bytes)| {
                let place = Place::new(PageNumber(page), *offset, *tombstone);
                (place, record(*main, *tombstone, bytes))
            })
            .collect();
        merge.push(&survivors);
    }

    fn sample() -> MergedPage {
        let mut merge = Merge::new();
        push(&mut merge, 5, &[(24, 9, false, b"one"), (300, 10, true, b"two")]);
        push(&mut merge, 7, &[]);
        push(&mut merge, 9, &[(24, 12, false, b"three")]);
        merge.finish()
    }

    #[test]
    fn records_keep_their_places() {
        let page = sample();
        assert_eq!((page.number, page.span, page.first, page.weight), (PageNumber(5), 4, 9, 3));
        let read: Vec<_> = records(page.number, &page.payload).map(Result::unwrap).collect();
        let shown: Vec<_> = read.iter().map(|(place, record)| (format!("{place:?}"), record.main)).collect();
        assert_eq!(shown, [("5+24".to_owned(), 9), ("5+300t".to_owned(), 10), ("9+24".to_owned(), 12)]);
        for (place, record) in &read {
            assert_eq!(&*key_value_at(&page.payload, *place), record.key_value);
        }
        // Merged again, on its own, it is the same page.
        let mut again = Merge::new();
        again.push(&read);
        assert_eq!(again.finish(), page);
    }

    #[test]
    fn the_layout_is_byte_for_byte_what_the_head_of_this_file_says() {
        let mut merge = Merge::new();
        push(&mut merge, 0x0102, &[(26, 3, true, b"k")]);
        push(&mut merge, 0x0104, &[(24, 4, false, b"")]);
        let expected = [
            &[2, 0, 0, 0, 2, 0, 0, 0][..],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 0, 0, 0, 0, 0],
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[0, 0, 26, 0, 44, 0],
            &[2, 0, 24, 0, 66, 0],
            &[1, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'k'],
            &[0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(merge.finish().payload, expected.concat());
    }

    #[test]
    fn a_page_takes_what_fits_and_what_its_span_reaches() {
        let large = vec![7; PAGE_BYTES];
        let mut merge = Merge::new();
        let at = |page: u64| Place::new(PageNumber(page), 24, false);
        assert!(merge.has_room(&[(at(1), record(2, false, &large))]));
        push(&mut merge, 1, &[(24, 2, false, b"small")]);
        assert!(!merge.has_room(&[(at(2), record(3, false, &large))]));
        assert!(merge.has_room(&[(at(1 + 0xffff), record(3, false, b""))]));
        assert!(!merge.has_room(&[(at(2 + 0xffff), record(3, false, b""))]));
        assert!(merge.has_room(&[]));
    }

    #[test]
    fn a_full_page_of_small_records_goes_in_whole() {
        let mut merge = Merge::new();
        let many: Vec<_> =
            (0..550).map(|number| (24 + 29 * number, 2 + number as u64, true, &b"12345678"[..])).collect();
        push(&mut merge, 1, &many);
        let page = merge.finish();
        assert_eq!(page.weight, 550);
        let last = records(page.number, &page.payload).last().unwrap().unwrap();
        assert_eq!((last.0, last.1.main), (Place::new(PageNumber(1), 24 + 29 * 549, true), 551));
    }

    #[test]
    fn another_pages_number_is_refused() {
        let page = sample();
        assert!(records(PageNumber(6), &page.payload).next().unwrap().is_err());
    }

    #[test]
    fn damaged_pages_fail_without_a_panic() {
        let page = sample();
        let walk = |bytes: &[u8]| {
            for (_, record) in records(page.number, bytes).flatten() {
                let _ = Fields::decode(record.key_value);
            }
        };
        for cut in 0..page.payload.len() {
            walk(&page.payload[..cut]);
        }
        for position in 0..page.payload.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = page.payload.to_vec();
                changed[position] = value;
                walk(&changed);
            }
        }
    }
}
