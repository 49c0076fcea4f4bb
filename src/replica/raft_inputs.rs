//! The raft loop's inputs: messages, proposals, snapshots, transfers.
//!
//! A proposal is appended here by the leader, forwarded to the leader at most once, or parked while
//! there is none; it is refused only when it was certainly not proposed.

use super::{
    inbox::{Input, NotProposed, Proposal},
    raft_loop::{Offer, RaftLoop, UNSYNCED_BYTES_MAX},
    shared::BEHIND_MAX,
};
use crate::env::task;
use quorate_proto::quorate::v1::SnapshotPage;
use raft::{
    INVALID_ID, SnapshotStatus, Storage,
    eraftpb::{Entry, Message, MessageType},
};
use std::{cmp::Reverse, sync::atomic::Ordering, time::Duration};
use tokio::sync::oneshot;

/// While so many requests of this member wait, proposals are gathered: see [`RaftLoop::gathers`].
/// A simulated cluster has few clients, and gathers all the same.
const GATHER_WAITING_MIN: usize = if cfg!(madsim) { 2 } else { 64 };
/// Requests that wait for each millisecond of gathering.
const GATHER_WAITING_PER_MS: u64 = if cfg!(madsim) { 1 } else { 128 };
const GATHER_TIME_MAX: Duration = Duration::from_millis(4);
/// A batch of this size goes at once.
const GATHER_BYTES_MAX: usize = 256 << 10;

impl RaftLoop {
    pub(super) fn take(&mut self, input: Input) -> Result<(), String> {
        match input {
            Input::Propose(proposal) => self.propose(proposal),
            Input::ForwardRefused { id, why } => self.forward_refused(id, why),
            Input::Read(read) => self.reads.ask(read),
            Input::Raft(message) => self.step(message),
            Input::Snapshot { .. } => unreachable!("taken by the turn itself, which may wait"),
            Input::SnapshotSent { to, delivered } => {
                let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.node.report_snapshot(to, status);
            }
            Input::Reachable => self.retry_parked = true,
            Input::Unreachable(peer) => self.node.report_unreachable(peer),
            Input::Fetched { low, context, result } => {
                assert!(self.fetching.remove(&low), "only what was asked for is fetched");
                let first = self.parts.log.first_index().expect("the log knows its first index");
                match result {
                    // Compacted meanwhile: raft will see that.
                    Err(_) if low < first => {}
                    Err(error) => return Err(format!("cannot read the log at {low}: {error}")),
                    Ok(()) => {
                        if let Some(context) = context {
                            crate::reached!("entries fetched for slow follower");
                            self.node.on_entries_fetched(context);
                        }
                    }
                }
            }
            Input::Transfer { target, answer } => {
                let begun = self.transfer(target);
                let _ = answer.send(begun);
            }
            Input::Stop => self.stop_asked = true,
        }
        Ok(())
    }

    /// As [`RaftLoop::take`], while raft rests for a snapshot. What is dropped is asked again.
    pub(super) fn take_while_installing(&mut self, input: Input) {
        match input {
            Input::Propose(proposal) => match proposal.from {
                None => self.park(proposal),
                Some(peer) => self.parts.peers.refuse(peer, proposal.id, NotProposed::NotLeader),
            },
            Input::ForwardRefused { id, why } => self.forward_refused(id, why),
            Input::Read(read) => self.reads.ask(read),
            Input::Snapshot { answer, .. } => {
                crate::reached!("snapshot while another is installed");
                let _ = answer.send(Err("another snapshot is being installed".to_owned()));
            }
            Input::Fetched { low, .. } => {
                self.fetching.remove(&low);
            }
            Input::Transfer { answer, .. } => {
                let _ = answer.send(false);
            }
            Input::Stop => self.stop_asked = true,
            Input::Raft(_) | Input::SnapshotSent { .. } | Input::Reachable | Input::Unreachable(_) => {}
        }
    }

