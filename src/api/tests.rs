//! The whole client port over a stand-in member: requests go in as HTTP, what
//! is checked is what leaves.

mod space;

use super::{Metrics, Service, Settings, entrance, fake::Fake, service::Entrance};
use crate::{
    env::clock::StoppedClock,
    machine::Refusal,
    mvcc,
    replica::{ProposeError, ReadIndexError},
};
use ::http::{HeaderMap, Method, Request, Response};
use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use prost::Message;
use quorate_proto::{
    etcdserverpb::{self as pb, request_op},
    grpc::health::v1::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse},
};
use std::sync::Arc;
use tonic::{Code, Status};
use tower::ServiceExt;

struct Port {
    member: Fake,
    entrance: Entrance<Fake>,
}

impl Port {
    fn new() -> Port {
        Port::with(Settings { max_request_bytes: 1000, ..Settings::default() })
    }

    fn with(settings: Settings) -> Port {
        let member = Fake::default();
        let service = Service {
            backend: member.clone(),
            metrics: Arc::new(Metrics::new()),
            clock: Arc::new(StoppedClock),
        };
        Port { member, entrance: entrance(service, settings) }
    }

    fn send(&self, request: Request<Body>) -> (Response<()>, Bytes, Option<HeaderMap>) {
        futures::executor::block_on(async {
            let response = self.entrance.clone().oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned();
            (Response::from_parts(parts, ()), body.to_bytes(), trailers)
        })
    }

    /// All messages of a call's answer, and its status.
    fn raw(&self, path: &str, message: &[u8], metadata: &[(&str, &[u8])]) -> (Vec<Bytes>, Status) {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.len() as u32);
        frame.put_slice(message);
        let mut request =
            Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let (response, mut body, trailers) = self.send(request.body(Body::from(frame.freeze())).unwrap());
        let mut messages = Vec::new();
        while body.len() >= 5 {
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
            messages.push(body.slice(5..5 + length));
            body = body.slice(5 + length..);
        }
        let status = Status::from_header_map(response.headers())
            .or_else(|| Status::from_header_map(&trailers.unwrap()))
            .unwrap();
        (messages, status)
    }

    fn call<Q: Message, A: Message + Default>(&self, path: &str, request: Q) -> Result<A, (Code, String)> {
        let (messages, status) = self.raw(path, &request.encode_to_vec(), &[]);
        if status.code() != Code::Ok {
            assert!(messages.is_empty());
            return Err((status.code(), status.message().to_owned()));
        }
        assert_eq!(messages.len(), 1);
        Ok(A::decode(messages[0].clone()).unwrap())
    }

    fn put(&self, key: &str, value: &str) -> Result<pb::PutResponse, (Code, String)> {
        let request = pb::PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            ..pb::PutRequest::default()
        };
        self.call("/etcdserverpb.KV/Put", request)
    }

    /// Status, headers and body of a plain request.
    fn http(&self, method: Method, path: &str, body: &str) -> (u16, HeaderMap, String) {
        let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
        let (response, body, _) = self.send(request);
        let text = String::from_utf8(body.to_vec()).unwrap();
        (response.status().as_u16(), response.headers().clone(), text)
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.http(Method::GET, path, "");
        (status, body)
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        let (status, headers, body) = self.http(Method::POST, path, body);
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["access-control-allow-origin"], "*");
        (status, body)
    }
}

fn error(code: Code, text: &str) -> (Code, String) {
    (code, text.to_owned())
}

fn range_of(key: &str, range_end: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..pb::RangeRequest::default()
    }
}

