//! The raft loop: the one task that owns the raft state.
//!
//! A turn takes what came in (words of the log's writer, of the applier, everything in the inbox),
//! then handles raft's ready: new entries and votes go to the log's writer, committed entries to
//! the applier, messages to the peers.
//!
//! Promises: what says that this member holds something (votes, acknowledgements) leaves only
//! after the writer said it is durable; a leader's appends leave at once, beside its own sync, except
//! where its very vote is not durable yet; a lone voter commits by its own sync (I4). Nothing here
//! waits for another queue to drain (I10): only for work, and for a snapshot that is installed.
//! **Never** does I/O and never knows what an entry means.

use super::{
    Options, StartError,
    apply_queue::{ApplyQueue, Reports, Work},
    conf_change,
    inbox::{Input, message_bytes},
    log_view::LogView,
    peer_set::PeerSet,
    persistence::Persistence,
    proposals::Parked,
    raft_message,
    read_index::ReadRounds,
    shared::{Part, Shared},
    snapshot_send::SnapshotDesk,
    start::MESSAGE_BYTES_MAX,
};
use crate::{
    env::{Moment, task},
    log::Log,
    machine,
    store::Position,
};
use quorate_proto::quorate::v1::SnapshotPage;
use raft::{
    Config, INVALID_ID, RawNode, Ready, SnapshotStatus, StateRole, Storage,
    eraftpb::{ConfState, Entry, EntryType, HardState, Message, MessageType, Snapshot},
};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::oneshot;

/// Appends under way to one follower.
const INFLIGHT_MAX: usize = 256;
/// Entries of a leader that are not committed; beyond it proposals are refused.
const UNCOMMITTED_BYTES_MAX: u64 = 128 << 20;
/// Committed entries in one ready.
const COMMITTED_BYTES_MAX: u64 = 4 << 20;
/// Entries that wait for the log's sync; beyond it appends are dropped and proposals refused.
pub(super) const UNSYNCED_BYTES_MAX: usize = 64 << 20;
/// Reads from disk for followers and apply at a time.
const FETCHES_MAX: usize = 16;
/// Bytes of one such read.
const FETCH_BYTES_MAX: u64 = 4 << 20;
/// Turns in a row without giving other tasks of the thread a chance.
const TURNS_MAX: u32 = 64;

/// What the loop is made of.
pub(super) struct Parts {
    pub shared: Arc<Shared>,
    pub view: LogView,
    pub log: Log,
    pub peers: Arc<PeerSet>,
    pub desk: SnapshotDesk,
    pub queue: Arc<ApplyQueue>,
    pub reports: Arc<Reports>,
    pub persistence: Arc<Persistence>,
    /// The store's durable position.
    pub position: Position,
}

/// A ready that is not durable yet.
struct Unsynced {
    number: u64,
    ticket: u64,
    bytes: usize,
    /// To send once it is.
    messages: Vec<Message>,
}

/// A snapshot that was just handed to raft, with its pages.
pub(super) struct Offer {
    pub pages: Vec<SnapshotPage>,
}

