//! The gRPC entrance: finds the method, applies the rules of the request's
//! metadata, counts, dispatches, and gives errors of the stack etcd's texts.
//!
//! The table of methods is read from the descriptors once for the process;
//! the JSON gateway uses the same table.

use super::{
    Backend, Metrics,
    direct::{self, Replayed},
    errors::{self, Error},
    service::{Api, has_leader},
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost_reflect::{DescriptorPool, MethodDescriptor};
use quorate_proto::{
    DESCRIPTORS,
    etcdserverpb::{
        auth_server::AuthServer,
        cluster_server::ClusterServer,
        kv_server::{Kv, KvServer},
        lease_server::LeaseServer,
        maintenance_server::MaintenanceServer,
        watch_server::WatchServer,
    },
    grpc::health::v1::health_server::HealthServer,
    v3electionpb::election_server::ElectionServer,
    v3lockpb::lock_server::LockServer,
};
use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};
use tonic::{Code, Status, body::Body};
use tower_service::Service as _;

/// The services of a client port; the order of [`Served`].
const SERVICES: [&str; 9] = [
    "etcdserverpb.KV",
    "etcdserverpb.Watch",
    "etcdserverpb.Lease",
    "etcdserverpb.Cluster",
    "etcdserverpb.Maintenance",
    "etcdserverpb.Auth",
    "v3lockpb.Lock",
    "v3electionpb.Election",
    "grpc.health.v1.Health",
];

/// Places in [`SERVICES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Kv,
    Watch,
    Lease,
    Cluster,
    Maintenance,
    Auth,
    Lock,
    Election,
    Health,
}

const SERVED: [Served; SERVICES.len()] = [
    Served::Kv,
    Served::Watch,
    Served::Lease,
    Served::Cluster,
    Served::Maintenance,
    Served::Auth,
    Served::Lock,
    Served::Election,
    Served::Health,
];

/// Methods that most calls are of: answered by [`direct::unary`] where that can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direct {
    Range,
    Put,
    DeleteRange,
    Txn,
}

/// One method of a client port.
#[derive(Debug)]
pub struct Method {
    served: Served,
    direct: Option<Direct>,
    /// `/package.Service/Method`.
    pub path: String,
    pub descriptor: MethodDescriptor,
    pub streams_out: bool,
    pub streams_in: bool,
    /// A learner serves it (M11); Range only when serializable, which its handler sees to.
    learner: bool,
}

impl Method {
    /// As metrics name it.
    pub fn kind(&self) -> &'static str {
        match (self.streams_in, self.streams_out) {
            (false, false) => "unary",
            (true, false) => "client_stream",
            (false, true) => "server_stream",
            (true, true) => "bidi_stream",
        }
    }
}

/// Every method of every service, from the descriptors.
#[derive(Debug)]
pub struct Methods {
    pub list: Vec<Method>,
    by_path: HashMap<String, usize>,
}

impl Methods {
    /// The table; built on first use.
    pub fn get() -> &'static Methods {
        static METHODS: OnceLock<Methods> = OnceLock::new();
        METHODS.get_or_init(Methods::read)
    }

    /// The number of the method at `/package.Service/Method`.
    pub fn find(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    fn read() -> Methods {
        let pool = DescriptorPool::decode(DESCRIPTORS).expect("the build wrote its own descriptors");
        let mut list = Vec::new();
        for (served, name) in SERVED.into_iter().zip(SERVICES) {
            assert_eq!(SERVICES[served as usize], name, "the two tables of services are in one order");
            let service = pool.get_service_by_name(name).expect("the descriptors hold every service");
            for descriptor in service.methods() {
                let path = format!("/{name}/{}", descriptor.name());
                list.push(Method {
                    served,
                    direct: match path.as_str() {
                        "/etcdserverpb.KV/Range" => Some(Direct::Range),
                        "/etcdserverpb.KV/Put" => Some(Direct::Put),
                        "/etcdserverpb.KV/DeleteRange" => Some(Direct::DeleteRange),
                        "/etcdserverpb.KV/Txn" => Some(Direct::Txn),
                        _ => None,
                    },
                    learner: matches!(
                        path.as_str(),
                        "/etcdserverpb.KV/Range"
                            | "/etcdserverpb.Maintenance/Status"
                            | "/etcdserverpb.Maintenance/Snapshot"
                    ),
                    path,
                    streams_out: descriptor.is_server_streaming(),
                    streams_in: descriptor.is_client_streaming(),
                    descriptor,
                });
            }
        }
        let by_path = list.iter().enumerate().map(|(number, method)| (method.path.clone(), number)).collect();
        Methods { list, by_path }
    }
}

