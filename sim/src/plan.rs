//! What happens in one seed, as data: each operation and each fault with its virtual time.
//!
//! Promises: (scenario, seed) draws the same plan on every machine; a plan can
//! be printed, stored, cut down line by line and run again. What only the run
//! can know (a revision seen last, who leads) is named by relation.
//! **Never** runs anything.

mod draw;

use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A plan. Stored as JSON, one line for the head and one for each event.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub head: Head,
    /// By time, then by id.
    pub ops: Vec<Planned>,
    /// By time.
    pub faults: Vec<PlannedFault>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Head {
    pub scenario: String,
    pub seed: u64,
    pub members: usize,
    pub clients: usize,
    /// Everything heals here.
    pub heal_ms: u64,
    /// After the healing, how long until every member must serve.
    pub liveness_ms: u64,
    pub sizes: Drawn,
    /// Kinds of faults that this seed has.
    pub kinds: Vec<String>,
    /// At the end every member is killed and started once more, and judged again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub restart: bool,
}

/// Sizes of this seed.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Drawn {
    pub heartbeat_ms: u64,
    pub election_ms: u64,
    pub snapshot_count: u64,
    pub catchup_entries: u64,
    pub page_bytes: u64,
    pub log_segment_bytes: u64,
    pub log_cache_bytes: u64,
    pub store_segment_bytes: u64,
    pub store_cache_bytes: u64,
    pub commit_bytes: u64,
    pub commit_ms: u64,
    /// Of the index's checkpoint.
    #[serde(default, skip_serializing_if = "is_default")]
    pub index_segment_bytes: u64,
    /// Between two looks at how much of the store is dead.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clean_ms: u64,
    /// How long a pass of the scrubber takes; 0: the product's default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scrub_ms: u64,
    /// 0: the product's default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub quota_bytes: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub retain: Retain,
    /// How often members compare their hashes; 0: never.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compare_ms: u64,
    pub latency_us: [u64; 2],
    /// Parts in a million for each member.
    pub drift_ppm: Vec<i64>,
}

/// What members compact by themselves.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Retain {
    #[default]
    Everything,
    /// So many revisions stay.
    Revisions(u64),
    /// So many milliseconds stay.
    Period(u64),
}

/// What time does to bytes that lie on a disk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// A bit is not what it was.
    Bit,
    /// A sector is anything.
    Sector,
    /// A sector holds what another one holds: a write that landed there.
    Stray,
}

/// One operation.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Planned {
    pub at_ms: u64,
    pub id: u64,
    pub client: u32,
    /// A raw channel to this member (from 1); `None`: the client library chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<usize>,
    pub ask: Ask,
}

