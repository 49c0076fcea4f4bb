//! Three real processes on loopback: kill -9 any of them and lose nothing.
//!
//! Ends only the processes it started, by id; every wait is bounded.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use quorate::client::{Client, ClientOptions};
use quorate::env::{Env, os};
use quorate::proto::etcdserverpb as pb;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything in this file.
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    root: PathBuf,
    client: Vec<String>,
    peer: Vec<String>,
    children: Vec<Option<Child>>,
    env: Env,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Cluster {
    fn new(name: &str, members: usize) -> Cluster {
        let root = std::env::temp_dir().join(format!("quorate-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        let mut cluster = Cluster {
            root,
            client: (0..members).map(|_| format!("127.0.0.1:{}", free_port())).collect(),
            peer: (0..members).map(|_| format!("http://127.0.0.1:{}", free_port())).collect(),
            children: (0..members).map(|_| None).collect(),
            env: os::env(1),
        };
        for member in 0..members {
            cluster.start(member);
        }
        cluster
    }

    fn start(&mut self, member: usize) {
        let initial: Vec<String> =
            self.peer.iter().enumerate().map(|(at, url)| format!("m{at}={url}")).collect();
        let client = format!("http://{}", self.client[member]);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.root.join(format!("m{member}.log")))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_quorate"))
            .args(["--name", &format!("m{member}")])
            .args(["--data-dir", &self.root.join(format!("m{member}")).display().to_string()])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &self.peer[member]])
            .args(["--initial-advertise-peer-urls", &self.peer[member]])
            .args(["--initial-cluster", &initial.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children[member] = Some(child);
    }

    fn kill(&mut self, member: usize) {
        let mut child = self.children[member].take().expect("the member runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn connect(&self, members: &[usize]) -> Client {
        let endpoints = members.iter().map(|member| self.client[*member].clone()).collect();
        let options = ClientOptions { call_timeout: Duration::from_secs(10), ..ClientOptions::default() };
        Client::new(endpoints, options, self.env.clone())
    }

    /// Waits until a member answers a linearizable read.
    async fn ready(&self, member: usize) {
        let begun = Instant::now();
        let client = self.connect(&[member]);
        while let Err(error) = client.range(get("ready")).await {
            let log = std::fs::read_to_string(self.root.join(format!("m{member}.log"))).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "member {member} does not serve: {error:?}\n{log}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.as_bytes().to_vec().into(), ..Default::default() }
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: key.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
        ..Default::default()
    }
}

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
