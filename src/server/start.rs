//! The order in which a member comes up.
//!
//! Directory, ports, identity, replica, then in the background: publish this
//! member's name and client URLs through the log, and only then answer
//! clients; the leader decides the cluster version when nobody did. Until a
//! leader is known the client ports take connections and answer nothing.
//! **Never** protocol details, and nothing that only production has: the same
//! lines run in simulation.

use super::carried;
use super::config::{ClusterState, Config, ConfigError};
use super::corruption;
use super::data_dir::{self, DataDirError, Found, MEMBER};
use super::initial_cluster::{InitialCluster, InitialClusterError};
use super::logging::{list, plain};
use super::urls::{Scheme, Url};
use super::values::duration_text;
use crate::env::{Env, net, net::Listener, task};
use crate::members::Members;
use crate::replica::{self, Identity, ProposeError, Replica};
use crate::{api, proto};
use proto::etcdserverpb::InternalRaftRequest;
use proto::membershippb::{Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};

/// The cluster version that a leader sets when there is none.
const CLUSTER_VERSION: &str = "3.7.0";

/// Why a member did not start. The text is etcd's where etcd has the case;
/// [`StartError::cause`] says what it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    InitialCluster(#[from] InitialClusterError),
    #[error("{text}")]
    Listen { peer: bool, text: String },
    #[error("TLS key/cert ({flags}) must be provided for {kind} url {url} with HTTPS scheme")]
    Tls { flags: &'static str, kind: &'static str, url: Url },
    #[error(transparent)]
    Replica(#[from] replica::StartError),
    /// The initial corruption check; see `corruption.rs`.
    #[error("found data inconsistency with peers: {0}")]
    Corrupt(String),
}

impl StartError {
    /// What failed, as the log's message says it.
    pub fn cause(&self) -> &'static str {
        match self {
            StartError::Config(_) => "failed to verify flags",
            StartError::DataDir(DataDirError::List { .. }) => "failed to list data directory",
            StartError::DataDir(DataDirError::Make { .. }) => "cannot make the data directory",
            StartError::DataDir(DataDirError::Etcd(_)) => "the data directory belongs to etcd",
            StartError::InitialCluster(_) => "the initial cluster configuration is wrong",
            StartError::Listen { peer: true, .. } => "cannot listen for peers",
            StartError::Listen { peer: false, .. } => "cannot listen for clients",
            StartError::Tls { .. } => "TLS is not served yet",
            StartError::Corrupt(_) => "the initial corruption check failed",
            StartError::Replica(replica::StartError::Rot(_)) => "there is rot in the store",
            StartError::Replica(replica::StartError::NotAdmitted(_)) => "auth is not enforced yet",
            StartError::Replica(replica::StartError::Locked(_)) => {
                "the data directory is in use by another process"
            }
            StartError::Replica(replica::StartError::AlreadyBootstrapped(_)) => {
                "this member has started before, with data that is no longer here"
            }
            StartError::Replica(replica::StartError::Store(_) | replica::StartError::Log(_)) => {
                "the member's data cannot be opened"
            }
            StartError::Replica(_) => "the member cannot start",
        }
    }
}

/// A started member. Dropping it stops serving clients, not the replica.
pub struct Server {
    pub(super) config: Arc<Config>,
    pub(super) env: Env,
    pub(super) replica: Replica,
    /// Turns true when clients are served.
    ready: watch::Receiver<bool>,
    /// Turns true to stop serving.
    pub(super) stopping: watch::Sender<bool>,
    /// Closes when no client is served any more.
    pub(super) drained: Mutex<watch::Receiver<bool>>,
    /// Whether a stop was done.
    pub(super) stopped: Mutex<bool>,
}

impl Server {
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Completes when clients are served: this member is published, which needs a leader.
    /// Never completes on a member that was stopped before.
    pub async fn ready(&self) {
        let mut ready = self.ready.clone();
        if ready.wait_for(|ready| *ready).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether clients are served now.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Completes with the reason when the member stopped by itself.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }
}

