//! Runs of the model itself, recorded as if a cluster had been asked: what the
//! judges must find good, and what tests then spoil.

use crate::history::{Call, CommittedEntry, Evidence, FinalState, History, Op, Outcome, Records};
use crate::model::{Model, Moment};
use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use quorate::env::trace::Probe;
use quorate_proto::etcdserverpb::{self as pb, compare, request_op::Request};

pub const MEMBERS: u64 = 3;
/// Between the effects of two operations.
pub const PACE_NS: u64 = 1_000_000;

#[derive(Default)]
pub struct Rehearsal {
    pub model: Model,
    moments: Vec<Moment>,
    pub history: History,
    pub evidence: Evidence,
    /// The operation of each entry, by its id.
    pub logged: Vec<u64>,
    steps: u64,
}

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// Done, but the answer is lost.
    Silent,
    /// Never done, and the client does not know.
    Lost,
    /// Never done, and the client knows.
    Refused,
}

impl Rehearsal {
    /// Asks and is answered before anything else happens; returns the operation's id.
    pub fn ask(&mut self, client: u32, call: Call) -> u64 {
        self.play(client, call, Fate::Answered, (1, 1), 0)
    }

    /// `around`: how long before and after its effect the operation began and ended; `behind`:
    /// how many moments back a serializable read looks.
    pub fn play(&mut self, client: u32, call: Call, fate: Fate, around: (u64, u64), behind: usize) -> u64 {
        if self.moments.is_empty() {
            self.moments.push(self.model.now());
        }
        self.steps += 1;
        let id = self.steps;
        let effect_ns = id * PACE_NS;
        let done = matches!(fate, Fate::Answered | Fate::Silent);
        let answer = if !done {
            None
        } else if call.is_serializable() {
            let moment = self.moments[self.moments.len() - 1 - behind.min(self.moments.len() - 1)];
            Some(self.model.read(moment, &call))
        } else {
            Some(self.model.apply(&call))
        };
        if done && !call.is_read() && Model::check_content(&call).is_ok() {
            self.log(&call, effect_ns);
            self.logged.push(id);
        }
        self.moments.push(self.model.now());
        let outcome = match (fate, answer) {
            (Fate::Answered, Some(Ok(reply))) => with_ids(reply.outcome),
            (Fate::Answered, Some(Err(refusal))) => {
                let (code, message) = refusal.status();
                Outcome::Error { code, message: message.to_owned(), maybe_applied: false }
            }
            (Fate::Refused, _) => {
                Outcome::Error { code: 14, message: "no leader".to_owned(), maybe_applied: false }
            }
            (Fate::Silent, _) => {
                Outcome::Error { code: 14, message: "timed out".to_owned(), maybe_applied: true }
            }
            _ => Outcome::Unknown,
        };
        let member = if behind == 0 { Some(u64::from(client) % MEMBERS + 1) } else { None };
        self.history.ops.push(Op {
            id,
            client,
            member,
            invoke_ns: effect_ns - around.0.min(effect_ns),
            return_ns: if outcome == Outcome::Unknown { None } else { Some(effect_ns + around.1) },
            call,
            outcome,
        });
        id
    }

    fn log(&mut self, call: &Call, effect_ns: u64) {
        let mut request = pb::InternalRaftRequest::default();
        match call.clone() {
            Call::Put(put) => request.put = Some(put),
            Call::DeleteRange(delete) => request.delete_range = Some(delete),
            Call::Txn(txn) => request.txn = Some(txn),
            Call::Compact(compaction) => request.compaction = Some(compaction),
            Call::Range(_) => panic!("a range is not logged"),
        }
        self.log_request(request, effect_ns);
    }

    /// A compaction that a member came to by itself.
    pub fn compact_itself(&mut self, revision: i64) {
        let compaction = pb::CompactionRequest { revision, physical: false };
        self.steps += 1;
        drop(self.model.apply(&Call::Compact(compaction)));
        let request = pb::InternalRaftRequest { compaction: Some(compaction), ..Default::default() };
        self.log_request(request, self.steps * PACE_NS);
        self.moments.push(self.model.now());
    }

    /// An alarm of member 1 goes on or off.
    pub fn alarm(&mut self, kind: pb::AlarmType, on: bool) {
        use pb::alarm_request::AlarmAction;
        let action = if on { AlarmAction::Activate } else { AlarmAction::Deactivate };
        let alarm = pb::AlarmRequest { action: action as i32, member_id: 1, alarm: kind as i32 };
        self.steps += 1;
        self.model.alarm(&alarm);
        let request = pb::InternalRaftRequest { alarm: Some(alarm), ..Default::default() };
        self.log_request(request, self.steps * PACE_NS);
    }

