//! From the command line and `ETCD_*` variables to a [`Config`].
//!
//! Owns their precedence as etcd has it: a flag and its variable together are
//! an error, an empty variable counts as unset, an unknown one is a warning.
//! What deserves a word is kept as [`Notice`], since logging is not set up yet.
//! **Never** reads the real environment itself: it is handed in.

use super::command_line::CommandLine;
use super::compactor::Retention;
use super::config::{ClusterState, Config, ConfigError};
use super::corruption::Checks;
use super::features::Features;
use super::flags::{self, FLAGS, Flag, Use};
use super::logging;
use super::urls::Url;
use super::values::{Value, duration_text};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Settings that were given, by flag.
#[derive(Debug, Default)]
pub struct Settings {
    given: BTreeMap<&'static str, Value>,
    pub notices: Vec<Notice>,
}

/// A warning to log once logging stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    UnknownVariable(String),
    SpecialVariable {
        key: String,
        value: String,
    },
    Deprecated(&'static str),
    Later(&'static str),
    /// A feature that was switched and means nothing here yet.
    Feature(&'static str),
}

/// Why settings make no member; exit code 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A flag and its variable are both set; the field is the variable.
    #[error(
        "conflicting environment variable is shadowed by corresponding command-line flag (either unset environment variable or disable flag)"
    )]
    Conflict(String),
    #[error("{0:?} is not a valid flag")]
    Word(String),
    #[error("invalid value {value:?} for {variable}: {what}")]
    BadVariable { variable: String, value: String, what: String },
    #[error("--{0} is not served yet by Quorate, and running without it would be unsafe")]
    Refused(&'static str),
    #[error("unknown logger option {0:?}")]
    Logger(String),
    #[error("unknown auto-compaction-mode {0:?}")]
    CompactionMode(String),
    #[error("{0}")]
    Retention(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Logging(#[from] logging::OptionsError),
}

/// A variable that etcd knows although no flag has it; it matters on odd processors only.
const ARCHITECTURE_VARIABLE: &str = "ETCD_UNSUPPORTED_ARCH";

impl Settings {
    /// Joins a command line with the environment's variables.
    pub fn gather(line: &CommandLine, variables: &[(String, String)]) -> Result<Settings, SettingsError> {
        if let Some(word) = line.words.first() {
            return Err(SettingsError::Word(word.clone()));
        }
        let mut settings = Settings::default();
        for (flag, value) in &line.given {
            settings.given.insert(flag.name, value.clone());
        }
        let ours: BTreeMap<&str, &str> = variables
            .iter()
            .filter(|(key, value)| key.starts_with("ETCD_") && !value.is_empty())
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let by_variable: BTreeMap<String, &'static Flag> =
            FLAGS.iter().filter(|flag| flag.name != "version").map(|flag| (flag.variable(), flag)).collect();
        for (key, value) in &ours {
            let Some(flag) = by_variable.get(*key) else { continue };
            if settings.given.contains_key(flag.name) {
                return Err(SettingsError::Conflict((*key).to_owned()));
            }
            let value = Value::parse(flag.kind, value).map_err(|what| SettingsError::BadVariable {
                variable: (*key).to_owned(),
                value: (*value).to_owned(),
                what,
            })?;
            settings.given.insert(flag.name, value);
        }
        if let Some(value) = ours.get("ETCD_VERSION") {
            let (key, value) = ("ETCD_VERSION".to_owned(), (*value).to_owned());
            settings.notices.push(Notice::SpecialVariable { key, value });
        }
        for (key, value) in &ours {
            let known =
                by_variable.contains_key(*key) || ["ETCD_VERSION", ARCHITECTURE_VARIABLE].contains(key);
            if !known {
                settings.notices.push(Notice::UnknownVariable(format!("{key}={value}")));
            }
        }
        settings.note_flags();
        Ok(settings)
    }

    fn note_flags(&mut self) {
        for name in ["max-snapshots", "v2-deprecation"] {
            if self.given.contains_key(name) {
                self.notices.push(Notice::Deprecated(name));
            }
        }
        for flag in FLAGS.iter().filter(|flag| flag.usage == Use::Later) {
            if self.differs(flag) {
                self.notices.push(Notice::Later(flag.name));
            }
        }
        let features = Features::parse(&self.text("feature-gates")).expect("the value was parsed before");
        self.notices.extend(features.unserved().map(Notice::Feature));
    }

    /// Whether a flag asks for something else than its default.
    fn differs(&self, flag: &Flag) -> bool {
        match self.given.get(flag.name) {
            None => false,
            Some(Value::Text(text)) => !text.is_empty() && text != flag.default,
            Some(Value::Urls(urls)) => !urls.is_empty(),
            Some(value) => Value::parse(flag.kind, flag.default).as_ref() != Ok(value),
        }
    }

    fn value(&self, name: &str) -> Value {
        if let Some(value) = self.given.get(name) {
            return value.clone();
        }
        let flag = flags::find(name).expect("the code asks only for flags of the table");
        Value::parse(flag.kind, flag.default).expect("a test parses every default")
    }

    fn text(&self, name: &str) -> String {
        match self.value(name) {
            Value::Text(text) => text,
            other => unreachable!("--{name} is text in the table, not {other:?}"),
        }
    }

    fn number(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Uint(number) => number,
            other => unreachable!("--{name} is a number in the table, not {other:?}"),
        }
    }

    fn urls(&self, name: &str) -> Vec<Url> {
        match self.value(name) {
            Value::Urls(urls) => urls,
            other => unreachable!("--{name} is a list of URLs in the table, not {other:?}"),
        }
    }

    /// Negative durations mean none, as in etcd.
    fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Value::DurationNs(ns) => Duration::from_nanos(ns.try_into().unwrap_or(0)),
            other => unreachable!("--{name} is a duration in the table, not {other:?}"),
        }
    }

    fn switch(&self, name: &str) -> bool {
        self.value(name) == Value::Bool(true)
    }

    /// Whether `--version` was given.
    pub fn version(&self) -> bool {
        self.switch("version")
    }

    /// `--log-level`, `--log-format`, `--log-outputs`.
    pub fn logging(&self) -> Result<logging::Options, SettingsError> {
        let logger = self.text("logger");
        if logger != "zap" {
            return Err(SettingsError::Logger(logger));
        }
        let (level, format) = (self.text("log-level"), self.text("log-format"));
        Ok(logging::Options::parse(&level, &format, &self.text("log-outputs"))?)
    }

    /// The member's settings, verified as far as neither disk nor network is needed.
    pub fn config(&self) -> Result<Config, SettingsError> {
        let bootstraps = ["initial-cluster", "discovery-endpoints", "discovery-srv"];
        if bootstraps.iter().filter(|name| !self.text(name).is_empty()).count() > 1 {
            return Err(ConfigError::ManyBootstraps.into());
        }
        for flag in FLAGS.iter().filter(|flag| flag.usage == Use::Refused) {
            if self.differs(flag) {
                return Err(SettingsError::Refused(flag.name));
            }
        }
        let config = self.build()?;
        config.verify_binding()?;
        if self.given.contains_key("listen-client-urls") && !self.given.contains_key("advertise-client-urls")
        {
            return Err(ConfigError::AdvertiseMissing.into());
        }
        config.verify()?;
        Ok(config)
    }

    /// `None`: no automatic compaction.
    fn auto_compaction(&self) -> Result<Option<Retention>, SettingsError> {
        let mode = self.text("auto-compaction-mode");
        if !["periodic", "revision", ""].contains(&mode.as_str()) {
            return Err(SettingsError::CompactionMode(mode));
        }
        Retention::parse(&mode, &self.text("auto-compaction-retention")).map_err(SettingsError::Retention)
    }

    fn checks(&self, features: &Features) -> Result<Checks, SettingsError> {
        let compact_hash_interval = self.duration("compact-hash-check-time");
        if compact_hash_interval.is_zero() {
            let given = match self.value("compact-hash-check-time") {
                Value::DurationNs(ns) if ns < 0 => format!("-{}", duration_text(ns.unsigned_abs())),
                _ => duration_text(0),
            };
            return Err(ConfigError::CompactHashCheckTime(given).into());
        }
        Ok(Checks {
            at_start: features.is_on("InitialCorruptCheck"),
            interval: self.duration("corrupt-check-time"),
            compact_hash_interval: if features.is_on("CompactHashCheck") {
                compact_hash_interval
            } else {
                Duration::ZERO
            },
        })
    }

    fn build(&self) -> Result<Config, SettingsError> {
        let features = Features::parse(&self.text("feature-gates")).expect("the value was parsed before");
        let or_default = |number: u64, default: u64| if number == 0 { default } else { number };
        let defaults = Config::default();
        let keepalive_interval = self.duration("grpc-keepalive-interval");
        Ok(Config {
            name: self.text("name"),
            data_dir: PathBuf::from(self.text("data-dir")),
            listen_peer_urls: self.urls("listen-peer-urls"),
            listen_client_urls: self.urls("listen-client-urls"),
            advertise_peer_urls: self.urls("initial-advertise-peer-urls"),
            advertise_client_urls: self.urls("advertise-client-urls"),
            initial_cluster: self.text("initial-cluster"),
            initial_cluster_state: if self.text("initial-cluster-state") == "existing" {
                ClusterState::Existing
            } else {
                ClusterState::New
            },
            initial_cluster_token: self.text("initial-cluster-token"),
            heartbeat_interval: Duration::from_millis(self.number("heartbeat-interval")),
            election_timeout: Duration::from_millis(self.number("election-timeout")),
            snapshot_count: or_default(self.number("snapshot-count"), defaults.snapshot_count),
            snapshot_catchup_entries: or_default(
                self.number("snapshot-catchup-entries"),
                defaults.snapshot_catchup_entries,
            ),
            max_txn_ops: self.number("max-txn-ops"),
            max_request_bytes: self.number("max-request-bytes"),
            quota_backend_bytes: match self.value("quota-backend-bytes") {
                Value::Int(bytes) => bytes,
                other => unreachable!("--quota-backend-bytes is a number in the table, not {other:?}"),
            },
            auto_compaction: self.auto_compaction()?,
            checks: self.checks(&features)?,
            features,
            bootstrap_defragment_bytes: self
                .number("bootstrap-defrag-threshold-megabytes")
                .saturating_mul(1 << 20),
            store: crate::store::Options {
                cache_bytes: self.number("backend-cache-bytes"),
                scrub_interval: self.duration("scrub-interval"),
                ..defaults.store
            },
            pre_vote: self.switch("pre-vote"),
            grpc_gateway: self.switch("enable-grpc-gateway"),
            cors: match self.text("cors").as_str() {
                "" | "*" => defaults.cors,
                origins => origins.split(',').map(|origin| origin.trim().to_owned()).collect(),
            },
            http: crate::env::net::HttpOptions {
                keepalive_interval: (!keepalive_interval.is_zero()).then_some(keepalive_interval),
                keepalive_timeout: self.duration("grpc-keepalive-timeout"),
                streams_max: u32::try_from(self.number("max-concurrent-streams"))
                    .expect("values of this kind are below 2^32"),
                ..defaults.http
            },
            ..defaults
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(args: &[&str], variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let variables: Vec<_> = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Settings::gather(&CommandLine::parse(&args).unwrap(), &variables)
    }

    /// `want`: the error's text, or "fine".
    fn check(args: &[&str], variables: &[(&str, &str)], want: &str) {
        let got = gather(args, variables).and_then(|settings| settings.config()).map_err(|e| e.to_string());
        assert_eq!(got.err().as_deref().unwrap_or("fine"), want, "{args:?} {variables:?}");
    }

    #[test]
    fn flags_and_variables_make_a_config() {
        let args = ["--name=a", "--data-dir=/d", "--heartbeat-interval=50", "--grpc-keepalive-interval=0"];
        let variables = [("ETCD_MAX_TXN_OPS", "2"), ("ETCD_SNAPSHOT_COUNT", "0"), ("ETCD_PRE_VOTE", "false")];
        let config = gather(&args, &variables).unwrap().config().unwrap();
        assert_eq!((config.name.as_str(), config.data_dir.as_path()), ("a", std::path::Path::new("/d")));
        assert_eq!(config.heartbeat_interval, Duration::from_millis(50));
        assert_eq!((config.max_txn_ops, config.snapshot_count, config.pre_vote), (2, 10_000, false));
        assert_eq!(config.http.keepalive_interval, None);
        let args = [
            "--auto-compaction-mode=revision",
            "--auto-compaction-retention=7",
            "--corrupt-check-time=1m",
            "--feature-gates=InitialCorruptCheck=true",
            "--bootstrap-defrag-threshold-megabytes=3",
            "--backend-cache-bytes=5",
            "--scrub-interval=1h",
        ];
        let config = gather(&args, &[]).unwrap().config().unwrap();
        assert_eq!(config.auto_compaction, Some(Retention::Revisions(7)));
        let checks = Checks {
            at_start: true,
            interval: Duration::from_secs(60),
            compact_hash_interval: Duration::ZERO,
        };
        assert_eq!(config.checks, checks);
        assert_eq!((config.bootstrap_defragment_bytes, config.store.cache_bytes), (3 << 20, 5));
        assert_eq!(config.store.scrub_interval, Duration::from_secs(3600));
        let config = gather(&["--feature-gates=CompactHashCheck=true"], &[]).unwrap().config().unwrap();
        assert_eq!(config.checks.compact_hash_interval, Duration::from_secs(60));
        let args = ["--cors=http://a:1, http://b:2", "--enable-grpc-gateway=false"];
        let config = gather(&args, &[]).unwrap().config().unwrap();
        assert_eq!(
            (config.cors, config.grpc_gateway),
            (vec!["http://a:1".to_owned(), "http://b:2".to_owned()], false)
        );
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_config() {
        let config = gather(&[], &[]).unwrap().config().unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
    }

    #[test]
    fn mistakes_have_the_texts_of_etcd() {
        check(&["foo"], &[], "\"foo\" is not a valid flag");
        check(
            &["--name=y"],
            &[("ETCD_NAME", "y")],
            "conflicting environment variable is shadowed by corresponding command-line flag (either unset environment variable or disable flag)",
        );
        check(&["--name=y"], &[("ETCD_NAME", "")], "fine");
        check(
            &[],
            &[("ETCD_HEARTBEAT_INTERVAL", "zz")],
            "invalid value \"zz\" for ETCD_HEARTBEAT_INTERVAL: parse error",
        );
        check(
            &["--listen-client-urls=http://127.0.0.1:1"],
            &[],
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        );
        check(
            &["--listen-client-urls=http://example.com:1"],
            &[],
            "expected IP in URL for binding (http://example.com:1)",
        );
        check(
            &["--discovery-srv=x", "--initial-cluster=a=http://1.1.1.1:1"],
            &[],
            "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \"discovery-endpoints\" or \"discovery-srv\"",
        );
        check(
            &["--election-timeout=100"],
            &[],
            "--election-timeout[100ms] should be at least as 5 times as --heartbeat-interval[100ms]",
        );
        check(&["--auto-compaction-mode=x"], &[], "unknown auto-compaction-mode \"x\"");
        check(
            &["--auto-compaction-retention=x"],
            &[],
            "error parsing auto-compaction-retention: invalid duration \"x\"",
        );
        check(&["--compact-hash-check-time=0"], &[], "--compact-hash-check-time must be >0 (set to 0s)");
    }

    #[test]
    fn what_would_be_unsafe_to_leave_out_is_refused() {
        for flag in ["cert-file=c", "auth-token=jwt", "force-new-cluster", "discovery-srv=x", "config-file=f"]
        {
            let name = flag.split('=').next().unwrap();
            let want =
                format!("--{name} is not served yet by Quorate, and running without it would be unsafe");
            check(&[&format!("--{flag}")], &[], &want);
        }
        check(&["--auth-token=simple", "--host-whitelist=*", "--force-new-cluster=false"], &[], "fine");
        check(
            &[],
            &[("ETCD_CONFIG_FILE", "f")],
            "--config-file is not served yet by Quorate, and running without it would be unsafe",
        );
    }

    #[test]
    fn what_is_harmless_to_leave_out_is_a_notice() {
        let notices = |args: &[&str], variables: &[(&str, &str)]| gather(args, variables).unwrap().notices;
        assert_eq!(notices(&["--metrics=basic", "--max-learners=1"], &[]), []);
        assert_eq!(notices(&["--metrics=extensive"], &[]), [Notice::Later("metrics")]);
        let gates = ["--feature-gates=CompactHashCheck=true,PriorityRequest=true"];
        assert_eq!(notices(&gates, &[]), [Notice::Feature("PriorityRequest")]);
        assert_eq!(notices(&["--max-snapshots=5"], &[]), [Notice::Deprecated("max-snapshots")]);
        let odd =
            [("ETCD_FOO", "x"), ("ETCD_VERSION", "true"), ("ETCD_UNSUPPORTED_ARCH", "z"), ("HOME", "/")];
        assert_eq!(
            notices(&[], &odd),
            [
                Notice::SpecialVariable { key: "ETCD_VERSION".to_owned(), value: "true".to_owned() },
                Notice::UnknownVariable("ETCD_FOO=x".to_owned()),
            ]
        );
    }
}
