//! One run: members, clients and faults on one time line, as the plan says.
//!
//! Promises: what comes back is everything the oracles may look at. After
//! `heal_ms` nothing is wrong any more, and every member that still has its
//! data must serve within the plan's bound. **Never** judges what clients saw.

mod ending;
mod faults;
mod operator;

use crate::cluster::Cluster;
use crate::disk::DiskSim;
use crate::history::{CommittedEntry, Evidence, History, Retention};
use crate::journal::note;
use crate::net::Socket;
use crate::oracle::Violation;
use crate::plan::{Head, Plan, PlannedFault, Retain};
use crate::time::{now_ns, pass, until};
use crate::workload::{self, Line, Notebook};
use ending::Ending;
use faults::Act;
use madsim::runtime::{Handle, NodeHandle};
use madsim::task::JoinHandle;
use quorate::env::trace::{self, Probe};
use quorate::members::Members;
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
    /// Who asks for transfers of leadership, once the plan has one.
    operator: Option<NodeHandle>,
    /// Who asks each member at the end.
    checkers: BTreeMap<usize, NodeHandle>,
    notebook: Notebook,
    /// Raft ids by member number.
    ids: BTreeMap<usize, u64>,
    /// Members whose store rotted while they ran, and when it did last.
    rotten_since: BTreeMap<usize, u64>,
    /// Members whose disk is full, since when; and the times when it was.
    full_since: BTreeMap<usize, u64>,
    full_ns: BTreeMap<usize, Vec<(u64, u64)>>,
    dice: crate::dice::Dice,
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
    Duration::from_millis(head.heal_ms + 8 * head.liveness_ms + 60_000)
}

/// Lives the plan; must be the main future of a madsim runtime.
pub async fn live(plan: Arc<Plan>) -> Remains {
    let head = plan.head.clone();
    let ids = member_ids(&head);
    let dice = crate::dice::Dice::new(&format!("{} world", head.scenario), head.seed);
    let mut world = World {
        ids: ids.iter().map(|(id, number)| (*number, *id)).collect(),
        cluster: Cluster::start(&head, ids),
        plan: plan.clone(),
        probes: Vec::new(),
        agenda: BTreeMap::new(),
        agenda_last: 0,
        doomed: BTreeMap::new(),
        operator: None,
        checkers: BTreeMap::new(),
        notebook: Notebook::default(),
        rotten_since: BTreeMap::new(),
        full_since: BTreeMap::new(),
        full_ns: BTreeMap::new(),
        dice,
    };
    let clients = world.start_clients();
    for PlannedFault { at_ms, fault } in &plan.faults {
        world.plan_at(at_ms * MS, Act::Strike(fault.clone()));
    }
    world.pass_until(head.heal_ms * MS).await;
    world.heal();
    let healed_at_ns = now_ns();
    note(|| "everything heals".to_owned());
    let mut ending = Ending::default();
    world.make_room(&mut ending).await;
    world.serve_again(&mut ending).await;
    let mut nodes = Vec::new();
    for Client { node, task } in clients {
        // Each of its requests has a deadline, and those that are late are left out.
        let _ended: Option<()> = world.within(now_ns() + world.plan.head.liveness_ms * MS, task).await;
        nodes.push(node);
    }
    world.look(&mut ending).await;
    if head.restart {
        world.restart_all();
        world.serve_again(&mut ending).await;
        world.look(&mut ending).await;
    }
    world.find_rot(&mut ending).await;
    let end_ns = now_ns();
    let (members, rooms) = (world.cluster.whole().len(), world.rooms());
    world.cluster.end();
    for node in nodes.iter().chain(&world.operator) {
        Handle::current().kill(node.id());
    }
    // The dead tasks' destructors run while the runtime is still there.
    pass(Duration::from_millis(1)).await;
    world.probes.extend(trace::take_probes());
    let mut violations = ending.violations;
    violations.extend(world.complaints());
    let committed = committed(&world.probes);
    let retention = match head.sizes.retain {
        Retain::Everything => None,
        Retain::Revisions(revisions) => Some(Retention::Revisions(revisions as i64)),
        Retain::Period(_) => Some(Retention::Period),
    };
    let evidence = Evidence {
        members,
        probes: world.probes,
        final_states: ending.states,
        committed,
        rooms,
        retention,
        healed_at_ns,
        end_ns,
    };
    Remains { history: world.notebook.take(), evidence, violations }
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
    fn start_clients(&mut self) -> Vec<Client> {
        (0..self.plan.head.clients as u32)
            .map(|client| {
                let node = client_node(&mut self.cluster, client);
                let ops = self.plan.ops.iter().filter(|op| op.client == client).cloned().collect();
                let line = self.line(client);
                let work = async move { workload::run(line(), ops).await };
                Client { task: node.spawn(work), node }
            })
            .collect()
    }

    /// Makes a client's line to the members, on that client's node.
    fn line(&self, client: u32) -> impl FnOnce() -> Line + 'static {
        let (head, ids, notebook) = (self.plan.head.clone(), self.ids.clone(), self.notebook.clone());
        move || Line::new(&head, client, ids, notebook)
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
