//! Each judge on good histories and on bad ones.

use super::rehearsal::*;
use super::search::{Verdict, search};
use super::*;
use crate::history::{Call, Certainty, CommittedEntry, Op, Outcome};
use proptest::prelude::*;
use quorate::env::trace::Probe;
use quorate_proto::etcdserverpb as pb;

fn guarantees(history: &History, evidence: &Evidence) -> Vec<&'static str> {
    let mut broken: Vec<_> = judge(history, evidence).iter().map(|found| found.guarantee).collect();
    broken.sort_unstable();
    broken.dedup();
    broken
}

fn assert_good(history: &History, evidence: &Evidence) {
    let violations = judge(history, evidence);
    assert!(violations.is_empty(), "{violations:#?}\n{history}");
}

/// The judges find `expected` broken, and nothing where it is `None`.
fn check(history: &History, evidence: &Evidence, expected: Option<&str>) {
    let broken = guarantees(history, evidence);
    match expected {
        None => assert_good(history, evidence),
        Some(guarantee) => {
            assert!(broken.contains(&guarantee), "{broken:?} without {guarantee}\n{history}");
        }
    }
}

/// Puts a, swaps it, deletes it, with a read after each.
fn story() -> Rehearsal {
    let mut story = Rehearsal::default();
    for call in [
        put("a", "1"),
        get("a"),
        swap("a", "1", "2"),
        get("a"),
        put("b", "3"),
        delete("a"),
        get("a"),
        get("b"),
        compact(3),
        get("b"),
    ] {
        story.ask(1, call);
    }
    story
}

#[test]
fn a_true_story_is_good() {
    let (history, evidence) = story().finish();
    assert_eq!(evidence.committed.len(), 5);
    assert_good(&history, &evidence);
}

/// Takes the reply of another operation of the story.
fn answer_like(id: u64, other: u64) -> impl Fn(&mut Rehearsal) {
    move |story| story.op(id).outcome = story.op(other).outcome.clone()
}

