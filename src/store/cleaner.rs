//! Space given back while serving.
//!
//! Owns the choice of what to clean, and the copying: a run of adjacent sealed
//! segments gives way to one that holds what survives of them. It begins by
//! itself when enough is dead, works in small steps, and rests after each for
//! as long as it took. **Promises** that a deletion's record goes only when
//! nothing older of its key is left below it, in pages or in the checkpoint;
//! that no record leaves the index meanwhile; that the last mark and the
//! buckets in use stay. **Never** touches the page file: it asks its writer.

use super::census::{self, Census, Holding};
use super::checkpoint::Checkpoint;
use super::shared::Shared;
use super::writer::Chore;
use super::{Error, Store, kind};
use crate::env::{Moment, task};
use crate::mvcc::{Merge, PAGE_BYTES, Place, Record, records, word_of};
use crate::pagefile::{self, CommitNumber, Copy, Label, Page, PageNumber};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Bytes copied between two rests.
const STEP_BYTES: u64 = 128 << 10;
/// Dropped records that are counted out under one hold of the state's lock.
const SETTLE_RECORDS: usize = 512;
/// A rest is at least this long.
const REST_MIN: Duration = Duration::from_millis(1);
/// Share of dead bytes that a full cleaning leaves, in percent.
const DEFRAGMENTED_PERCENT: u8 = 5;
/// A segment is worth cleaning when this share of it can go, in percent ...
const GAIN_PERCENT: u64 = 5;
/// ... while paddings and headers of well filled pages take about this part of it.
const FRAMING_PART: u64 = 32;
/// This many small segments in a row are merged, dead bytes or not.
const SMALL_RUN: usize = 8;
/// Full cleanings that wait for each other.
pub const REQUESTS_MAX: usize = 16;

/// Why a copy was not finished.
enum Stopped {
    /// There is no space for it; later, perhaps.
    NoSpace,
    /// The writer has ended.
    Closed,
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        match &error {
            Error::Closed => Stopped::Closed,
            Error::PageFile(inner) if inner.is_no_space() => Stopped::NoSpace,
            _ => Stopped::Failed(error),
        }
    }
}

impl From<crate::pagefile::Error> for Stopped {
    fn from(error: crate::pagefile::Error) -> Stopped {
        Error::from(error).into()
    }
}

/// What the last copy could not take away.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// Dead bytes that stay dead whatever is done.
    dead: u64,
    /// Bytes of deletions' records that something older still needs.
    deletions: u64,
}

pub struct Cleaner {
    shared: Arc<Shared>,
    chores: mpsc::Sender<Chore>,
    checkpoint: Arc<tokio::sync::Mutex<Checkpoint>>,
    /// By the number of its first page: segments that were just made by a copy.
    rests: BTreeMap<PageNumber, Rest>,
    /// Commits and compacted mark at the last look: nothing is new before they change.
    looked_at: Option<(u64, i64)>,
}

/// Which segments of a census are copied together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    at: Range<usize>,
}

impl Cleaner {
    pub fn new(
        shared: Arc<Shared>,
        chores: mpsc::Sender<Chore>,
        checkpoint: Arc<tokio::sync::Mutex<Checkpoint>>,
    ) -> Cleaner {
        Cleaner { shared, chores, checkpoint, rests: BTreeMap::new(), looked_at: None }
    }

