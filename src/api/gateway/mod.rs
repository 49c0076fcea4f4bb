//! The JSON gateway: every unary method of the route table as
//! `POST /v3/...`, in proto3 JSON.
//!
//! **Invariant.** No code for any message or method: requests and replies are
//! converted by their descriptors ([`decode`], [`encode`]) and the call is the
//! gRPC call itself, made in-process through [`Grpc`], so that checks, limits,
//! metadata and counts are the same on both ways in.

mod decode;
mod encode;
mod routes;

use super::{
    Backend,
    errors::{self, Error},
    grpc::{Grpc, Method, Methods},
};
use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use prost::Message;
use prost_reflect::DynamicMessage;
use std::time::Duration;
use tonic::{Code, Status};

/// Bytes of gRPC's frame before a message: a flag and the length.
const FRAME_HEAD_BYTES: usize = 5;

/// The path that routes are written with, and the older one that means the same.
const PREFIX: &str = "/v3/";
const PREFIX_BETA: &str = "/v3beta/";

/// This path is the gateway's to answer, with a 404 too.
pub(super) fn is_routed<B: Backend>(grpc: &Grpc<B>, path: &str) -> bool {
    grpc.api().settings.gateway && (path.starts_with(PREFIX) || path.starts_with(PREFIX_BETA))
}

/// Answers one request.
pub(super) async fn serve<B: Backend>(grpc: &Grpc<B>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    // Read first, answer then: a connection stays open only when its request was read.
    let limit = body_bytes_max(grpc.api().settings.message_bytes_max());
    let body = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            return refused(&errors::message_too_large(
                limit as u64 + 1,
                grpc.api().settings.message_bytes_max(),
            ));
        }
    };
    let path = parts.uri.path();
    let method = match path.strip_prefix(PREFIX_BETA) {
        Some(rest) => routes::find(rest),
        None => path.strip_prefix(PREFIX).and_then(routes::find),
    };
    let Some(number) = method else {
        return refused(&Status::not_found("Not Found"));
    };
    if parts.method != ::http::Method::POST {
        return refused(&Status::unimplemented("Method Not Allowed"));
    }
    let method = &Methods::get().list[number];
    let call = call(grpc, method, &parts.headers, &body);
    let result = match timeout(&parts.headers) {
        None => call.await,
        Some(within) => {
            tokio::select! { biased;
                result = call => result,
                () = grpc.api().clock.sleep(within) => Err(Error::ContextDeadlineExceeded.status()),
            }
        }
    };
    match result {
        Ok((json, metadata)) => {
            let mut response = json_response(StatusCode::OK, json);
            show_metadata(&metadata, response.headers_mut());
            response
        }
        Err(status) if method.streams_out => {
            let mut json = String::from("{\"error\":");
            json.push_str(&error_json(&status));
            json.push_str("}\n");
            json_response(http_status(status.code()), json)
        }
        Err(status) => refused(&status),
    }
}

/// Base64 and escapes make JSON larger than its message; beyond twice the size, and some for
/// names, a message would not pass anyway.
fn body_bytes_max(message_bytes_max: u64) -> usize {
    usize::try_from(message_bytes_max.saturating_mul(2).saturating_add(64 * 1024)).unwrap_or(usize::MAX)
}

/// JSON to bytes, the gRPC call, bytes to JSON; with the reply's metadata.
async fn call<B: Backend>(
    grpc: &Grpc<B>,
    method: &Method,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(String, HeaderMap), Status> {
    let message = decode::message(&method.descriptor.input(), body).map_err(Status::invalid_argument)?;
    let mut request = Request::new(Full::new(framed(&message)));
    *request.method_mut() = ::http::Method::POST;
    *request.uri_mut() = method.path.parse().expect("a method's path is a path");
    *request.headers_mut() = metadata(headers);
    let response = grpc.call(request).await;
    if let Some(status) =
        Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok)
    {
        return Err(status);
    }
    if method.streams_out {
        // Streamed replies come with the first service that streams over this gateway.
        return Err(errors::not_served("a streamed reply over the JSON gateway"));
    }
    let (parts, body) = response.into_parts();
    let collected = body.collect().await?;
    if let Some(status) = collected.trailers().and_then(Status::from_header_map)
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    let mut frame = collected.to_bytes();
    if frame.len() < FRAME_HEAD_BYTES {
        return Err(Status::internal("quorate: a reply without a message"));
    }
    let reply = DynamicMessage::decode(method.descriptor.output(), frame.split_off(FRAME_HEAD_BYTES))
        .map_err(|error| Status::internal(format!("quorate: a reply that does not decode: {error}")))?;
    Ok((encode::message(&reply), parts.headers))
}