#[test]
fn spoiled_stories_are_found() {
    type Spoil = Box<dyn Fn(&mut Rehearsal)>;
    let cases: Vec<(&str, &str, Spoil)> = vec![
        ("stale read", "LIN", Box::new(answer_like(4, 2))),
        (
            "resurrected delete",
            "LIN",
            Box::new(|story| {
                let Outcome::Range(old) = story.op(4).outcome.clone() else { panic!("a range") };
                let Outcome::Range(reply) = &mut story.op(7).outcome else { panic!("a range") };
                (reply.kvs, reply.count) = (old.kvs, 1);
            }),
        ),
        (
            "phantom value",
            "LIN",
            Box::new(|story| {
                let Outcome::Range(reply) = &mut story.op(8).outcome else { panic!("a range") };
                reply.kvs[0].value = bytes("never put");
            }),
        ),
        ("reply from the future", "LIN", Box::new(answer_like(2, 8))),
        (
            "revision that never was",
            "LIN",
            Box::new(|story| {
                let Outcome::Range(reply) = &mut story.op(10).outcome else { panic!("a range") };
                reply.header = Some(pb::ResponseHeader { revision: 900, ..Default::default() });
            }),
        ),
        (
            "wrong txn branch",
            "LIN",
            Box::new(|story| {
                let Outcome::Txn(reply) = &mut story.op(3).outcome else { panic!("a txn") };
                reply.succeeded = false;
            }),
        ),
        ("duplicate revision", "REV", Box::new(answer_like(5, 1))),
        (
            "lost write",
            "DUR",
            Box::new(|story| {
                story.evidence.committed.remove(2);
            }),
        ),
        (
            "executed twice",
            "LIN",
            Box::new(|story| {
                let data = story.evidence.committed[2].data.clone();
                story.evidence.committed.push(CommittedEntry { index: 90, term: 3, data });
            }),
        ),
        (
            "refused yet executed",
            "LIN",
            Box::new(|story| {
                story.op(5).outcome =
                    Outcome::Error { code: 14, message: "no leader".into(), maybe_applied: false };
            }),
        ),
        (
            "write that no one asked for",
            "LIN",
            Box::new(|story| {
                story.history.ops.retain(|op| op.id != 5);
            }),
        ),
        (
            "wrong refusal",
            "LIN",
            Box::new(|story| {
                let message = "etcdserver: mvcc: required revision is a future revision".to_owned();
                story.op(9).outcome = Outcome::Error { code: 11, message, maybe_applied: false };
            }),
        ),
        (
            "another entry at an index",
            "LOG",
            Box::new(|story| {
                story.evidence.probes.push((9, Probe::Applied { member: 2, index: 3, term: 1, digest: 3 }));
            }),
        ),
        (
            "another content at an index",
            "LOG",
            Box::new(|story| {
                let data = story.evidence.committed[0].data.clone();
                story.evidence.committed.push(CommittedEntry { index: 3, term: 2, data });
            }),
        ),
        (
            "committed and gone",
            "LOG",
            Box::new(|story| {
                story.evidence.healed_at_ns = 9;
                story.evidence.probes.push((8, Probe::Committed { member: 2, index: 6, term: 1 }));
            }),
        ),
        (
            "committed as another",
            "LOG",
            Box::new(|story| {
                story.evidence.probes.push((8, Probe::Committed { member: 2, index: 3, term: 1 }));
            }),
        ),
        ("no log", "EVIDENCE", Box::new(|story| story.evidence.committed.clear())),
        (
            "two leaders in a term",
            "ELECTION",
            Box::new(|story| {
                story.evidence.probes.push((1, Probe::Leader { member: 1, term: 4 }));
                story.evidence.probes.push((9, Probe::Leader { member: 2, term: 4 }));
            }),
        ),
        (
            "states differ at an index",
            "HASH",
            Box::new(|story| {
                let state = Probe::State { member: 2, applied: 3, revision: 4, digest: 77 };
                story.evidence.probes.push((9, state));
            }),
        ),
        (
            "revision jumps",
            "REV",
            Box::new(|story| {
                let state = Probe::State { member: 2, applied: 6, revision: 40, digest: 6 };
                story.evidence.probes.push((9, state));
            }),
        ),
        (
            "queue over its bound",
            "BOUND",
            Box::new(|story| {
                let queue = Probe::Bound { member: 1, queue: "proposals", length: 9, bound: 8 };
                story.evidence.probes.push((1, queue));
            }),
        ),
        (
            "undecodable entry",
            "EVIDENCE",
            Box::new(|story| {
                story.evidence.committed[1].data = bytes("\u{7}\u{7}\u{7}");
            }),
        ),
    ];
    for (name, guarantee, spoil) in cases {
        let mut story = story();
        spoil(&mut story);
        let (history, evidence) = story.finish();
        let broken = guarantees(&history, &evidence);
        assert!(broken.contains(&guarantee), "{name}: {broken:?} without {guarantee}\n{history}");
    }
}

#[test]
fn spoiled_ends_are_found() {
    type Spoil = fn(&mut Evidence);
    let cases: [(&str, &str, Spoil); 8] = [
        ("key lost on a member", "DUR", |end| end.final_states[1].kvs.clear()),
        ("other value on a member", "DUR", |end| end.final_states[1].kvs[0].value = bytes("x")),
        ("extra key on a member", "DUR", |end| {
            let mut kv = end.final_states[1].kvs[0].clone();
            kv.key = bytes("zz");
            end.final_states[1].kvs.push(kv);
        }),
        ("member behind", "DUR", |end| end.final_states[2].revision = 3),
        ("member ahead", "DUR", |end| end.final_states[2].revision = 30),
        ("compacted elsewhere", "DUR", |end| end.final_states[2].compacted = 2),
        ("hashes differ", "HASH", |end| end.final_states[2].hash = 1),
        ("member missing", "LIVE", |end| {
            end.final_states.pop();
        }),
    ];
    for (name, guarantee, spoil) in cases {
        let (history, mut evidence) = story().finish();
        spoil(&mut evidence);
        let broken = guarantees(&history, &evidence);
        assert!(broken.contains(&guarantee), "{name}: {broken:?} without {guarantee}");
    }
}

