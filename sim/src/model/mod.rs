//! The reference model of the KV API, written for clarity.
//!
//! Owns every version that every key ever had, as plain maps; nothing is ever
//! thrown away, so a question about any earlier moment can still be answered.
//! Rules and their letters (R, P, T, C) are those of the API's observed
//! behaviour. **Never** shares code with the server: only the messages.

mod agree;
mod check;
mod hash;
mod range;
mod refusal;
mod txn;
mod write;

pub use refusal::Refusal;

use crate::history::{Call, Outcome, Record};
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, mvccpb::KeyValue};
use std::collections::{BTreeMap, BTreeSet};

/// Most entries that a level of a txn may list (T2).
pub const TXN_OPS_MAX: usize = 128;

/// A store's whole life so far.
#[derive(Clone, Debug, Hash)]
pub struct Model {
    /// Each key's versions, oldest first.
    versions: BTreeMap<Bytes, Vec<Version>>,
    revision: i64,
    /// C2: -1 until the first compaction.
    compacted: i64,
    /// Records that the revision of the last record has so far.
    records: (i64, i64),
    /// (member, number of the kind) of the alarms that are on.
    alarms: BTreeSet<(u64, i32)>,
}

#[derive(Clone, Debug, Hash)]
struct Version {
    revision: i64,
    /// Which of its revision's records, from 0, in the order of execution.
    sub: i64,
    /// `None`: deleted at that revision.
    pair: Option<KeyValue>,
}

/// A point in a store's life, as far as reads can tell one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub revision: i64,
    pub compacted: i64,
}

/// A right answer. The header holds the revision alone.
#[derive(Clone, Debug)]
pub struct Reply {
    pub outcome: Outcome,
    /// For each range in the order of execution: the pairs among which a sort may choose freely
    /// where its keys tie (R7); empty when the answer is fixed.
    ties: Vec<Vec<KeyValue>>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// P1: a fresh store stands at revision 1.
    pub fn new() -> Model {
        Model {
            versions: BTreeMap::new(),
            revision: 1,
            compacted: -1,
            records: (0, 0),
            alarms: BTreeSet::new(),
        }
    }

    pub fn now(&self) -> Moment {
        Moment { revision: self.revision, compacted: self.compacted }
    }

    /// Executes a call. A refused one changes nothing.
    pub fn apply(&mut self, call: &Call) -> Result<Reply, Refusal> {
        let before = self.now();
        let answer = self.execute(call);
        assert!(self.revision - before.revision <= 1, "one call makes one revision at most");
        assert!(self.compacted >= before.compacted, "the compacted mark only rises");
        assert!(answer.is_ok() || self.now() == before, "a refused call changes nothing");
        answer
    }

    fn execute(&mut self, call: &Call) -> Result<Reply, Refusal> {
        let moment = self.now();
        check::call(call)?;
        self.check_alarms(call)?;
        self.check(call, moment)?;
        Ok(match call {
            Call::Range(_) => self.read(moment, call)?,
            Call::Put(request) => {
                self.revision += 1;
                Reply::fixed(Outcome::Put(self.put(request, self.revision)))
            }
            Call::DeleteRange(request) => {
                let (reply, changed) = self.delete_range(request, moment.revision, false);
                self.revision += i64::from(changed);
                Reply::fixed(Outcome::DeleteRange(reply))
            }
            Call::Txn(request) => self.txn(request),
            Call::Compact(request) => Reply::fixed(Outcome::Compact(self.compact(request))),
        })
    }

    /// Whether a call would be refused at `moment`: on its content first, then on the state.
    pub fn check(&self, call: &Call, moment: Moment) -> Result<(), Refusal> {
        check::call(call)?;
        match call {
            Call::Range(request) => range::check_range(request, moment),
            Call::Put(request) => self.check_put(request, moment.revision),
            Call::DeleteRange(_) => Ok(()),
            Call::Txn(request) => self.check_txn(request, moment),
            Call::Compact(request) => write::check_compact(request, moment),
        }
    }

    /// X2, X3: what alarms forbid, whoever raised them.
    fn check_alarms(&self, call: &Call) -> Result<(), Refusal> {
        let on = |kind: pb::AlarmType| self.alarms.iter().any(|(_, on)| *on == kind as i32);
        match call.is_read() {
            true => Ok(()),
            false if on(pb::AlarmType::Corrupt) => Err(Refusal::Corrupt),
            false if call.grows() && on(pb::AlarmType::Nospace) => Err(Refusal::NoSpace),
            false => Ok(()),
        }
    }

    /// X4, as an entry of the log: what it answers is not looked at.
    pub fn alarm(&mut self, request: &pb::AlarmRequest) {
        use pb::alarm_request::AlarmAction;
        let alarm = (request.member_id, request.alarm);
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Activate) if request.alarm != pb::AlarmType::None as i32 => {
                self.alarms.insert(alarm);
            }
            Ok(AlarmAction::Deactivate) => drop(self.alarms.remove(&alarm)),
            _ => {}
        }
    }

    /// What the request's content alone forbids, whatever the state.
    pub fn check_content(call: &Call) -> Result<(), Refusal> {
        check::call(call)
    }

    /// Answers a read (a range, or a txn of ranges) as of `moment`, which must have been.
    pub fn read(&self, moment: Moment, call: &Call) -> Result<Reply, Refusal> {
        assert!(call.is_read(), "not a read: {call}");
        assert!(moment.revision <= self.revision, "a moment that never was");
        self.check(call, moment)?;
        Ok(match call {
            Call::Txn(request) => self.read_txn(request, moment),
            Call::Range(request) => {
                let (reply, ties) = self.range_at(request, moment.revision);
                Reply { outcome: Outcome::Range(reply), ties: vec![ties] }
            }
            _ => unreachable!("asserted above"),
        })
    }

    /// Every live pair at a revision, ascending.
    pub fn pairs(&self, revision: i64) -> Vec<KeyValue> {
        self.select(b"\0", b"\0", revision)
    }

    /// What a finished compaction at `moment.compacted` leaves of the records up to
    /// `moment.revision`, in order: of each key the newest record at or below the compacted
    /// revision unless it is a deletion below it, and everything above.
    pub fn records(&self, moment: Moment) -> Vec<Record> {
        let Moment { revision, compacted } = moment;
        let mut records = Vec::new();
        for (key, versions) in &self.versions {
            let newest = versions.partition_point(|version| version.revision <= compacted).checked_sub(1);
            for (place, Version { revision: main, sub, pair }) in versions.iter().enumerate() {
                let kept = newest == Some(place) && (pair.is_some() || *main == compacted);
                if (*main > compacted || kept) && *main <= revision {
                    records.push(Record { main: *main, sub: *sub, key: key.clone(), pair: pair.clone() });
                }
            }
        }
        records.sort_by_key(|record| (record.main, record.sub));
        records
    }

    /// The pair that a key held at a revision.
    pub fn pair(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        let versions = self.versions.get(key)?;
        let after = versions.partition_point(|version| version.revision <= revision);
        versions[..after].last()?.pair.as_ref()
    }
}

impl Reply {
    fn fixed(outcome: Outcome) -> Reply {
        Reply { outcome, ties: Vec::new() }
    }

    /// The revision of the header.
    pub fn revision(&self) -> i64 {
        self.outcome.header().expect("every reply of the model has a header").revision
    }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision, ..Default::default() })
}

#[cfg(test)]
mod tests;