pub(super) struct RaftLoop {
    pub(super) parts: Parts,
    pub(super) node: RawNode<LogView>,
    pub(super) reads: ReadRounds,
    pub(super) parked: Parked,
    /// Proposals that were gathered, and their bytes.
    pub(super) batch: Vec<super::inbox::Proposal>,
    pub(super) batch_bytes: usize,
    /// When the last batch went.
    pub(super) flushed: Moment,
    /// A timer runs that will wake the loop to flush.
    pub(super) gather_timer: Arc<AtomicBool>,
    heartbeat: Duration,
    election_ticks: u32,
    snapshot_count: u64,
    catchup_entries: u64,
    next_tick: Moment,
    unsynced: VecDeque<Unsynced>,
    pub(super) unsynced_bytes: usize,
    last_ticket: u64,
    durable_ticket: u64,
    /// Ticks without a word from the writer while it has work.
    stalled_ticks: u32,
    /// Term and vote as last given to the log.
    voted: (u64, u64),
    /// A leader's messages wait for this ticket: its vote for itself is not durable before.
    hold_until: u64,
    role: StateRole,
    pub(super) conf_state: ConfState,
    /// Removed members may not speak.
    pub(super) removed: BTreeSet<u64>,
    /// Applied as the applier reported it; raft is told no more than it holds durable.
    applied: u64,
    /// Conf changes up to here are part of an installed snapshot.
    restored: u64,
    compacted_at: u64,
    /// The commit index as last shown, and the last term in which anything was committed.
    committed: (u64, u64),
    pub(super) fetching: BTreeSet<u64>,
    unreachable: BTreeSet<u64>,
    unsent_snapshots: BTreeSet<u64>,
    pub(super) retry_parked: bool,
    pub(super) stop_asked: bool,
    #[allow(dead_code, reason = "probes exist in simulation only")]
    ticks: u64,
}

impl RaftLoop {
    pub fn new(parts: Parts, options: &Options) -> Result<RaftLoop, StartError> {
        let shared = &parts.shared;
        let election_ticks =
            (options.election_timeout.as_nanos() / options.heartbeat_interval.as_nanos()).max(2) as u32;
        let config = Config {
            id: shared.member_id,
            election_tick: election_ticks as usize,
            heartbeat_tick: 1,
            applied: parts.position.index,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: INFLIGHT_MAX,
            check_quorum: true,
            pre_vote: options.pre_vote,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, parts.view.clone(), &logger)
            .map_err(|error| StartError::Other(format!("cannot start raft: {error}")))?;
        let conf_state = raft_message::conf_state_from_wire(&parts.position.conf_state);
        if parts.position.index > 0 {
            parts.log.offer_snapshot(parts.position.index, parts.position.term, conf_state.clone());
        }
        let hard_state = node.raft.hard_state();
        let now = shared.env.clock.now();
        Ok(RaftLoop {
            reads: ReadRounds::new(shared.member_id, &shared.env.rng, shared.request_timeout),
            parked: Parked::default(),
            batch: Vec::new(),
            batch_bytes: 0,
            flushed: now,
            gather_timer: Arc::default(),
            heartbeat: options.heartbeat_interval,
            election_ticks,
            snapshot_count: options.snapshot_count.max(1),
            catchup_entries: options.catchup_entries,
            next_tick: now + options.heartbeat_interval,
            unsynced: VecDeque::new(),
            unsynced_bytes: 0,
            // The bootstrap may have taken tickets.
            last_ticket: parts.persistence.upto().map_err(StartError::Other)?,
            durable_ticket: parts.persistence.upto().map_err(StartError::Other)?,
            stalled_ticks: 0,
            voted: (hard_state.term, hard_state.vote),
            hold_until: 0,
            role: StateRole::Follower,
            conf_state,
            removed: shared.store.members().removed,
            applied: parts.position.index,
            restored: 0,
            compacted_at: parts.position.index,
            committed: (hard_state.commit, 0),
            fetching: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            unsent_snapshots: BTreeSet::new(),
            retry_parked: false,
            stop_asked: false,
            ticks: 0,
            node,
            parts,
        })
    }

    /// Runs until told to stop or until the member cannot go on.
    pub async fn run(mut self) {
        drop(task::spawn(tick(self.parts.shared.clone(), self.heartbeat)));
        let end = self.live().await;
        let shared = self.parts.shared.clone();
        let failed = end.is_err();
        if let Err(reason) = end {
            shared.fail(reason);
        }
        shared.stopping.store(true, Ordering::Release);
        shared.inbox.close();
        self.reads.close();
        shared.waiters.close();
        self.parts.peers.pulses.stop();
        if failed {
            self.parts.queue.clear();
        }
        self.parts.queue.push(Work::Stop);
        shared.leader.send_replace(INVALID_ID);
    }

