//! Strict serialisability of the KV history, against the committed order.
//!
//! Promises: red for every answered call that the model does not answer so at
//! its place, or whose place is not within its real-time bounds; reads that
//! may be stale must still have been true. No search: writes have their
//! places, and the lowest place that a read can have is always the best one.

use super::order::Order;
use super::{Sweep, Violation, by_invocation};
use crate::history::{Certainty, History, Op, Outcome};
use crate::model::{Model, Refusal};

/// The highest position that was there before an operation began, and the operation that showed
/// it; none: a member had applied it. (No read or write may miss what was committed before it
/// began: that is how reads at an index and raft work, and it finds stale reads that no
/// acknowledged write would show.)
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Floor {
    position: usize,
    op: Option<u64>,
}

impl Floor {
    fn sentence(self, order: &Order) -> String {
        let at = order.describe(self.position);
        match self.op {
            Some(op) => format!("#{op} was over before it began and had seen {at}"),
            None => format!("{at} was applied on a member before it began"),
        }
    }
}

pub(super) fn judge(history: &History, order: &Order) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut sweep: Sweep<Floor> = Sweep::new();
    for (position, applied_ns) in order.applied_ns() {
        sweep.push(applied_ns, Floor { position, op: None });
    }
    let mut floor = Floor::default();
    for at in by_invocation(history) {
        let op = &history.ops[at];
        for shown in sweep.over_before(op.invoke_ns) {
            floor = floor.max(shown);
        }
        let place = match order.placed.get(&at) {
            Some(position) => judge_write(op, *position, floor, order),
            None => match &op.outcome {
                Outcome::Unknown => continue,
                Outcome::Error { code, message, .. } => match Refusal::from_status(*code, message) {
                    // What is in no log was refused by the member that was asked.
                    Some(Refusal::NoSpace) => continue,
                    Some(refusal) => judge_refusal(op, refusal, floor, order),
                    None => continue,
                },
                // A write that was acknowledged and is in no log: reported with the order.
                _ if !op.call.is_read() || op.certainty() != Certainty::Answered => continue,
                _ => judge_read(op, floor, order),
            },
        };
        match place {
            Ok(Some(position)) => sweep.push(op.settled_ns(), Floor { position, op: Some(op.id) }),
            Ok(None) => {}
            Err(sentence) => violations.push(Violation {
                guarantee: "LIN",
                sentence: format!("{op}: {sentence}"),
                op: Some(op.id),
            }),
        }
    }
    violations
}

/// A write at its place in the log: right reply, and after everything it must come after.
fn judge_write(op: &Op, position: usize, floor: Floor, order: &Order) -> Result<Option<usize>, String> {
    if let Some(difference) = order.slots[position - 1].difference(op) {
        return Err(format!("wrong reply at {}: {difference}", order.describe(position)));
    }
    if position <= floor.position {
        return Err(format!("took effect at {}, but {}", order.describe(position), floor.sentence(order)));
    }
    Ok(Some(position))
}

/// A read that was answered: the header's revision says where.
fn judge_read(op: &Op, floor: Floor, order: &Order) -> Result<Option<usize>, String> {
    let revision = op.revision().ok_or("the reply has no header")?;
    let (first, last) =
        order.span(revision).ok_or_else(|| format!("the store never stood at revision {revision}"))?;
    let serializable = op.call.is_serializable();
    let position = if serializable { first } else { first.max(floor.position) };
    if position > last {
        return Err(format!("stale: read revision {revision}, but {}", floor.sentence(order)));
    }
    if position > order.last_seen(op.settled_ns()) {
        return Err(format!(
            "from the future: read {}, which was not asked for yet",
            order.describe(position)
        ));
    }
    // A compaction can only take answers away: the lowest position is the best.
    match order.model.read(order.moments[position], &op.call) {
        Err(refusal) => return Err(format!("should be {refusal} at {}", order.describe(position))),
        Ok(reply) => {
            if let Some(difference) = reply.difference(&op.call, &op.outcome) {
                return Err(format!("wrong at {}: {difference}", order.describe(position)));
            }
        }
    }
    Ok(if serializable { None } else { Some(position) })
}

/// A refusal that left no entry: some moment within its bounds must refuse it so.
fn judge_refusal(op: &Op, refusal: Refusal, floor: Floor, order: &Order) -> Result<Option<usize>, String> {
    if let Err(content) = Model::check_content(&op.call) {
        // Whatever the state: it says nothing about the place.
        return if content == refusal { Ok(None) } else { Err(format!("should be {content}")) };
    }
    let serializable = op.call.is_serializable();
    let first = if serializable { 0 } else { floor.position };
    let last = order.last_seen(op.settled_ns());
    let position = (first..=last)
        .find(|position| order.model.check(&op.call, order.moments[*position]) == Err(refusal))
        .ok_or_else(|| {
            format!("nothing refused it between {} and {}", order.describe(first), order.describe(last))
        })?;
    Ok(if serializable { None } else { Some(position) })
}
