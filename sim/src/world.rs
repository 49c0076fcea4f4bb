//! One run: members, clients and faults on one time line, as the plan says.
//!
//! Promises: what comes back is everything the oracles may look at. After
//! `heal_ms` nothing is wrong any more, and every member that still has its
//! data must serve within the plan's bound. **Never** judges what clients saw.

mod faults;

use crate::cluster::{Cluster, State};
use crate::disk::DiskSim;
use crate::history::{CommittedEntry, Evidence, FinalState, History};
use crate::journal::note;
use crate::net::Socket;
use crate::oracle::Violation;
use crate::plan::{Head, Plan, PlannedFault};
use crate::time::{now_ns, pass, until};
use crate::workload::{self, Line, Notebook};
use faults::Act;
use madsim::runtime::{Handle, NodeHandle};
use quorate::env::trace::{self, Probe};
use quorate::members::Members;
use quorate_proto::etcdserverpb::{HashKvRequest, maintenance_client::MaintenanceClient};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

const MS: u64 = 1_000_000;

/// What a run leaves behind.
pub struct Remains {
    pub history: History,
    pub evidence: Evidence,
    /// What the world itself saw go wrong.
    pub violations: Vec<Violation>,
}

struct World {
    plan: Arc<Plan>,
    cluster: Cluster,
    probes: Vec<(u64, Probe)>,
    /// What is to be done when, by time and then by order of planning.
    agenda: BTreeMap<(u64, u64), Act>,
    agenda_last: u64,
    /// Members whose disk is to freeze: what happens to them then.
    doomed: BTreeMap<usize, (bool, u64)>,
    dice: crate::dice::Dice,
}

/// The ids of the members by the product's rule (M1), to their numbers.
fn member_ids(head: &Head) -> BTreeMap<u64, usize> {
    (1..=head.members)
        .map(|number| {
            let urls = vec![format!("http://{}:2380", crate::cluster::name(number))];
            (Members::member_id(&urls, "etcd-cluster", None), number)
        })
        .collect()
}

/// Virtual time that a run of this plan may take at most.
pub fn limit(head: &Head) -> Duration {
    Duration::from_millis(head.heal_ms + 3 * head.liveness_ms + 30_000)
}

/// Lives the plan; must be the main future of a madsim runtime.
pub async fn live(plan: Arc<Plan>) -> Remains {
    let head = plan.head.clone();
    let ids = member_ids(&head);
    let by_number: BTreeMap<usize, u64> = ids.iter().map(|(id, number)| (*number, *id)).collect();
    let dice = crate::dice::Dice::new(&format!("{} world", head.scenario), head.seed);
    let mut world = World {
        cluster: Cluster::start(&head, ids),
        plan: plan.clone(),
        probes: Vec::new(),
        agenda: BTreeMap::new(),
        agenda_last: 0,
        doomed: BTreeMap::new(),
        dice,
    };
    let notebook = Notebook::default();
    let clients = world.start_clients(&by_number, &notebook);
    for PlannedFault { at_ms, fault } in &plan.faults {
        world.plan_at(at_ms * MS, Act::Strike(fault.clone()));
    }
    world.pass_until(head.heal_ms * MS).await;
    world.heal();
    let healed_at_ns = now_ns();
    note(|| "everything heals".to_owned());
    let (final_states, mut violations) = world.settle(&by_number, &notebook).await;
    let end_ns = now_ns();
    world.cluster.end();
    for client in &clients {
        Handle::current().kill(client.id());
    }
    // The dead tasks' destructors run while the runtime is still there.
    pass(Duration::from_millis(1)).await;
    world.probes.extend(trace::take_probes());
    violations.extend(world.complaints());
    let members =
        world.cluster.numbers().filter(|number| world.cluster.state(*number) != State::Lost).count();
    let committed = committed(&world.probes);
    let evidence = Evidence { members, probes: world.probes, final_states, committed, healed_at_ns, end_ns };
    Remains { history: notebook.take(), evidence, violations }
}

/// The log as members applied it, from their probes.
fn committed(probes: &[(u64, Probe)]) -> Vec<CommittedEntry> {
    let entry = |(_, probe): &(u64, Probe)| match probe {
        Probe::Entry { index, term, data, .. } => {
            Some(CommittedEntry { index: *index, term: *term, data: data.clone() })
        }
        _ => None,
    };
    probes.iter().filter_map(entry).collect()
}

fn violation(guarantee: &'static str, sentence: String) -> Violation {
    Violation { guarantee, sentence, op: None }
}

impl World {
    /// Each client on a node of its own, so that it can be cut off.
    fn start_clients(&mut self, ids: &BTreeMap<usize, u64>, notebook: &Notebook) -> Vec<NodeHandle> {
        (0..self.plan.head.clients as u32)
            .map(|client| {
                let node = self.client_node(client);
                let ops = self.plan.ops.iter().filter(|op| op.client == client).cloned().collect();
                let (head, ids, notebook) = (self.plan.head.clone(), ids.clone(), notebook.clone());
                drop(
                    node.spawn(
                        async move { workload::run(Line::new(&head, client, ids, notebook), ops).await },
                    ),
                );
                node
            })
            .collect()
    }

