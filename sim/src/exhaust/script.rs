//! A store's history as a script: entries, commits, compactions, cleaning, a
//! snapshot from a peer; and what the reference model says after each entry.

use crate::dice::Dice;
use crate::history::{Call, Record};
use crate::model::{Model, Moment};
use prost::Message;
use quorate::machine::Entry;
use quorate_proto::{
    etcdserverpb::{self as pb, InternalRaftRequest, request_op::Request},
    mvccpb::KeyValue,
    quorate::v1::SnapshotPage,
};

/// What a life of the store does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Applies the entry with this index.
    Apply(u64),
    Commit,
    /// Names the last sync on disk.
    MarkSynced,
    /// Waits until physical compaction is done.
    Compacted,
    Defragment,
    /// The same, begun before what is applied is committed: the checkpoint meets an open page.
    DefragmentAhead,
    /// Gives tasks of the store so much time, in ms.
    Rest(u64),
    /// Takes the peer's snapshot of the store as of this index while a defragmentation is under way.
    Install(u64),
}

/// What sets a script apart from others: each is thorough in few things.
#[derive(Clone, Copy)]
struct Habits {
    /// Some values are larger than a page can be.
    big: bool,
    /// Cleans in the middle of other things.
    hasty: bool,
}

/// What a store must hold once it applied up to an entry.
#[derive(Clone, Debug)]
pub struct Truth {
    pub moment: Moment,
    pub pairs: Vec<KeyValue>,
    pub records: Vec<Record>,
}

#[derive(Clone)]
pub struct Script {
    pub steps: Vec<Step>,
    /// By index, from 1.
    entries: Vec<Entry>,
    /// By index, from 0 = the empty store.
    truths: Vec<Truth>,
    /// After all of it.
    model: Model,
    /// The peer's store as of the index that the script's `Install` names.
    pub snapshot: Vec<SnapshotPage>,
}

impl Script {
    /// Draws a script of about `entries` entries; it has no snapshot yet.
    pub fn draw(seed: u64, entries: u64) -> Script {
        let mut dice = Dice::new("exhaust", seed);
        let mut model = Model::new();
        let mut script = Script {
            steps: Vec::new(),
            entries: Vec::new(),
            truths: vec![Truth::of(&model)],
            model: Model::new(),
            snapshot: Vec::new(),
        };
        let habits = Habits { big: dice.chance(0.25), hasty: dice.chance(0.3) };
        let (install_at, ahead) = (entries / 2, (entries / 6).max(2));
        for index in 1..=entries {
            let call = call(&mut dice, &model, habits);
            let compacts = matches!(call, Call::Compact(_));
            // What it answers does not matter here: a refused one changes nothing.
            drop(model.apply(&call));
            script.entries.push(entry(index, call));
            script.truths.push(Truth::of(&model));
            // A peer was ahead by some entries: they come with its snapshot.
            if index < install_at || index > install_at + ahead {
                script.steps.push(Step::Apply(index));
            } else if index == install_at + ahead {
                script.steps.push(Step::Install(index));
            }
            let further = match dice.below(12) {
                0..4 => Some(Step::Commit),
                4 => Some(Step::MarkSynced),
                5 => Some(Step::Rest(dice.between(5, 120))),
                6 => Some(Step::Defragment),
                7 if compacts => Some(Step::Compacted),
                8 if habits.hasty => Some(Step::DefragmentAhead),
                // Copies are made while records go.
                9..12 if habits.hasty && compacts => Some(Step::Defragment),
                _ => None,
            };
            script.steps.extend(further);
        }
        script.steps.extend([
            Step::Commit,
            Step::Defragment,
            Step::Rest(300),
            Step::Commit,
            Step::MarkSynced,
        ]);
        script.model = model;
        script
    }

    /// HashKV at any moment of it.
    pub fn hash_kv(&self, moment: Moment) -> u32 {
        self.model.hash_kv(moment)
    }

    pub fn entry(&self, index: u64) -> &Entry {
        &self.entries[index as usize - 1]
    }

    pub fn truth(&self, index: u64) -> &Truth {
        &self.truths[index as usize]
    }

    pub fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The index that the snapshot stands at.
    pub fn install_at(&self) -> u64 {
        let install = |step: &Step| match step {
            Step::Install(index) => Some(*index),
            _ => None,
        };
        self.steps.iter().find_map(install).expect("every script has a snapshot")
    }
}

impl Truth {
    fn of(model: &Model) -> Truth {
        let moment = model.now();
        Truth { moment, pairs: model.pairs(moment.revision), records: model.records(moment) }
    }
}

fn entry(index: u64, call: Call) -> Entry {
    let mut request = InternalRaftRequest {
        header: Some(pb::RequestHeader { id: 1_000 + index, ..Default::default() }),
        ..Default::default()
    };
    match call {
        Call::Put(put) => request.put = Some(put),
        Call::DeleteRange(delete) => request.delete_range = Some(delete),
        Call::Txn(txn) => request.txn = Some(txn),
        Call::Compact(compaction) => request.compaction = Some(compaction),
        Call::Range(_) => unreachable!("a script never reads through the log"),
    }
    Entry { index, term: 2, is_conf_change: false, data: request.encode_to_vec().into() }
}

/// Bytes of which no two sectors are alike: one that lands in another's place is seen.
fn value(dice: &mut Dice, length: u64) -> bytes::Bytes {
    let start = dice.word();
    let words = (0..length.div_ceil(8)).flat_map(|at| start.wrapping_add(at).to_le_bytes());
    words.take(length as usize).collect()
}

fn call(dice: &mut Dice, model: &Model, habits: Habits) -> Call {
    let key = |dice: &mut Dice| bytes::Bytes::from(format!("k{}", dice.below(7)));
    let put = |dice: &mut Dice| {
        // A few are longer than any place in a page can be far.
        let most = if habits.big && dice.chance(0.08) { 160_000 } else { 260 };
        let length = dice.between(0, most);
        let value = value(dice, length);
        pb::PutRequest { key: key(dice), value, ..Default::default() }
    };
    let delete = |dice: &mut Dice| {
        let range_end = if dice.chance(0.3) { bytes::Bytes::from_static(b"l") } else { bytes::Bytes::new() };
        pb::DeleteRangeRequest { key: key(dice), range_end, prev_kv: dice.chance(0.3) }
    };
    match dice.below(20) {
        0..10 => Call::Put(put(dice)),
        10..14 => Call::DeleteRange(delete(dice)),
        14..17 => {
            let other = pb::PutRequest { key: "other".into(), ..put(dice) };
            let op = |request| pb::RequestOp { request: Some(request) };
            let success = vec![op(Request::RequestPut(other)), op(Request::RequestDeleteRange(delete(dice)))];
            Call::Txn(pb::TxnRequest { success, ..Default::default() })
        }
        _ => {
            let revision = model.now().revision - dice.below(4) as i64;
            Call::Compact(pb::CompactionRequest { revision: revision.max(1), physical: false })
        }
    }
}
