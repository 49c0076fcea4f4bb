//! What one member shows, in time: its revision never goes back while it lives.
//!
//! A member that was killed may come back at an older applied index (the store
//! lags the log) until it has applied again; probes show when that was.

use super::{Sweep, Violation, by_invocation};
use crate::history::{Certainty, Evidence, History};
use quorate::env::trace::Probe;
use std::collections::BTreeMap;

/// An answer's revision, who got it, and when it was asked for.
type Shown = (i64, u64, u64);

/// What a member has shown.
struct Showing {
    sweep: Sweep<Shown>,
    /// Among answers that were over.
    highest: Shown,
}

pub(super) fn judge(history: &History, evidence: &Evidence) -> Vec<Violation> {
    let setbacks = setbacks(evidence);
    let mut members: BTreeMap<u64, Showing> = BTreeMap::new();
    let mut violations = Vec::new();
    for at in by_invocation(history) {
        let op = &history.ops[at];
        let (Some(member), Some(revision), Certainty::Answered) = (op.member, op.revision(), op.certainty())
        else {
            continue;
        };
        let Showing { sweep, highest } =
            members.entry(member).or_insert_with(|| Showing { sweep: Sweep::new(), highest: (0, 0, 0) });
        for over in sweep.over_before(op.invoke_ns) {
            *highest = (*highest).max(over);
        }
        let since_ns = highest.2;
        let excused = setbacks
            .get(&member)
            .is_some_and(|spans| spans.iter().any(|(from, to)| *from < op.settled_ns() && *to > since_ns));
        if revision < highest.0 && excused {
            *highest = (0, 0, 0);
        } else if revision < highest.0 {
            violations.push(Violation {
                guarantee: "SESSION",
                sentence: format!(
                    "{op}: member {member:x} had shown revision {} to #{} before",
                    highest.0, highest.1
                ),
                op: Some(op.id),
            });
        }
        sweep.push(op.settled_ns(), (revision, op.id, op.invoke_ns));
    }
    violations
}

/// By member: the spans of time within which it may have started again, or been given a
/// snapshot: between two entries applied that do not follow each other.
fn setbacks(evidence: &Evidence) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut setbacks: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for (at, probe) in &evidence.probes {
        let Probe::Applied { member, index, .. } = probe else { continue };
        if let Some((before_ns, before)) = last.insert(*member, (*at, *index))
            && *index != before + 1
        {
            setbacks.entry(*member).or_default().push((before_ns, *at));
        }
    }
    setbacks
}
