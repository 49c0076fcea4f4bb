//! The transport on loopback: what a client and a server see of each other.

use super::{fake::*, *};
use crate::{
    env::timer::within,
    proto::etcdserverpb::{kv_client::KvClient, watch_client::WatchClient, *},
};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Request, Status};

const LOOPBACK: &str = "127.0.0.1:0";

fn options() -> HttpOptions {
    HttpOptions {
        connect_timeout: Duration::from_secs(2),
        reconnect_backoff: Duration::from_millis(1),
        drain: Duration::from_millis(50),
        ..HttpOptions::default()
    }
}

async fn start() -> Running {
    Running::start(Fake::default(), LOOPBACK, options()).await
}

fn client(server: &Running) -> KvClient<Channel> {
    KvClient::new(Channel::lazy(&server.address.to_string(), options())).max_decoding_message_size(1 << 30)
}

fn put(key: &'static str, length: usize) -> PutRequest {
    PutRequest { key: key.into(), value: vec![1; length].into(), ..Default::default() }
}

fn range(key: &'static str, limit: i64) -> RangeRequest {
    RangeRequest { key: key.into(), limit, ..Default::default() }
}

fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// No test here waits longer than this for anything.
async fn bounded<F: Future>(work: F) -> F::Output {
    within(Duration::from_secs(20), work).await.expect("bounded")
}