#[test]
fn kv_replies_carry_the_whole_header() {
    let port = Port::new();
    let header = |revision| Some(pb::ResponseHeader { cluster_id: 9, member_id: 1, revision, raft_term: 3 });
    assert_eq!(port.put("a", "1").unwrap().header, header(2));
    let range: pb::RangeResponse = port.call("/etcdserverpb.KV/Range", range_of("a", "")).unwrap();
    assert_eq!((range.header, range.count, &range.kvs[0].value[..]), (header(2), 1, &b"1"[..]));
    let deleted: pb::DeleteRangeResponse = port
        .call(
            "/etcdserverpb.KV/DeleteRange",
            pb::DeleteRangeRequest { key: "a".into(), ..pb::DeleteRangeRequest::default() },
        )
        .unwrap();
    assert_eq!((deleted.header, deleted.deleted), (header(3), 1));
    let compacted: pb::CompactionResponse =
        port.call("/etcdserverpb.KV/Compact", pb::CompactionRequest { revision: 2, physical: true }).unwrap();
    assert_eq!(compacted.header, header(3));
    assert_eq!(port.member.state().compactions_waited, [2]);
    let hash: pb::HashKvResponse =
        port.call("/etcdserverpb.Maintenance/HashKV", pb::HashKvRequest { revision: 2 }).unwrap();
    assert_eq!((hash.header, hash.hash), (header(3), 5));
    let hash: pb::HashResponse = port.call("/etcdserverpb.Maintenance/Hash", pb::HashRequest {}).unwrap();
    assert_eq!((hash.header, hash.hash), (header(3), 11));
    let members: pb::MemberListResponse =
        port.call("/etcdserverpb.Cluster/MemberList", pb::MemberListRequest { linearizable: true }).unwrap();
    assert_eq!(members.header, header(0));
    assert_eq!(members.members.iter().map(|member| member.id).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_snapshot_comes_in_parts_without_a_header() {
    let path = "/etcdserverpb.Maintenance/Snapshot";
    let parts = |port: &Port| {
        let (messages, status) = port.raw(path, b"", &[]);
        let part = |message: &Bytes| pb::SnapshotResponse::decode(message.clone()).unwrap();
        (messages.iter().map(part).collect::<Vec<_>>(), status)
    };
    let (sent, status) = parts(&Port::new());
    assert_eq!(status.code(), Code::Ok);
    let told: Vec<(u64, &[u8])> = sent.iter().map(|part| (part.remaining_bytes, &part.blob[..])).collect();
    assert_eq!(told, [(3, &b"data"[..]), (0, b"end"), (0, b"digest")]);
    assert!(sent.iter().all(|part| part.header.is_none() && part.version == "3.7.0"));
    // Our own form, and what breaks off on the way.
    let settings = Settings { snapshot_form: crate::backup::Form::Quorate, ..Settings::default() };
    let (sent, status) = parts(&Port::with(settings));
    assert_eq!((sent.len(), &sent[0].blob[..]), (1, &b"own"[..]));
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "quorate: snapshot: rot"));
}

#[test]
fn reads_wait_for_an_index_only_when_linearizable() {
    let port = Port::new();
    let _: pb::RangeResponse = port
        .call("/etcdserverpb.KV/Range", pb::RangeRequest { serializable: true, ..range_of("a", "") })
        .unwrap();
    assert_eq!(port.member.state().read_indexes, 0);
    let _: pb::RangeResponse = port.call("/etcdserverpb.KV/Range", range_of("a", "")).unwrap();
    assert_eq!(port.member.state().read_indexes, 1);
    port.member.state().read_index_error = Some(ReadIndexError::LeaderChanged);
    assert_eq!(
        port.call::<_, pb::RangeResponse>("/etcdserverpb.KV/Range", range_of("a", "")),
        Err(error(Code::Unavailable, "etcdserver: leader changed"))
    );
}

#[test]
fn only_txns_that_cannot_write_stay_out_of_the_log() {
    let range = |serializable| {
        request_op::Request::RequestRange(pb::RangeRequest { serializable, ..range_of("a", "") })
    };
    let put =
        request_op::Request::RequestPut(pb::PutRequest { key: "a".into(), ..pb::PutRequest::default() });
    let nested = request_op::Request::RequestTxn(pb::TxnRequest::default());
    // (success, failure, entries proposed, read indexes)
    let cases = [
        (vec![], vec![], 0, 0),
        (vec![range(true)], vec![range(true)], 0, 0),
        (vec![range(true)], vec![range(false)], 0, 1),
        (vec![range(false)], vec![put], 1, 0),
        (vec![nested], vec![], 1, 0),
    ];
    for (success, failure, proposed, read_indexes) in cases {
        let port = Port::new();
        let list = |ops: Vec<request_op::Request>| {
            ops.into_iter().map(|op| pb::RequestOp { request: Some(op) }).collect()
        };
        let txn = pb::TxnRequest { compare: vec![], success: list(success), failure: list(failure) };
        let _: pb::TxnResponse = port.call("/etcdserverpb.KV/Txn", txn.clone()).unwrap();
        let state = port.member.state();
        assert_eq!((state.proposed.len(), state.read_indexes), (proposed, read_indexes), "{txn:?}");
    }
}

