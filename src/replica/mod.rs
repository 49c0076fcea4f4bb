//! The raft loop, transport to peers, read index, snapshots sent and received,
//! proposals waiting.
//!
//! | file | owns |
//! |---|---|
//! | `start`, `identity`, `first_start`, `bootstrap` | from a directory and flags to a running member |
//! | `stopped` | a directory whose member does not run |
//! | `raft_loop`, `log_view`, `persistence`, `inbox`, `proposals` | the raft state, and what goes in and out of it |
//! | `applier`, `apply_queue` | the state machine's turn |
//! | `waiters`, `read_index` | clients that wait |
//! | `rot` | out of service when the store rots |
//! | `peer_*`, `frame`, `raft_message`, `conf_change`, `pulse` | what members say to each other |
//! | `peer_hash` | what the peers' records hash to |
//! | `snapshot_send`, `snapshot_receive` | whole state to a member that fell behind |
//!
//! One task owns raft, one the state machine; everything else talks to them through bounded queues
//! that never make their writer wait (I10).
//!
//! **Never** knows what an entry means: requests are bytes with an id.

mod applier;
mod apply_queue;
mod bootstrap;
mod conf_change;
mod first_start;
mod frame;
mod identity;
mod inbox;
mod log_view;
mod peer_dial;
mod peer_hash;
mod peer_hello;
mod peer_listen;
mod peer_question;
mod peer_queue;
mod peer_set;
mod persistence;
mod proposals;
mod pulse;
mod raft_inputs;
mod raft_loop;
mod raft_message;
mod read_index;
mod rot;
mod shared;
mod snapshot_receive;
mod snapshot_send;
mod start;
mod stopped;
mod waiters;

pub use stopped::StoppedMember;

use crate::env::{Env, net::Listener};
use crate::machine::{self, Refusal, Reply};
use crate::members::Members;
use crate::store::{self, Store};
pub use peer_hash::{NoHash, PeerHash};

use inbox::{Input, NotProposed, NotTaken, Proposal};
use prost::Message as _;
use quorate_proto::{
    etcdserverpb::InternalRaftRequest,
    quorate::v1::{BucketPage, StoreMark},
};
use shared::Shared;
use std::sync::{Arc, atomic::Ordering};
use std::{future::Future, path::PathBuf, time::Duration};
use tokio::sync::oneshot;

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
    pub admission: Admission,
}

type Look = dyn Fn(&StoreMark, Vec<BucketPage>) -> Result<(), String> + Send + Sync;

/// Looks at what a store carries for services that are not there yet, before the member votes; a
/// reason refuses the start.
#[derive(Clone)]
pub struct Admission(pub Arc<Look>);

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admission")
    }
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
    /// An earlier run found rot in the store, and it is still there.
    #[error("{0}")]
    Rot(String),
    /// By [`Options::admission`].
    #[error("{0}")]
    NotAdmitted(String),
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
    /// It would grow the store, and the disk has no room (here or on the leader).
    #[error("no space left on the disk")]
    NoSpace,
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

impl From<NotProposed> for ProposeError {
    fn from(why: NotProposed) -> ProposeError {
        match why {
            NotProposed::NoSpace => ProposeError::NoSpace,
            NotProposed::TooMany => ProposeError::TooManyRequests,
            // It is sent to another member; if there is none in time, the sweep says so.
            NotProposed::NotLeader => ProposeError::NoLeader,
        }
    }
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
    shared: Arc<Shared>,
}

impl Replica {
    /// Locks the directory, recovers, starts the raft loop, the applier and the peers' listener.
    /// `metrics` sees sync, commit and apply durations.
    pub async fn start(
        env: Env,
        options: Options,
        identity: Identity,
        peers: Vec<Listener>,
        metrics: Arc<dyn Observer>,
    ) -> Result<Replica, StartError> {
        start::start(env, options, identity, peers, metrics).await
    }

