//! Members agree: one leader for a term, one entry for an index, one state for
//! an applied index, one hash for (revision, compacted).
//!
//! Probes of dead members and of earlier lives count like any other: what was
//! committed once is never different later.

use super::Violation;
use crate::history::Evidence;
use quorate::env::trace::Probe;
use std::collections::BTreeMap;

pub(super) fn judge(evidence: &Evidence) -> Vec<Violation> {
    let mut violations = Vec::new();
    elections(evidence, &mut violations);
    logs(evidence, &mut violations);
    states(evidence, &mut violations);
    final_states(evidence, &mut violations);
    violations
}

fn violation(guarantee: &'static str, sentence: String) -> Violation {
    Violation { guarantee, sentence, op: None }
}

/// Election safety.
fn elections(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut leaders: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, probe) in &evidence.probes {
        let Probe::Leader { member, term } = probe else { continue };
        let first = *leaders.entry(*term).or_insert(*member);
        if first != *member {
            violations.push(violation(
                "ELECTION",
                format!("term {term} had two leaders, {first:x} and {member:x}"),
            ));
        }
    }
}

/// Log matching and state machine safety: an index is one entry, on every member and for ever;
/// terms do not fall along it; what was committed is what is applied, by every later leader too,
/// and nothing that was committed before the healing is missing at the end.
fn logs(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut applied: BTreeMap<u64, (u64, u32, u64)> = BTreeMap::new();
    let mut committed = (0, 0);
    let mut committed_terms: Vec<(u64, u64, u64)> = Vec::new();
    for (at, probe) in &evidence.probes {
        match probe {
            Probe::Applied { member, index, term, digest, .. } => {
                let first = *applied.entry(*index).or_insert((*term, *digest, *member));
                if (first.0, first.1) != (*term, *digest) {
                    violations.push(violation(
                        "LOG",
                        format!(
                            "index {index} was applied as ({}, {:08x}) on {:x} and as ({term}, {digest:08x}) on {member:x}",
                            first.0, first.1, first.2
                        ),
                    ));
                }
            }
            Probe::Committed { member, index, term } => {
                if *at <= evidence.healed_at_ns {
                    committed = committed.max((*index, *member));
                }
                committed_terms.push((*index, *term, *member));
            }
            _ => {}
        }
    }
    for (index, term, member) in committed_terms {
        // A term of 0: the member knew no more than the index.
        if let Some((other, _, applier)) = applied.get(&index)
            && term != 0
            && term != *other
        {
            violations.push(violation(
                "LOG",
                format!("index {index} was committed on {member:x} with term {term}, but {applier:x} applied it with term {other}"),
            ));
        }
    }
    for entry in &evidence.committed {
        if let Some((term, _, member)) = applied.get(&entry.index)
            && *term != entry.term
        {
            violations.push(violation(
                "LOG",
                format!(
                    "index {} ended with term {}, but {member:x} had applied it with term {term}",
                    entry.index, entry.term
                ),
            ));
        }
    }
    let falls =
        |terms: Vec<(u64, u64)>| terms.windows(2).find(|two| two[1].1 < two[0].1).map(|two| (two[0], two[1]));
    if let Some((one, other)) = falls(applied.iter().map(|(index, entry)| (*index, entry.0)).collect()) {
        violations.push(violation(
            "LOG",
            format!("terms fall: index {} has term {}, index {} has term {}", one.0, one.1, other.0, other.1),
        ));
    }
    let end = evidence.committed.iter().map(|entry| entry.index).chain(applied.keys().copied()).max();
    if let Some(end) = end
        && end < committed.0
    {
        violations.push(violation(
            "LOG",
            format!("index {} was committed on {:x}, but the log ended at {end}", committed.0, committed.1),
        ));
    }
}

/// States at an equal applied index are equal; revisions do not fall as the index rises, and rise
/// by one for an entry at most.
fn states(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut states: BTreeMap<u64, (i64, u32, u64)> = BTreeMap::new();
    for (_, probe) in &evidence.probes {
        let Probe::State { member, applied, revision, digest } = probe else { continue };
        let first = *states.entry(*applied).or_insert((*revision, *digest, *member));
        if (first.0, first.1) != (*revision, *digest) {
            violations.push(violation(
                "HASH",
                format!(
                    "at applied index {applied}, {:x} stands at revision {} with {:08x} and {member:x} at revision {revision} with {digest:08x}",
                    first.2, first.0, first.1
                ),
            ));
        }
    }
    for ((before, one), (after, other)) in states.iter().zip(states.iter().skip(1)) {
        let risen = other.0 - one.0;
        if risen < 0 || risen.unsigned_abs() > after - before {
            violations.push(violation(
                "REV",
                format!("revision {} at applied index {before}, {} at applied index {after}", one.0, other.0),
            ));
        }
    }
}

fn final_states(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut hashes: BTreeMap<(i64, i64), (u32, u64)> = BTreeMap::new();
    for state in &evidence.final_states {
        let at = (state.revision, state.compacted);
        let first = *hashes.entry(at).or_insert((state.hash, state.member));
        if first.0 != state.hash {
            violations.push(violation(
                "HASH",
                format!(
                    "at revision {} compacted {}, {:x} has hash {:08x} and {:x} has {:08x}",
                    at.0, at.1, first.1, first.0, state.member, state.hash
                ),
            ));
        }
    }
    let mut rounds: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for state in &evidence.final_states {
        rounds.entry(state.round).or_default().push(state.revision);
    }
    for revisions in rounds.values().filter(|revisions| revisions.iter().min() != revisions.iter().max()) {
        violations.push(violation("LIVE", format!("members did not end at one revision: {revisions:?}")));
    }
}
