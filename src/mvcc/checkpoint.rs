//! Slices of the index, from which it is built again without reading records.
//!
//! A slice holds all that the index knows of a run of keys. Its payload;
//! numbers marked v are varints as in protobuf, the others little-endian:
//!
//! | what | size |
//! |---|---|
//! | layout, 1 | 1 |
//! | 1 if the run ends before a key that is named, 0 if it goes to the last key | 1 |
//! | zero | 2 |
//! | number of keys | 4 |
//! | as of: every record whose place is below is in, | 8 |
//! | but for those that a compaction up to this revision drops (-1: none) | 8 |
//! | first key of the run: length (v), bytes | |
//! | the key before which it ends, if one is named: length (v), bytes | |
//! | the keys, ascending | |
//!
//! A key: bytes shared with the key before (v); how many more (v) and which;
//! number of records (v); version of the first one (v, 0 for a tombstone); its
//! main revision less its create revision (v, only if the version is not 0);
//! then for each record main revision and place (v each), from the second one
//! on less those before it.
//!
//! **Promises**: slices of different times go together: [`Mvcc::load_slice`]
//! and the record pages behind them give the index whole.

use super::{
    Mvcc,
    index::{Span, Version},
    page::{Place, page_of},
    record::{Malformed, put_varint, take_slice, take_varint},
    revisions::{Revisions, check_first},
};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use std::{collections::BTreeMap, ops::Bound};

const LAYOUT: u8 = 1;
const HEAD_BYTES: usize = 24;

/// See [`Mvcc::checkpoint_slice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub payload: Bytes,
    /// Where the next slice begins; `None` behind the last key.
    pub next: Option<Bytes>,
    /// Every record whose place has a lower word is in ([`page_of`]).
    pub as_of: u64,
    /// But for those that a compaction up to here drops.
    pub compacted: i64,
}

impl Slice {
    /// Pages from here on must be read after the slice: records in them may not be in it.
    pub fn first_page(&self) -> PageNumber {
        page_of(self.as_of)
    }
}

/// The head of a stored slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceHead {
    pub keys: u32,
    /// As in [`Slice`].
    pub as_of: u64,
    pub compacted: i64,
    pub from: Bytes,
    /// `None`: to the last key.
    pub to: Option<Bytes>,
}

impl SliceHead {
    /// Reads the head of a slice; also the bytes of the keys.
    pub fn of(payload: &[u8]) -> Result<(SliceHead, &[u8]), Malformed> {
        let (head, mut rest) =
            payload.split_at_checked(HEAD_BYTES).ok_or(Malformed("slice is shorter than its head"))?;
        if head[0] != LAYOUT || head[1] > 1 || head[2..4] != [0, 0] {
            return Err(Malformed("slice has an unknown layout"));
        }
        let keys = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
        let as_of = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes"));
        let compacted = i64::from_le_bytes(head[16..].try_into().expect("eight bytes"));
        let from = Bytes::copy_from_slice(take_slice(&mut rest)?);
        let to = match head[1] {
            0 => None,
            _ => Some(Bytes::copy_from_slice(take_slice(&mut rest)?)),
        };
        if to.as_ref().is_some_and(|to| *to <= from) {
            return Err(Malformed("slice ends before it begins"));
        }
        Ok((SliceHead { keys, as_of, compacted, from, to }, rest))
    }

    /// Pages from here on must be read after the slice: records in them may not be in it.
    pub fn first_page(&self) -> PageNumber {
        page_of(self.as_of)
    }
}

/// The keys of a slice.
pub(super) struct SliceKeys<'a> {
    rest: &'a [u8],
    left: u32,
    as_of: u64,
    begun: bool,
    key: Vec<u8>,
}

