//! What clients asked and were told, and what the world left behind.
//!
//! Owns the two inputs of the oracles: a [`History`] of operations on one
//! clock that no node can bend, and the [`Evidence`] gathered beside it.
//! **Never** judges: that is `oracle`'s work.

use bytes::Bytes;
use quorate::env::trace::Probe;
use quorate_proto::{etcdserverpb as pb, mvccpb};
use std::fmt;

/// One request of a client.
#[derive(Clone, Debug)]
pub struct Op {
    /// Unique in the history.
    pub id: u64,
    pub client: u32,
    /// The member that answered, when the client spoke to one fixed member.
    pub member: Option<u64>,
    /// Virtual time, ns; the clock of `Evidence::probes`.
    pub invoke_ns: u64,
    /// `None`: no answer until the end.
    pub return_ns: Option<u64>,
    pub call: Call,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    DeleteRange(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    DeleteRange(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compact(pb::CompactionResponse),
    /// A gRPC status. `maybe_applied`: a write may have taken effect all the same.
    Error {
        code: i32,
        message: String,
        maybe_applied: bool,
    },
    /// No answer at all.
    Unknown,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub ops: Vec<Op>,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub main: i64,
    pub sub: i64,
    pub key: Bytes,
    /// `None`: deleted.
    pub pair: Option<mvccpb::KeyValue>,
}

/// What a member holds once the run is over, after healing and settling.
#[derive(Clone, Debug, Default)]
pub struct FinalState {
    pub member: u64,
    /// Members are asked once more after a restart: which time this is, from 0.
    pub round: usize,
    /// When it was asked.
    pub at_ns: u64,
    pub revision: i64,
    /// -1: never compacted.
    pub compacted: i64,
    /// HashKV at `revision`.
    pub hash: u32,
    /// Every live pair, ascending.
    pub kvs: Vec<mvccpb::KeyValue>,
    /// The store's whole history from the compacted revision on, and everything that a finished
    /// compaction leaves; absent where it was not asked for.
    pub records: Option<Records>,
    /// After it was defragmented while nobody wrote.
    pub sizes: Option<Sizes>,
}

/// Both ways to ask a store for its records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// The compacted mark that they were told at: members may compact by themselves at any time.
    pub compacted: i64,
    /// From the compacted revision on.
    pub history: Vec<Record>,
    /// All that count at the current revision.
    pub all: Vec<Record>,
}

/// A store's size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub on_disk: u64,
    pub in_use: u64,
    /// What its open and its small files may waste at most.
    pub slack: u64,
}

/// What is known of a member's room.
#[derive(Clone, Debug, Default)]
pub struct Room {
    pub member: u64,
    /// 0: the default of the API, which no run reaches; negative: none.
    pub quota: i64,
    /// The most bytes that the store's files ever took, preallocation included.
    pub peak: u64,
    /// Times (ns) within which its disk was full, from and to.
    pub full_ns: Vec<(u64, u64)>,
}

/// How members compact by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    Revisions(i64),
    Period,
}

/// One entry of the log as a member applied it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedEntry {
    pub index: u64,
    pub term: u64,
    /// An encoded `InternalRaftRequest`; empty for a new leader's entry and for conf changes.
    pub data: Bytes,
}

/// Everything beside the history that a judge may look at.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Members that must be there at the end.
    pub members: usize,
    /// Virtual time in ns, probe; oldest first.
    pub probes: Vec<(u64, Probe)>,
    pub final_states: Vec<FinalState>,
    /// From index 1 (or the first entry that was not a bootstrap entry), each index once or
    /// repeated alike (members restart and apply again).
    pub committed: Vec<CommittedEntry>,
    pub rooms: Vec<Room>,
    /// Compactions that no client asks for, if there may be any.
    pub retention: Option<Retention>,
    /// From here on no fault was in the world.
    pub healed_at_ns: u64,
    pub end_ns: u64,
}

/// What an operation's end says about its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// Answered: it took effect as the answer says.
    Answered,
    /// Refused on its content or on the state it met, by a known text.
    Refused,
    /// Failed before anything happened.
    Nothing,
    /// May have taken effect, may still.
    Ambiguous,
}

impl Op {
    /// The revision that the reply's header names.
    pub fn revision(&self) -> Option<i64> {
        self.outcome.header().map(|header| header.revision)
    }