/// One server of each service.
struct Servers<B: Backend> {
    api: Api<B>,
    kv: KvServer<Api<B>>,
    watch: WatchServer<Api<B>>,
    lease: LeaseServer<Api<B>>,
    cluster: ClusterServer<Api<B>>,
    maintenance: MaintenanceServer<Api<B>>,
    auth: AuthServer<Api<B>>,
    lock: LockServer<Api<B>>,
    election: ElectionServer<Api<B>>,
    health: HealthServer<Api<B>>,
}

/// All gRPC services behind one call; cheap to clone.
pub(super) struct Grpc<B: Backend>(Arc<Servers<B>>);

impl<B: Backend> Clone for Grpc<B> {
    fn clone(&self) -> Self {
        Grpc(self.0.clone())
    }
}

impl<B: Backend> Grpc<B> {
    pub(super) fn new(api: Api<B>) -> Grpc<B> {
        let limit = usize::try_from(api.settings.message_bytes_max()).unwrap_or(usize::MAX);
        let shared = Arc::new(api.clone());
        macro_rules! server {
            ($server:ident) => {
                $server::from_arc(shared.clone()).max_decoding_message_size(limit)
            };
        }
        Grpc(Arc::new(Servers {
            kv: server!(KvServer),
            watch: server!(WatchServer),
            lease: server!(LeaseServer),
            cluster: server!(ClusterServer),
            maintenance: server!(MaintenanceServer),
            auth: server!(AuthServer),
            lock: server!(LockServer),
            election: server!(ElectionServer),
            health: server!(HealthServer),
            api,
        }))
    }

    pub(super) fn api(&self) -> &Api<B> {
        &self.0.api
    }

    /// Answers one request; an error is an answer too.
    pub(super) async fn call<R>(&self, request: Request<R>) -> Response<Body>
    where
        R: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        R::Error: Into<tonic::codegen::StdError> + Send + 'static,
    {
        let methods = Methods::get();
        let Some(number) = methods.find(request.uri().path()) else {
            let known = |service: &str| SERVICES.contains(&service);
            return errors::unknown_path(request.uri().path(), known).into_http();
        };
        let method = &methods.list[number];
        let mut call = Call::begin(&self.0.api.metrics, number);
        if let Err(status) = self.admit(method, request.headers()) {
            call.code = status.code();
            return status.into_http();
        }
        let response = match self.direct(method.direct, request).await {
            Ok(response) => response,
            Err(request) => self.dispatch(method.served, request).await,
        };
        call.finish(response, method.streams_out)
    }

