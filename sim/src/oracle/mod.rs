//! The judges. They know what the API promises and nothing of how it is kept:
//! no code of `src/` but the wire messages and the probes' plain values.
//!
//! Owns the verdict on a run: [`judge`]. Each judge is a room of its own and
//! returns [`Violation`]s; none panics on what a wrong system may show.

pub mod durability;
pub mod linear;
pub mod liveness;
mod order;
mod records;
pub mod replicas;
mod room;
pub mod search;
pub mod session;

#[cfg(test)]
mod rehearsal;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;

use crate::history::{Certainty, Evidence, History, Op};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `LIN`, `DUR`, `REV`, `HASH`, `HISTORY`, `CORRUPT`, `QUOTA`, `RETAIN`, `SIZE`, `SESSION`, `ELECTION`, `LOG`,
    /// `LIVE`, `BOUND` or `EVIDENCE`
    /// (the run left too little to judge by).
    pub guarantee: &'static str,
    pub sentence: String,
    /// The operation that shows it.
    pub op: Option<u64>,
}

/// Every broken promise of a run, the most telling first. Empty: the run is good.
///
/// Cost: near linear in operations and probes.
pub fn judge(history: &History, evidence: &Evidence) -> Vec<Violation> {
    let mut ids = std::collections::BTreeSet::new();
    assert!(history.ops.iter().all(|op| ids.insert(op.id)), "operation ids are unique");

    let mut violations = Vec::new();
    if evidence.committed.is_empty()
        && let Some(op) = history.ops.iter().find(|op| is_acknowledged_write(op))
    {
        violations.push(Violation {
            guarantee: "EVIDENCE",
            sentence: "the run recorded no log, yet writes were acknowledged".to_owned(),
            op: Some(op.id),
        });
    } else {
        let (order, unplaced) = order::Order::of(history, evidence);
        violations.extend(unplaced);
        violations.extend(linear::judge(history, &order));
        violations.extend(durability::against_log(evidence, &order));
        violations.extend(records::judge(evidence, &order));
        violations.extend(room::judge(history, evidence, &order));
    }
    violations.extend(search::judge(history, evidence.retention.is_none()));
    violations.extend(session::judge(history, evidence));
    violations.extend(durability::judge(history, evidence));
    violations.extend(replicas::judge(evidence));
    violations.extend(liveness::judge(history, evidence));
    violations
}

/// Tells operations that were over before another began from those that were not: feed it
/// operations in the order of invocation.
struct Sweep<T> {
    open: std::collections::BinaryHeap<std::cmp::Reverse<(u64, T)>>,
}

impl<T: Ord> Sweep<T> {
    fn new() -> Sweep<T> {
        Sweep { open: std::collections::BinaryHeap::new() }
    }

    /// Everything that was over strictly before `invoke_ns`, each once.
    fn over_before(&mut self, invoke_ns: u64) -> Vec<T> {
        let mut over = Vec::new();
        while self.open.peek().is_some_and(|first| first.0.0 < invoke_ns) {
            over.extend(self.open.pop().map(|first| first.0.1));
        }
        over
    }

    fn push(&mut self, settled_ns: u64, what: T) {
        self.open.push(std::cmp::Reverse((settled_ns, what)));
    }
}

fn is_acknowledged_write(op: &Op) -> bool {
    !op.call.is_read() && op.certainty() == Certainty::Answered
}

/// Indices of the operations in the order of invocation.
fn by_invocation(history: &History) -> Vec<usize> {
    let mut sequence: Vec<usize> = (0..history.ops.len()).collect();
    sequence.sort_by_key(|at| (history.ops[*at].invoke_ns, history.ops[*at].id));
    sequence
}