    pub fn certainty(&self) -> Certainty {
        match &self.outcome {
            Outcome::Unknown => Certainty::Ambiguous,
            Outcome::Error { code, message, maybe_applied } => {
                if crate::model::Refusal::from_status(*code, message).is_some() {
                    Certainty::Refused
                } else if *maybe_applied {
                    Certainty::Ambiguous
                } else {
                    Certainty::Nothing
                }
            }
            _ if self.return_ns.is_none() => Certainty::Ambiguous,
            _ => Certainty::Answered,
        }
    }

    /// When the client knew the end; the end of time for an ambiguous one.
    pub fn settled_ns(&self) -> u64 {
        match self.certainty() {
            Certainty::Ambiguous => u64::MAX,
            _ => self.return_ns.unwrap_or(u64::MAX),
        }
    }
}

impl Call {
    /// The name and the request's bytes: equal content means equal requests.
    pub fn content(&self) -> (u8, Vec<u8>) {
        use prost::Message;
        match self {
            Call::Range(request) => (0, request.encode_to_vec()),
            Call::Put(request) => (1, request.encode_to_vec()),
            Call::DeleteRange(request) => (2, request.encode_to_vec()),
            Call::Txn(request) => (3, request.encode_to_vec()),
            Call::Compact(request) => (4, request.encode_to_vec()),
        }
    }

    /// Whether an effect may take more room (X1, X2): a put in any branch, however deep.
    pub fn grows(&self) -> bool {
        fn of_txn(txn: &pb::TxnRequest) -> bool {
            txn.success.iter().chain(&txn.failure).any(|op| match &op.request {
                Some(pb::request_op::Request::RequestPut(_)) => true,
                Some(pb::request_op::Request::RequestTxn(txn)) => of_txn(txn),
                _ => false,
            })
        }
        match self {
            Call::Put(_) => true,
            Call::Txn(txn) => of_txn(txn),
            _ => false,
        }
    }

    /// Served without the log (T17): a range, or a txn of nothing but ranges, none nested.
    pub fn is_read(&self) -> bool {
        match self {
            Call::Range(_) => true,
            Call::Txn(txn) => ranges_of(txn).is_some(),
            _ => false,
        }
    }

    /// Goes through the log and changes nothing, whatever its compares say (T17, nested): a client
    /// that lost the answer may ask again.
    pub fn is_repeatable(&self) -> bool {
        matches!(self, Call::Txn(txn) if only_reads(txn))
    }

    /// A read that the contacted member answers alone, perhaps from the past (R13, T17).
    pub fn is_serializable(&self) -> bool {
        match self {
            Call::Range(request) => request.serializable,
            Call::Txn(txn) => {
                ranges_of(txn).is_some_and(|ranges| ranges.iter().all(|range| range.serializable))
            }
            _ => false,
        }
    }
}

fn only_reads(txn: &pb::TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match &op.request {
        Some(pb::request_op::Request::RequestRange(_)) => true,
        Some(pb::request_op::Request::RequestTxn(inner)) => only_reads(inner),
        _ => false,
    })
}

/// The ranges of a txn that holds nothing else.
fn ranges_of(txn: &pb::TxnRequest) -> Option<Vec<&pb::RangeRequest>> {
    txn.success
        .iter()
        .chain(&txn.failure)
        .map(|op| match &op.request {
            Some(pb::request_op::Request::RequestRange(range)) => Some(range),
            _ => None,
        })
        .collect()
}

impl Outcome {
    pub fn header(&self) -> Option<&pb::ResponseHeader> {
        match self {
            Outcome::Range(reply) => reply.header.as_ref(),
            Outcome::Put(reply) => reply.header.as_ref(),
            Outcome::DeleteRange(reply) => reply.header.as_ref(),
            Outcome::Txn(reply) => reply.header.as_ref(),
            Outcome::Compact(reply) => reply.header.as_ref(),
            Outcome::Error { .. } | Outcome::Unknown => None,
        }
    }
}

