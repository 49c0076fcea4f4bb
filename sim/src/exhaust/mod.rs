//! One store, a scripted history, and every accident at every place of it.
//!
//! Nothing is sampled: the process is killed, or loses power, at **each** disk
//! operation; space runs out at **each** allocation; **each** sector rots. The
//! store must come back with what it said was durable, hold what the reference
//! model holds, with its checkpoint of the index and without, and go on.
//! **Never** a whole member: no log, no network, one task.

mod life;
mod script;

use crate::disk::{DiskSim, Keep};
use crate::plan::Decay;
use crate::seed;
use crate::time::{now_ns, pass, until};
use life::{DIR, INDEX_DIR, Progress, Shared, locked};
use madsim::{
    runtime::{Handle, NodeHandle},
    task::NodeId,
};
use script::Script;
use std::{collections::BTreeMap, fmt, path::Path, str::FromStr, sync::Arc, time::Duration};

/// Virtual time that a life may take.
const LIFE_NS: u64 = 120_000_000_000;
/// How long a disk stays full.
const FULL_MS: u64 = 700;

/// Failures that a summary shows.
const SHOWN_MAX: usize = 20;

/// What happens to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    None,
    /// At the n-th disk operation of the first life.
    Kill(u64),
    Power(u64, Keep),
    /// The n-th allocation, and all for some time after it.
    Full(u64),
    /// The n-th sector, once the script is done.
    Rot(u64, Decay),
}

impl Accident {
    fn place(self) -> u64 {
        match self {
            Accident::None => 0,
            Accident::Kill(place)
            | Accident::Power(place, _)
            | Accident::Full(place)
            | Accident::Rot(place, _) => place,
        }
    }
}

/// As the command line names them: `kill:439`, `power:440:prefix`, `full:3`, `rot:12:bit`.
impl fmt::Display for Accident {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = |kind: &dyn fmt::Debug| format!("{kind:?}").to_lowercase();
        match self {
            Accident::None => out.write_str("none"),
            Accident::Kill(place) => write!(out, "kill:{place}"),
            Accident::Power(place, keep) => write!(out, "power:{place}:{}", kind(keep)),
            Accident::Full(place) => write!(out, "full:{place}"),
            Accident::Rot(place, decay) => write!(out, "rot:{place}:{}", kind(decay)),
        }
    }
}

impl FromStr for Accident {
    type Err = String;

    fn from_str(text: &str) -> Result<Accident, String> {
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default();
        let place =
            parts.next().map_or(Ok(0), |place| place.parse().map_err(|_| format!("{place}: no place")))?;
        let accident = match (kind, parts.next()) {
            ("none", None) => Accident::None,
            ("kill", None) => Accident::Kill(place),
            ("full", None) => Accident::Full(place),
            ("power", Some("nothing")) => Accident::Power(place, Keep::Nothing),
            ("power", Some("prefix")) => Accident::Power(place, Keep::Prefix),
            ("power", Some("subset")) => Accident::Power(place, Keep::Subset),
            ("rot", Some("bit")) => Accident::Rot(place, Decay::Bit),
            ("rot", Some("sector")) => Accident::Rot(place, Decay::Sector),
            ("rot", Some("stray")) => Accident::Rot(place, Decay::Stray),
            _ => return Err("not like none, kill:439, power:440:prefix, full:3 or rot:12:bit".to_owned()),
        };
        if accident.to_string() == text { Ok(accident) } else { Err(format!("rather like {accident}")) }
    }
}

/// What a run came to.
pub struct Ran {
    progress: Progress,
    /// Of the first life.
    operations: u64,
    allocations: u64,
    sectors: u64,
    marks: BTreeMap<&'static str, u64>,
}

/// What all of it came to.
#[derive(Default)]
pub struct Summary {
    pub runs: BTreeMap<&'static str, u64>,
    pub wrong: Vec<String>,
    pub marks: BTreeMap<&'static str, u64>,
}

/// Every accident at every `stride`-th place (1: at each) of the script of a seed. `first`: up to
/// the first that is wrong.
pub fn run(seed: u64, entries: u64, stride: u64, first: bool) -> Summary {
    let mut summary = Summary::default();
    let Some(script) = summary.script(seed, entries) else { return summary };
    let Some(plain) = summary.one(&script, Accident::None, None) else { return summary };
    for accident in accidents(&plain, stride) {
        let good = summary.one(&script, accident, None).is_some();
        if first && !good {
            break;
        }
    }
    summary
}

