//! The index on disk, slice by slice: what opening reads instead of every page.
//!
//! Owns a page file of its own (`index`, beside the store's). Slices go round
//! the keys; a newer one takes over the range of older ones, and what is taken
//! over goes, segment by segment. **Promises**: a slice is written only when
//! the store is durable up to it; bytes written stay below a share of the bytes
//! appended to the store; one that is lost or damaged costs time, never data.
//! What stands here belongs to one lineage of page numbers and is void for any
//! other.
//!
//! Each page holds one slice as mvcc lays it out. Its kind is 8, plus 1 on the
//! first and plus 2 on the last slice of a round; its label says the lineage
//! and the number of keys.

use super::shared::Shared;
use super::{Error, Options};
use crate::env::{Env, task};
use crate::machine::State;
use crate::mvcc::{Slice, SliceHead, page_of, word_of};
use crate::pagefile::{self, Label, PageFacts, PageFile, PageNumber};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Mutex;

const SLICE: u8 = 8;
const FIRST: u8 = 1;
const LAST: u8 = 2;

/// Bytes of a slice, about: what is made under one hold of the state's lock.
const SLICE_BYTES: usize = 60 << 10;
/// A slice that was written.
struct Standing {
    page: PageNumber,
    /// The key before which it ends.
    to: Option<Bytes>,
    /// Records whose places are not below this may not be in it.
    as_of: u64,
}