/// One operation a line, in the order of invocation.
impl fmt::Display for History {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ops: Vec<&Op> = self.ops.iter().collect();
        ops.sort_by_key(|op| (op.invoke_ns, op.id));
        ops.into_iter().try_for_each(|op| writeln!(out, "{op}"))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "#{} client {}", self.id, self.client)?;
        if let Some(member) = self.member {
            write!(out, " at {member:x}")?;
        }
        let end = self.return_ns.map_or("never".to_owned(), seconds);
        write!(out, " [{} .. {end}] {} -> {}", seconds(self.invoke_ns), self.call, self.outcome)
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:06}s", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000)
}

/// Bytes as text where they are text.
pub fn text(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

impl fmt::Display for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Range(request) => range_request(out, request),
            Call::Put(request) => put_request(out, request),
            Call::DeleteRange(request) => delete_request(out, request),
            Call::Txn(request) => txn_request(out, request),
            Call::Compact(request) => write!(out, "compact {}", request.revision),
        }
    }
}

fn span(out: &mut fmt::Formatter<'_>, key: &[u8], range_end: &[u8]) -> fmt::Result {
    out.write_str(&text(key))?;
    if range_end.is_empty() { Ok(()) } else { write!(out, "..{}", text(range_end)) }
}

fn range_request(out: &mut fmt::Formatter<'_>, request: &pb::RangeRequest) -> fmt::Result {
    out.write_str("range ")?;
    span(out, &request.key, &request.range_end)?;
    for (name, value) in [
        ("revision", request.revision),
        ("limit", request.limit),
        ("order", i64::from(request.sort_order)),
        ("target", i64::from(request.sort_target)),
        ("min_mod", request.min_mod_revision),
        ("max_mod", request.max_mod_revision),
        ("min_create", request.min_create_revision),
        ("max_create", request.max_create_revision),
    ] {
        if value != 0 {
            write!(out, " {name}={value}")?;
        }
    }
    for (name, on) in [
        ("serializable", request.serializable),
        ("keys_only", request.keys_only),
        ("count_only", request.count_only),
    ] {
        if on {
            write!(out, " {name}")?;
        }
    }
    Ok(())
}

fn put_request(out: &mut fmt::Formatter<'_>, request: &pb::PutRequest) -> fmt::Result {
    write!(out, "put {} = {}", text(&request.key), text(&request.value))?;
    if request.lease != 0 {
        write!(out, " lease={}", request.lease)?;
    }
    for (name, on) in [
        ("prev_kv", request.prev_kv),
        ("ignore_value", request.ignore_value),
        ("ignore_lease", request.ignore_lease),
    ] {
        if on {
            write!(out, " {name}")?;
        }
    }
    Ok(())
}

fn delete_request(out: &mut fmt::Formatter<'_>, request: &pb::DeleteRangeRequest) -> fmt::Result {
    out.write_str("delete ")?;
    span(out, &request.key, &request.range_end)?;
    if request.prev_kv { out.write_str(" prev_kv") } else { Ok(()) }
}

fn txn_request(out: &mut fmt::Formatter<'_>, request: &pb::TxnRequest) -> fmt::Result {
    const RESULTS: [&str; 4] = ["=", ">", "<", "!="];
    const TARGETS: [&str; 5] = ["version", "create", "mod", "value", "lease"];
    out.write_str("txn if (")?;
    for (position, compare) in request.compare.iter().enumerate() {
        let named = |names: &[&'static str], number: i32| {
            usize::try_from(number).ok().and_then(|at| names.get(at).copied()).unwrap_or("?")
        };
        out.write_str(if position == 0 { "" } else { ", " })?;
        write!(out, "{}(", named(&TARGETS, compare.target))?;
        span(out, &compare.key, &compare.range_end)?;
        write!(out, ") {} ", named(&RESULTS, compare.result))?;
        match &compare.target_union {
            Some(pb::compare::TargetUnion::Value(value)) => out.write_str(&text(value))?,
            Some(pb::compare::TargetUnion::Version(number))
            | Some(pb::compare::TargetUnion::CreateRevision(number))
            | Some(pb::compare::TargetUnion::ModRevision(number))
            | Some(pb::compare::TargetUnion::Lease(number)) => write!(out, "{number}")?,
            None => out.write_str("nothing")?,
        }
    }
    for (word, ops) in [(") then [", &request.success), ("] else [", &request.failure)] {
        out.write_str(word)?;
        for (position, op) in ops.iter().enumerate() {
            out.write_str(if position == 0 { "" } else { "; " })?;
            match &op.request {
                Some(pb::request_op::Request::RequestRange(request)) => range_request(out, request)?,
                Some(pb::request_op::Request::RequestPut(request)) => put_request(out, request)?,
                Some(pb::request_op::Request::RequestDeleteRange(request)) => delete_request(out, request)?,
                Some(pb::request_op::Request::RequestTxn(request)) => txn_request(out, request)?,
                None => out.write_str("nothing")?,
            }
        }
    }
    out.write_str("]")
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Range(reply) => range_reply(out, reply),
            Outcome::Put(reply) => put_reply(out, reply),
            Outcome::DeleteRange(reply) => delete_reply(out, reply),
            Outcome::Txn(reply) => txn_reply(out, reply),
            Outcome::Compact(reply) => {
                out.write_str("compacted ")?;
                revision(out, reply.header.as_ref())
            }
            Outcome::Error { code, message, maybe_applied } => {
                let doubt = if *maybe_applied { ", perhaps applied" } else { "" };
                write!(out, "error {code}: {message}{doubt}")
            }
            Outcome::Unknown => out.write_str("no answer"),
        }
    }
}