    fn log_request(&mut self, mut request: pb::InternalRaftRequest, effect_ns: u64) {
        let index = self.evidence.committed.len() as u64 + 1;
        request.header = Some(pb::RequestHeader { id: 1_000 + index, ..Default::default() });
        let data = Bytes::from(request.encode_to_vec());
        for member in 1..=MEMBERS {
            let digest = index as u32;
            self.evidence.probes.push((effect_ns, Probe::Applied { member, index, term: 2, digest }));
            let revision = self.model.now().revision;
            self.evidence.probes.push((effect_ns, Probe::State { member, applied: index, revision, digest }));
        }
        self.evidence.committed.push(CommittedEntry { index, term: 2, data });
    }

    pub fn op(&mut self, id: u64) -> &mut Op {
        self.history.ops.iter_mut().find(|op| op.id == id).expect("an id that was given out")
    }

    /// Fills in what is known at the end.
    pub fn finish(mut self) -> (History, Evidence) {
        let Moment { revision, compacted } = self.model.now();
        self.evidence.members = MEMBERS as usize;
        self.evidence.end_ns = (self.steps + 1) * PACE_NS;
        self.evidence.final_states = (1..=MEMBERS)
            .map(|member| FinalState {
                member,
                round: 0,
                at_ns: u64::MAX,
                revision,
                compacted,
                hash: self.model.hash_kv(self.model.now()),
                kvs: self.model.pairs(revision),
                records: Some(Records {
                    compacted,
                    all: self.model.records(self.model.now()),
                    history: (self.model.records(self.model.now()).into_iter())
                        .filter(|record| record.main >= compacted)
                        .collect(),
                }),
                sizes: None,
            })
            .collect();
        (self.history, self.evidence)
    }
}