/// One accident alone; `journal` gets a line for everything that happened.
pub fn one(seed: u64, entries: u64, accident: Accident, journal: &mut Vec<String>) -> Summary {
    let mut summary = Summary::default();
    if let Some(script) = summary.script(seed, entries) {
        summary.one(&script, accident, Some(journal));
    }
    summary
}

/// What can happen to a run that went so without it.
fn accidents(plain: &Ran, stride: u64) -> Vec<Accident> {
    let places = |most: u64| (1..=most).step_by(stride as usize);
    let mut accidents = Vec::new();
    for place in places(plain.operations) {
        accidents.push(Accident::Kill(place));
        let keeps = [Keep::Nothing, Keep::Prefix, Keep::Subset];
        accidents.extend(keeps.map(|keep| Accident::Power(place, keep)));
    }
    accidents.extend(places(plain.allocations).map(Accident::Full));
    for place in places(plain.sectors) {
        let decays = [Decay::Bit, Decay::Sector, Decay::Stray];
        accidents.extend(decays.map(|decay| Accident::Rot(place, decay)));
    }
    accidents
}

impl Summary {
    fn script(&mut self, seed: u64, entries: u64) -> Option<Arc<Script>> {
        let mut script = Script::draw(seed, entries);
        match with_snapshot(&script) {
            Ok(pages) => script.snapshot = pages,
            Err(what) => {
                self.wrong.push(format!("no snapshot of the peer: {what}"));
                return None;
            }
        }
        Some(Arc::new(script))
    }

    /// One run; `None` if something was wrong.
    fn one(
        &mut self,
        script: &Arc<Script>,
        accident: Accident,
        journal: Option<&mut Vec<String>>,
    ) -> Option<Ran> {
        let kind = match accident {
            Accident::None => "undisturbed",
            Accident::Kill(_) => "killed",
            Accident::Power(..) => "without power",
            Accident::Full(_) => "without space",
            Accident::Rot(..) => "rotten",
        };
        *self.runs.entry(kind).or_default() += 1;
        let ran = match once(script, accident, journal) {
            Ok(ran) => ran,
            Err(what) => {
                self.wrong.push(format!("{accident}: {what}"));
                return None;
            }
        };
        for (mark, count) in &ran.marks {
            *self.marks.entry(mark).or_default() += count;
        }
        let Progress { wrong, stopped, .. } = &ran.progress;
        let what = match (wrong, stopped, accident) {
            (Some(wrong), _, _) => wrong,
            // What rotted may stop it; nothing else may, not even lack of space.
            (None, Some(stopped), accident) if !matches!(accident, Accident::Rot(..)) => stopped,
            _ => return Some(ran),
        };
        self.wrong.push(format!("{accident}: {what}"));
        None
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<String> = self.runs.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        write!(out, "{}; {} wrong", runs.join(", "), self.wrong.len())?;
        for wrong in self.wrong.iter().take(SHOWN_MAX) {
            write!(out, "\nFAILED {wrong}")?;
        }
        for (mark, count) in &self.marks {
            write!(out, "\n  {count:>9}  {mark}")?;
        }
        Ok(())
    }
}

fn with_snapshot(script: &Script) -> Result<Vec<quorate_proto::quorate::v1::SnapshotPage>, String> {
    let script = script.clone();
    let ended = seed::run(1, Duration::from_secs(1000), false, move || async move {
        let node = Handle::current().create_node().name("peer").build();
        let index = script.install_at();
        let work = async move { life::peers_snapshot(&script, index).await };
        node.spawn(work).await.expect("nothing kills the peer").map_err(|error| error.to_string())
    });
    ended.result?
}

/// One run of the script with one accident.
fn once(script: &Arc<Script>, accident: Accident, journal: Option<&mut Vec<String>>) -> Result<Ran, String> {
    let script = script.clone();
    let ended = seed::run(1, Duration::from_secs(2000), journal.is_some(), move || world(script, accident));
    if let Some(journal) = journal {
        *journal = ended.journal;
    }
    let mut ran = ended.result?;
    ran.marks = ended.trace.marks;
    Ok(ran)
}

