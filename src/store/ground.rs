//! What the state stands on: the pages on disk and those in memory.
//!
//! Owns the pairing of one reader with one cache. A snapshot that is installed
//! brings its own page numbers, so both are replaced together, under the
//! state's lock: a page of one ground is never taken for one of another.

use super::Shared;
use super::cache::{Held, PageCache};
use crate::mvcc::{Missing, Pages};
use crate::pagefile::{self, PageNumber, PageReader};
use bytes::Bytes;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pages of one call that are read from the disk side by side.
const READS_MAX: usize = 8;

pub struct Ground {
    pub reader: PageReader,
    pub cache: PageCache,
}

/// The cache and, before it, the pages that one call fetched for itself:
/// however small the cache is, a call that fetched what it lacked gets on.
pub struct Fetched {
    ground: Arc<Ground>,
    /// By the number that was asked for; a merged page stands under several.
    own: BTreeMap<PageNumber, Held>,
    /// Named as lacking, and not there: gone since the look that named it.
    gone: Option<PageNumber>,
}

impl Fetched {
    pub fn new(ground: Arc<Ground>) -> Fetched {
        Fetched { ground, own: BTreeMap::new(), gone: None }
    }

    /// Goes over to the ground that the state stands on now. Call it with the state locked.
    pub fn follow(&mut self, ground: &Arc<Ground>) {
        if !Arc::ptr_eq(&self.ground, ground) {
            crate::reached!("a call saw the store replaced");
            *self = Fetched::new(ground.clone());
        }
    }

    /// Reads the pages that a call lacks. A page that is gone is no error yet:
    /// what it held may have been compacted since the state was looked at.
    pub async fn fetch(&mut self, shared: &Shared, missing: &Missing) -> Result<(), pagefile::Error> {
        crate::reached!("page fetched from disk");
        assert!(!missing.0.is_empty(), "a call that lacks pages names them");
        let ground = &self.ground;
        let reads = futures::stream::iter(missing.0.iter().copied())
            .map(|number| async move { (number, shared.read_page(&ground.reader, number).await) });
        let mut reads = reads.buffered(READS_MAX);
        let mut gone = None;
        while let Some((number, page)) = reads.next().await {
            match page {
                Ok(page) => {
                    let held = Held { number: page.number, span: page.span, payload: page.payload };
                    assert!(held.covers(number), "a page says which ones it stands for");
                    self.ground.cache.insert(held.clone());
                    self.own.insert(number, held);
                }
                Err(pagefile::Error::NoSuchPage { .. }) if self.gone != Some(number) => {
                    crate::reached!("page gone between look and read");
                    gone = Some(number);
                }
                Err(error) => return Err(error),
            }
        }
        drop(reads);
        self.gone = gone;
        Ok(())
    }
}

impl Pages for Fetched {
    fn get(&self, page: PageNumber) -> Option<Bytes> {
        let held = self.own.get(&page).cloned().or_else(|| self.ground.cache.get(page))?;
        Some(held.payload)
    }
}