    async fn live(&mut self) -> Result<(), String> {
        if self.is_sole_voter() {
            // Nobody else can win: no reason to wait for an election timeout.
            crate::reached!("single voter campaign");
            self.node.campaign().map_err(|error| error.to_string())?;
        }
        self.publish();
        let mut inputs = VecDeque::new();
        let mut turns = 0;
        loop {
            self.take_persisted()?;
            self.take_applied()?;
            self.parts.shared.inbox.drain(&mut inputs);
            while let Some(input) = inputs.pop_front() {
                match input {
                    Input::Snapshot { message, pages, answer } => {
                        self.flush_proposals();
                        self.take_snapshot(message, pages, answer).await?;
                    }
                    input => self.take(input)?,
                }
            }
            if self.stop_asked {
                return Ok(());
            }
            if !self.gathers() {
                self.flush_proposals();
            }
            self.tick_if_due();
            loop {
                self.retry_parked();
                self.ask_read_index();
                self.cycle(None).await?;
                // A new leader, or its first commit: what waited for it goes in the same turn.
                if !self.retry_parked && !self.reads.is_pending() {
                    break;
                }
            }
            self.fetch_wanted();
            self.publish();
            turns += 1;
            if turns % TURNS_MAX == 0 {
                task::yield_now().await;
            }
            self.parts.shared.wake.notified().await;
        }
    }

    pub(super) fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// 0 = none known.
    pub(super) fn leader(&self) -> u64 {
        self.node.raft.leader_id
    }

    pub(super) fn is_sole_voter(&self) -> bool {
        self.node.raft.prs().is_singleton() && self.node.raft.promotable()
    }

    /// Tells raft what became durable, and sends what waited for it.
    fn take_persisted(&mut self) -> Result<(), String> {
        let upto = self.parts.persistence.upto()?;
        assert!(
            upto >= self.durable_ticket && upto <= self.last_ticket,
            "the writer knows the tickets it was given"
        );
        if upto == self.durable_ticket {
            return Ok(());
        }
        self.durable_ticket = upto;
        self.stalled_ticks = 0;
        while let Some(first) = self.unsynced.front()
            && first.ticket <= upto
        {
            let durable = self.unsynced.pop_front().expect("just seen");
            self.unsynced_bytes -= durable.bytes;
            self.node.on_persist_ready(durable.number);
            self.send(durable.messages);
        }
        self.report_unsent();
        self.advance_applied();
        Ok(())
    }

    /// Takes the applier's report: credit, conf changes, progress, and the durable mark, to which
    /// the log may be compacted.
    fn take_applied(&mut self) -> Result<(), String> {
        let report = self.parts.reports.take();
        if let Some(error) = report.failed {
            return Err(error);
        }
        self.parts.view.applied(report.entries, report.bytes);
        for (index, change) in report.changes {
            if index > self.restored {
                self.change_configuration(index, change)?;
            }
        }
        if report.index > self.applied {
            self.applied = report.index;
            self.advance_applied();
        }
        if let Some(position) = report.durable {
            self.durable(&position);
        }
        Ok(())
    }

    fn change_configuration(
        &mut self,
        index: u64,
        change: Option<quorate_proto::raftpb::ConfChange>,
    ) -> Result<(), String> {
        // A refused change needs no word to raft: its entry counts as applied.
        let Some(change) = change else { return Ok(()) };
        if conf_change::removes(&change, self.parts.shared.member_id) {
            return Err("the member has been permanently removed from the cluster".to_owned());
        }
        if let Some(change) = conf_change::to_raft(&change) {
            let conf_state = self.node.apply_conf_change(&change).map_err(|error| {
                format!("raft refuses the conf change at {index} that the members have agreed on: {error}")
            })?;
            self.parts.log.set_conf_state(conf_state.clone());
            self.conf_state = conf_state;
        }
        self.follow_members();
        Ok(())
    }

