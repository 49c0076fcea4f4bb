//! Progress after healing, every member back, and bounds kept (I10).

use super::Violation;
use crate::history::{Certainty, Evidence, History};
use quorate::env::trace::Probe;
use std::collections::{BTreeMap, BTreeSet};

/// After healing: stalled streams come back within 10 s, an election takes a few, and a request
/// that began too early waits out its deadline of 7 s. A run that ends sooner is not judged.
pub const RECOVERY_NS_MAX: u64 = 20_000_000_000;

/// Who asked less often is not judged.
const ASKED_MIN: usize = 2;

pub(super) fn judge(history: &History, evidence: &Evidence) -> Vec<Violation> {
    let mut violations = Vec::new();
    progress(history, evidence, &mut violations);
    presence(evidence, &mut violations);
    bounds(evidence, &mut violations);
    violations
}

/// Every client that asked again and again in the first half of that time got an answer within it,
/// unless the run ended sooner. (A single request may go down a connection that a fault had broken.)
fn progress(history: &History, evidence: &Evidence, violations: &mut Vec<Violation>) {
    let deadline_ns = evidence.healed_at_ns + RECOVERY_NS_MAX;
    if evidence.end_ns < deadline_ns {
        return;
    }
    let mut asking: BTreeMap<u32, usize> = BTreeMap::new();
    let mut answered = BTreeSet::new();
    for op in &history.ops {
        if op.invoke_ns >= evidence.healed_at_ns && op.invoke_ns < deadline_ns - RECOVERY_NS_MAX / 2 {
            *asking.entry(op.client).or_default() += 1;
        }
        let is_answer = matches!(op.certainty(), Certainty::Answered | Certainty::Refused);
        let in_time = op.return_ns.is_some_and(|at| at >= evidence.healed_at_ns && at <= deadline_ns);
        if is_answer && in_time {
            answered.insert(op.client);
        }
    }
    let again_and_again = asking.iter().filter(|(_, times)| **times >= ASKED_MIN);
    for client in again_and_again.map(|(client, _)| client).filter(|client| !answered.contains(client)) {
        violations.push(Violation {
            guarantee: "LIVE",
            sentence: format!(
                "client {client} got no answer within {} s of the healing",
                RECOVERY_NS_MAX / 1_000_000_000
            ),
            op: None,
        });
    }
}

fn presence(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let present: BTreeSet<_> = evidence.final_states.iter().map(|state| state.member).collect();
    if present.len() != evidence.members {
        violations.push(Violation {
            guarantee: "LIVE",
            sentence: format!("of {} members only {present:x?} were there at the end", evidence.members),
            op: None,
        });
    }
}

fn bounds(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut reported = BTreeSet::new();
    for (_, probe) in &evidence.probes {
        if let Probe::Bound { member, queue, length, bound } = probe
            && length > bound
            && reported.insert((*member, *queue))
        {
            violations.push(Violation {
                guarantee: "BOUND",
                sentence: format!("queue {queue} of member {member:x} held {length}, its bound is {bound}"),
                op: None,
            });
        }
    }
}