impl<'a> SliceKeys<'a> {
    pub fn new(head: &SliceHead, rest: &'a [u8]) -> SliceKeys<'a> {
        SliceKeys { rest, left: head.keys, as_of: head.as_of, begun: false, key: Vec::new() }
    }

    /// The next key and its records; `None` behind the last one.
    pub fn next(&mut self) -> Result<Option<(&[u8], Revisions)>, Malformed> {
        if self.left == 0 {
            return if self.rest.is_empty() {
                Ok(None)
            } else {
                Err(Malformed("slice has more than its keys"))
            };
        }
        let shared = usize::try_from(take_varint(&mut self.rest)?).unwrap_or(usize::MAX);
        let more = take_slice(&mut self.rest)?;
        // What comes behind the shared bytes is above what stood there before.
        let ascends = self.key.get(shared..).is_some_and(|before| !self.begun || more > before);
        if !ascends {
            return Err(Malformed("keys of a slice do not ascend"));
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(more);
        self.begun = true;
        let revisions = self.revisions()?;
        self.left -= 1;
        Ok(Some((&self.key, revisions)))
    }

    fn revisions(&mut self) -> Result<Revisions, Malformed> {
        let count = take_varint(&mut self.rest)?;
        let version = take_varint(&mut self.rest)?;
        let age = if version == 0 { None } else { Some(take_varint(&mut self.rest)?) };
        // Each takes two bytes at least: what is not there is not made room for.
        if count > self.rest.len() as u64 / 2 {
            return Err(Malformed("slice is cut off"));
        }
        let as_of = self.as_of;
        let (mut main, mut word) = (0_u64, 0_u64);
        let mut record = |rest: &mut &[u8]| -> Result<Version, Malformed> {
            let too_large = Malformed("slice holds a number that is too large");
            main = main.checked_add(take_varint(rest)?).ok_or(too_large)?;
            word = word.checked_add(take_varint(rest)?).ok_or(too_large)?;
            let place = Place::from_word(word).ok_or(Malformed("record stands at no place"))?;
            if main > i64::MAX as u64 || word >= as_of {
                return Err(Malformed("slice knows a record of later"));
            }
            Ok(Version { main, place })
        };
        let create = |first: Version| match age {
            Some(age) => first.main.checked_sub(age).ok_or(Malformed("create revision is below zero")),
            None => Ok(0),
        };
        if count == 1 {
            // Most keys have one record: no list is made for it.
            let first = record(&mut self.rest)?;
            let create = create(first)?;
            check_first(first, create, version).map_err(Malformed)?;
            return Ok(Revisions::one(first, create, version));
        }
        let mut records = Vec::with_capacity(count as usize);
        for _ in 0..count {
            records.push(record(&mut self.rest)?);
        }
        let create = records.first().map_or(Ok(0), |first| create(*first))?;
        Revisions::stored(records, create, version).map_err(Malformed)
    }
}

fn put_key(out: &mut Vec<u8>, before: &[u8], key: &[u8], revisions: &Revisions) {
    let shared = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    put_varint(out, shared as u64);
    put_varint(out, (key.len() - shared) as u64);
    out.extend_from_slice(&key[shared..]);
    let records = revisions.records();
    let (create, version) = revisions.first();
    put_varint(out, records.len() as u64);
    put_varint(out, version);
    if version > 0 {
        put_varint(out, records[0].main - create);
    }
    let (mut main, mut word) = (0, 0);
    for record in records {
        put_varint(out, record.main - main);
        put_varint(out, record.place.word() - word);
        (main, word) = (record.main, record.place.word());
    }
}

impl Mvcc {
    /// What the index knows of the keys from `from` on, about `bytes_max` bytes of it and one key at least
    /// (a key goes in whole, however many records it has). Records that were not written to the store
    /// yet are in too: a slice counts once a mark is durable behind its `as_of` and with its `compacted`;
    /// any mark that is made after the slice is such a one.
    pub fn checkpoint_slice(&self, from: &[u8], bytes_max: usize) -> Slice {
        let (as_of, compacted) = (self.tail.next_word(), self.compaction_goal());
        let mut body = Vec::with_capacity(bytes_max.min(1 << 20) + 256);
        let (mut before, mut keys, mut next): (&[u8], u32, Option<&[u8]>) = (&[], 0, None);
        for (key, revisions) in self.index.entries(Span::From(from).bounds()) {
            if keys > 0 && body.len() >= bytes_max {
                next = Some(key);
                break;
            }
            put_key(&mut body, before, key, revisions);
            (before, keys) = (key, keys + 1);
        }
        let mut payload =
            Vec::with_capacity(HEAD_BYTES + 20 + from.len() + next.map_or(0, <[u8]>::len) + body.len());
        payload.extend_from_slice(&[LAYOUT, u8::from(next.is_some()), 0, 0]);
        payload.extend_from_slice(&keys.to_le_bytes());
        payload.extend_from_slice(&as_of.to_le_bytes());
        payload.extend_from_slice(&compacted.to_le_bytes());
        for key in [Some(from), next].into_iter().flatten() {
            put_varint(&mut payload, key.len() as u64);
            payload.extend_from_slice(key);
        }
        payload.append(&mut body);
        Slice { payload: payload.into(), next: next.map(Bytes::copy_from_slice), as_of, compacted }
    }
}

/// Which range of keys was loaded from which slice.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// First key of a range → the key before which it ends, and the slice's `as_of`.
    ranges: BTreeMap<Bytes, (Option<Bytes>, u64)>,
    newest: u64,
}

impl Coverage {
    /// A newer slice takes its range over from older ones.
    pub fn take(&mut self, head: &SliceHead) -> Result<(), Malformed> {
        if head.as_of < self.newest {
            return Err(Malformed("slice is older than the one before"));
        }
        self.newest = head.as_of;
        let SliceHead { from, to, as_of, .. } = head;
        // The range that begins before may reach into this one, and beyond it.
        if let Some((_, (end, of))) = self.ranges.range_mut::<Bytes, _>(..from).next_back()
            && end.as_ref().is_none_or(|end| end > from)
        {
            let (rest, of) = (end.replace(from.clone()), *of);
            self.keep_rest(to, rest, of);
        }
        let upper = to.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let inside: Vec<Bytes> = self
            .ranges
            .range::<Bytes, _>((Bound::Included(from), upper))
            .map(|(key, _)| key.clone())
            .collect();
        for key in inside {
            let (end, of) = self.ranges.remove(&key).expect("seen a moment ago");
            self.keep_rest(to, end, of);
        }
        self.ranges.insert(from.clone(), (to.clone(), *as_of));
        Ok(())
    }

