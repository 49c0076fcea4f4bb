//! What `/metrics` shows, under etcd's names, one registry for each member.
//!
//! Counts on a request's path are plain atomics found by number; what the
//! member knows itself (revision, sizes, term ...) is read when scraped.
//! Source of names, types and buckets: `tests/facts/metrics.tsv`.

mod text;

use super::{Backend, ETCD_VERSION, Settings, errors::CODE_NAMES, grpc::Methods, service::has_leader};
use crate::{env::process, replica::Observer, store::Meter};
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, TextEncoder,
    core::{Collector, Desc},
    exponential_buckets,
    proto::{MetricFamily, MetricType},
};
use quorate_proto::etcdserverpb::AlarmType;
use std::sync::{
    Arc, OnceLock, RwLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use text::{family, gauge, labelled, sample};

/// Kinds of entries, as `etcd_server_apply_duration_seconds` names them; the last stands for all others.
const KINDS: [&str; 12] = [
    "Range",
    "Put",
    "DeleteRange",
    "Txn",
    "Compaction",
    "LeaseGrant",
    "LeaseRevoke",
    "LeaseCheckpoint",
    "Alarm",
    "ClusterVersionSet",
    "ClusterMemberAttrSet",
    "unknown",
];

/// Distinct `client-api-version` values counted one by one (I10); the rest count as `other`.
const CLIENT_VERSIONS_MAX: usize = 32;

/// Bytes of a `client-api-version` that are kept.
const CLIENT_VERSION_BYTES_MAX: usize = 32;

/// The counts of one member.
pub struct Metrics {
    registry: Registry,
    log_sync: Histogram,
    store_commit: Histogram,
    /// By kind, then success.
    applies: [[OnceLock<Histogram>; 2]; KINDS.len()],
    pub(super) hash_by_revision: Histogram,
    pub(super) defragment: Histogram,
    compaction_total: Histogram,
    compaction_pause: Histogram,
    defragment_inflight: IntGauge,
    pub(super) health_success: IntCounter,
    pub(super) health_failures: IntCounter,
    pub(super) grpc: Arc<GrpcCounts>,
    /// (streaming, version, calls), in order of first sight.
    clients: RwLock<Vec<(bool, String, AtomicU64)>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let registry = Registry::new();
        let grpc = Arc::new(GrpcCounts::new());
        register(&registry, Box::new(SharedCounts(grpc.clone())));
        let histogram_of = |name: &str, (start, count): (f64, usize), help: &str| {
            let buckets = exponential_buckets(start, 2.0, count).expect("the arguments are positive");
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))
                .expect("name and buckets are valid");
            register(&registry, Box::new(histogram.clone()));
            histogram
        };
        let histogram = |name: &str, help: &str| histogram_of(name, (0.001, 14), help);
        let defragment_inflight =
            IntGauge::new("etcd_disk_defrag_inflight", "Cleanings on request that are under way.")
                .expect("the name is valid");
        register(&registry, Box::new(defragment_inflight.clone()));
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help).expect("the name is valid");
            register(&registry, Box::new(counter.clone()));
            counter
        };
        Metrics {
            log_sync: histogram(
                "etcd_disk_wal_fsync_duration_seconds",
                "The latency distributions of syncs of the raft log.",
            ),
            store_commit: histogram(
                "etcd_disk_backend_commit_duration_seconds",
                "The latency distributions of commits of the store.",
            ),
            applies: Default::default(),
            hash_by_revision: histogram_of(
                "etcd_mvcc_hash_rev_duration_seconds",
                (0.01, 15),
                "The latency distributions of hashes by revision.",
            ),
            defragment: histogram_of(
                "etcd_disk_backend_defrag_duration_seconds",
                (0.1, 13),
                "The latency distributions of cleanings on request.",
            ),
            compaction_total: histogram_of(
                "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
                (100.0, 14),
                "The latency distributions of physical compactions.",
            ),
            compaction_pause: histogram_of(
                "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
                (1.0, 13),
                "How long steps of physical compactions held up others.",
            ),
            defragment_inflight,
            health_success: counter("etcd_server_health_success", "Answers of /health that were true."),
            health_failures: counter("etcd_server_health_failures", "Answers of /health that were false."),
            grpc,
            clients: RwLock::default(),
            registry,
        }
    }

    /// Counts a cleaning until what it returns is dropped.
    pub(super) fn defragment_begins(&self) -> Inflight {
        self.defragment_inflight.inc();
        Inflight(self.defragment_inflight.clone())
    }

    /// Counts a call by the client's version.
    pub(super) fn client_request(&self, streaming: bool, version: &str) {
        let find = |clients: &[(bool, String, AtomicU64)]| {
            clients.iter().position(|(kind, known, _)| *kind == streaming && known == version)
        };
        {
            let clients = self.clients.read().expect("no panic while it is locked");
            if let Some(place) = find(&clients) {
                clients[place].2.fetch_add(1, Relaxed);
                return;
            }
        }
        let mut clients = self.clients.write().expect("no panic while it is locked");
        let full = clients.len() >= CLIENT_VERSIONS_MAX || version.len() > CLIENT_VERSION_BYTES_MAX;
        let version = if full { "other" } else { version };
        let place = clients.iter().position(|(kind, known, _)| *kind == streaming && known == version);
        match place {
            Some(place) => clients[place].2.fetch_add(1, Relaxed),
            None => {
                clients.push((streaming, version.to_owned(), AtomicU64::new(1)));
                0
            }
        };
        assert!(clients.len() <= CLIENT_VERSIONS_MAX + 2, "the list of client versions is bounded");
    }

    fn apply_histogram(&self, kind: &str, success: bool) -> &Histogram {
        let place = KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len() - 1);
        self.applies[place][usize::from(success)].get_or_init(|| {
            let options = HistogramOpts::new(
                "etcd_server_apply_duration_seconds",
                "The latency distributions of applying entries.",
            )
            .buckets(exponential_buckets(0.0001, 2.0, 20).expect("the arguments are positive"))
            .const_label("version", "v3")
            .const_label("op", KINDS[place])
            .const_label("success", if success { "true" } else { "false" });
            Histogram::with_opts(options).expect("name and buckets are valid")
        })
    }

    /// Everything, in the text format of Prometheus.
    pub(super) fn render<B: Backend>(&self, backend: &B, settings: &Settings) -> Vec<u8> {
        let mut families = self.registry.gather();
        families.extend(self.apply_family());
        families.extend(self.client_family());
        families.extend(member_families(backend, settings));
        families.extend(feature_family(settings));
        families.extend(process::read().map(text::process_families).unwrap_or_default());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        let mut out = Vec::with_capacity(64 * 1024);
        TextEncoder::new().encode(&families, &mut out).expect("memory takes every write");
        out
    }

    fn apply_family(&self) -> Option<MetricFamily> {
        let mut collected: Vec<MetricFamily> =
            self.applies.iter().flatten().filter_map(OnceLock::get).flat_map(Collector::collect).collect();
        let metrics = collected.iter_mut().flat_map(MetricFamily::take_metric).collect();
        let mut first = collected.into_iter().next()?;
        first.set_metric(metrics);
        Some(first)
    }

    fn client_family(&self) -> Option<MetricFamily> {
        let clients = self.clients.read().expect("no panic while it is locked");
        let samples: Vec<_> = clients
            .iter()
            .map(|(streaming, version, calls)| {
                let kind = if *streaming { "stream" } else { "unary" };
                let labels = [("type", kind), ("client_api_version", version.as_str())];
                sample(MetricType::COUNTER, &labels, calls.load(Relaxed) as f64)
            })
            .collect();
        (!samples.is_empty()).then(|| {
            family(
                "etcd_server_client_requests_total",
                "The total number of client requests per client version.",
                MetricType::COUNTER,
                samples,
            )
        })
    }
}

