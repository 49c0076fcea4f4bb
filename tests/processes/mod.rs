//! Real processes on loopback for the tests beside this folder.
//!
//! Ends only the processes it started, by id; every wait is bounded.
#![allow(dead_code, reason = "each test file uses its part")]

use quorate::client::{Client, ClientOptions};
use quorate::env::{Env, os};
use quorate::proto::etcdserverpb as pb;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything in this file.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub root: PathBuf,
    pub client: Vec<String>,
    peer: Vec<String>,
    children: Vec<Option<Child>>,
    env: Env,
    /// Flags of every member, besides those that make a cluster of them.
    pub flags: Vec<String>,
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Cluster {
    pub fn new(name: &str, members: usize) -> Cluster {
        Cluster::with(name, members, &[])
    }

    pub fn with(name: &str, members: usize, flags: &[&str]) -> Cluster {
        let root = std::env::temp_dir().join(format!("quorate-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        let mut cluster = Cluster {
            root,
            client: (0..members).map(|_| format!("127.0.0.1:{}", free_port())).collect(),
            peer: (0..members).map(|_| format!("http://127.0.0.1:{}", free_port())).collect(),
            children: (0..members).map(|_| None).collect(),
            env: os::env(1),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        for member in 0..members {
            cluster.start(member);
        }
        cluster
    }

    pub fn start(&mut self, member: usize) {
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
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children[member] = Some(child);
    }

    pub fn kill(&mut self, member: usize) {
        let mut child = self.children[member].take().expect("the member runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks a member to stop; waits for it.
    pub fn terminate(&mut self, member: usize) -> std::process::ExitStatus {
        let mut child = self.children[member].take().expect("the member runs");
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        child.wait().unwrap()
    }

    /// Waits until a member has ended by itself.
    pub fn ended(&mut self, member: usize) -> std::process::ExitStatus {
        let begun = Instant::now();
        let child = self.children[member].as_mut().expect("the member was started");
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                self.children[member] = None;
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "member {member} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn connect(&self, members: &[usize]) -> Client {
        let endpoints = members.iter().map(|member| self.client[*member].clone()).collect();
        let options = ClientOptions { call_timeout: Duration::from_secs(10), ..ClientOptions::default() };
        Client::new(endpoints, options, self.env.clone())
    }

    /// Everything that a member has logged.
    pub fn log(&self, member: usize) -> String {
        std::fs::read_to_string(self.root.join(format!("m{member}.log"))).unwrap_or_default()
    }

    /// Waits until a member answers a linearizable read.
    pub async fn ready(&self, member: usize) {
        let begun = Instant::now();
        let client = self.connect(&[member]);
        while let Err(error) = client.range(get("ready")).await {
            let log = self.log(member);
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

pub fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.as_bytes().to_vec().into(), ..Default::default() }
}

pub fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: key.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
        ..Default::default()
    }
}
