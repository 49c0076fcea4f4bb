//! What a member is started with, and what is wrong with it.
//!
//! [`Config`] holds parsed values only; how flags and variables become one is
//! `settings.rs`. [`Config::verify`] finds what etcd finds before it touches
//! disk or network, with etcd's texts. **Never** reads the environment.

use super::compactor::Retention;
use super::corruption::Checks;
use super::features::Features;
use super::urls::{Scheme, Url, join};
use crate::env::net::HttpOptions;
use std::{path::PathBuf, time::Duration};

/// `--initial-cluster-state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    New,
    Existing,
}

impl ClusterState {
    pub fn as_str(self) -> &'static str {
        match self {
            ClusterState::New => "new",
            ClusterState::Existing => "existing",
        }
    }
}

/// The settings of a member; the defaults are etcd's.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    /// Empty: `<name>.etcd`.
    pub data_dir: PathBuf,
    pub listen_peer_urls: Vec<Url>,
    pub listen_client_urls: Vec<Url>,
    /// `--initial-advertise-peer-urls`.
    pub advertise_peer_urls: Vec<Url>,
    pub advertise_client_urls: Vec<Url>,
    /// `name=url,name=url,...`; empty: this member alone. It is parsed when a new
    /// member starts, since a member that has data ignores it.
    pub initial_cluster: String,
    pub initial_cluster_state: ClusterState,
    pub initial_cluster_token: String,
    pub heartbeat_interval: Duration,
    pub election_timeout: Duration,
    /// Applied entries between compactions of the log.
    pub snapshot_count: u64,
    /// Entries kept behind a compaction for slow followers.
    pub snapshot_catchup_entries: u64,
    pub max_txn_ops: u64,
    pub max_request_bytes: u64,
    /// 0 = the default of 2 GiB, negative = none.
    pub quota_backend_bytes: i64,
    /// `None`: no automatic compaction.
    pub auto_compaction: Option<Retention>,
    /// Comparisons of the members' records.
    pub checks: Checks,
    pub features: Features,
    /// The store is cleaned at start if that frees at least so many bytes; 0 = not.
    pub bootstrap_defragment_bytes: u64,
    pub pre_vote: bool,
    /// Whether the JSON API is served under `/v3/`.
    pub grpc_gateway: bool,
    /// Allowed web origins; `*` = all.
    pub cors: Vec<String>,
    /// Limits and timers of client connections; `drain` is set by [`Config::proposal_timeout`].
    pub http: HttpOptions,
    pub log: crate::log::Options,
    pub store: crate::store::Options,
}

/// Quotas above this are accepted with a warning.
const QUOTA_BYTES_RECOMMENDED_MAX: i64 = 100 << 30;
/// `--quota-backend-bytes` when it is 0.
pub const QUOTA_BYTES_DEFAULT: i64 = 2 << 30;
/// A peer frame holds a request of the largest allowed size, or a batch of smaller ones, and some overhead.
const FRAME_OVERHEAD_BYTES: u64 = 512 << 10;
const ELECTION_TIMEOUT_MS_MAX: u128 = 50_000;
/// Request sizes above this are accepted with a warning.
const REQUEST_BYTES_RECOMMENDED_MAX: u64 = 10 << 20;

impl Default for Config {
    fn default() -> Self {
        let url = |text: &str| vec![text.parse().expect("the default URLs are well formed")];
        Config {
            name: "default".to_owned(),
            data_dir: PathBuf::new(),
            listen_peer_urls: url("http://localhost:2380"),
            listen_client_urls: url("http://localhost:2379"),
            advertise_peer_urls: url("http://localhost:2380"),
            advertise_client_urls: url("http://localhost:2379"),
            initial_cluster: String::new(),
            initial_cluster_state: ClusterState::New,
            initial_cluster_token: "etcd-cluster".to_owned(),
            heartbeat_interval: Duration::from_millis(100),
            election_timeout: Duration::from_millis(1000),
            snapshot_count: 10_000,
            snapshot_catchup_entries: 5_000,
            max_txn_ops: 128,
            max_request_bytes: 1_572_864,
            quota_backend_bytes: 0,
            auto_compaction: None,
            checks: Checks::default(),
            features: Features::default(),
            bootstrap_defragment_bytes: 0,
            pre_vote: true,
            grpc_gateway: true,
            cors: vec!["*".to_owned()],
            http: HttpOptions {
                keepalive_interval: Some(Duration::from_secs(2 * 60 * 60)),
                keepalive_timeout: Duration::from_secs(20),
                ..HttpOptions::default()
            },
            log: crate::log::Options::default(),
            store: crate::store::Options::default(),
        }
    }
}

