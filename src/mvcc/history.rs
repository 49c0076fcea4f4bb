//! History: the records of a range of keys in the order of their revisions, as
//! a finished compaction would have left them at a view.
//!
//! A window of history is read on the cheaper of two ways: page by page from
//! the first one that the window touches, or, when the range holds few records
//! of the window, at the places that the index knows. [`HistoryPlan`] finds out
//! which, in bounded steps, and gives up on the index as soon as the pages are
//! cheaper. **Promises**: whatever was cleaned or physically removed, the same
//! records come, once each.

use super::{
    Error, Missing, Mvcc, Pages,
    index::Span,
    page::{Head, Place, record_at_place, records},
    range::PageReader,
    record::{Fields, Malformed, Record},
    revisions::Revisions,
    view::View,
};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use std::ops::Bound;

/// One record of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub main: i64,
    pub sub: u64,
    pub tombstone: bool,
    /// The encoded `KeyValue`, sharing the page's memory; of a tombstone the key alone.
    pub key_value: Bytes,
}

impl Change {
    fn of(payload: &Bytes, record: &Record<'_>) -> Change {
        Change {
            main: record.main as i64,
            sub: record.sub,
            tombstone: record.tombstone,
            key_value: payload.slice_ref(record.key_value),
        }
    }
}

/// A window of history: keys from `key` to `range_end` as a request has them, revisions `from` to `to`, both
/// included, of a pinned view.
#[derive(Clone, Debug)]
struct Window {
    key: Bytes,
    range_end: Bytes,
    from: u64,
    to: u64,
    compacted: i64,
}

impl Window {
    fn holds_key(&self, key: &[u8]) -> bool {
        match Span::new(&self.key, &self.range_end) {
            None => false,
            Some(Span::One(one)) => key == one,
            Some(Span::From(from)) => key >= from,
            Some(Span::Between(from, to)) => key >= from && key < to,
        }
    }

    /// Whether a record counts: above the compacted mark all do, below it what compaction leaves.
    fn holds(&self, mvcc: &Mvcc, key: &[u8], main: u64, place: Place) -> bool {
        let Ok(compacted) = u64::try_from(self.compacted) else { return true };
        main > compacted
            || ((!place.tombstone() || main == compacted)
                && mvcc.index.newest(key, compacted).is_some_and(|newest| newest.place == place))
    }

    /// The places of one key's records in the window.
    fn places(&self, revisions: &Revisions, places: &mut Vec<Place>) {
        let records = revisions.records();
        let end = records.partition_point(|record| record.main <= self.to);
        let left = u64::try_from(self.compacted).ok().and_then(|compacted| {
            let position = revisions.position(compacted)?;
            let record = records[position];
            Some(position + usize::from(record.place.tombstone() && record.main < compacted))
        });
        let begin = records.partition_point(|record| record.main < self.from).max(left.unwrap_or(0));
        places.extend(records[..end].iter().skip(begin).map(|record| record.place));
    }
}

/// What reading the window's pages one by one would cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanCost {
    /// Pages from the first one that the window touches to the last.
    pub pages: u64,
    /// Records in them (the sum of their weights).
    pub records: u64,
}

/// Places gathered at most: their list is bounded whatever the pages would cost.
const PLACES_MAX: u64 = 1 << 20;
/// A page read for one record costs about as much as so many pages read in a row.
const READ_ALONE_COST: u64 = 4;
/// Walking over a key costs less than reading so many records of pages.
const WALK_GAIN: u64 = 4;

/// Finds the cheaper way to a window of history.
#[derive(Debug)]
pub struct HistoryPlan {
    window: Window,
    /// The first key that was not looked at; `None`: done.
    next: Option<Bytes>,
    places: Vec<Place>,
    places_max: u64,
    keys_left: u64,
}

impl HistoryPlan {
    /// Looks at `keys_max` more keys of the index at most; `true` when the plan is made.
    pub fn step(&mut self, mvcc: &Mvcc, keys_max: usize) -> bool {
        mvcc.assert_whole(self.window.compacted);
        let Some(from) = self.next.take() else { return true };
        let Some(span) = Span::new(&self.window.key, &self.window.range_end) else { return true };
        let (_, upper) = span.bounds();
        let mut steps_left = keys_max;
        for (key, revisions) in mvcc.index.entries((Bound::Included(&from[..]), upper)) {
            if steps_left == 0 {
                self.next = Some(Bytes::copy_from_slice(key));
                return false;
            }
            steps_left -= 1;
            self.window.places(revisions, &mut self.places);
            if self.keys_left == 0 || self.places.len() as u64 > self.places_max {
                // The pages are cheaper.
                self.places_max = 0;
                self.places = Vec::new();
                return true;
            }
            self.keys_left -= 1;
        }
        true
    }

