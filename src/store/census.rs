//! How much of what is on disk still counts.
//!
//! Owns the count: the page file's facts of each page beside the index's count
//! of live records, taken in slices between which everyone else gets on.
//! Bytes of a page that is alive in part are taken in proportion.

use super::kind;
use super::shared::Shared;
use crate::env::task;
use crate::pagefile::{PageFacts, PageNumber};

/// Pages that are looked at under one hold of the state's lock.
const SLICE_PAGES: usize = 256;

/// What one segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub id: u128,
    pub first: PageNumber,
    /// Behind its last page.
    pub end: PageNumber,
    pub sealed: bool,
    /// Bytes on disk.
    pub written: u64,
    /// Payload bytes that still count.
    pub live: u64,
}

impl Holding {
    pub fn dead(&self) -> u64 {
        self.written.saturating_sub(self.live)
    }
}

/// All segments, in order, and the oldest page that holds a record which does not count any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub holdings: Vec<Holding>,
    pub oldest_dead: Option<PageNumber>,
}

impl Census {
    pub fn written(&self) -> u64 {
        self.holdings.iter().map(|holding| holding.written).sum()
    }

    pub fn live(&self) -> u64 {
        self.holdings.iter().map(|holding| holding.live).sum()
    }

    pub fn dead(&self) -> u64 {
        self.written().saturating_sub(self.live())
    }

    /// Whether a page below this one holds a record that does not count any more.
    pub fn is_dead_below(&self, page: PageNumber) -> bool {
        self.oldest_dead.is_some_and(|dead| dead < page)
    }

    /// Whether more than `percent` of the bytes are dead.
    pub fn is_above(&self, percent: u8) -> bool {
        u128::from(self.dead()) * 100 > u128::from(self.written()) * u128::from(percent)
    }
}

/// Counts everything, and tells it to whoever asks for sizes.
pub async fn take(shared: &Shared) -> Census {
    let ground = shared.ground();
    let reader = &ground.reader;
    let holdings = reader.segments().into_iter().map(|segment| Holding {
        id: segment.id,
        first: segment.first,
        end: segment.end,
        sealed: segment.sealed,
        written: segment.written,
        live: 0,
    });
    let mut census = Census { holdings: holdings.collect(), oldest_dead: None };
    let written = shared.sizes().written;
    let committed = shared.committed();
    let mark = committed.as_ref().map_or(PageNumber(0), |committed| committed.mark_page);
    let buckets = committed.map(|committed| committed.buckets).unwrap_or_default();
    let counting = Counting { shared, mark, buckets };
    let mut from = PageNumber(0);
    let mut at = 0;
    loop {
        let pages = reader.pages(from, SLICE_PAGES);
        let Some(last) = pages.last() else { break };
        let behind = last.number.behind(last.span);
        assert!(behind > from, "pages ascend");
        from = behind;
        counting.add(&mut census, &mut at, &pages);
        task::yield_now().await;
    }
    shared.set_in_use(census.live(), written);
    census
}

struct Counting<'a> {
    shared: &'a Shared,
    mark: PageNumber,
    buckets: Vec<PageNumber>,
}

impl Counting<'_> {
    /// One slice of pages under one hold of the lock; `at` is the holding that the last page was in.
    fn add(&self, census: &mut Census, at: &mut usize, pages: &[PageFacts]) {
        let state = self.shared.state();
        for page in pages {
            while census.holdings.get(*at).is_some_and(|holding| holding.end <= page.number) {
                *at += 1;
            }
            let live = match page.kind {
                kind::RECORDS => {
                    let counted = state.mvcc().live_records(page.number..=page.number.last(page.span));
                    if counted < page.label.weight && census.oldest_dead.is_none() {
                        // All of a page that is copied goes in one step.
                        census.oldest_dead = Some(page.number.last(page.span));
                    }
                    in_proportion(page, counted)
                }
                kind::MARK if page.number < self.mark => 0,
                kind::BUCKETS if !self.buckets.contains(&page.number) => 0,
                _ => u64::from(page.length),
            };
            // A segment that came after the list was made counts next time.
            let holding = census.holdings.get_mut(*at).filter(|holding| holding.first <= page.number);
            if let Some(holding) = holding {
                holding.live += live;
            }
        }
    }
}

fn in_proportion(page: &PageFacts, counted: u32) -> u64 {
    match page.label.weight {
        0 => 0,
        weight => u64::from(page.length) * u64::from(counted.min(weight)) / u64::from(weight),
    }
}
