//! A look at a stopped member: the store is read, nothing is ever written.

use super::applier::{Applier, Parts};
use super::cache::PageCache;
use super::ground::Ground;
use super::shared::{Committed, Shared};
use super::{Error, Options, Position, Store, View, kind, open};
use crate::env::Env;
use crate::members::Members;
use crate::pagefile::{Opened, Page, PageFile, PageNumber};
use prost::Message;
use quorate_proto::quorate::v1::{BucketPage, StoreMark};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

impl Store {
    /// Opens the store in `dir` for reading: no file is made, changed or removed, the checkpoint is
    /// left alone. Entries can be applied to it in memory; a commit fails with [`Error::Closed`].
    pub async fn open_read_only(
        env: &Env,
        dir: PathBuf,
        initial: Members,
    ) -> Result<(Store, Applier, Position, Opened), Error> {
        let (reader, opened) = PageFile::open_read_only(env.disk.clone(), dir).await?;
        let mark = open::last_mark(&reader).await?;
        let mut state = open::marked(&initial, mark.as_ref())?;
        open::load(&mut state, &reader, PageNumber(0)).await?;
        let next_page = PageNumber(opened.last_page.unwrap_or_default().0 + 1);
        state.set_next_page(next_page);
        let lineage = mark.as_ref().map_or(0, |(_, mark)| mark.lineage);
        let committed = mark.map(|(page, mark)| Committed::new(page, &mark));
        let position = committed.as_ref().map(|committed| committed.position.clone()).unwrap_or_default();
        let options = Options::default();
        let ground = Ground { reader, cache: PageCache::new(options.cache_bytes) };
        let (defragment, _) = mpsc::channel(1);
        let (compactions, _) = mpsc::channel(1);
        let clock = env.clock.clone();
        let shared = Arc::new(Shared::new(state, ground, committed, defragment, clock, options));
        shared.set_written(shared.ground().reader.segments().iter().map(|segment| segment.written).sum());
        drop(super::census::take(&shared).await);
        let applier = Applier::new(Parts {
            shared: shared.clone(),
            jobs: None,
            compactions,
            rng: env.rng.clone(),
            next_page,
            lineage,
        });
        Ok((Store { shared }, applier, position, opened))
    }

    /// Imported buckets that nothing here serves yet, in the order of their pages.
    pub async fn buckets(&self) -> Result<Vec<BucketPage>, Error> {
        let (view, mark) = self.marked_view();
        view.buckets(&mark).await
    }
}

fn bucket_page(page: Page) -> Result<BucketPage, Error> {
    let number = page.number.0;
    if page.kind != kind::BUCKETS {
        return Err(Error::Decode(format!("page {number}: kind {} is not buckets'", page.kind)));
    }
    BucketPage::decode(page.payload).map_err(|error| Error::Decode(format!("page {number}: {error}")))
}

impl View {
    /// The buckets that a mark of the same moment names.
    pub async fn buckets(&self, mark: &StoreMark) -> Result<Vec<BucketPage>, Error> {
        let mut buckets = Vec::with_capacity(mark.bucket_pages.len());
        for number in mark.bucket_pages.iter().copied() {
            let page = self.shared().read_page(&self.ground().reader, PageNumber(number)).await?;
            buckets.push(bucket_page(page)?);
        }
        Ok(buckets)
    }
}
