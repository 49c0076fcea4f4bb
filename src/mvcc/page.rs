//! Pages of records: their layout, in this one place.
//!
//! A page as it is first written has layout 1; numbers are little-endian:
//!
//! | offset | size | content |
//! |---|---|---|
//! | 0 | 1 | layout, 1 |
//! | 1 | 3 | zero |
//! | 4 | 4 | number of records, at least 1 |
//! | 8 | 8 | main revision of the first record |
//! | 16 | 8 | main revision of the last record |
//! | 24 | | the records, one after the other, to the end of the payload |
//!
//! A record:
//!
//! | offset | size | content |
//! |---|---|---|
//! | 0 | 4 | length of the `KeyValue` bytes |
//! | 4 | 1 | 0 a put, 1 a tombstone |
//! | 5 | 8 | main revision |
//! | 13 | 8 | sub revision |
//! | 21 | | the `KeyValue`, see `record.rs` |
//!
//! What the cleaner leaves of a run of pages is a merged page, layout 2
//! (`merge.rs`). Records ascend by (main, sub) inside a page, and pages by
//! their numbers. A payload of layout 1 is at most [`PAGE_BYTES`] long unless it
//! holds one record alone.
//!
//! **Promises**: a record's [`Place`] is where it was first written, for ever;
//! places are in the order of (main, sub).

use super::merge::Table;
use super::record::{Fields, Malformed, Record};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use std::num::NonZeroU64;

/// Payload bytes of a full page: with the page file's own header it fits in 16 KiB.
pub const PAGE_BYTES: usize = (16 << 10) - 256;

pub(super) const LAYOUT_WRITTEN: u8 = 1;
pub(super) const LAYOUT_MERGED: u8 = 2;
pub(super) const HEAD_BYTES: usize = 24;
pub(super) const RECORD_HEAD_BYTES: usize = 21;

/// Where a record lies: page number, offset in its payload and whether it is a
/// tombstone, in one word. A record begins below [`PAGE_BYTES`], so 16 bits do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(NonZeroU64);

/// Of a place's word: the page's number stands above so many bits.
const PAGE_SHIFT: u32 = 17;
/// Page numbers end here: they share a word with the offset.
pub(super) const PAGE_NUMBER_END: u64 = 1 << (u64::BITS - PAGE_SHIFT);

/// The word that is at or below every place in this page and behind, and above all before.
pub fn word_of(page: PageNumber) -> u64 {
    page.0 << PAGE_SHIFT
}

/// The page in which a place with this word lies.
pub fn page_of(word: u64) -> PageNumber {
    PageNumber(word >> PAGE_SHIFT)
}

impl Place {
    pub(crate) fn new(page: PageNumber, offset: usize, tombstone: bool) -> Place {
        Place::of(page, offset, tombstone).expect("page number and offset fit in one word")
    }

    /// `None`: no record can stand there.
    pub(super) fn of(page: PageNumber, offset: usize, tombstone: bool) -> Option<Place> {
        if page.0 >= PAGE_NUMBER_END || !(HEAD_BYTES..1 << 16).contains(&offset) {
            return None;
        }
        NonZeroU64::new(word_of(page) | (offset as u64) << 1 | u64::from(tombstone)).map(Place)
    }

    /// The place as a number, in the order of places; `None` where no record can stand.
    pub(super) fn from_word(word: u64) -> Option<Place> {
        Place::of(page_of(word), (word >> 1) as usize & 0xffff, word & 1 == 1)
    }

    pub(super) fn word(self) -> u64 {
        self.0.get()
    }

    pub fn page(self) -> PageNumber {
        page_of(self.0.get())
    }

    pub(crate) fn offset(self) -> usize {
        (self.0.get() >> 1) as usize & 0xffff
    }

    pub fn tombstone(self) -> bool {
        self.0.get() & 1 == 1
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = if self.tombstone() { "t" } else { "" };
        write!(f, "{}+{}{mark}", self.page().0, self.offset())
    }
}

/// A page that is being filled.
#[derive(Debug)]
pub(crate) struct OpenPage {
    bytes: Vec<u8>,
    records: u32,
    first: u64,
    last: (u64, u64),
}

