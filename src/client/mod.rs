//! The client library: typed calls on a cluster of endpoints.
//!
//! Owns the [`Client`], which picks an endpoint for each call ([`balancer`])
//! and decides what to do when one fails ([`retry`]). **Promises**: connection
//! trouble is retried on another endpoint, an answer is an answer; a change is
//! never sent twice when the first may have been applied (at most once), and
//! its error says whether it may have been; no call outlasts its timeout.
//! **Never** anything of a server's inside: it speaks the wire's messages only.

mod balancer;
mod calls;
mod retry;
#[cfg(test)]
#[cfg(not(madsim))]
mod tests;

use crate::env::{Env, Moment, net::HttpOptions};
use balancer::{Balancer, Endpoint};
use retry::{Effect, Verdict, judge};
use std::{future::Future, sync::Arc, time::Duration};
use tonic::{Request, Response, Status};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A call and all its retries end within this.
    pub call_timeout: Duration,
    /// A read is tried elsewhere when one endpoint has not answered for this
    /// long. Changes wait out the whole call, for a second try might be a second change.
    pub attempt_timeout: Duration,
    /// When every endpoint has failed, the next round waits about this long,
    /// then twice as long, and so on.
    pub retry_pause: Duration,
    pub retry_pause_max: Duration,
    /// Sent as `token` with each call (tests/facts/services.tsv).
    pub token: Option<String>,
    /// Sends `hasleader`: a member that knows no leader refuses at once.
    pub require_leader: bool,
    pub http: HttpOptions,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            call_timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(2),
            retry_pause: Duration::from_millis(25),
            retry_pause_max: Duration::from_millis(400),
            token: None,
            require_leader: false,
            http: HttpOptions {
                // etcd closes connections that ping more often than every 5 s.
                keepalive_interval: Some(Duration::from_secs(10)),
                ..HttpOptions::default()
            },
        }
    }
}

/// A call that failed for good.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", status.message())]
pub struct Error {
    /// What the server answered, or the trouble on the way to it. A call that ran
    /// out of time while retrying holds the last failure as its source.
    pub status: Status,
    /// The change may have taken effect, now or later. Always false for reads.
    pub maybe_applied: bool,
    /// The endpoint of the last attempt.
    pub endpoint: String,
}

/// A client of one cluster. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    balancer: Balancer,
    options: ClientOptions,
    env: Env,
}

impl Client {
    /// `endpoints`: `host:port` or `http://host:port`. Connects when first used.
    pub fn new(endpoints: Vec<String>, options: ClientOptions, env: Env) -> Client {
        let balancer = Balancer::new(&endpoints, &options.http, &env.rng);
        Client(Arc::new(Inner { balancer, options, env }))
    }

    /// The endpoints as calls name them: `host:port`.
    pub fn endpoints(&self) -> Vec<String> {
        self.0.balancer.endpoints().iter().map(|endpoint| endpoint.name.clone()).collect()
    }

    /// The connection of the endpoint whose turn it is, for calls that have no
    /// method here; they are tried once. `None` without endpoints.
    pub fn channel(&self) -> Option<crate::env::net::Channel> {
        self.0.balancer.next().map(|endpoint| endpoint.channel.clone())
    }

    /// Makes a call on whatever endpoint serves it, trying on as `effect` allows.
    async fn anywhere<T, F>(
        &self,
        effect: Effect,
        attempt: impl Fn(Endpoint, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.persist(effect, || self.0.balancer.next().cloned(), self.0.balancer.endpoints().len(), attempt)
            .await
    }

    /// Makes a call on one endpoint, which need not be of the cluster's list.
    async fn at<T, F>(
        &self,
        effect: Effect,
        endpoint: &str,
        attempt: impl Fn(Endpoint, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let endpoint = self.0.balancer.named(endpoint, &self.0.options.http);
        self.persist(effect, || Some(endpoint.clone()), 1, attempt).await
    }

    /// Tries until there is an answer, a failure that allows no other try, or no time.
    /// `round`: how many attempts fail before a pause.
    async fn persist<T, F>(
        &self,
        effect: Effect,
        mut next: impl FnMut() -> Option<Endpoint>,
        round: usize,
        attempt: impl Fn(Endpoint, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let Inner { options, env, .. } = &*self.0;
        let deadline = env.clock.now() + options.call_timeout;
        let mut pause = options.retry_pause;
        let mut failures = 0;
        loop {
            let Some(endpoint) = next() else {
                let status = Status::unavailable("the client has no endpoints");
                return Err(Error { status, maybe_applied: false, endpoint: String::new() });
            };
            let name = endpoint.name.clone();
            let left = deadline.since(env.clock.now());
            let limit = if effect == Effect::Read { left.min(options.attempt_timeout) } else { left };
            let status = match attempt(endpoint, limit).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            match judge(&status, effect) {
                Verdict::Final { maybe_applied } => {
                    return Err(Error { status, maybe_applied, endpoint: name });
                }
                Verdict::Retry => {
                    tracing::debug!(endpoint = name, %status, "trying again");
                    crate::reached!("a client tried again");
                    failures += 1;
                    if failures % round == 0 {
                        self.pause(pause, deadline).await;
                        pause = (pause * 2).min(options.retry_pause_max);
                    }
                    if env.clock.now() >= deadline {
                        return Err(out_of_time(status, name));
                    }
                }
            }
        }
    }

    /// Waits about `pause`, but not past the deadline.
    async fn pause(&self, pause: Duration, deadline: Moment) {
        let env = &self.0.env;
        // Between half and one and a half, so that clients that failed together do not return together.
        let percent = 50 + env.rng.below(101) as u32;
        let pause = pause * percent / 100;
        env.clock.sleep(pause.min(deadline.since(env.clock.now()))).await;
    }

    /// A request with its deadline and this client's metadata.
    fn request<M>(&self, message: M, limit: Duration) -> Request<M> {
        let mut request = Request::new(message);
        // A deadline of zero would be none to some servers.
        request.set_timeout(limit.max(Duration::from_millis(1)));
        let metadata = request.metadata_mut();
        if let Some(token) = self.0.options.token.as_ref().and_then(|token| token.parse().ok()) {
            metadata.insert("token", token);
        }
        if self.0.options.require_leader {
            metadata.insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
        }
        request
    }
}

/// The call's time ran out between attempts, of which none was, or could have
/// been, a change.
fn out_of_time(last: Status, endpoint: String) -> Error {
    let mut status = Status::deadline_exceeded("context deadline exceeded");
    status.set_source(Arc::new(last));
    Error { status, maybe_applied: false, endpoint }
}
