//! What all services share: the member behind them, the settings, the headers
//! of replies, and the one entrance of the client port.

use super::{Backend, Metrics, errors, gateway, grpc::Grpc, http, quota::Quota};
use crate::{
    env::{Clock, Env},
    machine::Reply,
    replica::{self, Replica},
};
use bytes::Bytes;
use futures::{TryFutureExt, future::BoxFuture};
use http_body::Body as HttpBody;
use quorate_proto::etcdserverpb::{InternalRaftRequest, ResponseHeader};
use std::{
    convert::Infallible,
    ops::Deref,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tonic::Status;

/// What the flags say about the client port.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Operations in one list of a txn (T2).
    pub max_txn_ops: usize,
    /// Encoded entry limit (N1); a gRPC message may be [`super::GRPC_OVERHEAD_BYTES`] larger.
    pub max_request_bytes: u64,
    /// As the flag gives it: 0 = the default, negative = off (X1).
    pub quota_backend_bytes: i64,
    /// How long a leadership transfer may take: 5 s + 2 x election timeout.
    pub request_timeout: Duration,
    /// Serve the JSON gateway under `/v3/`.
    pub gateway: bool,
    /// Allowed origins; `*` = all.
    pub cors: Vec<String>,
    /// (name, stage, on), for the metrics.
    pub features: Vec<(&'static str, &'static str, bool)>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_txn_ops: 128,
            max_request_bytes: 1536 * 1024,
            quota_backend_bytes: 0,
            request_timeout: Duration::from_secs(7),
            gateway: true,
            cors: vec!["*".to_owned()],
            features: Vec::new(),
        }
    }
}

impl Settings {
    /// The quota in force, bytes; negative = off.
    pub fn quota_in_force(&self) -> i64 {
        if self.quota_backend_bytes == 0 { 2 << 30 } else { self.quota_backend_bytes }
    }

    /// Largest gRPC message taken, bytes.
    pub fn message_bytes_max(&self) -> u64 {
        self.max_request_bytes.saturating_add(super::GRPC_OVERHEAD_BYTES)
    }
}

/// The member behind the API, and what watches it.
#[derive(Clone)]
pub struct Service<B: Backend = Replica> {
    pub(super) backend: B,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
}

impl<B: Backend> Service<B> {
    /// `metrics` is the observer that the replica was started with.
    pub fn new(backend: B, metrics: Arc<Metrics>, env: &Env) -> Service<B> {
        Service { backend, metrics, clock: env.clock.clone() }
    }
}

/// What every gRPC service is implemented on; cheap to clone.
pub(super) struct Api<B: Backend>(Arc<Shared<B>>);

pub(super) struct Shared<B: Backend> {
    pub backend: B,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub settings: Settings,
    pub quota: Quota,
}

impl<B: Backend> Clone for Api<B> {
    fn clone(&self) -> Self {
        Api(self.0.clone())
    }
}

impl<B: Backend> Deref for Api<B> {
    type Target = Shared<B>;
    fn deref(&self) -> &Shared<B> {
        &self.0
    }
}

impl<B: Backend> Api<B> {
    pub(super) fn new(service: Service<B>, settings: Settings) -> Api<B> {
        let Service { backend, metrics, clock } = service;
        Api(Arc::new(Shared { backend, metrics, clock, settings, quota: Quota::default() }))
    }

    /// Completes a header (X11); the revision that stands in it is kept.
    pub(super) fn fill(&self, header: &mut Option<ResponseHeader>) {
        let status = self.backend.status();
        let header = header.get_or_insert_default();
        header.cluster_id = status.cluster_id;
        header.member_id = status.member_id;
        header.raft_term = status.term;
    }

    /// As [`Api::fill`], with `revision` when the reply came without a header.
    pub(super) fn fill_or(&self, header: &mut Option<ResponseHeader>, revision: i64) {
        header.get_or_insert_with(|| ResponseHeader { revision, ..ResponseHeader::default() });
        self.fill(header);
    }

