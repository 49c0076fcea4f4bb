//! A member for tests: keys in a map, one version each, and answers that can
//! be set to fail.

use super::Backend;
use crate::{
    machine::Reply,
    members::{Member, Members},
    mvcc,
    replica::{ProposeError, ReadIndexError, Status},
    store::{Figures, ReadError},
};
use bytes::Bytes;
use quorate_proto::{
    etcdserverpb::{self as pb, InternalRaftRequest, ResponseHeader},
    mvccpb::KeyValue,
};
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// What tests set and look at.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub status: Status,
    pub revision: i64,
    pub keys: BTreeMap<Bytes, KeyValue>,
    pub alarms: Vec<(u64, i32)>,
    pub cluster_version: String,
    pub members: Members,
    pub propose_error: Option<ProposeError>,
    pub read_index_error: Option<ReadIndexError>,
    pub range_error: Option<mvcc::Error>,
    /// Entries proposed, and read indexes asked for.
    pub proposed: Vec<InternalRaftRequest>,
    pub read_indexes: u64,
    pub compactions_waited: Vec<i64>,
    pub transfers: Vec<u64>,
    pub db_bytes: u64,
    /// What a cleaning frees.
    pub dead_bytes: u64,
    pub defragmentations: u64,
    pub out_of_service: Option<Arc<str>>,
    /// Range requests as the store saw them.
    pub ranges: Vec<pb::RangeRequest>,
}

#[derive(Clone)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Default for Fake {
    /// Member 1 of cluster 9, leading in term 3, at revision 1; member 2 votes, 3 learns.
    fn default() -> Fake {
        let member = |id: u64| Member {
            id,
            name: format!("m{id}"),
            peer_urls: vec![format!("http://h{id}:2380")],
            client_urls: vec![format!("http://h{id}:2379")],
            is_learner: id == 3,
        };
        let members = [1, 2, 3].map(|id| (id, member(id))).into();
        Fake(Arc::new(Mutex::new(State {
            status: Status {
                member_id: 1,
                cluster_id: 9,
                term: 3,
                leader: 1,
                commit: 7,
                applied: 6,
                leader_changes: 1,
                ..Status::default()
            },
            revision: 1,
            cluster_version: "3.7.0".to_owned(),
            db_bytes: 4096,
            members: Members { cluster_id: 9, members, ..Members::default() },
            ..State::default()
        })))
    }
}

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision, ..ResponseHeader::default() })
    }

    fn range(&self, request: &pb::RangeRequest) -> pb::RangeResponse {
        let inside = |key: &Bytes| match &request.range_end[..] {
            [] => *key == request.key,
            [0] => *key >= request.key,
            end => *key >= request.key && &key[..] < end,
        };
        let all: Vec<&KeyValue> = self.keys.values().filter(|kv| inside(&kv.key)).collect();
        let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
        let shown = if request.count_only { 0 } else { limit.min(all.len()) };
        pb::RangeResponse {
            header: self.header(),
            kvs: all[..shown].iter().map(|kv| (*kv).clone()).collect(),
            more: !request.count_only && shown < all.len(),
            count: all.len() as i64,
        }
    }

    fn apply(&mut self, request: &InternalRaftRequest) -> Reply {
        if let Some(put) = &request.put {
            self.revision += 1;
            let before = self.keys.get(&put.key);
            let kv = KeyValue {
                key: put.key.clone(),
                value: put.value.clone(),
                create_revision: before.map_or(self.revision, |kv| kv.create_revision),
                mod_revision: self.revision,
                version: before.map_or(1, |kv| kv.version + 1),
                lease: put.lease,
            };
            let prev_kv = self.keys.insert(put.key.clone(), kv).filter(|_| put.prev_kv);
            return Reply::Put(pb::PutResponse { header: self.header(), prev_kv });
        }
        if let Some(delete) = &request.delete_range {
            let deleted = i64::from(self.keys.remove(&delete.key).is_some());
            self.revision += deleted;
            return Reply::DeleteRange(pb::DeleteRangeResponse {
                header: self.header(),
                deleted,
                prev_kvs: vec![],
            });
        }
        if request.txn.is_some() {
            return Reply::Txn(pb::TxnResponse { header: self.header(), succeeded: true, responses: vec![] });
        }
        if request.compaction.is_some() {
            return Reply::Compaction(pb::CompactionResponse { header: self.header() });
        }
        let alarm = request.alarm.as_ref().expect("one of the kinds that the API proposes");
        if alarm.action == 1 {
            self.alarms.push((alarm.member_id, alarm.alarm));
        }
        let alarms = self
            .alarms
            .iter()
            .map(|(member_id, alarm)| pb::AlarmMember { member_id: *member_id, alarm: *alarm });
        Reply::Alarm(pb::AlarmResponse { header: None, alarms: alarms.collect() })
    }
}

