//! One history that goes through everything a store does to its disk.

use super::super::{Error, Options};
use super::bench::{Bench, small};
use super::model::{Model, Op};
use crate::pagefile::test_disk::TestDisk;
use quorate_proto::quorate::v1::SnapshotPage;

#[derive(Clone, Debug)]
enum Step {
    /// Applies entries up to this index.
    Apply(usize),
    Commit,
    MarkSynced,
    /// Carries out the compactions so far.
    Compact,
    Checkpoint,
    Clean,
    /// A peer's snapshot, of another store that stands at this index.
    Install(usize),
}

pub struct Script {
    ops: Vec<Op>,
    steps: Vec<Step>,
    /// Pages of the peer at each `Install`.
    peers: Vec<Vec<SnapshotPage>>,
    /// What must be seen, by index.
    models: Vec<Model>,
}

/// How far a run came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Index of the last entry that was applied, or may have been installed.
    pub applied: u64,
    /// Index of the last commit that was told to be durable.
    pub durable: u64,
}

fn ops() -> Vec<Op> {
    let mut ops = Vec::new();
    let put = |key: usize, size: usize| Op::Put(format!("key{key:02}"), "v".repeat(size));
    for turn in 0..14 {
        ops.push(put(turn % 6, 30 * (turn % 4)));
    }
    ops.push(Op::Delete("key01".into(), "key03".into()));
    ops.push(Op::Compact(10));
    for turn in 0..10 {
        ops.push(put(turn % 4, 200));
    }
    // A deletion at the compacted revision itself, and one below it.
    ops.push(Op::Delete("key00".into(), String::new()));
    ops.push(Op::Delete("key05".into(), String::new()));
    ops.push(Op::Compact(28));
    ops.extend((0..6).map(|turn| put(turn % 3, 700)));
    ops.push(Op::Delete("\0".into(), "\0".into()));
    ops.push(Op::Compact(35));
    ops.extend((0..8).map(|turn| put(turn, 40 + turn)));
    ops.push(Op::Compact(40));
    ops.push(put(3, 9));
    ops
}

fn steps(ops: &[Op]) -> Vec<Step> {
    let mut steps = Vec::new();
    for index in 1..=ops.len() {
        if [21, 22, 45, 46].contains(&index) {
            continue;
        }
        steps.push(Step::Apply(index));
        if index % 2 == 0 {
            steps.push(Step::Commit);
        }
        if index % 3 == 0 {
            steps.push(Step::Checkpoint);
        }
        if matches!(ops[index - 1], Op::Compact(_)) {
            steps.extend([Step::Commit, Step::Compact, Step::Clean]);
        }
        if index % 11 == 0 {
            steps.extend([Step::MarkSynced, Step::Clean]);
        }
        if index == 20 || index == 44 {
            // It jumps ahead; what lies between never came.
            steps.extend([Step::Install(index + 2), Step::Checkpoint]);
        }
    }
    steps.extend([Step::Commit, Step::Compact, Step::Checkpoint, Step::Clean, Step::MarkSynced]);
    steps
}

impl Script {
    pub async fn new() -> Script {
        let ops = ops();
        let steps = steps(&ops);
        let mut peers = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            if let Step::Install(index) = step {
                peers.push(peer(&ops[..*index], number as u8).await);
            }
        }
        let models = (0..=ops.len()).map(|index| Model::of(&ops[..index])).collect();
        Script { ops, steps, peers, models }
    }

    /// Runs it until it ends or the disk fails.
    pub async fn run(&self, disk: &TestDisk, options: Options) -> (Reached, Result<Bench, Error>) {
        let mut reached = Reached::default();
        let done = self.go(disk, options, &mut reached).await;
        (reached, done)
    }

    /// The same, but gives up after so many turns of the scheduler.
    pub async fn run_while(&self, disk: &TestDisk, options: Options, turns: usize) -> Reached {
        let mut reached = Reached::default();
        let patience = async {
            for _ in 0..turns {
                crate::env::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            done = self.go(disk, options, &mut reached) => drop(done),
            () = patience => {}
        }
        reached
    }

    async fn go(&self, disk: &TestDisk, options: Options, reached: &mut Reached) -> Result<Bench, Error> {
        let mut bench = Bench::open_with(disk, options).await?;
        let mut peers = self.peers.iter();
        for step in &self.steps {
            match step {
                Step::Apply(index) => {
                    bench.apply(&self.ops[index - 1]).await?;
                    reached.applied = *index as u64;
                }
                Step::Commit => {
                    if bench.applier.pending_bytes().is_some() {
                        reached.durable = bench.applier.commit().await?.index;
                    }
                }
                Step::MarkSynced => bench.applier.mark_synced().await?,
                Step::Compact => bench.compact().await,
                Step::Checkpoint => {
                    // What it waits for must be durable.
                    if bench.applier.pending_bytes().is_some() {
                        reached.durable = bench.applier.commit().await?.index;
                    }
                    bench.write_checkpoint().await?;
                }
                Step::Clean => {
                    if bench.applier.pending_bytes().is_some() {
                        reached.durable = bench.applier.commit().await?.index;
                    }
                    bench.clean().await?;
                }
                Step::Install(index) => {
                    let pages = peers.next().expect("a peer for each install").clone();
                    reached.applied = *index as u64;
                    reached.durable = bench.applier.install(pages).await?.index;
                }
            }
        }
        Ok(bench)
    }

    /// Opens what a crash left, and looks at all of it.
    pub async fn check(&self, disk: &TestDisk, reached: Reached, about: &str) -> Bench {
        let bench = Bench::open(disk).await.unwrap_or_else(|error| panic!("{about}: {error}"));
        let index = bench.position.index;
        assert!(
            (reached.durable..=reached.applied).contains(&index),
            "{about}: opened at {index}, {reached:?}"
        );
        bench.check(&self.models[index as usize], about).await;
        bench
    }

    /// Lives on from where a crash left it, to the end.
    pub async fn live_on(&self, mut bench: Bench, about: &str) -> Bench {
        let from = bench.position.index as usize;
        for op in &self.ops[from..] {
            bench.apply(op).await.unwrap();
            bench.applier.commit().await.unwrap();
            bench.compact().await;
        }
        bench.write_checkpoint().await.unwrap();
        bench.clean().await.unwrap_or_else(|error| panic!("{about}: {error}"));
        bench.check(self.last_model(), about).await;
        bench
    }

    pub fn last_model(&self) -> &Model {
        self.models.last().expect("one for each index")
    }
}

/// The pages of another member's store, which was committed and cleaned at other times.
async fn peer(ops: &[Op], seed: u8) -> Vec<SnapshotPage> {
    let disk = TestDisk::default();
    let mut bench = Bench::open_with_seed(&disk, seed).await.unwrap();
    for (index, op) in ops.iter().enumerate() {
        bench.apply(op).await.unwrap();
        if index % 5 == 0 {
            bench.applier.commit().await.unwrap();
            bench.compact().await;
        }
    }
    bench.applier.commit().await.unwrap();
    bench.compact().await;
    bench.clean().await.unwrap();
    let mut snapshot = bench.store.snapshot().await.unwrap();
    let mut pages = Vec::new();
    while let Some(page) = snapshot.next().await.unwrap() {
        pages.push(page);
    }
    pages
}

pub fn options() -> Options {
    small()
}