fn revision(out: &mut fmt::Formatter<'_>, header: Option<&pb::ResponseHeader>) -> fmt::Result {
    match header {
        Some(header) => write!(out, "@{}", header.revision),
        None => out.write_str("@no header"),
    }
}

fn pairs(out: &mut fmt::Formatter<'_>, kvs: &[mvccpb::KeyValue]) -> fmt::Result {
    out.write_str("{")?;
    for (position, kv) in kvs.iter().enumerate() {
        out.write_str(if position == 0 { "" } else { ", " })?;
        pair(out, kv)?;
    }
    out.write_str("}")
}

/// Key, value, (create revision, mod revision, version), and a lease if there is one.
fn pair(out: &mut fmt::Formatter<'_>, kv: &mvccpb::KeyValue) -> fmt::Result {
    write!(out, "{}={}", text(&kv.key), text(&kv.value))?;
    write!(out, "({},{},{})", kv.create_revision, kv.mod_revision, kv.version)?;
    if kv.lease == 0 { Ok(()) } else { write!(out, " lease={}", kv.lease) }
}

fn range_reply(out: &mut fmt::Formatter<'_>, reply: &pb::RangeResponse) -> fmt::Result {
    out.write_str("range ")?;
    revision(out, reply.header.as_ref())?;
    write!(out, " count={}{} ", reply.count, if reply.more { " more" } else { "" })?;
    pairs(out, &reply.kvs)
}

fn put_reply(out: &mut fmt::Formatter<'_>, reply: &pb::PutResponse) -> fmt::Result {
    out.write_str("put ")?;
    revision(out, reply.header.as_ref())?;
    match &reply.prev_kv {
        Some(kv) => {
            out.write_str(" over ")?;
            pair(out, kv)
        }
        None => Ok(()),
    }
}

fn delete_reply(out: &mut fmt::Formatter<'_>, reply: &pb::DeleteRangeResponse) -> fmt::Result {
    write!(out, "deleted {} ", reply.deleted)?;
    revision(out, reply.header.as_ref())?;
    if reply.prev_kvs.is_empty() {
        return Ok(());
    }
    out.write_str(" ")?;
    pairs(out, &reply.prev_kvs)
}

fn txn_reply(out: &mut fmt::Formatter<'_>, reply: &pb::TxnResponse) -> fmt::Result {
    out.write_str(if reply.succeeded { "then " } else { "else " })?;
    revision(out, reply.header.as_ref())?;
    out.write_str(" [")?;
    for (position, op) in reply.responses.iter().enumerate() {
        out.write_str(if position == 0 { "" } else { "; " })?;
        match &op.response {
            Some(pb::response_op::Response::ResponseRange(reply)) => range_reply(out, reply)?,
            Some(pb::response_op::Response::ResponsePut(reply)) => put_reply(out, reply)?,
            Some(pb::response_op::Response::ResponseDeleteRange(reply)) => delete_reply(out, reply)?,
            Some(pb::response_op::Response::ResponseTxn(reply)) => txn_reply(out, reply)?,
            None => out.write_str("nothing")?,
        }
    }
    out.write_str("]")
}
