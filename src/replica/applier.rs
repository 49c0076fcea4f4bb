//! The applier: the one task that owns the state machine's store.
//!
//! Promises: entries are applied in order, each once; a reply leaves only after its entry was
//! applied here (raft hands out only what is durable on a quorum and on this member: I4); the store
//! commits by bytes or time, and only a commit moves the durable mark (I3). What it cannot apply
//! stops the member before anything was changed (I2). **Never** waits for the raft loop.

use super::{
    Observer,
    apply_queue::{ApplyQueue, Reports, Work},
    waiters::{Answer, Waiters},
};
use crate::{
    env::{Clock, Moment},
    machine::{Entry, Refusal, Reply},
    store::{self, Position, Store},
};
use futures::future::BoxFuture;
use quorate_proto::quorate::v1::SnapshotPage;
use std::sync::Arc;

/// Entries between two reports, so that credit and answers return while a long run is applied.
const REPORT_ENTRIES: usize = 64;

pub(super) struct ApplyTask {
    #[allow(dead_code, reason = "probes exist in simulation only")]
    pub member_id: u64,
    pub applier: store::Applier,
    pub store: Store,
    pub options: store::Options,
    pub clock: Arc<dyn Clock>,
    pub queue: Arc<ApplyQueue>,
    pub reports: Arc<Reports>,
    pub waiters: Arc<Waiters>,
    pub metrics: Arc<dyn Observer>,
}

/// Bytes applied beside a commit that is being written, in commits: then applying pauses. When
/// the store finds no space, entries wait in the log from then on.
const AHEAD_COMMITS: u64 = 2;

/// A commit of the store that is being written.
struct Writing {
    began: Moment,
    durable: BoxFuture<'static, Result<Position, store::Error>>,
}

/// What is under way between two pieces of work.
#[derive(Default)]
struct Pending {
    /// The commit being written; entries are applied meanwhile.
    writing: Option<Writing>,
    /// When the next one is due: one timer for each commit, not one for each entry.
    due: Option<(Moment, BoxFuture<'static, ()>)>,
    /// It is due now.
    overdue: bool,
}

impl ApplyTask {
    /// Runs until told to stop or until something fails.
    pub async fn run(mut self) {
        if let Err(error) = self.work().await {
            self.reports.add(|report| report.failed = Some(error));
        }
    }