/// Something under way, counted until it is dropped.
pub(super) struct Inflight(IntGauge);

impl Drop for Inflight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn register(registry: &Registry, collector: Box<dyn Collector>) {
    registry.register(collector).expect("every name is registered once");
}

/// What the member knows itself, read now.
fn member_families<B: Backend>(backend: &B, settings: &Settings) -> Vec<MetricFamily> {
    let status = backend.status();
    let (revision, compacted) = backend.revisions();
    let (size, in_use) = backend.sizes();
    let flag = |on: bool| f64::from(u8::from(on));
    let counter = MetricType::COUNTER;
    let mut families = vec![
        gauge("etcd_server_has_leader", "Whether a leader is known.", flag(has_leader(&status))),
        gauge(
            "etcd_server_is_leader",
            "Whether this member leads.",
            flag(has_leader(&status) && status.leader == status.member_id),
        ),
        gauge("etcd_server_is_learner", "Whether this member is a learner.", flag(status.is_learner)),
        family(
            "etcd_server_leader_changes_seen_total",
            "The number of leader changes seen.",
            counter,
            vec![sample(counter, &[], status.leader_changes as f64)],
        ),
        gauge("etcd_server_proposals_committed_total", "The committed index.", status.commit as f64),
        gauge("etcd_server_proposals_applied_total", "The applied index.", status.applied as f64),
        gauge("etcd_server_proposals_pending", "Proposals that wait.", status.proposals_pending as f64),
        family(
            "etcd_server_proposals_failed_total",
            "The number of failed proposals.",
            counter,
            vec![sample(counter, &[], status.proposals_failed as f64)],
        ),
        gauge("etcd_server_quota_backend_bytes", "The storage quota.", settings.quota_in_force() as f64),
        gauge("etcd_mvcc_db_total_size_in_bytes", "Bytes of the store on disk.", size as f64),
        gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Live bytes of the store.", in_use as f64),
        gauge("etcd_debugging_mvcc_current_revision", "The current revision.", revision as f64),
        gauge(
            "etcd_debugging_mvcc_compact_revision",
            "The compacted revision; -1 = never.",
            compacted as f64,
        ),
        gauge("etcd_debugging_mvcc_keys_total", "Live keys.", backend.keys() as f64),
        labelled(
            "etcd_server_id",
            "1 with the member's id.",
            &[("server_id", &format!("{:x}", status.member_id))],
            1.0,
        ),
        labelled("etcd_server_version", "1 with the version.", &[("server_version", ETCD_VERSION)], 1.0),
    ];
    families.extend(alarm_family(backend));
    families.extend(own_families(backend));
    let version = backend.cluster_version();
    if !version.is_empty() {
        let minor = version.rsplit_once('.').map_or(version.as_str(), |(minor, _)| minor);
        let labels = [("cluster_version", minor)];
        families.push(labelled("etcd_cluster_version", "1 with the cluster version.", &labels, 1.0));
    }
    families
}

