//! The raft loop, transport to peers, read index, snapshots sent and received,
//! proposals waiting.
//!
//! **Never** knows what an entry means: requests are bytes with an id.

use crate::env::{Env, net::Listener};
use crate::machine::{Refusal, Reply};
use crate::members::Members;
use crate::store::{self, Store};
use quorate_proto::etcdserverpb::InternalRaftRequest;
use std::{path::PathBuf, time::Duration};

/// How a member replicates.
#[derive(Clone, Debug)]
pub struct Options {
    /// `<data-dir>/member`: `log/`, `store/` and the identity file lie in it.
    pub dir: PathBuf,
    pub heartbeat_interval: Duration,
    pub election_timeout: Duration,
    /// Applied entries between compactions of the log.
    pub snapshot_count: u64,
    /// Entries kept behind a compaction for slow followers.
    pub catchup_entries: u64,
    /// Encoded entry limit (N1).
    pub max_request_bytes: u64,
    pub pre_vote: bool,
    pub log: crate::log::Options,
    pub store: store::Options,
    /// Peer frames larger than this are refused.
    pub frame_bytes_max: u32,
}

/// Who this member is, from the flags; ignored where the directory knows better.
#[derive(Clone, Debug)]
pub struct Identity {
    pub name: String,
    pub member_id: u64,
    /// All initial members (ids by M1), cluster id by M2.
    pub initial: Members,
    /// `false`: state `existing`.
    pub new_cluster: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Log(#[from] crate::log::Error),
    #[error("data directory is in use by another process: {0}")]
    Locked(PathBuf),
    /// A peer knows this member as started.
    #[error("member {0:x} has already been bootstrapped")]
    AlreadyBootstrapped(u64),
    #[error("{0}")]
    Other(String),
}

/// Why a proposal failed. `api` maps each to its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("request is too large")]
    TooLarge,
    #[error("too many requests")]
    TooManyRequests,
    /// No answer in time; may or may not be applied later.
    #[error("request timed out")]
    Timeout,
    /// As Timeout, and a leader was lost meanwhile.
    #[error("request timed out, possibly due to previous leader failure")]
    TimeoutLeaderLost,
    /// No leader was known for the whole time: certainly not proposed.
    #[error("no leader for the whole time")]
    NoLeader,
    #[error("server stopped")]
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadIndexError {
    #[error("leader changed")]
    LeaderChanged,
    #[error("request timed out")]
    Timeout,
    #[error("server stopped")]
    Stopped,
}

/// What a member says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub member_id: u64,
    pub cluster_id: u64,
    pub term: u64,
    /// 0 = none known.
    pub leader: u64,
    pub commit: u64,
    pub applied: u64,
    pub is_learner: bool,
    pub leader_changes: u64,
    pub proposals_pending: u64,
    pub proposals_failed: u64,
}

/// A started member; cheap to clone.
#[derive(Clone)]
pub struct Replica {
    _todo: (),
}

impl Replica {
    /// Locks the directory, recovers, starts the raft loop, the applier and the peers' listener.
    /// `metrics` sees sync, commit and apply durations.
    pub async fn start(
        env: Env,
        options: Options,
        identity: Identity,
        peers: Vec<Listener>,
        metrics: std::sync::Arc<dyn Observer>,
    ) -> Result<Replica, StartError> {
        let _ = (env, options, identity, peers, metrics);
        todo!()
    }

    /// Proposes a request (its header's id is set here) and waits until it is
    /// committed durably and applied on this member (I4). On a follower it is
    /// forwarded, at most once. Fails after 5 s + 2 x election timeout (N3).
    pub async fn propose(&self, request: InternalRaftRequest) -> Result<(Reply, i64), ProposeError> {
        let _ = request;
        todo!()
    }

    /// Waits until this member has applied an index that was confirmed by a
    /// quorum after this call began (I7). R14 for the times.
    pub async fn read_index(&self) -> Result<(), ReadIndexError> {
        todo!()
    }

    pub fn status(&self) -> Status {
        todo!()
    }

    pub fn store(&self) -> &Store {
        todo!()
    }

    /// Changes whenever the leader known here changes (0 = none).
    pub fn leader_watch(&self) -> tokio::sync::watch::Receiver<u64> {
        todo!()
    }

    /// Hands leadership to `target` (0 = the most advanced voter); fine if not leader.
    pub async fn transfer_leadership(&self, target: u64, within: Duration) -> Result<(), ProposeError> {
        let _ = (target, within);
        todo!()
    }

    /// Stops in order: no new proposals, commits the store, marks what is synced, closes.
    pub async fn stop(&self) {
        todo!()
    }

    /// Completes with the reason when the member stopped by itself (disk failure, broken invariant).
    pub async fn failed(&self) -> String {
        todo!()
    }
}

/// Sees durations and counts; implemented by `api`'s metrics and by tests.
pub trait Observer: Send + Sync + 'static {
    fn log_synced(&self, seconds: f64);
    fn store_committed(&self, seconds: f64);
    fn applied(&self, kind: &'static str, success: bool, seconds: f64);
}