#[tokio::test]
async fn unary_calls_of_every_size() {
    bounded(async {
        let server = start().await;
        let mut client = client(&server);
        for (calls, length) in [0, 1, 256, 20_000, 70_000, 3 << 20, 20 << 20].into_iter().enumerate() {
            let answer = client.put(put("key", length)).await.unwrap().into_inner();
            assert_eq!(answer.header.unwrap().revision, calls as i64 + 1, "put of {length} bytes");
            let answer = client.range(range("big", length as i64)).await.unwrap().into_inner();
            assert_eq!(answer.kvs[0].value.len(), length);
        }
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn many_calls_share_a_connection() {
    bounded(async {
        let server = start().await;
        let channel = Channel::lazy(&server.address.to_string(), options());
        let calls = (0..300).map(|_| {
            let mut client = KvClient::new(channel.clone());
            tokio::spawn(async move { client.put(put("key", 5_000)).await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        assert_eq!(server.fake.revision.load(Ordering::SeqCst), 300);
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_with_an_error_is_an_answer() {
    bounded(async {
        let server = start().await;
        let refusal = Status::invalid_argument("etcdserver: key is not provided");
        server.fake.script.lock().unwrap().push_back(Act::Refuse(refusal));
        let status = client(&server).put(put("", 0)).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, "etcdserver: key is not provided")
        );
        assert_eq!(trouble(&status), None);
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_stream_arrives_whole_and_in_order() {
    bounded(async {
        let server = start().await;
        let mut stream = client(&server).range_stream(range("key", 1_000)).await.unwrap().into_inner();
        let mut next = 0;
        while let Some(part) = stream.message().await.unwrap() {
            assert_eq!(part.range_response.unwrap().count, next);
            next += 1;
        }
        assert_eq!(next, 1_000);
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_bidirectional_stream_answers_while_it_is_fed() {
    bounded(async {
        let server = start().await;
        let channel = Channel::lazy(&server.address.to_string(), options());
        let (requests, receiver) = tokio::sync::mpsc::channel(1);
        let receiver = futures::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|request| (request, receiver))
        });
        let mut answers = WatchClient::new(channel).watch(Box::pin(receiver)).await.unwrap().into_inner();
        for _ in 0..5 {
            requests.send(WatchRequest::default()).await.unwrap();
            assert!(answers.message().await.unwrap().unwrap().created);
        }
        drop(requests);
        assert_eq!(answers.message().await.unwrap(), None);
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn the_server_keeps_the_deadline_when_the_client_does_not() {
    bounded(async {
        let server = start().await;
        // A client of another make: hyper's own, which knows no deadlines.
        let stream = connect(&server.address.to_string(), Duration::from_secs(1)).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("http://{}/etcdserverpb.KV/Put", server.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "20m")
            .body(())
            .unwrap();
        let (answer, mut body) = sender.send_request(request, false).unwrap();
        // PutRequest { key: "hang" } in its gRPC frame.
        body.send_data(bytes::Bytes::from_static(b"\0\0\0\0\x06\x0a\x04hang"), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4");
        assert_eq!(answer.headers()["grpc-message"], "context%20deadline%20exceeded");
        assert_eq!(server.fake.dropped.load(Ordering::SeqCst), 1);
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_ends_calls_and_streams() {
    bounded(async {
        let server = start().await;
        let mut client = client(&server);
        let status = client.put(timed(put("hang", 0), Duration::from_millis(20))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "context deadline exceeded"));
        let request = timed(range("hang", 2), Duration::from_secs(1));
        let mut stream = client.range_stream(request).await.unwrap().into_inner();
        for _ in 0..2 {
            stream.message().await.unwrap().unwrap();
        }
        let status = stream.message().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "context deadline exceeded"));
        // The connection is as good as before.
        client.put(put("key", 0)).await.unwrap();
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_call_is_dropped_on_the_server() {
    bounded(async {
        let server = start().await;
        let mut client = client(&server);
        let call = tokio::spawn(async move { client.put(put("hang", 0)).await });
        while server.fake.calls.load(Ordering::SeqCst) == 0 {
            crate::env::task::yield_now().await;
        }
        call.abort();
        while server.fake.dropped.load(Ordering::SeqCst) == 0 {
            crate::env::task::yield_now().await;
        }
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_channel_outlives_its_server() {
    bounded(async {
        let server = start().await;
        let mut client = client(&server);
        client.put(put("key", 0)).await.unwrap();
        let (address, fake) = (server.address.to_string(), server.fake.clone());
        server.stopped().await;
        let status = client.put(put("key", 0)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(trouble(&status), Some(Trouble { sent: false }), "{status}");
        let server = Running::start(fake, &address, options()).await;
        while client.put(put("key", 0)).await.is_err() {} // The pause after the failed connect.
        assert_eq!(server.fake.revision.load(Ordering::SeqCst), 2);
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn trouble_says_whether_the_request_was_sent() {
    bounded(async {
        let check = |status: Status, code: Code, sent: bool| {
            assert_eq!(status.code(), code, "{status}");
            assert_eq!(trouble(&status), Some(Trouble { sent }), "{status}");
        };
        // No one listens.
        let listener = Listener::bind(LOOPBACK.parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        drop(listener);
        let mut nobody = KvClient::new(Channel::lazy(&address, options()));
        check(nobody.put(put("key", 0)).await.unwrap_err(), Code::Unavailable, false);
        // No such address.
        for malformed in ["", "a b:1", "http://x:1", "x:1/path"] {
            let mut client = KvClient::new(Channel::lazy(malformed, options()));
            check(client.put(put("key", 0)).await.unwrap_err(), Code::InvalidArgument, false);
        }
        // The server has the call when its time to stop is over.
        let server = start().await;
        let mut client = client(&server);
        let call = tokio::spawn(async move { client.put(put("hang", 0)).await });
        while server.fake.calls.load(Ordering::SeqCst) == 0 {
            crate::env::task::yield_now().await;
        }
        server.stopped().await;
        check(call.await.unwrap().unwrap_err(), Code::Unavailable, true);
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_given_up() {
    bounded(async {
        // Takes the connection and says nothing.
        let listener = Listener::bind(LOOPBACK.parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let silent = tokio::spawn(async move {
            let accepted = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
            drop(accepted);
        });
        let keepalive = HttpOptions {
            keepalive_interval: Some(Duration::from_millis(10)),
            keepalive_timeout: Duration::from_millis(20),
            ..options()
        };
        let status = KvClient::new(Channel::lazy(&address, keepalive)).put(put("key", 0)).await.unwrap_err();
        assert_eq!((status.code(), trouble(&status)), (Code::Unavailable, Some(Trouble { sent: true })));
        silent.abort();
    })
    .await;
}

#[tokio::test]
async fn plain_http_on_the_same_port() {
    bounded(async {
        let server = start().await;
        client(&server).put(put("key", 0)).await.unwrap();
        let mut stream = connect(&server.address.to_string(), Duration::from_secs(1)).await.unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        server.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_stop_lets_calls_finish_and_cuts_streams_off() {
    bounded(async {
        let server = start().await;
        let mut client = client(&server);
        let mut stream = client.range_stream(range("hang", 1)).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        server.stop();
        let status = stream.message().await.unwrap_err();
        assert_eq!((status.code(), trouble(&status)), (Code::Unavailable, Some(Trouble { sent: true })));
        let address = server.address.to_string();
        server.stopped().await;
        assert!(connect(&address, Duration::from_secs(1)).await.is_err(), "the port is free again");
        Listener::bind(address.parse().unwrap()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_port_in_use_is_reported() {
    let listener = Listener::bind(LOOPBACK.parse().unwrap()).await.unwrap();
    let error = Listener::bind(listener.local_address().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn names_are_resolved() {
    bounded(async {
        let server = start().await;
        let address = format!("localhost:{}", server.address.port());
        KvClient::new(Channel::lazy(&address, options())).put(put("key", 0)).await.unwrap();
        assert!(connect("no.such.name.invalid:1", Duration::from_secs(5)).await.is_err());
        server.stopped().await;
    })
    .await;
}
