//! The members under test: the product's own server, one for each node, and what the world does to them.
//!
//! Promises: a member is always killed before it is started again, so that ports,
//! locks and file handles of its former life are gone; a member that stops by
//! itself is noticed at once. **Never** decides when: the plan does.

use crate::clock::{ClockSim, SimClock};
use crate::dice::Dice;
use crate::disk::{DiskSim, Keep, SimDisk};
use crate::history::Records;
use crate::inside;
use crate::journal::note;
use crate::net::{Cables, Socket};
use crate::plan::{Head, Retain};
use crate::time::{now_ns, pass};
use madsim::runtime::{Handle, NodeHandle};
use madsim::task::{JoinHandle, NodeId};
use quorate::env::{Env, Rng};
use quorate::server::{Checks, Config, Retention, Url};
use quorate::store::Store;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Where every member listens for clients.
pub const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// Between two tries of a member whose disk is full.
const SPACE_RETRY: Duration = Duration::from_millis(200);
/// A member that is out of service is watched for so long before it is ended.
const OUT_LASTS: Duration = Duration::from_secs(2);
const DATA_DIR: &str = "/data";
/// Where a member's store lies on its disk.
pub const STORE_DIR: &str = "/data/member/store";
/// Where the checkpoint of the store's index does.
pub const INDEX_DIR: &str = "/data/member/index";

/// A member that stopped by itself.
#[derive(Clone, Debug)]
pub struct Exit {
    /// From 1.
    pub member: usize,
    pub life: u64,
    pub reason: String,
}

/// Who stopped by itself since the world last looked.
#[derive(Default)]
pub struct Exits {
    list: Mutex<Vec<Exit>>,
    bell: tokio::sync::Notify,
}

impl Exits {
    fn push(&self, exit: Exit) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(exit);
        self.bell.notify_one();
    }

    pub fn take(&self) -> Vec<Exit> {
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Completes when there may be one.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }
}

/// The stores of the members that run, for judges who look inside.
#[derive(Clone, Default)]
pub struct Stores(Arc<Mutex<BTreeMap<usize, Store>>>);

impl Stores {
    fn put(&self, number: usize, store: Store) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, store);
    }

    fn forget(&self, number: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    pub fn get(&self, number: usize) -> Option<Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    Paused,
    Down,
    /// Its disk is damaged for good: not started again, not expected to serve.
    Lost,
}

struct Member {
    node: NodeHandle,
    state: State,
    life: Arc<AtomicU64>,
    /// Something was done to its disk in this life that a member may stop over.
    excused: bool,
    /// Its stored data rotted: it may stop in any life, and then stays away.
    damaged: bool,
    /// Since when it runs (virtual ns), if it does.
    since_ns: u64,
}

/// All members, and the cables that join them and their clients.
pub struct Cluster {
    handle: Handle,
    members: Vec<Member>,
    pub cables: Cables,
    pub exits: Arc<Exits>,
    pub stores: Stores,
    /// Raft ids by number, from the product's own rule.
    pub ids: BTreeMap<u64, usize>,
    dice: Dice,
    /// Sentences about members that stopped with no reason that the world gave them.
    pub complaints: Vec<String>,
}

/// The name of member `number` (from 1).
pub fn name(number: usize) -> String {
    format!("n{number}")
}

/// `host:port` of member `number` for clients.
pub fn client_address(number: usize) -> String {
    format!("{}:{CLIENT_PORT}", name(number))
}

fn peer_url(number: usize) -> String {
    format!("http://{}:{PEER_PORT}", name(number))
}

fn url(text: &str) -> Url {
    text.parse().expect("URLs of the simulation are well formed")
}