fn feature_family(settings: &Settings) -> Option<MetricFamily> {
    let samples: Vec<_> = settings
        .features
        .iter()
        .map(|(name, stage, on)| {
            let labels = [("name", *name), ("stage", *stage)];
            sample(MetricType::GAUGE, &labels, f64::from(u8::from(*on)))
        })
        .collect();
    let help = "1 where a feature is on, by name and stage.";
    (!samples.is_empty()).then(|| family("etcd_server_feature_enabled", help, MetricType::GAUGE, samples))
}

/// Alarms that are on, by member and kind.
fn alarm_family<B: Backend>(backend: &B) -> Option<MetricFamily> {
    let samples: Vec<_> = backend
        .alarms()
        .into_iter()
        .filter_map(|(member_id, alarm)| Some((member_id, AlarmType::try_from(alarm).ok()?)))
        .map(|(member_id, alarm)| {
            let member_id = format!("{member_id:x}");
            let labels = [("server_id", member_id.as_str()), ("alarm_type", alarm.as_str_name())];
            sample(MetricType::GAUGE, &labels, 1.0)
        })
        .collect();
    let help = "Alarms that are on for each member.";
    (!samples.is_empty()).then(|| family("etcd_debugging_server_alarms", help, MetricType::GAUGE, samples))
}

