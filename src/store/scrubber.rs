//! Pages read to see that they are well.
//!
//! Every page of the store, one after the other, spread over the scrub
//! interval. **Promises** that damage is told only when it was read twice (I6).
//! **Never** repairs: another member has the data.

use super::Store;
use super::ground::Ground;
use super::shared::Shared;
use crate::pagefile::{Error, PageFacts, PageNumber};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pages whose facts are taken at once.
const SLICE_PAGES: usize = 64;
/// Bytes read between two pauses.
const STEP_BYTES: u64 = 256 << 10;
/// A pass over a small store still takes this many steps, so that its pages are not read in one go.
const STEPS_MIN: u64 = 16;

/// A damaged page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rot in the store: {path}: the page at byte {position}, which holds pages {} to {}, is damaged: {what}",
    first.0,
    last.0
)]
pub struct Rot {
    pub path: PathBuf,
    /// Bytes from the start of the file.
    pub position: u64,
    /// The page numbers that it stands for.
    pub first: PageNumber,
    pub last: PageNumber,
    pub what: &'static str,
}

pub async fn run(shared: Arc<Shared>) {
    let closed = shared.clone();
    let work = async {
        if shared.options.scrub_interval.is_zero() {
            std::future::pending::<()>().await;
        }
        loop {
            pass(&shared).await;
        }
    };
    tokio::select! {
        biased;
        () = closed.until_closed() => {}
        () = work => {}
    }
}

/// One pass, which takes the scrub interval.
async fn pass(shared: &Shared) {
    let written = shared.sizes().written;
    let steps = (written / STEP_BYTES).max(STEPS_MIN);
    let pause = shared.options.scrub_interval.checked_div(u32::try_from(steps).unwrap_or(u32::MAX));
    let pause = pause.unwrap_or_default().max(Duration::from_millis(1));
    let step_bytes = (written / steps).max(1);
    let mut read = 0;
    let mut at = PageNumber(0);
    shared.clock.sleep(pause).await;
    loop {
        let ground = shared.ground();
        let pages = ground.reader.pages(at, SLICE_PAGES);
        let Some(last) = pages.last() else { break };
        at = last.number.behind(last.span);
        for page in &pages {
            look(shared, &ground, page).await;
            shared.tally.scrubbed_bytes.fetch_add(u64::from(page.footprint), Ordering::Relaxed);
            read += u64::from(page.footprint);
            if read >= step_bytes {
                read = 0;
                shared.clock.sleep(pause).await;
            }
        }
    }
    shared.tally.scrub_passes.fetch_add(1, Ordering::Relaxed);
    crate::reached!("scrubber's pass");
}

impl Store {
    /// Reads the page that stands for a number from the disk and checks it, twice if it seems damaged. A
    /// page that is gone is well.
    ///
    /// # Errors
    /// What was found.
    pub async fn verify(&self, number: PageNumber) -> Result<(), Rot> {
        let ground = self.shared.ground();
        let page = ground.reader.pages(number, 1).into_iter().find(|page| page.number <= number);
        if let Some(page) = page {
            look(&self.shared, &ground, &page).await;
        }
        self.shared.rot.borrow().clone().map_or(Ok(()), Err)
    }
}

/// Reads one page from the disk, twice if it seems damaged.
pub async fn look(shared: &Shared, ground: &Ground, page: &PageFacts) {
    for again in [false, true] {
        match ground.reader.verify(page.number).await {
            Err(error @ Error::Rot { .. }) if again => {
                shared.told_twice(&ground.reader, page.number, &error);
            }
            Err(Error::Rot { .. }) => {}
            Err(error @ Error::Io { .. }) => {
                tracing::warn!(%error, "a page could not be read to check it");
                return;
            }
            // Well, or gone meanwhile.
            _ => return,
        }
    }
}
