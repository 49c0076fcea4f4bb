//! What each kind of entry does to the state.

use super::{
    Applied, Entry, Held, Refusal, Reply, State,
    entry::{Kind, decode, decode_exactly, read},
};
use crate::mvcc::{Pages, has_put};
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, membershippb, raftpb};

/// Fields of `raftpb.ConfChange`.
const CONF_CHANGE_FIELDS: u32 = 4;

type Outcome = Result<Reply, Refusal>;

impl State {
    /// Applies one entry, the one behind the last applied. `pages` reads; new records go to the
    /// state's own open page, see [`State::take_sealed`].
    pub fn apply(&mut self, entry: &Entry, pages: &dyn Pages) -> Result<Applied, Held> {
        assert_eq!(entry.index, self.applied.0 + 1, "entries are applied one after the other");
        assert!(entry.term >= self.applied.1, "terms never go back");
        let applied = match entry.is_conf_change {
            true => self.apply_conf_change(entry),
            false => self.apply_request(entry, pages),
        };
        if matches!(applied, Err(Held::Missing(_))) {
            crate::reached!("apply lacked a page");
        }
        let applied = applied?;
        self.applied = (entry.index, entry.term);
        Ok(applied)
    }

    fn apply_conf_change(&mut self, entry: &Entry) -> Result<Applied, Held> {
        let change: raftpb::ConfChange = decode_exactly(entry.index, &entry.data, CONF_CHANGE_FIELDS)?;
        let request_id = change.id;
        Ok(match self.members.change(&change) {
            Ok(()) => Applied { request_id, outcome: Ok(Reply::Empty), conf_change: Some(Some(change)) },
            Err(error) => {
                crate::reached!("membership change refused at apply");
                Applied { request_id, outcome: Err(error.into()), conf_change: Some(None) }
            }
        })
    }

    fn apply_request(&mut self, entry: &Entry, pages: &dyn Pages) -> Result<Applied, Held> {
        let carried = read(entry.index, &entry.data)?;
        let outcome = match carried.request {
            None => Ok(Reply::Empty),
            Some((kind, bytes)) => self.request(entry.index, kind, bytes, pages)?,
        };
        Ok(Applied { request_id: carried.request_id, outcome, conf_change: None })
    }

    fn request(&mut self, index: u64, kind: Kind, bytes: Bytes, pages: &dyn Pages) -> Result<Outcome, Held> {
        Ok(match kind {
            Kind::Put => {
                let request: pb::PutRequest = decode(index, bytes)?;
                match self.writable(true) {
                    Ok(()) => self.mvcc.put(&request, pages)?.map(Reply::Put).map_err(Refusal::from),
                    Err(refusal) => Err(refusal),
                }
            }
            Kind::DeleteRange => {
                let request: pb::DeleteRangeRequest = decode(index, bytes)?;
                match self.writable(false) {
                    Ok(()) => Ok(Reply::DeleteRange(self.mvcc.delete_range(&request, pages)?)),
                    Err(refusal) => Err(refusal),
                }
            }
            Kind::Txn => {
                let request: pb::TxnRequest = decode(index, bytes)?;
                // A txn that came through the log counts as a write, even one of nested ranges only.
                match self.writable(has_put(&request)) {
                    Ok(()) => self.mvcc.txn(&request, pages)?.map(Reply::Txn).map_err(Refusal::from),
                    Err(refusal) => Err(refusal),
                }
            }
            Kind::Range => {
                let request: pb::RangeRequest = decode(index, bytes)?;
                self.mvcc.range(&request, pages)?.map(Reply::Range).map_err(Refusal::from)
            }
            Kind::Compaction => self.compaction(&decode(index, bytes)?),
            Kind::Alarm => Ok(Reply::Alarm(self.alarm(&decode(index, bytes)?))),
            Kind::ClusterVersionSet => {
                let request: membershippb::ClusterVersionSetRequest = decode(index, bytes)?;
                self.cluster_version = request.ver;
                Ok(Reply::Empty)
            }
            Kind::ClusterMemberAttrSet => {
                let request: membershippb::ClusterMemberAttrSetRequest = decode(index, bytes)?;
                let attributes = request.member_attributes.unwrap_or_default();
                let published =
                    self.members.publish(request.member_id, attributes.name, attributes.client_urls);
                published.map(|()| Reply::Empty).map_err(Refusal::from)
            }
            Kind::DowngradeInfoSet => {
                let request: membershippb::DowngradeInfoSetRequest = decode(index, bytes)?;
                self.downgrade_target = if request.enabled { request.ver } else { String::new() };
                Ok(Reply::Empty)
            }
            Kind::DowngradeVersionTest => Ok(Reply::Empty),
            Kind::NotServed => Err(Refusal::NotServed),
        })
    }

    /// X2, X3: what the alarms that are on allow; CORRUPT is looked at first.
    fn writable(&self, grows: bool) -> Result<(), Refusal> {
        let on = |alarm: pb::AlarmType| self.alarms.iter().any(|(_, on)| *on == alarm as i32);
        if self.alarms.is_empty() {
            Ok(())
        } else if on(pb::AlarmType::Corrupt) {
            Err(Refusal::Corrupt)
        } else if grows && on(pb::AlarmType::Nospace) {
            Err(Refusal::NoSpace)
        } else {
            Ok(())
        }
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader { revision: self.mvcc.revision(), ..Default::default() })
    }

    fn compaction(&mut self, request: &pb::CompactionRequest) -> Outcome {
        self.writable(false)?;
        self.mvcc.compact(request.revision)?;
        Ok(Reply::Compaction(pb::CompactionResponse { header: self.header() }))
    }

    /// X4. An action that is not known changes nothing.
    fn alarm(&mut self, request: &pb::AlarmRequest) -> pb::AlarmResponse {
        use pb::alarm_request::AlarmAction;
        let none = pb::AlarmType::None as i32;
        let alarm = (request.member_id, request.alarm);
        let mut alarms = Vec::new();
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {
                alarms.extend(
                    self.alarms.iter().filter(|(_, on)| request.alarm == none || *on == request.alarm),
                );
            }
            Ok(AlarmAction::Activate) if request.alarm != none => {
                self.alarms.insert(alarm);
                alarms.push(alarm);
            }
            Ok(AlarmAction::Deactivate) if self.alarms.remove(&alarm) => alarms.push(alarm),
            _ => {}
        }
        let alarms =
            alarms.into_iter().map(|(member_id, alarm)| pb::AlarmMember { member_id, alarm }).collect();
        pb::AlarmResponse { header: self.header(), alarms }
    }
}
