//! The members of the cluster: one pure value, changed only by log entries.
//!
//! A membership change is a `raftpb.ConfChange` whose context is the member as
//! JSON, in the form that etcd 3.7 writes (seen in its log):
//! `{"id":1,"peerURLs":["http://…"],"name":"n1"}` at the bootstrap, with
//! `"isLearner":true` for an added learner, without a name for an added
//! member, `{"id":1,"peerURLs":null,"isPromote":true}` for a promotion.
//!
//! **Promises**: a change is validated against this value alone, so every
//! member takes it or refuses it alike (M5); a removed id never returns.
//! **Never** I/O, clock or randomness.

use quorate_proto::quorate::v1::{MemberRecord, Membership};
use quorate_proto::raftpb::{ConfChange, ConfChangeType, ConfState};
use serde::{Deserialize, Deserializer, Serialize};
use sha1::{Digest, Sha1};
use std::collections::{BTreeMap, BTreeSet};

/// A member as etcd writes it (JSON keys `id`, `peerURLs`, `isLearner`, `name`, `clientURLs`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Member {
    #[serde(rename = "id")]
    pub id: u64,
    #[serde(rename = "peerURLs", default, deserialize_with = "list_or_null")]
    pub peer_urls: Vec<String>,
    #[serde(rename = "isLearner", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_learner: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(
        rename = "clientURLs",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "list_or_null"
    )]
    pub client_urls: Vec<String>,
}

fn list_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A conf change's context: the member, and whether this makes a learner a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ChangeContext {
    #[serde(flatten)]
    pub member: Member,
    #[serde(rename = "isPromote", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_promote: bool,
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    IdExists,
    PeerUrlExists,
    /// The id is unknown, or was removed.
    NotFound,
    NotLearner,
    BadUrls,
    /// No voter would be left.
    NotEnoughStarted,
    Malformed,
}

impl ChangeError {
    /// As in etcd's error table, after `etcdserver: `.
    pub fn text(self) -> &'static str {
        match self {
            ChangeError::IdExists => "member ID already exist",
            ChangeError::PeerUrlExists => "Peer URLs already exists",
            ChangeError::NotFound => "member not found",
            ChangeError::NotLearner => "can only promote a learner member",
            ChangeError::BadUrls => "given member URLs are invalid",
            ChangeError::NotEnoughStarted => "re-configuration failed due to not enough started members",
            ChangeError::Malformed => "the change does not name a member as etcd writes it",
        }
    }
}

impl std::fmt::Display for ChangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for ChangeError {}

/// All members and the ids that may not come back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Members {
    pub cluster_id: u64,
    pub members: BTreeMap<u64, Member>,
    pub removed: BTreeSet<u64>,
}

fn first_word(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a SHA-1 digest has 20 bytes"))
}

impl Members {
    /// M1: first 8 bytes (big endian) of SHA-1 over sorted peer URLs + token (+ decimal time).
    pub fn member_id(peer_urls: &[String], token: &str, unix_seconds: Option<u64>) -> u64 {
        let mut urls: Vec<_> = peer_urls.iter().map(String::as_str).collect();
        urls.sort_unstable();
        let mut hash = Sha1::new();
        for url in urls {
            hash.update(url);
        }
        hash.update(token);
        if let Some(seconds) = unix_seconds {
            hash.update(seconds.to_string());
        }
        first_word(hash)
    }

    /// M2: the same over all member ids, ascending, 8 bytes big endian each.
    pub fn cluster_id(member_ids: impl IntoIterator<Item = u64>) -> u64 {
        let mut ids: Vec<u64> = member_ids.into_iter().collect();
        ids.sort_unstable();
        let mut hash = Sha1::new();
        for id in ids {
            hash.update(id.to_be_bytes());
        }
        first_word(hash)
    }

    /// The members of a new cluster: (name, peer URLs) each, ids by M1, cluster id by M2.
    /// Names are there from the start, as in etcd's log; client URLs are published later.
    pub fn bootstrap(initial: &[(String, Vec<String>)], token: &str) -> Members {
        let members: BTreeMap<u64, Member> = initial
            .iter()
            .map(|(name, peer_urls)| {
                let mut peer_urls = peer_urls.clone();
                peer_urls.sort_unstable();
                let id = Members::member_id(&peer_urls, token, None);
                (id, Member { id, peer_urls, name: name.clone(), ..Member::default() })
            })
            .collect();
        let cluster_id = Members::cluster_id(members.keys().copied());
        Members { cluster_id, members, removed: BTreeSet::new() }
    }

    /// The conf changes that begin a new cluster's log, ascending member id.
    pub fn bootstrap_changes(&self) -> Vec<ConfChange> {
        let add = |member: &Member| ConfChange {
            id: 0,
            r#type: ConfChangeType::ConfChangeAddNode as i32,
            node_id: member.id,
            context: context(&ChangeContext { member: member.clone(), is_promote: false }).into(),
        };
        self.members.values().map(add).collect()
    }