/// What etcd has no name for: cleaner, scrubber, checkpoint, reserve, rot.
fn own_families<B: Backend>(backend: &B) -> Vec<MetricFamily> {
    let figures = backend.figures();
    let counter = |name: &str, help: &str, value: u64| {
        let kind = MetricType::COUNTER;
        family(name, help, kind, vec![sample(kind, &[], value as f64)])
    };
    let mut families = vec![
        counter(
            "quorate_store_cleanings_total",
            "Runs of segments that gave way to a copy of what survived.",
            figures.cleanings,
        ),
        counter(
            "quorate_store_cleaned_bytes_total",
            "Bytes of disk that cleaning gave back.",
            figures.freed_bytes,
        ),
        counter(
            "quorate_store_scrubbed_bytes_total",
            "Bytes of pages read to see that they are well.",
            figures.scrubbed_bytes,
        ),
        counter(
            "quorate_store_scrub_passes_total",
            "Passes of the scrubber over every page.",
            figures.scrub_passes,
        ),
        counter(
            "quorate_store_checkpoint_bytes_total",
            "Bytes written for the checkpoint of the index.",
            figures.checkpoint_bytes,
        ),
        gauge(
            "quorate_disk_reserve",
            "1 while log and store have the space that deletes and cleaning need; without it puts are refused.",
            f64::from(u8::from(backend.has_reserve())),
        ),
    ];
    if let Some(reason) = backend.out_of_service() {
        let help = "1 on a member that found rot in its store; the label says where.";
        families.push(labelled("quorate_out_of_service", help, &[("reason", &reason)], 1.0));
    }
    families
}

impl Meter for Metrics {
    fn compacted(&self, seconds: f64) {
        self.compaction_total.observe(1000.0 * seconds);
    }

    fn compaction_paused(&self, seconds: f64) {
        self.compaction_pause.observe(1000.0 * seconds);
    }
}

impl Observer for Metrics {
    fn log_synced(&self, seconds: f64) {
        self.log_sync.observe(seconds);
    }

    fn store_committed(&self, seconds: f64) {
        self.store_commit.observe(seconds);
    }

    fn applied(&self, kind: &'static str, success: bool, seconds: f64) {
        self.apply_histogram(kind, success).observe(seconds);
    }
}

/// Calls begun and ended, by the number of the method in [`Methods`].
pub(super) struct GrpcCounts {
    started: Vec<AtomicU64>,
    handled: Vec<[AtomicU64; CODE_NAMES.len()]>,
}

impl GrpcCounts {
    fn new() -> GrpcCounts {
        let methods = Methods::get().list.len();
        GrpcCounts {
            started: std::iter::repeat_with(AtomicU64::default).take(methods).collect(),
            handled: std::iter::repeat_with(Default::default).take(methods).collect(),
        }
    }

    pub(super) fn started(&self, method: usize) {
        self.started[method].fetch_add(1, Relaxed);
    }

    pub(super) fn handled(&self, method: usize, code: tonic::Code) {
        self.handled[method][code as usize].fetch_add(1, Relaxed);
    }
}

struct SharedCounts(Arc<GrpcCounts>);