    pub async fn run(mut self, mut requests: mpsc::Receiver<oneshot::Sender<()>>) {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = shared.until_closed() => {}
            () = self.work(&mut requests) => {}
        }
    }

    async fn work(&mut self, requests: &mut mpsc::Receiver<oneshot::Sender<()>>) {
        let shared = self.shared.clone();
        loop {
            let request = tokio::select! {
                biased;
                request = requests.recv() => match request {
                    Some(request) => Some(request),
                    None => return,
                },
                () = shared.clean_more.notified() => None,
                () = shared.clock.sleep(shared.options.clean_interval) => None,
            };
            let done = match &request {
                Some(_) => self.defragment().await,
                None => self.clean_if_due().await,
            };
            match done {
                Ok(()) => {}
                Err(Stopped::Closed) => return,
                Err(Stopped::NoSpace) => {
                    crate::reached!("no space to clean");
                    tracing::warn!("cleaning waits for disk space");
                }
                // The member leaves for it: see who watches the rot.
                Err(Stopped::Failed(_)) if self.shared.rot.borrow().is_some() => return,
                Err(Stopped::Failed(Error::PageFile(error @ pagefile::Error::Rot { .. }))) => {
                    crate::reached!("a page was damaged when cleaned and well when read again");
                    tracing::warn!(%error, "cleaning was given up: a page read as damaged, and well the second time");
                }
                Err(Stopped::Failed(error)) => return self.shared.fail("cannot clean the store", &error),
            }
            if let Some(request) = request {
                // Who asked may have gone.
                let _ = request.send(());
            }
        }
    }

    /// The cleaning that begins by itself.
    async fn clean_if_due(&mut self) -> Result<(), Stopped> {
        let options = &self.shared.options;
        let (from, to) = (options.clean_from_percent, options.clean_to_percent);
        let pressed = self.is_pressed();
        let now = Some((*self.shared.commits.borrow(), self.shared.compacted.reached()));
        if now == self.looked_at && !pressed {
            return Ok(());
        }
        self.looked_at = now;
        let census = self.census().await;
        if census.is_above(from) || pressed {
            self.clean(census, if pressed { DEFRAGMENTED_PERCENT.min(to) } else { to }).await?;
        } else if let Some(run) = small_run(&census, self.shared.options.segment_size) {
            crate::reached!("small segments merged");
            self.copy(&census, run).await?;
        }
        Ok(())
    }

    fn is_pressed(&self) -> bool {
        self.shared.starved.load(Ordering::Acquire) || !self.shared.has_reserve()
    }

    /// Cleans as far as it goes: the checkpoint is renewed first, so that no
    /// slice holds up a deletion's record, and the newest segment is sealed.
    async fn defragment(&mut self) -> Result<(), Stopped> {
        crate::reached!("defragmentation");
        let renewed = Checkpoint::renew(&self.checkpoint, &self.shared).await;
        renewed.map_err(Stopped::from)?;
        let census = self.census().await;
        if let Some(last) = census.holdings.last()
            && !last.sealed
            && last.dead() * 100 > last.written * u64::from(DEFRAGMENTED_PERCENT)
        {
            let (answer, sealed) = oneshot::channel();
            match self.ask(Chore::Seal { answer }, sealed).await.map_err(Stopped::from) {
                // What is sealed already may give some space back.
                Err(Stopped::NoSpace) => {}
                sealed => sealed?,
            }
        }
        let census = self.census().await;
        self.clean(census, DEFRAGMENTED_PERCENT).await
    }

    /// [`Cleaner::defragment`] with its failure told; lack of space is none.
    #[cfg(test)]
    pub async fn defragment_now(&mut self) -> Result<(), Error> {
        match self.defragment().await {
            Ok(()) | Err(Stopped::NoSpace) => Ok(()),
            Err(Stopped::Closed) => Err(Error::Closed),
            Err(Stopped::Failed(error)) => Err(error),
        }
    }

    async fn census(&mut self) -> Census {
        let census = census::take(&self.shared).await;
        self.rests.retain(|first, _| census.holdings.iter().any(|holding| holding.first == *first));
        census
    }

    /// Copies runs until at most `percent` of all bytes are dead, or nothing more can be gained.
    async fn clean(&mut self, mut census: Census, percent: u8) -> Result<(), Stopped> {
        while census.is_above(percent) {
            let oldest_slice = self.checkpoint.lock().await.oldest_slice();
            let Some(run) = self.choose(&census, oldest_slice) else { break };
            if self.copy(&census, run).await?.is_none() {
                // The store was replaced: what is there now is another matter.
                break;
            }
            census = self.census().await;
        }
        Ok(())
    }

    /// Bytes that copying a segment would give back.
    fn gain(&self, census: &Census, holding: &Holding, oldest_slice: u64) -> u64 {
        if !holding.sealed {
            return 0;
        }
        let gain = match self.rests.get(&holding.first) {
            Some(rest) => {
                let freed = !census.is_dead_below(holding.first) && word_of(holding.end) <= oldest_slice;
                let rest = if freed { rest.dead - rest.deletions } else { rest.dead };
                holding.dead().saturating_sub(rest)
            }
            None => holding.dead().saturating_sub(holding.live / FRAMING_PART),
        };
        if gain * 100 >= holding.written * GAIN_PERCENT { gain } else { 0 }
    }

    /// The segment with the largest share to gain, and neighbours that go into the same copy.
    fn choose(&self, census: &Census, oldest_slice: u64) -> Option<Run> {
        let holdings = &census.holdings;
        let gain = |at: usize| self.gain(census, &holdings[at], oldest_slice);
        let share = |at: usize| u128::from(gain(at)) * 1000 / u128::from(holdings[at].written.max(1));
        let best =
            (0..holdings.len()).filter(|at| gain(*at) > 0).max_by_key(|at| (share(*at), usize::MAX - at))?;
        let (size, pressed) = (self.shared.options.segment_size, self.is_pressed());
        let mut run = best..best + 1;
        let sum =
            |run: &Range<usize>, of: fn(&Holding) -> u64| holdings[run.clone()].iter().map(of).sum::<u64>();
        loop {
            // While space is short each copy is as small as can be: what is all dead needs no file.
            let joins = |at: usize| {
                !pressed && holdings[at].sealed && (gain(at) > 0 || holdings[at].written < size / 4)
            };
            let wider = if run.end < holdings.len() && joins(run.end) {
                run.start..run.end + 1
            } else if run.start > 0 && joins(run.start - 1) {
                run.start - 1..run.end
            } else {
                break;
            };
            if sum(&wider, |holding| holding.live) > size || sum(&wider, |holding| holding.written) > 4 * size
            {
                break;
            }
            run = wider;
        }
        Some(Run { at: run })
    }

    /// Copies a run and has the copy adopted; bytes given back, `None` if it came too late.
    async fn copy(&mut self, census: &Census, run: Run) -> Result<Option<u64>, Stopped> {
        let shared = self.shared.clone();
        // From here on no record leaves the index: what was counted stays so.
        let _alone = shared.physical.lock().await;
        while !shared.state_mut().settle(SETTLE_RECORDS) {
            crate::reached!("cleaner between two steps of a compaction");
            task::yield_now().await;
        }
        let chosen = &census.holdings[run.at];
        let (first, end) = (chosen[0].first, chosen[chosen.len() - 1].end);
        let fresh = census::take(&shared).await;
        let victims: Vec<u128> = chosen.iter().map(|holding| holding.id).collect();
        let Some(at) = fresh
            .holdings
            .windows(victims.len())
            .position(|window| window.iter().map(|holding| holding.id).eq(victims.iter().copied()))
        else {
            return Ok(None);
        };
        let live: u64 = fresh.holdings[at..at + victims.len()].iter().map(|holding| holding.live).sum();
        let keep = Keep {
            // A dead record below the run keeps deletions above it; inside the
            // run none is left, and everything goes in one step.
            oldest_dead: fresh.oldest_dead.filter(|dead| *dead < first).unwrap_or(NEVER),
            oldest_slice: self.checkpoint.lock().await.oldest_slice(),
            mark: shared.committed().map_or(PageNumber(0), |committed| committed.mark_page),
            buckets: shared.committed().map(|committed| committed.buckets).unwrap_or_default(),
        };
        let (answer, begun) = oneshot::channel();
        let bytes = live + live / FRAMING_PART;
        let Some(copy) = self.ask(Chore::BeginCopy { victims, bytes, answer }, begun).await? else {
            return Ok(None);
        };
        let mut copying =
            Copying { shared: &shared, copy, merge: Merge::new(), keep, deletions: 0, last: None };
        copying.all(first, end).await?;
        let deletions = copying.deletions;
        let copied = copying.copy.finish().await?;
        let size = copied.size();
        let (answer, adopted) = oneshot::channel();
        let freed = self.ask(Chore::Adopt { copy: Box::new(copied), answer }, adopted).await?;
        if freed.is_some() {
            shared.ground().cache.forget(first..=PageNumber(end.0 - 1));
            shared.appended.fetch_add(size, Ordering::AcqRel);
            shared.tally.cleanings.fetch_add(1, Ordering::Relaxed);
            shared.tally.freed_bytes.fetch_add(freed.unwrap_or(0), Ordering::Relaxed);
            let after = census::take(&shared).await;
            let inside = |holding: &&Holding| holding.first >= first && holding.end <= end;
            for made in after.holdings.iter().filter(inside) {
                self.rests
                    .insert(made.first, Rest { dead: made.dead(), deletions: deletions.min(made.dead()) });
            }
            crate::reached!("segments cleaned");
            tracing::debug!(freed, first = first.0, end = end.0, "cleaned segments of the store");
        }
        Ok(freed)
    }

    async fn ask<T>(&self, chore: Chore, answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
        self.chores.send(chore).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

/// Above every page.
const NEVER: PageNumber = PageNumber(u64::MAX);

/// The first run of small sealed segments that is long enough to be merged for its own sake.
fn small_run(census: &Census, size: u64) -> Option<Run> {
    let mut start = 0;
    let mut written = 0;
    for (at, holding) in census.holdings.iter().enumerate() {
        if holding.sealed && holding.written < size / 4 && written + holding.written <= size {
            written += holding.written;
            if at + 1 - start >= SMALL_RUN {
                return Some(Run { at: start..at + 1 });
            }
        } else {
            (start, written) = (at + 1, 0);
        }
    }
    None
}

/// What survives beside live records.
struct Keep {
    oldest_dead: PageNumber,
    oldest_slice: u64,
    mark: PageNumber,
    buckets: Vec<PageNumber>,
}

/// A copy under way.
struct Copying<'a> {
    shared: &'a Shared,
    copy: Copy,
    merge: Merge,
    keep: Keep,
    /// Bytes of deletions' records that were kept for something older.
    deletions: u64,
    /// Of the page that was taken last: a merged one gets it.
    last: Option<CommitNumber>,
}

