//! What a member's parts share: what the handle reads, the loop writes.

use super::{
    Status,
    inbox::Inbox,
    waiters::{RequestIds, Waiters},
};
use crate::{
    env::{Env, disk::Lock},
    log,
    store::Store,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// N3: how long a proposal or a round of reads may take.
pub(super) fn request_timeout(election_timeout: Duration) -> Duration {
    Duration::from_secs(5) + 2 * election_timeout
}

/// N4: entries that are committed and not applied; beyond it requests are refused.
pub(super) const BEHIND_MAX: u64 = 5_000;

/// The parts that end, each a bit of [`Shared::ended`].
#[derive(Clone, Copy)]
pub(super) enum Part {
    Loop = 1,
    Applier = 2,
    Log = 4,
    Listeners = 8,
}

const ALL_ENDED: u8 = Part::Loop as u8 | Part::Applier as u8 | Part::Log as u8 | Part::Listeners as u8;

/// Numbers that the loop publishes after each turn.
#[derive(Default)]
pub(super) struct Published {
    pub term: AtomicU64,
    pub commit: AtomicU64,
    pub leader_changes: AtomicU64,
    pub is_learner: AtomicBool,
    pub proposals_failed: AtomicU64,
}

pub(super) struct Shared {
    pub env: Env,
    pub member_id: u64,
    pub cluster_id: u64,
    pub request_timeout: Duration,
    pub request_bytes_max: u64,
    pub frame_bytes_max: u32,
    pub store: Store,
    pub log_space: log::Space,
    pub waiters: Arc<Waiters>,
    pub ids: RequestIds,
    pub inbox: Arc<Inbox>,
    /// Wakes the loop.
    pub wake: Arc<Notify>,
    pub published: Published,
    pub leader: watch::Sender<u64>,
    pub stopping: AtomicBool,
    pub failure: watch::Sender<Option<String>>,
    /// Why this member serves nobody any more, though it runs.
    pub out_of_service: watch::Sender<Option<Arc<str>>>,
    pub ended: watch::Sender<u8>,
    /// Held until the last part has ended.
    pub lock: Mutex<Option<Box<dyn Lock>>>,
}

impl Shared {
    /// The member cannot go on; the first reason stands.
    pub fn fail(&self, reason: String) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            if first {
                tracing::error!(member_id = %format_args!("{:x}", self.member_id), error = reason, "the member stops");
                *failure = Some(reason);
            }
            first
        });
    }

    pub fn part_ended(&self, part: Part) {
        self.ended.send_modify(|ended| *ended |= part as u8);
        if *self.ended.borrow() == ALL_ENDED {
            *self.lock.lock().expect("no panic while the lock is held") = None;
        }
    }

    /// Completes when every part has ended.
    pub async fn all_ended(&self) {
        let mut ended = self.ended.subscribe();
        // The sender lives in self.
        let _ = ended.wait_for(|ended| *ended == ALL_ENDED).await;
    }

    /// Completes when the loop has ended: nothing more happens here.
    pub async fn loop_ended(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| ended & Part::Loop as u8 != 0).await;
    }

    /// Whether apply is so far behind that new requests are refused.
    pub fn is_behind(&self) -> bool {
        let commit = self.published.commit.load(Ordering::Relaxed);
        commit.saturating_sub(self.store.applied().0) > BEHIND_MAX
    }

    /// Whether what grows the store may enter: log and store hold what deletes and cleaning need.
    pub fn has_reserve(&self) -> bool {
        self.store.has_reserve() && self.log_space.has_reserve()
    }

    pub fn status(&self) -> Status {
        let published = &self.published;
        Status {
            member_id: self.member_id,
            cluster_id: self.cluster_id,
            term: published.term.load(Ordering::Relaxed),
            leader: *self.leader.borrow(),
            commit: published.commit.load(Ordering::Relaxed),
            applied: self.store.applied().0,
            is_learner: published.is_learner.load(Ordering::Relaxed),
            leader_changes: published.leader_changes.load(Ordering::Relaxed),
            proposals_pending: self.waiters.len() as u64,
            proposals_failed: published.proposals_failed.load(Ordering::Relaxed),
        }
    }
}