#[test]
fn ambiguous_writes_may_happen_or_not() {
    for fate in [Fate::Silent, Fate::Lost] {
        let mut story = Rehearsal::default();
        story.ask(1, put("a", "1"));
        story.play(2, put("a", "2"), fate, (1, 1), 0);
        story.ask(1, get("a"));
        // No content of their own: told apart by replies and times.
        story.play(2, delete("a"), fate, (1, 1), 0);
        story.ask(3, delete("a"));
        story.ask(3, delete("a"));
        story.ask(3, put("a", "3"));
        story.ask(1, delete("a"));
        story.ask(1, get("a"));
        let (history, evidence) = story.finish();
        assert_good(&history, &evidence);
    }
}

#[test]
fn an_ambiguous_write_may_come_late_but_not_early() {
    for (paces, expected) in [(3, None), (7, Some("LIN"))] {
        let mut story = Rehearsal::default();
        story.ask(1, put("a", "1"));
        let late = story.play(2, put("b", "2"), Fate::Silent, (1, 1), 0);
        story.ask(1, get("b"));
        story.op(late).invoke_ns = paces * PACE_NS / 2;
        let (history, evidence) = story.finish();
        check(&history, &evidence, expected);
    }
}

#[test]
fn stale_reads_are_fine_only_when_asked_for() {
    for (call, expected) in [(get_stale("a"), None), (get("a"), Some("LIN"))] {
        let mut story = Rehearsal::default();
        let old = story.ask(1, get("a"));
        story.ask(1, put("a", "1"));
        story.ask(1, put("a", "2"));
        let read = story.ask(2, call);
        story.op(read).outcome = story.op(old).outcome.clone();
        story.op(read).member = None;
        let (history, evidence) = story.finish();
        check(&history, &evidence, expected);
    }
}

#[test]
fn a_member_does_not_go_back_unless_it_began_again() {
    for (restarted, expected) in [(false, Some("SESSION")), (true, None)] {
        let mut story = Rehearsal::default();
        let old = story.ask(0, get_stale("a"));
        story.ask(0, put("a", "1"));
        let read = story.ask(0, get_stale("a"));
        story.op(read).outcome = story.op(old).outcome.clone();
        if restarted {
            // It applies the first entry again.
            story
                .evidence
                .probes
                .push((7 * PACE_NS / 2, Probe::Applied { member: 1, index: 1, term: 2, digest: 1 }));
        }
        let (history, evidence) = story.finish();
        check(&history, &evidence, expected);
    }
}

#[test]
fn reads_on_both_sides_of_a_concurrent_write_keep_their_order() {
    // Two reads, one after the other, while a put is in flight.
    for (first_new, expected) in [(false, None), (true, Some("LIN"))] {
        let mut story = Rehearsal::default();
        let before = story.ask(1, get("a"));
        let put = story.play(1, put("a", "1"), Fate::Answered, (400, 9 * PACE_NS), 0);
        let first = story.ask(2, get("a"));
        let second = story.ask(2, get("a"));
        let stale = if first_new { second } else { first };
        story.op(stale).outcome = story.op(before).outcome.clone();
        story.op(stale).member = None;
        let read_ns = story.op(second).return_ns;
        assert!(story.op(put).return_ns > read_ns);
        // What only clients can know.
        story.evidence.probes.clear();
        let (history, evidence) = story.finish();
        check(&history, &evidence, expected);
        let verdict = search(&history, 64, 1_000);
        assert_eq!(verdict == Verdict::Linearizable, expected.is_none(), "{verdict:?}");
    }
}

