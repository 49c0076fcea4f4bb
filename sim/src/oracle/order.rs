//! The committed order: the log that was applied, replayed on the model, and
//! each client's write set to its entry.
//!
//! A write is known in the log by its content. Where several writes have the
//! same content (deletes, compactions), they are set to entries by their
//! replies and by time: an interval for each, so that the earliest deadline
//! first finds a fit whenever there is one.

use super::Violation;
use crate::history::{Call, Certainty, CommittedEntry, Evidence, History, Op, Outcome, Retention};
use crate::model::{Model, Moment, Refusal, Reply};
use prost::Message;
use quorate::env::trace::Probe;
use quorate_proto::{
    etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, alarm_request::AlarmAction},
    raftpb::ConfChange,
};
use std::collections::{BTreeMap, BTreeSet};

/// A KV entry of the log, replayed.
pub(super) struct Slot {
    pub index: u64,
    pub call: Call,
    pub answer: Result<Reply, Refusal>,
    /// Which operation it is, by index in the history.
    pub op: Option<usize>,
    /// First time that any member applied it.
    applied_ns: Option<u64>,
}

/// Position 0 is the empty store; position `k` is after `slots[k - 1]`.
pub(super) struct Order {
    /// After all of it; answers for every earlier moment too.
    pub model: Model,
    pub slots: Vec<Slot>,
    /// One more than slots.
    pub moments: Vec<Moment>,
    /// Index of an operation in the history, its position.
    pub placed: BTreeMap<usize, usize>,
    /// By position: the latest invocation among operations at or before it.
    earliest_ns: Vec<u64>,
    /// By position: the earliest known end among operations at or after it.
    latest_ns: Vec<u64>,
}

impl Order {
    pub fn of(history: &History, evidence: &Evidence) -> (Order, Vec<Violation>) {
        let mut violations = Vec::new();
        let entries = entries(evidence, &mut violations);
        let mut order = Order::replay(&entries, evidence, &mut violations);
        order.place(history);
        order.report_unplaced(history, evidence.retention, &mut violations);
        (order, violations)
    }