#[test]
fn a_streamed_range_merges_to_the_range() {
    let port = Port::new();
    for number in 0..47 {
        port.put(&format!("k{number:02}"), "v").unwrap();
    }
    let path = "/etcdserverpb.KV/RangeStream";
    let check = |request: pb::RangeRequest, parts_expected: &[usize]| {
        let whole: pb::RangeResponse = port.call("/etcdserverpb.KV/Range", request.clone()).unwrap();
        let (messages, status) = port.raw(path, &request.encode_to_vec(), &[]);
        assert_eq!(status.code(), Code::Ok);
        let mut merged = pb::RangeStreamResponse::default();
        let mut sizes = Vec::new();
        for message in &messages {
            let part = pb::RangeStreamResponse::decode(message.clone()).unwrap().range_response.unwrap();
            sizes.push(part.kvs.len());
            let last = sizes.len() == messages.len();
            assert_eq!(part.header.is_some(), last, "the header comes last");
            merged.merge(message.clone()).unwrap();
        }
        assert_eq!(merged.range_response.unwrap(), whole);
        assert_eq!(sizes, parts_expected);
    };
    // 1,000 bytes at most: parts double while they are below 500 bytes.
    check(range_of("k", "l"), &[10, 20, 17]);
    check(range_of("k00", ""), &[1]);
    check(range_of("x", "y"), &[0]);
    check(pb::RangeRequest { limit: 12, ..range_of("k", "l") }, &[10, 2]);
    check(pb::RangeRequest { limit: 10, ..range_of("k", "l") }, &[10]);
    check(pb::RangeRequest { count_only: true, ..range_of("k", "l") }, &[0]);
    check(pb::RangeRequest { sort_target: 3, ..range_of("k40", "\0") }, &[7]);
    let pinned: Vec<i64> =
        port.member.state().ranges.iter().rev().take(1).map(|range| range.revision).collect();
    assert_eq!(pinned, [0]);
    let three = port.member.state().ranges[1..4].to_vec();
    assert_eq!(three.iter().map(|range| range.revision).collect::<Vec<_>>(), [0, 48, 48]);

    let refused = |request: pb::RangeRequest, text: &str| {
        let (_, status) = port.raw(path, &request.encode_to_vec(), &[]);
        assert_eq!((status.code(), status.message()), (Code::Unimplemented, text));
    };
    let all = range_of("k", "l");
    let sorts = "RangeStream does not support custom sort orders";
    refused(pb::RangeRequest { sort_order: 2, ..all.clone() }, sorts);
    refused(pb::RangeRequest { sort_order: 1, sort_target: 1, ..all.clone() }, sorts);
    refused(
        pb::RangeRequest { min_mod_revision: -1, ..all.clone() },
        "RangeStream does not support revision filters",
    );
    port.member.state().range_error = Some(mvcc::Error::Compacted);
    let (_, status) = port.raw(path, &all.encode_to_vec(), &[]);
    assert_eq!(status.code(), Code::OutOfRange);
}

#[test]
fn failed_proposals_show_etcds_errors() {
    let check = |failure: ProposeError, code: Code, text: &str| {
        let port = Port::new();
        port.member.state().propose_error = Some(failure);
        assert_eq!(port.put("a", ""), Err(error(code, text)));
    };
    check(ProposeError::TooLarge, Code::InvalidArgument, "etcdserver: request is too large");
    check(ProposeError::NoLeader, Code::DeadlineExceeded, "context deadline exceeded");
    check(Refusal::from(mvcc::Error::KeyNotFound).into(), Code::InvalidArgument, "etcdserver: key not found");
    check(Refusal::Corrupt.into(), Code::DataLoss, "etcdserver: corrupt cluster");
    assert_eq!(Port::new().put("", ""), Err(error(Code::InvalidArgument, "etcdserver: key is not provided")));
}

