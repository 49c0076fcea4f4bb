//! Room: a write is refused for lack of it only where there may be none, and
//! what a defragmentation leaves is little more than what lives.
//!
//! That nothing grows while the alarm is on, and that writes go on once it is
//! off, the order of the log and liveness tell.

use super::{Violation, order::Order};
use crate::history::{Evidence, FinalState, History, Op, Outcome};
use crate::model::Refusal;

/// Bytes of a put beside its key and its value (X1).
const PUT_COST: u64 = 256;
/// What a defragmentation may leave dead, in percent of what is on the disk.
const DEAD_PERCENT_MAX: u64 = 5;
/// A full disk is noticed, and forgotten, within this time.
const FULL_LASTS_NS: u64 = 15_000_000_000;
/// The quota that 0 stands for (X1).
const QUOTA_DEFAULT: i64 = 2 << 30;

pub(super) fn judge(history: &History, evidence: &Evidence, order: &Order) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (at, op) in history.ops.iter().enumerate() {
        // What is in the log was refused by an alarm, which the order has looked at.
        if !order.placed.contains_key(&at) && is_refused(op) && !may_lack_room(op, evidence) {
            violations.push(Violation {
                guarantee: "QUOTA",
                sentence: format!(
                    "{op}: refused, though no member's store had come near its quota, nor was a disk full"
                ),
                op: Some(op.id),
            });
        }
    }
    violations.extend(evidence.final_states.iter().filter_map(wasteful));
    violations
}

fn is_refused(op: &Op) -> bool {
    match &op.outcome {
        Outcome::Error { code, message, .. } => {
            Refusal::from_status(*code, message) == Some(Refusal::NoSpace)
        }
        _ => false,
    }
}

/// The asked member judges the quota; a full disk may be its own or the leader's.
fn may_lack_room(op: &Op, evidence: &Evidence) -> bool {
    let end = op.return_ns.unwrap_or(u64::MAX);
    evidence.rooms.iter().any(|room| {
        let quota = if room.quota == 0 { QUOTA_DEFAULT } else { room.quota };
        let cost = PUT_COST + op.call.content().1.len() as u64;
        let asked = op.member.is_none_or(|member| member == room.member);
        let near = asked && u64::try_from(quota).is_ok_and(|quota| room.peak + cost >= quota);
        near || room.full_ns.iter().any(|(from, to)| *from <= end && op.invoke_ns <= to + FULL_LASTS_NS)
    })
}

fn wasteful(state: &FinalState) -> Option<Violation> {
    let sizes = state.sizes?;
    let dead = sizes.on_disk.saturating_sub(sizes.in_use);
    let most = sizes.on_disk * DEAD_PERCENT_MAX / 100 + sizes.slack;
    let sentence = if sizes.in_use > sizes.on_disk {
        format!(
            "member {:x} says that {} bytes live on {} of disk",
            state.member, sizes.in_use, sizes.on_disk
        )
    } else if dead > most {
        format!(
            "member {:x} was defragmented, yet {dead} of {} bytes are dead; {most} at most",
            state.member, sizes.on_disk
        )
    } else {
        return None;
    };
    Some(Violation { guarantee: "SIZE", sentence, op: None })
}
