//! The command line: names, flags and environment of etcdctl.

use clap::{Args, Parser, Subcommand};
use std::time::Duration;

#[derive(Parser, Debug)]
#[command(
    name = "quoratectl",
    about = "A command line client for Quorate and every other server of the etcd v3 API.",
    disable_version_flag = true,
    infer_subcommands = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Debug, Clone)]
pub struct Global {
    /// Endpoints, comma-separated.
    #[arg(long, global = true, env = "ETCDCTL_ENDPOINTS", default_value = "127.0.0.1:2379")]
    pub endpoints: String,
    /// Output format: fields, json, protobuf, simple, table.
    #[arg(short = 'w', long, global = true, env = "ETCDCTL_WRITE_OUT", default_value = "simple")]
    pub write_out: String,
    /// Print byte strings as hex.
    #[arg(long, global = true, env = "ETCDCTL_HEX")]
    pub hex: bool,
    /// Time limit for a connection.
    #[arg(long, global = true, env = "ETCDCTL_DIAL_TIMEOUT", default_value = "2s", value_parser = duration)]
    pub dial_timeout: Duration,
    /// Time limit for a short command.
    #[arg(long, global = true, env = "ETCDCTL_COMMAND_TIMEOUT", default_value = "5s", value_parser = duration)]
    pub command_timeout: Duration,
}

impl Global {
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints
            .split(',')
            .map(str::trim)
            .filter(|endpoint| !endpoint.is_empty())
            .map(str::to_owned)
            .collect()
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Gets the key or a range of keys.
    Get(Get),
    /// Puts a key.
    Put(Put),
    /// Removes the key or a range of keys.
    Del(Del),
    /// Runs a txn read from standard input.
    Txn(Txn),
    /// Compacts the history up to a revision.
    Compaction(Compaction),
    /// Endpoint related commands.
    #[command(subcommand)]
    Endpoint(Endpoint),
    /// Alarm related commands.
    #[command(subcommand)]
    Alarm(Alarm),
    /// Gives back the disk space of what was compacted, at the endpoints.
    Defrag(OfCluster),
    /// Membership related commands.
    #[command(subcommand)]
    Member(Member),
    /// Loads a cluster and prints rate and latencies.
    #[command(subcommand)]
    Bench(Bench),
    /// Prints the version.
    Version,
}

#[derive(Args, Debug, Default)]
pub struct Get {
    #[arg(allow_hyphen_values = false)]
    pub words: Vec<String>,
    /// Linearizable (l) or serializable (s).
    #[arg(long, default_value = "l")]
    pub consistency: String,
    /// ASCEND or DESCEND.
    #[arg(long, default_value = "")]
    pub order: String,
    /// CREATE, KEY, MODIFY, VALUE or VERSION.
    #[arg(long, default_value = "")]
    pub sort_by: String,
    /// Number of results at most.
    #[arg(long, default_value_t = 0)]
    pub limit: i64,
    /// All keys that begin with the key.
    #[arg(long)]
    pub prefix: bool,
    /// All keys from the key on.
    #[arg(long)]
    pub from_key: bool,
    /// Revision to read at.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub rev: i64,
    #[arg(long)]
    pub keys_only: bool,
    #[arg(long)]
    pub count_only: bool,
    #[arg(long)]
    pub print_value_only: bool,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub min_create_rev: i64,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub max_create_rev: i64,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub min_mod_rev: i64,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub max_mod_rev: i64,
}

#[derive(Args, Debug, Default)]
pub struct Put {
    pub words: Vec<String>,
    /// Lease id in hex.
    #[arg(long, default_value = "0")]
    pub lease: String,
    #[arg(long)]
    pub prev_kv: bool,
    #[arg(long)]
    pub ignore_value: bool,
    #[arg(long)]
    pub ignore_lease: bool,
}

#[derive(Args, Debug, Default)]
pub struct Del {
    pub words: Vec<String>,
    #[arg(long)]
    pub prefix: bool,
    #[arg(long)]
    pub from_key: bool,
    #[arg(long)]
    pub prev_kv: bool,
    /// The second word ends a range; no warning, no pause.
    #[arg(long)]
    pub range: bool,
}

#[derive(Args, Debug)]
pub struct Txn {
    pub words: Vec<String>,
    #[arg(short, long)]
    pub interactive: bool,
}

#[derive(Args, Debug)]
pub struct Compaction {
    pub words: Vec<String>,
    /// Waits until old revisions are removed on the member asked.
    #[arg(long)]
    pub physical: bool,
}

