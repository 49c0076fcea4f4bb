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
use madsim::task::JoinHandle;
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
/// A proposal that its client gave up on ends by then (N3 with the longest election timeout here).
const PROPOSAL_LASTS: Duration = Duration::from_secs(8);

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
    /// Who asks for transfers of leadership, once the plan has one.
    operator: Option<NodeHandle>,
    dice: crate::dice::Dice,
}

/// Who asks one member at the end.
struct Checker {
    number: usize,
    node: NodeHandle,
    line: Line,
}

/// A client's node and the plan's part that it carries out there.
struct Client {
    node: NodeHandle,
    task: JoinHandle<()>,
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
        operator: None,
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
    let (lines, mut violations) = world.serve_again(&by_number, &notebook).await;
    let mut nodes = Vec::new();
    for Client { node, task } in clients {
        // Each of its requests has a deadline, and those that are late are left out.
        let _ended: Option<()> = world.within(now_ns() + world.plan.head.liveness_ms * MS, task).await;
        nodes.push(node);
    }
    // What clients gave up on may still be on its way: until then members may differ by it.
    world.quiet(PROPOSAL_LASTS).await;
    let final_states = world.final_states(lines, &by_number, &mut violations).await;
    let end_ns = now_ns();
    world.cluster.end();
    for node in nodes.iter().chain(&world.operator) {
        Handle::current().kill(node.id());
    }
    // The dead tasks' destructors run while the runtime is still there.
    pass(Duration::from_millis(1)).await;
    world.probes.extend(trace::take_probes());
    violations.extend(world.complaints());
    let members = world.cluster.whole().len();
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

/// A machine for client `client` (from 0), cabled to the rest.
fn client_node(cluster: &mut Cluster, client: u32) -> NodeHandle {
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 1, u8::try_from(client + 1).expect("few clients")));
    let name = format!("c{}", client + 1);
    let node = Handle::current().create_node().name(name.clone()).ip(ip).build();
    cluster.cables.plug(Socket { name, id: node.id(), ip });
    node
}

fn violation(guarantee: &'static str, sentence: String) -> Violation {
    Violation { guarantee, sentence, op: None }
}

impl World {
    /// Each client on a node of its own, so that it can be cut off.
    fn start_clients(&mut self, ids: &BTreeMap<usize, u64>, notebook: &Notebook) -> Vec<Client> {
        (0..self.plan.head.clients as u32)
            .map(|client| {
                let node = client_node(&mut self.cluster, client);
                let ops = self.plan.ops.iter().filter(|op| op.client == client).cloned().collect();
                let (head, ids, notebook) = (self.plan.head.clone(), ids.clone(), notebook.clone());
                let work = async move { workload::run(Line::new(&head, client, ids, notebook), ops).await };
                Client { task: node.spawn(work), node }
            })
            .collect()
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

    /// Every member that has its data must serve a write and a read within the bound. Returns a
    /// line to each that did.
    async fn serve_again(
        &mut self,
        ids: &BTreeMap<usize, u64>,
        notebook: &Notebook,
    ) -> (Vec<Checker>, Vec<Violation>) {
        let head = self.plan.head.clone();
        let up: Vec<usize> = self
            .cluster
            .whole()
            .into_iter()
            .filter(|number| self.cluster.state(*number) == State::Up)
            .collect();
        let mut tasks = Vec::new();
        for number in up {
            let client = (head.clients + number) as u32;
            let node = client_node(&mut self.cluster, client);
            let (head, ids, notebook) = (head.clone(), ids.clone(), notebook.clone());
            let task = node.spawn(async move {
                let mut line = Line::new(&head, client, ids, notebook);
                line.set_timeout(Duration::from_secs(3));
                workload::settle(&mut line, number).await;
                line
            });
            tasks.push((number, node, task));
        }
        let deadline = now_ns() + head.liveness_ms * MS;
        let (mut checkers, mut violations) = (Vec::new(), Vec::new());
        for (number, node, task) in tasks {
            match self.within(deadline, task).await {
                Some(line) => checkers.push(Checker { number, node, line }),
                None => violations.push(violation(
                    "LIVE",
                    format!(
                        "member n{number} served no write and read within {} s after everything healed",
                        head.liveness_ms / 1000
                    ),
                )),
            }
        }
        (checkers, violations)
    }

    /// What each member holds, now that nobody writes.
    async fn final_states(
        &mut self,
        checkers: Vec<Checker>,
        ids: &BTreeMap<usize, u64>,
        violations: &mut Vec<Violation>,
    ) -> Vec<FinalState> {
        let deadline = now_ns() + self.plan.head.liveness_ms * MS;
        let mut states = Vec::new();
        for Checker { number, node, mut line } in checkers {
            let id = ids.get(&number).copied().unwrap_or(number as u64);
            let task = node.spawn(async move { final_state(&mut line, number, id).await });
            match self.within(deadline, task).await {
                Some(state) => states.push(state),
                None => violations
                    .push(violation("LIVE", format!("member n{number} told no hash of what it holds"))),
            }
        }
        states
    }

    /// Lets time pass, while members that stop are noticed.
    async fn quiet(&mut self, by: Duration) {
        let task = madsim::task::spawn(pass(by));
        let _ended: Option<()> = self.within(u64::MAX / 2, task).await;
    }

    /// The task's result, while members that stop are noticed; `None` if it takes longer.
    async fn within<T>(&mut self, deadline_ns: u64, task: JoinHandle<T>) -> Option<T> {
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
