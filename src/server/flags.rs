//! The table of flags: etcd's server flags, each with its kind, default, use
//! and meaning. It drives parsing, variables, help and the words on flags that
//! are not served yet. Names, kinds and defaults are facts of etcd 3.7, but for
//! the group Quorate.
//! **Never** a value that was given: see `settings.rs`.

/// How a flag's value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Uint,
    Uint32,
    Int,
    Duration,
    Text,
    /// A comma list of URLs.
    Urls,
    /// `new` or `existing`.
    State,
    /// `Name=bool,...`.
    Gates,
    /// A comma list of URLs, or `*`.
    Origins,
    /// A phase of etcd's old store.
    Phase,
}

/// What Quorate does with a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Served,
    /// Etcd's own matter, or a detail of something that is refused: accepted, nothing to say.
    Moot,
    /// Not served yet, harmless to leave out: a warning when it asks for something else than the default.
    Later,
    /// Not served yet, and running without it would be unsafe: the start is refused.
    Refused,
}

/// One flag; `--name` on the command line, [`Flag::variable`] in the environment.
#[derive(Debug)]
pub struct Flag {
    pub group: &'static str,
    pub name: &'static str,
    pub kind: Kind,
    /// As text in the kind's syntax; empty = none.
    pub default: &'static str,
    pub usage: Use,
    pub meaning: &'static str,
}

impl Flag {
    /// `ETCD_` and the name in capitals.
    pub fn variable(&self) -> String {
        format!("ETCD_{}", self.name.to_ascii_uppercase().replace('-', "_"))
    }
}

/// The flag of this name, without dashes.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Switches that etcd accepts and ignores, whatever their value.
pub const IGNORED: &[&str] = &[
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "config",
    "force",
    "max-result-buffer",
    "max-retry-attempts",
    "peer-heartbeat-interval",
    "peer-election-timeout",
    "retry-interval",
    "snapshot",
    "v",
    "vv",
    "test.coverprofile",
    "test.outputdir",
];

const fn flag(
    group: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    usage: Use,
    meaning: &'static str,
) -> Flag {
    Flag { group, name, kind, default, usage, meaning }
}

