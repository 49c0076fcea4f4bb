//! The retry rules against servers that answer as told.

use super::{balancer::name_of, *};
use crate::{
    env::{
        net::{
            Listener,
            fake::{Act, Fake, Running},
        },
        os,
        timer::within,
    },
    proto::etcdserverpb::*,
};
use std::sync::atomic::Ordering;
use tonic::Code;

fn options() -> ClientOptions {
    ClientOptions {
        call_timeout: Duration::from_secs(3),
        attempt_timeout: Duration::from_millis(800),
        retry_pause: Duration::from_millis(2),
        http: HttpOptions {
            reconnect_backoff: Duration::from_millis(1),
            drain: Duration::from_millis(5),
            ..HttpOptions::default()
        },
        ..ClientOptions::default()
    }
}

/// An address where no one listens.
async fn nobody() -> String {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    listener.local_address().unwrap().to_string()
}

async fn serve(script: &[Act]) -> Running {
    let fake = Fake::default();
    fake.script.lock().unwrap().extend(script.iter().cloned());
    Running::start(fake, "127.0.0.1:0", options().http).await
}

/// A client whose first call goes to the first endpoint.
fn client(endpoints: &[&str]) -> Client {
    let endpoints: Vec<String> = endpoints.iter().map(|address| format!("http://{address}")).collect();
    let client = Client::new(endpoints.clone(), options(), os::env(1));
    let last = name_of(endpoints.last().unwrap());
    while client.0.balancer.next().unwrap().name != last {}
    client
}

fn put() -> PutRequest {
    PutRequest { key: "key".into(), ..Default::default() }
}

fn range() -> RangeRequest {
    RangeRequest { key: "key".into(), ..Default::default() }
}

async fn bounded<F: Future>(work: F) -> F::Output {
    within(Duration::from_secs(20), work).await.expect("bounded")
}

fn calls(server: &Running) -> usize {
    server.fake.calls.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_dead_endpoint_costs_nothing_but_the_try() {
    bounded(async {
        let (dead, live) = (nobody().await, serve(&[]).await);
        let client = client(&[&dead, &live.address.to_string()]);
        for revision in 1..=6 {
            let answer = client.put(put()).await.unwrap();
            assert_eq!(answer.header.unwrap().revision, revision);
            client.range(range()).await.unwrap();
        }
        assert_eq!(calls(&live), 12);
        live.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn calls_take_turns() {
    bounded(async {
        let (one, other) = (serve(&[]).await, serve(&[]).await);
        let client = client(&[&one.address.to_string(), &other.address.to_string()]);
        for _ in 0..10 {
            client.put(put()).await.unwrap();
        }
        assert_eq!((calls(&one), calls(&other)), (5, 5));
        one.stopped().await;
        other.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_is_an_answer() {
    bounded(async {
        let refusal = Status::invalid_argument("etcdserver: key is not provided");
        let (one, other) =
            (serve(&[Act::Refuse(refusal.clone()), Act::Refuse(refusal)]).await, serve(&[]).await);
        let endpoint = one.address.to_string();
        let client = client(&[&endpoint, &other.address.to_string()]);
        let error = client.put(put()).await.unwrap_err();
        assert_eq!((error.status.code(), error.maybe_applied), (Code::InvalidArgument, false));
        assert_eq!(error.to_string(), "etcdserver: key is not provided");
        assert_eq!(error.endpoint, endpoint);
        assert_eq!((calls(&one), calls(&other)), (1, 0));
        one.stopped().await;
        other.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_read_asks_another_member_and_a_change_does_not() {
    bounded(async {
        let timed_out = Act::Refuse(Status::unavailable("etcdserver: request timed out"));
        let (one, other) = (serve(&[timed_out.clone(), timed_out]).await, serve(&[]).await);
        let client = client(&[&one.address.to_string(), &other.address.to_string()]);
        client.range(range()).await.unwrap();
        assert_eq!((calls(&one), calls(&other)), (1, 1));
        let error = client.put(put()).await.unwrap_err();
        assert_eq!((error.status.code(), error.maybe_applied), (Code::Unavailable, true));
        assert_eq!((calls(&one), calls(&other)), (2, 1));
        one.stopped().await;
        other.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_read_leaves_a_member_that_hangs_and_a_change_waits() {
    bounded(async {
        let (one, other) = (serve(&[Act::Hang, Act::Hang]).await, serve(&[]).await);
        let client = client(&[&one.address.to_string(), &other.address.to_string()]);
        client.range(range()).await.unwrap();
        assert_eq!((calls(&one), calls(&other)), (1, 1));
        let error = client.put(put()).await.unwrap_err();
        assert_eq!(error.status.message(), "context deadline exceeded");
        assert_eq!((error.status.code(), error.maybe_applied), (Code::DeadlineExceeded, true));
        assert_eq!((calls(&one), calls(&other)), (2, 1));
        one.stopped().await;
        other.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_lost_under_a_change_leaves_it_in_doubt() {
    bounded(async {
        let (one, other) = (serve(&[Act::Hang]).await, serve(&[]).await);
        let client = client(&[&one.address.to_string(), &other.address.to_string()]);
        let call = tokio::spawn(async move { client.put(put()).await });
        while calls(&one) == 0 {
            crate::env::task::yield_now().await;
        }
        one.stopped().await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.status.code(), error.maybe_applied), (Code::Unavailable, true));
        assert_eq!(calls(&other), 0);
        other.stopped().await;
    })
    .await;
}

#[tokio::test]
async fn no_endpoint_alive_ends_with_the_call() {
    bounded(async {
        let (one, other) = (nobody().await, nobody().await);
        let error = client(&[&one, &other]).put(put()).await.unwrap_err();
        assert_eq!(error.status.message(), "context deadline exceeded");
        assert_eq!((error.status.code(), error.maybe_applied), (Code::DeadlineExceeded, false));
        let cause = std::error::Error::source(&error.status).unwrap().to_string();
        assert!(cause.contains("cannot connect to"), "{cause}");
    })
    .await;
}

#[tokio::test]
async fn endpoints_that_are_none_are_refused_at_once() {
    let options = || ClientOptions { call_timeout: Duration::from_secs(3600), ..options() };
    let check = async |endpoints: &[&str], code: Code| {
        let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        let error = Client::new(endpoints, options(), os::env(1)).put(put()).await.unwrap_err();
        assert_eq!((error.status.code(), error.maybe_applied), (code, false));
    };
    bounded(async {
        check(&[], Code::Unavailable).await;
        check(&["https://a:1"], Code::InvalidArgument).await;
        check(&["a b"], Code::InvalidArgument).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_comes_back_is_found() {
    bounded(async {
        let server = serve(&[]).await;
        let (address, fake) = (server.address.to_string(), server.fake.clone());
        let client = client(&[&address]);
        client.put(put()).await.unwrap();
        server.stopped().await;
        let call = tokio::spawn(async move { client.put(put()).await });
        crate::env::task::yield_now().await;
        let server = Running::start(fake, &address, options().http).await;
        assert_eq!(call.await.unwrap().unwrap().header.unwrap().revision, 2);
        server.stopped().await;
    })
    .await;
}