/// Brings a member up; it serves clients once [`Server::ready`] completes.
pub async fn start(config: Config, env: Env) -> Result<Server, StartError> {
    config.verify()?;
    let dir = config.data_dir();
    let found = data_dir::inspect(&*env.disk, &dir).await?;
    match found {
        Found::Empty => tracing::info!(
            "data-dir" = %dir.display(),
            "dir-type" = found.dir_type(),
            "Initialize and start etcd server"
        ),
        Found::Member => tracing::info!(
            "data-dir" = %dir.display(),
            "dir-type" = found.dir_type(),
            "server has already been initialized"
        ),
    }
    let peers = listen(&config.listen_peer_urls, true).await?;
    let clients = listen(&config.listen_client_urls, false).await?;
    let identity = identity(&config, found).await?;
    log_settings(&config, found);

    let metrics = Arc::new(api::Metrics::default());
    let options = replica_options(&config);
    let replica = Replica::start(env.clone(), options, identity, peers, metrics.clone()).await?;
    let status = replica.status();
    tracing::info!(
        "local-member-id" = hex(status.member_id),
        "initial-advertise-peer-urls" = ?list(&config.advertise_peer_urls),
        "listen-peer-urls" = ?list(&config.listen_peer_urls),
        "advertise-client-urls" = ?list(&config.advertise_client_urls),
        "listen-client-urls" = ?list(&config.listen_client_urls),
        "now serving peer/client/metrics"
    );
    for url in &config.listen_peer_urls {
        tracing::info!(address = url.authority(), "serving peer traffic");
    }

    if config.checks.at_start
        && let Err(error) = corruption::at_start(&replica, config.proposal_timeout()).await
    {
        replica.stop().await;
        return Err(error);
    }

    let config = Arc::new(config);
    let (stopping, stop) = watch::channel(false);
    let (ready_sender, ready) = watch::channel(false);
    let (drained_sender, drained) = watch::channel(false);
    let member = Member { config: config.clone(), env: env.clone(), replica: replica.clone(), stop };
    drop(task::spawn(member.clone().decide_cluster_version()));
    if let Some(retention) = config.auto_compaction {
        drop(task::spawn(member.clone().compact_by_itself(retention)));
    }
    if !config.checks.interval.is_zero() {
        drop(task::spawn(member.clone().compare_now_and_then(config.checks.interval)));
    }
    if !config.checks.compact_hash_interval.is_zero() {
        drop(task::spawn(member.clone().compare_compactions(config.checks.compact_hash_interval)));
    }
    if config.bootstrap_defragment_bytes > 0 {
        drop(task::spawn(member.clone().clean_at_start(config.bootstrap_defragment_bytes)));
    }
    drop(task::spawn(async move {
        member.serve(clients, metrics, ready_sender).await;
        drop(drained_sender);
    }));
    Ok(Server {
        config,
        env,
        replica,
        ready,
        stopping,
        drained: Mutex::new(drained),
        stopped: Mutex::new(false),
    })
}

/// What the background tasks share.
#[derive(Clone)]
pub(super) struct Member {
    pub config: Arc<Config>,
    pub env: Env,
    pub replica: Replica,
    pub stop: watch::Receiver<bool>,
}