    /// A header of its own (X11); Cluster replies give revision 0.
    pub(super) fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let mut header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        self.fill(&mut header);
        header
    }

    /// Through the log and applied here (I4).
    ///
    /// Not an `async fn`: that would hold the request, which is large, twice in each call's future.
    pub(super) fn propose(
        &self,
        request: InternalRaftRequest,
    ) -> impl Future<Output = Result<(Reply, i64), Status>> + Send {
        self.backend.propose(request).map_err(errors::proposal)
    }

    /// What follows sees everything that was acknowledged before this call began (I7).
    pub(super) async fn read_index(&self) -> Result<(), Status> {
        self.backend.read_index().await.map_err(|error| errors::Error::from(error).status())
    }
}

/// A reply of another kind than the request asked for: machine and API disagree.
pub(super) fn mismatched(expected: &str, reply: &Reply) -> ! {
    panic!("a {expected} request was answered with {reply:?}")
}

/// Everything that a client port serves: gRPC, the JSON gateway, plain HTTP.
pub fn entrance<B: Backend>(service: Service<B>, settings: Settings) -> Entrance<B> {
    Entrance(Grpc::new(Api::new(service, settings)))
}

/// Tells the three kinds of requests apart with two comparisons; gRPC paths are looked up once,
/// for dispatch and for counting. Cheap to clone.
pub struct Entrance<B: Backend>(Grpc<B>);

impl<B: Backend> Clone for Entrance<B> {
    fn clone(&self) -> Self {
        Entrance(self.0.clone())
    }
}

impl<B, R> tower_service::Service<::http::Request<R>> for Entrance<B>
where
    B: Backend,
    R: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    R::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = ::http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ::http::Request<R>) -> Self::Future {
        let grpc = self.0.clone();
        if is_grpc(&request) {
            return Box::pin(async move { Ok(grpc.call(request).await) });
        }
        Box::pin(async move {
            Ok(plain(grpc, request.map(axum::body::Body::new)).await.map(tonic::body::Body::new))
        })
    }
}

async fn plain<B: Backend>(grpc: Grpc<B>, request: Request) -> Response {
    let origin = request.headers().get(::http::header::ORIGIN).cloned();
    let mut response = if request.method() == ::http::Method::OPTIONS {
        Response::default()
    } else if gateway::is_routed(&grpc, request.uri().path()) {
        gateway::serve(&grpc, request).await
    } else {
        http::serve(grpc.api(), request).await
    };
    http::allow_origin(&grpc.api().settings.cors, origin.as_ref(), response.headers_mut());
    response
}

/// A leader is known, as `hasleader` and `/health` mean it.
pub(super) fn has_leader(status: &replica::Status) -> bool {
    status.leader != 0
}

type Request = ::http::Request<axum::body::Body>;
type Response = ::http::Response<axum::body::Body>;

fn is_grpc<R>(request: &::http::Request<R>) -> bool {
    request
        .headers()
        .get(::http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Implements a gRPC service for [`Api`]: the methods that are served, then those that are not
/// yet (each answers `Unimplemented` with its name).
macro_rules! service {
    (
        impl $trait:path as $name:literal {
            $($served:tt)*
        }
        unserved {
            $($method:ident: $request:ty => $response:ty, $text:literal;)*
        }
    ) => {
        #[tonic::async_trait]
        impl<B: crate::api::Backend> $trait for crate::api::service::Api<B> {
            $($served)*

            $(async fn $method(
                &self,
                _: tonic::Request<$request>,
            ) -> Result<tonic::Response<$response>, tonic::Status> {
                Err(crate::api::errors::not_served(concat!($name, ".", $text)))
            })*
        }
    };
}
pub(super) use service;

/// The stream of a method that never answers with one.
pub(super) type NoStream<T> = tokio_stream::Empty<Result<T, Status>>;
