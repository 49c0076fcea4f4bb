//! A small etcd-like server for tests: keys say how it behaves.
//!
//! It answers what its script says, and when that is used up: `hang` never,
//! `big` with a value as long as the limit asks, anything else at once. Every
//! put that it acts on is counted.

use super::{HttpOptions, Listener, RemoteAddress, serve_http};
use crate::proto::etcdserverpb::{
    kv_server::{Kv, KvServer},
    watch_server::{Watch, WatchServer},
    *,
};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// What the server does with its next call.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Answer,
    Refuse(Status),
    Hang,
}

#[derive(Clone, Default)]
pub(crate) struct Fake {
    pub script: Arc<Mutex<VecDeque<Act>>>,
    /// Calls seen, and puts acted on.
    pub calls: Arc<AtomicUsize>,
    pub revision: Arc<AtomicI64>,
    /// Handlers dropped before they ended.
    pub dropped: Arc<AtomicUsize>,
}

struct CountDrop(Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Items<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    async fn act(&self, key: &[u8]) -> Result<(), Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let act = self.script.lock().unwrap().pop_front();
        let hang = key == b"hang";
        match act.unwrap_or(if hang { Act::Hang } else { Act::Answer }) {
            Act::Answer => Ok(()),
            Act::Refuse(status) => Err(status),
            Act::Hang => {
                let _dropped = CountDrop(self.dropped.clone());
                std::future::pending().await
            }
        }
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision.load(Ordering::SeqCst), ..Default::default() })
    }
}

#[tonic::async_trait]
impl Kv for Fake {
    type RangeStreamStream = Items<RangeStreamResponse>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        assert!(request.extensions().get::<RemoteAddress>().is_some(), "the peer's address is known");
        let request = request.into_inner();
        self.act(&request.key).await?;
        let length = if request.key == b"big"[..] { request.limit as usize } else { 1 };
        let kv = crate::proto::mvccpb::KeyValue {
            key: request.key,
            value: vec![7; length].into(),
            ..Default::default()
        };
        Ok(Response::new(RangeResponse {
            header: self.header(),
            kvs: vec![kv],
            count: 1,
            ..Default::default()
        }))
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Items<RangeStreamResponse>>, Status> {
        let request = request.into_inner();
        let parts: Vec<_> = (0..request.limit)
            .map(|count| {
                let range_response = Some(RangeResponse { count, ..Default::default() });
                Ok(RangeStreamResponse { range_response })
            })
            .collect();
        let head = tokio_stream::iter(parts);
        if request.key != b"hang"[..] {
            return Ok(Response::new(Box::pin(head)));
        }
        let tail = futures::stream::pending();
        Ok(Response::new(Box::pin(futures::StreamExt::chain(head, tail))))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.act(&request.into_inner().key).await?;
        self.revision.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(PutResponse { header: self.header(), prev_kv: None }))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.act(&request.into_inner().key).await?;
        Ok(Response::new(DeleteRangeResponse { header: self.header(), ..Default::default() }))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.act(b"").await?;
        Ok(Response::new(TxnResponse { header: self.header(), ..Default::default() }))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.act(b"").await?;
        Ok(Response::new(CompactionResponse { header: self.header() }))
    }
}

#[tonic::async_trait]
impl Watch for Fake {
    type WatchStream = Items<WatchResponse>;

    /// One answer for each request, the end when the client ends.
    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Items<WatchResponse>>, Status> {
        let header = self.header();
        let answers = futures::StreamExt::map(request.into_inner(), move |request| {
            request.map(|_| WatchResponse { header, created: true, ..Default::default() })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// A fake that listens.
pub(crate) struct Running {
    pub address: SocketAddr,
    pub fake: Fake,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn start(fake: Fake, at: &str, options: HttpOptions) -> Running {
        let listener = Listener::bind(at.parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap();
        let router =
            tonic::service::Routes::new(KvServer::new(fake.clone()).max_decoding_message_size(1 << 30))
                .add_service(WatchServer::new(fake.clone()))
                .prepare()
                .into_axum_router()
                .route("/health", axum::routing::get(|| async { "ok" }));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve_http(listener, router, options, stopped));
        Running { address, fake, stop, task }
    }

    /// Asks to stop; `stopped` waits for it.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Serves until its node dies.
    #[cfg(madsim)]
    pub(crate) async fn stopped_by_others(self) {
        self.task.await.unwrap();
    }

    pub(crate) async fn stopped(self) {
        self.stop();
        self.task.await.unwrap();
    }
}