#[test]
fn metadata_rules_come_before_the_call() {
    let port = Port::new();
    let put = pb::PutRequest { key: "a".into(), ..pb::PutRequest::default() }.encode_to_vec();
    let check = |metadata: &[(&str, &[u8])], code: Code, text: &str| {
        let (_, status) = port.raw("/etcdserverpb.KV/Put", &put, metadata);
        assert_eq!((status.code(), status.message()), (code, text), "{metadata:?}");
    };
    check(&[("hasleader", b"true")], Code::Ok, "");
    port.member.state().status.leader = 0;
    check(&[("hasleader", b"true")], Code::Unavailable, "etcdserver: no leader");
    check(&[("hasleader", b"false")], Code::Ok, "");
    check(
        &[("client-api-version", b"\xff\xfe")],
        Code::InvalidArgument,
        "etcdserver: invalid client api version",
    );
    check(&[("client-api-version", b"3.7")], Code::Ok, "");
    port.member.state().status.is_learner = true;
    let learner = "etcdserver: rpc not supported for learner";
    check(&[], Code::FailedPrecondition, learner);
    let range = |serializable| {
        let request = pb::RangeRequest { serializable, ..range_of("a", "") };
        port.call::<_, pb::RangeResponse>("/etcdserverpb.KV/Range", request).map(drop)
    };
    assert_eq!(range(true), Ok(()));
    assert_eq!(range(false), Err(error(Code::FailedPrecondition, learner)));
    let (_, text) = port.get("/metrics");
    assert!(
        text.contains("etcd_server_client_requests_total{client_api_version=\"3.7\",type=\"unary\"} 1"),
        "{text}"
    );
    let handled = |code: &str| {
        format!(
            "{{grpc_code=\"{code}\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}}"
        )
    };
    assert!(text.contains(&format!("grpc_server_handled_total{} 3", handled("OK"))), "{text}");
    assert!(text.contains(&format!("grpc_server_handled_total{} 1", handled("Unavailable"))));
}

#[test]
fn the_stacks_own_errors_have_etcds_texts() {
    let port = Port::new();
    let check = |path: &str, message: &[u8], code: Code, text: &str| {
        let (_, status) = port.raw(path, message, &[]);
        assert_eq!((status.code(), status.message()), (code, text));
    };
    let limit = 1000 + 524_288;
    check(
        "/etcdserverpb.KV/Put",
        &vec![0; limit + 1],
        Code::ResourceExhausted,
        "grpc: received message larger than max (525289 vs. 525288)",
    );
    check("/foo.Bar/Baz", b"", Code::Unimplemented, "unknown service foo.Bar");
    check("/etcdserverpb.KV/Baz", b"", Code::Unimplemented, "unknown method Baz for service etcdserverpb.KV");
    let (_, status) = port.raw("/etcdserverpb.KV/Put", &[0xff; 3], &[]);
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().starts_with("grpc: error unmarshalling request: "), "{status:?}");
    let (_, status) = port.raw("/etcdserverpb.Lease/LeaseGrant", b"", &[]);
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("Lease.LeaseGrant is not served"), "{status:?}");
}

#[test]
fn maintenance_answers() {
    let port = Port::new();
    let status: pb::StatusResponse =
        port.call("/etcdserverpb.Maintenance/Status", pb::StatusRequest::default()).unwrap();
    assert_eq!(status.version, "3.7.1");
    assert_eq!((status.raft_index, status.raft_applied_index, status.leader, status.raft_term), (7, 6, 1, 3));
    assert_eq!((status.db_size, status.db_size_in_use, status.db_size_quota), (4096, 1024, 2 << 30));
    assert_eq!((status.errors, status.downgrade_info), (vec![], Some(pb::DowngradeInfo::default())));
    let alarm = |action, member_id, alarm| {
        port.call::<_, pb::AlarmResponse>(
            "/etcdserverpb.Maintenance/Alarm",
            pb::AlarmRequest { action, member_id, alarm },
        )
    };
    let raised = alarm(1, 7, 1).unwrap();
    assert_eq!(raised.header.unwrap().revision, 1);
    assert_eq!(raised.alarms, [pb::AlarmMember { member_id: 7, alarm: 1 }]);
    assert_eq!(alarm(3, 0, 0).unwrap_err().0, Code::InvalidArgument);
    port.member.state().status.leader = 0;
    port.member.state().alarms.push((0, 2));
    let status: pb::StatusResponse =
        port.call("/etcdserverpb.Maintenance/Status", pb::StatusRequest::default()).unwrap();
    assert_eq!(status.errors, ["etcdserver: no leader", "memberID:7 alarm:NOSPACE", "alarm:CORRUPT"]);
}

