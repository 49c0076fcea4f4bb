//! Pages read to see that they are well.
//!
//! Every page of the store, one after the other, spread over the scrub
//! interval. **Promises** that damage is told only when it was read twice (I6).
//! **Never** repairs: another member has the data.

use super::shared::Shared;
use crate::pagefile::{Error, PageFacts};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Pages whose facts are taken at once.
const SLICE_PAGES: usize = 64;
/// Bytes read between two pauses.
const STEP_BYTES: u64 = 256 << 10;
/// A pass over a small store still takes this many steps, so that its pages are not read in one go.
const STEPS_MIN: u64 = 16;

/// A damaged page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    pub path: PathBuf,
    /// Bytes from the start of the file.
    pub position: u64,
    pub what: &'static str,
}

pub async fn run(shared: Arc<Shared>) {
    let closed = shared.clone();
    let work = async {
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
    let mut at = crate::pagefile::PageNumber(0);
    shared.clock.sleep(pause).await;
    loop {
        let ground = shared.ground();
        let pages = ground.reader.pages(at, SLICE_PAGES);
        let Some(last) = pages.last() else { break };
        at = super::census::behind(last);
        for page in &pages {
            look(shared, &ground, page).await;
            read += u64::from(page.footprint);
            if read >= step_bytes {
                read = 0;
                shared.clock.sleep(pause).await;
            }
        }
    }
    crate::reached!("scrubber's pass");
}

/// Reads one page from the disk, twice if it seems damaged.
pub async fn look(shared: &Shared, ground: &super::ground::Ground, page: &PageFacts) {
    for again in [false, true] {
        match ground.reader.verify(page.number).await {
            Err(Error::Rot { path, position, what }) if again => {
                shared.rotten(Rot { path, position, what });
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