impl Copying<'_> {
    async fn all(&mut self, first: PageNumber, end: PageNumber) -> Result<(), Stopped> {
        let ground = self.shared.ground();
        let mut scan = ground.reader.scan(first);
        let mut began = self.shared.clock.now();
        let mut step = 0;
        let mut next = first;
        loop {
            let page = match scan.next().await {
                Ok(Some(page)) if page.number < end => page,
                Ok(_) => break,
                Err(error @ pagefile::Error::Rot { .. }) => {
                    // Read again, and told if it is damaged indeed.
                    self.shared.read_page(&ground.reader, next).await?;
                    return Err(error.into());
                }
                Err(error) => return Err(error.into()),
            };
            next = page.number.behind(page.span);
            step += page.payload.len() as u64;
            match page.kind {
                kind::RECORDS => self.take(page).await?,
                kind::MARK if page.number < self.keep.mark => {}
                kind::BUCKETS if !self.keep.buckets.contains(&page.number) => {}
                _ => self.as_it_is(page).await?,
            }
            if step >= STEP_BYTES {
                step = 0;
                self.rest(began).await;
                began = self.shared.clock.now();
            } else {
                task::yield_now().await;
            }
        }
        self.flush().await
    }

    /// Leaves the machine to the others for as long as it was used.
    async fn rest(&self, began: Moment) {
        let took = self.shared.clock.now().since(began);
        self.shared.clock.sleep(took.max(REST_MIN)).await;
    }

    async fn as_it_is(&mut self, page: Page) -> Result<(), Stopped> {
        self.flush().await?;
        Ok(self.copy.append(page).await?)
    }

    /// Takes over what survives of a page of records.
    async fn take(&mut self, page: Page) -> Result<(), Stopped> {
        let malformed = |error: crate::mvcc::Malformed| {
            Stopped::Failed(Error::Decode(format!("page {}: {error}", page.number.0)))
        };
        let all: Vec<(Place, Record<'_>)> =
            records(page.number, &page.payload).collect::<Result<_, _>>().map_err(malformed)?;
        let survivors: Vec<(Place, Record<'_>)> = {
            let state = self.shared.state();
            let survives = |(place, record): &&(Place, Record<'_>)| {
                state.mvcc().survives(record, *place, self.keep.oldest_dead, self.keep.oldest_slice)
            };
            let survivors: Vec<_> = all.iter().filter(survives).copied().collect();
            let live = state.mvcc().live_records(page.number..=page.number.last(page.span));
            let kept = survivors.len().saturating_sub(live as usize);
            if kept > 0 {
                crate::reached!("deletion kept for something older");
                self.deletions += (page.payload.len() * kept / all.len()) as u64;
            }
            survivors
        };
        if survivors.is_empty() {
            return Ok(());
        }
        if !self.merge.has_room(&survivors) {
            self.flush().await?;
        }
        let well_filled = survivors.len() == all.len() && page.payload.len() >= PAGE_BYTES * 3 / 4;
        if page.span == 0 && self.merge.is_empty() && (well_filled || !Merge::fits(&survivors)) {
            return self.as_it_is(page.clone()).await;
        }
        self.last = Some(page.commit);
        self.merge.push(&survivors);
        Ok(())
    }

    /// Writes the merged page that was gathered.
    async fn flush(&mut self) -> Result<(), Stopped> {
        if self.merge.is_empty() {
            return Ok(());
        }
        let merged = std::mem::take(&mut self.merge).finish();
        let commit = self.last.expect("what was merged came from a page");
        let label = Label { first: merged.first, weight: merged.weight };
        let (number, span, payload) = (merged.number, merged.span, merged.payload);
        Ok(self.copy.append(Page { number, span, kind: kind::RECORDS, commit, label, payload }).await?)
    }
}

impl Store {
    /// Cleans until at most a twentieth of the bytes on disk is dead, or nothing more can be
    /// gained; completes then. Nothing else waits for it, and dropping the future does not stop it.
    pub async fn defragment(&self) {
        let (request, done) = oneshot::channel();
        if self.shared.defragment.send(request).await.is_ok() {
            // An error means that the member stops.
            let _ = done.await;
        }
    }
}
