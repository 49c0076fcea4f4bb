//! Between the raft loop and the applier: work one way, word of what was done the other.
//!
//! Both ways are queues that never make their writer wait. Work is bounded by the credit of
//! [`super::log_view`]; reports are merged into one.

use crate::{machine::Entry, store::Position};
use quorate_proto::{quorate::v1::SnapshotPage, raftpb};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};
use tokio::sync::{Notify, oneshot};

/// What the applier is to do next.
#[derive(Debug)]
pub(super) enum Work {
    /// Committed and durable here, in order.
    Entries(Vec<Entry>),
    /// Replace the state; answers with the position it then has.
    Install { pages: Vec<SnapshotPage>, answer: oneshot::Sender<Result<Position, String>> },
    /// Commit what is applied and end.
    Stop,
}

/// Work for the applier.
#[derive(Default)]
pub(super) struct ApplyQueue {
    work: Mutex<VecDeque<Work>>,
    wake: Notify,
}

impl ApplyQueue {
    pub fn push(&self, work: Work) {
        self.work.lock().expect("no panic while the queue is locked").push_back(work);
        self.wake.notify_one();
    }

    pub fn try_pop(&self) -> Option<Work> {
        self.work.lock().expect("no panic while the queue is locked").pop_front()
    }

    /// Whether the last word is there: nothing follows it.
    pub fn ends(&self) -> bool {
        let work = self.work.lock().expect("no panic while the queue is locked");
        matches!(work.back(), Some(Work::Stop))
    }

    /// Drops everything that waits: the member ends without it.
    pub fn clear(&self) {
        self.work.lock().expect("no panic while the queue is locked").clear();
    }

    /// Completes when work may be there.
    pub async fn more(&self) {
        self.wake.notified().await;
    }
}

/// What the applier has done since the loop last looked.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Applied up to here; 0 = nothing new.
    pub index: u64,
    pub entries: usize,
    pub bytes: usize,
    /// Conf changes with their indexes; `None` where the change was refused.
    pub changes: Vec<(u64, Option<raftpb::ConfChange>)>,
    /// Set when the store has committed.
    pub durable: Option<Position>,
    /// The member must stop.
    pub failed: Option<String>,
}

/// The merged report.
pub(super) struct Reports {
    report: Mutex<Report>,
    wake: Arc<Notify>,
}

impl Reports {
    pub fn new(wake: Arc<Notify>) -> Reports {
        Reports { report: Mutex::default(), wake }
    }

    pub fn add(&self, merge: impl FnOnce(&mut Report)) {
        merge(&mut self.report.lock().expect("no panic while the report is locked"));
        self.wake.notify_one();
    }

    pub fn take(&self) -> Report {
        std::mem::take(&mut self.report.lock().expect("no panic while the report is locked"))
    }
}
