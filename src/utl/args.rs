//! The command line: etcdutl's names, flags and defaults where it has the
//! command, its own beside them.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser, Debug)]
#[command(
    name = "quorateutl",
    about = "Looks into and makes the files of Quorate, away from any running member.",
    disable_version_flag = true,
    infer_subcommands = true
)]
pub struct Cli {
    /// Output format: fields, json, protobuf, simple, table.
    #[arg(short = 'w', long, global = true, default_value = "simple")]
    pub write_out: String,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Saves, describes and restores snapshots, of etcd's form and ours.
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Makes a data directory from a snapshot of etcd 3.5 to 3.7, with all history, leases, users and roles.
    Import(Restore),
    /// Writes a stopped member's store, or a snapshot, as a snapshot that etcd 3.7 restores and serves.
    Export(Export),
    /// Verifies every page of a stopped member and says what is wrong and where.
    Check(DataDir),
    /// Prints what a stopped member's files hold.
    #[command(subcommand)]
    Dump(Dump),
    /// Prints the hash of the key space, as HashKV answers.
    Hashkv(HashKv),
    /// Gives back what a stopped member's store does not need.
    Defrag(DataDir),
    /// Brings a data directory to another format version.
    Migrate(Migrate),
    /// Prints the version.
    Version,
}

#[derive(Subcommand, Debug)]
pub enum Snapshot {
    /// Saves a snapshot of a running member to a file.
    Save(Save),
    /// Prints hash, revision, keys and size of a snapshot file.
    Status(Status),
    /// Makes a data directory from a snapshot file of either form.
    Restore(Restore),
}

#[derive(Args, Debug)]
pub struct Save {
    pub files: Vec<PathBuf>,
    /// The member to ask.
    #[arg(long, env = "ETCDCTL_ENDPOINTS", default_value = "127.0.0.1:2379")]
    pub endpoints: String,
}

#[derive(Args, Debug)]
pub struct Status {
    pub files: Vec<PathBuf>,
}

#[derive(Args, Debug, Clone)]
pub struct Restore {
    pub files: Vec<PathBuf>,
    /// Path to the new data directory [default: NAME.etcd].
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// Human-readable name of the new member.
    #[arg(long, default_value = "default")]
    pub name: String,
    /// Names and peer URLs of all members of the new cluster.
    #[arg(long, default_value = "default=http://localhost:2380")]
    pub initial_cluster: String,
    #[arg(long, default_value = "etcd-cluster")]
    pub initial_cluster_token: String,
    /// This member's peer URLs as the others know them.
    #[arg(long, default_value = "http://localhost:2380")]
    pub initial_advertise_peer_urls: String,
    /// Takes a snapshot without its digest, or with a wrong one.
    #[arg(long)]
    pub skip_hash_check: bool,
    /// How far the revision goes up; with --mark-compacted.
    #[arg(long, default_value_t = 0)]
    pub bump_revision: u64,
    /// Marks the bumped revision as compacted; with --bump-revision.
    #[arg(long)]
    pub mark_compacted: bool,
}

#[derive(Args, Debug)]
pub struct Export {
    /// [SNAPSHOT] FILE: the file to write comes last; a snapshot of ours to read may come before it.
    pub files: Vec<PathBuf>,
    /// A stopped member's data directory.
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct DataDir {
    /// A stopped member's data directory.
    #[arg(long)]
    pub data_dir: PathBuf,
}

#[derive(Subcommand, Debug)]
pub enum Dump {
    /// Entries of the raft log.
    Log(Window),
    /// Records of the store, in the order of history, and its marks.
    Store(DumpStore),
}

/// What part of a stopped member's files is printed.
#[derive(Args, Debug)]
pub struct Window {
    /// A stopped member's data directory.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// First entry of the log, or revision of the store.
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// Last one.
    #[arg(long, default_value_t = u64::MAX)]
    pub to: u64,
    /// Only what names this key.
    #[arg(long)]
    pub key: Option<String>,
}

#[derive(Args, Debug)]
pub struct DumpStore {
    #[command(flatten)]
    pub window: Window,
    /// With --key: all keys from that one up to before this one.
    #[arg(long, requires = "key")]
    pub range_end: Option<String>,
}

#[derive(Args, Debug)]
pub struct HashKv {
    /// A snapshot of either form, unless --data-dir is given.
    pub files: Vec<PathBuf>,
    /// A stopped member's data directory.
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// Revision to hash at (0 = newest).
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub rev: i64,
}

#[derive(Args, Debug)]
pub struct Migrate {
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Format version to bring the directory to.
    #[arg(long)]
    pub target_version: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