#[test]
fn leadership_moves_to_voters_only() {
    let port = Port::new();
    let moved = |target_id| {
        let reply: Result<pb::MoveLeaderResponse, _> =
            port.call("/etcdserverpb.Maintenance/MoveLeader", pb::MoveLeaderRequest { target_id });
        reply.map(|reply| assert_eq!(reply.header, None))
    };
    assert_eq!(moved(1), Ok(()));
    assert!(port.member.state().transfers.is_empty());
    assert_eq!(moved(2), Ok(()));
    assert_eq!(port.member.state().transfers, [2]);
    let bad = error(Code::FailedPrecondition, "etcdserver: bad leader transferee");
    assert_eq!(moved(3), Err(bad.clone()));
    assert_eq!(moved(4), Err(bad));
    port.member.state().propose_error = Some(ProposeError::Timeout);
    assert_eq!(
        moved(2),
        Err(error(Code::Unknown, "etcdserver: request timed out, leader transfer took too long"))
    );
    port.member.state().status.leader = 2;
    assert_eq!(moved(2), Err(error(Code::FailedPrecondition, "etcdserver: not leader")));
}

#[test]
fn grpc_health_answers() {
    let port = Port::new();
    let check = |service: &str| {
        port.call::<_, HealthCheckResponse>(
            "/grpc.health.v1.Health/Check",
            HealthCheckRequest { service: service.to_owned() },
        )
    };
    assert_eq!(check("").map(|reply| reply.status), Ok(1));
    assert_eq!(check("x"), Err(error(Code::NotFound, "unknown service")));
    let list: HealthListResponse =
        port.call("/grpc.health.v1.Health/List", HealthListRequest::default()).unwrap();
    assert_eq!(list.statuses.len(), 1);
}

