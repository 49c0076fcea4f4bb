//! How plans are drawn: a file in `scenarios/` that people edit.
//!
//! Every number that is a pair is a range, both ends included. **Never** holds
//! what happens in one seed: that is the plan.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A kind of life for a cluster.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    /// One sentence for `list`.
    pub about: String,
    pub members: usize,
    pub clients: usize,
    /// Virtual seconds of traffic; faults lie within.
    pub seconds: u64,
    /// Virtual seconds of traffic before the first fault.
    #[serde(default = "two")]
    pub calm_seconds: u64,
    /// Virtual seconds after the faults within which every member must serve again.
    #[serde(default = "liveness")]
    pub liveness_seconds: u64,
    /// Operations a second of each client.
    pub rate: f64,
    /// Keys in the common pool: few, so that clients meet.
    pub keys: u64,
    /// Bytes of a value's padding.
    #[serde(default)]
    pub value_bytes: [u64; 2],
    /// Some values are larger than others by orders.
    #[serde(default)]
    pub big_values: Option<BigValues>,
    /// Share of operations that go to one fixed member on a raw channel; the others go through the client library.
    #[serde(default = "half")]
    pub fixed_member_share: f64,
    /// A kind of fault or operation that may be off is off in a seed with this probability.
    #[serde(default = "third")]
    pub swarm_off: f64,
    /// At the end every member is killed and started once more, and judged again.
    #[serde(default)]
    pub restart: bool,
    pub sizes: Sizes,
    /// Weight of each kind of operation.
    pub mix: BTreeMap<Kind, u32>,
    #[serde(default)]
    pub faults: BTreeMap<FaultKind, Pace>,
    /// Marks that a campaign must reach.
    #[serde(default)]
    pub promises: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct BigValues {
    /// Of all values.
    pub share: f64,
    pub bytes: [u64; 2],
}

fn two() -> u64 {
    2
}
fn liveness() -> u64 {
    40
}
fn half() -> f64 {
    0.5
}
fn third() -> f64 {
    0.33
}
fn clean() -> [u64; 2] {
    [50, 2000]
}
fn index_segment() -> [u64; 2] {
    [8192, 65536]
}

/// Small sizes reach rare states soon. Bytes, milliseconds or counts.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    pub heartbeat_ms: [u64; 2],
    pub election_ms: [u64; 2],
    pub snapshot_count: [u64; 2],
    pub catchup_entries: [u64; 2],
    pub page_bytes: u64,
    pub log_segment_bytes: [u64; 2],
    pub log_cache_bytes: [u64; 2],
    pub store_segment_bytes: [u64; 2],
    pub store_cache_bytes: [u64; 2],
    pub commit_bytes: [u64; 2],
    pub commit_ms: [u64; 2],
    #[serde(default = "index_segment")]
    pub index_segment_bytes: [u64; 2],
    #[serde(default = "clean")]
    pub clean_ms: [u64; 2],
    /// Of one pass of the scrubber; none: the product's default.
    #[serde(default)]
    pub scrub_ms: Option<[u64; 2]>,
    /// None: the product's default.
    #[serde(default)]
    pub quota_bytes: Option<[u64; 2]>,
    /// Revisions that members retain when they compact by themselves; a third of the seeds do.
    #[serde(default)]
    pub retain_revisions: Option<[u64; 2]>,
    /// The same by time; another third.
    #[serde(default)]
    pub retain_ms: Option<[u64; 2]>,
    /// How often members compare hashes; three of four seeds do.
    #[serde(default)]
    pub compare_ms: Option<[u64; 2]>,
    /// Of a message between any two nodes, microseconds.
    pub latency_low_us: [u64; 2],
    pub latency_spread_us: [u64; 2],
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Put,
    /// A linearizable read of one key.
    Get,
    /// A read that the asked member answers alone.
    GetLocal,
    Range,
    /// A range at a revision that lies back.
    RangeBack,
    Delete,
    DeleteRange,
    /// Compare-and-swap on what the client saw last.
    Swap,
    /// Several compares and operations, sometimes nested.
    Txn,
    /// A txn that writes and reads at a revision that may be compacted: it must have no effect then.
    TxnBack,
    Compact,
    /// Deletes everything, then compacts at the head.
    Wipe,
    /// A request that must be refused.
    Bad,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    Kill,
    PowerLoss,
    /// Every member at once loses power.
    Blackout,
    /// Kill or power loss at the n-th disk operation from now.
    KillAtDisk,
    Pause,
    /// Leader and others stand still together and wake together.
    PauseMany,
    /// A subset apart from the rest, both directions.
    Partition,
    OneWay,
    /// Members are cut off one after the other and come back in another order.
    Swizzle,
    Latency,
    Loss,
    ClockJump,
    ClockDrift,
    WallJump,
    SyncError,
    NoSpace,
    SlowDisk,
    SlowReads,
    /// Stored bytes change, or another write lands there, and the member is started anew.
    Rot,
    /// The same while it runs, and it must find out.
    Decay,
    /// The checkpoint of the index is damaged or gone at a restart.
    SpoilIndex,
    /// Someone asks a member to defragment.
    Defragment,
    /// An operator compacts, defragments and disarms.
    Relieve,
    Misdirect,
    /// The leader is killed, loses power, stands still or is cut off.
    LeaderLoss,
    /// The leader is asked to hand over, and a burst of reads everywhere after it.
    Transfer,
}

