//! The Lease service; served by a later release.

use super::{
    errors,
    service::{NoStream, service},
};
use quorate_proto::etcdserverpb as pb;
use tonic::{Request, Response, Status, Streaming};

service! {
    impl pb::lease_server::Lease as "Lease" {
        type LeaseKeepAliveStream = NoStream<pb::LeaseKeepAliveResponse>;

        async fn lease_keep_alive(
            &self,
            _: Request<Streaming<pb::LeaseKeepAliveRequest>>,
        ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
            Err(errors::not_served("Lease.LeaseKeepAlive"))
        }
    }
    unserved {
        lease_grant: pb::LeaseGrantRequest => pb::LeaseGrantResponse, "LeaseGrant";
        lease_revoke: pb::LeaseRevokeRequest => pb::LeaseRevokeResponse, "LeaseRevoke";
        lease_time_to_live: pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse, "LeaseTimeToLive";
        lease_leases: pb::LeaseLeasesRequest => pb::LeaseLeasesResponse, "LeaseLeases";
    }
}
