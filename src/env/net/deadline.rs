//! `grpc-timeout`: the caller's deadline, kept on the server.
//!
//! [`super::serve_http`] keeps it for every gRPC request already; the
//! [`DeadlineLayer`] is for routers served by other means. When the time is up
//! the handler is dropped and the caller gets code 4 with etcd's text, also in
//! the middle of a stream. A request without the header costs one look-up.
//! **Never** for the JSON gateway, whose errors are not trailers.

use super::super::timer::{Sleep, far, now};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tonic::Status;
use tower_service::Service;

/// What etcd says when a deadline passed (tests/facts/errors.tsv).
pub(super) const DEADLINE_TEXT: &str = "context deadline exceeded";

/// The `grpc-timeout` header: one to eight digits and a unit; `None` if it is
/// absent or malformed (PROTOCOL-HTTP2.md, "Timeout").
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "n" => Some(Duration::from_nanos(count)),
        "u" => Some(Duration::from_micros(count)),
        "m" => Some(Duration::from_millis(count)),
        "S" => Some(Duration::from_secs(count)),
        "M" => Some(Duration::from_secs(count * 60)),
        "H" => Some(Duration::from_secs(count * 3600)),
        _ => None,
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A point in time with a timer that is made when first waited for, so that an
/// answer that is there at once costs none.
#[derive(Default)]
pub(super) struct Alarm {
    at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    pub(super) fn after(timeout: Option<Duration>) -> Alarm {
        Alarm { at: timeout.map(|timeout| far(now(), timeout)), timer: None }
    }

    pub(super) fn is_set(&self) -> bool {
        self.at.is_some()
    }

    /// Ready when the time is up; pending for ever if none is set.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        self.timer.get_or_insert_with(|| Box::pin(Sleep::until(at))).as_mut().poll(cx)
    }
}

/// Applies [`DeadlineService`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DeadlineLayer;

impl<S> tower_layer::Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> DeadlineService<S> {
        DeadlineService { inner }
    }
}

/// Ends a gRPC call when its `grpc-timeout` has passed.
#[derive(Clone, Debug)]
pub struct DeadlineService<S> {
    inner: S,
}

impl<S, A, B> Service<Request<A>> for DeadlineService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body + Default,
{
    type Response = Response<TimedBody<B>>;
    type Error = S::Error;
    type Future = Timed<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Timed<S::Future> {
        let alarm = alarm_of(request.headers());
        Timed::new(self.inner.call(request), alarm)
    }
}

/// The alarm that a request asks for.
pub(super) fn alarm_of(headers: &HeaderMap) -> Alarm {
    Alarm::after(grpc_timeout(headers).filter(|_| is_grpc(headers)))
}

pin_project_lite::pin_project! {
    /// An answer under way, with its deadline.
    pub struct Timed<F> {
        #[pin]
        inner: F,
        alarm: Alarm,
    }
}

impl<F> Timed<F> {
    pub(super) fn new(inner: F, alarm: Alarm) -> Timed<F> {
        Timed { inner, alarm }
    }
}

impl<F, B, E> Future for Timed<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body + Default,
{
    type Output = Result<Response<TimedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.inner.poll(cx) {
            let alarm = std::mem::take(this.alarm);
            return Poll::Ready(result.map(|answer| answer.map(|inner| TimedBody::new(inner, alarm))));
        }
        ready!(this.alarm.poll(cx));
        crate::reached!("a deadline passed on the server");
        let answer: Response<B> = Status::deadline_exceeded(DEADLINE_TEXT).into_http();
        Poll::Ready(Ok(answer.map(|inner| TimedBody::new(inner, Alarm::default()))))
    }
}

pin_project_lite::pin_project! {
    /// An answer's body; the deadline's status ends it when the time is up.
    pub struct TimedBody<B> {
        #[pin]
        inner: B,
        alarm: Alarm,
        ended: bool,
    }
}

impl<B> TimedBody<B> {
    pub(super) fn new(inner: B, alarm: Alarm) -> TimedBody<B> {
        TimedBody { inner, alarm, ended: false }
    }
}

impl<B: Body> Body for TimedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = this.inner.poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(this.alarm.poll(cx));
        crate::reached!("a deadline passed in a stream");
        *this.ended = true;
        let mut trailers = HeaderMap::with_capacity(2);
        Status::deadline_exceeded(DEADLINE_TEXT)
            .add_header(&mut trailers)
            .expect("a short ASCII text fits in a header");
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // With a deadline the body may end before the inner one has.
        if self.alarm.is_set() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_takes_the_layer() {
        let route = axum::routing::get(|| async {});
        let _: axum::Router = axum::Router::new().route("/", route).layer(DeadlineLayer);
    }

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        let check = |text: &str, expected: Option<Duration>| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(grpc_timeout(&headers), expected, "{text:?}");
        };
        check("1n", Some(Duration::from_nanos(1)));
        check("20u", Some(Duration::from_micros(20)));
        check("300m", Some(Duration::from_millis(300)));
        check("5S", Some(Duration::from_secs(5)));
        check("2M", Some(Duration::from_secs(120)));
        check("1H", Some(Duration::from_secs(3600)));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        for malformed in ["", "S", "5", "5s", "-5S", "+5S", "123456789S", "5 S", "1.5S"] {
            check(malformed, None);
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