/// How often a fault comes and how long it lasts.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// Milliseconds between the end of one and the start of the next.
    pub gap_ms: [u64; 2],
    /// Milliseconds that one lasts.
    #[serde(default)]
    pub hold_ms: [u64; 2],
    /// On in every seed.
    #[serde(default)]
    pub always: bool,
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    #[error("{0}: {1}")]
    Parse(PathBuf, Box<toml::de::Error>),
    #[error("{0}: {1}")]
    Wrong(String, &'static str),
}

impl Scenario {
    /// Reads `scenarios/<name>.toml`, or the file if `name` is a path.
    #[allow(clippy::disallowed_methods)] // The runner is outside of the simulated world.
    pub fn load(directory: &Path, name: &str) -> Result<Scenario, ScenarioError> {
        let path = match name.ends_with(".toml") {
            true => PathBuf::from(name),
            false => directory.join(format!("{name}.toml")),
        };
        let text =
            std::fs::read_to_string(&path).map_err(|error| ScenarioError::Read(path.clone(), error))?;
        Scenario::parse(&text).map_err(|error| match error {
            ParseError::Toml(error) => ScenarioError::Parse(path, Box::new(error)),
            ParseError::Wrong(what) => ScenarioError::Wrong(path.display().to_string(), what),
        })
    }

    fn parse(text: &str) -> Result<Scenario, ParseError> {
        let scenario: Scenario = toml::from_str(text).map_err(ParseError::Toml)?;
        scenario.verify().map_err(ParseError::Wrong)?;
        Ok(scenario)
    }

    fn verify(&self) -> Result<(), &'static str> {
        let sizes = &self.sizes;
        let pairs = [
            sizes.heartbeat_ms,
            sizes.election_ms,
            sizes.snapshot_count,
            sizes.catchup_entries,
            sizes.log_segment_bytes,
            sizes.log_cache_bytes,
            sizes.store_segment_bytes,
            sizes.store_cache_bytes,
            sizes.commit_bytes,
            sizes.commit_ms,
            sizes.index_segment_bytes,
            sizes.clean_ms,
            sizes.latency_low_us,
            sizes.latency_spread_us,
            self.value_bytes,
            self.big_values.as_ref().map_or([0, 0], |big| big.bytes),
        ];
        let some =
            [sizes.scrub_ms, sizes.quota_bytes, sizes.retain_revisions, sizes.retain_ms, sizes.compare_ms];
        let paces = self.faults.values().flat_map(|pace| [pace.gap_ms, pace.hold_ms]);
        if pairs.into_iter().chain(some.into_iter().flatten()).chain(paces).any(|[low, high]| low > high) {
            return Err("a range has its higher end first");
        }
        if !(1..=9).contains(&self.members) || !(1..=99).contains(&self.clients) {
            return Err("1 to 9 members and 1 to 99 clients");
        }
        if self.mix.values().all(|weight| *weight == 0) {
            return Err("no operation has a weight");
        }
        if self.calm_seconds >= self.seconds || self.keys == 0 || self.rate <= 0.0 {
            return Err("calm_seconds < seconds, keys > 0, rate > 0");
        }
        if sizes.latency_spread_us[0] == 0 || sizes.election_ms[0] < 5 * sizes.heartbeat_ms[1] {
            return Err("latency_spread_us > 0, election_ms at least 5 times heartbeat_ms");
        }
        let big = self.big_values.as_ref().map_or(0.0, |big| big.share);
        if ![self.swarm_off, self.fixed_member_share, big].iter().all(|share| (0.0..=1.0).contains(share)) {
            return Err("shares lie between 0 and 1");
        }
        Ok(())
    }

    /// Every scenario of a directory, by name.
    #[allow(clippy::disallowed_methods)] // The runner is outside of the simulated world.
    pub fn all(directory: &Path) -> Result<Vec<Scenario>, ScenarioError> {
        let read = |error| ScenarioError::Read(directory.to_owned(), error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(read)? {
            let name = entry.map_err(read)?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".toml").map(str::to_owned));
        }
        names.sort();
        names.iter().map(|name| Scenario::load(directory, name)).collect()
    }
}

enum ParseError {
    Toml(toml::de::Error),
    Wrong(&'static str),
}

/// The project's own scenarios.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_project_is_well_formed() {
        let all = Scenario::all(&directory()).unwrap();
        let names: Vec<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        assert!(names.contains(&"standard"), "{names:?}");
        for scenario in &all {
            let again: Scenario = toml::from_str(&toml::to_string(scenario).unwrap()).unwrap();
            assert_eq!(&again, scenario);
        }
    }

    /// A mark that no line of the product reaches any more would fail a campaign much later.
    #[test]
    fn every_promised_mark_is_in_the_code() {
        let mut code = String::new();
        let mut rooms = vec![directory().join("../src"), directory().join("../sim/src")];
        while let Some(room) = rooms.pop() {
            for entry in std::fs::read_dir(&room).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    rooms.push(path);
                } else if path.extension().is_some_and(|kind| kind == "rs") {
                    code.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        for scenario in Scenario::all(&directory()).unwrap() {
            for mark in &scenario.promises {
                assert!(code.contains(&format!("reached!(\"{mark}\")")), "{}: {mark}", scenario.name);
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let text = std::fs::read_to_string(directory().join("standard.toml")).unwrap();
        let wrong = |from: &str, to: &str| match Scenario::parse(&text.replacen(from, to, 1)) {
            Ok(_) => "accepted".to_owned(),
            Err(ParseError::Toml(error)) => error.message().to_owned(),
            Err(ParseError::Wrong(what)) => what.to_owned(),
        };
        assert_eq!(wrong("members = 3", "members = 0"), "1 to 9 members and 1 to 99 clients");
        assert!(wrong("members = 3", "membres = 3").starts_with("unknown field `membres`"));
    }
}