async fn world(script: Arc<Script>, accident: Accident) -> Ran {
    let progress = Shared::default();
    locked(&progress).place = accident.place();
    let lives = progress.clone();
    let init = move || {
        let (script, progress) = (script.clone(), lives.clone());
        async move {
            life::live(script, progress).await;
            std::future::pending::<()>().await;
        }
    };
    let node = Handle::current().create_node().name("n").init(init).build();
    let (id, disks) = (node.id(), DiskSim::get());
    match accident {
        Accident::Kill(place) | Accident::Power(place, _) => disks.freeze_after(id, place),
        Accident::Full(place) => disks.fill_at(id, place),
        Accident::None | Accident::Rot(..) => {}
    }
    let first = end_of_life(&progress, id, 1).await;
    let (operations, allocations) = disks.counts(id);
    let mut sectors = 0;
    match accident {
        Accident::Kill(_) => restart(&node),
        Accident::Power(_, keep) => {
            disks.lose_power(id, keep);
            restart(&node);
        }
        Accident::Rot(place, decay) => {
            Handle::current().kill(id);
            _ = disks.rot_sector(id, Path::new(DIR), place, decay);
            Handle::current().restart(id);
        }
        Accident::None | Accident::Full(_) => {
            Handle::current().kill(id);
            sectors = disks.sectors(id, Path::new(DIR));
            Handle::current().restart(id);
        }
    }
    let second = first && end_of_life(&progress, id, 2).await;
    // Once more, and nothing but the store itself is there.
    let third = second && {
        Handle::current().kill(id);
        disks.forget(id, Path::new(INDEX_DIR));
        Handle::current().restart(id);
        end_of_life(&progress, id, 3).await
    };
    Handle::current().kill(id);
    let mut progress = locked(&progress).clone();
    let overwritten = disks.take_overwrites();
    if progress.wrong.is_none() {
        progress.wrong = overwritten.into_iter().next();
    }
    if progress.wrong.is_none()
        && progress.stopped.is_none()
        && let Some(place) = disks.rotten(id, Path::new(DIR)).first()
    {
        progress.wrong = Some(format!("{place} rotted, and nobody found it"));
    }
    if progress.wrong.is_none() && progress.stopped.is_none() && !third {
        progress.wrong = Some(format!("life {} stands still at {}", progress.lives, progress.at));
    }
    Ran { progress, operations, allocations, sectors, marks: BTreeMap::new() }
}

fn restart(node: &NodeHandle) {
    Handle::current().kill(node.id());
    Handle::current().restart(node.id());
}

/// Waits until life `number` ended, by itself or by a frozen disk; `false` if it does not, or
/// something was wrong.
async fn end_of_life(progress: &Shared, id: NodeId, number: usize) -> bool {
    let deadline = now_ns() + LIFE_NS;
    let disks = DiskSim::get();
    let mut full_until = None;
    while now_ns() < deadline {
        let Progress { lives, finished, wrong, stopped, .. } = locked(progress).clone();
        if wrong.is_some() || stopped.is_some() {
            return false;
        }
        if finished == number || (lives == number && disks.is_frozen(id)) {
            return true;
        }
        if disks.is_full(id) {
            let until = *full_until.get_or_insert(now_ns() + FULL_MS * 1_000_000);
            if now_ns() >= until {
                disks.set_faults(id, |faults| faults.capacity = None);
            }
        }
        pass(Duration::from_millis(5)).await;
    }
    until(deadline).await;
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_places_of_a_short_script() {
        let summary = run(1, 16, 23, false);
        assert!(summary.wrong.is_empty(), "{summary}");
        assert!(summary.runs.values().sum::<u64>() > 20, "{summary}");
    }

    #[test]
    fn accidents_are_read_as_they_are_written() {
        let all = [
            Accident::None,
            Accident::Kill(439),
            Accident::Power(440, Keep::Nothing),
            Accident::Power(440, Keep::Prefix),
            Accident::Power(440, Keep::Subset),
            Accident::Full(3),
            Accident::Rot(12, Decay::Bit),
            Accident::Rot(12, Decay::Sector),
            Accident::Rot(12, Decay::Stray),
        ];
        for accident in all {
            assert_eq!(accident.to_string().parse(), Ok(accident));
        }
        for text in ["", "kill", "kill:x", "kill:1:bit", "power:1", "none:1", "rot:1:prefix"] {
            assert!(text.parse::<Accident>().is_err(), "{text}");
        }
    }
}
