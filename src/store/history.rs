//! History of a view: records in the order of revisions, in bounded slices.
//!
//! Owns the feeding of mvcc's plan: pages in order where the window holds much
//! of them, single places where it holds little.

use super::ground::Fetched;
use super::view::{SLICE_KEYS, View};
use super::walk::Walk;
use super::{ReadError, kind};
use crate::env::task;
use crate::mvcc::{self, Change, ScanCost};
use crate::pagefile::PageNumber;

/// Records in one slice that come from the index.
const SLICE_RECORDS: usize = 256;
/// Pages whose facts are summed up at once.
const FACTS_MAX: usize = 512;

/// Records of a range of keys, as a finished compaction would have left them.
pub struct History {
    view: View,
    inner: mvcc::History,
    /// Pages before this one were fed.
    next: PageNumber,
    ended: bool,
}

impl View {
    /// History of the keys `key` to `range_end` (as in a request), revisions `from` to `to`, both
    /// included; `from` 0 = from the beginning of what compaction left, `to` 0 = up to the view's.
    pub async fn history(
        &self,
        key: &[u8],
        range_end: &[u8],
        from: i64,
        to: i64,
    ) -> Result<History, ReadError> {
        let first = u64::try_from(from).unwrap_or(0);
        let last = if to <= 0 { self.revision() } else { to };
        // Records of one revision may lie in several pages: those before it come first.
        let start = self.ground().reader.page_at(first.saturating_sub(1)).unwrap_or_default();
        let cost = self.scan_cost(start, u64::try_from(last).unwrap_or(0)).await;
        let view = self.inner();
        let mut plan =
            self.look(|state| state.mvcc().history_plan(view, key, range_end, (from, to), cost))??;
        while !self.look(|state| plan.step(state.mvcc(), SLICE_KEYS))? {
            task::yield_now().await;
        }
        Ok(History { view: self.clone(), inner: plan.finish(), next: start, ended: false })
    }

    /// All records, in order: what an export or a copy needs.
    pub async fn records(&self) -> Result<History, ReadError> {
        self.history(&[], &[0], 0, 0).await
    }

    /// What reading the pages from `start` up to revision `last` costs.
    async fn scan_cost(&self, start: PageNumber, last: u64) -> ScanCost {
        let mut cost = ScanCost { pages: 0, records: 0 };
        let mut from = start;
        loop {
            let pages = self.ground().reader.pages(from, FACTS_MAX);
            for page in &pages {
                if page.label.first > last {
                    return cost;
                }
                if page.kind == kind::RECORDS {
                    cost.pages += 1;
                    cost.records += u64::from(page.label.weight);
                }
            }
            match pages.last() {
                Some(page) => from = page.number.behind(page.span),
                None => return cost,
            }
            task::yield_now().await;
        }
    }
}

impl History {
    /// The next records; `None` at the end. A slice may be empty.
    pub async fn next(&mut self) -> Result<Option<Vec<Change>>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        if self.inner.wants_pages() { self.next_of_pages().await } else { self.next_of_index().await }
    }

    async fn next_of_index(&mut self) -> Result<Option<Vec<Change>>, ReadError> {
        let mut pages = Fetched::new(self.view.ground().clone());
        loop {
            let inner = &mut self.inner;
            match self.view.look(|state| inner.slice(state.mvcc(), &pages, SLICE_RECORDS))? {
                Ok(changes) if changes.is_empty() => {
                    self.ended = true;
                    return Ok(None);
                }
                Ok(changes) => return Ok(Some(changes)),
                Err(missing) => pages.fetch(self.view.shared(), &missing).await?,
            }
        }
    }

    /// Goes through pages until some record belongs in the window.
    async fn next_of_pages(&mut self) -> Result<Option<Vec<Change>>, ReadError> {
        let view = self.view.clone();
        let mut walk = Walk::new(&view, self.next);
        loop {
            let Some(page) = walk.next().await? else {
                self.ended = true;
                return Ok(None);
            };
            let inner = &mut self.inner;
            let fed = view.look(|state| inner.feed(state.mvcc(), page.number, &page.payload))?;
            let (changes, goes_on) =
                fed.map_err(|error| ReadError::Decode(format!("page {}: {error}", page.number.0)))?;
            self.next = page.number.behind(page.span);
            self.ended = !goes_on;
            if !changes.is_empty() || self.ended {
                return Ok(Some(changes));
            }
            task::yield_now().await;
        }
    }
}
