//! Many seeds on several threads; what they came to together.

use super::{Counts, Report, first_difference, run_plan};
use crate::oracle::Violation;
use crate::plan::Plan;
use crate::scenario::Scenario;
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

/// Campaigns shorter than this are not asked for their marks.
const PROMISES_FROM: u64 = 20;

#[derive(Clone, Debug)]
pub struct Options {
    pub seeds: Range<u64>,
    pub jobs: usize,
    /// Each seed twice; the traces must be equal.
    pub twice: bool,
    /// Stop at the first seed that fails.
    pub first: bool,
    /// Stop when so much processor time is spent.
    pub cpu_max: Option<Duration>,
}

/// What a campaign came to.
#[derive(Default)]
pub struct Summary {
    pub passed: u64,
    /// In the order of seeds.
    pub failed: Vec<u64>,
    pub virtual_time: Duration,
    pub cpu: Duration,
    pub marks: BTreeMap<&'static str, u64>,
    pub counts: Counts,
    /// Promised marks that were never reached.
    pub unreached: Vec<String>,
    /// Ended before its last seed.
    pub cut_short: bool,
}

impl Summary {
    pub fn is_good(&self) -> bool {
        self.failed.is_empty() && self.unreached.is_empty() && self.passed > 0
    }

    fn add(&mut self, report: &Report) {
        match report.passed() {
            true => self.passed += 1,
            false => self.failed.push(report.seed),
        }
        self.virtual_time += report.virtual_time;
        self.cpu += report.cpu;
        self.counts.add(report.counts);
        for (mark, count) in &report.marks {
            *self.marks.entry(mark).or_default() += count;
        }
    }
}

/// Runs the seeds; `tell` is called with each report as it comes.
pub fn run(scenario: &Arc<Scenario>, options: &Options, mut tell: impl FnMut(&Report)) -> Summary {
    let next = Arc::new(AtomicU64::new(options.seeds.start));
    let stop = Arc::new(AtomicBool::new(false));
    let (send, receive) = mpsc::channel();
    let workers: Vec<_> = (0..options.jobs.max(1))
        .map(|job| {
            let (scenario, next, stop, send) = (scenario.clone(), next.clone(), stop.clone(), send.clone());
            let (end, twice) = (options.seeds.end, options.twice);
            let work = move || {
                while !stop.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end || send.send(run_seed(&scenario, seed, twice)).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("job-{job}"));
            thread.spawn(work).expect("the process can start a thread")
        })
        .collect();
    drop(send);
    let mut summary = Summary::default();
    for report in receive {
        summary.add(&report);
        tell(&report);
        let spent = options.cpu_max.is_some_and(|most| summary.cpu >= most);
        if spent || (options.first && !report.passed()) {
            stop.store(true, Relaxed);
            summary.cut_short = true;
        }
    }
    for worker in workers {
        worker.join().expect("a panic of a seed is a result, and a job does nothing else");
    }
    summary.failed.sort_unstable();
    let seeds = options.seeds.end.saturating_sub(options.seeds.start);
    if seeds >= PROMISES_FROM && !summary.cut_short {
        let unreached = scenario.promises.iter().filter(|mark| !summary.marks.contains_key(mark.as_str()));
        summary.unreached = unreached.cloned().collect();
    }
    summary
}

fn run_seed(scenario: &Scenario, seed: u64, twice: bool) -> Report {
    let plan = Plan::draw(scenario, seed);
    let mut report = run_plan(plan.clone(), false);
    if twice {
        let again = run_plan(plan.clone(), false);
        report.cpu += again.cpu;
        report.virtual_time += again.virtual_time;
        if first_difference(&report, &again).is_some() {
            // Once more with every line kept, to name the place.
            let pair = (run_plan(plan.clone(), true), run_plan(plan, true));
            let place = first_difference(&pair.0, &pair.1)
                .unwrap_or_else(|| "not met again when lines were kept".to_owned());
            let sentence = format!(
                "two runs of one seed differ ({:016x} and {:016x}); first difference: {place}",
                report.hash, again.hash
            );
            report.violations.insert(0, Violation { guarantee: "I12", sentence, op: None });
        }
    }
    report
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (virtual_s, cpu_s) = (self.virtual_time.as_secs_f64(), self.cpu.as_secs_f64());
        let seeds = self.passed + self.failed.len() as u64;
        write!(
            out,
            "{seeds} seeds, {} failed; {virtual_s:.0} virtual s in {cpu_s:.1} CPU s = {:.0} virtual s/CPU s; {}",
            self.failed.len(),
            virtual_s / cpu_s.max(1e-9),
            self.counts
        )?;
        if !self.marks.is_empty() {
            write!(out, "\nmarks reached:")?;
            for (mark, count) in &self.marks {
                write!(out, "\n  {count:>9}  {mark}")?;
            }
        }
        for mark in &self.unreached {
            write!(out, "\nFAILED: the promised mark \"{mark}\" was never reached")?;
        }
        if !self.failed.is_empty() {
            let first: Vec<String> = self.failed.iter().take(20).map(u64::to_string).collect();
            write!(out, "\nfailed seeds: {}", first.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_reads_like_this() {
        let summary = Summary {
            passed: 1,
            failed: vec![3],
            virtual_time: Duration::from_secs(200),
            cpu: Duration::from_secs(2),
            marks: BTreeMap::from([("snapshot installed", 12)]),
            counts: Counts { answered: 5, refused: 1, ambiguous: 2 },
            unreached: vec!["log compacted".into()],
            cut_short: false,
        };
        assert!(!summary.is_good());
        insta::assert_snapshot!(summary.to_string(), @r#"
        2 seeds, 1 failed; 200 virtual s in 2.0 CPU s = 100 virtual s/CPU s; 8 operations (5 answered, 1 refused, 2 in doubt)
        marks reached:
                 12  snapshot installed
        FAILED: the promised mark "log compacted" was never reached
        failed seeds: 3
        "#);
    }
}