impl Member {
    /// Serves clients once this member is published, until the stop.
    async fn serve(mut self, clients: Vec<Listener>, metrics: Arc<api::Metrics>, ready: watch::Sender<bool>) {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = self.publish() => {}
        }
        let service = api::Service::new(self.replica.clone(), metrics, &self.env);
        let entrance = api::entrance(service, api_settings(&self.config));
        let options =
            net::HttpOptions { drain: self.config.proposal_timeout() / 2, ..self.config.http.clone() };
        let mut serving = Vec::new();
        for listener in clients {
            serving.push(task::spawn(net::serve_http(
                listener,
                entrance.clone(),
                options.clone(),
                self.stop.clone(),
            )));
        }
        // Before the log says so: who reads the line may send a signal at once.
        ready.send_replace(true);
        for _ in &serving {
            tracing::info!("ready to serve client requests");
        }
        crate::reached!("clients are served");
        tracing::info!(service = "", status = "SERVING", "grpc service status changed");
        for url in &self.config.listen_client_urls {
            tracing::info!(
                traffic = "grpc+http",
                address = url.authority(),
                "serving client traffic insecurely; this is strongly discouraged!"
            );
        }
        for one in serving {
            // A panic in a handler has ended the process already.
            drop(one.await);
        }
    }

    /// Cleans the store if that frees `bytes` or more. Everything else goes on meanwhile.
    async fn clean_at_start(self, bytes: u64) {
        let (size, in_use) = self.replica.store().sizes();
        let free = size.saturating_sub(in_use);
        if free < bytes {
            tracing::info!(
                "current-db-size-bytes" = size,
                "current-db-size-in-use-bytes" = in_use,
                "threshold-bytes" = bytes,
                "skipping defragmentation at start: it would free less than the threshold"
            );
            return;
        }
        self.replica.store().defragment().await;
        tracing::info!(
            "db-size-bytes-before" = size,
            "db-size-bytes" = self.replica.store().sizes().0,
            "defragmented at start"
        );
    }

    /// Writes this member's name and client URLs to the log, until it is done.
    async fn publish(&mut self) {
        let member_id = self.replica.status().member_id;
        let attributes = Attributes {
            name: self.config.name.clone(),
            client_urls: self.config.advertise_client_urls.iter().map(Url::to_string).collect(),
        };
        let request = InternalRaftRequest {
            cluster_member_attr_set: Some(ClusterMemberAttrSetRequest {
                member_id,
                member_attributes: Some(attributes),
            }),
            ..InternalRaftRequest::default()
        };
        self.propose_until_done(request, "failed to publish local member to cluster through raft", |_| true)
            .await;
        tracing::info!(
            "local-member-id" = hex(member_id),
            "local-member-attributes" = format!(
                "{{Name:{} ClientURLs:[{}]}}",
                self.config.name,
                super::urls::join(&self.config.advertise_client_urls).replace(',', " ")
            ),
            "cluster-id" = hex(self.replica.status().cluster_id),
            "publish-timeout" = duration_text(duration_ns(self.config.proposal_timeout())),
            "published local member to cluster through raft"
        );
    }

    /// Whenever this member leads and the cluster has no version yet, it sets one.
    async fn decide_cluster_version(mut self) {
        let member_id = self.replica.status().member_id;
        let mut stop = self.stop.clone();
        let request = InternalRaftRequest {
            cluster_version_set: Some(ClusterVersionSetRequest { ver: CLUSTER_VERSION.to_owned() }),
            ..InternalRaftRequest::default()
        };
        let undecided = |member: &Member| member.replica.store().cluster_version().is_empty();
        let mut leader = self.replica.leader_watch();
        while undecided(&self) {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                led = leader.wait_for(|leader| *leader == member_id) => if led.is_err() { return },
            }
            let leads = |member: &Member| undecided(member) && member.replica.status().leader == member_id;
            let deciding =
                self.propose_until_done(request.clone(), "failed to set the cluster version", leads);
            let decided = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                decided = deciding => decided,
            };
            if decided {
                tracing::info!(
                    "cluster-id" = hex(self.replica.status().cluster_id),
                    "local-member-id" = hex(member_id),
                    "cluster-version" = CLUSTER_VERSION.trim_end_matches(".0"),
                    "set initial cluster version"
                );
            }
        }
    }

    /// Proposes again and again while `wanted`; true when it was applied. Waits for a leader
    /// first, so that the proposal does not wait out its own time on a member that is alone.
    async fn propose_until_done(
        &mut self,
        request: InternalRaftRequest,
        complaint: &'static str,
        wanted: impl Fn(&Member) -> bool,
    ) -> bool {
        let mut leader = self.replica.leader_watch();
        loop {
            if leader.wait_for(|leader| *leader != 0).await.is_err() {
                // The replica is gone, and this task with it at the stop.
                return std::future::pending().await;
            }
            if !wanted(self) {
                return false;
            }
            match self.replica.propose(request.clone()).await {
                Ok(_) => return true,
                Err(ProposeError::Stopped) => return std::future::pending().await,
                Err(error) => {
                    crate::reached!("a member's own proposal was tried again");
                    tracing::warn!(error = %error, "{complaint}");
                    self.env.clock.sleep(self.config.heartbeat_interval).await;
                }
            }
        }
    }
}

async fn listen(urls: &[Url], peer: bool) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::with_capacity(urls.len());
    for url in urls {
        if url.scheme() == Scheme::Https {
            let (flags, kind) = if peer {
                ("--peer-cert-file, --peer-key-file", "peer")
            } else {
                ("--cert-file, --key-file", "client")
            };
            return Err(StartError::Tls { flags, kind, url: url.clone() });
        }
        let bound = match url.bind_address() {
            None => Err(format!("listen tcp: address {}: invalid port", url.port_text())),
            Some(address) => Listener::bind(address)
                .await
                .map_err(|error| format!("listen tcp {address}: bind: {}", plain_bind(&error))),
        };
        match bound {
            Ok(listener) => listeners.push(listener),
            Err(text) => {
                if peer {
                    tracing::error!(error = text, "creating peer listener failed");
                }
                return Err(StartError::Listen { peer, text });
            }
        }
    }
    Ok(listeners)
}