impl OpenPage {
    pub fn new() -> OpenPage {
        OpenPage { bytes: Vec::new(), records: 0, first: 0, last: (0, 0) }
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether a record with these fields still goes in; an empty page takes any.
    pub fn has_room(&self, fields: &Fields<'_>) -> bool {
        self.is_empty() || self.bytes.len() + RECORD_HEAD_BYTES + fields.encoded_bytes() <= PAGE_BYTES
    }

    /// Adds a record, which must follow the last one; returns its offset.
    pub fn push(&mut self, main: u64, sub: u64, tombstone: bool, fields: &Fields<'_>) -> usize {
        assert!(self.is_empty() || (main, sub) > self.last, "records ascend");
        assert!(self.has_room(fields), "the page was sealed before it overflows");
        if self.is_empty() {
            self.bytes.reserve_exact(PAGE_BYTES);
            self.bytes.resize(HEAD_BYTES, 0);
            self.first = main;
        }
        let offset = self.bytes.len();
        put_record_head(&mut self.bytes, fields.encoded_bytes(), tombstone, main, sub);
        fields.encode(&mut self.bytes);
        self.last = (main, sub);
        self.records += 1;
        offset
    }

    /// The finished payload; this page is empty again.
    pub fn take(&mut self) -> Bytes {
        assert!(!self.is_empty(), "an empty page is not sealed");
        std::mem::replace(self, OpenPage::new()).finish()
    }

    /// The payload as if it were finished now; no bytes when there is no record.
    pub fn copy(&self) -> Bytes {
        if self.is_empty() {
            return Bytes::new();
        }
        OpenPage { bytes: self.bytes.clone(), ..*self }.finish()
    }

    fn finish(mut self) -> Bytes {
        let head = Head { records: self.records, first: self.first, last: self.last.0 };
        head.write(LAYOUT_WRITTEN, &mut self.bytes);
        Bytes::from(self.bytes)
    }
}

pub(super) fn put_record_head(
    out: &mut Vec<u8>,
    key_value_bytes: usize,
    tombstone: bool,
    main: u64,
    sub: u64,
) {
    let length = u32::try_from(key_value_bytes).expect("a request is far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.push(u8::from(tombstone));
    out.extend_from_slice(&main.to_le_bytes());
    out.extend_from_slice(&sub.to_le_bytes());
}

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// What the head of a payload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub records: u32,
    /// Main revisions of the first and the last record.
    pub first: u64,
    pub last: u64,
}

impl Head {
    pub fn of(payload: &[u8]) -> Result<Head, Malformed> {
        Ok(Head::and_layout(payload)?.0)
    }

    fn and_layout(payload: &[u8]) -> Result<(Head, u8), Malformed> {
        if payload.len() < HEAD_BYTES {
            return Err(Malformed("record page is shorter than its head"));
        }
        let layout = payload[0];
        if !matches!(layout, LAYOUT_WRITTEN | LAYOUT_MERGED) || payload[1..4] != [0; 3] {
            return Err(Malformed("record page has an unknown layout"));
        }
        let head = Head { records: half(payload, 4), first: word(payload, 8), last: word(payload, 16) };
        if head.records == 0 || head.first > head.last {
            return Err(Malformed("record page's head contradicts itself"));
        }
        Ok((head, layout))
    }

    /// Fills the space that was left for it.
    pub(super) fn write(&self, layout: u8, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&[layout, 0, 0, 0]);
        payload[4..8].copy_from_slice(&self.records.to_le_bytes());
        payload[8..16].copy_from_slice(&self.first.to_le_bytes());
        payload[16..24].copy_from_slice(&self.last.to_le_bytes());
    }
}

/// The record at `offset` and the offset behind it.
pub(crate) fn record_at(payload: &[u8], offset: usize) -> Result<(Record<'_>, usize), Malformed> {
    let rest = payload.get(offset..).filter(|rest| rest.len() >= RECORD_HEAD_BYTES);
    let rest = rest.ok_or(Malformed("record is cut off"))?;
    let length = half(rest, 0) as usize;
    let key_value = rest[RECORD_HEAD_BYTES..].get(..length).ok_or(Malformed("record is cut off"))?;
    let tombstone = match rest[4] {
        0 => false,
        1 => true,
        _ => return Err(Malformed("record is neither put nor tombstone")),
    };
    let record = Record { main: word(rest, 5), sub: word(rest, 13), tombstone, key_value };
    Ok((record, offset + RECORD_HEAD_BYTES + length))
}

/// The record at `place`; the payload is of the page that stands for the place's page now, as written or
/// merged.
pub(super) fn record_at_place(payload: &[u8], place: Place) -> Record<'_> {
    let record = locate(payload, place).expect("the index points at records of checked pages");
    assert_eq!(record.tombstone, place.tombstone(), "the index points at the record it means");
    record
}

/// The bytes of its `KeyValue`, sharing the payload's memory.
pub(super) fn key_value_at(payload: &Bytes, place: Place) -> Bytes {
    payload.slice_ref(record_at_place(payload, place).key_value)
}

fn locate(payload: &[u8], place: Place) -> Result<Record<'_>, Malformed> {
    let offset = match Head::and_layout(payload)? {
        (_, LAYOUT_WRITTEN) => place.offset(),
        (head, _) => Table::of(payload, head)?.find(place).ok_or(Malformed("record is not in its page"))?,
    };
    Ok(record_at(payload, offset)?.0)
}

