//! gRPC and plain HTTP on one port.
//!
//! Owns the accept loop and the life of each connection. **Promises**: a stop
//! refuses new connections at once, lets calls in flight finish for at most
//! [`HttpOptions::drain`], then cuts them off; `serve_http` returns only when
//! no connection is left. Deadlines of gRPC calls are kept here
//! ([`super::deadline`]), without a box. **Never** routes. The service
//! must always be ready: nobody asks it.

use super::{
    CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, HEADERS_BYTES_MAX, HttpOptions, Listener,
    SEND_BUFFER_BYTES_MAX, STREAM_WINDOW_BYTES, Stream,
    deadline::{Timed, TimedBody, alarm_of},
    streams::{Begun, Together},
};
use crate::env::timer::{Runtime, Sleep, within};
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper_util::{rt::TokioIo, server::conn::auto};
use std::{convert::Infallible, net::SocketAddr, time::Duration};
use tokio::sync::{mpsc, watch};
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The peer's address, in the extensions of each request.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress(pub SocketAddr);

/// After an accept that failed (no file descriptors, mostly) the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Calls that a client may open and reset before they were taken up; a client
/// that cancels many watches at once must not look like an attack.
const PENDING_RESETS_MAX: usize = 1024;

/// Serves gRPC and HTTP/1.1 on one port until `stop` turns true (or its sender
/// is gone), then drains.
pub async fn serve_http<S, B>(
    listener: Listener,
    service: S,
    options: HttpOptions,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Default + Send + 'static,
    B::Error: Into<BoxError>,
{
    // Closes when the last connection has dropped its end.
    let (open, mut drained) = mpsc::channel::<Infallible>(1);
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    Sleep::lasting(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let handler = Handler { service: service.clone(), peer: RemoteAddress(peer) };
        let connection = serve_connection(stream, handler, options.clone(), stop.clone());
        let open = open.clone();
        drop(tokio::spawn(async move {
            connection.await;
            drop(open);
        }));
    }
    drop(open);
    drop(listener);
    let never = drained.recv().await;
    assert!(never.is_none(), "nothing is ever sent on this channel");
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the server's owner.
    drop(stop.wait_for(|stop| *stop).await);
}

fn builder(options: &HttpOptions, calls: Begun) -> auto::Builder<Begun> {
    let mut builder = auto::Builder::new(calls);
    builder
        .http1()
        .timer(Runtime)
        // hyper keeps the current date in a thread-local: a leak between seeds.
        .auto_date_header(cfg!(not(madsim)))
        .header_read_timeout(options.header_read_timeout);
    builder
        .http2()
        .timer(Runtime)
        // gRPC servers send none.
        .auto_date_header(false)
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .max_concurrent_streams(options.streams_max)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX);
    builder
}

async fn serve_connection<S, B>(
    stream: Stream,
    handler: Handler<S>,
    options: HttpOptions,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Default + Send + 'static,
    B::Error: Into<BoxError>,
{
    let peer = handler.peer.0;
    let calls = Begun::default();
    let builder = builder(&options, calls.clone());
    let connection = builder.serve_connection(TokioIo::new(stream), handler);
    let mut connection = std::pin::pin!(Together::new(connection, calls));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().connection().graceful_shutdown();
            match within(options.drain, connection).await {
                Ok(ended) => ended,
                Err(_) => {
                    crate::reached!("a connection was cut off at stop");
                    tracing::debug!(%peer, "connection cut off at stop");
                    return;
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, error, "connection ended");
    }
}

/// Hands a connection's requests to the service.
struct Handler<S> {
    service: S,
    peer: RemoteAddress,
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Handler<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body + Default,
{
    type Response = Response<TimedBody<B>>;
    type Error = Infallible;
    type Future = Timed<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        let alarm = alarm_of(request.headers());
        // Services of this kind are always ready.
        Timed::new(self.service.clone().call(request), alarm)
    }
}
