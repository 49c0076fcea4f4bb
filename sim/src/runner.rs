//! Campaigns: many seeds of a scenario, judged; and one seed again.
//!
//! Promises: the exit code is 0 only if every seed passed and every promised
//! mark was reached; a failing seed prints the oracle's sentence, the first
//! wrong operation and the one line that runs it again.

mod campaign;
mod command;

pub use command::main;

use crate::history::{History, Outcome};
use crate::oracle::{self, Violation};
use crate::plan::Plan;
use crate::{seed, world};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

/// What one run of a plan came to.
pub struct Report {
    pub scenario: String,
    pub seed: u64,
    pub violations: Vec<Violation>,
    /// The first violation's operation in words.
    pub first_wrong: Option<String>,
    pub hash: u64,
    pub events: u64,
    pub marks: BTreeMap<&'static str, u64>,
    pub virtual_time: Duration,
    pub cpu: Duration,
    pub counts: Counts,
    /// Trace lines, if kept.
    pub lines: Vec<String>,
    pub journal: Vec<String>,
}

/// Operations by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub answered: u64,
    pub refused: u64,
    /// May or may not have taken effect.
    pub ambiguous: u64,
}

impl Counts {
    fn of(history: &History) -> Counts {
        let mut counts = Counts::default();
        for op in &history.ops {
            match &op.outcome {
                Outcome::Unknown | Outcome::Error { maybe_applied: true, .. } => counts.ambiguous += 1,
                Outcome::Error { .. } => counts.refused += 1,
                _ => counts.answered += 1,
            }
        }
        counts
    }

    fn add(&mut self, other: Counts) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.ambiguous += other.ambiguous;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { answered, refused, ambiguous } = self;
        write!(
            out,
            "{} operations ({answered} answered, {refused} refused, {ambiguous} in doubt)",
            answered + refused + ambiguous
        )
    }
}

/// Runs a plan and judges it.
pub fn run_plan(plan: Plan, keep: bool) -> Report {
    let (scenario, number) = (plan.head.scenario.clone(), plan.head.seed);
    // The world's seed depends on the scenario too, as the plan's does.
    let world_seed = crate::dice::Dice::new(&format!("{scenario} world"), number).word();
    let limit = world::limit(&plan.head);
    let planned_end = Duration::from_millis(plan.head.heal_ms);
    let plan = Arc::new(plan);
    let ended = seed::run(world_seed, limit, keep, move || world::live(plan));
    let before = seed::thread_cpu();
    let mut report = Report {
        scenario,
        seed: number,
        violations: Vec::new(),
        first_wrong: None,
        hash: ended.trace.hash,
        events: ended.trace.events,
        marks: ended.trace.marks,
        virtual_time: planned_end,
        cpu: ended.cpu,
        counts: Counts::default(),
        lines: ended.trace.lines.unwrap_or_default(),
        journal: ended.journal,
    };
    match ended.result {
        Ok(remains) => {
            report.virtual_time = Duration::from_nanos(remains.evidence.end_ns);
            report.counts = Counts::of(&remains.history);
            report.violations = remains.violations;
            report.violations.extend(oracle::judge(&remains.history, &remains.evidence));
            let wrong = report.violations.iter().find_map(|violation| violation.op);
            report.first_wrong = wrong
                .and_then(|wrong| remains.history.ops.iter().find(|op| op.id == wrong))
                .map(ToString::to_string);
        }
        Err(panic) => {
            report.violations.push(Violation { guarantee: "NOPANIC", sentence: panic, op: None });
        }
    }
    report.cpu += seed::thread_cpu().saturating_sub(before);
    report
}

impl Report {
    pub fn passed(&self) -> bool {
        self.violations.is_empty()
    }

    pub fn replay_line(&self) -> String {
        format!("cargo sim replay --scenario {} --seed {}", self.scenario, self.seed)
    }
}

/// A failing seed in words.
impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.violations.first() else {
            return write!(out, "{} seed {} passed: {}", self.scenario, self.seed, self.counts);
        };
        write!(out, "FAILED {} seed {}: {}: {}", self.scenario, self.seed, first.guarantee, first.sentence)?;
        for other in self.violations.iter().skip(1).take(4) {
            write!(out, "\n  also: {}: {}", other.guarantee, other.sentence)?;
        }
        if self.violations.len() > 5 {
            let rest = self.violations[5..].iter().map(|violation| violation.guarantee);
            let names: Vec<&str> = rest.collect::<BTreeSet<_>>().into_iter().collect();
            write!(out, "\n  and {} more: {}", self.violations.len() - 5, names.join(", "))?;
        }
        if let Some(op) = &self.first_wrong {
            write!(out, "\n  first wrong operation: {op}")?;
        }
        write!(out, "\n  again: {}", self.replay_line())
    }
}

/// The first place where two traces part, in words; `None` if they are alike.
pub fn first_difference(one: &Report, two: &Report) -> Option<String> {
    if one.hash == two.hash && one.events == two.events {
        return None;
    }
    let place = one.lines.iter().zip(&two.lines).position(|(a, b)| a != b);
    let place = place.unwrap_or(one.lines.len().min(two.lines.len()));
    let line = |report: &Report| report.lines.get(place).map_or("the end".to_owned(), Clone::clone);
    Some(format!("event {place}: {} | {}", line(one), line(two)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            scenario: "standard".into(),
            seed: 17,
            violations: vec![
                Violation { guarantee: "LIN", sentence: "a read is too old".into(), op: Some(3) },
                Violation { guarantee: "HASH", sentence: "members differ".into(), op: None },
            ],
            first_wrong: Some("#3 get".into()),
            hash: 1,
            events: 2,
            marks: BTreeMap::new(),
            virtual_time: Duration::from_secs(60),
            cpu: Duration::from_millis(500),
            counts: Counts::default(),
            lines: vec!["1 disk".into(), "2 disk".into()],
            journal: Vec::new(),
        }
    }

    #[test]
    fn a_failing_seed_says_what_and_how_to_run_it_again() {
        insta::assert_snapshot!(report().to_string(), @r"
        FAILED standard seed 17: LIN: a read is too old
          also: HASH: members differ
          first wrong operation: #3 get
          again: cargo sim replay --scenario standard --seed 17
        ");
    }

    #[test]
    fn the_first_difference_of_two_traces_is_named() {
        let one = report();
        assert_eq!(first_difference(&one, &report()), None);
        let two = Report { hash: 2, lines: vec!["1 disk".into(), "2 wire".into()], ..report() };
        assert_eq!(first_difference(&one, &two).unwrap(), "event 1: 2 disk | 2 wire");
    }
}