/// As a server fills them in.
fn with_ids(mut outcome: Outcome) -> Outcome {
    let header = match &mut outcome {
        Outcome::Range(reply) => &mut reply.header,
        Outcome::Put(reply) => &mut reply.header,
        Outcome::DeleteRange(reply) => &mut reply.header,
        Outcome::Txn(reply) => &mut reply.header,
        Outcome::Compact(reply) => &mut reply.header,
        Outcome::Error { .. } | Outcome::Unknown => return outcome,
    };
    if let Some(header) = header {
        *header = pb::ResponseHeader { cluster_id: 5, member_id: 6, raft_term: 7, ..*header };
    }
    outcome
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub fn put(key: &str, value: &str) -> Call {
    Call::Put(pb::PutRequest { key: bytes(key), value: bytes(value), ..Default::default() })
}

pub fn get(key: &str) -> Call {
    Call::Range(pb::RangeRequest { key: bytes(key), ..Default::default() })
}

pub fn get_stale(key: &str) -> Call {
    Call::Range(pb::RangeRequest { key: bytes(key), serializable: true, ..Default::default() })
}

pub fn delete(key: &str) -> Call {
    Call::DeleteRange(pb::DeleteRangeRequest { key: bytes(key), ..Default::default() })
}

pub fn compact(revision: i64) -> Call {
    Call::Compact(pb::CompactionRequest { revision, physical: false })
}

/// If `key` holds `value`, puts `then` there, else reads it.
pub fn swap(key: &str, value: &str, then: &str) -> Call {
    let Call::Put(put) = put(key, then) else { unreachable!("put makes a put") };
    let Call::Range(range) = get(key) else { unreachable!("get makes a range") };
    Call::Txn(pb::TxnRequest {
        compare: vec![pb::Compare {
            target: compare::CompareTarget::Value as i32,
            key: bytes(key),
            target_union: Some(compare::TargetUnion::Value(bytes(value))),
            ..Default::default()
        }],
        success: vec![op(Request::RequestPut(put))],
        failure: vec![op(Request::RequestRange(range))],
    })
}

pub fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

/// A drawn operation, before it meets a store.
#[derive(Clone, Debug)]
pub struct Draw {
    pub client: u32,
    pub kind: u8,
    pub key: u8,
    pub arg: u8,
    pub options: u16,
    pub fate: u8,
    pub around: (u64, u64),
}

/// `spread`: how many paces an operation may last before and after its effect; 0: one at a time.
pub fn draws(count: usize, spread: u64) -> impl Strategy<Value = Vec<Draw>> {
    let reach = 1..=(spread * PACE_NS).max(PACE_NS / 3);
    let draw = (0..5u32, 0..20u8, 0..6u8, any::<u8>(), any::<u16>(), 0..16u8, (reach.clone(), reach))
        .prop_map(|(client, kind, key, arg, options, fate, around)| Draw {
            client,
            kind,
            key,
            arg,
            options,
            fate,
            around,
        });
    proptest::collection::vec(draw, 1..count)
}

/// Plays drawn operations; every put has a value of its own.
pub fn rehearse(draws: &[Draw]) -> Rehearsal {
    let mut rehearsal = Rehearsal::default();
    for (nth, draw) in draws.iter().enumerate() {
        let call = call(draw, nth, rehearsal.model.now());
        let fate = match draw.fate {
            0 | 1 => Fate::Silent,
            2 => Fate::Lost,
            3 => Fate::Refused,
            _ => Fate::Answered,
        };
        let behind = usize::from(draw.arg % 4);
        rehearsal.play(draw.client, call, fate, draw.around, behind);
    }
    rehearsal
}

fn call(draw: &Draw, nth: usize, now: Moment) -> Call {
    let on = |bit: u32| draw.options & (1 << bit) != 0;
    let key = bytes(&format!("k{}", draw.key));
    let range_end = match draw.arg % 5 {
        0 => bytes("k9"),
        1 => bytes("\0"),
        2 => bytes("k3"),
        _ => Bytes::new(),
    };
    let value = bytes(&format!("v{nth}"));
    let old = now.revision - i64::from(draw.arg % 7);
    let put = pb::PutRequest { key: key.clone(), value, prev_kv: on(0), ..Default::default() };
    let delete = pb::DeleteRangeRequest { key: key.clone(), range_end: range_end.clone(), prev_kv: on(0) };
    let bound = |bit: u32| if on(bit) { old } else { 0 };
    let range = pb::RangeRequest {
        key: key.clone(),
        range_end,
        limit: if on(1) { i64::from(draw.arg % 4) } else { 0 },
        revision: if on(2) && on(3) { old } else { 0 },
        sort_order: i32::from(draw.arg / 16 % 3),
        sort_target: if on(4) { i32::from(draw.arg / 64 % 5) } else { 0 },
        serializable: false,
        keys_only: on(5) && on(6),
        count_only: on(7) && on(8),
        min_mod_revision: bound(9),
        max_mod_revision: bound(10),
        min_create_revision: bound(11),
        max_create_revision: bound(12),
    };
    let compare = pb::Compare {
        result: i32::from(draw.arg % 4),
        target: i32::from(draw.arg / 4 % 5),
        key: key.clone(),
        target_union: Some(match draw.arg / 4 % 5 {
            0 => compare::TargetUnion::Version(i64::from(draw.arg % 3)),
            1 => compare::TargetUnion::CreateRevision(old),
            2 => compare::TargetUnion::ModRevision(old),
            3 => compare::TargetUnion::Value(bytes(&format!("v{}", nth.saturating_sub(3)))),
            _ => compare::TargetUnion::Lease(0),
        }),
        range_end: Bytes::new(),
    };
    let other = pb::PutRequest { key: bytes("other"), value: put.value.clone(), ..Default::default() };
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![
            op(Request::RequestRange(range.clone())),
            op(Request::RequestPut(put.clone())),
            op(Request::RequestRange(pb::RangeRequest { revision: 0, ..range.clone() })),
        ],
        failure: vec![op(Request::RequestDeleteRange(delete.clone())), op(Request::RequestPut(other))],
    };
    match draw.kind {
        0..5 => Call::Put(put),
        5 => Call::Put(pb::PutRequest { value: Bytes::new(), ignore_value: true, ..put }),
        6 => Call::Put(pb::PutRequest { lease: i64::from(draw.arg % 2), ..put }),
        7 => Call::Put(pb::PutRequest { key: Bytes::new(), ..put }),
        8 | 9 => Call::DeleteRange(delete),
        10 => Call::Compact(pb::CompactionRequest { revision: old + 2, physical: on(0) }),
        11 => Call::Txn(txn),
        12 => Call::Txn(pb::TxnRequest {
            failure: vec![op(Request::RequestTxn(txn.clone())), op(Request::RequestDeleteRange(delete))],
            ..txn
        }),
        13 => Call::Txn(pb::TxnRequest {
            success: vec![op(Request::RequestRange(range.clone()))],
            failure: vec![op(Request::RequestRange(range))],
            ..txn
        }),
        14 => Call::Range(pb::RangeRequest { serializable: true, ..range }),
        _ => Call::Range(range),
    }
}