    fn replay(
        entries: &BTreeMap<u64, &CommittedEntry>,
        evidence: &Evidence,
        violations: &mut Vec<Violation>,
    ) -> Order {
        let mut applied: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, probe) in &evidence.probes {
            if let Probe::Applied { index, .. } = probe {
                let first = applied.entry(*index).or_insert(*at);
                *first = (*first).min(*at);
            }
        }
        let mut model = Model::new();
        let mut slots = Vec::new();
        let mut moments = vec![model.now()];
        let mut requests = BTreeMap::new();
        for (index, entry) in entries {
            let (request_id, call) = match decode(entry, violations) {
                Some(Entry::Call(request_id, call)) => (request_id, call),
                Some(Entry::Alarm(request)) => {
                    violations.extend(corrupt(*index, &request));
                    model.alarm(&request);
                    continue;
                }
                None => continue,
            };
            if request_id != 0
                && let Some(before) = requests.insert(request_id, *index)
            {
                violations.push(Violation {
                    guarantee: "LIN",
                    sentence: format!(
                        "request {request_id:x} stands in the log twice, at {before} and {index}"
                    ),
                    op: None,
                });
            }
            let answer = model.apply(&call);
            slots.push(Slot {
                index: *index,
                call,
                answer,
                op: None,
                applied_ns: applied.get(index).copied(),
            });
            moments.push(model.now());
        }
        Order {
            model,
            slots,
            moments,
            placed: BTreeMap::new(),
            earliest_ns: Vec::new(),
            latest_ns: Vec::new(),
        }
    }

    /// Sets writes to entries.
    fn place(&mut self, history: &History) {
        let mut groups: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (at, slot) in self.slots.iter().enumerate() {
            groups.entry(slot.call.content()).or_default().0.push(at);
        }
        for (at, op) in history.ops.iter().enumerate() {
            if !op.call.is_read()
                && op.certainty() != Certainty::Nothing
                && let Some(group) = groups.get_mut(&op.call.content())
            {
                group.1.push(at);
            }
        }
        let (alone, crowded): (Vec<_>, Vec<_>) =
            groups.into_values().partition(|(slots, ops)| slots.len() == 1 && ops.len() == 1);
        for (slots, ops) in alone {
            self.set(slots[0], ops[0]);
        }
        self.bound(history);
        for (slots, ops) in crowded {
            self.place_group(history, &slots, ops);
        }
        self.bound(history);
    }

    /// Entries in their order, each to the fitting operation that must be done first. Ambiguous
    /// ones have no deadline, so they give way.
    fn place_group(&mut self, history: &History, slots: &[usize], mut ops: Vec<usize>) {
        for (nth, slot) in slots.iter().enumerate() {
            let fitting = ops.iter().enumerate().filter(|(_, op)| self.fits(&history.ops[**op], *slot));
            let first = fitting.min_by_key(|(_, op)| {
                let op = &history.ops[**op];
                let last = match op.certainty() {
                    Certainty::Ambiguous => slots.len(),
                    _ => (nth..slots.len()).rfind(|later| self.fits(op, slots[*later])).unwrap_or(nth),
                };
                (last, op.settled_ns(), op.invoke_ns, op.id)
            });
            if let Some((place, op)) = first.map(|(place, op)| (place, *op)) {
                ops.remove(place);
                self.set(*slot, op);
            }
        }
    }

    /// Whether an operation's reply and times allow it to be this entry.
    fn fits(&self, op: &Op, slot: usize) -> bool {
        let position = slot + 1;
        op.invoke_ns <= self.latest_ns[position]
            && op.settled_ns() >= self.earliest_ns[position]
            && self.slots[slot].difference(op).is_none()
    }

    fn set(&mut self, slot: usize, op: usize) {
        assert!(self.slots[slot].op.is_none(), "one operation for an entry");
        self.slots[slot].op = Some(op);
        let before = self.placed.insert(op, slot + 1);
        assert!(before.is_none(), "one entry for an operation");
    }

    fn bound(&mut self, history: &History) {
        let ops = |slot: &Slot| slot.op.map(|op| &history.ops[op]);
        self.earliest_ns = vec![0];
        for slot in &self.slots {
            let before = self.earliest_ns.last().copied().unwrap_or(0);
            self.earliest_ns.push(ops(slot).map_or(before, |op| before.max(op.invoke_ns)));
        }
        let mut latest = u64::MAX;
        self.latest_ns = vec![latest; self.moments.len()];
        for (at, slot) in self.slots.iter().enumerate().rev() {
            latest = latest.min(ops(slot).map_or(u64::MAX, Op::settled_ns));
            latest = latest.min(slot.applied_ns.unwrap_or(u64::MAX));
            self.latest_ns[at + 1] = latest;
        }
    }

    fn report_unplaced(
        &self,
        history: &History,
        retention: Option<Retention>,
        violations: &mut Vec<Violation>,
    ) {
        let placed: BTreeSet<_> = self.placed.keys().map(|op| history.ops[*op].call.content()).collect();
        for slot in self.slots.iter().filter(|slot| slot.op.is_none()) {
            if let (Call::Compact(request), Some(retention)) = (&slot.call, retention) {
                violations.extend(too_much(slot, request.revision, retention));
                continue;
            }
            let content = slot.call.content();
            if slot.call.is_repeatable() && placed.contains(&content) {
                // One that asks again after a lost answer; it has changed nothing.
                continue;
            }
            let refused = history
                .ops
                .iter()
                .find(|op| op.certainty() == Certainty::Nothing && op.call.content() == content);
            let (what, op) = match refused {
                Some(op) => ("was told that nothing happened, yet it is in the log", Some(op)),
                None if placed.contains(&content) => ("is in the log more often than clients asked", None),
                None => ("is in the log, and no client asked for it", None),
            };
            violations.push(Violation {
                guarantee: "LIN",
                sentence: format!("`{}` {what}, at index {}", slot.call, slot.index),
                op: op.map(|op| op.id),
            });
        }
        for (at, op) in history.ops.iter().enumerate() {
            if super::is_acknowledged_write(op) && !self.placed.contains_key(&at) {
                let known = self.slots.iter().any(|slot| slot.call.content() == op.call.content());
                let (guarantee, what) = if known {
                    ("LIN", "no entry with its content gives its reply in its time")
                } else {
                    ("DUR", "it is in no log")
                };
                violations.push(Violation {
                    guarantee,
                    sentence: format!("{op}: acknowledged, but {what}"),
                    op: Some(op.id),
                });
            }
        }
    }

    /// Positions, each with the first time that a member had applied it.
    pub fn applied_ns(&self) -> impl Iterator<Item = (usize, u64)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at + 1, slot.applied_ns?)))
    }

    /// The highest position that an answer given at `settled_ns` can have seen: nothing at or
    /// before it was asked for later.
    pub fn last_seen(&self, settled_ns: u64) -> usize {
        self.earliest_ns.partition_point(|earliest| *earliest <= settled_ns) - 1
    }

    /// First and last position at which the store stood at `revision`.
    pub fn span(&self, revision: i64) -> Option<(usize, usize)> {
        let first = self.moments.partition_point(|moment| moment.revision < revision);
        let after = self.moments.partition_point(|moment| moment.revision <= revision);
        if first < after { Some((first, after - 1)) } else { None }
    }

    /// How an operation at a position is called in sentences.
    pub fn describe(&self, position: usize) -> String {
        match position.checked_sub(1) {
            None => "the empty store".to_owned(),
            Some(slot) => {
                format!("index {}, revision {}", self.slots[slot].index, self.moments[position].revision)
            }
        }
    }
}