impl Collector for SharedCounts {
    fn desc(&self) -> Vec<&Desc> {
        // Registered without a description of its own: labels are fixed in `collect`.
        static DESCRIPTIONS: OnceLock<[Desc; 2]> = OnceLock::new();
        let describe = |name: &str, labels: &[&str]| {
            let names = labels.iter().map(|label| (*label).to_owned()).collect();
            let options = Opts::new(name, "gRPC calls.").variable_labels(names);
            prometheus::core::Describer::describe(&options).expect("the description is valid")
        };
        let descriptions = DESCRIPTIONS.get_or_init(|| {
            let method = ["grpc_type", "grpc_service", "grpc_method"];
            [
                describe("grpc_server_started_total", &method),
                describe(
                    "grpc_server_handled_total",
                    &["grpc_type", "grpc_service", "grpc_method", "grpc_code"],
                ),
            ]
        });
        descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counter = MetricType::COUNTER;
        let mut started = Vec::new();
        let mut handled = Vec::new();
        for (number, method) in Methods::get().list.iter().enumerate() {
            let service = method.descriptor.parent_service().full_name().to_owned();
            let labels = [
                ("grpc_type", method.kind()),
                ("grpc_service", service.as_str()),
                ("grpc_method", method.descriptor.name()),
            ];
            started.push(sample(counter, &labels, self.0.started[number].load(Relaxed) as f64));
            for (code, count) in CODE_NAMES.iter().zip(&self.0.handled[number]) {
                let [kind, service, method] = labels;
                let labels = [kind, service, method, ("grpc_code", *code)];
                handled.push(sample(counter, &labels, count.load(Relaxed) as f64));
            }
        }
        vec![
            family("grpc_server_started_total", "The total number of calls begun.", counter, started),
            family("grpc_server_handled_total", "The total number of calls ended.", counter, handled),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Name, type, and buckets of every family that the text shows.
    fn shown(text: &str) -> BTreeMap<String, (String, Vec<f64>)> {
        let mut shown: BTreeMap<String, (String, Vec<f64>)> = BTreeMap::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(shown.insert(name.to_owned(), (kind.to_owned(), vec![])).is_none(), "{name} twice");
            } else if let Some((name, rest)) = line.split_once("_bucket{") {
                let bound = rest.split_once("le=\"").unwrap().1.split_once('"').unwrap().0;
                if bound != "+Inf" {
                    shown.get_mut(name).unwrap().1.push(bound.parse().unwrap());
                }
            }
        }
        shown
    }

    #[test]
    fn names_types_and_buckets_are_etcds() {
        let facts: BTreeMap<&str, (&str, &str)> = include_str!("../../tests/facts/metrics.tsv")
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains('\t'))
            .map(|line| {
                let cells: Vec<&str> = line.split('\t').collect();
                (cells[0], (cells[1], cells[3]))
            })
            .collect();
        let metrics = Metrics::new();
        metrics.log_synced(0.002);
        metrics.store_committed(0.02);
        metrics.applied("Put", true, 0.0001);
        metrics.client_request(false, "3.7");
        let settings =
            Settings { features: vec![("CompactHashCheck", "ALPHA", true)], ..Settings::default() };
        let member = super::super::fake::Fake::default();
        member.state().alarms = vec![(0xab, 1), (1, 2)];
        let text = metrics.render(&member, &settings);
        let text = String::from_utf8(text).unwrap();
        let shown = shown(&text);
        assert!(shown.len() >= 28, "{shown:?}");
        for (name, (kind, buckets)) in shown.iter().filter(|(name, _)| !name.starts_with("quorate_")) {
            let (fact_kind, fact_buckets) =
                facts.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not etcd's"));
            assert_eq!(kind, fact_kind, "{name}");
            if let Some(numbers) = fact_buckets.strip_prefix("exp(").and_then(|rest| rest.strip_suffix(')')) {
                let numbers: Vec<f64> = numbers.split(',').map(|number| number.parse().unwrap()).collect();
                let expected = exponential_buckets(numbers[0], numbers[1], numbers[2] as usize).unwrap();
                assert_eq!(buckets, &expected, "{name}");
            }
        }
        assert!(text.contains("etcd_server_feature_enabled{name=\"CompactHashCheck\",stage=\"ALPHA\"} 1"));
        assert!(
            text.contains("etcd_debugging_server_alarms{alarm_type=\"NOSPACE\",server_id=\"ab\"} 1"),
            "{text}"
        );
        assert!(text.contains(
            "etcd_server_apply_duration_seconds_count{op=\"Put\",success=\"true\",version=\"v3\"} 1"
        ));
    }

    #[test]
    fn client_versions_are_bounded() {
        let metrics = Metrics::new();
        for version in 0..10 * CLIENT_VERSIONS_MAX {
            metrics.client_request(false, &version.to_string());
            metrics.client_request(true, "3.7");
        }
        let clients = metrics.clients.read().unwrap();
        assert!(clients.len() <= CLIENT_VERSIONS_MAX + 2);
        let calls: u64 = clients.iter().map(|(_, _, calls)| calls.load(Relaxed)).sum();
        assert_eq!(calls, 20 * CLIENT_VERSIONS_MAX as u64);
    }
}