fn framed(message: &DynamicMessage) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + length);
    frame.put_u8(0);
    // What does not fit is above every limit: the length is refused before the bytes are looked at.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut frame);
    frame.freeze()
}

/// The request's metadata: what HTTP headers are forwarded as.
fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    metadata.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    metadata.insert(header::TE, HeaderValue::from_static("trailers"));
    if let Some(token) = headers.get(header::AUTHORIZATION) {
        metadata.insert(header::AUTHORIZATION, token.clone());
    }
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix("grpc-metadata-") else { continue };
        // What frames the call itself is not metadata.
        let own = name.starts_with("grpc-") || name == "content-type" || name == "te";
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes())
            && !own
        {
            metadata.append(name, value.clone());
        }
    }
    metadata
}

/// Reply metadata as HTTP headers; the stack's own among it, as etcd shows them.
fn show_metadata(metadata: &HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in metadata {
        if name.as_str().starts_with("grpc-") {
            continue;
        }
        if let Ok(name) = HeaderName::from_bytes(format!("grpc-metadata-{name}").as_bytes()) {
            headers.append(name, value.clone());
        }
    }
}

/// `Grpc-Timeout`: digits and a unit, `H M S m u n`. What is none of that sets no limit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number.saturating_mul(3600)),
        "M" => Duration::from_secs(number.saturating_mul(60)),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

fn json_response(status: StatusCode, json: String) -> Response<Body> {
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn error_json(status: &Status) -> String {
    let message = serde_json::to_string(status.message()).expect("a string is JSON");
    format!("{{\"code\":{},\"message\":{message}}}", status.code() as i32)
}

fn refused(status: &Status) -> Response<Body> {
    let mut response = json_response(http_status(status.code()), error_json(status));
    if status.code() == Code::Unauthenticated
        && let Ok(challenge) = HeaderValue::from_str(status.message())
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// A gRPC code as an HTTP status.
fn http_status(code: Code) -> StatusCode {
    let number = match code {
        Code::Ok => 200,
        Code::Cancelled => 499,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unauthenticated => 401,
    };
    StatusCode::from_u16(number).expect("a number between 100 and 999")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_map_as_the_facts_say() {
        let text = include_str!("../../../tests/facts/services.tsv");
        let line = text.lines().find(|line| line.starts_with("code to HTTP\t")).unwrap();
        let mut seen = 0;
        for part in line.split_once('\t').unwrap().1.split("; ") {
            let words: Vec<&str> = part.split(' ').collect();
            let code = Code::from(words[0].parse::<i32>().unwrap());
            assert_eq!(http_status(code).as_u16().to_string(), *words.last().unwrap(), "{part}");
            seen += 1;
        }
        assert_eq!(seen, 17);
    }

    #[test]
    fn timeouts_are_read() {
        let check = |text: &'static str, expected: Option<Duration>| {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static("grpc-timeout"),
                HeaderValue::from_static(text),
            )]);
            assert_eq!(timeout(&headers), expected, "{text}");
        };
        check("5S", Some(Duration::from_secs(5)));
        check("20m", Some(Duration::from_millis(20)));
        check("1n", Some(Duration::from_nanos(1)));
        check("1H", Some(Duration::from_secs(3600)));
        check("S", None);
        check("", None);
        check("5x", None);
        check("-5S", None);
    }
}