impl Slot {
    /// How an operation's end differs from what this entry answers; `None` where it tells nothing.
    pub fn difference(&self, op: &Op) -> Option<String> {
        match (op.certainty(), &op.outcome, &self.answer) {
            (Certainty::Ambiguous | Certainty::Nothing, _, _) => None,
            (_, Outcome::Error { code, message, .. }, Err(refusal)) => {
                let same = Refusal::from_status(*code, message) == Some(*refusal);
                if same { None } else { Some(format!("got {}, should be {refusal}", op.outcome)) }
            }
            (_, seen, Err(refusal)) => Some(format!("got {seen}, should be {refusal}")),
            (_, seen, Ok(reply)) => reply.difference(&op.call, seen),
        }
    }
}

/// By index; an index with two contents breaks the log's own promise.
fn entries<'a>(evidence: &'a Evidence, violations: &mut Vec<Violation>) -> BTreeMap<u64, &'a CommittedEntry> {
    let mut entries: BTreeMap<u64, &CommittedEntry> = BTreeMap::new();
    for entry in &evidence.committed {
        let first = entries.entry(entry.index).or_insert(entry);
        if *first != entry {
            violations.push(Violation {
                guarantee: "LOG",
                sentence: format!(
                    "two entries were applied at index {}: of term {} and of term {}",
                    entry.index, first.term, entry.term
                ),
                op: None,
            });
        }
    }
    entries
}

/// Members that compare themselves must find themselves alike.
fn corrupt(index: u64, request: &AlarmRequest) -> Option<Violation> {
    let raised = request.action == AlarmAction::Activate as i32;
    (raised && request.alarm == AlarmType::Corrupt as i32).then(|| Violation {
        guarantee: "CORRUPT",
        sentence: format!(
            "at index {index} members disagree, and {:x} is said to be wrong",
            request.member_id
        ),
        op: None,
    })
}

/// A compaction that a member came to by itself must leave what was to be retained.
fn too_much(slot: &Slot, compacted: i64, retention: Retention) -> Option<Violation> {
    let (Retention::Revisions(retained), Ok(reply)) = (retention, &slot.answer) else { return None };
    (compacted > reply.revision() - retained).then(|| Violation {
        guarantee: "RETAIN",
        sentence: format!(
            "at revision {} a member compacted at {compacted} by itself, though {retained} revisions are to be retained",
            reply.revision()
        ),
        op: None,
    })
}

/// What an entry means to the store.
enum Entry {
    /// With the request's id.
    Call(u64, Call),
    Alarm(AlarmRequest),
}

/// `None` for entries with no meaning to the store.
fn decode(entry: &CommittedEntry, violations: &mut Vec<Violation>) -> Option<Entry> {
    let request = match InternalRaftRequest::decode(entry.data.clone()) {
        Ok(request) => request,
        Err(_) if ConfChange::decode(entry.data.clone()).is_ok() => return None,
        Err(error) => {
            violations.push(Violation {
                guarantee: "EVIDENCE",
                sentence: format!("entry {} does not decode: {error}", entry.index),
                op: None,
            });
            return None;
        }
    };
    let request_id = request.header.as_ref().map_or(request.id, |header| header.id);
    let calls = [
        request.put.map(Call::Put),
        request.delete_range.map(Call::DeleteRange),
        request.txn.map(Call::Txn),
        request.compaction.map(Call::Compact),
    ];
    if let Some(alarm) = request.alarm {
        return Some(Entry::Alarm(alarm));
    }
    let call = calls.into_iter().flatten().next()?;
    if call.is_read() { None } else { Some(Entry::Call(request_id, call)) }
}