    fn step(&mut self, message: Message) {
        if self.removed.contains(&message.from) {
            return;
        }
        let log = &self.node.raft.raft_log;
        let behind = log.committed.saturating_sub(log.applied) > BEHIND_MAX
            || self.unsynced_bytes > UNSYNCED_BYTES_MAX;
        if behind && message.msg_type == MessageType::MsgAppend {
            crate::reached!("append dropped by backlog");
            return;
        }
        if message.msg_type == MessageType::MsgTimeoutNow && self.is_restoring() {
            crate::reached!("asked to lead while a snapshot is being made durable");
            return;
        }
        // Refused by raft: a reply that comes from no member of the configuration.
        let _ = self.node.step(message);
    }

    /// A whole snapshot has come: raft judges its message; if it restores from it, the pages are
    /// installed in the same step, so that no second snapshot can come in between.
    pub(super) async fn take_snapshot(
        &mut self,
        message: Message,
        pages: Vec<SnapshotPage>,
        answer: oneshot::Sender<Result<(), String>>,
    ) -> Result<(), String> {
        self.cycle(None).await?;
        assert!(self.node.snap().is_none(), "the last snapshot was installed");
        self.step(message);
        self.cycle(Some(Offer { pages })).await?;
        // Taken, or not needed any more: the leader learns which by raft's own answer.
        let _ = answer.send(Ok(()));
        Ok(())
    }

    /// A request enters, from a client of this member or from another member.
    fn propose(&mut self, proposal: Proposal) {
        let log = &self.node.raft.raft_log;
        if log.committed.saturating_sub(log.applied) > BEHIND_MAX || self.unsynced_bytes > UNSYNCED_BYTES_MAX
        {
            crate::reached!("proposal refused by backlog");
            return self.refuse(proposal, NotProposed::TooMany);
        }
        if proposal.data.len() as u64 > self.parts.shared.request_bytes_max {
            return self.refuse(proposal, NotProposed::TooMany);
        }
        if self.is_leader() {
            if proposal.grows && !self.parts.shared.has_reserve() {
                crate::reached!("proposal refused for lack of disk space");
                return self.refuse(proposal, NotProposed::NoSpace);
            }
            self.batch_bytes += proposal.data.len();
            self.batch.push(proposal);
            return;
        }
        match (self.leader(), proposal.from) {
            // It was sent here as to the leader; its member finds the right one.
            (_, Some(_)) => self.refuse(proposal, NotProposed::NotLeader),
            (INVALID_ID, None) => self.park(proposal),
            (leader, None) => self.forward(leader, proposal),
        }
    }

    fn forward(&mut self, leader: u64, proposal: Proposal) {
        let waiters = self.parts.shared.waiters.clone();
        if !waiters.mark_sent(proposal.id) {
            return;
        }
        if self.parts.peers.forward(leader, proposal.clone()) {
            crate::reached!("forwarded proposal");
        } else if waiters.mark_unsent(proposal.id).is_some() {
            self.park(proposal);
        }
    }

    fn forward_refused(&mut self, id: u64, why: NotProposed) {
        let waiters = self.parts.shared.waiters.clone();
        if why != NotProposed::NotLeader {
            waiters.answer(id, || Err(why.into()));
        } else if let Some(proposal) = waiters.mark_unsent(id) {
            crate::reached!("forwarded proposal comes back");
            self.park(proposal);
        }
    }

    fn park(&mut self, proposal: Proposal) {
        if let Err(proposal) = self.parked.push(proposal) {
            self.refuse(proposal, NotProposed::TooMany);
        }
    }

    /// Certainly not proposed.
    fn refuse(&self, proposal: Proposal, why: NotProposed) {
        match proposal.from {
            Some(peer) => self.parts.peers.refuse(peer, proposal.id, why),
            None => self.parts.shared.waiters.answer(proposal.id, || Err(why.into())),
        }
    }

    /// Tries what waits for a leader again.
    pub(super) fn retry_parked(&mut self) {
        if !std::mem::take(&mut self.retry_parked) || self.parked.len() == 0 {
            return;
        }
        let transferring = self.node.raft.lead_transferee.is_some();
        let can_go = if self.is_leader() {
            !transferring
        } else {
            self.leader() != INVALID_ID && self.parts.peers.is_connected(self.leader())
        };
        let waiting = self.parked.take();
        for proposal in waiting {
            if !self.parts.shared.waiters.is_waiting(proposal.id) {
                continue;
            }
            if can_go {
                self.propose(proposal);
            } else {
                self.park(proposal);
            }
        }
        self.flush_proposals();
    }