    async fn work(&mut self) -> Result<(), String> {
        let mut pending = Pending::default();
        let store = self.store.clone();
        let failed = store.failed();
        tokio::pin!(failed);
        loop {
            while self.may_apply(&pending)
                && let Some(work) = self.queue.try_pop()
            {
                match work {
                    Work::Entries(entries) => self.apply_all(entries).await?,
                    Work::Install { pages, answer } => {
                        if self.applier.is_starved() {
                            // What takes its place needs it no more.
                            crate::reached!("starved commit given up for a snapshot");
                            pending.writing = None;
                        }
                        self.finish(pending.writing.take()).await?;
                        let installed = self.install(pages).await;
                        let failed = installed.as_ref().err().cloned();
                        // The loop may have stopped waiting: it ends the member then.
                        let _ = answer.send(installed);
                        if let Some(error) = failed {
                            return Err(error);
                        }
                        pending = Pending::default();
                    }
                    Work::Stop => return self.end(pending.writing).await,
                }
                self.commit_if_due(&mut pending).await?;
            }
            if !self.may_apply(&pending) && self.applier.is_starved() && self.queue.ends() {
                return self.end(pending.writing).await;
            }
            let durable = async {
                match &mut pending.writing {
                    Some(writing) => (&mut writing.durable).await,
                    None => std::future::pending().await,
                }
            };
            let timer = async {
                match &mut pending.due {
                    Some((_, timer)) => timer.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                position = durable => {
                    let began = pending.writing.take().expect("it was just awaited").began;
                    self.committed(began, position)?;
                }
                reason = &mut failed => return Err(reason),
                () = self.queue.more() => {}
                () = timer => {
                    pending.due = None;
                    pending.overdue = true;
                }
            }
            self.commit_if_due(&mut pending).await?;
        }
    }

    /// Whether more may be applied: not far beyond a commit that is still being written.
    fn may_apply(&self, pending: &Pending) -> bool {
        let ahead = self.applier.pending_bytes().unwrap_or(0);
        pending.writing.is_none() || ahead < AHEAD_COMMITS * self.options.commit_bytes
    }

    /// Begins the next commit when it is due and the last one is written.
    async fn commit_if_due(&mut self, pending: &mut Pending) -> Result<(), String> {
        let Some(bytes) = self.applier.pending_bytes() else {
            pending.overdue = false;
            return Ok(());
        };
        let now = self.clock.now();
        let late = pending.due.as_ref().is_some_and(|(at, _)| *at <= now);
        if pending.overdue || late || bytes >= self.options.commit_bytes {
            if pending.writing.is_none() {
                *pending = Pending { writing: self.begin_commit().await?, ..Pending::default() };
            }
        } else if pending.due.is_none() {
            let at = now + self.options.commit_interval;
            pending.due = Some((at, self.clock.sleep_until(at)));
        }
        Ok(())
    }

    /// Commits what is applied and marks it. A store without space ends as it is: the log holds the rest.
    async fn end(&mut self, writing: Option<Writing>) -> Result<(), String> {
        if !self.finish_unless_starved(writing).await? {
            return Ok(());
        }
        let last = self.begin_commit().await?;
        if !self.finish_unless_starved(last).await? {
            return Ok(());
        }
        self.applier.mark_synced().await.map_err(|error| format!("cannot mark the store: {error}"))
    }

    /// `false`: it found no space.
    async fn finish_unless_starved(&self, writing: Option<Writing>) -> Result<bool, String> {
        let Some(mut writing) = writing else { return Ok(true) };
        loop {
            tokio::select! {
                biased;
                position = &mut writing.durable => {
                    self.committed(writing.began, position)?;
                    return Ok(true);
                }
                () = self.clock.sleep(self.options.commit_interval) => {}
            }
            if self.applier.is_starved() {
                crate::reached!("member stopped with a store that found no space");
                return Ok(false);
            }
        }
    }

    /// Begins a commit if anything was applied since the last one.
    async fn begin_commit(&mut self) -> Result<Option<Writing>, String> {
        if self.applier.pending_bytes().is_none() {
            return Ok(None);
        }
        let began = self.clock.now();
        let ticket =
            self.applier.begin_commit().await.map_err(|error| format!("cannot commit the store: {error}"))?;
        Ok(Some(Writing { began, durable: Box::pin(ticket.durable()) }))
    }

    /// Waits for a commit that is being written.
    async fn finish(&self, writing: Option<Writing>) -> Result<(), String> {
        match writing {
            Some(writing) => self.committed(writing.began, writing.durable.await),
            None => Ok(()),
        }
    }

    fn committed(&self, began: Moment, position: Result<Position, store::Error>) -> Result<(), String> {
        let position = position.map_err(|error| format!("cannot commit the store: {error}"))?;
        self.metrics.store_committed(self.clock.now().since(began).as_secs_f64());
        self.durable(position);
        Ok(())
    }

    async fn apply_all(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        for run in entries.chunks(REPORT_ENTRIES) {
            let mut changes = Vec::new();
            let mut answers = Vec::with_capacity(run.len());
            let mut applied = Ok(());
            for entry in run {
                applied = self.apply(entry, &mut changes, &mut answers).await;
                if applied.is_err() {
                    break;
                }
            }
            // Together, so that a connection sends all of its answers at once.
            self.waiters.answer_all(answers.into_iter());
            applied?;
            let last = run.last().expect("chunks are not empty").index;
            let bytes = run.iter().map(|entry| entry.data.len()).sum::<usize>();
            self.reports.add(|report| {
                assert!(report.index < last, "entries are applied in order");
                report.index = last;
                report.entries += run.len();
                report.bytes += bytes;
                report.changes.append(&mut changes);
            });
        }
        Ok(())
    }

    async fn apply(
        &mut self,
        entry: &Entry,
        changes: &mut Vec<(u64, Option<quorate_proto::raftpb::ConfChange>)>,
        answers: &mut Vec<(u64, Answer)>,
    ) -> Result<(), String> {
        let began = self.clock.now();
        crate::probe!(crate::env::trace::Probe::Applied {
            member: self.member_id,
            index: entry.index,
            term: entry.term,
            digest: crc32c::crc32c(&entry.data),
        });
        if !entry.is_conf_change {
            crate::probe!(crate::env::trace::Probe::Entry {
                member: self.member_id,
                index: entry.index,
                term: entry.term,
                data: entry.data.clone(),
            });
        }
        crate::trace!("apply", &entry.data);
        let applied = self.applier.apply(entry).await.map_err(|error| format!("cannot apply: {error}"))?;
        debug_assert_eq!(self.store.applied().0, entry.index, "the mark moves with its entry");
        if let Some(change) = applied.conf_change {
            assert!(entry.is_conf_change, "only a conf change changes the configuration");
            changes.push((entry.index, change));
        }
        let seconds = self.clock.now().since(began).as_secs_f64();
        let (kind, success) = kind(&applied.outcome);
        self.metrics.applied(kind, success, seconds);
        if applied.request_id != 0 {
            let revision = self.store.revisions().0;
            let answer = applied.outcome.map(|reply| (reply, revision)).map_err(Into::into);
            answers.push((applied.request_id, answer));
        }
        #[cfg(madsim)]
        self.probe_state(entry.index).await;
        Ok(())
    }

    /// At round indexes every member shows its state, so that the oracle can compare.
    #[cfg(madsim)]
    async fn probe_state(&self, applied: u64) {
        const EVERY: u64 = 64;
        if !applied.is_multiple_of(EVERY) {
            return;
        }
        let reply = match self.store.hash_kv(0).await {
            Ok(reply) => reply,
            // A disk that fails stops the member elsewhere.
            Err(store::ReadError::Disk(_)) => return,
            Err(error) => panic!("the state of a member does not hash: {error}"),
        };
        crate::reached!("state shown to be compared");
        crate::probe!(crate::env::trace::Probe::State {
            member: self.member_id,
            applied,
            revision: self.store.revisions().0,
            digest: reply.hash,
        });
    }

    async fn install(&mut self, pages: Vec<SnapshotPage>) -> Result<Position, String> {
        let position = self
            .applier
            .install(pages)
            .await
            .map_err(|error| format!("cannot install a snapshot: {error}"))?;
        self.durable(position.clone());
        Ok(position)
    }

    fn durable(&self, position: Position) {
        self.reports.add(|report| {
            let before = report.durable.as_ref().map_or(0, |position| position.index);
            assert!(before <= position.index, "the durable mark never falls");
            report.durable = Some(position);
        });
    }
}

/// The metric's name for what was applied.
fn kind(outcome: &Result<Reply, Refusal>) -> (&'static str, bool) {
    let kind = match outcome {
        Ok(Reply::Put(_)) => "Put",
        Ok(Reply::DeleteRange(_)) => "DeleteRange",
        Ok(Reply::Txn(_)) => "Txn",
        Ok(Reply::Range(_)) => "Range",
        Ok(Reply::Compaction(_)) => "Compaction",
        Ok(Reply::Alarm(_)) => "Alarm",
        Ok(Reply::Empty) => "Internal",
        Err(_) => "Refused",
    };
    (kind, outcome.is_ok())
}
