//! Pages in memory: those not yet on disk are pinned, the rest is kept within
//! a bound of bytes, least recently used by a second-chance clock.

use crate::mvcc::Pages;
use crate::pagefile::PageNumber;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;

pub struct PageCache {
    inner: Mutex<Inner>,
    bytes_max: u64,
}

#[derive(Default)]
struct Inner {
    /// Applied but not yet readable from disk.
    pinned: BTreeMap<PageNumber, Bytes>,
    cached: HashMap<PageNumber, Cached>,
    /// Each cached page stands here once; the front is looked at first.
    clock: VecDeque<PageNumber>,
    cached_bytes: u64,
}

struct Cached {
    payload: Bytes,
    used: bool,
}

impl PageCache {
    pub fn new(bytes_max: u64) -> PageCache {
        PageCache { inner: Mutex::default(), bytes_max }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the cache is locked")
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
            inner.insert(page, payload, self.bytes_max);
        }
    }

    /// Keeps what was read from disk.
    pub fn insert(&self, page: PageNumber, payload: Bytes) {
        self.locked().insert(page, payload, self.bytes_max);
    }

    /// Forgets everything (the store was replaced).
    pub fn clear(&self) {
        *self.locked() = Inner::default();
    }

    /// Bytes of evictable pages, of pinned pages.
    #[cfg(test)]
    pub fn bytes(&self) -> (u64, u64) {
        let inner = self.locked();
        (inner.cached_bytes, inner.pinned.values().map(|page| page.len() as u64).sum())
    }
}

impl Inner {
    fn insert(&mut self, page: PageNumber, payload: Bytes, bytes_max: u64) {
        let size = payload.len() as u64;
        if size > bytes_max || self.pinned.contains_key(&page) {
            return;
        }
        if let Some(before) = self.cached.insert(page, Cached { payload, used: false }) {
            self.cached_bytes -= before.payload.len() as u64;
        } else {
            self.clock.push_back(page);
        }
        self.cached_bytes += size;
        while self.cached_bytes > bytes_max {
            let oldest = self.clock.pop_front().expect("bytes are cached, so a page is");
            let entry = self.cached.get_mut(&oldest).expect("each page of the clock is cached");
            if entry.used && oldest != page {
                entry.used = false;
                self.clock.push_back(oldest);
                continue;
            }
            let gone = self.cached.remove(&oldest).expect("looked up above");
            self.cached_bytes -= gone.payload.len() as u64;
        }
        assert_eq!(self.clock.len(), self.cached.len(), "each cached page stands in the clock once");
    }

    fn get(&mut self, page: PageNumber) -> Option<Bytes> {
        if let Some(entry) = self.cached.get_mut(&page) {
            entry.used = true;
            return Some(entry.payload.clone());
        }
        self.pinned.get(&page).cloned()
    }
}

impl Pages for PageCache {
    fn get(&self, page: PageNumber) -> Option<Bytes> {
        self.locked().get(page)
    }
}

/// The cache and, before it, pages that one call fetched for itself: however
/// small the cache is, a call that fetched what it lacked gets on.
pub struct Fetched<'a> {
    pub cache: &'a PageCache,
    pub own: &'a BTreeMap<PageNumber, Bytes>,
}

impl Pages for Fetched<'_> {
    fn get(&self, page: PageNumber) -> Option<Bytes> {
        self.own.get(&page).cloned().or_else(|| self.cache.get(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8, length: usize) -> Bytes {
        Bytes::from(vec![byte; length])
    }

    #[test]
    fn a_pinned_page_stays_and_a_cached_one_goes_when_space_is_short() {
        let cache = PageCache::new(100);
        cache.pin(PageNumber(1), page(1, 80));
        for number in 2..10 {
            cache.insert(PageNumber(number), page(2, 40));
        }
        assert_eq!(cache.get(PageNumber(1)), Some(page(1, 80)));
        assert_eq!(cache.get(PageNumber(2)), None);
        assert_eq!(cache.get(PageNumber(9)), Some(page(2, 40)));
        assert_eq!(cache.bytes(), (80, 80));
    }

    #[test]
    fn a_page_in_use_outlives_one_that_is_not() {
        let cache = PageCache::new(100);
        cache.insert(PageNumber(1), page(1, 40));
        cache.insert(PageNumber(2), page(2, 40));
        assert!(cache.get(PageNumber(1)).is_some());
        cache.insert(PageNumber(3), page(3, 40));
        assert!(cache.get(PageNumber(1)).is_some());
        assert!(cache.get(PageNumber(2)).is_none());
    }

    #[test]
    fn a_page_larger_than_the_cache_is_not_kept() {
        let cache = PageCache::new(10);
        cache.insert(PageNumber(1), page(1, 11));
        assert_eq!(cache.get(PageNumber(1)), None);
    }
}
