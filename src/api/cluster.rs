//! The Cluster service. Membership changes come in a later release.

use super::service::service;
use quorate_proto::etcdserverpb as pb;
use tonic::{Request, Response, Status};

service! {
    impl pb::cluster_server::Cluster as "Cluster" {
        async fn member_list(
            &self,
            request: Request<pb::MemberListRequest>,
        ) -> Result<Response<pb::MemberListResponse>, Status> {
            if request.into_inner().linearizable {
                self.read_index().await?;
            }
            let members = self.backend.members().members.into_values();
            let members = members.map(|member| pb::Member {
                id: member.id,
                name: member.name,
                peer_ur_ls: member.peer_urls,
                client_ur_ls: member.client_urls,
                is_learner: member.is_learner,
            });
            Ok(Response::new(pb::MemberListResponse { header: self.header(0), members: members.collect() }))
        }
    }
    unserved {
        member_add: pb::MemberAddRequest => pb::MemberAddResponse, "MemberAdd";
        member_remove: pb::MemberRemoveRequest => pb::MemberRemoveResponse, "MemberRemove";
        member_update: pb::MemberUpdateRequest => pb::MemberUpdateResponse, "MemberUpdate";
        member_promote: pb::MemberPromoteRequest => pb::MemberPromoteResponse, "MemberPromote";
    }
}
