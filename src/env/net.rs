//! Sockets, and HTTP over them: one source for production and simulation.

use std::{io, net::SocketAddr, time::Duration};
use tokio::sync::watch;

/// A connected socket with TCP_NODELAY (production) or the repaired simulated stream.
pub use stream::Stream;
mod stream {
    // Placeholder until the transport is written: AsyncRead + AsyncWrite + Unpin + Send.
    pub type Stream = tokio::net::TcpStream;
}

/// A bound port.
pub struct Listener(tokio::net::TcpListener);

impl Listener {
    /// `address`: an IP and port.
    pub async fn bind(address: SocketAddr) -> io::Result<Listener> {
        let _ = address;
        todo!()
    }
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        todo!()
    }
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Connects to `host:port` within `timeout`.
pub async fn connect(address: &str, timeout: Duration) -> io::Result<Stream> {
    let _ = (address, timeout);
    todo!()
}

/// Limits and timers of HTTP connections (both sides).
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// HTTP/2 ping interval; `None` = off.
    pub keepalive_interval: Option<Duration>,
    pub keepalive_timeout: Duration,
    pub connect_timeout: Duration,
    /// A failed connect is not tried again before this has passed.
    pub reconnect_backoff: Duration,
    pub streams_max: u32,
    /// How long a stopping server waits for open connections.
    pub drain: Duration,
    pub header_read_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            keepalive_interval: Some(Duration::from_secs(2)),
            keepalive_timeout: Duration::from_secs(6),
            connect_timeout: Duration::from_secs(2),
            reconnect_backoff: Duration::from_millis(100),
            streams_max: u32::MAX,
            drain: Duration::from_secs(7),
            header_read_timeout: Duration::from_secs(300),
        }
    }
}

/// The peer's address, in the extensions of each request.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress(pub SocketAddr);

/// Serves gRPC and HTTP/1.1 on one port until `stop` turns true, then drains.
pub async fn serve_http(listener: Listener, router: axum::Router, options: HttpOptions, stop: watch::Receiver<bool>) {
    let _ = (listener, router, options, stop);
    todo!()
}

/// A client connection to one endpoint: connects on first use, reconnects,
/// enforces `grpc-timeout`. Implements
/// `tower_service::Service<http::Request<tonic::body::Body>, Response = http::Response<tonic::body::Body>, Error = tonic::Status>`.
#[derive(Clone)]
pub struct Channel(());

impl Channel {
    /// `address` = `host:port`.
    pub fn lazy(address: &str, options: HttpOptions) -> Channel {
        let _ = (address, options);
        todo!()
    }
}
