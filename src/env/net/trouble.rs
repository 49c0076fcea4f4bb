//! How a call failed below gRPC, as a status that still says so.
//!
//! An *answer* is what the server said. *Trouble* is everything the channel
//! itself has to report: no connection, a lost one, a deadline that passed
//! here. A status made of trouble carries a [`Trouble`] as its source, so that
//! whoever decides on retries need not guess from texts.

use std::{error::Error, fmt, sync::Arc};
use tonic::{Code, Status};

/// The source of a status that no server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The request may have reached the server. If not, it is certain that no
    /// server has acted on it.
    pub sent: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sent { "connection trouble, request sent" } else { "request not sent" })
    }
}

impl Error for Trouble {}

/// The trouble behind a status; `None` if it is a server's answer.
pub fn trouble(status: &Status) -> Option<Trouble> {
    status.source()?.downcast_ref::<Trouble>().copied()
}

/// A status for trouble of the channel's own.
pub(super) fn troubled(code: Code, message: impl Into<String>, sent: bool) -> Status {
    let mut status = Status::new(code, message);
    status.set_source(Arc::new(Trouble { sent }));
    status
}

/// The status for an HTTP/2 error of a call on `address`. `sent`: the request
/// had been handed to the connection.
///
/// Codes as the gRPC protocol maps HTTP/2 error codes (PROTOCOL-HTTP2.md,
/// "HTTP2 Transport Mapping, Errors").
pub(super) fn from_h2(error: &h2::Error, address: &str, sent: bool) -> Status {
    use h2::Reason;
    let code = match error.reason() {
        None | Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        _ if error.is_io() || error.is_go_away() => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(_) => Code::Internal,
    };
    // RFC 9113, 6.8 and 8.7: a stream above the last one that a GOAWAY names,
    // and a refused one, were not processed. h2 gives the first kind of error
    // to just those streams.
    let untouched =
        error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM));
    troubled(code, format!("connection to {address} failed: {error}"), sent && !untouched)
}
