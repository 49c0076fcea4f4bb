//! Reads at one moment: a revision, and everything that was readable then.
//!
//! Owns the pin that keeps it readable: physical compaction goes only as far as
//! the oldest view allows. **Promises** that a view never mixes two moments; a
//! peer's snapshot that takes the store's place ends it
//! ([`ReadError::Replaced`]). **Never** holds a lock between two slices.

use super::ground::{Fetched, Ground};
use super::shared::Shared;
use super::{ReadError, Store};
use crate::machine::State;
use crate::mvcc::{self, Missing, RangeSlice};
use bytes::Bytes;
use quorate_proto::quorate::v1::StoreMark;
use std::sync::Arc;

/// Keys that one look at the state goes over.
pub const SLICE_KEYS: usize = 512;

/// A moment of the store; cheap to clone. Keep it no longer than needed: what is compacted
/// meanwhile stays in memory and on disk.
#[derive(Clone)]
pub struct View {
    pinned: Arc<Pinned>,
}

struct Pinned {
    shared: Arc<Shared>,
    ground: Arc<Ground>,
    view: mvcc::View,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut state = self.shared.state_mut();
        if Arc::ptr_eq(&self.shared.ground(), &self.ground) {
            state.unpin(self.view.compacted);
        }
        drop(state);
        self.shared.compact_more.notify_one();
    }
}

impl View {
    /// Takes over a pin: of the mark before a compaction at `revision`.
    pub(super) fn adopted(shared: Arc<Shared>, ground: Arc<Ground>, revision: i64, compacted: i64) -> View {
        let view = mvcc::View { revision, compacted };
        View { pinned: Arc::new(Pinned { shared, ground, view }) }
    }

    /// The revision that it shows.
    pub fn revision(&self) -> i64 {
        self.pinned.view.revision
    }

    /// Revisions below are compacted; -1 = none is.
    pub fn compacted(&self) -> i64 {
        self.pinned.view.compacted
    }

    /// Whether it still shows the store that is there.
    pub fn stands(&self) -> bool {
        Arc::ptr_eq(&self.pinned.shared.ground(), &self.pinned.ground)
    }

    pub(super) fn inner(&self) -> mvcc::View {
        self.pinned.view
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.pinned.shared
    }

    pub(super) fn ground(&self) -> &Arc<Ground> {
        &self.pinned.ground
    }

    /// One look at the state.
    pub(super) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, ReadError> {
        let state = self.pinned.shared.state();
        if !self.stands() {
            crate::reached!("view of a store that was replaced");
            return Err(ReadError::Replaced);
        }
        Ok(look(&state))
    }

    /// Looks until no page lacks.
    pub(super) async fn read<T>(
        &self,
        mut look: impl FnMut(&State, &Fetched) -> Result<T, Missing>,
    ) -> Result<T, ReadError> {
        let mut pages = Fetched::new(self.pinned.ground.clone());
        loop {
            match self.look(|state| look(state, &pages))? {
                Ok(answer) => return Ok(answer),
                Err(missing) => pages.fetch(&self.pinned.shared, &missing).await?,
            }
        }
    }

    /// Up to `limit` pairs from `key` on, at `revision` (0 = the view's); `range_end` as in a request.
    pub async fn slice(
        &self,
        key: &[u8],
        range_end: &[u8],
        revision: i64,
        limit: usize,
        keys_only: bool,
    ) -> Result<RangeSlice, ReadError> {
        let view = self.inner();
        let slice = self
            .read(|state, pages| state.range_slice(view, key, range_end, revision, limit, keys_only, pages))
            .await?;
        Ok(slice?)
    }

    /// Live keys of a range at `revision` (0 = the view's).
    pub async fn count(&self, key: &[u8], range_end: &[u8], revision: i64) -> Result<u64, ReadError> {
        let view = self.inner();
        let mut from = Bytes::copy_from_slice(key);
        let mut count = 0;
        loop {
            let slice =
                self.look(|state| state.mvcc().count_slice(view, &from, range_end, revision, SLICE_KEYS))??;
            count += slice.0;
            match slice.1 {
                Some(next) => from = next,
                None => return Ok(count),
            }
            crate::env::task::yield_now().await;
        }
    }
}

impl Store {
    /// The store as it is now, applied but perhaps not durable yet.
    pub fn view(&self) -> View {
        let mut state = self.shared.state_mut();
        self.pinned(&mut state)
    }

    /// The same, and everything of the moment that is no record.
    pub fn marked_view(&self) -> (View, StoreMark) {
        let mut state = self.shared.state_mut();
        let view = self.pinned(&mut state);
        let mark = state.mark();
        assert_eq!((mark.revision, mark.compacted), (view.revision(), view.compacted()), "of one moment");
        (view, mark)
    }

    fn pinned(&self, state: &mut State) -> View {
        let view = state.mvcc().view();
        let compacted = state.pin();
        assert_eq!(compacted, view.compacted, "the mark is pinned where it stands");
        let ground = self.shared.ground();
        View { pinned: Arc::new(Pinned { shared: self.shared.clone(), ground, view }) }
    }
}
