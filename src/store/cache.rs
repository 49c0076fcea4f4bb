//! Pages in memory: those not yet on disk are pinned, the rest is kept within
//! a bound of bytes, least recently used by a second-chance clock.
//!
//! **Promises**: an entry is charged the buffer that it keeps alive, not only
//! the bytes that it shows. An entry stands for the page numbers that its page
//! spans, and no number is covered by two evictable entries.

use crate::pagefile::PageNumber;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Mutex;

/// What an entry takes beside its payload: the page's header, which lies in the
/// same buffer, and the entry itself.
const ENTRY_BYTES: u64 = 256;
/// A pinned page below this is copied when it is unpinned: its buffer was made
/// for a full page.
const FULL_ENOUGH: usize = 12 << 10;

/// A page as readers get it: its own number and the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub number: PageNumber,
    /// It stands for `number ..= number + span`.
    pub span: u16,
    pub payload: Bytes,
}

impl Held {
    pub fn covers(&self, page: PageNumber) -> bool {
        (self.number..=self.number.last(self.span)).contains(&page)
    }
}

pub struct PageCache {
    inner: Mutex<Inner>,
    bytes_max: u64,
}

#[derive(Default)]
struct Inner {
    /// Applied but not yet readable from disk.
    pinned: BTreeMap<PageNumber, Bytes>,
    cached: BTreeMap<PageNumber, Cached>,
    /// Each cached page stands here once; the front is looked at first.
    clock: VecDeque<PageNumber>,
    cached_bytes: u64,
}

struct Cached {
    held: Held,
    used: bool,
}

fn charge(held: &Held) -> u64 {
    held.payload.len() as u64 + ENTRY_BYTES
}

impl PageCache {
    pub fn new(bytes_max: u64) -> PageCache {
        PageCache { inner: Mutex::default(), bytes_max }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the cache is locked")
    }

    /// The page that holds `page`, if it is here.
    pub fn get(&self, page: PageNumber) -> Option<Held> {
        self.locked().get(page)
    }

    /// Keeps a page until [`PageCache::unpin`].
    pub fn pin(&self, page: PageNumber, payload: Bytes) {
        let before = self.locked().pinned.insert(page, payload);
        assert!(before.is_none(), "page {page:?} is pinned once");
    }

    /// The page is readable from disk now: it may be evicted.
    pub fn unpin(&self, page: PageNumber) {
        let mut inner = self.locked();
        if let Some(payload) = inner.pinned.remove(&page) {
            let payload =
                if payload.len() < FULL_ENOUGH { Bytes::copy_from_slice(&payload) } else { payload };
            inner.insert(Held { number: page, span: 0, payload }, self.bytes_max);
        }
    }

    /// The first pinned page at or behind `from`.
    pub fn first_pinned(&self, from: PageNumber) -> Option<Held> {
        let inner = self.locked();
        let (number, payload) = inner.pinned.range(from..).next()?;
        Some(Held { number: *number, span: 0, payload: payload.clone() })
    }

    /// Keeps what was read from disk, in a buffer of its own.
    pub fn insert(&self, held: Held) {
        self.locked().insert(held, self.bytes_max);
    }

    /// Forgets evictable pages that touch these numbers: others stand there now.
    pub fn forget(&self, pages: RangeInclusive<PageNumber>) {
        self.locked().forget(pages);
    }

    /// Bytes charged for evictable pages, bytes of pinned pages.
    #[cfg(test)]
    pub fn bytes(&self) -> (u64, u64) {
        let inner = self.locked();
        (inner.cached_bytes, inner.pinned.values().map(|page| page.len() as u64).sum())
    }
}

impl Inner {
    fn insert(&mut self, held: Held, bytes_max: u64) {
        let (number, span) = (held.number, u64::from(held.span));
        let size = charge(&held);
        if size > bytes_max || self.pinned.contains_key(&number) {
            return;
        }
        let covering = self.covering(number).map(|cached| cached.held.span);
        if covering.is_some_and(|covering| u64::from(covering) >= span) {
            // The same page, or an older one than what stands here.
            return;
        }
        self.forget(number..=PageNumber(number.0 + span));
        self.cached.insert(number, Cached { held, used: false });
        self.clock.push_back(number);
        self.cached_bytes += size;
        while self.cached_bytes > bytes_max {
            let oldest = self.clock.pop_front().expect("bytes are cached, so a page is");
            let entry = self.cached.get_mut(&oldest).expect("each page of the clock is cached");
            if entry.used && oldest != number {
                entry.used = false;
                self.clock.push_back(oldest);
                continue;
            }
            let gone = self.cached.remove(&oldest).expect("looked up above");
            self.cached_bytes -= charge(&gone.held);
        }
        assert_eq!(self.clock.len(), self.cached.len(), "each cached page stands in the clock once");
    }

