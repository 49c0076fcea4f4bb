//! The one writer of the applied state: applies entries, cuts commits.

use super::compactor::Compaction;
use super::ground::Fetched;
use super::shared::{Committed, Shared, gate_value};
use super::writer::{Batch, Job, Replacement};
use super::{Error, Position, Store, kind};
use crate::env::Rng;
use crate::machine::{Applied, Entry, Held, State};
use crate::members::Members;
use crate::pagefile::{CommitNumber, Label, Page, PageNumber};
use bytes::Bytes;
use prost::Message;
use quorate_proto::quorate::v1::{SnapshotPage, StoreMark};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

/// No page number of a peer reaches this.
const PAGE_NUMBER_END: u64 = 1 << 46;

pub struct Applier {
    shared: Arc<Shared>,
    /// `None`: nothing is ever written (a look at a stopped member).
    jobs: Option<mpsc::Sender<Job>>,
    compactions: mpsc::Sender<Compaction>,
    rng: Rng,
    /// Full record pages since the last commit, pinned in the cache.
    sealed: Vec<(PageNumber, Bytes)>,
    /// Number of the next page that is appended to the file.
    next_page: PageNumber,
    lineage: u64,
    /// Bytes of data of entries applied since the last commit; `None` = none was.
    pending: Option<u64>,
    /// The compacted mark as it is, pinned: when an entry moves it, the hash
    /// at the new mark is taken over this pin.
    pinned: i64,
    /// A compaction for which the queue had no place yet.
    held: Option<Compaction>,
}

/// What an applier is made of.
pub(super) struct Parts {
    pub shared: Arc<Shared>,
    pub jobs: Option<mpsc::Sender<Job>>,
    pub compactions: mpsc::Sender<Compaction>,
    pub rng: Rng,
    pub next_page: PageNumber,
    pub lineage: u64,
}

/// A commit under way: completes when it is durable.
pub struct CommitTicket {
    done: oneshot::Receiver<Result<Position, Error>>,
}

impl CommitTicket {
    pub async fn durable(self) -> Result<Position, Error> {
        self.done.await.unwrap_or(Err(Error::Closed))
    }
}

impl Applier {
    pub(super) fn new(parts: Parts) -> Applier {
        let Parts { shared, jobs, compactions, rng, next_page, lineage } = parts;
        let pinned = shared.state_mut().pin();
        Applier {
            shared,
            jobs,
            compactions,
            rng,
            sealed: Vec::new(),
            next_page,
            lineage,
            pending: None,
            pinned,
            held: None,
        }
    }

    pub fn store(&self) -> Store {
        Store { shared: self.shared.clone() }
    }

