//! Unary calls whose request lies in one piece, as nearly all do: taken out of
//! the frame that brought them and answered without the buffers and boxes that
//! a stream of messages needs.
//!
//! **Promises**: what is not a plain, whole, uncompressed message within the
//! limit goes to tonic as it came, which says what is wrong with it in its own
//! words; answers are the same bytes as tonic's. **Never** knows a method.

use super::{Backend, service::Api};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::Message;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};
use tonic::{Status, body::Body, metadata::MetadataMap};

/// Flag and length before each message (PROTOCOL-HTTP2.md, "Length-Prefixed-Message").
const PREFIX: usize = 5;

/// A method of a service: its handler in the generated trait.
pub(super) type Handler<B, Q, A> =
    for<'a> fn(&'a Api<B>, tonic::Request<Q>) -> BoxFuture<'a, Result<tonic::Response<A>, Status>>;

/// Answers `request` with `handler`, or gives it back as it came.
pub(super) async fn unary<B, R, Q, A>(
    api: &Api<B>,
    request: Request<R>,
    handler: Handler<B, Q, A>,
) -> Result<Response<Body>, Request<Replayed<R>>>
where
    B: Backend,
    R: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    Q: Message + Default,
    A: Message,
{
    let (parts, mut body) = request.into_parts();
    if parts.headers.contains_key("grpc-encoding") {
        return Err(Request::from_parts(parts, Replayed::untouched(body)));
    }
    let first = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
    let limit = usize::try_from(api.settings.message_bytes_max()).unwrap_or(usize::MAX);
    let message = match &first {
        Some(Ok(frame)) if body.is_end_stream() => frame.data_ref().and_then(|data| whole::<Q>(data, limit)),
        _ => None,
    };
    let Some(message) = message else {
        crate::reached!("a unary request is not one plain frame");
        return Err(Request::from_parts(parts, Replayed { first: Some(first), rest: body }));
    };
    drop((first, body));
    let metadata = MetadataMap::from_headers(parts.headers);
    let request = tonic::Request::from_parts(metadata, parts.extensions, message);
    Ok(match handler(api, request).await {
        Ok(answer) => answered(answer),
        Err(status) => status.into_http(),
    })
}

/// The message, if `data` is exactly one.
fn whole<Q: Message + Default>(data: &Bytes, limit: usize) -> Option<Q> {
    let (prefix, payload) = data.split_first_chunk::<PREFIX>()?;
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if prefix[0] != 0 || length != payload.len() || length > limit {
        return None;
    }
    Q::decode(data.slice(PREFIX..)).ok()
}

fn answered<A: Message>(answer: tonic::Response<A>) -> Response<Body> {
    let (metadata, message, extensions) = answer.into_parts();
    let length = message.encoded_len();
    let Ok(length_on_the_wire) = u32::try_from(length) else {
        return Status::resource_exhausted("an answer of 4 GiB or more cannot be framed").into_http();
    };
    let mut data = BytesMut::with_capacity(PREFIX + length);
    data.put_u8(0);
    data.put_u32(length_on_the_wire);
    message.encode(&mut data).expect("the buffer was made as long as the message");
    let mut response = Response::new(Body::new(Answer { data: Some(data.freeze()), ended: false }));
    *response.headers_mut() = metadata.into_headers();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    *response.extensions_mut() = extensions;
    response
}

/// One message, then the trailers of success.
struct Answer {
    data: Option<Bytes>,
    ended: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// A body whose first frame, or whose end, may have been seen already.
pub(super) struct Replayed<R: HttpBody> {
    first: Option<Option<Result<Frame<Bytes>, R::Error>>>,
    rest: R,
}

impl<R: HttpBody> Replayed<R> {
    /// Nothing of `rest` was seen.
    pub(super) fn untouched(rest: R) -> Replayed<R> {
        Replayed { first: None, rest }
    }
}

// Nothing in it is pinned but what is `Unpin` itself.
impl<R: HttpBody + Unpin> Unpin for Replayed<R> {}

impl<R: HttpBody<Data = Bytes> + Unpin> HttpBody for Replayed<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.first.is_some() { SizeHint::default() } else { self.rest.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_proto::etcdserverpb::PutRequest;

    fn frame(flag: u8, length: usize, payload: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u8(flag);
        frame.put_u32(length as u32);
        frame.put_slice(payload);
        frame.freeze()
    }

    #[test]
    fn only_one_whole_plain_message_is_taken() {
        let put = PutRequest { key: Bytes::from_static(b"k"), ..PutRequest::default() };
        let payload = put.encode_to_vec();
        let length = payload.len();
        let check = |data: Bytes, limit: usize, taken: bool| {
            assert_eq!(whole::<PutRequest>(&data, limit), taken.then(|| put.clone()), "{data:?}");
        };
        check(frame(0, length, &payload), length, true);
        check(frame(0, length, &payload), length - 1, false);
        check(frame(1, length, &payload), length, false);
        check(frame(0, length + 1, &payload), 100, false);
        check(frame(0, length - 1, &payload), 100, false);
        check(frame(0, 1, &[0xff]), 100, false);
        check(Bytes::from_static(&[0; PREFIX - 1]), 100, false);
        check(Bytes::new(), 100, false);
        assert_eq!(whole(&frame(0, 0, &[]), 100), Some(PutRequest::default()));
    }
}
