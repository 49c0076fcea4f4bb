//! `quoratectl`: etcdctl's commands, flags, layouts and exit codes.
//!
//! Talks to members through [`crate::client`] only. **Never** touches the disk
//! of a running member.

mod args;
pub mod bench;
mod endpoint;
mod kv;
mod maintenance;
mod member;
mod txn;

use crate::client::{Client, ClientOptions};
use crate::env::{Env, net::HttpOptions};
use crate::layout::{self, failure, mistake, printer, quote};
use args::{Cli, Command, Global};
use clap::Parser;
use failure::Failure;
use std::ffi::OsString;
use std::time::Duration;

/// What a command needs: the global flags, the world, a client.
pub(crate) struct Session {
    pub global: Global,
    pub env: Env,
    pub format: printer::Format,
}

impl Session {
    /// A client over all endpoints of the flags.
    fn client(&self) -> Client {
        self.client_of(self.global.endpoints())
    }

    fn client_of(&self, endpoints: Vec<String>) -> Client {
        let options = ClientOptions {
            call_timeout: self.global.command_timeout,
            http: HttpOptions { connect_timeout: self.global.dial_timeout, ..http_options() },
            ..ClientOptions::default()
        };
        Client::new(endpoints, options, self.env.clone())
    }
}

/// etcd closes connections that ping more often than every five seconds (N5).
fn http_options() -> HttpOptions {
    HttpOptions { keepalive_interval: Some(Duration::from_secs(10)), ..HttpOptions::default() }
}

/// Runs one command line (the program's name first); returns the exit code.
pub async fn run(args: Vec<OsString>, env: Env) -> i32 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return mistake::report(&error, "quoratectl"),
    };
    let outcome = match printer::Format::parse(&cli.global.write_out) {
        Ok(format) => command(cli.command, Session { global: cli.global, env, format }).await,
        Err(failure) => Err(failure),
    };
    layout::exit_code(outcome)
}

impl From<crate::client::Error> for Failure {
    fn from(error: crate::client::Error) -> Failure {
        Failure::server(failure::text_of(&error.status))
    }
}

async fn command(command: Command, session: Session) -> Result<(), Failure> {
    match command {
        Command::Get(get) => kv::get(&session, get).await,
        Command::Put(put) => kv::put(&session, put).await,
        Command::Del(del) => kv::del(&session, del).await,
        Command::Txn(txn) => txn::run(&session, txn).await,
        Command::Compaction(compaction) => kv::compaction(&session, compaction).await,
        Command::Endpoint(endpoint) => endpoint::run(&session, endpoint).await,
        Command::Alarm(alarm) => maintenance::alarm(&session, alarm).await,
        Command::Defrag(of) => maintenance::defrag(&session, &of).await,
        Command::Member(member) => member::run(&session, member).await,
        Command::Bench(bench) => bench::run(&session.global.endpoints(), bench, &session.env).await,
        Command::Version => {
            println!("quoratectl version: {}\nAPI version: 3.7", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}