impl Backend for Fake {
    async fn propose(&self, request: InternalRaftRequest) -> Result<(Reply, i64), ProposeError> {
        let mut state = self.state();
        if let Some(error) = state.propose_error.clone() {
            return Err(error);
        }
        let reply = state.apply(&request);
        state.proposed.push(request);
        Ok((reply, state.revision))
    }

    async fn read_index(&self) -> Result<(), ReadIndexError> {
        let mut state = self.state();
        state.read_indexes += 1;
        state.read_index_error.clone().map_or(Ok(()), Err)
    }

    async fn transfer_leadership(&self, target: u64, _: Duration) -> Result<(), ProposeError> {
        let mut state = self.state();
        state.transfers.push(target);
        state.propose_error.clone().map_or(Ok(()), Err)
    }

    fn status(&self) -> Status {
        self.state().status.clone()
    }

    async fn range(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, ReadError> {
        let mut state = self.state();
        state.ranges.push(request.clone());
        state.range_error.map_or_else(|| Ok(state.range(request)), |error| Err(error.into()))
    }

    async fn range_part(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, ReadError> {
        let part = Backend::range(self, request).await?;
        Ok(pb::RangeResponse { count: 0, ..part })
    }

    async fn txn(&self, _: &pb::TxnRequest) -> Result<pb::TxnResponse, ReadError> {
        let state = self.state();
        Ok(pb::TxnResponse { header: state.header(), succeeded: true, responses: vec![] })
    }

    async fn hash_kv(&self, revision: i64) -> Result<pb::HashKvResponse, ReadError> {
        let state = self.state();
        if revision > state.revision {
            return Err(mvcc::Error::FutureRevision.into());
        }
        Ok(pb::HashKvResponse {
            header: state.header(),
            hash: 5,
            compact_revision: -1,
            hash_revision: revision,
        })
    }

    async fn wait_compacted(&self, revision: i64) {
        self.state().compactions_waited.push(revision);
    }

    fn members(&self) -> Members {
        self.state().members.clone()
    }

    fn cluster_version(&self) -> String {
        self.state().cluster_version.clone()
    }

    fn alarms(&self) -> Vec<(u64, i32)> {
        self.state().alarms.clone()
    }

    fn revisions(&self) -> (i64, i64) {
        (self.state().revision, -1)
    }

    fn sizes(&self) -> (u64, u64) {
        (self.state().db_bytes, 1024)
    }

    fn keys(&self) -> u64 {
        self.state().keys.len() as u64
    }

    fn db_bytes(&self) -> u64 {
        self.state().db_bytes
    }

    async fn defragment(&self) {
        let mut state = self.state();
        state.defragmentations += 1;
        state.db_bytes = state.db_bytes.saturating_sub(state.dead_bytes);
        state.dead_bytes = 0;
    }

    fn has_reserve(&self) -> bool {
        true
    }

    fn out_of_service(&self) -> Option<Arc<str>> {
        self.state().out_of_service.clone()
    }

    fn taken_out(&self) -> impl Future<Output = ()> + Send + 'static {
        let taken_out = self.out_of_service().is_some();
        async move {
            if !taken_out {
                std::future::pending::<()>().await;
            }
        }
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }
}
