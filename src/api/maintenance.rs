//! The Maintenance service: status, hash, alarms, leadership.

use super::{
    Backend, STORAGE_VERSION,
    errors::{self, Error},
    service::{Api, NoStream, has_leader, mismatched, service},
};
use crate::{machine::Reply, replica::ProposeError};
use quorate_proto::etcdserverpb::{self as pb, AlarmType, InternalRaftRequest, alarm_request::AlarmAction};
use std::fmt::Write;
use tonic::{Request, Response, Status};

service! {
    impl pb::maintenance_server::Maintenance as "Maintenance" {
        async fn alarm(
            &self,
            request: Request<pb::AlarmRequest>,
        ) -> Result<Response<pb::AlarmResponse>, Status> {
            let request = request.into_inner();
            // etcd's member panics on an unknown action; here it never reaches the log.
            if AlarmAction::try_from(request.action).is_err() {
                return Err(Status::invalid_argument("quorate: unknown alarm action"));
            }
            // GET goes through the log too (N3): its answer is as of its place there.
            let entry = InternalRaftRequest { alarm: Some(request), ..InternalRaftRequest::default() };
            match self.propose(entry).await? {
                (Reply::Alarm(mut response), revision) => {
                    self.fill_or(&mut response.header, revision);
                    Ok(Response::new(response))
                }
                (reply, _) => mismatched("Alarm", &reply),
            }
        }

        async fn status(
            &self,
            _: Request<pb::StatusRequest>,
        ) -> Result<Response<pb::StatusResponse>, Status> {
            let status = self.backend.status();
            let (size, in_use) = self.backend.sizes();
            let mut problems = Vec::new();
            if !has_leader(&status) {
                problems.push(Error::NoLeader.row().text.to_owned());
            }
            problems.extend(self.backend.alarms().into_iter().map(alarm_text));
            Ok(Response::new(pb::StatusResponse {
                header: self.header(self.backend.revisions().0),
                version: super::ETCD_VERSION.to_owned(),
                db_size: i64::try_from(size).unwrap_or(i64::MAX),
                leader: status.leader,
                raft_index: status.commit,
                raft_term: status.term,
                raft_applied_index: status.applied,
                errors: problems,
                db_size_in_use: i64::try_from(in_use).unwrap_or(i64::MAX),
                is_learner: status.is_learner,
                storage_version: STORAGE_VERSION.to_owned(),
                db_size_quota: self.settings.quota_in_force(),
                downgrade_info: Some(pb::DowngradeInfo::default()),
            }))
        }

        async fn hash_kv(
            &self,
            request: Request<pb::HashKvRequest>,
        ) -> Result<Response<pb::HashKvResponse>, Status> {
            let revision = request.into_inner().revision;
            let begun = self.clock.now();
            let mut response = self.backend.hash_kv(revision).await.map_err(errors::read)?;
            self.metrics.hash_by_revision.observe(self.clock.now().since(begun).as_secs_f64());
            self.fill(&mut response.header);
            Ok(Response::new(response))
        }

        async fn defragment(
            &self,
            _: Request<pb::DefragmentRequest>,
        ) -> Result<Response<pb::DefragmentResponse>, Status> {
            Api::defragment(self).await;
            // X7: no header.
            Ok(Response::new(pb::DefragmentResponse { header: None }))
        }

        type SnapshotStream = NoStream<pb::SnapshotResponse>;

        async fn snapshot(
            &self,
            _: Request<pb::SnapshotRequest>,
        ) -> Result<Response<Self::SnapshotStream>, Status> {
            Err(errors::not_served("Maintenance.Snapshot"))
        }

        async fn move_leader(
            &self,
            request: Request<pb::MoveLeaderRequest>,
        ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
            let target = request.into_inner().target_id;
            let status = self.backend.status();
            if status.leader != status.member_id {
                return Err(Error::NotLeader.status());
            }
            if self.backend.members().members.get(&target).is_none_or(|member| member.is_learner) {
                return Err(Error::BadLeaderTransferee.status());
            }
            if target != status.member_id {
                let within = self.settings.request_timeout;
                let moved = self.backend.transfer_leadership(target, within).await;
                moved.map_err(|error| match error {
                    ProposeError::Stopped => Error::Stopped,
                    _ => Error::TimeoutLeaderTransfer,
                })?;
            }
            Ok(Response::new(pb::MoveLeaderResponse { header: None }))
        }
    }
    unserved {
        hash: pb::HashRequest => pb::HashResponse, "Hash";
        downgrade: pb::DowngradeRequest => pb::DowngradeResponse, "Downgrade";
    }
}

impl<B: Backend> Api<B> {
    /// Cleans the store harder than it does by itself. Nothing else waits for it, and a caller that goes
    /// away does not end it.
    pub(super) async fn defragment(&self) {
        let begun = self.clock.now();
        tracing::info!("starting defragment");
        let inflight = self.metrics.defragment_begins();
        self.backend.defragment().await;
        drop(inflight);
        let took = self.clock.now().since(begun);
        self.metrics.defragment.observe(took.as_secs_f64());
        let (size, in_use) = self.backend.sizes();
        tracing::info!(
            "current-db-size-bytes" = size,
            "current-db-size-in-use-bytes" = in_use,
            took = ?took,
            "finished defragment"
        );
    }
}

/// An alarm as Status lists it: protobuf's text form.
fn alarm_text((member_id, alarm): (u64, i32)) -> String {
    let mut text = String::new();
    if member_id != 0 {
        write!(text, "memberID:{member_id} ").expect("a string takes every write");
    }
    match AlarmType::try_from(alarm) {
        Ok(kind) => write!(text, "alarm:{}", kind.as_str_name()),
        Err(_) => write!(text, "alarm:{alarm}"),
    }
    .expect("a string takes every write");
    text
}
