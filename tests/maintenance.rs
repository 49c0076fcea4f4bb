//! Space on real processes: a quota that fills, is compacted, cleaned and lifted;
//! cleaning under load; automatic compaction; members that are compared; rot.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod processes;

use processes::{Cluster, PATIENCE, get, put};
use quorate::client::Client;
use quorate::proto::etcdserverpb::{self as pb, alarm_request::AlarmAction};
use std::error::Error as _;
use std::os::unix::{fs::FileExt, process::ExitStatusExt};
use std::path::{Path, PathBuf};
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
    // What was applied since the last commit counts with the next one.
    assert!(status.db_size < quota + (4 << 20), "{}", status.db_size);
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
    // The client may have been connected to that one: then it cannot know, and the put is asked again.
    until("a put while one is away", async || client.put(put("a", "while one is away")).await.is_ok()).await;
    cluster.start(1);
    cluster.ready(1).await;
    assert!(cluster.log(1).contains("initial corruption checking passed; no corruption"));
    assert_eq!(alarms(&client).await, []);
}

/// The file of a member's store that holds `text`, and where.
fn find(cluster: &Cluster, member: usize, text: &[u8]) -> (PathBuf, usize) {
    let store = cluster.root.join(format!("m{member}/member/store"));
    let files = std::fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|kind| kind == "seg"))
        .find_map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            let at = bytes.windows(text.len()).position(|window| window == text)?;
            Some((path, at))
        })
        .expect("a segment holds what was put")
}

/// Writes another value into the store of a member that is stopped, under a checksum that fits: what no
/// checksum can find. The offsets are those of the page format, `src/pagefile/mod.rs`.
fn lie(cluster: &Cluster, member: usize, text: &[u8], other: &[u8]) {
    assert_eq!(text.len(), other.len());
    let (path, at) = find(cluster, member, text);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at..at + other.len()].copy_from_slice(other);
    let page =
        (0..=at / 4096).rev().map(|page| page * 4096).find(|page| bytes[*page..].starts_with(b"QrtmPage"));
    let page = page.expect("it lies in a page");
    let length = u32::from_le_bytes(bytes[page + 12..page + 16].try_into().unwrap()) as usize;
    let header = crc32c::crc32c(&bytes[page..page + 92]);
    let checksum = crc32c::crc32c_append(header, &bytes[page + 96..page + 96 + length]);
    bytes[page + 92..page + 96].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_holds_something_else_is_named() {
    let mut cluster = Cluster::with("corrupt", 3, &["--corrupt-check-time", "500ms"]);
    for member in 0..3 {
        cluster.ready(member).await;
    }
    let all = cluster.connect(&[0, 1, 2]);
    all.put(put("key", "this is the truth")).await.unwrap();
    let liar = all.status(&cluster.client[2]).await.unwrap().header.unwrap().member_id;
    // Applied there, so that its store holds it when it stops.
    cluster.connect(&[2]).range(get("key")).await.unwrap();
    assert_eq!(cluster.terminate(2).signal(), Some(15));
    lie(&cluster, 2, b"this is the truth", b"this is otherwise");

    // It is refused where members are compared before they serve ...
    cluster.flags = vec!["--feature-gates".to_owned(), "InitialCorruptCheck=true".to_owned()];
    cluster.start(2);
    assert_eq!(cluster.ended(2).code(), Some(1));
    assert!(cluster.log(2).contains("found data inconsistency with peers"), "{}", cluster.log(2));
    // ... and found by the leader where they are not.
    cluster.flags = vec!["--corrupt-check-time".to_owned(), "500ms".to_owned()];
    cluster.start(2);
    cluster.ready(2).await;
    until("the alarm", async || !alarms(&all).await.is_empty()).await;
    assert_eq!(alarms(&all).await, [pb::AlarmMember { member_id: liar, alarm: 2 }]);
    let refused = all.put(put("key", "1")).await.unwrap_err();
    assert_eq!(refused.status.message(), "etcdserver: corrupt cluster");
    all.range(get("key")).await.unwrap();
}

/// Flips a bit of a page of the store of a member, somewhere in the middle of what was written; gives
/// the file and the place.
fn rot(cluster: &Cluster, member: usize) -> (PathBuf, u64) {
    let (segment, at) = find(cluster, member, b"rotten-50");
    flip(&segment, at as u64);
    (segment, at as u64)
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_store_rots_leaves_and_says_so() {
    let mut cluster = Cluster::with("rot", 3, &["--scrub-interval", "1s"]);
    for member in 0..3 {
        cluster.ready(member).await;
    }
    let all = cluster.connect(&[0, 1, 2]);
    for number in 0..100 {
        all.put(put(&format!("rotten-{number}"), &"v".repeat(5_000))).await.unwrap();
    }
    // The leader, so that leadership is handed over too.
    let status = all.status(&cluster.client[0]).await.unwrap();
    let mut victim = 0;
    for member in 0..3 {
        let own = all.status(&cluster.client[member]).await.unwrap().header.unwrap().member_id;
        if own == status.leader {
            victim = member;
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (segment, at) = rot(&cluster, victim);
    let address = cluster.client[victim].clone();
    until("the scrubber", async || http(&address, "/health").await.contains("OUT OF SERVICE")).await;
    let others: Vec<usize> = (0..3).filter(|member| *member != victim).collect();
    let rest = cluster.connect(&others);
    rest.put(put("after", "1")).await.unwrap();
    assert_ne!(rest.status(&cluster.client[others[0]]).await.unwrap().leader, status.leader);

    let alone = cluster.connect(&[victim]);
    let serializable = pb::RangeRequest { serializable: true, ..get("after") };
    let refused = alone.range(serializable).await.unwrap_err();
    let said = refused.status.source().map_or(refused.status.to_string(), ToString::to_string);
    assert!(said.contains("quorate: this member is out of service: rot in the store"), "{said}");
    let name = segment.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(said.contains(&name) && said.contains("holds pages"), "{said}");
    let metrics = http(&address, "/metrics").await;
    assert!(metrics.contains("quorate_out_of_service{reason=\"rot in the store"), "{metrics}");
    assert!(alarms(&rest).await.is_empty(), "CORRUPT is for members that disagree");

    // It stays like that until it is told to stop, and does not come back while the page is bad.
    assert_eq!(cluster.terminate(victim).signal(), Some(15));
    cluster.start(victim);
    assert_eq!(cluster.ended(victim).code(), Some(1));
    let log = cluster.log(victim);
    let last = log.lines().last().unwrap();
    assert!(last.contains("there is rot in the store"), "{last}");
    let reason = said.split_once("out of service: ").unwrap().1;
    assert!(last.contains(reason), "{last}\nnot in the words of the first time: {reason}");
    flip(&segment, at);
    cluster.start(victim);
    cluster.ready(victim).await;
    assert_eq!(alone.range(get("after")).await.unwrap().kvs.len(), 1);
}
