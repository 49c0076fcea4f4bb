//! A load generator for any server of the etcd v3 API.
//!
//! One thread, closed loop: each client sends its next call when the last one
//! is answered; with a rate, calls begin on a shared schedule and latency
//! counts from the scheduled moment, so that a stall is not left out.

use super::args::{Bench, BenchLoad};
use super::failure::Failure;
use super::printer;
use crate::env::net::Channel;
use crate::env::{Env, Moment, Rng, task};
use bytes::Bytes;
use hdrhistogram::Histogram;
use quorate_proto::etcdserverpb::{self as pb, kv_client::KvClient, request_op::Request};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Latencies above ten minutes count as ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;

#[derive(Clone, Copy)]
enum Kind {
    Put,
    Range,
    Txn,
}

/// What all clients share.
struct Load {
    kind: Kind,
    load: BenchLoad,
    begun: Moment,
    next_call: AtomicU64,
    tally: Mutex<Tally>,
}

struct Tally {
    latency_us: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    last_answer: Moment,
    longest_gap: Duration,
}

pub async fn run(endpoints: &[String], bench: Bench, env: &Env) -> Result<(), Failure> {
    let (kind, load) = match bench {
        Bench::Put(load) => (Kind::Put, load),
        Bench::Range(load) => (Kind::Range, load),
        Bench::Txn(load) => (Kind::Txn, load),
    };
    if endpoints.is_empty() || load.connections == 0 || load.clients == 0 || load.key_space == 0 {
        return Err(Failure::arguments("endpoints, connections, clients and key space must not be empty"));
    }
    let channels: Vec<Channel> = (0..load.connections)
        .map(|at| {
            let endpoint = &endpoints[at % endpoints.len()];
            Channel::lazy(endpoint.trim_start_matches("http://"), super::http_options())
        })
        .collect();
    let begun = env.clock.now();
    let tally = Tally {
        latency_us: Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("valid bounds and precision"),
        errors: BTreeMap::new(),
        last_answer: begun,
        longest_gap: Duration::ZERO,
    };
    let shared = Arc::new(Load { kind, load, begun, next_call: AtomicU64::new(0), tally: Mutex::new(tally) });
    let clients: Vec<_> = (0..shared.load.clients)
        .map(|at| {
            let kv =
                KvClient::new(channels[at % channels.len()].clone()).max_decoding_message_size(usize::MAX);
            let seed = Rng::from_seed([at as u8; 32]);
            // Each client draws from a stream of its own that env seeds.
            let rng = Rng::from_seed(std::array::from_fn(|byte| {
                (env.rng.next_u64() ^ seed.next_u64()) as u8 ^ byte as u8
            }));
            task::spawn(client(kv, shared.clone(), env.clone(), rng))
        })
        .collect();
    for client in clients {
        client.await.map_err(|error| Failure::server(error.to_string()))?;
    }
    report(&shared, env.clock.now().since(begun));
    Ok(())
}

async fn client(mut kv: KvClient<Channel>, shared: Arc<Load>, env: Env, rng: Rng) {
    let load = &shared.load;
    let value: Bytes = (0..load.val_size).map(|_| rng.below(256) as u8).collect();
    loop {
        let call = shared.next_call.fetch_add(1, Ordering::Relaxed);
        if load.total > 0 && call >= load.total {
            return;
        }
        let mut begun = env.clock.now();
        if load.rate > 0 {
            let due = shared.begun + Duration::from_secs_f64(call as f64 / load.rate as f64);
            if due > begun {
                env.clock.sleep_until(due).await;
            }
            begun = due;
        }
        if load.total == 0 && env.clock.now().since(shared.begun) >= load.duration {
            return;
        }
        let outcome = match shared.kind {
            Kind::Put => kv.put(put(load, call, &value, &rng)).await.map(drop),
            Kind::Range => kv
                .range(pb::RangeRequest {
                    key: key(load, call, &rng),
                    serializable: load.serializable,
                    ..Default::default()
                })
                .await
                .map(drop),
            Kind::Txn => kv.txn(txn(load, call, &value, &rng)).await.map(drop),
        };
        note(&shared, begun, env.clock.now(), outcome);
    }
}

/// The key space in decimal, padded to the size asked for.
fn key(load: &BenchLoad, call: u64, rng: &Rng) -> Bytes {
    let number = if load.sequential { call % load.key_space } else { rng.below(load.key_space) };
    format!("{number:0width$}", width = load.key_size).into()
}

fn put(load: &BenchLoad, call: u64, value: &Bytes, rng: &Rng) -> pb::PutRequest {
    pb::PutRequest { key: key(load, call, rng), value: value.clone(), ..Default::default() }
}

/// Puts on neighbouring keys, so that none comes twice.
fn txn(load: &BenchLoad, call: u64, value: &Bytes, rng: &Rng) -> pb::TxnRequest {
    let first = if load.sequential { call } else { rng.below(load.key_space) };
    let ops = u64::try_from(load.txn_ops).expect("a count fits").min(load.key_space);
    let success = (0..ops)
        .map(|at| {
            let number = (first + at) % load.key_space;
            let key = format!("{number:0width$}", width = load.key_size).into();
            let put = pb::PutRequest { key, value: value.clone(), ..Default::default() };
            pb::RequestOp { request: Some(Request::RequestPut(put)) }
        })
        .collect();
    pb::TxnRequest { success, ..Default::default() }
}

fn note(shared: &Load, begun: Moment, ended: Moment, outcome: Result<(), tonic::Status>) {
    let mut tally = shared.tally.lock().expect("no panic while the tally is locked");
    match outcome {
        Ok(()) => {
            let us = u64::try_from(ended.since(begun).as_micros()).unwrap_or(u64::MAX);
            tally.latency_us.saturating_record(us);
            let gap = ended.since(tally.last_answer);
            tally.longest_gap = tally.longest_gap.max(gap);
            tally.last_answer = tally.last_answer.max(ended);
        }
        Err(status) => {
            *tally.errors.entry(format!("{:?}: {}", status.code(), status.message())).or_default() += 1
        }
    }
}

fn report(shared: &Load, took: Duration) {
    let tally = shared.tally.lock().expect("no panic while the tally is locked");
    let latency = &tally.latency_us;
    let ms = |us: u64| us as f64 / 1000.0;
    let errors: u64 = tally.errors.values().sum();
    printer::line(&format!(
        "calls {}  errors {errors}  seconds {:.2}  rate {:.0}/s\nlatency ms: mean {:.3}  p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}\nlongest gap between answers ms: {:.1}",
        latency.len(),
        took.as_secs_f64(),
        latency.len() as f64 / took.as_secs_f64(),
        latency.mean() / 1000.0,
        ms(latency.value_at_quantile(0.5)),
        ms(latency.value_at_quantile(0.99)),
        ms(latency.value_at_quantile(0.999)),
        ms(latency.max()),
        tally.longest_gap.as_secs_f64() * 1000.0,
    ));
    for (error, count) in &tally.errors {
        printer::line(&format!("error x{count}: {error}"));
    }
}
