//! The members of the cluster: one pure value, changed only by log entries.
//!
//! **Never** I/O, clock or randomness.

use quorate_proto::raftpb::{ConfChange, ConfState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A member as etcd writes it (JSON keys `id`, `peerURLs`, `isLearner`, `name`, `clientURLs`
/// in a conf change's context; see the owner of this room for the exact form).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Member {
    #[serde(rename = "id")]
    pub id: u64,
    #[serde(rename = "peerURLs", default)]
    pub peer_urls: Vec<String>,
    #[serde(rename = "isLearner", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_learner: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(rename = "clientURLs", default, skip_serializing_if = "Vec::is_empty")]
    pub client_urls: Vec<String>,
}

/// All members and the ids that may not come back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Members {
    pub cluster_id: u64,
    pub members: BTreeMap<u64, Member>,
    pub removed: BTreeSet<u64>,
}

impl Members {
    /// M1: first 8 bytes (big endian) of SHA-1 over sorted peer URLs + token (+ decimal time).
    pub fn member_id(peer_urls: &[String], token: &str, unix_seconds: Option<u64>) -> u64 {
        let _ = (peer_urls, token, unix_seconds);
        todo!()
    }
    /// M2.
    pub fn cluster_id(member_ids: impl IntoIterator<Item = u64>) -> u64 {
        let _ = member_ids.into_iter();
        todo!()
    }
    /// The members of a new cluster: (name, peer URLs) each, ids by M1, cluster id by M2; names
    /// are published later through the log, so they stay empty here.
    pub fn bootstrap(initial: &[(String, Vec<String>)], token: &str) -> Members {
        let _ = (initial, token);
        todo!()
    }
    /// The conf changes that begin a new cluster's log, ascending member id.
    pub fn bootstrap_changes(&self) -> Vec<ConfChange> {
        todo!()
    }
    /// Voters and learners, ascending.
    pub fn conf_state(&self) -> ConfState {
        todo!()
    }
}
