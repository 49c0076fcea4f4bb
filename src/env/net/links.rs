//! Which simulated links are cut, for what madsim's network lets through.
//!
//! madsim delivers the end of a stream across a clogged link and turns a
//! connect across one into an immediate refusal. The fault injector tells this
//! plug-in of every clog it sets in `NetSim`, by address, and [`super::Stream`]
//! and [`super::connect`] hold such things back while the link is cut.
//! The seed driver must install it (`Runtime::add_simulator::<Links>`).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

/// How often something held back by a cut link tries again.
pub(super) const RETRANSMIT: Duration = Duration::from_millis(100);

/// The cut links of this simulation.
#[derive(Default)]
pub struct Links(Mutex<State>);

#[derive(Default)]
struct State {
    /// (from, to): nothing sent by `from` reaches `to`.
    cut: BTreeSet<(IpAddr, IpAddr)>,
    /// Where each node lives, as far as known; keyed by the node id's text, as the id has no order.
    addresses: BTreeMap<String, IpAddr>,
}

impl madsim::plugin::Simulator for Links {
    fn new(_: &madsim::rand::GlobalRng, _: &madsim::time::TimeHandle, _: &madsim::Config) -> Self {
        Links::default()
    }
}

impl Links {
    /// The plug-in of the running simulation.
    pub fn get() -> Arc<Links> {
        madsim::plugin::simulator()
    }

    /// Cuts or heals the direction `from` → `to`.
    pub fn cut(&self, from: IpAddr, to: IpAddr, cut: bool) {
        let mut state = self.0.lock().expect("no panic while links are locked");
        if cut {
            state.cut.insert((from, to));
        } else {
            state.cut.remove(&(from, to));
        }
    }

    /// Heals everything.
    pub fn heal(&self) {
        self.0.lock().expect("no panic while links are locked").cut.clear();
    }

    /// Whether nothing sent by `from` reaches `to`.
    pub fn is_cut(&self, from: IpAddr, to: IpAddr) -> bool {
        self.0.lock().expect("no panic while links are locked").cut.contains(&(from, to))
    }

    /// Whether either direction is cut: no handshake and no reset gets through.
    pub fn is_apart(&self, one: IpAddr, other: IpAddr) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }

    /// Tells where a node lives. Without this it is learnt from the node's
    /// first stream, and a connect before that is not held back.
    pub fn place(&self, node: madsim::task::NodeId, address: IpAddr) {
        if !address.is_loopback() && !address.is_unspecified() {
            let mut state = self.0.lock().expect("no panic while links are locked");
            state.addresses.insert(node.to_string(), address);
        }
    }

    /// The address of the node that asks.
    pub(super) fn own_address(&self) -> Option<IpAddr> {
        let node = madsim::plugin::node().to_string();
        self.0.lock().expect("no panic while links are locked").addresses.get(&node).copied()
    }
}