/// Which revision.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// So far below the newest one that this client saw.
    Back(i64),
    Exactly(i64),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Span {
    pub key: String,
    /// Empty: one key. Else where it ends, as in the API.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub end: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Read {
    #[serde(flatten)]
    pub span: Span,
    #[serde(default, skip_serializing_if = "is_default")]
    pub serializable: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub at: Option<At>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub limit: i64,
    /// Numbers of the API.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sort_order: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub sort_target: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub keys_only: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub count_only: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub min_mod: Option<At>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_create: Option<At>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Store {
    pub key: String,
    pub value: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub prev_kv: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_value: bool,
    /// A lease that does not exist.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Erase {
    #[serde(flatten)]
    pub span: Span,
    #[serde(default, skip_serializing_if = "is_default")]
    pub prev_kv: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// The mod revision that this client saw last for the key (0 if none).
    SeenMod,
    /// The value that this client saw last for the key (empty if none).
    SeenValue,
    Version(i64),
    Create(At),
    Mod(At),
    Value(String),
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Test {
    #[serde(flatten)]
    pub span: Span,
    /// Number of the API: equal, greater, less, not equal.
    pub result: i32,
    pub against: Against,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Branches {
    #[serde(default, rename = "if")]
    pub tests: Vec<Test>,
    #[serde(default)]
    pub then: Vec<Ask>,
    #[serde(default, rename = "else")]
    pub otherwise: Vec<Ask>,
}

/// A request, or one of a txn's operations.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    Range(Read),
    Put(Store),
    Delete(Erase),
    Txn(Branches),
    /// Never inside a txn.
    Compact {
        at: At,
        physical: bool,
    },
}

/// Whom a fault strikes; members are counted from 1.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Whom {
    Member(usize),
    Leader,
    /// The n-th member that does not lead.
    Follower(usize),
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct PlannedFault {
    pub at_ms: u64,
    pub fault: Fault,
}

/// What goes wrong. `hold_ms`: how long.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    Kill {
        whom: Whom,
        hold_ms: u64,
    },
    PowerLoss {
        whom: Whom,
        hold_ms: u64,
    },
    Blackout {
        hold_ms: u64,
    },
    KillAtDisk {
        whom: Whom,
        operation: u64,
        power: bool,
        hold_ms: u64,
    },
    Pause {
        whom: Whom,
        hold_ms: u64,
    },
    /// Everyone but the named ones stands still (none named: all).
    PauseAllBut {
        whom: Vec<Whom>,
        hold_ms: u64,
    },
    /// Nodes from 1: members, then clients. Messages from one side to the other stand still.
    Partition {
        side: Vec<usize>,
        whom: Option<Whom>,
        outward: bool,
        inward: bool,
        hold_ms: u64,
    },
    /// Members are cut off one after the other and come back in the second order.
    Swizzle {
        off: Vec<usize>,
        on: Vec<usize>,
        step_ms: u64,
        hold_ms: u64,
    },
    Latency {
        low_us: u64,
        high_us: u64,
        hold_ms: u64,
    },
    Loss {
        percent: u64,
        hold_ms: u64,
    },
    ClockJump {
        whom: Whom,
        by_ms: u64,
    },
    ClockDrift {
        whom: Whom,
        ppm: i64,
    },
    WallJump {
        whom: Whom,
        by_ms: i64,
    },
    SyncError {
        whom: Whom,
        percent: u64,
        hold_ms: u64,
    },
    /// So many bytes are left, one number after the other, each for the same part of the time;
    /// what is taken already stays.
    NoSpace {
        whom: Whom,
        #[serde(default)]
        left: Vec<u64>,
        hold_ms: u64,
    },
    SlowDisk {
        whom: Whom,
        factor: u64,
        hold_ms: u64,
    },
    SlowReads {
        whom: Whom,
        factor: u64,
        hold_ms: u64,
    },
    /// Stored bytes change while the member runs.
    Decay {
        member: usize,
        how: Decay,
    },
    /// A kill; until the restart the checkpoint of the index is damaged, or gone.
    SpoilIndex {
        whom: Whom,
        gone: bool,
    },
    /// A member is asked to defragment.
    Defragment {
        whom: Whom,
    },
    /// An operator makes room: perhaps deletes everything; compacts at the head, defragments
    /// every member, disarms the alarms.
    Relieve {
        wipe: bool,
    },
    /// The leader is asked to hand over to another member.
    Transfer {
        to: Whom,
    },
    Rot {
        member: usize,
    },
    Misdirect {
        member: usize,
    },
}

/// A line of a stored plan.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Plan(Head),
    Op(Planned),
    Fault(PlannedFault),
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("line {0}: {1}")]
    Line(usize, serde_json::Error),
    #[error("a plan begins with its head")]
    NoHead,
}

impl Plan {
    /// JSON lines by virtual time.
    pub fn to_lines(&self) -> String {
        let mut lines: Vec<(u64, Line)> = Vec::with_capacity(self.ops.len() + self.faults.len());
        lines.extend(self.faults.iter().map(|fault| (fault.at_ms, Line::Fault(fault.clone()))));
        lines.extend(self.ops.iter().map(|op| (op.at_ms, Line::Op(op.clone()))));
        lines.sort_by_key(|(at, _)| *at);
        let mut text = String::new();
        let head = Line::Plan(self.head.clone());
        for line in std::iter::once(&head).chain(lines.iter().map(|(_, line)| line)) {
            let json = serde_json::to_string(line).expect("a plan holds only text and numbers");
            writeln!(text, "{json}").expect("a String takes any text");
        }
        text
    }

    pub fn from_lines(text: &str) -> Result<Plan, PlanError> {
        let (mut head, mut ops, mut faults) = (None, Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str(line).map_err(|error| PlanError::Line(number + 1, error))? {
                Line::Plan(found) => head = Some(found),
                Line::Op(op) => ops.push(op),
                Line::Fault(fault) => faults.push(fault),
            }
        }
        ops.sort_by_key(|op: &Planned| (op.at_ms, op.id));
        faults.sort_by_key(|fault: &PlannedFault| fault.at_ms);
        Ok(Plan { head: head.ok_or(PlanError::NoHead)?, ops, faults })
    }
}

#[cfg(test)]
mod tests;