#[derive(Subcommand, Debug)]
pub enum Endpoint {
    /// Checks that endpoints commit proposals.
    Health(OfCluster),
    /// Prints what endpoints say of themselves.
    Status(OfCluster),
    /// Prints the hash of the key space of each endpoint.
    Hashkv(HashKv),
}

#[derive(Args, Debug)]
pub struct OfCluster {
    #[arg(hide = true)]
    pub ignored: Vec<String>,
    /// Ask all members of the cluster.
    #[arg(long)]
    pub cluster: bool,
}

#[derive(Args, Debug)]
pub struct HashKv {
    #[arg(long)]
    pub cluster: bool,
    /// Revision to hash at (0 = newest).
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub rev: i64,
}

#[derive(Subcommand, Debug)]
pub enum Alarm {
    /// Lists the alarms that are on.
    List(NoWords),
    /// Takes back every alarm that is on.
    Disarm(NoWords),
}

/// Words that a command does not take: its own failure says so.
#[derive(Args, Debug)]
pub struct NoWords {
    #[arg(hide = true)]
    pub words: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub enum Member {
    /// Lists all members.
    List(MemberList),
}

#[derive(Args, Debug)]
pub struct MemberList {
    /// Linearizable (l) or serializable (s).
    #[arg(long, default_value = "l")]
    pub consistency: String,
}

#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Puts keys.
    Put(BenchLoad),
    /// Gets single keys.
    Range(BenchLoad),
    /// Txns of puts.
    Txn(BenchLoad),
}

/// A load: sizes in bytes, times as 10s or 500ms.
#[derive(Args, Debug, Clone)]
pub struct BenchLoad {
    /// Connections, spread over the endpoints.
    #[arg(long, default_value_t = 10)]
    pub connections: usize,
    /// Concurrent callers, spread over the connections.
    #[arg(long, default_value_t = 100)]
    pub clients: usize,
    #[arg(long, default_value_t = 32)]
    pub key_size: usize,
    #[arg(long, default_value_t = 256)]
    pub val_size: usize,
    /// Number of distinct keys.
    #[arg(long, default_value_t = 10_000)]
    pub key_space: u64,
    /// Keys one after the other instead of at random.
    #[arg(long)]
    pub sequential: bool,
    /// Calls in all (0: by duration).
    #[arg(long, default_value_t = 0)]
    pub total: u64,
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Calls a second at most (0 = as fast as it goes).
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Serializable reads (range only).
    #[arg(long)]
    pub serializable: bool,
    /// Puts in each txn (txn only).
    #[arg(long, default_value_t = 8)]
    pub txn_ops: usize,
}

/// Durations as Go writes them: one or more numbers with units.
pub fn duration(text: &str) -> Result<Duration, String> {
    let broken = || format!("invalid duration \"{text}\"");
    let mut rest = text;
    let mut total = 0.0;
    if rest.is_empty() {
        return Err(broken());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(broken)?;
        let number: f64 = rest[..digits].parse().map_err(|_| broken())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(broken()),
        };
        total += number * seconds;
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(total).map_err(|_| broken())
}

/// Prints what clap found wrong and returns etcdctl's exit code for it.
pub fn report(error: &clap::Error) -> i32 {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed standard output is no failure of a help text.
            let _ = error.print();
            return 0;
        }
        ErrorKind::UnknownArgument => {
            let flag = word(ContextKind::InvalidArg);
            match flag.strip_prefix("--") {
                Some(_) => eprintln!("Error: unknown flag: {}", flag.split('=').next().unwrap_or_default()),
                None => {
                    let short = flag.trim_start_matches('-').chars().next().unwrap_or('-');
                    eprintln!("Error: unknown shorthand flag: '{short}' in {flag}");
                }
            }
        }
        ErrorKind::InvalidSubcommand => {
            eprintln!(
                "Error: unknown command \"{}\" for \"quoratectl\"",
                word(ContextKind::InvalidSubcommand)
            );
            eprintln!("Run 'quoratectl --help' for usage.");
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let flag = word(ContextKind::InvalidArg);
            let name = flag.split_whitespace().next().unwrap_or_default();
            eprintln!("Error: invalid argument \"{}\" for \"{name}\" flag", word(ContextKind::InvalidValue));
        }
        _ => eprintln!("Error: {}", error.to_string().trim_start_matches("error: ").trim_end()),
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(duration(text).ok(), ms.map(Duration::from_millis), "{text}");
        };
        check("5s", Some(5000));
        check("1m30s", Some(90_000));
        check("1.5s", Some(1500));
        check("100ms", Some(100));
        check("", None);
        check("5", None);
        check("s", None);
        check("5x", None);
        check("-1s", None);
    }
}