    fn client_node(&mut self, client: u32) -> NodeHandle {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 1, u8::try_from(client + 1).expect("few clients")));
        let name = format!("c{}", client + 1);
        let node = Handle::current().create_node().name(name.clone()).ip(ip).build();
        self.cluster.cables.plug(Socket { name, id: node.id(), ip });
        node
    }

    fn plan_at(&mut self, at_ns: u64, act: Act) {
        self.agenda_last += 1;
        self.agenda.insert((at_ns, self.agenda_last), act);
    }

    /// Does what the agenda says and sees to members that stop or freeze, until then.
    async fn pass_until(&mut self, end_ns: u64) {
        let exits = self.cluster.exits.clone();
        let disks = DiskSim::get();
        loop {
            let next = self.agenda.first_key_value().map_or(end_ns, |((at, _), _)| (*at).min(end_ns));
            tokio::select! {
                biased;
                () = exits.rung() => self.see_to_exits(),
                () = disks.frozen() => self.see_to_frozen(),
                () = until(next) => {
                    while let Some(first) = self.agenda.first_entry()
                        && first.key().0 <= now_ns()
                        && first.key().0 < end_ns
                    {
                        let act = first.remove();
                        self.act(act);
                    }
                    if now_ns() >= end_ns {
                        return;
                    }
                }
            }
        }
    }

    /// Members that stopped by themselves are started again some time later.
    fn see_to_exits(&mut self) {
        for exit in self.cluster.exits.take() {
            if self.cluster.bury(&exit) {
                let after = self.dice.between(200, 3_000) * MS;
                self.plan_at(now_ns() + after, Act::Boot(exit.member));
            }
        }
    }

    fn boot_all(&mut self) {
        self.cluster.numbers().for_each(|number| self.cluster.boot(number));
    }

    fn see_to_frozen(&mut self) {
        for number in self.cluster.numbers() {
            if DiskSim::get().is_frozen(self.cluster.node(number))
                && let Some((power, hold_ms)) = self.doomed.remove(&number)
                && self.cluster.kill(number, power)
            {
                self.plan_at(now_ns() + hold_ms * MS, Act::Boot(number));
            }
        }
    }

    /// The number of the member that leads as far as anyone saw (the latest term counts).
    fn leader(&mut self) -> Option<usize> {
        self.probes.extend(trace::take_probes());
        let leaders = self.probes.iter().rev().take(100_000).filter_map(|(_, probe)| match probe {
            Probe::Leader { member, term } => Some((*term, *member)),
            _ => None,
        });
        let (_, id) = leaders.max()?;
        self.cluster.ids.get(&id).copied()
    }

    /// Every member that has its data must serve within the bound; then all must hold the same.
    async fn settle(
        &mut self,
        ids: &BTreeMap<usize, u64>,
        notebook: &Notebook,
    ) -> (Vec<FinalState>, Vec<Violation>) {
        let head = self.plan.head.clone();
        let up: Vec<usize> =
            self.cluster.numbers().filter(|number| self.cluster.state(*number) == State::Up).collect();
        let checkers: Vec<(usize, NodeHandle)> =
            up.into_iter().map(|number| (number, self.client_node((head.clients + number) as u32))).collect();
        let deadline = now_ns() + head.liveness_ms * MS;
        let mut states = Vec::new();
        let mut violations = Vec::new();
        // First each must serve; only then, with all writes done, is what they hold compared.
        let mut lines = Vec::new();
        let tasks: Vec<_> = checkers
            .iter()
            .map(|(number, node)| {
                let (head, ids, notebook, number) = (head.clone(), ids.clone(), notebook.clone(), *number);
                node.spawn(async move {
                    let client = (head.clients + number) as u32;
                    let mut line = Line::new(&head, client, ids, notebook);
                    line.set_timeout(Duration::from_secs(3));
                    workload::settle(&mut line, number).await;
                    line
                })
            })
            .collect();
        for ((number, _), task) in checkers.iter().zip(tasks) {
            match self.within(deadline, task).await {
                Some(line) => lines.push((*number, line)),
                None => violations.push(violation(
                    "LIVE",
                    format!(
                        "member n{number} served no write and read within {} s after everything healed",
                        head.liveness_ms / 1000
                    ),
                )),
            }
        }
        let deadline = now_ns() + head.liveness_ms * MS;
        for (number, mut line) in lines {
            let (_, node) = checkers.iter().find(|(other, _)| *other == number).expect("made for it");
            let id = ids.get(&number).copied().unwrap_or(number as u64);
            let task = node.spawn(async move { final_state(&mut line, number, id).await });
            match self.within(deadline, task).await {
                Some(state) => states.push(state),
                None => violations
                    .push(violation("LIVE", format!("member n{number} told no hash of what it holds"))),
            }
        }
        (states, violations)
    }

    /// The task's result, while members that stop are noticed; `None` if it takes longer.
    async fn within<T>(&mut self, deadline_ns: u64, task: madsim::task::JoinHandle<T>) -> Option<T> {
        let exits = self.cluster.exits.clone();
        let mut task = task;
        loop {
            tokio::select! {
                biased;
                result = &mut task => return result.ok(),
                () = exits.rung() => {
                    self.see_to_exits();
                    self.boot_all();
                }
                () = until(deadline_ns) => {
                    task.abort();
                    return None;
                }
            }
        }
    }

    fn complaints(&mut self) -> Vec<Violation> {
        let stopped = std::mem::take(&mut self.cluster.complaints);
        let overwritten = DiskSim::get().take_overwrites();
        let stopped = stopped.into_iter().map(|sentence| violation("NOPANIC", sentence));
        stopped.chain(overwritten.into_iter().map(|sentence| violation("I5", sentence))).collect()
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
            return FinalState { member: id, revision, compacted, hash, kvs: all.kvs };
        }
        pass(Duration::from_millis(100)).await;
    }
}
