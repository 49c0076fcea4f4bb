//! Metric families made by hand, for values that are read when scraped.

use crate::env::process::Process;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// One value with its labels.
pub(super) fn sample(kind: MetricType, labels: &[(&str, &str)], value: f64) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    // By name, as etcd's client library orders them.
    let mut pairs: Vec<LabelPair> = pairs.collect();
    pairs.sort_by(|one, other| one.name().cmp(other.name()));
    let mut metric = Metric::from_label(pairs);
    match kind {
        MetricType::COUNTER => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        MetricType::GAUGE => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        _ => unreachable!("only counters and gauges are made by hand"),
    }
    metric
}

pub(super) fn family(name: &str, help: &str, kind: MetricType, samples: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(samples);
    family
}

pub(super) fn gauge(name: &str, help: &str, value: f64) -> MetricFamily {
    labelled(name, help, &[], value)
}

/// A gauge whose labels are its message.
pub(super) fn labelled(name: &str, help: &str, labels: &[(&str, &str)], value: f64) -> MetricFamily {
    family(name, help, MetricType::GAUGE, vec![sample(MetricType::GAUGE, labels, value)])
}

pub(super) fn process_families(process: Process) -> Vec<MetricFamily> {
    let cpu = vec![sample(MetricType::COUNTER, &[], process.cpu_seconds)];
    vec![
        family(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            MetricType::COUNTER,
            cpu,
        ),
        gauge("process_open_fds", "Number of open file descriptors.", process.open_fds as f64),
        gauge("process_max_fds", "Maximum number of open file descriptors.", process.max_fds as f64),
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            process.resident_bytes as f64,
        ),
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", process.virtual_bytes as f64),
        gauge(
            "process_start_time_seconds",
            "Start time of the process since the Unix epoch in seconds.",
            process.start_seconds,
        ),
    ]
}