#[test]
fn clients_must_be_answered_after_healing() {
    for (answered, expected) in [(true, None), (false, Some("LIVE"))] {
        let mut story = story();
        let fate = if answered { Fate::Answered } else { Fate::Lost };
        let id = story.play(8, get("a"), fate, (1, 1), 0);
        story.play(8, get("a"), fate, (1, 1), 0);
        let invoke_ns = story.op(id).invoke_ns;
        let (history, mut evidence) = story.finish();
        evidence.healed_at_ns = invoke_ns - 10;
        evidence.end_ns = evidence.healed_at_ns + liveness::RECOVERY_NS_MAX + 1;
        check(&history, &evidence, expected);
    }
}

#[test]
fn a_history_prints_one_line_an_operation() {
    let mut story = story();
    story.play(4, put("c", "4"), Fate::Silent, (1, 1), 0);
    story.play(4, get("c"), Fate::Lost, (1, 1), 0);
    let (history, _) = story.finish();
    insta::assert_snapshot!(history);
}

/// Every way to spoil an answer by one step; each is wrong when nothing else is in flight.
fn spoiled(op: &Op) -> Vec<Outcome> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Outcome) -> bool| {
        let mut outcome = op.outcome.clone();
        if change(&mut outcome) {
            all.push(outcome);
        }
    };
    let fixed = !op.call.is_serializable();
    for delta in [-1, 1, 100] {
        with(&|outcome| {
            let header = match outcome {
                Outcome::Range(reply) => &mut reply.header,
                Outcome::Put(reply) => &mut reply.header,
                Outcome::DeleteRange(reply) => &mut reply.header,
                Outcome::Txn(reply) => &mut reply.header,
                Outcome::Compact(reply) => &mut reply.header,
                Outcome::Error { .. } | Outcome::Unknown => return false,
            };
            header.as_mut().expect("the model gives headers").revision += delta;
            // A stale read may well have seen the revision before.
            fixed || delta == 100
        });
    }
    with(&|outcome| match outcome {
        Outcome::Range(reply) => {
            reply.count += 1;
            true
        }
        Outcome::DeleteRange(reply) => {
            reply.deleted += 1;
            true
        }
        Outcome::Txn(reply) => {
            reply.succeeded = !reply.succeeded;
            true
        }
        Outcome::Error { code, message, .. } => {
            // Another of the refusals.
            let other = if *code == 11 {
                (5, "etcdserver: requested lease not found")
            } else {
                (11, "etcdserver: mvcc: required revision has been compacted")
            };
            (*code, *message) = (other.0, other.1.to_owned());
            fixed
        }
        _ => false,
    });
    with(&|outcome| match outcome {
        Outcome::Range(reply) => {
            reply.more = !reply.more;
            true
        }
        Outcome::DeleteRange(reply) => reply.prev_kvs.pop().is_some(),
        Outcome::Txn(reply) => reply.responses.pop().is_some(),
        Outcome::Put(reply) => reply.prev_kv.take().is_some(),
        _ => false,
    });
    with(&|outcome| match outcome {
        Outcome::Range(reply) => reply.kvs.pop().is_some(),
        Outcome::Txn(reply) => reply.responses.iter_mut().any(|op| match &mut op.response {
            Some(pb::response_op::Response::ResponseRange(reply)) => {
                reply.count += 1;
                true
            }
            Some(pb::response_op::Response::ResponseDeleteRange(reply)) => {
                reply.deleted += 1;
                true
            }
            _ => false,
        }),
        _ => false,
    });
    with(&|outcome| {
        let kv = match outcome {
            Outcome::Range(reply) => reply.kvs.first_mut(),
            Outcome::Put(reply) => reply.prev_kv.as_mut(),
            Outcome::DeleteRange(reply) => reply.prev_kvs.first_mut(),
            _ => None,
        };
        kv.map(|kv| kv.version += 1).is_some()
    });
    with(&|outcome| match outcome {
        Outcome::Range(reply) => reply.kvs.last_mut().map(|kv| kv.value = bytes("phantom")).is_some(),
        _ => false,
    });
    all
}

