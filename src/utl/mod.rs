//! `quorateutl`: the files of a member that does not run, and snapshots.
//!
//! | file | what |
//! |---|---|
//! | `args.rs` | names, flags, defaults |
//! | `source.rs` | what a command reads: a snapshot of either form, a stopped member |
//! | `snapshot.rs` | save and status; hashkv |
//! | `restore.rs` | a data directory from a snapshot: restore, import |
//! | `export.rs` | a snapshot that etcd serves |
//! | `check.rs`, `dump.rs` | looking inside |
//! | `upkeep.rs` | defrag, migrate |
//!
//! Layouts and exit codes are etcdutl's where it has the command
//! (tests/facts/ctl.md). **Promises**: a directory in use is refused; what is
//! only looked at is not changed. **Never** talks to a running member, but to
//! save a snapshot of it.

mod args;
mod check;
mod dump;
mod export;
mod restore;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod upkeep;

use crate::env::Env;
use crate::layout::{self, Failure, mistake, printer::Format};
use args::{Cli, Command, Dump, Snapshot};
use clap::Parser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What every command needs.
pub(crate) struct Session {
    pub env: Env,
    pub format: Format,
}

/// Runs one command line (the program's name first); returns the exit code.
pub async fn run(args: Vec<OsString>, env: Env) -> i32 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return mistake::report(&error, "quorateutl"),
    };
    let outcome = match Format::parse(&cli.write_out) {
        Ok(format) => command(cli.command, Session { env, format }).await,
        Err(failure) => Err(failure),
    };
    layout::exit_code(outcome)
}

async fn command(command: Command, session: Session) -> Result<(), Failure> {
    match command {
        Command::Snapshot(Snapshot::Save(save)) => snapshot::save(&session, save).await,
        Command::Snapshot(Snapshot::Status(status)) => snapshot::status(&session, status).await,
        Command::Snapshot(Snapshot::Restore(restore)) => restore::restore(&session, restore).await,
        Command::Import(import) => restore::import(&session, import).await,
        Command::Export(export) => export::run(&session, export).await,
        Command::Check(check) => check::run(&session, check).await,
        Command::Dump(Dump::Log(log)) => dump::log(&session, log).await,
        Command::Dump(Dump::Store(store)) => dump::store(&session, store).await,
        Command::Hashkv(hash) => snapshot::hash_kv(&session, hash).await,
        Command::Defrag(defrag) => upkeep::defrag(&session, defrag).await,
        Command::Migrate(migrate) => upkeep::migrate(&session, migrate).await,
        Command::Version => {
            println!("quorateutl version: {}\nAPI version: 3.7", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}

/// Most failures: the text, exit code 1.
fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::server(error.to_string())
}

/// Where a file is written before it is whole.
fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// For those who watch; standard output is for results.
fn say(text: &str) {
    eprintln!("{text}");
}