    /// Group commit: while many wait, one batch follows another at a distance, so that a sync, a
    /// message to each follower and a wake-up of each thread are shared by more of them. Whoever
    /// waits alone, or beside few, never waits here.
    pub(super) fn gathers(&mut self) -> bool {
        let shared = self.parts.shared.clone();
        let waiting = shared.waiters.len();
        let mut gathers =
            waiting >= GATHER_WAITING_MIN && self.batch_bytes < GATHER_BYTES_MAX && self.is_leader();
        if gathers {
            let time = Duration::from_micros(1_000 * waiting as u64 / GATHER_WAITING_PER_MS);
            let due = self.flushed + time.min(GATHER_TIME_MAX);
            gathers = shared.env.clock.now() < due;
            if gathers && !self.gather_timer.swap(true, Ordering::AcqRel) {
                crate::reached!("proposals gathered");
                let timer = self.gather_timer.clone();
                let shared = shared.clone();
                drop(task::spawn(async move {
                    shared.env.clock.sleep_until(due).await;
                    timer.store(false, Ordering::Release);
                    shared.wake.notify_one();
                }));
            }
        }
        shared.inbox.gather(gathers);
        gathers
    }

    /// Appends what was gathered, in one message to each follower.
    pub(super) fn flush_proposals(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        self.flushed = self.parts.shared.env.clock.now();
        if !self.is_leader() {
            // Deposed meanwhile.
            batch.into_iter().for_each(|proposal| self.propose(proposal));
            assert!(self.batch.is_empty(), "only a leader gathers a batch");
            return;
        }
        let waiters = self.parts.shared.waiters.clone();
        waiters.mark_all_sent(&mut batch);
        if batch.is_empty() || self.append(batch.iter()) {
            return;
        }
        // One by one: what still fits goes.
        for proposal in batch {
            if self.append(std::iter::once(&proposal)) {
                continue;
            }
            let transferring = self.node.raft.lead_transferee.is_some();
            match proposal.from {
                None if transferring => {
                    if waiters.mark_unsent(proposal.id).is_some() {
                        self.park(proposal);
                    }
                }
                Some(_) if transferring => self.refuse(proposal, NotProposed::NotLeader),
                _ => {
                    crate::reached!("proposal refused by backlog");
                    self.refuse(proposal, NotProposed::TooMany);
                }
            }
        }
    }

    /// Hands requests to raft as one proposal; `false`: raft took none of them.
    fn append<'a>(&mut self, proposals: impl Iterator<Item = &'a Proposal>) -> bool {
        assert!(self.is_leader(), "a follower would send the proposal on by itself");
        let entries: Vec<Entry> =
            proposals.map(|proposal| Entry { data: proposal.data.clone(), ..Entry::default() }).collect();
        let mut message =
            Message { msg_type: MessageType::MsgPropose, from: self.node.raft.id, ..Message::default() };
        message.entries = entries.into();
        match self.node.step(message) {
            Ok(()) => true,
            Err(raft::Error::ProposalDropped) => false,
            Err(error) => panic!("raft fails a proposal with {error}"),
        }
    }

    /// Begins to hand leadership over; `false` if there is nothing to hand or nobody to take it.
    fn transfer(&mut self, target: u64) -> bool {
        if !self.is_leader() {
            return false;
        }
        let own = self.parts.shared.member_id;
        let progress = self.node.raft.prs();
        let most_advanced = self
            .conf_state
            .voters
            .iter()
            .filter(|voter| **voter != own)
            .filter_map(|voter| progress.get(*voter).map(|progress| (*voter, progress)))
            .filter(|(voter, progress)| if target == 0 { progress.recent_active } else { *voter == target })
            .max_by_key(|(voter, progress)| (progress.matched, Reverse(*voter)))
            .map(|(voter, _)| voter);
        let Some(to) = most_advanced else { return false };
        tracing::info!("{own:x} starts to transfer leadership to {to:x}");
        self.node.transfer_leader(to);
        true
    }
}
