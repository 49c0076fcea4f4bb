//! The task that owns the store's page file: commits, installs and adoptions
//! pass through it one after the other.
//!
//! **Promises**: a commit that finds no space is kept and tried again until
//! there is some, and the cleaner goes on meanwhile; an adoption for pages that
//! were replaced meanwhile changes nothing; after any other failure the task
//! ends, and with it the member. **Never** tries a failed sync again (I6).

use super::cache::PageCache;
use super::checkpoint::Checkpoint;
use super::ground::Ground;
use super::shared::{Committed, Shared, gate_value};
use super::{Error, Position, kind};
use crate::env::task;
use crate::machine::State;
use crate::mvcc::Head;
use crate::pagefile::{self, Copied, Copy, Label, Page, PageFile, PageNumber, Reserve};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot};

/// What the applier asks for.
pub enum Job {
    /// Record pages in order, then the mark.
    Commit(Box<Batch>),
    /// Everything that is there gives way to these pages and this state.
    Replace(Box<Replacement>),
    /// After an idle moment: names the last sync on disk (I6).
    MarkSynced(oneshot::Sender<Result<(), Error>>),
}

/// What the cleaner asks for.
pub enum Chore {
    /// `None`: the victims are not there (any more).
    BeginCopy { victims: Vec<u128>, bytes: u64, answer: oneshot::Sender<Result<Option<Copy>, Error>> },
    /// Bytes given back; `None` = the copy came too late.
    Adopt { copy: Box<Copied>, answer: oneshot::Sender<Result<Option<u64>, Error>> },
    /// Seals the segment that is being written, so that it can be cleaned too.
    Seal { answer: oneshot::Sender<Result<(), Error>> },
}

pub struct Batch {
    pub records: Vec<(PageNumber, Bytes)>,
    pub committed: Committed,
    pub done: oneshot::Sender<Result<Position, Error>>,
}

pub struct Replacement {
    /// In order, the mark last; numbers and spans are a peer's.
    pub pages: Vec<Page>,
    pub state: State,
    pub committed: Committed,
    /// Answers with the number of the next page.
    pub done: oneshot::Sender<Result<PageNumber, Error>>,
}

pub struct Writer {
    pub file: PageFile,
    pub shared: Arc<Shared>,
    /// Given up by an install, whose page numbers are others.
    pub checkpoint: Arc<tokio::sync::Mutex<Checkpoint>>,
    pub chores: mpsc::Receiver<Chore>,
    /// The spare segment, made aside.
    pub reserve: Option<oneshot::Receiver<Result<Reserve, pagefile::Error>>>,
    /// It found no space: tried again after a while.
    pub is_resting: bool,
}