/// What member `number` is started with.
fn config(head: &Head, number: usize) -> Config {
    let sizes = &head.sizes;
    let initial: Vec<String> =
        (1..=head.members).map(|other| format!("{}={}", name(other), peer_url(other))).collect();
    let mut config = Config {
        name: name(number),
        data_dir: PathBuf::from(DATA_DIR),
        listen_peer_urls: vec![url(&format!("http://0.0.0.0:{PEER_PORT}"))],
        listen_client_urls: vec![url(&format!("http://0.0.0.0:{CLIENT_PORT}"))],
        advertise_peer_urls: vec![url(&peer_url(number))],
        advertise_client_urls: vec![url(&format!("http://{}", client_address(number)))],
        initial_cluster: initial.join(","),
        heartbeat_interval: Duration::from_millis(sizes.heartbeat_ms),
        election_timeout: Duration::from_millis(sizes.election_ms),
        snapshot_count: sizes.snapshot_count,
        snapshot_catchup_entries: sizes.catchup_entries,
        ..Config::default()
    };
    // A connection through a cut must be given up within the run.
    config.http.keepalive_interval = Some(Duration::from_secs(2));
    config.http.keepalive_timeout = Duration::from_secs(2);
    let page = u32::try_from(sizes.page_bytes).expect("a page is small");
    config.log.page_size = page;
    config.log.segment_size = sizes.log_segment_bytes;
    config.log.cache_bytes = sizes.log_cache_bytes;
    config.store.page_size = page;
    config.store.segment_size = sizes.store_segment_bytes;
    config.store.cache_bytes = sizes.store_cache_bytes;
    config.store.commit_bytes = sizes.commit_bytes;
    config.store.commit_interval = Duration::from_millis(sizes.commit_ms);
    config.store.checkpoint_segment_size = sizes.index_segment_bytes;
    config.store.checkpoint_step_bytes = sizes.index_segment_bytes / 8;
    config.store.clean_interval = Duration::from_millis(sizes.clean_ms);
    config.store.space_retry = SPACE_RETRY;
    if sizes.scrub_ms > 0 {
        config.store.scrub_interval = Duration::from_millis(sizes.scrub_ms);
    }
    config.quota_backend_bytes = sizes.quota_bytes as i64;
    config.auto_compaction = match sizes.retain {
        Retain::Everything => None,
        Retain::Revisions(revisions) => Some(Retention::Revisions(revisions as i64)),
        Retain::Period(ms) => Some(Retention::Periodic(Duration::from_millis(ms))),
    };
    let between = Duration::from_millis(sizes.compare_ms);
    config.checks =
        Checks { at_start: !between.is_zero(), interval: between, compact_hash_interval: between };
    config
}

/// One life of a member: from its start until it stops by itself (or is killed).
async fn live(config: Config, number: usize, life: u64, seed: [u8; 32], exits: Arc<Exits>, stores: Stores) {
    let env = Env {
        disk: Arc::new(SimDisk::mount()),
        clock: Arc::new(SimClock::current()),
        rng: Rng::from_seed(seed),
    };
    note(|| format!("n{number} starts (life {life})"));
    let reason = match quorate::server::start(config, env).await {
        Ok(server) => {
            note(|| format!("n{number} is up"));
            stores.put(number, server.replica().store().clone());
            let replica = server.replica();
            tokio::select! {
                biased;
                reason = server.failed() => reason,
                () = replica.taken_out() => {
                    quorate::reached!("a member took itself out");
                    // It must answer nobody any more: give clients time to try.
                    pass(OUT_LASTS).await;
                    replica.out_of_service().map_or(String::new(), |reason| reason.to_string())
                }
            }
        }
        Err(error) => format!("did not start: {error}"),
    };
    note(|| format!("n{number} stopped by itself: {reason}"));
    exits.push(Exit { member: number, life, reason });
    // The world kills what is left of it.
    std::future::pending::<()>().await;
}

