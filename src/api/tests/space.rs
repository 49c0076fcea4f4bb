//! Quota, cleaning, and a member that is out of service, over a stand-in member.

use super::*;

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

fn no_space() -> (Code, String) {
    error(Code::ResourceExhausted, NO_SPACE)
}

/// A port with a quota of 10,000 bytes, over a store that has `db_bytes` of which `dead_bytes` can go.
fn port(db_bytes: u64, dead_bytes: u64) -> Port {
    let port = Port::with(Settings { quota_backend_bytes: 10_000, ..Settings::default() });
    {
        let mut state = port.member.state();
        (state.db_bytes, state.dead_bytes) = (db_bytes, dead_bytes);
    }
    port
}

/// Cleanings, and alarms proposed.
fn counts(port: &Port) -> (u64, usize) {
    let state = port.member.state();
    (state.defragmentations, state.proposed.iter().filter(|entry| entry.alarm.is_some()).count())
}

#[test]
fn below_the_quota_nothing_is_cleaned() {
    let port = port(9_000, 5_000);
    port.put("a", "1").unwrap();
    assert_eq!(counts(&port), (0, 0));
}

#[test]
fn cleaning_comes_before_the_alarm() {
    let port = port(9_900, 5_000);
    port.put("a", "1").unwrap();
    assert_eq!(counts(&port), (1, 0));
    port.put("a", "2").unwrap();
    assert_eq!(port.member.state().defragmentations, 1);
}

#[test]
fn what_cleaning_does_not_make_fit_raises_this_members_alarm() {
    let port = port(9_900, 0);
    assert_eq!(port.put("a", "1"), Err(no_space()));
    assert_eq!(port.member.state().alarms, [(1, 1)]);
    assert_eq!(counts(&port), (1, 1));
    assert_eq!(
        port.get("/health"),
        (503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n".to_owned())
    );

    // With the alarm on: refused at once; what frees space passes.
    assert_eq!(port.put("a", "1"), Err(no_space()));
    assert_eq!(counts(&port), (1, 1));
    let delete = pb::DeleteRangeRequest { key: "a".into(), ..pb::DeleteRangeRequest::default() };
    let _: pb::DeleteRangeResponse = port.call("/etcdserverpb.KV/DeleteRange", delete.clone()).unwrap();
    let _: pb::CompactionResponse = port
        .call("/etcdserverpb.KV/Compact", pb::CompactionRequest { revision: 1, physical: false })
        .unwrap();
    let of = |request| pb::TxnRequest {
        success: vec![pb::RequestOp { request: Some(request) }],
        ..pb::TxnRequest::default()
    };
    let _: pb::TxnResponse =
        port.call("/etcdserverpb.KV/Txn", of(request_op::Request::RequestDeleteRange(delete))).unwrap();
    let put = pb::PutRequest { key: "b".into(), ..pb::PutRequest::default() };
    assert_eq!(
        port.call::<_, pb::TxnResponse>("/etcdserverpb.KV/Txn", of(request_op::Request::RequestPut(put))),
        Err(no_space())
    );

    // A disarm alone is not enough; space and a disarm are.
    port.member.state().alarms.clear();
    assert_eq!(port.put("a", "1"), Err(no_space()));
    assert_eq!(counts(&port), (2, 2));
    port.member.state().alarms.clear();
    port.member.state().db_bytes = 5_000;
    port.put("a", "1").unwrap();
}

#[test]
fn a_negative_quota_is_none() {
    let port = Port::with(Settings { quota_backend_bytes: -1, ..Settings::default() });
    port.member.state().db_bytes = u64::MAX;
    port.put("a", "1").unwrap();
    let status: pb::StatusResponse =
        port.call("/etcdserverpb.Maintenance/Status", pb::StatusRequest::default()).unwrap();
    assert_eq!((status.db_size_quota, status.db_size), (-1, i64::MAX));
}

#[test]
fn a_full_disk_has_the_text_of_a_full_quota_and_raises_no_alarm() {
    let port = Port::new();
    port.member.state().propose_error = Some(ProposeError::NoSpace);
    assert_eq!(port.put("a", ""), Err(no_space()));
    assert_eq!(port.member.state().alarms, []);
}

#[test]
fn defragment_answers_without_a_header() {
    let port = port(9_000, 5_000);
    let defragment = || {
        port.call::<_, pb::DefragmentResponse>(
            "/etcdserverpb.Maintenance/Defragment",
            pb::DefragmentRequest::default(),
        )
    };
    assert_eq!(defragment().unwrap().header, None);
    assert_eq!(port.member.state().db_bytes, 4_000);
    assert_eq!(counts(&port).0, 1);
    let (_, text) = port.get("/metrics");
    assert!(text.contains("etcd_disk_backend_defrag_duration_seconds_count 1"), "{text}");
    assert!(text.contains("etcd_disk_defrag_inflight 0"), "{text}");
}

#[test]
fn out_of_service_a_member_serves_nothing_and_says_why() {
    let port = Port::new();
    port.member.state().out_of_service = Some("page 7 is rotten".into());
    let text = "quorate: this member is out of service: page 7 is rotten";
    assert_eq!(port.put("a", "1"), Err(error(Code::Unavailable, text)));
    let serializable = pb::RangeRequest { serializable: true, ..range_of("a", "") };
    assert_eq!(
        port.call::<_, pb::RangeResponse>("/etcdserverpb.KV/Range", serializable),
        Err(error(Code::Unavailable, text))
    );
    let health: HealthCheckResponse =
        port.call("/grpc.health.v1.Health/Check", HealthCheckRequest::default()).unwrap();
    assert_eq!(health.status, 2);
    let reason = "{\"health\":\"false\",\"reason\":\"OUT OF SERVICE: page 7 is rotten\"}\n";
    assert_eq!(port.get("/health"), (503, reason.to_owned()));
    assert_eq!(port.get("/livez"), (503, format!("[-]serializable_read failed: {text}\n\n")));
    let (status, text) = port.get("/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("quorate_out_of_service{reason=\"page 7 is rotten\"} 1"), "{text}");
}
