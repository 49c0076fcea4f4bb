//! The Election service; served by a later release.

use super::{
    errors,
    service::{NoStream, service},
};
use quorate_proto::v3electionpb as pb;
use tonic::{Request, Response, Status};

service! {
    impl pb::election_server::Election as "Election" {
        type ObserveStream = NoStream<pb::LeaderResponse>;

        async fn observe(
            &self,
            _: Request<pb::LeaderRequest>,
        ) -> Result<Response<Self::ObserveStream>, Status> {
            Err(errors::not_served("Election.Observe"))
        }
    }
    unserved {
        campaign: pb::CampaignRequest => pb::CampaignResponse, "Campaign";
        proclaim: pb::ProclaimRequest => pb::ProclaimResponse, "Proclaim";
        leader: pb::LeaderRequest => pb::LeaderResponse, "Leader";
        resign: pb::ResignRequest => pb::ResignResponse, "Resign";
    }
}
