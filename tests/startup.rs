//! Runs the built server on loopback: what it says and how it ends when it is
//! started wrongly, when its surroundings are wrong, and when it is told to stop.
//!
//! Every wait is bounded; only processes started here are ended. The full texts
//! are held by snapshots with what differs between runs replaced: times, line
//! numbers, ports, directories.

// A simulated world has no processes.
#![cfg(not(madsim))]
// A test that runs processes needs a thread that reads what they say; an unwrap is its verdict.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// No run here takes longer, on a machine that is shared by many.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("startup-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A running server; killed when dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Process {
    fn start(args: &[String], variables: &[(&str, &str)], directory: &Directory) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("ETCD_")) {
            command.env_remove(key);
        }
        let mut child = command
            .args(args)
            .envs(variables.iter().copied())
            .current_dir(&directory.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, lines, seen: Vec::new() }
    }

    /// Reads on until a line holds `text`.
    fn wait_for(&mut self, text: &str) {
        while !self.seen.last().is_some_and(|line| line.contains(text)) {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("no {text:?} ({error}) in:\n{}", self.seen.join("\n")),
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Reads to the end: what came on stderr and stdout, and the exit status as a shell gives it.
    fn end(mut self) -> (Vec<String>, String, i32) {
        use std::os::unix::process::ExitStatusExt;
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.seen.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("still running:\n{}", self.seen.join("\n")),
            }
        }
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        (std::mem::take(&mut self.seen), stdout, code)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Replaces what differs between runs.
fn masked(line: &str, directory: &Directory, ports: &[(u16, &str)]) -> String {
    let mut line = line.replace(directory.0.to_str().unwrap(), "DIR");
    line = line.replace(env!("CARGO_BIN_EXE_quorate"), "quorate");
    for (port, name) in ports {
        line = line.replace(&format!(":{port}"), &format!(":{name}"));
    }
    // The time is JSON's second value, or the console's first word.
    let (before, after) = if line.starts_with('{') { ("\"ts\":\"", '"') } else { ("", '\t') };
    if let Some(from) = line.find(before).map(|at| at + before.len())
        && let Some(length) = line[from..].find(after)
    {
        line.replace_range(from..from + length, "TIME");
    }
    if let Some(from) = line.find(".rs:").map(|at| at + 4) {
        let length = line[from..].find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len() - from);
        line.replace_range(from..from + length, "N");
    }
    line
}

fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Runs to the end and holds everything it said by a snapshot.
fn check_snapshot(
    name: &str,
    args: &[String],
    variables: &[(&str, &str)],
    directory: &Directory,
    ports: &[(u16, &str)],
    want_code: i32,
) {
    let (stderr, stdout, code) = Process::start(args, variables, directory).end();
    let text: Vec<String> = stderr.iter().map(|line| masked(line, directory, ports)).collect();
    insta::assert_snapshot!(name.replace(' ', "_"), text.join("\n"));
    assert_eq!((stdout.as_str(), code), ("", want_code), "{name}");
}

/// A command line that does not parse: the text, then the usage; exit status 2.
fn check_plain(args: &[&str], want: &str) {
    let directory = Directory::new();
    let (stderr, stdout, code) = Process::start(&words(args), &[], &directory).end();
    assert_eq!((stderr[0].as_str(), stderr[1].as_str()), (want, "Usage:"), "{args:?}");
    assert_eq!((stdout.as_str(), code), ("", 2), "{args:?}");
}

#[test]
fn a_command_line_that_does_not_parse_ends_with_2() {
    check_plain(&["--nosuch"], "flag provided but not defined: -nosuch");
    check_plain(&["--name"], "flag needs an argument: -name");
    check_plain(&["--snapshot-count=x"], "invalid value \"x\" for flag -snapshot-count: parse error");
    check_plain(&["--pre-vote=maybe"], "invalid boolean value \"maybe\" for -pre-vote: parse error");
    check_plain(
        &["--listen-client-urls", "http://127.0.0.1:1/x"],
        "invalid value \"http://127.0.0.1:1/x\" for flag -listen-client-urls: URL must not contain a path: http://127.0.0.1:1/x",
    );
    check_plain(
        &["--initial-cluster-state=x"],
        "invalid value \"x\" for flag -initial-cluster-state: invalid value",
    );
}

#[test]
fn help_and_version_end_with_0() {
    let directory = Directory::new();
    let (stderr, stdout, code) = Process::start(&words(&["--help"]), &[], &directory).end();
    assert_eq!((stderr[0].as_str(), code), ("Usage:", 0));
    assert!(stdout.contains("--max-txn-ops '128'"), "{stdout}");
    let (stderr, stdout, code) = Process::start(&words(&["--version"]), &[], &directory).end();
    assert_eq!((stderr.len(), code), (0, 0));
    assert!(stdout.starts_with("etcd Version: 3.7."), "{stdout}");
}

#[test]
fn settings_that_do_not_verify_end_with_1() {
    let directory = Directory::new();
    let check = |name: &str, args: &[&str], variables: &[(&str, &str)]| {
        check_snapshot(name, &words(args), variables, &directory, &[], 1);
    };
    check("word", &["--name=a", "foo"], &[]);
    check("flag and variable", &["--name=a"], &[("ETCD_NAME", "a")]);
    check("bad variable", &[], &[("ETCD_HEARTBEAT_INTERVAL", "zz")]);
    check("odd variables", &["--heartbeat-interval=0"], &[("ETCD_FOO", "x"), ("ETCD_VERSION", "true")]);
    check(
        "name to bind",
        &["--listen-client-urls=http://example.com:1", "--advertise-client-urls=http://example.com:1"],
        &[],
    );
    check("advertise missing", &["--listen-client-urls=http://127.0.0.1:1"], &[]);
    check("election too short", &["--election-timeout=100"], &[]);
    check("log level", &["--log-level=x"], &[]);
    check("log format", &["--log-format=x"], &[]);
    check("log output", &["--log-outputs=/nowhere/at/all"], &[]);
    check("tls", &["--cert-file=c", "--key-file=k"], &[]);
    check("console", &["--log-format=console", "--force-new-cluster", "--log-level=warn"], &[]);
}