    fn covering(&mut self, page: PageNumber) -> Option<&mut Cached> {
        let (_, cached) = self.cached.range_mut(..=page).next_back()?;
        cached.held.covers(page).then_some(cached)
    }

    fn forget(&mut self, pages: RangeInclusive<PageNumber>) {
        let (first, last) = (*pages.start(), *pages.end());
        let before = self.covering(first).map(|cached| cached.held.number);
        let inside = self.cached.range(first..=last).map(|(number, _)| *number);
        let mut gone: Vec<PageNumber> = before.into_iter().chain(inside).collect();
        gone.dedup();
        for number in &gone {
            let cached = self.cached.remove(number).expect("it was just seen");
            self.cached_bytes -= charge(&cached.held);
        }
        if !gone.is_empty() {
            self.clock.retain(|number| gone.binary_search(number).is_err());
        }
    }

    fn get(&mut self, page: PageNumber) -> Option<Held> {
        if let Some(cached) = self.covering(page) {
            cached.used = true;
            return Some(cached.held.clone());
        }
        let payload = self.pinned.get(&page)?.clone();
        Some(Held { number: page, span: 0, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(number: u64, span: u16, length: usize) -> Held {
        Held { number: PageNumber(number), span, payload: Bytes::from(vec![number as u8; length]) }
    }

    fn size(payload: usize) -> u64 {
        payload as u64 + ENTRY_BYTES
    }

    fn has(cache: &PageCache, number: u64) -> bool {
        cache.get(PageNumber(number)).is_some()
    }

    #[test]
    fn a_pinned_page_stays_and_a_cached_one_goes_when_space_is_short() {
        let cache = PageCache::new(2 * size(40));
        cache.pin(PageNumber(1), held(1, 0, 80).payload);
        for number in 2..10 {
            cache.insert(held(number, 0, 40));
        }
        assert_eq!(cache.get(PageNumber(1)), Some(held(1, 0, 80)));
        assert!(!has(&cache, 2));
        assert_eq!(cache.get(PageNumber(9)), Some(held(9, 0, 40)));
        assert_eq!(cache.bytes(), (2 * size(40), 80));
        assert_eq!(cache.first_pinned(PageNumber(0)), Some(held(1, 0, 80)));
        assert_eq!(cache.first_pinned(PageNumber(2)), None);
        // What was not looked at goes first.
        assert!(has(&cache, 8) && has(&cache, 9));
        cache.unpin(PageNumber(1));
        assert!(!has(&cache, 1));
    }

    #[test]
    fn a_page_in_use_outlives_one_that_is_not() {
        let cache = PageCache::new(2 * size(40));
        cache.insert(held(1, 0, 40));
        cache.insert(held(2, 0, 40));
        assert!(has(&cache, 1));
        cache.insert(held(3, 0, 40));
        assert!(has(&cache, 1) && !has(&cache, 2));
    }

    #[test]
    fn a_page_larger_than_the_cache_is_not_kept() {
        let cache = PageCache::new(size(10));
        cache.insert(held(1, 0, 11));
        assert!(!has(&cache, 1));
    }

    #[test]
    fn a_merged_page_takes_the_place_of_what_it_covers() {
        let cache = PageCache::new(1 << 20);
        for number in 1..=5 {
            cache.insert(held(number, 0, 40));
        }
        cache.insert(held(2, 2, 100));
        assert_eq!(cache.get(PageNumber(4)), Some(held(2, 2, 100)));
        assert_eq!(cache.bytes().0, 2 * size(40) + size(100));
        // A late reader brings a page that the merged one has replaced.
        cache.insert(held(3, 0, 40));
        cache.insert(held(2, 0, 40));
        assert_eq!(cache.get(PageNumber(3)), Some(held(2, 2, 100)));
        cache.forget(PageNumber(3)..=PageNumber(5));
        assert!(has(&cache, 1) && !has(&cache, 2) && !has(&cache, 3) && !has(&cache, 5));
        assert_eq!(cache.bytes().0, size(40));
    }
}