    /// Proposes a request (its header's id is set here) and waits until it is
    /// committed durably and applied on this member (I4). On a follower it is
    /// forwarded, at most once. Fails after 5 s + 2 x election timeout (N3).
    /// Returns the reply and the store's revision after the entry.
    pub async fn propose(&self, request: InternalRaftRequest) -> Result<(Reply, i64), ProposeError> {
        let result = self.propose_and_wait(request).await;
        if result.is_err() {
            self.shared.published.proposals_failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn propose_and_wait(&self, mut request: InternalRaftRequest) -> Result<(Reply, i64), ProposeError> {
        let shared = &self.shared;
        if shared.stopping.load(Ordering::Acquire) {
            return Err(ProposeError::Stopped);
        }
        if shared.is_behind() {
            crate::reached!("proposal refused by backlog");
            return Err(ProposeError::TooManyRequests);
        }
        let grows = machine::growth(&request).is_some();
        if grows && !shared.has_reserve() {
            crate::reached!("proposal refused for lack of disk space");
            return Err(ProposeError::NoSpace);
        }
        let id = shared.ids.next();
        request.header.get_or_insert_default().id = id;
        if request.encoded_len() as u64 > shared.request_bytes_max {
            return Err(ProposeError::TooLarge);
        }
        let data = bytes::Bytes::from(request.encode_to_vec());
        let now = shared.env.clock.now();
        let proposal = Proposal { id, data, grows, from: None };
        let answer = shared.waiters.wait(proposal.clone(), now, shared.request_timeout)?;
        match shared.inbox.push(Input::Propose(proposal)) {
            Ok(()) => {}
            Err(NotTaken::Full) => shared.waiters.answer(id, || Err(ProposeError::TooManyRequests)),
            Err(NotTaken::Closed) => shared.waiters.answer(id, || Err(ProposeError::Stopped)),
        }
        // The sender is dropped unanswered only when the member dies.
        answer.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Waits until this member has applied an index that was confirmed by a
    /// quorum after this call began (I7). R14 for the times.
    pub async fn read_index(&self) -> Result<(), ReadIndexError> {
        let shared = &self.shared;
        let (read, confirmed) = oneshot::channel();
        match shared.inbox.push(Input::Read(read)) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(ReadIndexError::Timeout),
            Err(NotTaken::Closed) => return Err(ReadIndexError::Stopped),
        }
        let index = confirmed.await.unwrap_or(Err(ReadIndexError::Stopped))?;
        if shared.store.applied().0 >= index {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = shared.store.wait_applied(index) => Ok(()),
            () = shared.loop_ended() => Err(ReadIndexError::Stopped),
        }
    }

    pub fn status(&self) -> Status {
        self.shared.status()
    }

    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Changes whenever the leader known here changes (0 = none).
    pub fn leader_watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.leader.subscribe()
    }

    /// Hands leadership to `target` (0 = the most advanced voter); fine if not leader, or if there
    /// is nobody to take it. `Timeout` when the other did not take over `within` that time.
    pub async fn transfer_leadership(&self, target: u64, within: Duration) -> Result<(), ProposeError> {
        let shared = &self.shared;
        let (answer, begun) = oneshot::channel();
        let mut leader = self.leader_watch();
        shared.inbox.push(Input::Transfer { target, answer }).map_err(|not_taken| match not_taken {
            NotTaken::Full => ProposeError::TooManyRequests,
            NotTaken::Closed => ProposeError::Stopped,
        })?;
        let handed_over = async {
            if !begun.await.map_err(|_| ProposeError::Stopped)? {
                return Ok(());
            }
            let own = shared.member_id;
            leader
                .wait_for(|leader| *leader != own && *leader != 0)
                .await
                .map_err(|_| ProposeError::Stopped)?;
            crate::reached!("leadership transferred");
            Ok(())
        };
        tokio::select! {
            biased;
            result = handed_over => result,
            () = shared.env.clock.sleep(within) => Err(ProposeError::Timeout),
        }
    }

    /// Stops in order: no new proposals, commits the store, marks what is synced, closes.
    pub async fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.inbox.push_always(Input::Stop);
        self.shared.all_ended().await;
    }

    /// Whether log and store have space for more than deletes, compaction and cleaning.
    pub fn has_reserve(&self) -> bool {
        self.shared.has_reserve()
    }

    /// Why this member serves nobody any more, though its process runs: rot in its store (I6).
    pub fn out_of_service(&self) -> Option<Arc<str>> {
        self.shared.out_of_service.borrow().clone()
    }

    /// Completes when [`Replica::out_of_service`] has a reason.
    pub fn taken_out(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut reason = self.shared.out_of_service.subscribe();
        async move {
            if reason.wait_for(Option::is_some).await.is_err() {
                // The member is gone without one.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Completes with the reason when the member stopped by itself (disk failure, broken invariant).
    /// A member that cannot go on because of rot is out of service instead: see
    /// [`Replica::out_of_service`].
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(_) if self.shared.store.rot().borrow().is_some() => {
                crate::reached!("apply met the rot");
                std::future::pending().await
            }
            Ok(failure) => failure.clone().expect("just waited for"),
            // Unreachable: the sender lives in self. Nothing failed, then.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Sees durations and counts; implemented by `api`'s metrics and by tests.
pub trait Observer: store::Meter {
    fn log_synced(&self, seconds: f64);
    fn store_committed(&self, seconds: f64);
    fn applied(&self, kind: &'static str, success: bool, seconds: f64);
}