/// Why settings cannot be used. The texts are etcd's where etcd has the case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("expected IP in URL for binding ({0})")]
    BindName(Url),
    #[error("--{0} must name at least one URL")]
    NoListener(&'static str),
    #[error("unix sockets are not served yet ({0})")]
    UnixSocket(Url),
    #[error("--advertise-client-urls is required when --listen-client-urls is set explicitly")]
    AdvertiseMissing,
    #[error(
        "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \"discovery-endpoints\" or \"discovery-srv\""
    )]
    ManyBootstraps,
    #[error("--heartbeat-interval must be >0 (set to {0}ms)")]
    Heartbeat(u128),
    #[error(
        "--election-timeout[{election_ms}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat_ms}ms]"
    )]
    ElectionShort { election_ms: u128, heartbeat_ms: u128 },
    #[error("--election-timeout[{0}ms] is too long, and should be set less than 50000ms")]
    ElectionLong(u128),
    #[error("--compact-hash-check-time must be >0 (set to {0})")]
    CompactHashCheckTime(String),
    #[error("--max-request-bytes must be between 1 and 1073741824 (set to {0})")]
    RequestBytes(u64),
}

impl Config {
    /// Checks the URLs to bind to.
    pub fn verify_binding(&self) -> Result<(), ConfigError> {
        for (urls, flag) in
            [(&self.listen_peer_urls, "listen-peer-urls"), (&self.listen_client_urls, "listen-client-urls")]
        {
            if urls.is_empty() {
                return Err(ConfigError::NoListener(flag));
            }
        }
        for url in self.listen_peer_urls.iter().chain(&self.listen_client_urls) {
            match url.scheme() {
                Scheme::Unix | Scheme::Unixs => return Err(ConfigError::UnixSocket(url.clone())),
                Scheme::Http | Scheme::Https if url.host() == "localhost" || url.ip().is_some() => {}
                Scheme::Http | Scheme::Https => return Err(ConfigError::BindName(url.clone())),
            }
        }
        Ok(())
    }

    /// Checks what needs neither disk nor network.
    pub fn verify(&self) -> Result<(), ConfigError> {
        self.verify_binding()?;
        let heartbeat_ms = self.heartbeat_interval.as_millis();
        let election_ms = self.election_timeout.as_millis();
        if heartbeat_ms == 0 {
            return Err(ConfigError::Heartbeat(heartbeat_ms));
        }
        if election_ms < 5 * heartbeat_ms {
            return Err(ConfigError::ElectionShort { election_ms, heartbeat_ms });
        }
        if election_ms > ELECTION_TIMEOUT_MS_MAX {
            return Err(ConfigError::ElectionLong(election_ms));
        }
        // A frame's length must fit its field, and a request its frame.
        if self.max_request_bytes == 0 || self.max_request_bytes > 1 << 30 {
            return Err(ConfigError::RequestBytes(self.max_request_bytes));
        }
        Ok(())
    }

    /// `--data-dir`, or what stands for it when it is not set.
    pub fn data_dir(&self) -> PathBuf {
        if self.data_dir.as_os_str().is_empty() {
            PathBuf::from(format!("{}.etcd", self.name))
        } else {
            self.data_dir.clone()
        }
    }

    /// `--initial-cluster`, or this member alone.
    pub fn initial_cluster(&self) -> String {
        if !self.initial_cluster.is_empty() {
            return self.initial_cluster.clone();
        }
        let alone: Vec<String> =
            self.advertise_peer_urls.iter().map(|url| format!("{}={url}", self.name)).collect();
        alone.join(",")
    }