/// Flags of a member alone on two ports.
fn member(directory: &Directory, client: u16, peer: u16) -> Vec<String> {
    words(&[
        "--name=m1",
        &format!("--data-dir={}", directory.join("data")),
        &format!("--listen-client-urls=http://127.0.0.1:{client}"),
        &format!("--advertise-client-urls=http://127.0.0.1:{client}"),
        &format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        &format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
    ])
}

#[test]
fn surroundings_that_do_not_fit_end_with_1() {
    let check = |name: &str, more: &[&str], prepare: &dyn Fn(&Directory)| {
        let directory = Directory::new();
        prepare(&directory);
        let (client, peer) = (free_port(), free_port());
        let mut args = member(&directory, client, peer);
        args.extend(words(more));
        check_snapshot(name, &args, &[], &directory, &[(client, "CLIENT"), (peer, "PEER")], 1);
    };
    let nothing = |_: &Directory| {};
    check("local name missing", &["--initial-cluster=a=http://127.0.0.1:1"], &nothing);
    check("not advertised", &["--initial-cluster=m1=http://127.0.0.1:1"], &nothing);
    check("duplicate url", &["--initial-cluster=m1=http://127.0.0.1:1,b=http://127.0.0.1:1"], &nothing);
    check("bad initial cluster", &["--initial-cluster=foo"], &nothing);
    check("https without certificate", &["--listen-client-urls=https://127.0.0.1:1"], &nothing);
    check("port out of range", &["--listen-client-urls=http://127.0.0.1:99999"], &nothing);
    check("data directory is a file", &[], &|directory| {
        std::fs::write(directory.join("data"), b"").unwrap();
    });
    check("path below a file", &[&format!("--data-dir={}/data", env!("CARGO_BIN_EXE_quorate"))], &nothing);
    check("data directory of etcd", &[], &|directory| {
        std::fs::create_dir_all(directory.0.join("data/member/wal")).unwrap();
    });
}

#[test]
fn a_port_in_use_ends_with_1() {
    for (name, busy_client) in [("client port in use", true), ("peer port in use", false)] {
        let directory = Directory::new();
        let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (busy_port, other) = (busy.local_addr().unwrap().port(), free_port());
        let (client, peer) = if busy_client { (busy_port, other) } else { (other, busy_port) };
        let args = member(&directory, client, peer);
        check_snapshot(name, &args, &[], &directory, &[(client, "CLIENT"), (peer, "PEER")], 1);
    }
}

#[test]
fn a_served_member_stops_cleanly_and_dies_by_the_signal() {
    use rustix::process::Signal;
    for (signal, name, want) in [(Signal::TERM, "terminated", 143), (Signal::INT, "interrupt", 130)] {
        let directory = Directory::new();
        let mut process = Process::start(&member(&directory, free_port(), free_port()), &[], &directory);
        process.wait_for("ready to serve client requests");
        process.wait_for("serving client traffic insecurely");
        process.signal(signal);
        let (stderr, stdout, code) = process.end();
        let text = stderr.join("\n");
        assert_eq!((stdout.as_str(), code), ("", want), "{text}");
        let mut rest = text.as_str();
        for line in [
            "\"Initialize and start etcd server\"",
            "\"starting an etcd server\"",
            "\"published local member to cluster through raft\"",
            "\"ready to serve client requests\"",
            &format!("\"received signal; shutting down\",\"signal\":\"{name}\""),
            "\"closing etcd server\"",
            "\"skipped leadership transfer for single voting member cluster\"",
            "\"closed etcd server\"",
        ] {
            let at = rest.find(line).unwrap_or_else(|| panic!("no {line} in its place in:\n{text}"));
            rest = &rest[at..];
        }
        assert!(!text.contains("\"level\":\"error\""), "{text}");
    }
}

#[test]
fn a_data_directory_in_use_is_refused_at_once() {
    let directory = Directory::new();
    let mut first = Process::start(&member(&directory, free_port(), free_port()), &[], &directory);
    first.wait_for("ready to serve client requests");
    let (stderr, _, code) =
        Process::start(&member(&directory, free_port(), free_port()), &[], &directory).end();
    let last = stderr.last().unwrap();
    assert_eq!(code, 1, "{last}");
    assert!(last.contains("\"msg\":\"the data directory is in use by another process\""), "{last}");
}

#[test]
fn a_signal_before_clients_are_served_ends_a_member_at_once() {
    let directory = Directory::new();
    let (client, peer, nobody) = (free_port(), free_port(), free_port());
    let mut args = member(&directory, client, peer);
    args.push(format!("--initial-cluster=m1=http://127.0.0.1:{peer},m2=http://127.0.0.1:{nobody}"));
    let mut process = Process::start(&args, &[], &directory);
    process.wait_for("serving peer traffic");
    process.signal(rustix::process::Signal::TERM);
    let (stderr, _, code) = process.end();
    let text = stderr.join("\n");
    assert_eq!(code, 143, "{text}");
    assert!(
        !text.contains("ready to serve client requests") && !text.contains("closing etcd server"),
        "{text}"
    );
}