/// The records of a page in order, each with its place. `number` is the page's own; a merged page's
/// records keep the places of the pages that they were in first. Everything is checked but the
/// `KeyValue`s.
pub fn records(number: PageNumber, payload: &[u8]) -> Records<'_> {
    let from = match Head::and_layout(payload) {
        Ok((_, LAYOUT_WRITTEN)) => Ok((None, HEAD_BYTES)),
        Ok((head, _)) => Table::of(payload, head).and_then(|table| {
            let first = table.records_start();
            if table.number != number {
                Err(Malformed("merged page is another one"))
            } else {
                Ok((Some(table), first))
            }
        }),
        Err(error) => Err(error),
    };
    match from {
        Ok((table, offset)) => {
            Records { number, payload, table, position: 0, last: None, offset, broken: None }
        }
        Err(error) => Records {
            number,
            payload: &[],
            table: None,
            position: 0,
            last: None,
            offset: 0,
            broken: Some(error),
        },
    }
}

pub struct Records<'a> {
    number: PageNumber,
    payload: &'a [u8],
    table: Option<Table<'a>>,
    position: usize,
    last: Option<Place>,
    offset: usize,
    broken: Option<Malformed>,
}

impl<'a> Records<'a> {
    fn read(&mut self) -> Result<(Place, Record<'a>), Malformed> {
        let (page, offset) = match &self.table {
            None => (self.number, self.offset),
            Some(table) => table.entry(self.position, self.offset)?,
        };
        let (record, behind) = record_at(self.payload, self.offset)?;
        let place =
            Place::of(page, offset, record.tombstone).ok_or(Malformed("record stands at no place"))?;
        if self.last.is_some_and(|last| place <= last) {
            return Err(Malformed("places of a page do not ascend"));
        }
        self.last = Some(place);
        self.offset = behind;
        self.position += 1;
        Ok((place, record))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(Place, Record<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.broken.take() {
            return Some(Err(error));
        }
        if self.offset >= self.payload.len() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.offset = self.payload.len();
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Bytes {
        let mut page = OpenPage::new();
        page.push(2, 0, false, &Fields { key: b"a", mod_revision: 2, version: 1, ..Fields::default() });
        page.push(3, 0, true, &Fields::tombstone(b"a"));
        page.push(3, 1, false, &Fields { key: b"b", value: b"value", ..Fields::default() });
        page.take()
    }

    #[test]
    fn a_page_gives_back_its_records() {
        let payload = sample();
        assert_eq!(Head::of(&payload), Ok(Head { records: 3, first: 2, last: 3 }));
        let read: Vec<_> = records(PageNumber(7), &payload).map(|record| record.unwrap()).collect();
        let revisions: Vec<_> = read.iter().map(|(_, r)| (r.main, r.sub, r.tombstone)).collect();
        assert_eq!(revisions, [(2, 0, false), (3, 0, true), (3, 1, false)]);
        let place = read[2].0;
        assert_eq!((place.page(), place.tombstone()), (PageNumber(7), false));
        assert_eq!(Place::from_word(place.word()), Some(place));
        assert_eq!(&*key_value_at(&payload, place), read[2].1.key_value);
    }

    #[test]
    fn the_layout_is_byte_for_byte_what_the_head_of_this_file_says() {
        let mut page = OpenPage::new();
        page.push(0x0102, 3, true, &Fields::tombstone(b"k"));
        let expected = [
            &[1, 0, 0, 0, 1, 0, 0, 0][..],
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 1],
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[10, 1, b'k'],
        ];
        assert_eq!(page.copy(), expected.concat());
        assert_eq!(page.take(), expected.concat());
        assert!(page.copy().is_empty() && page.is_empty());
    }

    #[test]
    fn a_large_record_stands_alone() {
        let mut page = OpenPage::new();
        let value = vec![1; 3 * PAGE_BYTES];
        let large = Fields { key: b"a", value: &value, ..Fields::default() };
        assert!(page.has_room(&large));
        page.push(2, 0, false, &large);
        assert!(!page.has_room(&Fields::tombstone(b"b")));
    }

    #[test]
    fn damaged_pages_fail_without_a_panic() {
        let payload = sample();
        let walk = |bytes: &[u8]| {
            let _ = Head::of(bytes);
            for record in records(PageNumber(7), bytes).flatten() {
                let _ = Fields::decode(record.1.key_value);
            }
        };
        for cut in 0..payload.len() {
            walk(&payload[..cut]);
        }
        for position in 0..payload.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = payload.to_vec();
                changed[position] = value;
                walk(&changed);
            }
        }
    }
}