    fn follow_members(&mut self) {
        let members = self.parts.shared.store.members();
        self.parts.peers.update(&members);
        self.removed = members.removed;
    }

    fn advance_applied(&mut self) {
        let log = &self.node.raft.raft_log;
        let to = self.applied.min(log.persisted).min(log.committed);
        if to > log.applied {
            self.node.advance_apply_to(to);
            self.parts.log.set_applied(to);
        }
    }

    /// The store has committed. The log is compacted only below that mark (I3), and only below
    /// what raft knows as applied, where it may look for conf changes.
    fn durable(&mut self, position: &Position) {
        let conf_state = raft_message::conf_state_from_wire(&position.conf_state);
        self.parts.log.offer_snapshot(position.index, position.term, conf_state);
        if position.index < self.compacted_at + self.snapshot_count {
            return;
        }
        let applied = self.node.raft.raft_log.applied;
        let to = position.index.min(applied.saturating_sub(self.catchup_entries));
        let first = self.parts.log.first_index().expect("the log knows its first index");
        if to >= first {
            assert!(to <= position.index && to <= applied, "compaction stays below every mark (I3)");
            crate::reached!("log compacted");
            self.parts.log.compact(to);
            tracing::info!(compact_index = to, "compacted Raft logs");
        }
        self.compacted_at = position.index;
    }

