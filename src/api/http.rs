//! The plain HTTP endpoints of a client port: version, health checks and
//! metrics. Paths, bodies and headers as `tests/facts/services.tsv` has them.

use super::{
    Backend, ETCD_VERSION, STORAGE_VERSION, VERSION_NOT_DECIDED,
    errors::{self, Error},
    service::{Api, has_leader},
};
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use axum::body::Body;
use quorate_proto::etcdserverpb::{AlarmType, RangeRequest};
use std::fmt::Write;
use tonic::Status;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Answers a request that is neither gRPC nor the gateway's.
pub(super) async fn serve<B: Backend>(api: &Api<B>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    let query = Query(request.uri().query().unwrap_or(""));
    let (probe, check) = match path.strip_prefix('/').unwrap_or(path).split_once('/') {
        Some((probe, check)) => (probe, Some(check)),
        None => (path.strip_prefix('/').unwrap_or(path), None),
    };
    let checks: &[Check] = match (probe, check) {
        ("livez", _) => &LIVEZ,
        ("readyz", _) => &READYZ,
        ("version" | "health" | "metrics", None) => &[],
        _ => return not_found(),
    };
    let single;
    let checks = match check {
        Some(name) => match checks.iter().find(|known| known.name() == name) {
            Some(known) => {
                single = [*known];
                &single[..]
            }
            None => return not_found(),
        },
        None => checks,
    };
    if request.method() != Method::GET {
        return not_allowed();
    }
    match probe {
        "version" => answer(StatusCode::OK, JSON, version(&api.backend.cluster_version())),
        "metrics" => answer(StatusCode::OK, METRICS, api.metrics.render(&api.backend, &api.settings)),
        "health" => health(api, query).await,
        _ => probed(api, checks, query).await,
    }
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Text that browsers must not take for anything else.
fn plain(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = answer(status, TEXT, body);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Of every path that is not served.
pub(super) fn not_found() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn not_allowed() -> Response<Body> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    response
}

/// The body of `/version`; an empty cluster version is one that is not set yet.
pub fn version(cluster_version: &str) -> String {
    let cluster = if cluster_version.is_empty() { VERSION_NOT_DECIDED } else { cluster_version };
    format!(
        "{{\"etcdserver\":\"{ETCD_VERSION}\",\"etcdcluster\":\"{cluster}\",\"storage\":\"{STORAGE_VERSION}\"}}"
    )
}

/// Adds what a browser needs to read the answer, when it may.
pub(super) fn allow_origin(allowed: &[String], origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let value = if allowed.iter().any(|one| one == "*") {
        HeaderValue::from_static("*")
    } else {
        match origin.filter(|origin| allowed.iter().any(|one| origin.as_bytes() == one.as_bytes())) {
            Some(origin) => origin.clone(),
            None => return,
        }
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, value);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("accept, content-type, authorization"),
    );
}

/// A query string; its names and values are plain words here, nothing is unescaped.
#[derive(Clone, Copy)]
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    fn has(self, name: &str) -> bool {
        self.pairs().any(|(key, _)| key == name)
    }

    fn says(self, name: &str, value: &str) -> bool {
        self.pairs().any(|pair| pair == (name, value))
    }
}

/// `/health`: whether it serves at all, then alarms, then a leader, then a read.
async fn health<B: Backend>(api: &Api<B>, query: Query<'_>) -> Response<Body> {
    let serializable = query.says("serializable", "true");
    let reason = sickness(api, query, serializable).await;
    let healthy = reason.is_empty();
    let reason = serde_json::to_string(&reason).expect("a string is JSON");
    let body = format!("{{\"health\":\"{healthy}\",\"reason\":{reason}}}");
    if healthy {
        api.metrics.health_success.inc();
        answer(StatusCode::OK, TEXT, body)
    } else {
        api.metrics.health_failures.inc();
        plain(StatusCode::SERVICE_UNAVAILABLE, body + "\n")
    }
}

/// The first thing that is wrong; empty = nothing.
async fn sickness<B: Backend>(api: &Api<B>, query: Query<'_>, serializable: bool) -> String {
    if let Some(reason) = api.backend.out_of_service() {
        return format!("OUT OF SERVICE: {reason}");
    }
    for (_, alarm) in api.backend.alarms() {
        let name = match AlarmType::try_from(alarm) {
            Ok(kind @ (AlarmType::Nospace | AlarmType::Corrupt)) => kind.as_str_name(),
            _ => "UNKNOWN",
        };
        if !query.says("exclude", name) {
            return format!("ALARM {name}");
        }
    }
    if !serializable && !has_leader(&api.backend.status()) {
        return "RAFT NO LEADER".to_owned();
    }
    match read(api, serializable).await {
        Ok(()) => String::new(),
        Err(status) => format!("RANGE ERROR:{}", status.message()),
    }
}

/// Reads one key, as a client would.
async fn read<B: Backend>(api: &Api<B>, serializable: bool) -> Result<(), Status> {
    if let Some(reason) = api.backend.out_of_service() {
        return Err(errors::out_of_service(&reason));
    }
    if !serializable {
        api.read_index().await?;
    }
    let request = RangeRequest {
        key: bytes::Bytes::from_static(b"\0"),
        limit: 1,
        keys_only: true,
        serializable,
        ..RangeRequest::default()
    };
    api.backend.range(&request).await.map(drop).map_err(errors::read)
}

/// One check of `/livez` or `/readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

const LIVEZ: [Check; 1] = [Check::SerializableRead];
const READYZ: [Check; 4] =
    [Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    /// The reason it failed.
    async fn run<B: Backend>(self, api: &Api<B>) -> Result<(), String> {
        let of_read = |status: Status| status.message().to_owned();
        match self {
            Check::DataCorruption => {
                let corrupt = api.backend.alarms().iter().any(|(_, kind)| *kind == AlarmType::Corrupt as i32);
                if corrupt { Err("alarm activated: CORRUPT".to_owned()) } else { Ok(()) }
            }
            Check::SerializableRead => read(api, true).await.map_err(of_read),
            Check::LinearizableRead => {
                if !has_leader(&api.backend.status()) {
                    return Err(Error::NoLeader.row().text.to_owned());
                }
                read(api, false).await.map_err(of_read)
            }
            Check::NonLearner if api.backend.status().is_learner => {
                Err("not supported for learner".to_owned())
            }
            Check::NonLearner => Ok(()),
        }
    }
}

async fn probed<B: Backend>(api: &Api<B>, checks: &[Check], query: Query<'_>) -> Response<Body> {
    let mut report = String::new();
    let mut failed = false;
    for check in checks.iter().filter(|check| !query.says("exclude", check.name())) {
        let line = match check.run(api).await {
            Ok(()) => writeln!(report, "[+]{} ok", check.name()),
            Err(reason) => {
                failed = true;
                writeln!(report, "[-]{} failed: {reason}", check.name())
            }
        };
        line.expect("a string takes every write");
    }
    if failed {
        return plain(StatusCode::SERVICE_UNAVAILABLE, report + "\n");
    }
    if query.has("verbose") {
        return plain(StatusCode::OK, report + "ok\n");
    }
    plain(StatusCode::OK, "ok\n")
}
