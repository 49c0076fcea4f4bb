//! A store's history: the records that it tells are those that the log made,
//! no more and no fewer than a finished compaction leaves.
//!
//! This is what watches, HashKV and export will stand on: a deletion at the
//! compacted revision counts, one below it does not. And their hash is etcd's.

use super::{Violation, order::Order};
use crate::history::{Evidence, FinalState, Record, text};
use crate::model::Moment;

pub(super) fn judge(evidence: &Evidence, order: &Order) -> Vec<Violation> {
    let states = evidence.final_states.iter();
    states.flat_map(|state| [of_member(state, order), hash(state, order)]).flatten().collect()
}

/// What a member says its records hash to is what etcd would say.
fn hash(state: &FinalState, order: &Order) -> Option<Violation> {
    order.span(state.revision)?;
    let right = order.model.hash_kv(Moment { revision: state.revision, compacted: state.compacted });
    (state.hash != right).then(|| Violation {
        guarantee: "HASH",
        sentence: format!(
            "member {:x} at revision {} compacted {} has hash {:08x}, should be {right:08x}",
            state.member, state.revision, state.compacted, state.hash
        ),
        op: None,
    })
}

fn of_member(state: &FinalState, order: &Order) -> Option<Violation> {
    let records = state.records.as_ref()?;
    // A revision that never was is told by the judge of durability.
    order.span(state.revision)?;
    let compacted = records.compacted;
    let all = order.model.records(Moment { revision: state.revision, compacted });
    let history: Vec<Record> = all.iter().filter(|record| record.main >= compacted).cloned().collect();
    let told = [
        ("history from the compacted revision on", &records.history, &history),
        ("records", &records.all, &all),
    ];
    let (what, difference) =
        told.into_iter().find_map(|(what, seen, right)| Some((what, difference(seen, right)?)))?;
    Some(Violation {
        guarantee: "HISTORY",
        sentence: format!(
            "member {:x} ended at revision {} compacted at {}; its {what}: {difference}",
            state.member, state.revision, compacted
        ),
        op: None,
    })
}

/// The first place where two lists of records part.
fn difference(seen: &[Record], right: &[Record]) -> Option<String> {
    let place = seen.iter().zip(right).position(|(seen, right)| seen != right);
    let place = place.or((seen.len() != right.len()).then_some(seen.len().min(right.len())))?;
    Some(format!("got {}, should be {}", describe(seen.get(place)), describe(right.get(place))))
}

fn describe(record: Option<&Record>) -> String {
    let Some(Record { main, sub, key, pair }) = record else { return "the end".to_owned() };
    match pair {
        Some(pair) => format!(
            "({main}, {sub}) {} = {} of ({}, {}, {})",
            text(key),
            text(&pair.value),
            pair.create_revision,
            pair.mod_revision,
            pair.version
        ),
        None => format!("({main}, {sub}) {} deleted", text(key)),
    }
}