#[test]
fn the_gateway_speaks_as_etcds() {
    let port = Port::new();
    let check = |path: &str, body: &str, status: u16, expected: &str| {
        assert_eq!(port.post(path, body), (status, expected.to_owned()), "{path} {body}");
    };
    let header = r#""cluster_id":"9","member_id":"1","revision":"2","raft_term":"3""#;
    check("/v3/kv/put", r#"{"key":"a2V5","value":"dg=="}"#, 200, &format!("{{\"header\":{{{header}}}}}"));
    let kv = r#"{"key":"a2V5","create_revision":"2","mod_revision":"2","version":"1","value":"dg=="}"#;
    let found = format!("{{\"header\":{{{header}}},\"kvs\":[{kv}],\"count\":\"1\"}}");
    check("/v3/kv/range", r#"{"key":"a2V5"}"#, 200, &found);
    check("/v3beta/kv/range", r#"{"key":"a2V5"} and more"#, 200, &found);
    check("/v3/kv/range?key=x", r#"{"key":"a2V5"}"#, 200, &found);
    check("/v3/kv/range", "", 400, r#"{"code":3,"message":"etcdserver: key is not provided"}"#);
    check("/v3/nope", "{}", 404, r#"{"code":5,"message":"Not Found"}"#);
    check("/v3/", "{}", 404, r#"{"code":5,"message":"Not Found"}"#);
    check("/v3/kv/range/", "{}", 404, r#"{"code":5,"message":"Not Found"}"#);
    check(
        "/v3/auth/authenticate",
        r#"{"name":"a","password":"b"}"#,
        400,
        r#"{"code":9,"message":"etcdserver: authentication is not enabled"}"#,
    );
    check(
        "/v3/maintenance/hashkv",
        r#"{"revision":"99"}"#,
        400,
        r#"{"code":11,"message":"etcdserver: mvcc: required revision is a future revision"}"#,
    );
    check("/v3/maintenance/transfer-leadership", r#"{"targetID":"2"}"#, 200, "{}");
    check(
        "/v3/watch",
        "{}",
        501,
        "{\"error\":{\"code\":12,\"message\":\"quorate: Watch.Watch is not served by this release yet\"}}\n",
    );
    let (status, body) = port.post("/v3/kv/range", r#"{"key":"a2V5","revision":"010"}"#);
    assert_eq!(status, 400);
    assert!(
        body.starts_with(r#"{"code":3,"message":"proto: invalid value for int64 field revision"#),
        "{body}"
    );
    for method in [Method::GET, Method::PUT] {
        let (status, _, body) = port.http(method, "/v3/kv/range", "");
        assert_eq!((status, body.as_str()), (501, r#"{"code":12,"message":"Method Not Allowed"}"#));
    }
    let (status, headers, body) = port.http(Method::POST, "/v3/kv/range", r#"{"key":"a2V5"}"#);
    assert_eq!((status, body), (200, found));
    assert_eq!(headers["grpc-metadata-content-type"], "application/grpc");
    let (status, headers, body) = port.http(Method::OPTIONS, "/v3/kv/range", "");
    assert_eq!((status, body.as_str()), (200, ""));
    assert_eq!(headers["access-control-allow-headers"], "accept, content-type, authorization");
    let big = format!(r#"{{"key":"{}"}}"#, "A".repeat(1_400_000));
    let (status, body) = port.post("/v3/kv/range", &big);
    assert_eq!(status, 429);
    assert!(body.starts_with(r#"{"code":8,"message":"grpc: received message larger than max ("#), "{body}");
}

#[test]
fn the_gateway_forwards_metadata_and_keeps_deadlines() {
    let port = Port::new();
    port.member.state().status.leader = 0;
    let send = |name: &str, value: &str| {
        let request = Request::post("/v3/kv/range")
            .header(name, value)
            .body(Body::from(r#"{"key":"a2V5","serializable":true}"#))
            .unwrap();
        let (response, body, _) = port.send(request);
        (response.status().as_u16(), String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(
        send("Grpc-Metadata-hasleader", "true"),
        (503, r#"{"code":14,"message":"etcdserver: no leader"}"#.to_owned())
    );
    assert_eq!(send("Grpc-Metadata-x", "true").0, 200);
    assert_eq!(send("Grpc-Timeout", "1S").0, 200, "an answer that is there beats the deadline");
}

#[test]
fn without_a_gateway_its_paths_are_unknown() {
    let port =
        Port::with(Settings { gateway: false, cors: vec!["http://a".to_owned()], ..Settings::default() });
    let (status, headers, body) = port.http(Method::POST, "/v3/kv/range", "{}");
    assert_eq!((status, body.as_str()), (404, "404 page not found\n"));
    assert!(!headers.contains_key("access-control-allow-origin"));
    let request = Request::get("/version").header("origin", "http://a").body(Body::empty()).unwrap();
    let (response, ..) = port.send(request);
    assert_eq!(response.headers()["access-control-allow-origin"], "http://a");
}

#[test]
fn plain_endpoints_answer_as_etcds() {
    let port = Port::new();
    let check = |path: &str, status: u16, body: &str| {
        assert_eq!(port.get(path), (status, body.to_owned()), "{path}");
    };
    let healthy = r#"{"health":"true","reason":""}"#;
    check("/version", 200, r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#);
    check("/health", 200, healthy);
    check("/nope", 404, "404 page not found\n");
    check("/v3alpha/kv/range", 404, "404 page not found\n");
    check("/livez", 200, "ok\n");
    check("/livez/serializable_read?verbose", 200, "[+]serializable_read ok\nok\n");
    check("/livez/non_learner", 404, "404 page not found\n");
    check("/livez?exclude=serializable_read&verbose", 200, "ok\n");
    check(
        "/readyz?verbose",
        200,
        "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n",
    );
    for path in ["/health", "/version", "/livez", "/readyz/non_learner"] {
        let (status, headers, body) = port.http(Method::POST, path, "");
        assert_eq!((status, body.as_str()), (405, "Method Not Allowed\n"));
        assert_eq!(headers["allow"], "GET");
    }
    port.member.state().status.leader = 0;
    port.member.state().cluster_version = String::new();
    check("/version", 200, r#"{"etcdserver":"3.7.1","etcdcluster":"not_decided","storage":"3.7.0"}"#);
    check("/health", 503, "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n");
    check("/health?serializable=true", 200, healthy);
    port.member.state().alarms = vec![(1, 1), (1, 2)];
    check("/health", 503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n");
    check("/health?exclude=NOSPACE", 503, "{\"health\":\"false\",\"reason\":\"ALARM CORRUPT\"}\n");
    check("/health?exclude=NOSPACE&exclude=CORRUPT&serializable=true", 200, healthy);
    check("/readyz/data_corruption", 503, "[-]data_corruption failed: alarm activated: CORRUPT\n\n");
    port.member.state().alarms.clear();
    port.member.state().status.leader = 1;
    port.member.state().read_index_error = Some(ReadIndexError::Timeout);
    check(
        "/health",
        503,
        "{\"health\":\"false\",\"reason\":\"RANGE ERROR:etcdserver: request timed out\"}\n",
    );
    check("/readyz/linearizable_read", 503, "[-]linearizable_read failed: etcdserver: request timed out\n\n");
    check("/livez", 200, "ok\n");
}

/// However a request's bytes are cut into frames, and whatever is wrong with them, the answer says
/// the same as for the whole in one frame, or as the stack does.
#[test]
fn a_request_may_come_in_any_frames() {
    let port = Port::new();
    let put = pb::PutRequest { key: Bytes::from_static(b"k"), ..pb::PutRequest::default() };
    let message = put.encode_to_vec();
    let mut whole = BytesMut::new();
    whole.put_u8(0);
    whole.put_u32(message.len() as u32);
    whole.put_slice(&message);
    let whole = whole.freeze();
    // The message without what counts on from call to call.
    let still = |body: &Bytes| {
        let mut answer = (!body.is_empty()).then(|| pb::PutResponse::decode(body.slice(5..)).unwrap());
        answer.iter_mut().flat_map(|answer| &mut answer.header).for_each(|header| header.revision = 0);
        answer
    };
    let answer = |frames: Vec<Bytes>, encoding: Option<&str>| {
        let frames =
            frames.into_iter().map(|data| Ok::<_, std::convert::Infallible>(http_body::Frame::data(data)));
        let body = Body::new(http_body_util::StreamBody::new(futures::stream::iter(frames)));
        let mut request = Request::post("/etcdserverpb.KV/Put").header("content-type", "application/grpc");
        if let Some(encoding) = encoding {
            request = request.header("grpc-encoding", encoding);
        }
        let (response, body, trailers) = port.send(request.body(body).unwrap());
        let status = Status::from_header_map(response.headers())
            .or_else(|| Status::from_header_map(&trailers.unwrap()))
            .unwrap();
        (status.code(), still(&body))
    };
    let expected = {
        let body = Body::from(whole.clone());
        let request = Request::post("/etcdserverpb.KV/Put").header("content-type", "application/grpc");
        let (response, body, trailers) = port.send(request.body(body).unwrap());
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
        still(&body)
    };
    for cut in 0..=whole.len() {
        let frames = vec![whole.slice(..cut), whole.slice(cut..)];
        assert_eq!(answer(frames, None), (Code::Ok, expected.clone()), "cut at {cut}");
    }
    assert_eq!(answer(vec![whole.clone()], Some("identity")), (Code::Ok, expected));
    assert_eq!(answer(vec![], None).0, Code::Internal);
    assert_eq!(answer(vec![whole.slice(..whole.len() - 1)], None).0, Code::Internal);
    assert_eq!(answer(vec![whole], Some("gzip")).0, Code::Unimplemented);
}
