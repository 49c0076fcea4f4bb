//! A client's connection to one endpoint, over h2 itself.
//!
//! Owns connecting, keepalive and the translation of HTTP/2's failures
//! ([`super::trouble`]). A unary call starts no task: its request is written
//! and its answer read by the task that calls. **Promises**: a request is
//! handed to a connection at most once; what came of it is said truthfully
//! ([`super::Trouble::sent`]). **Never** a second try, never another endpoint.

use super::{
    CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, HEADERS_BYTES_MAX, HttpOptions, SEND_BUFFER_BYTES_MAX,
    STREAM_WINDOW_BYTES, connect,
    deadline::{Alarm, DEADLINE_TEXT, grpc_timeout},
    trouble::{from_h2, troubled},
    upload::Upload,
};
use crate::env::timer::{Sleep, now, within};
use bytes::Bytes;
use futures::future::BoxFuture;
use h2::{PingPong, RecvStream, client::SendRequest};
use http::{Request, Response, Uri, uri::Authority};
use http_body::Frame;
use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;
use tonic::{Code, Status, body::Body};

/// A client connection to one endpoint: connects on first use, reconnects,
/// enforces `grpc-timeout`. Cheap to clone; all clones share the connection.
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    address: String,
    /// `None` if the address is malformed: every call is then refused.
    authority: Option<Authority>,
    options: HttpOptions,
    live: Mutex<Option<Live>>,
    /// Locked while a connect is under way, so that there is one at a time.
    last_failure: tokio::sync::Mutex<Option<Failure>>,
}

/// An established connection.
#[derive(Clone)]
struct Live {
    sender: SendRequest<Bytes>,
    /// Calls open on it; its keepalive is silent while there are none.
    calls: Arc<AtomicUsize>,
}

struct Failure {
    at: Instant,
    status: Status,
}

impl Channel {
    /// `address` = `host:port`.
    pub fn lazy(address: &str, options: HttpOptions) -> Channel {
        Channel(Arc::new(Inner {
            address: address.to_owned(),
            authority: address.parse().ok(),
            options,
            live: Mutex::new(None),
            last_failure: tokio::sync::Mutex::new(None),
        }))
    }

    /// `host:port` of the endpoint.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    fn live(&self) -> Option<Live> {
        self.0.live.lock().expect("no panic while the connection is locked").clone()
    }

    /// A connection that takes requests, established if there is none.
    async fn ready(&self) -> Result<Live, Status> {
        if let Some(live) = self.usable().await {
            return Ok(live);
        }
        let asked = now();
        let mut last_failure = self.0.last_failure.lock().await;
        if let Some(live) = self.usable().await {
            return Ok(live); // Whoever held the lock has connected.
        }
        // Callers that queued behind a failed attempt share its fate; later ones wait out the pause.
        if let Some(failure) = &*last_failure
            && (failure.at >= asked || now() < failure.at + self.0.options.reconnect_backoff)
        {
            return Err(failure.status.clone());
        }
        match establish(&self.0.address, &self.0.options).await {
            Ok(live) => {
                *last_failure = None;
                *self.0.live.lock().expect("no panic while the connection is locked") = Some(live.clone());
                Ok(live)
            }
            Err(status) => {
                *last_failure = Some(Failure { at: now(), status: status.clone() });
                Err(status)
            }
        }
    }

    /// The present connection, if it still takes requests.
    async fn usable(&self) -> Option<Live> {
        let mut live = self.live()?;
        // A closed connection, and one whose server is going away, says so here.
        poll_fn(|cx| live.sender.poll_ready(cx)).await.ok()?;
        Some(live)
    }

    /// One exchange. `sent` turns true once the server may see the request.
    async fn exchange(
        &self,
        request: Request<Body>,
        sent: &mut bool,
    ) -> Result<(Response<RecvStream>, Guard), Status> {
        let (head, body) = self.addressed(request)?;
        let mut live = self.ready().await?;
        let mut guard = Guard::new(&live.calls);
        let no_body = http_body::Body::is_end_stream(&body);
        let (answer, stream) = live
            .sender
            .send_request(head, no_body)
            .map_err(|error| from_h2(&error, &self.0.address, false))?;
        *sent = true;
        drop(live);
        if !no_body {
            let mut upload = Upload::new(body, stream);
            match poll_fn(|cx| Poll::Ready(Pin::new(&mut upload).poll(cx))).await {
                Poll::Ready(result) => result?,
                Poll::Pending => guard.upload = Some(continue_upload(upload)),
            }
        }
        let answer = answer.await.map_err(|error| from_h2(&error, &self.0.address, true))?;
        Ok((answer, guard))
    }

    /// The request with an absolute URI, which HTTP/2's pseudo-headers come from.
    fn addressed(&self, request: Request<Body>) -> Result<(Request<()>, Body), Status> {
        let Some(authority) = &self.0.authority else {
            let message = format!("{:?} is not a host and port", self.0.address);
            return Err(troubled(Code::InvalidArgument, message, false));
        };
        let (mut head, body) = request.into_parts();
        let mut parts = std::mem::take(&mut head.uri).into_parts();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        parts.authority = Some(authority.clone());
        head.uri = Uri::from_parts(parts)
            .map_err(|error| troubled(Code::InvalidArgument, format!("bad path: {error}"), false))?;
        head.version = http::Version::HTTP_2;
        Ok((Request::from_parts(head, ()), body))
    }
}

