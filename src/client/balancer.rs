//! Which endpoint is next: round robin.
//!
//! Each call takes the next endpoint of the list, from a start drawn at
//! random, so that many clients spread over a cluster. Nothing is assumed of
//! an endpoint's health, as no list of bad ones can be right for long; one
//! that just refused a connection says so again without delay
//! ([`Channel`]'s pause), so passing by it costs nothing.

use crate::env::{
    Rng,
    net::{Channel, HttpOptions},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// One server of the cluster.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// `host:port`.
    pub name: String,
    pub channel: Channel,
}

impl Endpoint {
    fn new(address: &str, http: &HttpOptions) -> Endpoint {
        let name = name_of(address).to_owned();
        Endpoint { channel: Channel::lazy(&name, http.clone()), name }
    }
}

/// `host:port` of an endpoint that may be written as a URL.
pub(super) fn name_of(address: &str) -> &str {
    let address = address.trim();
    let address = address.strip_prefix("http://").unwrap_or(address);
    address.strip_suffix('/').unwrap_or(address)
}

pub(super) struct Balancer {
    endpoints: Arc<[Endpoint]>,
    next: AtomicUsize,
}

impl Balancer {
    pub(super) fn new(addresses: &[String], http: &HttpOptions, rng: &Rng) -> Balancer {
        let endpoints: Arc<[Endpoint]> =
            addresses.iter().map(|address| Endpoint::new(address, http)).collect();
        let start = rng.below(endpoints.len().max(1) as u64) as usize;
        Balancer { endpoints, next: AtomicUsize::new(start) }
    }

    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The endpoint whose turn it is.
    pub(super) fn next(&self) -> Option<&Endpoint> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.endpoints.get(turn.checked_rem(self.endpoints.len())?)
    }

    /// The endpoint of this name, or a new one that only the caller knows.
    pub(super) fn named(&self, address: &str, http: &HttpOptions) -> Endpoint {
        let name = name_of(address);
        let known = self.endpoints.iter().find(|endpoint| endpoint.name == name);
        known.cloned().unwrap_or_else(|| Endpoint::new(name, http))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_take_turns_from_a_drawn_start() {
        let addresses: Vec<String> = ["http://a:1/", " b:2", "http://c:3"].map(str::to_owned).into();
        let mut starts = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let balancer = Balancer::new(&addresses, &HttpOptions::default(), &Rng::from_seed([seed; 32]));
            let turns: Vec<&str> = (0..6).map(|_| balancer.next().unwrap().name.as_str()).collect();
            assert_eq!(turns[..3], turns[3..]);
            starts.insert(turns[0].to_owned());
        }
        assert_eq!(starts.into_iter().collect::<Vec<_>>(), ["a:1", "b:2", "c:3"]);
    }

    #[test]
    fn no_endpoints_no_turn() {
        let balancer = Balancer::new(&[], &HttpOptions::default(), &Rng::from_seed([0; 32]));
        assert!(balancer.next().is_none());
    }
}