    /// The rules that hold before a method sees its request.
    fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), Status> {
        let api = &self.0.api;
        // The health service answers for such a member, and says that it does not serve.
        if method.served != Served::Health
            && let Some(reason) = api.backend.out_of_service()
        {
            return Err(errors::out_of_service(&reason));
        }
        let status = api.backend.status();
        if status.is_learner && !method.learner {
            return Err(Error::NotSupportedForLearner.status());
        }
        let version = match headers.get("client-api-version") {
            None => "unknown",
            Some(value) => {
                str::from_utf8(value.as_bytes()).map_err(|_| Error::InvalidClientAPIVersion.status())?
            }
        };
        api.metrics.client_request(method.streams_in || method.streams_out, version);
        if headers.get("hasleader").is_some_and(|value| value == "true") && !has_leader(&status) {
            return Err(Error::NoLeader.status());
        }
        Ok(())
    }

    /// Answers the request if that can be done in place.
    async fn direct<R>(
        &self,
        direct: Option<Direct>,
        request: Request<R>,
    ) -> Result<Response<Body>, Request<Replayed<R>>>
    where
        R: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        R::Error: Send,
    {
        let api = &self.0.api;
        match direct {
            Some(Direct::Range) => direct::unary(api, request, |api, request| Kv::range(api, request)).await,
            Some(Direct::Put) => direct::unary(api, request, |api, request| Kv::put(api, request)).await,
            Some(Direct::DeleteRange) => {
                direct::unary(api, request, |api, request| Kv::delete_range(api, request)).await
            }
            Some(Direct::Txn) => direct::unary(api, request, |api, request| Kv::txn(api, request)).await,
            None => Err(request.map(Replayed::untouched)),
        }
    }

    async fn dispatch<R>(&self, served: Served, request: Request<R>) -> Response<Body>
    where
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<tonic::codegen::StdError> + Send + 'static,
    {
        let servers = &*self.0;
        let answered = match served {
            Served::Kv => servers.kv.clone().call(request),
            Served::Watch => servers.watch.clone().call(request),
            Served::Lease => servers.lease.clone().call(request),
            Served::Cluster => servers.cluster.clone().call(request),
            Served::Maintenance => servers.maintenance.clone().call(request),
            Served::Auth => servers.auth.clone().call(request),
            Served::Lock => servers.lock.clone().call(request),
            Served::Election => servers.election.clone().call(request),
            Served::Health => servers.health.clone().call(request),
        };
        match answered.await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// A call under way, counted when it ends; dropped before that, it was cancelled.
struct Call {
    metrics: Arc<Metrics>,
    number: usize,
    code: Code,
}

impl Call {
    fn begin(metrics: &Arc<Metrics>, number: usize) -> Call {
        metrics.grpc.started(number);
        Call { metrics: metrics.clone(), number, code: Code::Cancelled }
    }

    /// Notes how the call ended, and gives errors of the gRPC stack etcd's code and text.
    fn finish(mut self, response: Response<Body>, streams_out: bool) -> Response<Body> {
        // An answer that has its status in the headers has no message: an error.
        if let Some(code) = header_code(response.headers()) {
            let own = matches!(code, Code::OutOfRange | Code::Internal)
                .then(|| Status::from_header_map(response.headers()))
                .flatten()
                .and_then(|status| translated(&status));
            self.code = own.as_ref().map_or(code, Status::code);
            return own.map_or(response, Status::into_http);
        }
        if streams_out {
            return response.map(|body| Body::new(Streamed { body, call: self }));
        }
        self.code = Code::Ok;
        response
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.metrics.grpc.handled(self.number, self.code);
    }
}

fn header_code(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

/// What etcd's gRPC stack would say in place of ours; `None` = nothing else.
fn translated(status: &Status) -> Option<Status> {
    let text = status.message();
    if let Some(rest) = text.strip_prefix("Error, decoded message length too large: found ") {
        let numbers = rest.split_once(" bytes, the limit is: ");
        let (found, limit) = numbers.and_then(|(found, rest)| Some((found, rest.strip_suffix(" bytes")?)))?;
        return Some(errors::message_too_large(found.parse().ok()?, limit.parse().ok()?));
    }
    text.strip_prefix("failed to decode Protobuf message: ").map(errors::unmarshal)
}

/// A streamed answer: its call ends with its trailers.
struct Streamed {
    body: Body,
    call: Call,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(code) = frame.trailers_ref().and_then(header_code) {
                    self.call.code = code;
                }
            }
            Some(Err(status)) => self.call.code = status.code(),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn methods_equal_the_facts() {
        let mut facts = BTreeMap::new();
        for line in include_str!("../../tests/facts/services.tsv").lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            if cells.len() >= 8 && SERVICES.contains(&format!("{}.{}", cells[0], cells[1]).as_str()) {
                facts.insert(format!("/{}.{}/{}", cells[0], cells[1], cells[2]), cells[5].to_owned());
            }
        }
        let ours: BTreeMap<String, String> = Methods::get()
            .list
            .iter()
            .map(|method| {
                let kind = match method.kind() {
                    "server_stream" => "server",
                    "bidi_stream" => "bidi",
                    other => other,
                };
                (method.path.clone(), kind.to_owned())
            })
            .collect();
        assert!(facts.len() > 50, "the facts were read");
        assert_eq!(ours, facts);
    }

    #[test]
    fn errors_of_the_stack_get_etcds_texts() {
        let check = |status: Status, expected: Option<(Code, &str)>| {
            let own = translated(&status);
            assert_eq!(own.as_ref().map(|status| (status.code(), status.message())), expected);
        };
        check(
            Status::out_of_range(
                "Error, decoded message length too large: found 2097153 bytes, the limit is: 2097152 bytes",
            ),
            Some((Code::ResourceExhausted, "grpc: received message larger than max (2097153 vs. 2097152)")),
        );
        check(
            Status::internal("failed to decode Protobuf message: invalid varint"),
            Some((Code::Internal, "grpc: error unmarshalling request: invalid varint")),
        );
        check(Error::Compacted.status(), None);
    }
}