/// The simulated network words its errors in its own way.
fn plain_bind(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "address already in use".to_owned(),
        std::io::ErrorKind::AddrNotAvailable => "cannot assign requested address".to_owned(),
        _ => plain(error),
    }
}

/// Who this member is by its flags. A member with data knows better: then wrong
/// flags do not matter, as long as they are not needed.
async fn identity(config: &Config, found: Found) -> Result<Identity, StartError> {
    let by_flags = async {
        let cluster = InitialCluster::parse(&config.initial_cluster())?;
        cluster.verify(&config.name, &config.advertise_peer_urls).await?;
        Ok::<_, InitialClusterError>(cluster)
    };
    let cluster = match by_flags.await {
        Ok(cluster) => cluster,
        Err(error) if found == Found::Member => {
            tracing::info!(error = %error, "flags of a new cluster are ignored: the data directory knows its cluster");
            return Ok(Identity {
                name: config.name.clone(),
                member_id: 0,
                initial: Members::default(),
                new_cluster: false,
            });
        }
        Err(error) => return Err(error.into()),
    };
    let initial = cluster.for_members();
    let token = &config.initial_cluster_token;
    let (_, own_urls) =
        initial.iter().find(|(name, _)| *name == config.name).expect("verify found the local name");
    Ok(Identity {
        name: config.name.clone(),
        member_id: Members::member_id(own_urls, token, None),
        initial: Members::bootstrap(&initial, token),
        new_cluster: config.initial_cluster_state == ClusterState::New,
    })
}

fn replica_options(config: &Config) -> replica::Options {
    replica::Options {
        dir: config.data_dir().join(MEMBER),
        heartbeat_interval: config.heartbeat_interval,
        election_timeout: config.election_timeout,
        snapshot_count: config.snapshot_count,
        catchup_entries: config.snapshot_catchup_entries,
        max_request_bytes: config.max_request_bytes,
        pre_vote: config.pre_vote,
        log: config.log.clone(),
        store: config.store.clone(),
        frame_bytes_max: config.frame_bytes_max(),
        admission: carried::admission(config.unsafe_ignore_auth),
    }
}

fn api_settings(config: &Config) -> api::Settings {
    api::Settings {
        max_txn_ops: usize::try_from(config.max_txn_ops).unwrap_or(usize::MAX),
        max_request_bytes: config.max_request_bytes,
        quota_backend_bytes: config.quota_backend_bytes,
        request_timeout: config.proposal_timeout(),
        gateway: config.grpc_gateway,
        cors: config.cors.clone(),
        snapshot_form: config.snapshot_form,
        features: config.features.list().map(|(gate, on)| (gate.name, gate.stage.as_str(), on)).collect(),
    }
}

fn log_settings(config: &Config, found: Found) {
    tracing::info!(
        "etcd-version" = api::ETCD_VERSION,
        "quorate-version" = env!("CARGO_PKG_VERSION"),
        "member-initialized" = found == Found::Member,
        name = config.name,
        "data-dir" = %config.data_dir().display(),
        "heartbeat-interval" = duration_text(duration_ns(config.heartbeat_interval)),
        "election-timeout" = duration_text(duration_ns(config.election_timeout)),
        "snapshot-count" = config.snapshot_count,
        "snapshot-catchup-entries" = config.snapshot_catchup_entries,
        "initial-advertise-peer-urls" = ?list(&config.advertise_peer_urls),
        "listen-peer-urls" = ?list(&config.listen_peer_urls),
        "advertise-client-urls" = ?list(&config.advertise_client_urls),
        "listen-client-urls" = ?list(&config.listen_client_urls),
        "initial-cluster" = config.initial_cluster(),
        "initial-cluster-state" = config.initial_cluster_state.as_str(),
        "initial-cluster-token" = config.initial_cluster_token,
        "quota-backend-bytes" = config.quota_bytes(),
        "max-request-bytes" = config.max_request_bytes,
        "max-txn-ops" = config.max_txn_ops,
        "max-concurrent-streams" = config.http.streams_max,
        "pre-vote" = config.pre_vote,
        "starting an etcd server"
    );
}

/// Ids as etcd prints them.
pub(super) fn hex(id: u64) -> String {
    format!("{id:x}")
}

fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
