//! Entries as the log would hold them, against the state they leave.

use super::*;
use crate::members::{ChangeContext, Member, context};
use pb::{InternalRaftRequest, alarm_request::AlarmAction};
use prost::Message;
use quorate_proto::membershippb;
use raftpb::{ConfChange, ConfChangeType};
use std::collections::BTreeMap;

/// All pages that a state has handed out.
#[derive(Default)]
struct Shelf(BTreeMap<PageNumber, Bytes>);

impl Pages for Shelf {
    fn get(&self, page: PageNumber) -> Option<Bytes> {
        self.0.get(&page).cloned()
    }
}

struct Member1 {
    state: State,
    shelf: Shelf,
}

impl Member1 {
    fn new() -> Member1 {
        let members = Members { cluster_id: 9, ..Members::default() };
        Member1 { state: State::new(members), shelf: Shelf::default() }
    }

    fn entry(&self, data: impl Into<Bytes>) -> Entry {
        Entry { index: self.state.applied.0 + 1, term: 1, is_conf_change: false, data: data.into() }
    }

    fn apply(&mut self, request: InternalRaftRequest) -> Result<Reply, Refusal> {
        let header = Some(pb::RequestHeader { id: 40, ..Default::default() });
        let entry = self.entry(InternalRaftRequest { header, ..request }.encode_to_vec());
        let applied = self.state.apply(&entry, &self.shelf).unwrap();
        assert_eq!((applied.request_id, applied.conf_change), (40, None));
        applied.outcome
    }

    fn put(&mut self, key: &str, value: &str) -> Result<Reply, Refusal> {
        self.apply(InternalRaftRequest { put: Some(put(key, value)), ..Default::default() })
    }

    fn alarm(&mut self, action: AlarmAction, member_id: u64, alarm: i32) -> (Vec<(u64, i32)>, i64) {
        let request = pb::AlarmRequest { action: action as i32, member_id, alarm };
        let reply = self.apply(InternalRaftRequest { alarm: Some(request), ..Default::default() });
        let Ok(Reply::Alarm(response)) = reply else { panic!("{reply:?}") };
        let alarms = response.alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect();
        (alarms, response.header.unwrap().revision)
    }

    fn change(&mut self, kind: ConfChangeType, member: Member) -> Applied {
        let change = ConfChange {
            id: 41,
            r#type: kind as i32,
            node_id: member.id,
            context: context(&ChangeContext { member, is_promote: false }).into(),
        };
        let entry = Entry { is_conf_change: true, ..self.entry(change.encode_to_vec()) };
        self.state.apply(&entry, &self.shelf).unwrap()
    }