    /// Keeps the part behind `to` of an older range that ends at `end`.
    fn keep_rest(&mut self, to: &Option<Bytes>, end: Option<Bytes>, as_of: u64) {
        let Some(to) = to else { return };
        if end.as_ref().is_none_or(|end| end > to) {
            self.ranges.insert(to.clone(), (end, as_of));
        }
    }

    /// The first page that may hold records which are not known; the first of all when some key is not
    /// covered.
    pub fn first_page(&self) -> PageNumber {
        let mut behind = Some(Bytes::new());
        let mut oldest = u64::MAX;
        for (from, (to, as_of)) in &self.ranges {
            if behind.as_ref() != Some(from) {
                return PageNumber(0);
            }
            behind.clone_from(to);
            oldest = oldest.min(*as_of);
        }
        if behind.is_some() { PageNumber(0) } else { page_of(oldest) }
    }

    /// Every record of `key` whose place is below this is known already.
    pub fn as_of(&self, key: &[u8]) -> u64 {
        match self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back() {
            Some((_, (end, as_of))) if end.as_ref().is_none_or(|end| key < &end[..]) => *as_of,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(from: &'static str, to: &'static str, as_of: u64) -> SliceHead {
        let to = (!to.is_empty()).then(|| Bytes::from(to));
        SliceHead { keys: 0, as_of, compacted: -1, from: from.into(), to }
    }

    #[test]
    fn newer_slices_take_their_range_over() {
        let check = |slices: &[(&'static str, &'static str)], expected: &str| {
            let mut coverage = Coverage::default();
            for (age, (from, to)) in (1..).zip(slices) {
                coverage.take(&head(from, to, age)).unwrap();
            }
            let shown: String =
                ["a", "b", "c", "d", "e"].map(|key| coverage.as_of(key.as_bytes()).to_string()).concat();
            assert_eq!(shown, expected, "{slices:?}");
        };
        check(&[], "00000");
        check(&[("", "")], "11111");
        check(&[("b", "d")], "01100");
        check(&[("", "c"), ("c", ""), ("", "b")], "31222");
        check(&[("", ""), ("b", "d")], "12211");
        check(&[("b", "c"), ("c", "d"), ("a", "e")], "33330");
        check(&[("a", "c"), ("c", "e"), ("b", "d")], "13320");
        check(&[("b", ""), ("b", "c")], "02111");
        let mut coverage = Coverage::default();
        coverage.take(&head("", "", 5)).unwrap();
        assert!(coverage.take(&head("", "", 4)).is_err());
    }
}
