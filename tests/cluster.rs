//! Three real processes on loopback: kill -9 any of them and lose nothing.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod processes;

use processes::{Cluster, get, put};
use quorate::client::Client;
use std::time::{Duration, Instant};

/// Puts keys until `deadline`; returns those that were acknowledged.
async fn write(client: Client, prefix: String, deadline: Instant) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if Instant::now() > deadline {
            break;
        }
        let key = format!("{prefix}{number}");
        if client.put(put(&key, &key)).await.is_ok() {
            acknowledged.push(key);
        }
    }
    acknowledged
}

async fn expect_all(client: &Client, keys: &[String]) {
    for key in keys {
        let response = client.range(get(key)).await.unwrap_or_else(|error| panic!("{key}: {error:?}"));
        assert_eq!(response.kvs.len(), 1, "{key} was acknowledged and is gone");
        assert_eq!(&response.kvs[0].value[..], key.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_lose_nothing_when_each_is_killed_in_turn() {
    let mut cluster = Cluster::new("three", 3);
    for member in 0..3 {
        cluster.ready(member).await;
    }
    let mut acknowledged = Vec::new();
    for victim in 0..3 {
        let others: Vec<usize> = (0..3).filter(|member| *member != victim).collect();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let client = cluster.connect(&others);
                let deadline = Instant::now() + Duration::from_secs(4);
                tokio::spawn(write(client, format!("v{victim}w{writer}-"), deadline))
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.kill(victim);
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        cluster.start(victim);
        cluster.ready(victim).await;
    }
    assert!(acknowledged.len() > 50, "only {} puts were acknowledged", acknowledged.len());
    for member in 0..3 {
        expect_all(&cluster.connect(&[member]), &acknowledged).await;
    }
    let client = cluster.connect(&[0]);
    let revision = client.range(get("ready")).await.unwrap().header.unwrap().revision;
    let mut hashes = Vec::new();
    for endpoint in cluster.client.clone() {
        hashes.push(client.hash_kv(&endpoint, revision).await.unwrap().hash);
    }
    assert!(
        hashes.iter().all(|hash| *hash == hashes[0]),
        "members disagree at revision {revision}: {hashes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_killed_at_once_after_its_answers_loses_nothing() {
    let mut cluster = Cluster::new("one", 1);
    cluster.ready(0).await;
    let mut acknowledged = Vec::new();
    let mut revision = 0;
    for round in 0..4 {
        let client = cluster.connect(&[0]);
        for number in 0..40 {
            let key = format!("r{round}-{number}");
            let response = client.put(put(&key, &key)).await.unwrap();
            revision = response.header.unwrap().revision;
            acknowledged.push(key);
        }
        let before = client.hash_kv(&cluster.client[0].clone(), revision).await.unwrap().hash;
        cluster.kill(0);
        cluster.start(0);
        cluster.ready(0).await;
        let client = cluster.connect(&[0]);
        let after = client.hash_kv(&cluster.client[0].clone(), revision).await.unwrap();
        assert_eq!((after.hash, after.hash_revision), (before, revision));
        assert_eq!(after.header.unwrap().revision, revision, "the revision did not move");
        expect_all(&client, &acknowledged).await;
    }
}
