//! Sockets, and HTTP over them: one source for production and simulation.
//!
//! tonic, hyper and h2 are runtime-neutral below their transport; this is that
//! transport, over [`Stream`]. In simulation the stream is repaired where the
//! simulated network is unlike a real one ([`stream`]), so real bytes, real
//! HTTP/2, limits and deadlines run there. **Never** what a request means, and
//! never a second try: whoever calls decides on retries.

mod channel;
mod deadline;
#[cfg(test)]
#[cfg_attr(madsim, allow(dead_code))] // The simulated tests use less of it.
pub(crate) mod fake;
mod http_server;
#[cfg(madsim)]
pub mod links;
mod listener;
#[cfg(test)]
#[cfg(madsim)]
mod simulated;
mod stream;
mod streams;
#[cfg(test)]
#[cfg(not(madsim))]
mod tests;
mod trouble;
mod upload;

pub use channel::Channel;
pub use deadline::{DeadlineLayer, DeadlineService, TimedBody, grpc_timeout};
pub use http_server::{RemoteAddress, serve_http};
pub use listener::{Listener, connect};
pub use stream::Stream;
pub use trouble::{Trouble, trouble};

use std::time::Duration;

/// Limits and timers of HTTP connections (both sides).
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// HTTP/2 ping interval; `None` = off. A client pings only while calls are open.
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

/// Bytes a peer may send on one HTTP/2 stream before it must wait for us. With
/// the 64 KiB of RFC 9113, one 1 MiB value costs 16 round trips.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Largest HTTP/2 frame taken; a big value then needs fewer of them.
const FRAME_BYTES_MAX: u32 = 64 << 10;
/// Bytes of one stream that may wait in memory for the peer's window (I10).
const SEND_BUFFER_BYTES_MAX: usize = 1 << 20;
/// Bytes of headers taken in one request or answer.
const HEADERS_BYTES_MAX: u32 = 256 << 10;

const _: () = assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
const _: () = assert!(FRAME_BYTES_MAX >= 16 << 10 && FRAME_BYTES_MAX < 1 << 24); // RFC 9113, 4.2