    fn commit(&mut self) -> quorate_proto::quorate::v1::StoreMark {
        self.state.seal();
        self.shelf.0.extend(self.state.take_sealed());
        let last = self.shelf.0.last_key_value().map_or(0, |(page, _)| page.0);
        self.state.set_next_page(PageNumber(last + 2));
        self.state.mark()
    }
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

fn nested_ranges() -> pb::TxnRequest {
    use pb::request_op::Request;
    let range = pb::RangeRequest { key: "k".into(), ..Default::default() };
    let op = |request| pb::RequestOp { request: Some(request) };
    let inner = pb::TxnRequest { success: vec![op(Request::RequestRange(range))], ..Default::default() };
    pb::TxnRequest { success: vec![op(Request::RequestTxn(inner))], ..Default::default() }
}

fn putting_nowhere() -> pb::TxnRequest {
    use pb::request_op::Request;
    let op = pb::RequestOp { request: Some(Request::RequestPut(put("k", "v"))) };
    pb::TxnRequest { failure: vec![op], ..Default::default() }
}

#[test]
fn each_kind_of_request_gets_its_reply() {
    let mut member = Member1::new();
    let reply = member.put("k", "v");
    assert!(matches!(reply, Ok(Reply::Put(put)) if put.header.unwrap().revision == 2));
    let range = pb::RangeRequest { key: "k".into(), ..Default::default() };
    let reply = member.apply(InternalRaftRequest { range: Some(range), ..Default::default() });
    assert!(matches!(reply, Ok(Reply::Range(range)) if range.count == 1));
    let reply = member.apply(InternalRaftRequest { txn: Some(nested_ranges()), ..Default::default() });
    assert!(matches!(reply, Ok(Reply::Txn(txn)) if txn.header.unwrap().revision == 2));
    let delete = pb::DeleteRangeRequest { key: "k".into(), ..Default::default() };
    let reply = member.apply(InternalRaftRequest { delete_range: Some(delete), ..Default::default() });
    assert!(matches!(reply, Ok(Reply::DeleteRange(delete)) if delete.deleted == 1));
    let compaction = |revision| InternalRaftRequest {
        compaction: Some(pb::CompactionRequest { revision, physical: true }),
        ..Default::default()
    };
    let reply = member.apply(compaction(2));
    assert!(matches!(reply, Ok(Reply::Compaction(compaction)) if compaction.header.unwrap().revision == 3));
    assert_eq!(member.apply(compaction(2)), Err(mvcc::Error::Compacted.into()));
    assert_eq!(member.state.revisions(), (3, 2));
    let lease_grant = Some(pb::LeaseGrantRequest { ttl: 5, id: 1 });
    let reply = member.apply(InternalRaftRequest { lease_grant, ..Default::default() });
    assert_eq!(reply, Err(Refusal::NotServed));
    let auth_enable = Some(pb::AuthEnableRequest {});
    let reply = member.apply(InternalRaftRequest { auth_enable, ..Default::default() });
    assert_eq!(reply, Err(Refusal::NotServed));
    assert_eq!(member.state.applied, (8, 1));
}

#[test]
fn an_empty_entry_only_moves_the_applied_index() {
    let mut member = Member1::new();
    let entry = member.entry(Bytes::new());
    let applied = member.state.apply(&entry, &member.shelf).unwrap();
    assert_eq!((applied.request_id, applied.outcome, applied.conf_change), (0, Ok(Reply::Empty), None));
    assert_eq!(member.state.applied, (1, 1));
}

#[test]
fn entries_that_are_not_understood_stop_the_member_and_change_nothing() {
    let check = |data: &[u8], is_conf_change: bool, field: u32, text: &str| {
        let mut member = Member1::new();
        member.put("k", "v").unwrap();
        let before = member.state.mark();
        let entry = Entry { is_conf_change, ..member.entry(data.to_vec()) };
        match member.state.apply(&entry, &member.shelf) {
            Err(Held::Unknown(unknown)) => {
                assert_eq!(unknown, UnknownEntry { index: 2, field });
                assert_eq!(unknown.to_string(), text);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(member.state.mark(), before);
    };
    check(&[0xfa, 0x07, 0], false, 127, "entry 2 carries field 127 which this release does not know");
    check(&[0xff], false, 0, "entry 2 does not decode");
    check(&[4 << 3 | 2, 2, 1 << 3 | 2, 9], false, 0, "entry 2 does not decode");
    check(&[5 << 3, 1], true, 5, "entry 2 carries field 5 which this release does not know");
    check(&[4 << 3 | 2, 9], true, 0, "entry 2 does not decode");
}

#[test]
#[should_panic(expected = "one after the other")]
fn an_entry_out_of_turn_stops_the_member() {
    let mut member = Member1::new();
    let entry = Entry { index: 2, ..member.entry(Bytes::new()) };
    let _ = member.state.apply(&entry, &member.shelf);
}

#[test]
fn apply_names_the_pages_it_lacks_and_changes_nothing() {
    let mut member = Member1::new();
    member.put("k", "v").unwrap();
    member.commit();
    let before = member.state.mark();
    let put = Some(pb::PutRequest { prev_kv: true, ..put("k", "w") });
    let entry = member.entry(InternalRaftRequest { put, ..Default::default() }.encode_to_vec());
    match member.state.apply(&entry, &Shelf::default()) {
        Err(Held::Missing(missing)) => assert_eq!(missing, Missing(vec![PageNumber(1)])),
        other => panic!("{other:?}"),
    }
    assert_eq!(member.state.mark(), before);
    let applied = member.state.apply(&entry, &member.shelf).unwrap();
    assert!(
        matches!(applied.outcome, Ok(Reply::Put(put)) if &put.prev_kv.clone().unwrap().value[..] == b"v")
    );
}

#[test]
fn alarms_are_kept_by_member_and_number() {
    use AlarmAction::{Activate, Deactivate, Get};
    let mut member = Member1::new();
    assert_eq!(member.alarm(Activate, 7, 0), (vec![], 1));
    assert_eq!(member.alarm(Activate, 7, 1).0, [(7, 1)]);
    assert_eq!(member.alarm(Activate, 7, 1).0, [(7, 1)]);
    assert_eq!(member.alarm(Activate, 0, 2).0, [(0, 2)]);
    assert_eq!(member.alarm(Activate, 3, 55).0, [(3, 55)]);
    assert_eq!(member.alarm(Get, 0, 0).0, [(0, 2), (3, 55), (7, 1)]);
    assert_eq!(member.alarm(Get, 99, 1).0, [(7, 1)]);
    assert_eq!(member.alarm(Deactivate, 7, 0).0, []);
    assert_eq!(member.alarm(Deactivate, 8, 1).0, []);
    assert_eq!(member.alarm(Deactivate, 7, 1).0, [(7, 1)]);
    assert_eq!(member.alarm(Deactivate, 7, 1).0, []);
}

#[test]
fn alarms_refuse_what_they_must_and_no_more() {
    let check = |alarms: &[i32], expected: [Option<Refusal>; 7]| {
        let mut member = Member1::new();
        member.put("k", "v").unwrap();
        for alarm in alarms {
            member.alarm(AlarmAction::Activate, 5, *alarm);
        }
        let requests = [
            InternalRaftRequest { put: Some(put("k", "w")), ..Default::default() },
            // Any branch that puts counts, taken or not.
            InternalRaftRequest { txn: Some(putting_nowhere()), ..Default::default() },
            InternalRaftRequest { txn: Some(nested_ranges()), ..Default::default() },
            InternalRaftRequest { delete_range: Some(Default::default()), ..Default::default() },
            InternalRaftRequest {
                compaction: Some(pb::CompactionRequest { revision: 2, physical: false }),
                ..Default::default()
            },
            InternalRaftRequest {
                range: Some(pb::RangeRequest { key: "k".into(), ..Default::default() }),
                ..Default::default()
            },
            InternalRaftRequest {
                cluster_version_set: Some(membershippb::ClusterVersionSetRequest { ver: "3.7.0".to_owned() }),
                ..Default::default()
            },
        ];
        let refusals = requests.map(|request| member.apply(request).err());
        assert_eq!(refusals, expected, "{alarms:?}");
    };
    use Refusal::{Corrupt, NoSpace};
    check(&[], [const { None }; 7]);
    check(&[1], [Some(NoSpace), Some(NoSpace), None, None, None, None, None]);
    let corrupt = [Some(Corrupt), Some(Corrupt), Some(Corrupt), Some(Corrupt), Some(Corrupt), None, None];
    check(&[2], corrupt.clone());
    check(&[1, 2], corrupt);
    check(&[55], [const { None }; 7]);
}

fn member_named(id: u64, url: &str) -> Member {
    Member { id, peer_urls: vec![url.to_owned()], ..Member::default() }
}

#[test]
fn membership_changes_take_effect_or_are_refused_to_raft_too() {
    let mut member = Member1::new();
    let applied = member.change(ConfChangeType::ConfChangeAddNode, member_named(1, "http://a:1"));
    assert_eq!((applied.request_id, applied.outcome), (41, Ok(Reply::Empty)));
    assert_eq!(applied.conf_change.unwrap().unwrap().node_id, 1);
    let applied = member.change(ConfChangeType::ConfChangeAddNode, member_named(1, "http://b:1"));
    assert_eq!(applied.outcome, Err(Refusal::Member("member ID already exist")));
    assert_eq!(applied.conf_change, Some(None));
    assert_eq!(member.state.mark().conf_state.unwrap().voters, [1]);
    assert_eq!(member.state.applied, (2, 1));
}

#[test]
fn names_and_client_urls_are_published_through_the_log() {
    let mut member = Member1::new();
    member.change(ConfChangeType::ConfChangeAddNode, member_named(1, "http://a:1"));
    let publish = |member_id| InternalRaftRequest {
        cluster_member_attr_set: Some(membershippb::ClusterMemberAttrSetRequest {
            member_id,
            member_attributes: Some(membershippb::Attributes {
                name: "n1".to_owned(),
                client_urls: vec!["http://a:2".to_owned()],
            }),
        }),
        ..Default::default()
    };
    assert_eq!(member.apply(publish(1)), Ok(Reply::Empty));
    assert_eq!(member.apply(publish(2)), Err(Refusal::Member("member not found")));
    assert_eq!(member.state.members.members[&1].name, "n1");
    assert_eq!(member.state.members.members[&1].client_urls, ["http://a:2"]);
}

#[test]
fn a_state_rebuilt_from_its_mark_and_pages_is_the_same_state() {
    let mut member = Member1::new();
    let mut commits = Vec::new();
    member.change(ConfChangeType::ConfChangeAddNode, member_named(1, "http://a:1"));
    member.state.bucket_pages = vec![3, 4];
    commits.push((member.commit(), member.shelf.0.len()));
    for round in 0..3 {
        for key in ["a", "b"] {
            member.put(key, &round.to_string()).unwrap();
        }
        member.alarm(AlarmAction::Activate, round, 55);
        commits.push((member.commit(), member.shelf.0.len()));
    }
    let version = membershippb::ClusterVersionSetRequest { ver: "3.7.0".to_owned() };
    member.apply(InternalRaftRequest { cluster_version_set: Some(version), ..Default::default() }).unwrap();
    let downgrade = membershippb::DowngradeInfoSetRequest { enabled: true, ver: "3.6.0".to_owned() };
    member.apply(InternalRaftRequest { downgrade_info_set: Some(downgrade), ..Default::default() }).unwrap();
    let compaction = Some(pb::CompactionRequest { revision: 5, physical: false });
    member.apply(InternalRaftRequest { compaction, ..Default::default() }).unwrap();
    commits.push((member.commit(), member.shelf.0.len()));

    let mut rebuilt = State::new(Members::default());
    for (mark, pages) in commits {
        let bytes = mark.encode_to_vec();
        rebuilt = State::new(Members::default());
        rebuilt.load_mark(&quorate_proto::quorate::v1::StoreMark::decode(&bytes[..]).unwrap()).unwrap();
        for (page, payload) in member.shelf.0.iter().take(pages) {
            rebuilt.load_page(*page, payload).unwrap();
        }
        assert_eq!(rebuilt.mark(), mark);
    }
    assert_eq!(rebuilt.mark(), member.state.mark());
    assert_eq!(rebuilt.revisions(), (7, 5));
    let all =
        pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), revision: 5, ..Default::default() };
    assert_eq!(rebuilt.range(&all, &member.shelf), member.state.range(&all, &member.shelf));
    let other = quorate_proto::quorate::v1::StoreMark { conf_state: None, ..member.state.mark() };
    assert!(State::new(Members::default()).load_mark(&other).is_err());
}
