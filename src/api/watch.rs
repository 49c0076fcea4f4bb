//! The Watch service; served by a later release.

use super::{
    errors,
    service::{NoStream, service},
};
use quorate_proto::etcdserverpb as pb;
use tonic::{Request, Response, Status, Streaming};

service! {
    impl pb::watch_server::Watch as "Watch" {
        type WatchStream = NoStream<pb::WatchResponse>;

        async fn watch(
            &self,
            _: Request<Streaming<pb::WatchRequest>>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            Err(errors::not_served("Watch.Watch"))
        }
    }
    unserved {}
}