    /// Looks at the state as it is.
    pub fn with_state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.state())
    }

    /// Applies one entry; fetches pages that apply lacks, as often as it takes.
    pub async fn apply(&mut self, entry: &Entry) -> Result<Applied, Error> {
        let shared = self.shared.clone();
        let mut pages = Fetched::new(shared.ground());
        loop {
            let missing = {
                let mut state = shared.state_mut();
                pages.follow(&shared.ground());
                match state.apply(entry, &pages) {
                    Ok(applied) => {
                        assert_eq!(
                            state.applied,
                            (entry.index, entry.term),
                            "the mark moves with its effects"
                        );
                        self.keep_sealed(&mut state);
                        self.note_compaction(&mut state);
                        drop(state);
                        self.pending = Some(self.pending.unwrap_or(0) + entry.data.len() as u64);
                        shared.applied.raise(gate_value(entry.index));
                        return Ok(applied);
                    }
                    Err(Held::Missing(missing)) => missing,
                    Err(Held::Unknown(unknown)) => return Err(unknown.into()),
                }
            };
            crate::reached!("apply waits for a page");
            pages.fetch(&shared, &missing).await?;
        }
    }

    /// Takes full pages over from the state while it is locked: a page is
    /// always readable in one place or the other.
    fn keep_sealed(&mut self, state: &mut State) {
        for (number, payload) in state.take_sealed() {
            assert_eq!(number, self.next_page, "state and page file count pages alike");
            self.next_page = PageNumber(number.0 + 1);
            self.shared.ground().cache.pin(number, payload.clone());
            self.sealed.push((number, payload));
        }
    }

    /// Hands a compaction that was just applied to the compactor, with the pin
    /// of the mark before: what its hash covers stays until it is taken.
    fn note_compaction(&mut self, state: &mut State) {
        let (_, compacted) = state.revisions();
        if compacted == self.pinned {
            return;
        }
        let before = std::mem::replace(&mut self.pinned, state.pin());
        assert!(self.pinned == compacted && before < compacted, "a compaction moves the mark forward");
        let ground = self.shared.ground();
        self.held = Some(match self.held.take() {
            None => Compaction { ground, before, revision: compacted, single: true },
            // They are taken together: the older pin holds for both.
            Some(held) => {
                crate::reached!("compactions taken together");
                state.unpin(before);
                Compaction { revision: compacted, single: false, ..held }
            }
        });
        self.hand_over();
    }

    /// Gives the compactor what waits for a place in its queue.
    fn hand_over(&mut self) {
        if let Some(compaction) = self.held.take()
            && let Err(TrySendError::Full(compaction)) = self.compactions.try_send(compaction)
        {
            self.held = Some(compaction);
        }
    }

    /// Bytes waiting for a commit; `None` = nothing was applied since the last one.
    pub fn pending_bytes(&self) -> Option<u64> {
        self.pending
    }

    /// Whether a commit waits for disk space: it is not to be waited for.
    pub fn is_starved(&self) -> bool {
        self.shared.starved.load(Ordering::Acquire)
    }

    /// Starts a commit of everything applied so far. Waits only while two
    /// earlier ones are still being written.
    pub async fn begin_commit(&mut self) -> Result<CommitTicket, Error> {
        self.hand_over();
        let committed = {
            let shared = self.shared.clone();
            let mut state = shared.state_mut();
            state.seal();
            self.keep_sealed(&mut state);
            let mark_page = self.next_page;
            self.next_page = PageNumber(mark_page.0 + 1);
            state.set_next_page(self.next_page);
            Committed::new(mark_page, &StoreMark { lineage: self.lineage, ..state.mark() })
        };
        self.pending = None;
        let records = std::mem::take(&mut self.sealed);
        let (done, durable) = oneshot::channel();
        self.submit(Job::Commit(Box::new(Batch { records, committed, done }))).await?;
        Ok(CommitTicket { done: durable })
    }

    async fn submit(&self, job: Job) -> Result<(), Error> {
        let jobs = self.jobs.as_ref().ok_or(Error::Closed)?;
        jobs.send(job).await.map_err(|_| Error::Closed)
    }

    /// Commits everything applied so far and waits until it is durable.
    pub async fn commit(&mut self) -> Result<Position, Error> {
        self.begin_commit().await?.durable().await
    }

    /// Names the last sync on disk, so that recovery can tell rot from a tear (I6).
    pub async fn mark_synced(&self) -> Result<(), Error> {
        let (done, marked) = oneshot::channel();
        self.submit(Job::MarkSynced(done)).await?;
        marked.await.unwrap_or(Err(Error::Closed))
    }

    /// Replaces the whole state by a peer's snapshot (all its pages in order), durably, in one
    /// step. The pages keep their numbers; what was read or copied of the old ones is void.
    pub async fn install(&mut self, pages: Vec<SnapshotPage>) -> Result<Position, Error> {
        let cluster = self.shared.state().members.cluster_id;
        let (mut state, mut pages, mark) = load(pages, cluster).map_err(Error::Snapshot)?;
        self.lineage = self.rng.next_u64();
        let last = pages.last_mut().expect("the mark is the last page");
        let committed = Committed::new(last.number, &StoreMark { lineage: self.lineage, ..mark });
        last.payload = committed.mark.clone();
        let position = committed.position.clone();
        // Pinned before it takes the old state's place: its mark is this applier's from then on.
        let pinned = state.pin();
        state.set_next_page(PageNumber(last.number.0 + 1));
        let (done, replaced) = oneshot::channel();
        let replacement = Replacement { pages, state, committed, done };
        self.submit(Job::Replace(Box::new(replacement))).await?;
        let next_page = replaced.await.unwrap_or(Err(Error::Closed))?;
        self.pending = None;
        self.sealed.clear();
        self.held = None;
        self.pinned = pinned;
        self.next_page = next_page;
        self.shared.state_mut().set_next_page(next_page);
        Ok(position)
    }
}

/// Builds the state that a peer's pages hold; the last page is its mark.
fn load(pages: Vec<SnapshotPage>, cluster: u64) -> Result<(State, Vec<Page>, StoreMark), String> {
    let last = pages.last().ok_or("it is empty")?;
    if last.kind != u32::from(kind::MARK) {
        return Err("it does not end with a mark".into());
    }
    let mark = StoreMark::decode(last.payload.clone()).map_err(|error| error.to_string())?;
    let mut state = State::new(Members { cluster_id: cluster, ..Default::default() });
    state.load_mark(&mark)?;
    if state.members.cluster_id != cluster {
        return Err(format!("it is of cluster {:x}", state.members.cluster_id));
    }
    let mut taken: Vec<Page> = Vec::with_capacity(pages.len());
    let count = pages.len();
    for (at, page) in pages.into_iter().enumerate() {
        let page = taken_page(page)?;
        let last = taken.last().map_or(PageNumber(0), |before| before.number.last(before.span));
        let first_before = taken.last().map_or(0, |before| before.label.first);
        if page.number <= last || page.label.first < first_before {
            return Err(format!("page {} is out of order", page.number.0));
        }
        match page.kind {
            kind::RECORDS => state.load_page(page.number, &page.payload)?,
            kind::BUCKETS => {}
            kind::MARK if at + 1 == count => {}
            other => return Err(format!("page of kind {other}")),
        }
        taken.push(page);
    }
    Ok((state, taken, mark))
}

fn taken_page(page: SnapshotPage) -> Result<Page, String> {
    let SnapshotPage { kind, payload, number, span, first, weight } = page;
    let (Ok(kind), Ok(span)) = (u8::try_from(kind), u16::try_from(span)) else {
        return Err(format!("page of kind {kind}, span {span}"));
    };
    if number >= PAGE_NUMBER_END - u64::from(span) {
        return Err(format!("page number {number}"));
    }
    Ok(Page {
        number: PageNumber(number),
        span,
        kind,
        commit: CommitNumber(0),
        label: Label { first, weight },
        payload,
    })
}