/// More operations than one would think are needed: rare meetings of options must happen.
fn config(cases: u32) -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(20_260_101);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn one_at_a_time_is_good_and_every_spoiled_answer_is_found(
        draws in draws(40, 0),
        pick in any::<prop::sample::Index>(),
        way in any::<prop::sample::Index>(),
    ) {
        let (mut history, evidence) = rehearse(&draws).finish();
        assert_good(&history, &evidence);
        prop_assert!(search(&history, 64, 10_000) != Verdict::Not(0));
        let at = pick.index(history.ops.len());
        let op = &mut history.ops[at];
        let certain = matches!(op.certainty(), Certainty::Answered | Certainty::Refused);
        let ways = if certain { spoiled(op) } else { Vec::new() };
        prop_assume!(!ways.is_empty());
        op.outcome = ways[way.index(ways.len())].clone();
        let spoiled = op.to_string();
        prop_assert!(!judge(&history, &evidence).is_empty(), "not found: {spoiled}\n{history}");
    }

    #[test]
    fn concurrent_is_good(draws in draws(60, 6)) {
        let (history, evidence) = rehearse(&draws).finish();
        assert_good(&history, &evidence);
        let verdict = search(&history, 30, 3_000);
        prop_assert!(!matches!(verdict, Verdict::Not(_)), "{verdict:?}\n{history}");
    }

    #[test]
    fn concurrent_without_probes_is_good(draws in draws(60, 6)) {
        let (history, mut evidence) = rehearse(&draws).finish();
        evidence.probes.clear();
        assert_good(&history, &evidence);
    }

    #[test]
    fn an_entry_less_is_found(draws in draws(40, 4), pick in any::<prop::sample::Index>()) {
        let rehearsal = rehearse(&draws);
        let logged = rehearsal.logged.clone();
        let (history, mut evidence) = rehearsal.finish();
        prop_assume!(logged.len() > 1);
        let lost = pick.index(logged.len());
        // An unanswered or refused call may leave no trace, a delete may have twins.
        let op = history.ops.iter().find(|op| op.id == logged[lost]).expect("a logged operation");
        prop_assume!(op.certainty() == Certainty::Answered && matches!(op.call, Call::Put(_)));
        evidence.committed.remove(lost);
        prop_assert!(guarantees(&history, &evidence).contains(&"DUR"));
    }

    /// What the search finds wrong, the judge with the log finds too, and the other way round
    /// where the search is sure.
    #[test]
    fn the_two_judges_agree(
        draws in draws(14, 3),
        pick in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
    ) {
        let (mut history, evidence) = rehearse(&draws).finish();
        // A reply of another call of the same kind: often wrong, sometimes right.
        let (to, from) = (pick.index(history.ops.len()), other.index(history.ops.len()));
        let kind = |op: &Op| std::mem::discriminant(&op.outcome);
        prop_assume!(kind(&history.ops[to]) == kind(&history.ops[from]));
        prop_assume!(history.ops[to].certainty() == Certainty::Answered);
        history.ops[to].outcome = history.ops[from].outcome.clone();
        for op in &mut history.ops {
            op.member = None;
        }
        let verdict = search(&history, 64, 10_000);
        let by_log = judge(&history, &evidence);
        if matches!(verdict, Verdict::Not(_)) {
            prop_assert!(!by_log.is_empty());
        } else if verdict == Verdict::Linearizable && history.ops[to].call.is_read() {
            // With the log as it is, more is known of writes than their replies say.
            let stale = history.ops[to].call.is_serializable();
            prop_assert!(stale || by_log.iter().all(|found| found.guarantee == "LIN"), "{by_log:#?}");
        }
    }
}
