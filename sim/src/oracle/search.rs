//! Linearizability by search, after Wing and Gong (1993) with Lowe's memory of
//! configurations (2017): knows no log, only replies and times.
//!
//! Cross-checks the other judge on small histories; gives up after a bounded
//! number of steps rather than answer late. **Never** wrong when it answers.

use super::{Violation, by_invocation};
use crate::history::{Certainty, History, Op, Outcome};
use crate::model::{Model, Refusal};
use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Operations of a run's beginning that [`judge`] looks at.
const OPS_MAX: usize = 40;
const STEPS_MAX: usize = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// The operation (its id) that no order got past.
    Not(u64),
    /// Out of steps.
    Unknown,
}

/// `alone`: nobody but clients compacts. Otherwise only the log can tell why a revision was
/// compacted, and the judge that reads it must explain such a refusal.
pub(super) fn judge(history: &History, alone: bool) -> Vec<Violation> {
    let known = |op: &Op| alone || !is_refused_as(op, |refusal| matches!(refusal, Refusal::Compacted));
    let Verdict::Not(id) = search_among(history, known, OPS_MAX, STEPS_MAX) else { return Vec::new() };
    let op = history.ops.iter().find(|op| op.id == id).expect("the search names an operation of the history");
    vec![Violation {
        guarantee: "LIN",
        sentence: format!("{op}: no order of the first {OPS_MAX} operations explains this (search)"),
        op: Some(id),
    }]
}

/// Looks for a linear order of the first `ops_max` (64 at most) operations that count.
pub fn search(history: &History, ops_max: usize, steps_max: usize) -> Verdict {
    search_among(history, |_| true, ops_max, steps_max)
}

fn search_among(history: &History, known: impl Fn(&Op) -> bool, ops_max: usize, steps_max: usize) -> Verdict {
    assert!(ops_max <= 64, "a set of operations is one word");
    let mut ops: Vec<Pending<'_>> = by_invocation(history)
        .into_iter()
        .map(|at| &history.ops[at])
        .filter(|op| counts(op) && known(op))
        .map(|op| Pending { op, settled_ns: op.settled_ns(), must: op.certainty() != Certainty::Ambiguous })
        .collect();
    // Cut in time: what ends after the first operation left out is not known to have ended.
    let cut_ns = ops.get(ops_max).map_or(u64::MAX, |next| next.op.invoke_ns);
    ops.truncate(ops_max);
    for pending in &mut ops {
        if pending.settled_ns >= cut_ns {
            pending.settled_ns = u64::MAX;
            pending.must = false;
        }
    }
    ops.retain(|pending| pending.must || !pending.op.call.is_read());
    let mut search = Search { ops: &ops, seen: HashSet::new(), steps_left: steps_max, furthest: (0, 0) };
    match search.explore(0, &Model::new()) {
        Some(true) => Verdict::Linearizable,
        Some(false) => Verdict::Not(search.furthest.1),
        None => Verdict::Unknown,
    }
}

struct Pending<'a> {
    op: &'a Op,
    settled_ns: u64,
    /// Its effect and reply must be explained; otherwise it may have happened or not.
    must: bool,
}

struct Search<'a> {
    ops: &'a [Pending<'a>],
    /// Configurations from which there is no way: done operations and a digest of the store.
    seen: HashSet<(u64, u64)>,
    steps_left: usize,
    /// The most operations done, and the one that had to come next there.
    furthest: (u32, u64),
}

impl Search<'_> {
    /// Whether the rest can be ordered from here; `None`: out of steps.
    fn explore(&mut self, done: u64, model: &Model) -> Option<bool> {
        let left = || self.ops.iter().enumerate().filter(|(at, _)| done & (1 << at) == 0);
        let Some((_, first)) =
            left().filter(|(_, pending)| pending.must).min_by_key(|(_, pending)| pending.settled_ns)
        else {
            return Some(true);
        };
        if !self.seen.insert((done, digest(model))) {
            return Some(false);
        }
        self.steps_left = self.steps_left.checked_sub(1)?;
        if done.count_ones() >= self.furthest.0 {
            self.furthest = (done.count_ones(), first.op.id);
        }
        // What began after the first end cannot come before that operation.
        let mut next: Vec<usize> = left()
            .filter(|(_, pending)| pending.op.invoke_ns <= first.settled_ns)
            .map(|(at, _)| at)
            .collect();
        next.sort_by_key(|at| (!self.ops[*at].must, self.ops[*at].settled_ns));
        for at in next {
            let mut after = model.clone();
            if step(&mut after, self.ops[at].op, self.ops[at].must) && self.explore(done | 1 << at, &after)? {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// Does one operation; whether its reply is explained.
fn step(model: &mut Model, op: &Op, must: bool) -> bool {
    let answer = model.apply(&op.call);
    if !must {
        return true;
    }
    match (&op.outcome, answer) {
        (Outcome::Error { code, message, .. }, answer) => {
            Refusal::from_status(*code, message) == answer.err()
        }
        (outcome, Ok(reply)) => reply.difference(&op.call, outcome).is_none(),
        (_, Err(_)) => false,
    }
}

/// Reads that may be stale and what certainly did not happen are not part of the order.
fn counts(op: &Op) -> bool {
    // Whether there was room, only the log can tell.
    let no_room = is_refused_as(op, |refusal| matches!(refusal, Refusal::NoSpace | Refusal::Corrupt));
    !op.call.is_serializable() && op.certainty() != Certainty::Nothing && !no_room
}

fn is_refused_as(op: &Op, as_one: impl FnOnce(Refusal) -> bool) -> bool {
    match &op.outcome {
        Outcome::Error { code, message, .. } => Refusal::from_status(*code, message).is_some_and(as_one),
        _ => false,
    }
}

fn digest(model: &Model) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    hasher.finish()
}