    /// Voters and learners, ascending.
    pub fn conf_state(&self) -> ConfState {
        let ids = |learners: bool| {
            self.members
                .values()
                .filter(|member| member.is_learner == learners)
                .map(|member| member.id)
                .collect()
        };
        ConfState { voters: ids(false), learners: ids(true), ..ConfState::default() }
    }

    /// Takes a change, or refuses it with nothing changed (M5, M7, M8).
    pub fn change(&mut self, change: &ConfChange) -> Result<(), ChangeError> {
        let id = change.node_id;
        if self.removed.contains(&id) {
            return Err(ChangeError::NotFound);
        }
        match ConfChangeType::try_from(change.r#type).map_err(|_| ChangeError::Malformed)? {
            ConfChangeType::ConfChangeAddNode => {
                let ChangeContext { member, is_promote } = parse(change)?;
                if is_promote { self.promote(id) } else { self.add(Member { is_learner: false, ..member }) }
            }
            ConfChangeType::ConfChangeAddLearnerNode => {
                let ChangeContext { member, is_promote } = parse(change)?;
                if is_promote {
                    return Err(ChangeError::Malformed);
                }
                self.add(Member { is_learner: true, ..member })
            }
            ConfChangeType::ConfChangeUpdateNode => self.update(parse(change)?.member),
            ConfChangeType::ConfChangeRemoveNode => self.remove(id),
        }
    }

    fn add(&mut self, member: Member) -> Result<(), ChangeError> {
        if self.members.contains_key(&member.id) {
            return Err(ChangeError::IdExists);
        }
        self.check_urls(&member)?;
        self.members.insert(member.id, member);
        Ok(())
    }

    fn promote(&mut self, id: u64) -> Result<(), ChangeError> {
        let member = self.members.get_mut(&id).ok_or(ChangeError::NotFound)?;
        if !member.is_learner {
            return Err(ChangeError::NotLearner);
        }
        member.is_learner = false;
        Ok(())
    }

    fn update(&mut self, to: Member) -> Result<(), ChangeError> {
        if !self.members.contains_key(&to.id) {
            return Err(ChangeError::NotFound);
        }
        self.check_urls(&to)?;
        let member = self.members.get_mut(&to.id).expect("looked up above");
        member.peer_urls = to.peer_urls;
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Result<(), ChangeError> {
        let member = self.members.get(&id).ok_or(ChangeError::NotFound)?;
        let voters = self.members.values().filter(|member| !member.is_learner).count();
        if !member.is_learner && voters == 1 {
            return Err(ChangeError::NotEnoughStarted);
        }
        self.members.remove(&id);
        self.removed.insert(id);
        Ok(())
    }

    /// URLs that do not parse would keep every peer from reaching this member, so they are refused here too.
    fn check_urls(&self, member: &Member) -> Result<(), ChangeError> {
        let valid = |url: &String| {
            let address =
                ["http://", "https://", "unix://", "unixs://"].iter().find_map(|s| url.strip_prefix(s));
            address.is_some_and(|address| !address.is_empty())
        };
        if member.peer_urls.is_empty() || !member.peer_urls.iter().all(valid) {
            return Err(ChangeError::BadUrls);
        }
        let taken = |other: &&Member| {
            other.id != member.id && other.peer_urls.iter().any(|url| member.peer_urls.contains(url))
        };
        if self.members.values().any(|other| taken(&other)) {
            return Err(ChangeError::PeerUrlExists);
        }
        Ok(())
    }

    /// A member publishes its name and client URLs; unknown and removed ids are refused.
    pub fn publish(&mut self, id: u64, name: String, client_urls: Vec<String>) -> Result<(), ChangeError> {
        let member = self.members.get_mut(&id).ok_or(ChangeError::NotFound)?;
        member.name = name;
        member.client_urls = client_urls;
        Ok(())
    }

    /// As it is stored and sent to peers.
    pub fn to_membership(&self) -> Membership {
        let record = |member: &Member| MemberRecord {
            id: member.id,
            name: member.name.clone(),
            peer_urls: member.peer_urls.clone(),
            client_urls: member.client_urls.clone(),
            is_learner: member.is_learner,
        };
        Membership {
            cluster_id: self.cluster_id,
            members: self.members.values().map(record).collect(),
            removed: self.removed.iter().copied().collect(),
        }
    }

    pub fn from_membership(membership: &Membership) -> Members {
        let member = |record: &MemberRecord| {
            let MemberRecord { id, name, peer_urls, client_urls, is_learner } = record.clone();
            (id, Member { id, peer_urls, is_learner, name, client_urls })
        };
        Members {
            cluster_id: membership.cluster_id,
            members: membership.members.iter().map(member).collect(),
            removed: membership.removed.iter().copied().collect(),
        }
    }
}

/// The JSON of a conf change's context.
pub fn context(context: &ChangeContext) -> Vec<u8> {
    serde_json::to_vec(context).expect("strings and numbers always become JSON")
}

fn parse(change: &ConfChange) -> Result<ChangeContext, ChangeError> {
    let context: ChangeContext =
        serde_json::from_slice(&change.context).map_err(|_| ChangeError::Malformed)?;
    if context.member.id == change.node_id { Ok(context) } else { Err(ChangeError::Malformed) }
}

#[cfg(test)]
mod tests;
