//! The judges of history and of room, on good ends and on bad ones.

use super::rehearsal::*;
use super::*;
use crate::history::{Call, Op, Outcome, Record, Records, Retention, Room, Sizes};
use quorate_proto::etcdserverpb::AlarmType;

fn guarantees(history: &History, evidence: &Evidence) -> Vec<&'static str> {
    let mut broken: Vec<_> = judge(history, evidence).iter().map(|found| found.guarantee).collect();
    broken.dedup();
    broken
}

/// A key stays, one is deleted at the revision that is then compacted, one before it.
fn story() -> Rehearsal {
    let mut story = Rehearsal::default();
    for call in
        [put("a", "1"), put("b", "2"), put("c", "3"), delete("c"), delete("b"), compact(6), put("a", "4")]
    {
        story.ask(1, call);
    }
    story
}

#[test]
fn a_deletion_at_the_compacted_revision_belongs_to_history_and_one_below_does_not() {
    let (history, evidence) = story().finish();
    assert_eq!(judge(&history, &evidence), []);
    let Records { history: from, all, .. } = evidence.final_states[0].records.clone().unwrap();
    let words = |records: &[Record]| -> Vec<(i64, bool)> {
        records.iter().map(|record| (record.main, record.pair.is_some())).collect()
    };
    assert_eq!(words(&from), [(6, false), (7, true)]);
    assert_eq!(words(&all), [(2, true), (6, false), (7, true)]);
}

#[test]
fn spoiled_histories_are_found() {
    type Spoil = fn(&mut Records);
    let cases: [(&str, Spoil); 5] = [
        ("no deletion at the compacted revision", |told| drop(told.history.remove(0))),
        ("none in a copy of all", |told| drop(told.all.remove(1))),
        ("an older one is back", |told| {
            told.all.insert(1, Record { main: 5, sub: 0, key: bytes("c"), pair: None });
        }),
        ("another place", |told| told.history[1].sub = 1),
        ("another value", |told| told.all[0].pair.as_mut().unwrap().value = bytes("x")),
    ];
    for (name, spoil) in cases {
        let (history, mut evidence) = story().finish();
        spoil(evidence.final_states[1].records.as_mut().unwrap());
        assert_eq!(guarantees(&history, &evidence), ["HISTORY"], "{name}");
    }
}

#[test]
fn what_is_defragmented_is_small() {
    let cases: [(u64, u64, Option<&str>); 4] = [
        (100_000, 96_000, None),
        (100_000, 91_000, None),
        (100_000, 85_000, Some("SIZE")),
        (100_000, 100_001, Some("SIZE")),
    ];
    for (on_disk, in_use, expected) in cases {
        let (history, mut evidence) = story().finish();
        evidence.final_states[0].sizes = Some(Sizes { on_disk, in_use, slack: 5_000 });
        assert_eq!(guarantees(&history, &evidence), Vec::from_iter(expected), "{on_disk} {in_use}");
    }
}

fn refused(op: &mut Op) {
    let message = "etcdserver: mvcc: database space exceeded".to_owned();
    op.outcome = Outcome::Error { code: 8, message, maybe_applied: false };
}

#[test]
fn who_is_refused_for_lack_of_room_may_have_lacked_it() {
    let far = Room { member: 1, quota: 10_000, peak: 5_000, full_ns: Vec::new() };
    let near = Room { peak: 9_800, ..far.clone() };
    let none = Room { quota: -1, ..near.clone() };
    let full = Room { full_ns: vec![(0, 5 * PACE_NS)], ..far.clone() };
    let late = Room { full_ns: vec![(500 * PACE_NS, 600 * PACE_NS)], ..far.clone() };
    for (room, expected) in
        [(far, Some("QUOTA")), (near, None), (none, Some("QUOTA")), (full, None), (late, Some("QUOTA"))]
    {
        let mut story = story();
        let id = story.play(2, put("d", "5"), Fate::Refused, (1, 1), 0);
        refused(story.op(id));
        story.op(id).member = Some(1);
        let (history, mut evidence) = story.finish();
        evidence.rooms = vec![room.clone()];
        assert_eq!(guarantees(&history, &evidence), Vec::from_iter(expected), "{room:?}");
    }
}

#[test]
fn nothing_grows_while_the_alarm_is_on() {
    let mut story = story();
    story.alarm(AlarmType::Nospace, true);
    story.ask(1, delete("a"));
    let put_in_vain = story.ask(1, put("d", "5"));
    let read = story.ask(1, get("d"));
    story.alarm(AlarmType::Nospace, false);
    story.ask(1, put("d", "6"));
    let (mut history, evidence) = story.finish();
    assert_eq!(judge(&history, &evidence), [], "{history}");
    let op = |history: &History, id: u64| history.ops.iter().position(|op| op.id == id).unwrap();
    assert!(matches!(&history.ops[op(&history, put_in_vain)].outcome, Outcome::Error { code: 8, .. }));
    assert!(matches!(&history.ops[op(&history, read)].outcome, Outcome::Range(reply) if reply.count == 0));
    let answered = history.ops[0].outcome.clone();
    let place = op(&history, put_in_vain);
    history.ops[place].outcome = answered;
    assert!(guarantees(&history, &evidence).contains(&"LIN"));
}

#[test]
fn members_that_say_that_they_disagree_are_believed() {
    let mut story = story();
    story.alarm(AlarmType::Corrupt, true);
    story.ask(1, delete("a"));
    let (history, evidence) = story.finish();
    assert_eq!(guarantees(&history, &evidence), ["CORRUPT"]);
}

#[test]
fn members_compact_by_themselves_only_what_they_may() {
    let cases = [
        (None, 7, "LIN"),
        (Some(Retention::Period), 7, ""),
        (Some(Retention::Revisions(0)), 7, ""),
        (Some(Retention::Revisions(1)), 7, "RETAIN"),
    ];
    for (retention, revision, expected) in cases {
        let mut story = story();
        story.compact_itself(revision);
        let (history, mut evidence) = story.finish();
        evidence.retention = retention;
        let broken = guarantees(&history, &evidence);
        assert_eq!(broken.first().copied().unwrap_or(""), expected, "{retention:?}: {broken:?}");
    }
    assert!(Call::grows(&put("a", "1")) && !Call::grows(&delete("a")));
}