    /// One tick of raft's clock if its time has come. However late it is, it is one: after a pause
    /// or a jump of the clock, heartbeats that wait in the inbox are heard before more time passes.
    fn tick_if_due(&mut self) {
        let now = self.parts.shared.env.clock.now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = self.next_tick + self.heartbeat;
        if self.next_tick <= now {
            self.next_tick = now + self.heartbeat;
        }
        self.ticks += 1;
        self.parts.shared.waiters.sweep(now, self.leader() != INVALID_ID);
        self.retry_parked = true;
        self.stalled_ticks = if self.unsynced.is_empty() { 0 } else { self.stalled_ticks + 1 };
        let stalled = self.stalled_ticks > 2 * self.election_ticks;
        if stalled && self.is_leader() && !self.is_sole_voter() {
            // The others commit without this disk; let one of them lead.
            crate::reached!("leader stepped down for a stalled disk");
            tracing::warn!("stepping down: the log has not been synced for two election timeouts");
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, INVALID_ID);
        }
        // A lone voter becomes leader in one step, and only with nothing unsynced.
        let holds_back = stalled || (self.is_sole_voter() && !self.unsynced.is_empty());
        if self.is_leader() || !(holds_back || self.is_restoring()) {
            self.node.tick();
        }
        self.probe_bounds();
    }

    /// Whether a snapshot is installed whose log does not stand durably yet: raft's applied index is
    /// below the log's start, and a campaign would look for entries that are gone.
    pub(super) fn is_restoring(&self) -> bool {
        let first = self.parts.log.first_index().expect("the log knows its first index");
        first > self.node.raft.raft_log.applied + 1
    }

    fn ask_read_index(&mut self) {
        let now = self.parts.shared.env.clock.now();
        if let Some(context) = self.reads.due(now, self.leader()) {
            self.node.read_index(context);
        }
    }

    /// Handles raft's readies until there is none, or none that moves.
    pub(super) async fn cycle(&mut self, mut offer: Option<Offer>) -> Result<(), String> {
        while self.node.has_ready() {
            self.parts.view.handing_out(true);
            let mut ready = self.node.ready();
            self.parts.view.handing_out(false);
            let moves = moves(&ready);

            self.see_roles();
            for state in ready.take_read_states() {
                self.reads.confirmed(&state.request_ctx, state.index);
            }
            let mut at_once = ready.take_messages();
            let mut after_sync = ready.take_persisted_messages();
            assert!(
                at_once.is_empty() || after_sync.is_empty(),
                "a leader sends at once, others after the sync"
            );

            let mut bytes = 0;
            if !ready.snapshot().is_empty() {
                let offer = offer.take().expect("raft restores only the snapshot that it was just given");
                self.install(&ready.snapshot().clone(), offer).await?;
            }
            let entries = ready.take_entries();
            let hard_state = ready.hs().cloned();
            if self.must_write(&entries, hard_state.as_ref()) {
                self.last_ticket += 1;
                bytes = entries.iter().map(|entry| 64 + entry.data.len()).sum();
                self.parts.log.append(&entries, hard_state.as_ref(), self.last_ticket);
            } else if let Some(hard_state) = &hard_state {
                self.parts.log.set_commit(hard_state.commit);
            }
            if self.hold_until > self.durable_ticket {
                after_sync.append(&mut at_once);
            }
            self.send(at_once);
            let committed = ready.take_committed_entries();
            self.hand_out(committed);

            let number = ready.number();
            self.node.advance_append_async(ready);
            if self.durable_ticket == self.last_ticket {
                self.node.on_persist_ready(number);
                self.send(after_sync);
            } else {
                let unsynced = Unsynced { number, ticket: self.last_ticket, bytes, messages: after_sync };
                self.unsynced_bytes += bytes;
                self.unsynced.push_back(unsynced);
            }
            self.report_unsent();
            if let Some(hard_state) = hard_state {
                self.see_commit(hard_state.commit);
            }
            if !moves {
                // Committed entries wait for credit or for the disk: an input will go on.
                break;
            }
        }
        Ok(())
    }

    /// Whether the log must hold this before raft goes on; notes term and vote.
    fn must_write(&mut self, entries: &[Entry], hard_state: Option<&HardState>) -> bool {
        let voted = hard_state.map_or(self.voted, |hard_state| (hard_state.term, hard_state.vote));
        let changed = voted != self.voted;
        if changed {
            self.voted = voted;
            if self.is_leader() {
                // A lone voter elects itself and leads in one step: until its vote is durable its
                // learners must not see the new term.
                self.hold_until = self.last_ticket + 1;
            }
        }
        changed || !entries.is_empty()
    }

    /// Committed entries to the applier.
    fn hand_out(&mut self, committed: Vec<Entry>) {
        if committed.is_empty() {
            return;
        }
        let entries: Vec<machine::Entry> = committed
            .into_iter()
            .map(|entry| machine::Entry {
                index: entry.index,
                term: entry.term,
                is_conf_change: match entry.entry_type {
                    EntryType::EntryNormal => false,
                    EntryType::EntryConfChange => true,
                    EntryType::EntryConfChangeV2 => {
                        panic!("entry {}: joint changes are never proposed", entry.index)
                    }
                },
                data: entry.data,
            })
            .collect();
        self.parts.view.handed(entries.len(), entries.iter().map(|entry| entry.data.len()).sum());
        self.parts.queue.push(Work::Entries(entries));
    }

    /// A snapshot that raft has accepted: the store takes it durably, then the log begins anew after
    /// it; a crash between the two is told by the store's mark when the log is opened (I3).
    async fn install(&mut self, snapshot: &Snapshot, offer: Offer) -> Result<(), String> {
        let (index, term) = (snapshot.get_metadata().index, snapshot.get_metadata().term);
        tracing::info!(index, term, "applying snapshot");
        let (answer, installed) = oneshot::channel();
        self.parts.queue.push(Work::Install { pages: offer.pages, answer });
        let position = self.wait_installed(installed).await?;
        if (position.index, position.term) != (index, term) {
            return Err(format!(
                "the snapshot's pages end at ({}, {}), its message says ({index}, {term})",
                position.index, position.term
            ));
        }
        let conf_state = snapshot.get_metadata().get_conf_state().clone();
        self.last_ticket += 1;
        self.parts.log.set_conf_state(conf_state.clone());
        self.parts.log.reset(index, term, &self.node.raft.hard_state(), self.last_ticket);
        self.parts.log.offer_snapshot(index, term, conf_state.clone());
        self.conf_state = conf_state;
        self.applied = index;
        self.restored = index;
        self.compacted_at = index;
        self.follow_members();
        crate::reached!("snapshot installed");
        tracing::info!(index, term, "applied snapshot");
        Ok(())
    }

    /// Waits for the applier. Raft rests meanwhile, between its ready and the answer to it; others
    /// are answered as far as that goes without raft.
    async fn wait_installed(
        &mut self,
        mut installed: oneshot::Receiver<Result<Position, String>>,
    ) -> Result<Position, String> {
        let wake = self.parts.shared.wake.clone();
        let mut inputs = VecDeque::new();
        loop {
            tokio::select! {
                biased;
                position = &mut installed => {
                    return position.unwrap_or_else(|_| Err("the applier ended".to_owned()));
                }
                () = wake.notified() => {}
            }
            self.parts.shared.inbox.drain(&mut inputs);
            for input in inputs.drain(..) {
                self.take_while_installing(input);
            }
            let now = self.parts.shared.env.clock.now();
            self.parts.shared.waiters.sweep(now, self.leader() != INVALID_ID);
        }
    }

    /// Sends messages; what could not be sent is noted, for raft may be in the middle of a ready.
    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = message.to;
            match message.msg_type {
                MessageType::MsgPropose => panic!("proposals are forwarded, not stepped"),
                MessageType::MsgSnapshot => {
                    if !self.parts.desk.send(message) {
                        self.unsent_snapshots.insert(to);
                    }
                }
                _ => {
                    let bytes = message_bytes(&message);
                    debug_assert!(bytes < u32::MAX as usize, "a message fits its frame");
                    if !self.parts.peers.send(message) {
                        self.unreachable.insert(to);
                    }
                }
            }
        }
    }

    fn report_unsent(&mut self) {
        for peer in std::mem::take(&mut self.unreachable) {
            self.node.report_unreachable(peer);
        }
        for peer in std::mem::take(&mut self.unsent_snapshots) {
            self.node.report_snapshot(peer, SnapshotStatus::Failure);
        }
    }

    fn see_commit(&mut self, commit: u64) {
        let (before, settled) = self.committed;
        assert!(before <= commit, "the commit index never falls");
        if before == commit {
            return;
        }
        let term = self.node.raft.raft_log.term(commit).unwrap_or(0);
        self.committed = (commit, settled.max(term));
        crate::probe!(crate::env::trace::Probe::Committed {
            member: self.parts.shared.member_id,
            index: commit,
            term,
        });
        if term == self.node.raft.term && settled < term {
            // From here on the leader answers read indexes; what came before it dropped.
            self.reads.ask_again();
        }
    }

    /// Logs and publishes changes of role and leader.
    fn see_roles(&mut self) {
        let shared = self.parts.shared.clone();
        let (id, term, role) = (shared.member_id, self.node.raft.term, self.node.raft.state);
        if role != self.role {
            let name = match role {
                StateRole::Follower => "follower",
                StateRole::PreCandidate => "pre-candidate",
                StateRole::Candidate => "candidate",
                StateRole::Leader => "leader",
            };
            tracing::info!("{id:x} became {name} at term {term}");
            self.role = role;
            if role == StateRole::Leader {
                crate::probe!(crate::env::trace::Probe::Leader { member: id, term });
            }
        }
        let (before, leader) = (*shared.leader.borrow(), self.leader());
        if leader == before {
            return;
        }
        if before != INVALID_ID {
            shared.waiters.leader_lost(shared.env.clock.now());
            if shared.waiters.len() > 0 {
                crate::reached!("leader changed with proposals pending");
            }
        }
        match (before, leader) {
            (INVALID_ID, _) => tracing::info!("raft.node: {id:x} elected leader {leader:x} at term {term}"),
            (_, INVALID_ID) => tracing::info!("raft.node: {id:x} lost leader {before:x} at term {term}"),
            _ => tracing::info!(
                "raft.node: {id:x} changed leader from {before:x} to {leader:x} at term {term}"
            ),
        }
        shared.leader.send_replace(leader);
        if leader != INVALID_ID {
            shared.published.leader_changes.fetch_add(1, Ordering::Relaxed);
            self.reads.leader_is(leader);
            self.retry_parked = true;
        }
    }

    /// Starts reading what raft asked for and only the disk has.
    fn fetch_wanted(&mut self) {
        for wanted in self.parts.view.take_wanted() {
            // What is left out here raft asks for again, at the next heartbeat or turn.
            if self.fetching.len() >= FETCHES_MAX || !self.fetching.insert(wanted.low) {
                continue;
            }
            let (log, inbox) = (self.parts.log.clone(), self.parts.shared.inbox.clone());
            drop(task::spawn(async move {
                let bytes_max = wanted.bytes_max.min(FETCH_BYTES_MAX);
                let result =
                    log.fetch(wanted.low, wanted.high, bytes_max).await.map_err(|error| error.to_string());
                inbox.push_always(Input::Fetched { low: wanted.low, context: wanted.context, result });
            }));
        }
    }

    fn publish(&self) {
        let published = &self.parts.shared.published;
        published.term.store(self.node.raft.term, Ordering::Relaxed);
        published.commit.store(self.node.raft.raft_log.committed, Ordering::Relaxed);
        let is_learner = self.conf_state.learners.contains(&self.parts.shared.member_id);
        published.is_learner.store(is_learner, Ordering::Relaxed);
    }

    /// Shows the oracle how full the queues are (I10).
    fn probe_bounds(&self) {
        #[cfg(madsim)]
        {
            const EVERY: u64 = 5;
            if !self.ticks.is_multiple_of(EVERY) {
                return;
            }
            let member = self.parts.shared.member_id;
            let show = |queue, length: usize, bound: usize| {
                crate::probe!(crate::env::trace::Probe::Bound {
                    member,
                    queue,
                    length: length as u64,
                    bound: bound as u64
                });
            };
            use super::{log_view, peer_queue, proposals, read_index, waiters};
            let (entries, bytes) = self.parts.view.out();
            show("apply entries", entries, log_view::WINDOW_ENTRIES_MAX);
            // One entry more than the window may be out: it is handed out while there is any room.
            show("apply bytes", bytes, log_view::WINDOW_BYTES_MAX + COMMITTED_BYTES_MAX as usize);
            show("unsynced bytes", self.unsynced_bytes, 4 * UNSYNCED_BYTES_MAX);
            show("parked proposals", self.parked.len(), proposals::PARKED_ITEMS_MAX);
            show("reads", self.reads.waiting(), read_index::READS_MAX);
            show("waiters", self.parts.shared.waiters.len(), waiters::WAITING_MAX);
            let (items, bytes) = self.parts.peers.waiting();
            show("peer queue items", items, peer_queue::QUEUE_ITEMS_MAX);
            show("peer queue bytes", bytes, peer_queue::QUEUE_BYTES_MAX);
            let (cached, bound) = self.parts.log.cached_bytes();
            show("log cache bytes", cached as usize, bound as usize);
        }
    }
}

/// Whether a ready holds anything.
fn moves(ready: &Ready) -> bool {
    ready.ss().is_some()
        || ready.hs().is_some()
        || !ready.read_states().is_empty()
        || !ready.entries().is_empty()
        || !ready.snapshot().is_empty()
        || !ready.committed_entries().is_empty()
        || !ready.messages().is_empty()
        || !ready.persisted_messages().is_empty()
}

/// Wakes the loop at every tick, until it has ended. A task of its own: a timer in the loop's
/// select would be set anew at every turn.
async fn tick(shared: Arc<Shared>, interval: Duration) {
    let clock = shared.env.clock.clone();
    while *shared.ended.borrow() & Part::Loop as u8 == 0 {
        clock.sleep(interval).await;
        shared.wake.notify_one();
    }
}
