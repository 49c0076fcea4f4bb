//! The command line of the simulation.

use super::campaign::{self, Options};
use super::{Report, run_plan};
use crate::exhaust::{self, Accident};
use crate::plan::Plan;
use crate::scenario::{Scenario, directory};
use clap::{Parser, Subcommand};
use std::{
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// Whole clusters, seeded and fault-injected; (revision, scenario, seed) names one execution.
#[derive(Parser)]
#[command(name = "quorate-sim", version)]
struct Arguments {
    /// Where the scenarios lie.
    #[arg(long, global = true, default_value_os_t = directory())]
    scenarios: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many seeds of a scenario; fails if one fails or a promised mark was never reached.
    Run {
        #[arg(long)]
        scenario: String,
        /// First and end: 0..2000.
        #[arg(long, value_parser = parse_seeds)]
        seeds: Range<u64>,
        /// Seeds at the same time; all cores by default.
        #[arg(long)]
        jobs: Option<usize>,
        /// Runs each seed twice and compares the traces.
        #[arg(long)]
        twice: bool,
        /// Stops at the first seed that fails.
        #[arg(long)]
        first: bool,
        /// Switches a planted mistake on (builds of ci/gauntlet only); implies --first.
        #[arg(long)]
        mutant: Option<String>,
        /// Stops when so many seconds of processor time are spent.
        #[arg(long)]
        time_limit_cpu: Option<f64>,
    },
    /// Runs one seed again and says what happened.
    Replay {
        #[arg(long, required_unless_present = "plan")]
        scenario: Option<String>,
        #[arg(long, required_unless_present = "plan")]
        seed: Option<u64>,
        /// Prints every operation, fault and disk operation, and the trace.
        #[arg(long)]
        trace: bool,
        /// Runs this stored plan instead of drawing one.
        #[arg(long)]
        plan: Option<PathBuf>,
        #[arg(long)]
        mutant: Option<String>,
    },
    /// Runs a store through a scripted history with each accident at each place of it.
    Exhaust {
        /// Of the scripts: first and end.
        #[arg(long, value_parser = parse_seeds, default_value = "0..1")]
        seeds: Range<u64>,
        /// Entries of a script.
        #[arg(long, default_value_t = 60)]
        entries: u64,
        /// Every n-th place alone.
        #[arg(long, default_value_t = 1)]
        stride: u64,
        /// Stops at the first that is wrong.
        #[arg(long)]
        first: bool,
        /// This accident alone, with every line: kill:439, power:440:prefix, full:3, rot:12:bit, none.
        #[arg(long)]
        at: Option<Accident>,
        #[arg(long)]
        mutant: Option<String>,
    },
    /// Lists the scenarios.
    List,
    /// Prints the plan of a seed: JSON, one line for each operation and fault.
    Plan {
        #[arg(long)]
        scenario: String,
        #[arg(long)]
        seed: u64,
        /// Writes it to a file, for `replay --plan`.
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    match parsed {
        Some(Range { start, end }) if start < end => Ok(start..end),
        _ => Err("seeds are given as FIRST..END, the end not included, and at least one".to_owned()),
    }
}

/// What the binary does.
pub fn main() -> ExitCode {
    crate::shim::keep();
    let Arguments { scenarios, command } = Arguments::parse();
    match act(&scenarios, command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("quorate-sim: {error}");
            ExitCode::from(2)
        }
    }
}

type Failure = Box<dyn std::error::Error>;

#[allow(clippy::disallowed_methods)] // Files of the person at the command line, outside of the simulated world.
fn act(scenarios: &Path, command: Command) -> Result<bool, Failure> {
    match command {
        Command::List => {
            for scenario in Scenario::all(scenarios)? {
                println!("{:<12} {}", scenario.name, scenario.about);
            }
            Ok(true)
        }
        Command::Exhaust { seeds, entries, stride, first, at, mutant } => {
            mutant.as_deref().map_or(Ok(()), crate::mutant::choose)?;
            let mut good = true;
            for seed in seeds {
                let mut journal = Vec::new();
                let summary = match at {
                    Some(accident) => exhaust::one(seed, entries, accident, &mut journal),
                    None => exhaust::run(seed, entries, stride.max(1), first),
                };
                journal.iter().for_each(|line| println!("{line}"));
                println!("script {seed}: {summary}");
                good &= summary.wrong.is_empty();
            }
            Ok(good)
        }
        Command::Plan { scenario, seed, out } => {
            let text = Plan::draw(&Scenario::load(scenarios, &scenario)?, seed).to_lines();
            match out {
                Some(path) => std::fs::write(path, text)?,
                None => print!("{text}"),
            }
            Ok(true)
        }
        Command::Run { scenario, seeds, jobs, twice, first, mutant, time_limit_cpu } => {
            mutant.as_deref().map_or(Ok(()), crate::mutant::choose)?;
            let scenario = Arc::new(Scenario::load(scenarios, &scenario)?);
            let jobs =
                jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()));
            let options = Options {
                seeds,
                jobs,
                twice,
                first: first || mutant.is_some(),
                cpu_max: time_limit_cpu.map(Duration::from_secs_f64),
            };
            let mut told = 0;
            let summary = campaign::run(&scenario, &options, |report| {
                if !report.passed() && told < 20 {
                    told += 1;
                    println!("{report}");
                }
            });
            println!("{}: {summary}", scenario.name);
            Ok(summary.is_good())
        }
        Command::Replay { scenario, seed, trace, plan, mutant } => {
            mutant.as_deref().map_or(Ok(()), crate::mutant::choose)?;
            let plan = match (plan, scenario, seed) {
                (Some(path), _, _) => Plan::from_lines(&std::fs::read_to_string(path)?)?,
                (None, Some(scenario), Some(seed)) => {
                    Plan::draw(&Scenario::load(scenarios, &scenario)?, seed)
                }
                _ => unreachable!("clap asks for a plan, or for a scenario and a seed"),
            };
            let report = run_plan(plan, trace);
            print_replay(&report);
            Ok(report.passed())
        }
    }
}

fn print_replay(report: &Report) {
    for line in report.journal.iter().chain(&report.lines) {
        println!("{line}");
    }
    println!("{report}");
    println!(
        "trace {:016x} over {} events; {:.1} virtual s in {:.2} CPU s; {}",
        report.hash,
        report.events,
        report.virtual_time.as_secs_f64(),
        report.cpu.as_secs_f64(),
        report.counts
    );
    for (mark, count) in &report.marks {
        println!("  {count:>9}  {mark}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("0..20"), Ok(0..20));
        for wrong in ["5", "5..5", "7..3", "a..b", ""] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
