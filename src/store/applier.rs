//! The one writer of the applied state: applies entries, cuts commits.

use super::writer::{self, Batch, Job};
use super::{Error, Position, Shared, Store, gate_value, kind};
use crate::env::task;
use crate::machine::{Applied, Entry, Held, State};
use crate::pagefile::{PageFile, PageNumber};
use bytes::Bytes;
use prost::Message;
use quorate_proto::quorate::v1::{SnapshotPage, StoreMark};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Keys that one step of physical compaction looks at: short enough that no
/// request notices the lock.
const COMPACT_STEP_KEYS: usize = 512;

pub struct Applier {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    /// Full record pages since the last commit, pinned in the cache.
    sealed: Vec<(PageNumber, Bytes)>,
    /// Number of the next page that is appended to the file.
    next_page: PageNumber,
    /// Bytes of data of entries applied since the last commit; `None` = none was.
    pending: Option<u64>,
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
    pub(super) fn new(shared: Arc<Shared>, file: PageFile) -> Applier {
        let next_page = file.next_number();
        // One commit is written while the next gathers; more would only delay the mark.
        let (jobs, queue) = mpsc::channel(2);
        drop(task::spawn(writer::run(file, shared.clone(), queue)));
        Applier { shared, jobs, sealed: Vec::new(), next_page, pending: None }
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
        let mut own = BTreeMap::new();
        loop {
            let missing = {
                let shared = self.shared.clone();
                let mut state = shared.state_mut();
                let compacted_before = state.mvcc().compacted();
                let pages = super::Fetched { cache: &self.shared.cache, own: &own };
                match state.apply(entry, &pages) {
                    Ok(applied) => {
                        assert_eq!(
                            state.applied,
                            (entry.index, entry.term),
                            "the mark moves with its effects"
                        );
                        self.keep_sealed(&mut state);
                        let compacted = state.mvcc().compacted();
                        drop(state);
                        self.pending = Some(self.pending.unwrap_or(0) + entry.data.len() as u64);
                        if compacted != compacted_before {
                            drop(task::spawn(compact(self.shared.clone(), compacted)));
                        }
                        self.shared.applied.raise(gate_value(entry.index));
                        return Ok(applied);
                    }
                    Err(Held::Missing(missing)) => missing,
                    Err(Held::Unknown(unknown)) => return Err(unknown.into()),
                }
            };
            crate::reached!("apply waits for a page");
            self.shared.fetch(&missing, &mut own).await?;
        }
    }

    /// Takes full pages over from the state while it is locked: a page is
    /// always readable in one place or the other.
    fn keep_sealed(&mut self, state: &mut State) {
        for (number, payload) in state.take_sealed() {
            assert_eq!(number, self.next_page, "state and page file count pages alike");
            self.next_page = PageNumber(number.0 + 1);
            self.shared.cache.pin(number, payload.clone());
            self.shared.layout().records.push(number);
            self.sealed.push((number, payload));
        }
    }

    /// Bytes waiting for a commit; `None` = nothing was applied since the last one.
    pub fn pending_bytes(&self) -> Option<u64> {
        self.pending
    }

    /// Starts a commit of everything applied so far. Waits only while two
    /// earlier ones are still being written.
    pub async fn begin_commit(&mut self) -> Result<CommitTicket, Error> {
        let (mark, keep) = {
            let shared = self.shared.clone();
            let mut state = shared.state_mut();
            state.seal();
            self.keep_sealed(&mut state);
            let mark_page = self.next_page;
            self.next_page = PageNumber(mark_page.0 + 1);
            state.set_next_page(self.next_page);
            ((mark_page, state.mark()), state.oldest_live_page())
        };
        self.pending = None;
        let records = std::mem::take(&mut self.sealed);
        self.submit(records, mark, keep, Job::Commit).await
    }

    async fn submit(
        &self,
        records: Vec<(PageNumber, Bytes)>,
        (mark_page, mark): (PageNumber, StoreMark),
        keep: PageNumber,
        job: fn(Batch) -> Job,
    ) -> Result<CommitTicket, Error> {
        let (done, durable) = oneshot::channel();
        let batch = Batch {
            records,
            mark: (mark_page, Bytes::from(mark.encode_to_vec())),
            position: Position::of(&mark),
            keep,
            done,
        };
        self.jobs.send(job(batch)).await.map_err(|_| Error::Closed)?;
        Ok(CommitTicket { done: durable })
    }

    /// Commits everything applied so far and waits until it is durable.
    pub async fn commit(&mut self) -> Result<Position, Error> {
        self.begin_commit().await?.durable().await
    }

    /// Names the last sync on disk, so that recovery can tell rot from a tear (I6).
    pub async fn mark_synced(&self) -> Result<(), Error> {
        let (done, marked) = oneshot::channel();
        self.jobs.send(Job::MarkSynced(done)).await.map_err(|_| Error::Closed)?;
        marked.await.unwrap_or(Err(Error::Closed))
    }

    /// Replaces the whole state by a peer's snapshot (all its pages in order), durably, in one step.
    pub async fn install(&mut self, pages: Vec<SnapshotPage>) -> Result<Position, Error> {
        let broken = |what: String| Error::Snapshot(what);
        let (last, records) = pages.split_last().ok_or_else(|| broken("it is empty".into()))?;
        if last.kind != u32::from(kind::MARK) {
            return Err(broken("it does not end with a mark".into()));
        }
        let mark = StoreMark::decode(last.payload.clone()).map_err(|error| broken(error.to_string()))?;
        let cluster = self.shared.state().members.cluster_id;
        let mut state = State::new(crate::members::Members { cluster_id: cluster, ..Default::default() });
        state.load_mark(&mark).map_err(broken)?;
        let mut next = self.next_page;
        let mut batch = Vec::with_capacity(records.len());
        for page in records {
            if page.kind != u32::from(kind::RECORDS) {
                return Err(broken(format!("page of kind {}", page.kind)));
            }
            state.load_page(next, &page.payload).map_err(broken)?;
            batch.push((next, page.payload.clone()));
            next = PageNumber(next.0 + 1);
        }
        if state.members.cluster_id != cluster {
            return Err(broken(format!("it is of cluster {:x}", state.members.cluster_id)));
        }
        let mark_page = next;
        self.next_page = PageNumber(mark_page.0 + 1);
        state.set_next_page(self.next_page);
        self.pending = None;
        self.sealed.clear();
        let numbers: Vec<PageNumber> = batch.iter().map(|(number, _)| *number).collect();
        let position =
            self.submit(batch, (mark_page, mark), PageNumber(0), Job::Replace).await?.durable().await?;
        let (applied, compacted) = (state.applied.0, state.mvcc().compacted());
        {
            let mut current = self.shared.state_mut();
            self.shared.cache.clear();
            self.shared.layout().records = numbers;
            *current = state;
        }
        self.shared.applied.raise(gate_value(applied));
        drop(task::spawn(compact(self.shared.clone(), compacted)));
        Ok(position)
    }
}

/// Physical compaction in small steps between which everyone else gets on.
async fn compact(shared: Arc<Shared>, revision: i64) {
    loop {
        let done = shared.state_mut().compact_step(COMPACT_STEP_KEYS);
        if done {
            break;
        }
        task::yield_now().await;
    }
    shared.compacted.raise(revision);
}
