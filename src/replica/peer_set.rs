//! All peers as the raft loop sees them: where they are and what goes to them.
//!
//! Promises: sending never waits; a connection is kept to every other member of the membership,
//! under its newest peer URLs, for as long as it is a member; one ticker beats every pulse.
//! **Never** decides who is a member: it is told.

use super::{
    inbox::{Inbox, Input, NotProposed, Proposal},
    peer_dial::Link,
    peer_queue::Outgoing,
    pulse::Pulses,
};
use crate::{
    env::{Env, task},
    members::Members,
};
use raft::eraftpb::Message;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How this member talks to others.
#[derive(Clone, Debug)]
pub(super) struct PeerSettings {
    pub member_id: u64,
    pub cluster_id: u64,
    /// Between two pings; also the beat of every pulse.
    pub ping_interval: Duration,
    /// Beats without a word after which a connection is dead.
    pub beats_max: u32,
    /// As `beats_max`, for a snapshot's stream, where a step may take longer.
    pub snapshot_beats_max: u32,
    pub connect_timeout: Duration,
    pub frame_bytes_max: u32,
}

impl PeerSettings {
    /// Four pings in an election timeout; dead after two of those.
    pub fn new(
        member_id: u64,
        cluster_id: u64,
        heartbeat: Duration,
        election: Duration,
        frame_bytes_max: u32,
    ) -> PeerSettings {
        let ping_interval = heartbeat.max(election / 4);
        let beats =
            |time: Duration| (time.as_nanos().div_ceil(ping_interval.as_nanos().max(1)) as u32).max(2);
        PeerSettings {
            member_id,
            cluster_id,
            ping_interval,
            beats_max: beats(2 * election),
            snapshot_beats_max: beats(10 * election),
            connect_timeout: election,
            frame_bytes_max,
        }
    }
}

type Addresses = BTreeMap<u64, Vec<String>>;

pub(super) struct PeerSet {
    pub env: Env,
    pub settings: PeerSettings,
    pub inbox: Arc<Inbox>,
    pub pulses: Arc<Pulses>,
    /// Members that were known before the log told of any: a joiner learns the others from them.
    first_known: Members,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    /// Set by [`PeerSet::update`], carried out by the ticker on the runtime that serves sockets.
    wanted: Mutex<Option<Addresses>>,
}

impl PeerSet {
    pub fn new(
        env: Env,
        settings: PeerSettings,
        inbox: Arc<Inbox>,
        pulses: Arc<Pulses>,
        first_known: Members,
    ) -> PeerSet {
        PeerSet {
            env,
            settings,
            inbox,
            pulses,
            first_known,
            links: Mutex::default(),
            wanted: Mutex::default(),
        }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Link>>> {
        self.links.lock().expect("no panic while the links are locked")
    }

    /// Beats pulses, pings peers and follows the membership, until the member stops.
    pub async fn tick(self: Arc<Self>) {
        while !self.pulses.is_stopped() {
            self.follow();
            self.env.clock.sleep(self.settings.ping_interval).await;
            self.pulses.beat();
            for link in self.links().values() {
                link.ping();
            }
        }
        for link in std::mem::take(&mut *self.links()).into_values() {
            link.close();
        }
    }

    /// The membership changed: connections follow with the next beat.
    pub fn update(&self, members: &Members) {
        let mut addresses = Addresses::new();
        for (id, member) in self.first_known.members.iter().chain(&members.members) {
            if *id != self.settings.member_id && !members.removed.contains(id) && !member.peer_urls.is_empty()
            {
                addresses.insert(*id, member.peer_urls.iter().map(|url| address(url)).collect());
            }
        }
        *self.wanted.lock().expect("no panic while the addresses are locked") = Some(addresses);
    }

    /// Makes the connections that the last update asks for. Called where sockets are served.
    pub fn follow(self: &Arc<Self>) {
        let Some(wanted) = self.wanted.lock().expect("no panic while the addresses are locked").take() else {
            return;
        };
        let mut links = self.links();
        links.retain(|id, link| {
            let stays = wanted.contains_key(id);
            if !stays {
                link.close();
            }
            stays
        });
        for (id, addresses) in wanted {
            match links.get(&id) {
                Some(link) => link.move_to(addresses),
                None => {
                    let link = Arc::new(Link::new(id, addresses));
                    links.insert(id, link.clone());
                    drop(task::spawn(link.run(self.clone())));
                }
            }
        }
    }

    fn link(&self, peer: u64) -> Option<Arc<Link>> {
        self.links().get(&peer).cloned()
    }

    /// Where a member can be reached, as far as is known.
    pub fn addresses(&self, peer: u64) -> Vec<String> {
        self.link(peer).map(|link| link.addresses()).unwrap_or_default()
    }

    /// Queues a raft message; `false` if it was dropped.
    pub fn send(&self, message: Message) -> bool {
        self.link(message.to).is_some_and(|link| link.queue.push(Outgoing::Raft(message)))
    }

    /// Queues a request for the leader; `false` if it certainly did not go out.
    pub fn forward(&self, leader: u64, proposal: Proposal) -> bool {
        assert!(proposal.from.is_none(), "a request is forwarded once");
        self.link(leader).is_some_and(|link| link.queue.push(Outgoing::Forward(proposal)))
    }

    /// Tells a peer that its request was certainly not proposed. Lost if there is no connection:
    /// then the request times out there.
    pub fn refuse(&self, peer: u64, id: u64, why: NotProposed) {
        if let Some(link) = self.link(peer) {
            let _ = link.queue.push(Outgoing::Refused { id, why });
        }
    }

    pub fn is_connected(&self, peer: u64) -> bool {
        self.link(peer).is_some_and(|link| link.queue.is_connected())
    }

    /// The fullest queue: items and bytes.
    #[cfg_attr(not(madsim), allow(dead_code, reason = "the oracle of bounds reads it"))]
    pub fn waiting(&self) -> (usize, usize) {
        let links = self.links();
        let of =
            |part: fn((usize, usize)) -> usize| links.values().map(|link| part(link.queue.waiting())).max();
        (of(|waiting| waiting.0).unwrap_or(0), of(|waiting| waiting.1).unwrap_or(0))
    }

    /// A connection broke: its unwritten forwards go back to be tried again.
    pub fn broke(&self, peer: u64, unwritten: Vec<Proposal>) {
        for proposal in unwritten {
            self.inbox.push_always(Input::ForwardRefused { id: proposal.id, why: NotProposed::NotLeader });
        }
        self.inbox.push_always(Input::Unreachable(peer));
    }
}

/// `http://host:port` → `host:port`.
pub(super) fn address(url: &str) -> String {
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    address.trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_url_becomes_an_address() {
        let check = |url: &str, expected: &str| assert_eq!(address(url), expected);
        check("http://n1:2380", "n1:2380");
        check("https://10.0.0.1:2380/", "10.0.0.1:2380");
        check("[::1]:2380", "[::1]:2380");
    }

    #[test]
    fn a_peer_is_pinged_often_enough_to_be_missed_in_time() {
        let settings =
            PeerSettings::new(1, 2, Duration::from_millis(100), Duration::from_millis(1000), 1 << 24);
        assert_eq!(settings.ping_interval, Duration::from_millis(250));
        assert_eq!(settings.beats_max, 8);
        let slow = PeerSettings::new(1, 2, Duration::from_millis(500), Duration::from_millis(1500), 1 << 24);
        assert_eq!((slow.ping_interval, slow.beats_max), (Duration::from_millis(500), 6));
    }
}