pub struct Checkpoint {
    env: Env,
    dir: PathBuf,
    options: pagefile::Options,
    /// One byte here for this many of the store.
    share: u64,
    step_bytes: u64,
    lineage: u64,
    /// `None`: there is no space even for an empty one; tried again later.
    file: Option<PageFile>,
    /// Slices that count, oldest first.
    ring: VecDeque<Standing>,
    /// Slices that were appended and wait for the commit: it found no space.
    waiting: VecDeque<Standing>,
    /// First page of the round under way.
    round: PageNumber,
    /// Where the next slice begins; empty at the beginning of a round.
    cursor: Bytes,
    /// Rounds begun since the open, and the last one that was finished.
    rounds: (u64, u64),
    /// Bytes appended to the store since the open when the round under way began ...
    began_at: u64,
    /// ... and when the next slices are due.
    due_at: u64,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir` and loads it into `state`, which holds the last mark and nothing
    /// else. Returns the first page of the store that is still to be read; `None` = nothing
    /// here can be used, and `state` is to be made again.
    pub async fn open(
        env: &Env,
        dir: PathBuf,
        options: &Options,
        lineage: u64,
        state: &mut State,
        store_end: PageNumber,
    ) -> Result<(Checkpoint, Option<PageNumber>), Error> {
        let mut checkpoint = Checkpoint {
            env: env.clone(),
            dir,
            options: pagefile::Options {
                page_size: options.page_size,
                segment_size: options.checkpoint_segment_size,
            },
            share: options.checkpoint_share,
            step_bytes: options.checkpoint_step_bytes,
            lineage,
            file: None,
            ring: VecDeque::new(),
            waiting: VecDeque::new(),
            round: PageNumber(0),
            cursor: Bytes::new(),
            rounds: (0, 0),
            began_at: 0,
            due_at: 0,
        };
        let loaded = match checkpoint.open_file().await {
            Ok(()) => checkpoint.load(state, store_end).await,
            Err(error) => Err(error.to_string()),
        };
        let from = match loaded {
            Ok(from) => from,
            Err(why) => {
                crate::reached!("checkpoint dropped");
                tracing::warn!(why, "the checkpoint of the index cannot be used; every page is read");
                checkpoint.forget(lineage).await?;
                None
            }
        };
        Ok((checkpoint, from))
    }

    async fn open_file(&mut self) -> Result<(), pagefile::Error> {
        let Env { disk, rng, .. } = self.env.clone();
        let (file, _) = PageFile::open(disk, self.dir.clone(), self.options.clone(), rng).await?;
        self.file = Some(file);
        Ok(())
    }

    /// Loads what the file holds; `None` if that is nothing.
    async fn load(&mut self, state: &mut State, store_end: PageNumber) -> Result<Option<PageNumber>, String> {
        let reader = self.file.as_ref().ok_or("it is not open")?.reader();
        let pages = reader.pages(PageNumber(0), usize::MAX);
        if pages.iter().any(|page| page.label.first != self.lineage) {
            return Err("it belongs to other pages".into());
        }
        let Some(start) = start(&pages) else { return Ok(None) };
        let mut scan = reader.scan(start);
        let mut cover = Cover::default();
        while let Some(page) = scan.next().await.map_err(|error| error.to_string())? {
            let (head, _) = SliceHead::of(&page.payload).map_err(|error| error.to_string())?;
            let first_page = head.first_page();
            if first_page > store_end {
                return Err(format!(
                    "it knows page {} of the store, which ends at {}",
                    first_page.0, store_end.0
                ));
            }
            state.load_slice(&page.payload)?;
            if page.kind & FIRST != 0 {
                self.round = page.number;
            }
            cover.add(&head);
            self.cursor = head.to.clone().unwrap_or_default();
            self.ring.push_back(Standing { page: page.number, to: head.to, as_of: head.as_of });
            task::yield_now().await;
        }
        if !cover.into_whole() {
            return Err("it does not cover every key yet".into());
        }
        crate::reached!("index loaded from its checkpoint");
        Ok(Some(page_of(self.oldest_slice())))
    }

    /// Drops everything; what comes belongs to `lineage`.
    pub async fn forget(&mut self, lineage: u64) -> Result<(), Error> {
        self.file = None;
        self.lineage = lineage;
        self.ring.clear();
        self.waiting.clear();
        self.cursor = Bytes::new();
        self.rounds.0 = self.rounds.1;
        let disk = self.env.disk.clone();
        let failed = |source| pagefile::Error::Io { path: self.dir.clone(), source };
        match disk.list_dir(&self.dir).await {
            Ok(names) => {
                for name in names.iter().filter(|name| !name.is_dir) {
                    disk.remove(&self.dir.join(&name.name)).await.map_err(failed)?;
                }
                disk.sync_dir(&self.dir).await.map_err(failed)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error).into()),
        }
        match self.open_file().await {
            Err(error) if !error.is_no_space() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The smallest `as_of` of the slices that count: one of them may still show what a later record
    /// deleted. `u64::MAX` = there is none.
    pub fn oldest_slice(&self) -> u64 {
        self.ring.iter().chain(&self.waiting).map(|slice| slice.as_of).min().unwrap_or(u64::MAX)
    }

    /// Rounds finished since the open.
    #[cfg(test)]
    pub fn rounds_finished(&self) -> u64 {
        self.rounds.1
    }

    /// Whether the store has grown enough for more slices. What a round leaves of its share is
    /// not carried over to the next, which would only write the same again.
    fn is_due(&self, shared: &Shared) -> bool {
        let appended = shared.appended.load(Ordering::Acquire);
        appended >= self.due_at && (appended > self.began_at || !self.cursor.is_empty())
    }

    /// Writes slices as the store grows, until the store is closed.
    pub async fn run(checkpoint: Arc<Mutex<Checkpoint>>, shared: Arc<Shared>) {
        let closed = shared.clone();
        let work = async {
            let mut commits = shared.commits.subscribe();
            while commits.changed().await.is_ok() {
                loop {
                    let mut checkpoint = checkpoint.lock().await;
                    if !checkpoint.is_due(&shared) {
                        break;
                    }
                    match checkpoint.step(&shared).await {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => return shared.fail("cannot write the checkpoint of the index", &error),
                    }
                    drop(checkpoint);
                    task::yield_now().await;
                }
            }
        };
        tokio::select! {
            biased;
            () = closed.until_closed() => {}
            () = work => {}
        }
    }

    /// Writes one whole round, whatever the share: afterwards no slice is older than this call.
    pub async fn renew(checkpoint: &Mutex<Checkpoint>, shared: &Shared) -> Result<(), Error> {
        let goal = {
            let checkpoint = checkpoint.lock().await;
            if checkpoint.ring.is_empty() && checkpoint.waiting.is_empty() {
                return Ok(());
            }
            checkpoint.rounds.0 + 1
        };
        loop {
            let mut checkpoint = checkpoint.lock().await;
            if checkpoint.rounds.1 >= goal {
                return Ok(());
            }
            if !checkpoint.step(shared).await? {
                // Without space it stays as it is.
                return Ok(());
            }
            drop(checkpoint);
            task::yield_now().await;
        }
    }

    /// Writes some slices; `false` if that cannot be done now.
    pub async fn step(&mut self, shared: &Shared) -> Result<bool, Error> {
        if self.file.is_none() {
            match self.open_file().await {
                Err(error) if error.is_no_space() => return Ok(false),
                opened => opened?,
            }
        }
        if self.waiting.is_empty() && !self.gather(shared).await {
            return Ok(false);
        }
        let file = self.file.as_mut().expect("it was just opened");
        let before = file.size_written();
        match file.commit().await {
            Err(error) if error.is_no_space() => {
                crate::reached!("checkpoint waits for space");
                return Ok(false);
            }
            committed => committed?,
        };
        file.sync().await?;
        self.due_at += file.size_written().saturating_sub(before) * self.share;
        self.ring.append(&mut self.waiting);
        self.rotate().await?;
        Ok(true)
    }

    /// Takes slices of the state and appends them once the store is durable up to them.
    async fn gather(&mut self, shared: &Shared) -> bool {
        let ground = shared.ground();
        // No slice is larger than a portion.
        let slice_bytes = usize::try_from(self.step_bytes).map_or(SLICE_BYTES, |step| step.min(SLICE_BYTES));
        let mut slices: Vec<Slice> = Vec::new();
        let mut from = self.cursor.clone();
        let mut bytes = 0;
        loop {
            let slice = {
                let state = shared.state();
                if !Arc::ptr_eq(&shared.ground(), &ground) {
                    return false;
                }
                state.mvcc().checkpoint_slice(&from, slice_bytes)
            };
            bytes += slice.payload.len() as u64;
            let next = slice.next.clone();
            slices.push(slice);
            match next {
                Some(next) if bytes < self.step_bytes => from = next,
                _ => break,
            }
            task::yield_now().await;
        }
        let as_of = slices.last().map_or(0, |slice| slice.as_of);
        let compacted = slices.iter().map(|slice| slice.compacted).max().unwrap_or(-1);
        let mut commits = shared.commits.subscribe();
        loop {
            if !Arc::ptr_eq(&shared.ground(), &ground) {
                crate::reached!("slices of a store that was replaced");
                return false;
            }
            // Everything below the page behind a durable mark is durable too.
            if shared.committed().is_some_and(|committed| {
                as_of <= word_of(PageNumber(committed.mark_page.0 + 1)) && compacted <= committed.compacted
            }) {
                break;
            }
            if shared.starved.load(Ordering::Acquire) {
                // The cleaner, which may find space, must not wait for these.
                crate::reached!("slices given up for lack of space");
                return false;
            }
            let again = shared.clock.sleep(shared.options.space_retry);
            tokio::select! {
                biased;
                changed = commits.changed() => if changed.is_err() { return false },
                () = again => {}
            }
        }
        let file = self.file.as_mut().expect("the caller opened it");
        for slice in slices {
            let first = self.cursor.is_empty();
            let mut kind = SLICE;
            if first {
                kind |= FIRST;
                self.rounds.0 += 1;
                self.began_at = shared.appended.load(Ordering::Acquire);
                self.due_at = self.due_at.max(self.began_at);
            }
            if slice.next.is_none() {
                kind |= LAST;
            }
            let keys = SliceHead::of(&slice.payload).map_or(0, |(head, _)| head.keys);
            let as_of = slice.as_of;
            shared.tally.checkpoint_bytes.fetch_add(slice.payload.len() as u64, Ordering::Relaxed);
            let page = file.append(kind, Label { first: self.lineage, weight: keys }, slice.payload);
            if first {
                self.round = page;
            }
            self.cursor = slice.next.clone().unwrap_or_default();
            self.waiting.push_back(Standing { page, to: slice.next, as_of });
        }
        true
    }

    /// Drops what newer slices, synced by now, have taken over.
    async fn rotate(&mut self) -> Result<(), Error> {
        let finished = self.cursor.is_empty();
        if finished {
            self.rounds.1 = self.rounds.0;
        }
        let covered =
            |slice: &Standing, cursor: &Bytes| finished || slice.to.as_ref().is_some_and(|to| to <= cursor);
        let mut keep = None;
        while let Some(front) = self.ring.front() {
            if front.page >= self.round || !covered(front, &self.cursor) {
                keep = Some(front.page);
                break;
            }
            self.ring.pop_front();
        }
        let file = self.file.as_mut().expect("something was written");
        if let Some(keep) = keep {
            match file.drop_before(keep).await {
                Err(error) if error.is_no_space() => {}
                dropped => {
                    dropped?;
                }
            }
        }
        Ok(())
    }
}

/// Where the slices begin that are to be loaded: of the last whole round, or of the rest of it
/// that the round under way has not taken over yet.
fn start(pages: &[PageFacts]) -> Option<PageNumber> {
    let last_of = |flag: u8, before: usize| pages[..before].iter().rposition(|page| page.kind & flag != 0);
    let Some(first) = last_of(FIRST, pages.len()) else { return pages.first().map(|page| page.number) };
    let whole = pages[first..].iter().any(|page| page.kind & LAST != 0);
    let start = if whole { first } else { last_of(FIRST, first).unwrap_or(0) };
    Some(pages[start].number)
}

/// Which keys slices cover that come round by round.
#[derive(Default)]
struct Cover {
    ranges: Vec<(Bytes, Option<Bytes>)>,
}

impl Cover {
    fn add(&mut self, head: &SliceHead) {
        self.ranges.push((head.from.clone(), head.to.clone()));
    }

    /// Whether no key is left out.
    fn into_whole(mut self) -> bool {
        self.ranges.sort();
        let mut reached = Some(Bytes::new());
        for (from, to) in self.ranges {
            match &reached {
                None => break,
                Some(end) if from > *end => return false,
                Some(end) => {
                    if to.as_ref().is_none_or(|to| to > end) {
                        reached = to;
                    }
                }
            }
        }
        reached.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_begins_with_what_the_round_under_way_has_not_taken_over() {
        let check = |kinds: &str, expected: Option<u64>| {
            let pages: Vec<PageFacts> = (1..)
                .zip(kinds.bytes())
                .map(|(number, kind)| PageFacts {
                    number: PageNumber(number),
                    span: 0,
                    kind: SLICE
                        + match kind {
                            b'f' => FIRST,
                            b'l' => LAST,
                            b'o' => FIRST | LAST,
                            _ => 0,
                        },
                    label: Label::default(),
                    length: 1,
                    footprint: 4096,
                })
                .collect();
            assert_eq!(start(&pages), expected.map(PageNumber), "{kinds}");
        };
        check("", None);
        check("f..", Some(1));
        check("f.l", Some(1));
        check("f.lf.l", Some(4));
        check("f.lf.", Some(1));
        check(".lf..", Some(1));
        check("f.lf.lf", Some(4));
        check("oo", Some(2));
        check("..", Some(1));
    }

    #[test]
    fn a_gap_in_the_cover_is_seen() {
        let check = |ranges: &[(&'static str, &'static str)], whole: bool| {
            let mut cover = Cover::default();
            for (from, to) in ranges {
                let to = (!to.is_empty()).then(|| Bytes::from(*to));
                cover.add(&SliceHead { keys: 0, as_of: 0, compacted: -1, from: Bytes::from(*from), to });
            }
            assert_eq!(cover.into_whole(), whole, "{ranges:?}");
        };
        check(&[], false);
        check(&[("", "")], true);
        check(&[("", "b"), ("b", "")], true);
        check(&[("b", "d"), ("d", ""), ("", "c")], true);
        check(&[("b", "d"), ("d", ""), ("", "a")], false);
        check(&[("", "b"), ("c", "")], false);
        check(&[("", "c")], false);
    }
}
