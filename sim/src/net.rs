//! The cables: which node hears which, and how late.
//!
//! Owns both switches that a cut needs: madsim's (bytes stand still) and
//! `quorate::env::net::links` (ends of streams and connects stand still too).
//! Cuts are counted: a link works again when every partition that cut it has healed.

use crate::journal::note;
use madsim::{net::NetSim, task::NodeId};
use quorate::env::net::links::Links;
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// A node as the network sees it.
#[derive(Clone, Debug)]
pub struct Socket {
    pub name: String,
    pub id: NodeId,
    pub ip: IpAddr,
}

/// The network of one run.
#[derive(Default)]
pub struct Cables {
    nodes: Vec<Socket>,
    /// (from, to) by place in `nodes` -> how many partitions cut it.
    cuts: BTreeMap<(usize, usize), u32>,
}

impl Cables {
    /// Adds a node; its place is the number that [`Cables::cut`] takes.
    pub fn plug(&mut self, socket: Socket) -> usize {
        NetSim::current().add_dns_record(&socket.name, socket.ip);
        Links::get().place(socket.id, socket.ip);
        self.nodes.push(socket);
        self.nodes.len() - 1
    }

    /// One direction stands still.
    pub fn cut(&mut self, from: usize, to: usize) {
        assert_ne!(from, to, "a node always hears itself");
        let count = self.cuts.entry((from, to)).or_default();
        *count += 1;
        if *count == 1 {
            self.switch(from, to, true);
        }
    }

    /// One cut of this direction heals; fine if there is none.
    pub fn mend(&mut self, from: usize, to: usize) {
        let Some(count) = self.cuts.get_mut(&(from, to)) else { return };
        *count -= 1;
        if *count == 0 {
            self.cuts.remove(&(from, to));
            self.switch(from, to, false);
        }
    }

    pub fn mend_all(&mut self) {
        for ((from, to), _) in std::mem::take(&mut self.cuts) {
            self.switch(from, to, false);
        }
        self.set_latency(Duration::from_micros(300), Duration::from_millis(3));
        self.set_loss(0.0);
    }

    fn switch(&self, from: usize, to: usize, cut: bool) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        note(|| format!("net {} -> {} {}", from.name, to.name, if cut { "cut" } else { "mended" }));
        let net = NetSim::current();
        if cut {
            net.clog_link(from.id, to.id)
        } else {
            net.unclog_link(from.id, to.id)
        }
        Links::get().cut(from.ip, to.ip, cut);
    }

    /// Of every message from now on.
    pub fn set_latency(&self, low: Duration, high: Duration) {
        assert!(low < high, "a latency range is not empty");
        NetSim::current().update_config(|config| config.send_latency = low..high);
    }

    /// A lost message is sent again later, as TCP does.
    pub fn set_loss(&self, rate: f64) {
        NetSim::current().update_config(|config| config.packet_loss_rate = rate);
    }
}
