//! The standard health service: a member that runs serves.

use super::service::service;
use futures::{Stream, StreamExt, stream};
use quorate_proto::grpc::health::v1::{
    self as pb, HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
    health_check_response::ServingStatus,
};
use std::pin::Pin;
use tonic::{Request, Response, Status};

/// The name that stands for the server as a whole; the only one that is registered.
const WHOLE_SERVER: &str = "";

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

service! {
    impl pb::health_server::Health as "Health" {
        async fn check(
            &self,
            request: Request<HealthCheckRequest>,
        ) -> Result<Response<HealthCheckResponse>, Status> {
            if request.into_inner().service != WHOLE_SERVER {
                return Err(Status::not_found("unknown service"));
            }
            Ok(Response::new(answer(ServingStatus::Serving)))
        }

        async fn list(&self, _: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
            let statuses = [(WHOLE_SERVER.to_owned(), answer(ServingStatus::Serving))];
            Ok(Response::new(HealthListResponse { statuses: statuses.into() }))
        }

        type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

        async fn watch(
            &self,
            request: Request<HealthCheckRequest>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            let status = if request.into_inner().service == WHOLE_SERVER {
                ServingStatus::Serving
            } else {
                ServingStatus::ServiceUnknown
            };
            // The status never changes while the member lives; the stream ends with the connection.
            Ok(Response::new(Box::pin(stream::iter([Ok(answer(status))]).chain(stream::pending()))))
        }
    }
    unserved {}
}
