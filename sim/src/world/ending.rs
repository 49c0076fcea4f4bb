//! What happens after everything healed: members must serve, and show what they hold.
//!
//! Promises: each member that has its data is asked for all of it, over the
//! wire and from inside; nobody writes meanwhile. **Never** compares: that is
//! the oracles' work.

use super::{MS, World, client_node, operator, violation};
use crate::cluster::{STORE_DIR, State};
use crate::disk::DiskSim;
use crate::history::{FinalState, Room, Sizes};
use crate::journal::note;
use crate::oracle::Violation;
use crate::time::{now_ns, pass};
use crate::workload::{self, Line};
use madsim::{runtime::NodeHandle, task::JoinHandle};
use quorate_proto::etcdserverpb::{HashKvRequest, StatusRequest, maintenance_client::MaintenanceClient};
use std::{path::Path, time::Duration};

/// A proposal that its client gave up on ends by then (N3 with the longest election timeout here).
const PROPOSAL_LASTS: Duration = Duration::from_secs(8);
/// Rot is found within so many passes of the scrubber, and a little.
const SCRUB_PASSES: u64 = 3;
/// Pages of a segment that its directory and paddings may take.
const FRAMING_PAGES: u64 = 2;
const SCRUB_SLACK_NS: u64 = 10_000_000_000;

/// What the end showed.
#[derive(Default)]
pub(super) struct Ending {
    pub states: Vec<FinalState>,
    pub violations: Vec<Violation>,
    checkers: Vec<Checker>,
    rounds: usize,
}

/// Who asks one member at the end.
struct Checker {
    number: usize,
    node: NodeHandle,
    line: Line,
}

impl World {
    /// An operator makes room, if a quota may be used up.
    pub(super) async fn make_room(&mut self, ending: &mut Ending) {
        let head = &self.plan.head;
        // A full disk needs nobody: it is over when space is back.
        if head.sizes.quota_bytes == 0 {
            return;
        }
        let deadline = now_ns() + head.liveness_ms * MS;
        let relief = self.ask_for_lasting_relief();
        if self.within(deadline, relief).await.is_none() {
            let sentence = "no operator could make room after everything healed".to_owned();
            ending.violations.push(violation("LIVE", sentence));
        }
    }

    /// Every member that has its data must serve a write and a read within the bound.
    pub(super) async fn serve_again(&mut self, ending: &mut Ending) {
        let head = self.plan.head.clone();
        ending.checkers.clear();
        let up: Vec<usize> = self
            .cluster
            .whole()
            .into_iter()
            .filter(|number| self.cluster.state(*number) == State::Up)
            .collect();
        let mut tasks = Vec::new();
        for number in up {
            let node = self.checker_node(number);
            let line = self.line((head.clients + number) as u32);
            let task = node.spawn(async move {
                let mut line = line();
                line.set_timeout(Duration::from_secs(3));
                workload::settle(&mut line, number).await;
                line
            });
            tasks.push((number, node, task));
        }
        let deadline = now_ns() + head.liveness_ms * MS;
        for (number, node, task) in tasks {
            match self.within(deadline, task).await {
                Some(line) => ending.checkers.push(Checker { number, node, line }),
                None => ending.violations.push(violation(
                    "LIVE",
                    format!(
                        "member n{number} served no write and read within {} s after everything healed",
                        head.liveness_ms / 1000
                    ),
                )),
            }
        }
    }

    /// The machine of who asks member `number` at the end, made once.
    fn checker_node(&mut self, number: usize) -> NodeHandle {
        let client = (self.plan.head.clients + number) as u32;
        self.checkers.entry(number).or_insert_with(|| client_node(&mut self.cluster, client)).clone()
    }

    /// What each member holds, now that nobody writes.
    pub(super) async fn look(&mut self, ending: &mut Ending) {
        // What clients gave up on may still be on its way: until then members may differ by it.
        self.quiet(PROPOSAL_LASTS).await;
        let head = self.plan.head.clone();
        for Checker { number, node, mut line } in std::mem::take(&mut ending.checkers) {
            let deadline = now_ns() + head.liveness_ms * MS;
            let id = self.cluster.id_of(number);
            let task = node.spawn(async move { final_state(&mut line, number, id).await });
            let Some(mut state) = self.within(deadline, task).await else {
                let sentence = format!("member n{number} told no hash of what it holds");
                ending.violations.push(violation("LIVE", sentence));
                continue;
            };
            let looking = self.cluster.look_inside(number, state.revision);
            match self.within(deadline, looking).await {
                Some(Some(Ok(records))) => state.records = Some(records),
                Some(Some(Err(error))) => {
                    let sentence = format!("member n{number} told no history: {error}");
                    ending.violations.push(violation("HISTORY", sentence));
                }
                // It stopped by itself meanwhile; that is told elsewhere.
                Some(None) | None => {}
            }
            let (page, segment) = (head.sizes.page_bytes, head.sizes.store_segment_bytes);
            let task = node.spawn(async move { defragmented(number, page, segment).await });
            match self.within(deadline, task).await {
                Some(sizes) => state.sizes = Some(sizes),
                None => {
                    let sentence = format!("member n{number} was not defragmented while nobody wrote");
                    ending.violations.push(violation("LIVE", sentence));
                }
            }
            state.round = ending.rounds;
            ending.states.push(state);
        }
        ending.rounds += 1;
    }

