//! The standard health service: a member that runs serves, until rot takes it out (I6).

use super::{
    Backend,
    service::{Api, service},
};
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

impl<B: Backend> Api<B> {
    fn serving(&self) -> ServingStatus {
        match self.backend.out_of_service() {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        }
    }
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
            Ok(Response::new(answer(self.serving())))
        }

        async fn list(&self, _: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
            let statuses = [(WHOLE_SERVER.to_owned(), answer(self.serving()))];
            Ok(Response::new(HealthListResponse { statuses: statuses.into() }))
        }

        type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

        async fn watch(
            &self,
            request: Request<HealthCheckRequest>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            if request.into_inner().service != WHOLE_SERVER {
                let unknown = stream::iter([Ok(answer(ServingStatus::ServiceUnknown))]);
                return Ok(Response::new(Box::pin(unknown.chain(stream::pending()))));
            }
            // Once out of service it stays so; the stream ends with the connection.
            let first = self.serving();
            let taken_out = self.backend.taken_out();
            let last = stream::once(async move {
                taken_out.await;
                Ok(answer(ServingStatus::NotServing))
            });
            let last = last.filter(move |_| std::future::ready(first == ServingStatus::Serving));
            Ok(Response::new(Box::pin(stream::iter([Ok(answer(first))]).chain(last).chain(stream::pending()))))
        }
    }
    unserved {}
}