    /// 5 s + 2 x election timeout (N3): how long a proposal may take, and a stop.
    pub fn proposal_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.election_timeout
    }

    /// The quota that counts; negative = none.
    pub fn quota_bytes(&self) -> i64 {
        if self.quota_backend_bytes == 0 { QUOTA_BYTES_DEFAULT } else { self.quota_backend_bytes }
    }

    pub(super) fn frame_bytes_max(&self) -> u32 {
        let bytes = (2 * self.max_request_bytes + FRAME_OVERHEAD_BYTES).max(4 << 20);
        u32::try_from(bytes).expect("verify bounds the request size to 1 GiB")
    }

    /// Settings that work and still deserve a word.
    pub fn warnings(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.name == "default" {
            said.push(
                "the name 'default' is not set by --name: members of one cluster need different names"
                    .to_owned(),
            );
        }
        if self.max_request_bytes > REQUEST_BYTES_RECOMMENDED_MAX {
            said.push(format!(
                "max-request-bytes {} exceeds the recommended {REQUEST_BYTES_RECOMMENDED_MAX}",
                self.max_request_bytes
            ));
        }
        if self.quota_backend_bytes > QUOTA_BYTES_RECOMMENDED_MAX {
            said.push(format!(
                "quota-backend-bytes {} exceeds the recommended {QUOTA_BYTES_RECOMMENDED_MAX}",
                self.quota_backend_bytes
            ));
        }
        said
    }

    /// The advertised peer URLs as one text.
    pub fn advertise_peer_text(&self) -> String {
        join(&self.advertise_peer_urls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Config), want: &str) {
        let mut config = Config::default();
        change(&mut config);
        let got = config.verify().map_err(|error| error.to_string());
        assert_eq!(got.err().as_deref().unwrap_or("fine"), want);
    }

    #[test]
    fn settings_are_verified_with_the_texts_of_etcd() {
        let urls = |text: &str| super::super::urls::parse_list(text).unwrap();
        check(|_| {}, "fine");
        check(
            |c| c.listen_client_urls = urls("http://example.com:1"),
            "expected IP in URL for binding (http://example.com:1)",
        );
        check(|c| c.listen_peer_urls = urls("http://:1"), "expected IP in URL for binding (http://:1)");
        check(|c| c.listen_peer_urls = urls("http://[::1]:1,http://0.0.0.0:1"), "fine");
        check(|c| c.listen_client_urls = urls("unix:///a"), "unix sockets are not served yet (unix:///a)");
        check(|c| c.heartbeat_interval = Duration::ZERO, "--heartbeat-interval must be >0 (set to 0ms)");
        check(
            |c| c.election_timeout = Duration::from_millis(1),
            "--election-timeout[1ms] should be at least as 5 times as --heartbeat-interval[100ms]",
        );
        check(
            |c| c.election_timeout = Duration::from_millis(60_000),
            "--election-timeout[60000ms] is too long, and should be set less than 50000ms",
        );
        check(|c| c.max_request_bytes = 0, "--max-request-bytes must be between 1 and 1073741824 (set to 0)");
    }

    #[test]
    fn what_is_not_set_follows_from_what_is() {
        let config = Config { name: "m1".to_owned(), ..Config::default() };
        assert_eq!(config.data_dir(), PathBuf::from("m1.etcd"));
        assert_eq!(config.initial_cluster(), "m1=http://localhost:2380");
        assert_eq!(config.quota_bytes(), 2_147_483_648);
        assert_eq!(config.proposal_timeout(), Duration::from_secs(7));
        assert_eq!(config.warnings(), [] as [String; 0]);
        let config = Config { quota_backend_bytes: 64 << 30, ..config };
        assert_eq!(config.warnings(), [] as [String; 0], "etcd warns above 8 GiB");
        let config = Config { quota_backend_bytes: (100 << 30) + 1, ..config };
        assert_eq!(config.warnings().len(), 1);
    }
}