/// In the order of the help text. A line is a row, so that the table stays readable.
#[rustfmt::skip]
pub static FLAGS: &[Flag] = &[
    // Member.
    flag("Member", "name", Kind::Text, "default", Use::Served, "member name shown to operators; also key of this member in initial-cluster"),
    flag("Member", "data-dir", Kind::Text, "", Use::Served, "directory holding the member's data (empty: <name>.etcd)"),
    flag("Member", "wal-dir", Kind::Text, "", Use::Later, "separate directory for the log files"),
    flag("Member", "snapshot-count", Kind::Uint, "10000", Use::Served, "applied entries between compactions of the raft log (0 = 10000)"),
    flag("Member", "snapshot-catchup-entries", Kind::Uint, "5000", Use::Served, "log entries kept for slow followers (0 = 5000)"),
    flag("Member", "heartbeat-interval", Kind::Uint, "100", Use::Served, "leader heartbeat period in ms, also the raft tick"),
    flag("Member", "election-timeout", Kind::Uint, "1000", Use::Served, "election timeout in ms; at least 5 x heartbeat, at most 50000"),
    flag("Member", "initial-election-tick-advance", Kind::Bool, "true", Use::Moot, "shorten the first election wait at boot"),
    flag("Member", "listen-peer-urls", Kind::Urls, "http://localhost:2380", Use::Served, "addresses for peer traffic"),
    flag("Member", "listen-client-urls", Kind::Urls, "http://localhost:2379", Use::Served, "addresses for client gRPC and HTTP"),
    flag("Member", "listen-client-http-urls", Kind::Urls, "", Use::Refused, "HTTP-only addresses; when set, listen-client-urls serve gRPC only (plain HTTP there: connection reset)"),
    flag("Member", "max-snapshots", Kind::Uint, "5", Use::Moot, "snapshot files kept; deprecated, without effect"),
    flag("Member", "max-wals", Kind::Uint, "5", Use::Moot, "log files kept, 0 = all"),
    flag("Member", "memory-mlock", Kind::Bool, "false", Use::Later, "lock process memory in RAM"),
    flag("Member", "quota-backend-bytes", Kind::Int, "0", Use::Served, "storage quota on the bytes of the store; 0 = 2 GiB, negative = none"),
    flag("Member", "backend-bbolt-freelist-type", Kind::Text, "", Use::Moot, "free-page list kind of the storage file"),
    flag("Member", "backend-batch-interval", Kind::Duration, "0s", Use::Later, "max time between storage commits"),
    flag("Member", "backend-batch-limit", Kind::Int, "0", Use::Later, "max operations between storage commits"),
    flag("Member", "max-txn-ops", Kind::Uint, "128", Use::Served, "max operations per txn branch"),
    flag("Member", "max-request-bytes", Kind::Uint, "1572864", Use::Served, "max encoded request size"),
    flag("Member", "max-concurrent-streams", Kind::Uint32, "4294967295", Use::Served, "HTTP/2 streams per client connection"),
    flag("Member", "grpc-keepalive-min-time", Kind::Duration, "5s", Use::Later, "fastest client ping rate tolerated"),
    flag("Member", "grpc-keepalive-interval", Kind::Duration, "2h0m0s", Use::Served, "server ping period, 0 = off"),
    flag("Member", "grpc-keepalive-timeout", Kind::Duration, "20s", Use::Served, "wait for the ping answer before closing, 0 = off"),
    flag("Member", "socket-reuse-port", Kind::Bool, "false", Use::Later, "SO_REUSEPORT on listeners"),
    flag("Member", "socket-reuse-address", Kind::Bool, "false", Use::Later, "SO_REUSEADDR on listeners"),
    flag("Member", "enable-grpc-gateway", Kind::Bool, "true", Use::Served, "serve the JSON API under /v3/"),
    flag("Member", "raft-read-timeout", Kind::Duration, "5s", Use::Later, "read timeout of peer connections"),
    flag("Member", "raft-write-timeout", Kind::Duration, "5s", Use::Later, "write timeout of peer connections"),
    flag("Member", "feature-gates", Kind::Gates, "", Use::Served, "switch features: Name=true|false, comma list"),
    flag("Member", "config-file", Kind::Text, "", Use::Refused, "read everything from this YAML/JSON file"),
    flag("Member", "version", Kind::Bool, "false", Use::Served, "print version lines and exit 0"),
    // Clustering.
    flag("Clustering", "initial-advertise-peer-urls", Kind::Urls, "http://localhost:2380", Use::Served, "peer URLs told to the cluster"),
    flag("Clustering", "initial-cluster", Kind::Text, "", Use::Served, "bootstrap members: name=url,... (empty: this member alone)"),
    flag("Clustering", "initial-cluster-state", Kind::State, "new", Use::Served, "bootstrap mode: new or existing"),
    flag("Clustering", "initial-cluster-token", Kind::Text, "etcd-cluster", Use::Served, "salt of cluster and member IDs"),
    flag("Clustering", "advertise-client-urls", Kind::Urls, "http://localhost:2379", Use::Served, "client URLs told to others"),
    flag("Clustering", "discovery-token", Kind::Text, "", Use::Refused, "v3 discovery token"),
    flag("Clustering", "discovery-endpoints", Kind::Text, "", Use::Refused, "v3 discovery service endpoints"),
    flag("Clustering", "discovery-dial-timeout", Kind::Duration, "2s", Use::Moot, "v3 discovery dial timeout"),
    flag("Clustering", "discovery-request-timeout", Kind::Duration, "5s", Use::Moot, "v3 discovery request timeout"),
    flag("Clustering", "discovery-keepalive-time", Kind::Duration, "2s", Use::Moot, "v3 discovery ping period"),
    flag("Clustering", "discovery-keepalive-timeout", Kind::Duration, "6s", Use::Moot, "v3 discovery ping timeout"),
    flag("Clustering", "discovery-insecure-transport", Kind::Bool, "true", Use::Moot, "v3 discovery without TLS"),
    flag("Clustering", "discovery-insecure-skip-tls-verify", Kind::Bool, "false", Use::Refused, "v3 discovery: accept any server certificate"),
    flag("Clustering", "discovery-cert", Kind::Text, "", Use::Refused, "v3 discovery client certificate"),
    flag("Clustering", "discovery-key", Kind::Text, "", Use::Refused, "v3 discovery client key"),
    flag("Clustering", "discovery-cacert", Kind::Text, "", Use::Refused, "v3 discovery CA bundle"),
    flag("Clustering", "discovery-user", Kind::Text, "", Use::Refused, "v3 discovery user name"),
    flag("Clustering", "discovery-password", Kind::Text, "", Use::Refused, "v3 discovery password"),
    flag("Clustering", "discovery-fallback", Kind::Text, "exit", Use::Moot, "what to do when discovery fails"),
    flag("Clustering", "discovery-srv", Kind::Text, "", Use::Refused, "DNS domain for SRV bootstrap"),
    flag("Clustering", "discovery-srv-name", Kind::Text, "", Use::Refused, "suffix of the SRV service name"),
    flag("Clustering", "strict-reconfig-check", Kind::Bool, "true", Use::Later, "refuse membership changes that endanger quorum"),
    flag("Clustering", "pre-vote", Kind::Bool, "true", Use::Served, "raft pre-vote phase"),
    flag("Clustering", "auto-compaction-retention", Kind::Text, "0", Use::Served, "history kept; 0 = off; bare number = hours (periodic) or revisions"),
    flag("Clustering", "auto-compaction-mode", Kind::Text, "periodic", Use::Served, "meaning of the retention value: periodic or revision"),
    flag("Clustering", "v2-deprecation", Kind::Phase, "write-only", Use::Moot, "phase of etcd's old store; deprecated, without effect"),
    flag("Clustering", "max-learners", Kind::Int, "1", Use::Later, "learners allowed in the cluster; negative: start fails"),
    // Security.
    flag("Security", "cert-file", Kind::Text, "", Use::Refused, "server certificate for clients"),
    flag("Security", "key-file", Kind::Text, "", Use::Refused, "server key for clients"),
    flag("Security", "client-cert-auth", Kind::Bool, "false", Use::Refused, "require and verify client certificates"),
    flag("Security", "client-cert-file", Kind::Text, "", Use::Moot, "certificate used when the server itself dials as a client"),
    flag("Security", "client-key-file", Kind::Text, "", Use::Moot, "key for the above"),
    flag("Security", "client-crl-file", Kind::Text, "", Use::Refused, "revocation list for client certificates"),
    flag("Security", "client-cert-allowed-hostname", Kind::Text, "", Use::Refused, "SAN host names accepted in client certificates"),
    flag("Security", "trusted-ca-file", Kind::Text, "", Use::Refused, "CA for client certificates"),
    flag("Security", "auto-tls", Kind::Bool, "false", Use::Refused, "self-made certificate for clients"),
    flag("Security", "peer-cert-file", Kind::Text, "", Use::Refused, "peer server certificate"),
    flag("Security", "peer-key-file", Kind::Text, "", Use::Refused, "peer server key"),
    flag("Security", "peer-client-cert-auth", Kind::Bool, "false", Use::Refused, "require and verify peer client certificates"),
    flag("Security", "peer-client-cert-file", Kind::Text, "", Use::Refused, "certificate for dialing peers"),
    flag("Security", "peer-client-key-file", Kind::Text, "", Use::Refused, "key for the above"),
    flag("Security", "peer-trusted-ca-file", Kind::Text, "", Use::Refused, "CA for peers"),
    flag("Security", "peer-cert-allowed-cn", Kind::Text, "", Use::Refused, "CNs accepted from peers"),
    flag("Security", "peer-cert-allowed-hostname", Kind::Text, "", Use::Refused, "SAN host names accepted from peers"),
    flag("Security", "peer-auto-tls", Kind::Bool, "false", Use::Refused, "self-made certificate for peers"),
    flag("Security", "peer-crl-file", Kind::Text, "", Use::Refused, "revocation list for peer certificates"),
    flag("Security", "peer-skip-client-san-verification", Kind::Bool, "false", Use::Later, "do not check SAN of peer client certificates"),
    flag("Security", "self-signed-cert-validity", Kind::Uint, "1", Use::Moot, "lifetime of self-made certificates"),
    flag("Security", "cipher-suites", Kind::Text, "", Use::Moot, "allowed TLS suites (Go names); not allowed with tls-min-version TLS1.3"),
    flag("Security", "cors", Kind::Origins, "*", Use::Served, "allowed web origins, comma list; * = all"),
    flag("Security", "host-whitelist", Kind::Text, "*", Use::Refused, "Host headers allowed on plain HTTP"),
    flag("Security", "tls-min-version", Kind::Text, "TLS1.2", Use::Moot, "lowest TLS version"),
    flag("Security", "tls-max-version", Kind::Text, "", Use::Moot, "highest TLS version"),
    // Auth.
    flag("Auth", "auth-token", Kind::Text, "simple", Use::Refused, "token kind: simple | jwt,sign-method=M,pub-key=F,priv-key=F,ttl=D"),
    flag("Auth", "bcrypt-cost", Kind::Uint, "10", Use::Later, "password hash cost"),
    flag("Auth", "auth-token-ttl", Kind::Uint, "300", Use::Later, "lifetime of simple tokens"),
    // Profiling and monitoring.
    flag("Profiling and monitoring", "enable-pprof", Kind::Bool, "false", Use::Later, "serve /debug/pprof/"),
    flag("Profiling and monitoring", "metrics", Kind::Text, "basic", Use::Later, "extensive adds gRPC latency histograms"),
    flag("Profiling and monitoring", "listen-metrics-urls", Kind::Urls, "", Use::Later, "extra addresses for /metrics, /health, /livez, /readyz"),
    flag("Profiling and monitoring", "warning-unary-request-duration", Kind::Duration, "300ms", Use::Later, "warn about slower unary calls"),
    flag("Profiling and monitoring", "warning-apply-duration", Kind::Duration, "100ms", Use::Later, "warn about slower applies"),
    // Logging.
    flag("Logging", "logger", Kind::Text, "zap", Use::Served, "only zap"),
    flag("Logging", "log-outputs", Kind::Text, "default", Use::Served, "log targets, comma list: default, stderr, stdout, or a path"),
    flag("Logging", "log-level", Kind::Text, "info", Use::Served, "debug, info, warn, error, panic or fatal"),
    flag("Logging", "log-format", Kind::Text, "json", Use::Served, "json or console"),
    flag("Logging", "enable-log-rotation", Kind::Bool, "false", Use::Later, "rotate a single log file"),
    flag("Logging", "log-rotation-config-json", Kind::Text, "{\"maxsize\": 100, \"maxage\": 0, \"maxbackups\": 0, \"localtime\": false, \"compress\": false}", Use::Later, "rotation settings"),
    // Distributed tracing.
    flag("Distributed tracing", "enable-distributed-tracing", Kind::Bool, "false", Use::Later, "export OpenTelemetry spans"),
    flag("Distributed tracing", "distributed-tracing-address", Kind::Text, "localhost:4317", Use::Later, "trace collector address"),
    flag("Distributed tracing", "distributed-tracing-service-name", Kind::Text, "etcd", Use::Later, "trace service name"),
    flag("Distributed tracing", "distributed-tracing-instance-id", Kind::Text, "", Use::Later, "trace instance id"),
    flag("Distributed tracing", "distributed-tracing-sampling-rate", Kind::Int, "0", Use::Later, "trace sampling"),
    // Checks and background work.
    flag("Checks and background work", "corrupt-check-time", Kind::Duration, "0s", Use::Served, "period of cross-member hash checks by the leader, 0 = off"),
    flag("Checks and background work", "compact-hash-check-time", Kind::Duration, "1m0s", Use::Served, "period of compaction hash checks (needs feature CompactHashCheck)"),
    flag("Checks and background work", "compaction-batch-limit", Kind::Int, "0", Use::Moot, "revisions removed per compaction batch; here old records go in steps of under a millisecond that hold up nobody"),
    flag("Checks and background work", "compaction-sleep-interval", Kind::Duration, "0s", Use::Moot, "pause between compaction batches; here requests pass between any two steps"),
    flag("Checks and background work", "watch-progress-notify-interval", Kind::Duration, "0s", Use::Later, "period of watch progress replies (+ up to 10% jitter)"),
    flag("Checks and background work", "downgrade-check-time", Kind::Duration, "5s", Use::Later, "period of downgrade completion checks, 0 = off"),
    flag("Checks and background work", "bootstrap-defrag-threshold-megabytes", Kind::Uint, "0", Use::Served, "clean the store at start if that frees at least this much (requests are served meanwhile), 0 = off"),
    // What etcd does not have.
    flag("Quorate", "backend-cache-bytes", Kind::Uint, "33554432", Use::Served, "memory for pages of the store read back from disk"),
    flag("Quorate", "scrub-interval", Kind::Duration, "24h0m0s", Use::Served, "time in which every page on disk is read and checked once, 0 = off"),
    // Unsafe.
    flag("Unsafe", "force-new-cluster", Kind::Bool, "false", Use::Refused, "restart as a one-member cluster"),
    flag("Unsafe", "unsafe-no-fsync", Kind::Bool, "false", Use::Later, "skip fsync"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::values::Value;

    #[test]
    fn names_are_unique_and_defaults_parse() {
        for (at, flag) in FLAGS.iter().enumerate() {
            assert!(FLAGS[..at].iter().all(|other| other.name != flag.name), "{} twice", flag.name);
            assert!(!IGNORED.contains(&flag.name));
            assert!(
                flag.default.is_empty() || Value::parse(flag.kind, flag.default).is_ok(),
                "{}",
                flag.name
            );
        }
        let of_etcd = FLAGS.iter().filter(|flag| flag.group != "Quorate").count();
        assert_eq!(of_etcd, 113, "etcd 3.7 has 113 flags");
    }

    #[test]
    fn variables_follow_from_names() {
        assert_eq!(find("max-txn-ops").unwrap().variable(), "ETCD_MAX_TXN_OPS");
    }
}
