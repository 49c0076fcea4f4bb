//! The request's body on its way out, under HTTP/2 flow control.
//!
//! A unary request is gone after the first poll, in one frame that also ends
//! the stream; only what then still waits (a client stream, a full window)
//! needs a task of its own. **Promises** that at most one frame of the body is
//! held here: what the peer's window does not take is not pulled.

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use std::{
    future::Future,
    ops::ControlFlow,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tonic::{Status, body::Body};

pub(super) struct Upload {
    body: Body,
    stream: SendStream<Bytes>,
    /// A frame of the body that waits for the window.
    waiting: Option<Bytes>,
}

/// What the body gave.
enum Next {
    Data(Bytes),
    End,
}

impl Upload {
    pub(super) fn new(body: Body, stream: SendStream<Bytes>) -> Upload {
        Upload { body, stream, waiting: None }
    }

    /// Gives the call up: the peer gets a reset.
    pub(super) fn cancel(&mut self) {
        self.stream.send_reset(Reason::CANCEL);
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Next, Status>> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => Ok(Next::End),
                Some(Err(status)) => {
                    self.cancel();
                    Err(status)
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => Ok(Next::Data(data)),
                    Err(_trailers) => continue, // gRPC requests have none.
                },
            });
        }
    }

    /// Sends `data` as the window takes it; what is left stays in `waiting`.
    /// Breaks when nothing more is to be sent, continues when the body has to be awaited.
    fn poll_send(&mut self, cx: &mut Context<'_>, mut data: Bytes) -> Poll<ControlFlow<Result<(), Status>>> {
        /// The stream is closed, and the answer says why.
        const CLOSED: Poll<ControlFlow<Result<(), Status>>> = Poll::Ready(ControlFlow::Break(Ok(())));
        loop {
            self.stream.reserve_capacity(data.len());
            let mut room = self.stream.capacity();
            if room == 0 && !data.is_empty() {
                match self.stream.poll_capacity(cx) {
                    Poll::Ready(Some(Ok(granted))) => room = granted,
                    Poll::Ready(_) => return CLOSED,
                    Poll::Pending => {
                        self.waiting = Some(data);
                        return Poll::Pending;
                    }
                }
            }
            if room < data.len() {
                let part = data.split_to(room);
                if self.stream.send_data(part, false).is_err() {
                    return CLOSED;
                }
                continue;
            }
            // One look ahead: most often nothing follows, and this frame ends the stream.
            let next = self.poll_body(cx);
            let ends = matches!(next, Poll::Ready(Ok(Next::End)));
            if let Poll::Ready(Err(status)) = next {
                return Poll::Ready(ControlFlow::Break(Err(status)));
            }
            if self.stream.send_data(data, ends).is_err() || ends {
                return CLOSED;
            }
            match next {
                Poll::Ready(Ok(Next::Data(following))) => data = following,
                _ => return Poll::Ready(ControlFlow::Continue(())),
            }
        }
    }
}

/// Completes when the whole body is out or no one wants it any more; an error
/// is the body's own (a message too large to encode).
impl Future for Upload {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let this = &mut *self;
        loop {
            let data = match this.waiting.take() {
                Some(data) => data,
                None => match this.poll_body(cx) {
                    Poll::Ready(Ok(Next::Data(data))) => data,
                    Poll::Ready(Ok(Next::End)) => {
                        // A failure here is the stream's, which the answer reports.
                        drop(this.stream.send_data(Bytes::new(), true));
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Ready(Err(status)) => return Poll::Ready(Err(status)),
                    Poll::Pending => break,
                },
            };
            match this.poll_send(cx, data) {
                Poll::Ready(ControlFlow::Continue(())) => {}
                Poll::Ready(ControlFlow::Break(result)) => return Poll::Ready(result),
                Poll::Pending => break,
            }
        }
        // While waiting, notice that the peer has closed the stream.
        match this.stream.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }
}