impl Writer {
    pub async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        self.show_sizes();
        while let Ok(goes_on) = self.turn(&mut jobs).await
            && goes_on
        {}
        self.shared.closed.send_replace(true);
    }

    /// One piece of work; an error was answered with already.
    async fn turn(&mut self, jobs: &mut mpsc::Receiver<Job>) -> Result<bool, ()> {
        self.make_reserve();
        let reserve = until_made(&mut self.reserve);
        let clock = self.shared.clock.clone();
        // What found no space is tried again.
        let (stands, retry_after) = (self.file.has_reserve(), self.shared.options.space_retry);
        let retry = async {
            match stands {
                true => std::future::pending().await,
                false => clock.sleep(retry_after).await,
            }
        };
        tokio::select! {
            biased;
            made = reserve => self.keep_reserve(made)?,
            job = jobs.recv() => match job {
                Some(job) => self.job(job).await?,
                None => return Ok(false),
            },
            chore = self.chores.recv() => match chore {
                Some(chore) => self.chore(chore).await?,
                // No cleaner: only the applier's end ends the writer.
                None => match jobs.recv().await {
                    Some(job) => self.job(job).await?,
                    None => return Ok(false),
                },
            },
            () = retry => self.is_resting = false,
        }
        self.show_sizes();
        Ok(true)
    }

    fn show_sizes(&self) {
        self.shared.set_written(self.file.size_written());
        // What was just used is made again before the next turn: only then is it known to be missing.
        if self.file.has_reserve() {
            self.shared.set_reserve(true);
        }
    }

    /// Begins to make the spare segment, aside, before a commit needs it.
    fn make_reserve(&mut self) {
        if self.reserve.is_some() || self.is_resting {
            return;
        }
        let Some(making) = self.file.make_reserve() else { return };
        let (made, reserve) = oneshot::channel();
        drop(task::spawn(async move {
            // A writer that has ended wants it no more; then its file goes.
            let _ = made.send(making.await);
        }));
        self.reserve = Some(reserve);
    }

    fn keep_reserve(&mut self, made: Made) -> Result<(), ()> {
        self.reserve = None;
        match made {
            Ok(Ok(reserve)) => self.file.keep_reserve(reserve),
            Ok(Err(error)) if error.is_no_space() => self.is_resting = true,
            Ok(Err(error)) => {
                self.shared.fail("cannot make a segment of the store", &error.into());
                return Err(());
            }
            // The runtime ends.
            Err(_) => return Err(()),
        }
        self.shared.set_reserve(self.file.has_reserve());
        Ok(())
    }

    async fn job(&mut self, job: Job) -> Result<(), ()> {
        match job {
            Job::Commit(batch) => {
                let done = self.commit(&batch).await;
                let position = batch.committed.position.clone();
                match done {
                    // Given up by who asked: what was appended goes with the next commit, or with
                    // what is replaced.
                    Ok(false) => return Ok(()),
                    Ok(true) => self.shared.set_committed(batch.committed),
                    Err(_) => {}
                }
                answer(batch.done, done.map(|_| position))
            }
            Job::Replace(replacement) => {
                let Replacement { pages, state, committed, done } = *replacement;
                let replaced = self.replace(pages, state, committed, &done).await;
                answer(done, replaced)
            }
            Job::MarkSynced(done) => {
                let marked = match self.file.mark_synced().await {
                    // It says more of what is durable, and makes nothing so: nobody stops for it.
                    Err(error) if error.is_no_space() => {
                        crate::reached!("no space to mark the last sync");
                        Ok(())
                    }
                    marked => marked.map_err(Error::from),
                };
                answer(done, marked)
            }
        }
    }

    /// `false`: there was no space until nobody waited for it any more.
    async fn commit(&mut self, batch: &Batch) -> Result<bool, Error> {
        let mut bytes = 0;
        for (number, payload) in &batch.records {
            let head = Head::of(payload).map_err(|error| Error::Decode(error.to_string()))?;
            let label = Label { first: head.first, weight: head.records };
            let given = self.file.append(kind::RECORDS, label, payload.clone());
            assert_eq!(given, *number, "records point to the page that holds them");
            bytes += payload.len() as u64;
        }
        let committed = &batch.committed;
        let given = self.file.append(kind::MARK, committed.label(), committed.mark.clone());
        assert_eq!(given, committed.mark_page, "applier and page file count pages alike");
        loop {
            match self.file.commit().await {
                Ok(_) => break,
                // The page file keeps the batch.
                Err(error) if error.is_no_space() => {
                    if !self.wait_for_space(&batch.done, &error).await? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.fed();
        let ground = self.shared.ground();
        for (number, _) in &batch.records {
            ground.cache.unpin(*number);
        }
        self.file.sync().await?;
        self.shared.appended.fetch_add(bytes, Ordering::AcqRel);
        Ok(true)
    }

    /// Waits a while, or for the cleaner to give space back; `false` when nobody waits for `done` any more.
    async fn wait_for_space<T>(
        &mut self,
        done: &oneshot::Sender<T>,
        error: &pagefile::Error,
    ) -> Result<bool, Error> {
        if !self.shared.starved.swap(true, Ordering::AcqRel) {
            crate::reached!("store commit waits for space");
            tracing::warn!(%error, "no disk space for the store: its commits wait");
            self.shared.clean_more.notify_one();
        }
        self.show_sizes();
        self.shared.set_reserve(self.file.has_reserve());
        let clock = self.shared.clock.clone();
        let retry = clock.sleep(self.shared.options.space_retry);
        let chores = &mut self.chores;
        let chore = async {
            match chores.recv().await {
                Some(chore) => chore,
                None => std::future::pending().await,
            }
        };
        let reserve = until_made(&mut self.reserve);
        tokio::select! {
            biased;
            // It may hold the very space that is lacking.
            made = reserve => self.keep_reserve(made).map_err(|()| Error::Closed)?,
            chore = chore => self.chore(chore).await.map_err(|()| Error::Closed)?,
            // Not after each of its own chores: without space, it would try again and again.
            () = retry => self.shared.clean_more.notify_one(),
        }
        Ok(!done.is_closed())
    }

    fn fed(&self) {
        if self.shared.starved.swap(false, Ordering::AcqRel) {
            crate::reached!("store commit found space again");
            tracing::info!("disk space is back: the store commits again");
        }
    }

    async fn replace(
        &mut self,
        pages: Vec<Page>,
        state: State,
        committed: Committed,
        done: &oneshot::Sender<Result<PageNumber, Error>>,
    ) -> Result<PageNumber, Error> {
        loop {
            match self.file.replace(pages.clone()).await {
                Ok(_) => break,
                Err(error) if error.is_no_space() => {
                    if !self.wait_for_space(done, &error).await? {
                        return Err(Error::Closed);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.fed();
        let cache = PageCache::new(self.shared.options.cache_bytes);
        let (applied, compacted) = (state.applied.0, state.mvcc().compacted());
        self.shared.replace(state, Ground { reader: self.file.reader(), cache });
        let lineage = committed.lineage;
        // Told before the checkpoint is waited for: it may wait for a commit of what is gone.
        self.shared.set_committed(committed);
        // Slices of the old pages are void by their lineage; they only take space.
        self.checkpoint.lock().await.forget(lineage).await?;
        self.shared.applied.raise(gate_value(applied));
        // Loading has left nothing to compact.
        self.shared.compacted.raise(compacted);
        self.shared.clean_more.notify_one();
        Ok(self.file.next_number())
    }

    async fn chore(&mut self, chore: Chore) -> Result<(), ()> {
        match chore {
            Chore::BeginCopy { victims, bytes, answer: to } => {
                let listed = self.file.reader().segments();
                let known = victims.iter().all(|id| listed.iter().any(|segment| segment.id == *id));
                let copy = match known {
                    true => self.file.begin_copy(&victims, bytes).await.map(Some),
                    false => Ok(None),
                };
                answer_or_go_on(to, copy)
            }
            Chore::Adopt { copy, answer: to } => {
                let adopted = self.file.adopt(*copy).await;
                if matches!(adopted, Ok(None)) {
                    crate::reached!("copy came too late");
                }
                answer_or_go_on(to, adopted)
            }
            Chore::Seal { answer: to } => answer_or_go_on(to, self.file.seal().await),
        }
    }
}

type Made = Result<Result<Reserve, pagefile::Error>, oneshot::error::RecvError>;

/// Completes when the spare segment that is being made, if one is, is there or failed.
async fn until_made(reserve: &mut Option<oneshot::Receiver<Result<Reserve, pagefile::Error>>>) -> Made {
    match reserve {
        Some(making) => making.await,
        None => std::future::pending().await,
    }
}

/// Tells who asked; an error ends the writer.
fn answer<T>(to: oneshot::Sender<Result<T, Error>>, done: Result<T, Error>) -> Result<(), ()> {
    let goes_on = done.is_ok();
    // An applier that is gone (the member stops) needs no answer.
    let _ = to.send(done);
    if goes_on { Ok(()) } else { Err(()) }
}

/// The same, where lack of space is the cleaner's business alone.
fn answer_or_go_on<T>(
    to: oneshot::Sender<Result<T, Error>>,
    done: Result<T, pagefile::Error>,
) -> Result<(), ()> {
    let goes_on = done.as_ref().err().is_none_or(pagefile::Error::is_no_space);
    let _ = to.send(done.map_err(Error::from));
    if goes_on { Ok(()) } else { Err(()) }
}