impl tower_service::Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let channel = self.clone();
        let mut alarm = Alarm::after(grpc_timeout(request.headers()));
        Box::pin(async move {
            let mut sent = false;
            let exchanged = tokio::select! {
                biased;
                exchanged = channel.exchange(request, &mut sent) => Some(exchanged),
                () = poll_fn(|cx| alarm.poll(cx)) => None,
            };
            let Some(exchanged) = exchanged else {
                return Err(troubled(Code::DeadlineExceeded, DEADLINE_TEXT, sent));
            };
            let (answer, guard) = exchanged?;
            let address = channel.0.clone();
            Ok(answer.map(|stream| {
                Body::new(Download { stream, alarm, address, _guard: guard, data_done: false })
            }))
        })
    }
}

/// Connects and starts the tasks that serve the connection.
async fn establish(address: &str, options: &HttpOptions) -> Result<Live, Status> {
    let failed = |error: &dyn std::fmt::Display| {
        troubled(Code::Unavailable, format!("cannot connect to {address}: {error}"), false)
    };
    let started = now();
    let stream = connect(address, options.connect_timeout).await.map_err(|error| failed(&error))?;
    let handshake = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .enable_push(false)
        .handshake(stream);
    let left = options.connect_timeout.saturating_sub(now() - started);
    let (sender, mut connection) = match within(left, handshake).await {
        Ok(result) => result.map_err(|error| failed(&error))?,
        Err(elapsed) => return Err(failed(&elapsed)),
    };
    let calls = Arc::new(AtomicUsize::new(0));
    let pings = connection.ping_pong().expect("asked for once");
    let keepalive = keepalive(pings, calls.clone(), options.keepalive_interval, options.keepalive_timeout);
    let address = address.to_owned();
    drop(tokio::spawn(async move {
        tokio::select! {
            biased;
            ended = connection => if let Err(error) = ended {
                tracing::debug!(address, %error, "connection ended");
            },
            () = keepalive => tracing::debug!(address, "connection given up: no answer to a ping"),
        }
    }));
    Ok(Live { sender, calls })
}

/// Returns when the peer left a ping without an answer. Pings go out only
/// while calls are open: etcd's server closes connections that ping when idle.
async fn keepalive(
    mut pings: PingPong,
    calls: Arc<AtomicUsize>,
    interval: Option<Duration>,
    timeout: Duration,
) {
    let Some(interval) = interval else { return std::future::pending().await };
    loop {
        Sleep::lasting(interval).await;
        if calls.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match within(timeout, pings.ping(h2::Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection itself has ended, and says so better.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => {
                crate::reached!("http2 keepalive gave a connection up");
                return;
            }
        }
    }
}

/// Runs the rest of an upload until it is done or the returned sender is dropped.
fn continue_upload(mut upload: Upload) -> oneshot::Sender<()> {
    let (alive, dropped) = oneshot::channel::<()>();
    drop(tokio::spawn(async move {
        tokio::select! {
            biased;
            _ = dropped => upload.cancel(),
            result = &mut upload => if let Err(status) = result {
                tracing::debug!(%status, "the request's body failed");
            },
        }
    }));
    alive
}

/// Keeps a call's place: in the count of open calls, and its upload going.
struct Guard {
    calls: Arc<AtomicUsize>,
    upload: Option<oneshot::Sender<()>>,
}

impl Guard {
    fn new(calls: &Arc<AtomicUsize>) -> Guard {
        calls.fetch_add(1, Ordering::Relaxed);
        Guard { calls: calls.clone(), upload: None }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let before = self.calls.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a call was counted when it began");
    }
}

/// The answer's body. Dropping it before its end resets the stream.
struct Download {
    stream: RecvStream,
    alarm: Alarm,
    address: Arc<Inner>,
    _guard: Guard,
    data_done: bool,
}

impl Download {
    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_done {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Taken out of the window's account at once: the reader asks for a frame when it wants one.
                    if let Err(error) = self.stream.flow_control().release_capacity(data.len()) {
                        return Poll::Ready(Some(Err(error)));
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_done = true,
            }
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = self.poll_stream(cx) {
            let address = &self.address.address;
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| from_h2(&error, address, true))));
        }
        ready!(self.alarm.poll(cx));
        Poll::Ready(Some(Err(troubled(Code::DeadlineExceeded, DEADLINE_TEXT, true))))
    }

    fn is_end_stream(&self) -> bool {
        self.data_done && self.stream.is_end_stream()
    }
}
