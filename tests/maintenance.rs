//! Space on real processes: a quota that fills, is compacted, cleaned and lifted;
//! cleaning under load; automatic compaction; members that are compared.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod processes;

use processes::{Cluster, PATIENCE, get, put};
use quorate::client::Client;
use quorate::proto::etcdserverpb::{self as pb, alarm_request::AlarmAction};
use std::time::{Duration, Instant};

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

async fn alarms(client: &Client) -> Vec<pb::AlarmMember> {
    client.alarm(pb::AlarmRequest::default()).await.unwrap().alarms
}

/// Body of a plain HTTP GET.
async fn http(address: &str, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Waits until `done`, looking every now and then.
async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !done().await {
        assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_is_lifted_by_compacting_cleaning_and_disarming() {
    let quota = 4 << 20;
    let cluster = Cluster::with("quota", 1, &["--quota-backend-bytes", &format!("{quota}")]);
    cluster.ready(0).await;
    let client = cluster.connect(&[0]);
    let endpoint = cluster.client[0].clone();
    let value = "v".repeat(20_000);
    let mut revision = 0;
    let refused = loop {
        match client.put(put("one", &value)).await {
            Ok(response) => revision = response.header.unwrap().revision,
            Err(error) => break error,
        }
        assert!(revision < 10_000, "the quota is never reached");
    };
    assert_eq!(refused.status.message(), NO_SPACE);
    assert!(revision > 100, "refused long before the quota: revision {revision}");
    let status = client.status(&endpoint).await.unwrap();
    let member = status.header.unwrap().member_id;
    assert_eq!(status.db_size_quota, quota);
    assert!(status.db_size <= quota, "{}", status.db_size);
    assert_eq!(status.errors, [format!("memberID:{member} alarm:NOSPACE")]);
    assert_eq!(alarms(&client).await, [pb::AlarmMember { member_id: member, alarm: 1 }]);
    assert_eq!(http(&endpoint, "/health").await, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n");

    // Reads, deletes and compaction pass; the put waits for the disarm, also with space at hand.
    client.range(get("one")).await.unwrap();
    let delete = pb::DeleteRangeRequest { key: "other".into(), ..Default::default() };
    client.delete_range(delete).await.unwrap();
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    client.defragment(&endpoint).await.unwrap();
    let after = client.status(&endpoint).await.unwrap();
    assert!(after.db_size < status.db_size / 4, "{} of {}", after.db_size, status.db_size);
    assert_eq!(client.put(put("one", "1")).await.unwrap_err().status.message(), NO_SPACE);
    let disarm = pb::AlarmRequest { action: AlarmAction::Deactivate as i32, member_id: member, alarm: 1 };
    assert_eq!(client.alarm(disarm).await.unwrap().alarms.len(), 1);
    client.put(put("one", "1")).await.unwrap();
    assert_eq!(http(&endpoint, "/health").await, "{\"health\":\"true\",\"reason\":\"\"}");
    // What was compacted is cleaned before the quota refuses anything again.
    for _ in 0..100 {
        client.put(put("one", &value)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleaning_under_load_holds_up_nobody() {
    let cluster = Cluster::new("defrag", 1);
    cluster.ready(0).await;
    let client = cluster.connect(&[0]);
    let endpoint = cluster.client[0].clone();
    let value = "v".repeat(10_000);
    let mut revision = 0;
    for number in 0..1_500 {
        let key = format!("k{}", number % 50);
        revision = client.put(put(&key, &value)).await.unwrap().header.unwrap().revision;
    }
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    let before = client.status(&endpoint).await.unwrap();
    let loading = {
        let client = cluster.connect(&[0]);
        tokio::spawn(async move {
            let (begun, mut longest, mut puts) = (Instant::now(), Duration::ZERO, 0);
            while begun.elapsed() < Duration::from_secs(3) {
                let one = Instant::now();
                client.put(put("load", "x")).await.unwrap();
                longest = longest.max(one.elapsed());
                puts += 1;
            }
            (longest, puts)
        })
    };
    for _ in 0..3 {
        client.defragment(&endpoint).await.unwrap();
    }
    let after = client.status(&endpoint).await.unwrap();
    assert!(after.db_size < before.db_size / 2, "{} of {}", after.db_size, before.db_size);
    let (longest, puts) = loading.await.unwrap();
    // Bounds for a machine that is shared by many; the bench measures the real stall.
    assert!(puts > 50 && longest < Duration::from_secs(1), "{puts} puts, the longest took {longest:?}");
    for number in 0..50 {
        let found = client.range(get(&format!("k{number}"))).await.unwrap();
        assert_eq!(found.kvs[0].value.len(), value.len());
    }
    let text = http(&endpoint, "/metrics").await;
    assert!(text.contains("etcd_disk_backend_defrag_duration_seconds_count 3"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_compacted_by_itself() {
    let cluster = Cluster::with("auto", 3, &["--auto-compaction-retention", "2s"]);
    for member in 0..3 {
        cluster.ready(member).await;
    }
    let client = cluster.connect(&[0, 1, 2]);
    let first = client.put(put("a", "1")).await.unwrap().header.unwrap().revision;
    client.put(put("a", "2")).await.unwrap();
    client.put(put("a", "3")).await.unwrap();
    until("the first automatic compaction", async || {
        let old = pb::RangeRequest { revision: first, ..get("a") };
        match client.range(old).await {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.status.message(), "etcdserver: mvcc: required revision has been compacted");
                true
            }
        }
    })
    .await;
    assert_eq!(&client.range(get("a")).await.unwrap().kvs[0].value[..], b"3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_agree_raise_no_alarm() {
    let flags = [
        "--corrupt-check-time",
        "500ms",
        "--compact-hash-check-time",
        "500ms",
        "--feature-gates",
        "CompactHashCheck=true,InitialCorruptCheck=true",
    ];
    let mut cluster = Cluster::with("compare", 3, &flags);
    for member in 0..3 {
        cluster.ready(member).await;
    }
    let client = cluster.connect(&[0, 1, 2]);
    let mut revision = 0;
    for number in 0..50 {
        let key = format!("k{}", number % 10);
        revision = client.put(put(&key, &number.to_string())).await.unwrap().header.unwrap().revision;
    }
    client.compact(pb::CompactionRequest { revision: revision - 5, physical: true }).await.unwrap();
    let logs = |cluster: &Cluster| (0..3).map(|member| cluster.log(member)).collect::<String>();
    until("a periodic check", async || logs(&cluster).contains("verdict\":\"Agree(3)")).await;
    until("a check of the compaction's hash", async || {
        logs(&cluster).contains("compaction hash is the same on every member")
    })
    .await;
    // A member that comes back is compared before it serves.
    cluster.kill(1);
    client.put(put("a", "while one is away")).await.unwrap();
    cluster.start(1);
    cluster.ready(1).await;
    assert!(cluster.log(1).contains("initial corruption checking passed; no corruption"));
    assert_eq!(alarms(&client).await, []);
}
