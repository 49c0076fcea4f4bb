//! What waits to be sent to one peer: bounded in items and bytes (I10).
//!
//! Promises: pushing never waits. Beyond a bound raft's messages are dropped (raft tolerates loss).
//! A forwarded request is taken only while a connection stands, and one that was not written when
//! it broke is given back: it was certainly not proposed. While there is no connection the last few
//! raft messages are kept, so that a fresh one begins with news.

use super::inbox::{NotProposed, Proposal, message_bytes};
use quorate_proto::quorate::v1::{Forward, ForwardRefused, frame::Body};
use raft::eraftpb::Message;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::Notify;

pub(super) const QUEUE_ITEMS_MAX: usize = 4_096;
pub(super) const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Kept for a connection to come.
const UNCONNECTED_ITEMS_MAX: usize = 64;
/// Written at once.
const BATCH_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) enum Outgoing {
    Raft(Message),
    Forward(Proposal),
    Refused { id: u64, why: NotProposed },
    Ping(u64),
}

impl Outgoing {
    fn cost_bytes(&self) -> usize {
        match self {
            Outgoing::Raft(message) => message_bytes(message),
            Outgoing::Forward(proposal) => 64 + proposal.data.len(),
            Outgoing::Refused { .. } | Outgoing::Ping(_) => 64,
        }
    }

    pub fn into_body(self) -> Body {
        match self {
            Outgoing::Raft(message) => Body::Raft(super::raft_message::to_wire(&message)),
            Outgoing::Forward(proposal) => {
                let Proposal { id, data, grows, .. } = proposal;
                Body::Forward(Forward { request_id: id, data, grows })
            }
            Outgoing::Refused { id, why } => {
                Body::ForwardRefused(ForwardRefused { request_id: id, reason: why.word().to_owned() })
            }
            Outgoing::Ping(number) => Body::Ping(number),
        }
    }
}

#[derive(Default)]
struct Held {
    items: VecDeque<Outgoing>,
    bytes: usize,
    connected: bool,
}

#[derive(Default)]
pub(super) struct PeerQueue {
    held: Mutex<Held>,
    wake: Notify,
}

impl PeerQueue {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no panic while the queue is locked")
    }

    /// Takes `item`; `false` when there is no room (or, for anything but raft's messages, no
    /// connection): it is dropped.
    pub fn push(&self, item: Outgoing) -> bool {
        let cost = item.cost_bytes();
        let mut held = self.held();
        if !held.connected {
            if !matches!(item, Outgoing::Raft(_)) {
                return false;
            }
            while held.items.len() >= UNCONNECTED_ITEMS_MAX {
                let oldest = held.items.pop_front().expect("just counted");
                held.bytes -= oldest.cost_bytes();
            }
        }
        // One item always fits, however large.
        if held.items.len() >= QUEUE_ITEMS_MAX || (held.bytes + cost > QUEUE_BYTES_MAX && held.bytes > 0) {
            crate::reached!("peer queue full");
            return false;
        }
        held.bytes += cost;
        held.items.push_back(item);
        drop(held);
        self.wake.notify_one();
        true
    }

    pub fn connected(&self) {
        self.held().connected = true;
    }

    pub fn is_connected(&self) -> bool {
        self.held().connected
    }

    /// The connection broke: drops what waited and returns the forwards that were not written.
    pub fn disconnected(&self) -> Vec<Proposal> {
        let items = {
            let mut held = self.held();
            held.connected = false;
            held.bytes = 0;
            std::mem::take(&mut held.items)
        };
        items
            .into_iter()
            .filter_map(|item| match item {
                Outgoing::Forward(proposal) => Some(proposal),
                _ => None,
            })
            .collect()
    }

    /// Waits for items and moves a batch of them to `into`.
    pub async fn take(&self, into: &mut Vec<Outgoing>) {
        assert!(into.is_empty(), "the last batch was written");
        loop {
            {
                let mut held = self.held();
                let mut bytes = 0;
                while bytes < BATCH_BYTES
                    && let Some(item) = held.items.pop_front()
                {
                    bytes += item.cost_bytes();
                    into.push(item);
                }
                held.bytes -= bytes;
            }
            if !into.is_empty() {
                return;
            }
            self.wake.notified().await;
        }
    }

    /// Items and bytes that wait.
    #[cfg_attr(not(madsim), allow(dead_code, reason = "the oracle of bounds reads it"))]
    pub fn waiting(&self) -> (usize, usize) {
        let held = self.held();
        (held.items.len(), held.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures::FutureExt;

    fn forward(id: u64) -> Outgoing {
        Outgoing::Forward(Proposal { id, data: Bytes::from_static(b"data"), grows: false, from: None })
    }

    #[test]
    fn a_forward_needs_a_connection_and_comes_back_when_it_breaks_unwritten() {
        let queue = PeerQueue::default();
        assert!(!queue.push(forward(1)));
        queue.connected();
        assert!(queue.push(forward(1)));
        let mut batch = Vec::new();
        queue.take(&mut batch).now_or_never().unwrap();
        assert!(queue.push(Outgoing::Raft(Message::default())));
        assert!(queue.push(forward(2)));
        let back: Vec<u64> = queue.disconnected().into_iter().map(|proposal| proposal.id).collect();
        assert_eq!(back, [2], "the first may have been written");
        assert_eq!(queue.waiting(), (0, 0));
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = PeerQueue::default();
        for term in 0..1000 {
            assert!(queue.push(Outgoing::Raft(Message { term, ..Message::default() })));
        }
        assert_eq!(queue.waiting().0, UNCONNECTED_ITEMS_MAX);
        queue.connected();
        while queue.push(Outgoing::Raft(Message::default())) {}
        assert_eq!(queue.waiting().0, QUEUE_ITEMS_MAX);
        let mut batch = Vec::new();
        queue.take(&mut batch).now_or_never().unwrap();
        let Outgoing::Raft(first) = &batch[0] else { panic!("a raft message") };
        assert_eq!(first.term, 936, "the oldest were dropped");
    }
}