    /// Every member that runs is killed, and started again.
    pub(super) fn restart_all(&mut self) {
        note(|| "every member restarts".to_owned());
        for number in self.cluster.numbers() {
            if self.cluster.kill(number, false) {
                self.cluster.boot(number);
            }
        }
    }

    /// Rot at rest is found by the member that has it: it stops.
    pub(super) async fn find_rot(&mut self, ending: &mut Ending) {
        let scrub_ms = self.plan.head.sizes.scrub_ms;
        if scrub_ms == 0 || self.rotten_since.is_empty() {
            return;
        }
        let bound = SCRUB_PASSES * scrub_ms * MS + SCRUB_SLACK_NS;
        self.quiet(Duration::from_nanos(bound)).await;
        for (number, since) in self.rotten_since.clone() {
            let Some(running) = self.cluster.running_since_ns(number) else { continue };
            let left = DiskSim::get().rotten(self.cluster.node(number), Path::new(STORE_DIR));
            if let Some(place) = left.first()
                && now_ns() >= running.max(since) + bound
            {
                let sentence = format!("n{number} serves on, though {place} rotted long ago");
                ending.violations.push(violation("ROT", sentence));
            }
        }
    }

    /// What is known of each member's room.
    pub(super) fn rooms(&self) -> Vec<Room> {
        let room = |number| Room {
            member: self.cluster.id_of(number),
            quota: self.plan.head.sizes.quota_bytes as i64,
            peak: DiskSim::get().peak(self.cluster.node(number), Path::new(STORE_DIR)),
            full_ns: self.full_ns.get(&number).cloned().unwrap_or_default(),
        };
        self.cluster.numbers().map(room).collect()
    }

    /// Lets time pass, while members that stop are noticed.
    async fn quiet(&mut self, by: Duration) {
        let task: JoinHandle<()> = madsim::task::spawn(pass(by));
        let _ended: Option<()> = self.within(u64::MAX / 2, task).await;
    }
}

/// What a member holds once no one writes any more.
async fn final_state(line: &mut Line, number: usize, id: u64) -> FinalState {
    loop {
        let all = workload::read_all(line, number).await;
        let revision = all.header.as_ref().map_or(0, |header| header.revision);
        let mut maintenance = MaintenanceClient::new(line.channel(number));
        let mut request = tonic::Request::new(HashKvRequest { revision });
        request.set_timeout(Duration::from_secs(3));
        if let Ok(reply) = maintenance.hash_kv(request).await {
            let reply = reply.into_inner();
            let (compacted, hash) = (reply.compact_revision, reply.hash);
            let (kvs, at_ns) = (all.kvs, now_ns());
            return FinalState { member: id, at_ns, revision, compacted, hash, kvs, ..Default::default() };
        }
        pass(Duration::from_millis(100)).await;
    }
}

/// A member's sizes once it was defragmented.
async fn defragmented(number: usize, page: u64, segment: u64) -> Sizes {
    loop {
        if operator::defragment(number).await {
            let mut request = tonic::Request::new(StatusRequest {});
            request.set_timeout(Duration::from_secs(3));
            if let Ok(reply) = operator::service(number).status(request).await {
                let reply = reply.into_inner();
                let bytes = |size: i64| u64::try_from(size).unwrap_or(0);
                let (on_disk, in_use) = (bytes(reply.db_size), bytes(reply.db_size_in_use));
                // The open segment and small ones; and of every segment its directory and paddings,
                // which count where segments are a few pages.
                let slack = 4 * segment + (on_disk / segment + 1) * FRAMING_PAGES * page;
                return Sizes { on_disk, in_use, slack };
            }
        }
        pass(Duration::from_millis(100)).await;
    }
}