impl Cluster {
    /// Starts every member.
    pub fn start(head: &Head, ids: BTreeMap<u64, usize>) -> Cluster {
        let handle = Handle::current();
        let (exits, stores) = (Arc::new(Exits::default()), Stores::default());
        let mut cables = Cables::default();
        let mut members = Vec::new();
        let [low, high] = head.sizes.latency_us.map(Duration::from_micros);
        cables.set_latency(low, high);
        for number in 1..=head.members {
            let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(number).expect("few members")));
            let life = Arc::new(AtomicU64::new(0));
            let (config, lives, told) = (config(head, number), life.clone(), exits.clone());
            let shown = stores.clone();
            let (scenario, seed) = (head.scenario.clone(), head.seed);
            let init = move || {
                let life = lives.fetch_add(1, Relaxed) + 1;
                let seed = Dice::new(&format!("{scenario} member {number} life {life}"), seed).seed();
                live(config.clone(), number, life, seed, told.clone(), shown.clone())
            };
            // The name must resolve before the first member starts.
            let node = handle.create_node().name(name(number)).ip(ip).init(init).build();
            cables.plug(Socket { name: name(number), id: node.id(), ip });
            ClockSim::get().set_drift(node.id(), head.sizes.drift_ppm.get(number - 1).copied().unwrap_or(0));
            members.push(Member {
                node,
                state: State::Up,
                life,
                excused: false,
                damaged: false,
                since_ns: 0,
            });
        }
        let dice = Dice::new(&format!("{} cluster", head.scenario), head.seed);
        Cluster { handle, members, cables, exits, stores, ids, dice, complaints: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn numbers(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.members.len()
    }

    fn member(&mut self, number: usize) -> &mut Member {
        &mut self.members[number - 1]
    }

    pub fn node(&self, number: usize) -> NodeId {
        self.members[number - 1].node.id()
    }

    pub fn state(&self, number: usize) -> State {
        self.members[number - 1].state
    }

    pub fn id_of(&self, number: usize) -> u64 {
        self.ids.iter().find(|(_, at)| **at == number).map_or(number as u64, |(id, _)| *id)
    }

    /// From now on in this life, the member may stop by itself.
    pub fn excuse(&mut self, number: usize) {
        self.member(number).excused = true;
    }

    /// Kills a member that runs; `false` if it does not.
    pub fn kill(&mut self, number: usize, power: bool) -> bool {
        if !matches!(self.state(number), State::Up | State::Paused) {
            return false;
        }
        let id = self.node(number);
        if power {
            let keep = Keep::draw(&mut self.dice);
            note(|| format!("n{number} loses power: {keep:?}"));
            DiskSim::get().lose_power(id, keep);
        } else {
            note(|| format!("n{number} is killed"));
        }
        self.stores.forget(number);
        self.handle.kill(id);
        self.member(number).state = State::Down;
        true
    }

    /// Machines that are off lose power too: whatever the last life had not synced is at risk.
    pub fn cut_power_while_down(&mut self, number: usize) {
        if self.state(number) == State::Down {
            let keep = Keep::draw(&mut self.dice);
            DiskSim::get().lose_power(self.node(number), keep);
        }
    }

    /// Starts a member that is down.
    pub fn boot(&mut self, number: usize) {
        if self.state(number) != State::Down {
            return;
        }
        let id = self.node(number);
        self.member(number).state = State::Up;
        // A disk that is in trouble still excuses the next life too; and one that is full may not
        // let a member start.
        self.member(number).excused = DiskSim::get().is_troubled(id) || DiskSim::get().is_full(id);
        self.member(number).since_ns = now_ns();
        self.handle.restart(id);
    }

    pub fn pause(&mut self, number: usize) -> bool {
        let runs = self.state(number) == State::Up;
        if runs {
            note(|| format!("n{number} is paused"));
            self.handle.pause(self.node(number));
            self.member(number).state = State::Paused;
        }
        runs
    }

    pub fn resume(&mut self, number: usize) {
        if self.state(number) == State::Paused {
            note(|| format!("n{number} goes on"));
            self.handle.resume(self.node(number));
            self.member(number).state = State::Up;
            self.member(number).since_ns = now_ns();
        }
    }

    /// Since when a member has been running without a break.
    pub fn running_since_ns(&self, number: usize) -> Option<u64> {
        (self.state(number) == State::Up).then(|| self.members[number - 1].since_ns)
    }

    /// A member's store as it is from inside; `None` if it does not run.
    pub fn look_inside(&self, number: usize, revision: i64) -> JoinHandle<Option<Result<Records, String>>> {
        let store = self.stores.get(number);
        self.members[number - 1].node.spawn(async move {
            match store {
                Some(store) => Some(inside::records(&store, revision).await),
                None => None,
            }
        })
    }

    /// Its stored data is damaged: it may serve on, or stop over that and stay away.
    pub fn damage(&mut self, number: usize) {
        self.member(number).damaged = true;
    }

    /// Members that have all their data, and so must serve once everything heals.
    pub fn whole(&self) -> Vec<usize> {
        self.numbers().filter(|number| !self.members[number - 1].damaged).collect()
    }

    /// Clears away a member that stopped by itself; `false` if that life had ended anyway.
    pub fn bury(&mut self, exit: &Exit) -> bool {
        let id = self.node(exit.member);
        let member = self.member(exit.member);
        if member.life.load(Relaxed) != exit.life || !matches!(member.state, State::Up | State::Paused) {
            return false;
        }
        let damaged = member.damaged;
        let excused = member.excused;
        // Its disk may have become full while it was about to start.
        let found_no_room = exit.reason.starts_with("did not start") && DiskSim::get().is_full(id);
        if !excused && !found_no_room && !damaged {
            let Exit { member, reason, .. } = exit;
            self.complaints
                .push(format!("member n{member} stopped by itself though its disk was fine: {reason}"));
        }
        let stopped = self.kill(exit.member, false);
        if damaged {
            quorate::reached!("a damaged member stopped");
            self.member(exit.member).state = State::Lost;
        }
        stopped
    }

    /// Ends every member.
    pub fn end(&mut self) {
        for number in self.numbers() {
            self.kill(number, false);
        }
    }
}
