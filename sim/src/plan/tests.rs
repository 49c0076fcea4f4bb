use super::*;
use crate::scenario::{Scenario, directory};
use std::collections::BTreeSet;

fn scenario(name: &str) -> Scenario {
    Scenario::load(&directory(), name).unwrap()
}

#[test]
fn a_plan_is_the_same_whenever_it_is_drawn_and_survives_storing() {
    let standard = scenario("standard");
    let plan = Plan::draw(&standard, 7);
    assert_eq!(plan, Plan::draw(&standard, 7));
    assert_ne!(plan.ops, Plan::draw(&standard, 8).ops);
    assert_eq!(plan, Plan::from_lines(&plan.to_lines()).unwrap());
}

#[test]
fn the_beginning_of_a_plan_reads_like_this() {
    let lines = Plan::draw(&scenario("standard"), 1).to_lines();
    let faults = lines.lines().filter(|line| line.starts_with("{\"fault\"")).take(15);
    let shown: Vec<&str> = lines.lines().take(25).chain(faults).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn values_are_unique_and_times_lie_within_the_run() {
    for seed in 0..5 {
        let plan = Plan::draw(&scenario("standard"), seed);
        let mut values = BTreeSet::new();
        for op in &plan.ops {
            assert!(op.at_ms < plan.head.heal_ms);
            if let Ask::Put(store) = &op.ask
                && !store.value.is_empty()
            {
                assert!(values.insert(store.value.clone()), "{}", store.value);
            }
        }
        assert!(plan.faults.iter().all(|fault| fault.at_ms < plan.head.heal_ms));
        assert!((1500..4500).contains(&plan.ops.len()), "{}", plan.ops.len());
    }
}

#[test]
fn kinds_differ_from_seed_to_seed() {
    let standard = scenario("standard");
    let kinds: BTreeSet<Vec<String>> = (0..20).map(|seed| Plan::draw(&standard, seed).head.kinds).collect();
    assert!(kinds.len() > 10);
}

#[test]
fn damage_strikes_a_minority() {
    let mut five = scenario("five");
    five.swarm_off = 0.0;
    let pace = crate::scenario::Pace { gap_ms: [100, 200], hold_ms: [0, 0], always: true };
    five.faults.insert(crate::scenario::FaultKind::Rot, pace);
    let plan = Plan::draw(&five, 3);
    let rotten: BTreeSet<usize> = plan
        .faults
        .iter()
        .filter_map(|planned| match planned.fault {
            Fault::Rot { member } => Some(member),
            _ => None,
        })
        .collect();
    assert_eq!(rotten, BTreeSet::from([1, 2]));
}

#[test]
fn a_line_that_is_no_plan_is_named() {
    assert_eq!(Plan::from_lines("").unwrap_err().to_string(), "a plan begins with its head");
    assert!(Plan::from_lines("{\"x\":1}").unwrap_err().to_string().starts_with("line 1: unknown variant"));
}