    /// The way that was found.
    pub fn finish(self) -> History {
        assert!(self.next.is_none(), "the plan is made before it is followed");
        let HistoryPlan { window, mut places, places_max, .. } = self;
        places.sort_unstable();
        let way = if places_max == 0 { Way::Pages } else { Way::Places(places.into_iter()) };
        History { window, way, last: (0, 0) }
    }
}

/// A window of history being read.
#[derive(Debug)]
pub struct History {
    window: Window,
    way: Way,
    /// (main, sub) of the last record that was seen.
    last: (u64, u64),
}

#[derive(Debug)]
enum Way {
    Places(std::vec::IntoIter<Place>),
    Pages,
}

impl History {
    /// Whether pages are to be fed ([`History::feed`]), from the one that covers or follows the last
    /// with a record at or below [`History::first`]; otherwise [`History::slice`] gives the records.
    pub fn wants_pages(&self) -> bool {
        matches!(self.way, Way::Pages)
    }

    /// The first revision of the window.
    pub fn first(&self) -> u64 {
        self.window.from
    }

    /// Up to `records_max` records more, from the index; none: the end. Nothing is passed over when
    /// pages lack.
    pub fn slice(
        &mut self,
        mvcc: &Mvcc,
        pages: &dyn Pages,
        records_max: usize,
    ) -> Result<Vec<Change>, Missing> {
        assert!(records_max > 0, "a slice goes forward");
        mvcc.assert_whole(self.window.compacted);
        let Way::Places(places) = &mut self.way else { panic!("pages were to be fed") };
        let mut reader = PageReader::new(pages);
        let mut changes = Vec::new();
        // The open page is copied when it is asked for: once for all its records.
        let mut here: Option<(PageNumber, Bytes)> = None;
        for place in places.as_slice().iter().take(records_max) {
            let page = place.page();
            if here.as_ref().is_none_or(|(number, _)| *number != page) {
                let payload = mvcc.tail.page(page).or_else(|| reader.payload(page));
                here = payload.map(|payload| (page, payload));
            }
            if let Some((_, payload)) = &here {
                changes.push(Change::of(payload, &record_at_place(payload, *place)));
            }
        }
        reader.finish()?;
        places.by_ref().take(records_max).for_each(drop);
        Ok(changes)
    }

    /// The records of the next page that belong in the window, and whether later pages may hold more.
    /// The page is given as it is stored now, as written or merged; what was seen already is passed
    /// over.
    pub fn feed(
        &mut self,
        mvcc: &Mvcc,
        page: PageNumber,
        payload: &Bytes,
    ) -> Result<(Vec<Change>, bool), Malformed> {
        assert!(self.wants_pages(), "the index gives the records");
        mvcc.assert_whole(self.window.compacted);
        let head = Head::of(payload)?;
        let mut changes = Vec::new();
        if head.last < self.window.from {
            return Ok((changes, true));
        }
        for record in records(page, payload) {
            let (place, record) = record?;
            if record.main > self.window.to {
                return Ok((changes, false));
            }
            if (record.main, record.sub) <= self.last {
                continue;
            }
            self.last = (record.main, record.sub);
            if record.main < self.window.from {
                continue;
            }
            let key = Fields::decode(record.key_value)?.key;
            if self.window.holds_key(key) && self.window.holds(mvcc, key, record.main, place) {
                changes.push(Change::of(payload, &record));
            }
        }
        Ok((changes, head.last <= self.window.to))
    }
}

impl Mvcc {
    /// Begins to read history: revisions `from` to `to` (both included) of keys `key` to `range_end` (as
    /// a request has them) at a view, which stays pinned. `from` at or below 0: all that
    /// compaction left; `to` at or below 0: up to the view's revision. A `from` below the
    /// compacted mark fails with [`Error::Compacted`].
    pub fn history_plan(
        &self,
        view: View,
        key: &[u8],
        range_end: &[u8],
        (from, to): (i64, i64),
        cost: ScanCost,
    ) -> Result<HistoryPlan, Error> {
        self.assert_whole(view.compacted);
        if from > 0 && from < view.compacted {
            return Err(Error::Compacted);
        }
        if to > view.revision {
            return Err(Error::FutureRevision);
        }
        let to = if to <= 0 { view.revision } else { to };
        let window = Window {
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(range_end),
            from: u64::try_from(from).unwrap_or(0),
            to: to as u64,
            compacted: view.compacted,
        };
        // A single key costs one look whatever it holds; otherwise the pages set the limit.
        let places_max = (cost.pages / READ_ALONE_COST).clamp(1, PLACES_MAX);
        Ok(HistoryPlan {
            next: Some(window.key.clone()),
            window,
            places: Vec::new(),
            places_max,
            keys_left: 1 + cost.records.saturating_mul(WALK_GAIN),
        })
    }
}
