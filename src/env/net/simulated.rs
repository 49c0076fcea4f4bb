//! The transport on the simulated network: cut links, dead peers, same seed same bytes.

use super::{fake::*, links::Links, *};
use crate::{
    env::{timer, trace},
    proto::etcdserverpb::{kv_client::KvClient, *},
};
use madsim::{
    net::NetSim,
    runtime::{Handle, NodeHandle, Runtime},
};
use std::{future::Future, net::IpAddr, time::Duration};
use tonic::{Code, Request, Status};

const SERVER: &str = "10.0.0.1";
const CLIENT: &str = "10.0.1.1";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One server, one client, and the two directions between them.
struct World {
    handle: Handle,
    server: NodeHandle,
    client: NodeHandle,
    channel: Channel,
}

impl World {
    fn new() -> World {
        let handle = Handle::current();
        NetSim::current().add_dns_record("server", ip(SERVER));
        let server = handle.create_node().name("server").ip(ip(SERVER)).init(serve).build();
        let client = handle.create_node().name("client").ip(ip(CLIENT)).build();
        Links::get().place(client.id(), ip(CLIENT));
        let options = HttpOptions { keepalive_timeout: seconds(2), ..HttpOptions::default() };
        World { handle, server, client, channel: Channel::lazy("server:20079", options) }
    }

    fn cut(&self, cut: bool) {
        let net = NetSim::current();
        for (from, to) in [(SERVER, CLIENT), (CLIENT, SERVER)] {
            Links::get().cut(ip(from), ip(to), cut);
        }
        if cut {
            net.clog_node(self.server.id());
        } else {
            net.unclog_node(self.server.id());
        }
    }

    /// A put from the client's node, and how long it took.
    async fn put(&self, key: &'static str, timeout: Duration) -> (Result<(), Status>, Duration) {
        let channel = self.channel.clone();
        let call = async move {
            let started = timer::now();
            let mut request = Request::new(PutRequest { key: key.into(), ..Default::default() });
            request.set_timeout(timeout);
            let result = KvClient::new(channel).put(request).await.map(drop);
            (result, timer::now() - started)
        };
        self.client.spawn(call).await.unwrap()
    }
}

async fn serve() {
    Running::start(Fake::default(), "0.0.0.0:20079", HttpOptions::default()).await.stopped_by_others().await;
}

/// Runs `work` in a simulation of its own on a fresh thread; returns the trace.
fn simulate<F: Future<Output = ()>>(
    seed: u64,
    work: impl FnOnce(World) -> F + Send + 'static,
) -> trace::Trace {
    #[allow(clippy::disallowed_methods)] // Hash keys are drawn once for each thread.
    let run = std::thread::spawn(move || {
        let mut runtime = Runtime::with_seed_and_config(seed, madsim::Config::default());
        runtime.set_time_limit(seconds(600));
        runtime.add_simulator::<Links>();
        trace::start(true);
        runtime.block_on(async move {
            let world = World::new();
            timer::Sleep::lasting(seconds(1)).await;
            work(world).await;
        });
        trace::take()
    });
    run.join().unwrap()
}

fn trouble_of(result: &Result<(), Status>) -> (Code, Option<Trouble>) {
    let status = result.as_ref().unwrap_err();
    (status.code(), trouble(status))
}

#[test]
fn the_same_seed_sends_the_same_bytes() {
    let run = |seed| {
        simulate(seed, async |world| {
            for _ in 0..20 {
                world.put("key", seconds(1)).await.0.unwrap();
            }
            world.put("hang", seconds(1)).await.0.unwrap_err();
        })
    };
    let (one, again, other) = (run(1), run(1), run(2));
    assert!(one.events > 40, "every write is traced");
    assert_eq!((one.hash, one.lines), (again.hash, again.lines));
    assert_ne!(one.hash, other.hash);
}

#[test]
fn a_connect_waits_for_a_cut_link() {
    simulate(1, async |world| {
        world.cut(true);
        let (result, took) = world.put("key", seconds(30)).await;
        assert_eq!(trouble_of(&result), (Code::Unavailable, Some(Trouble { sent: false })));
        assert!((seconds(2)..seconds(3)).contains(&took), "the connect timed out: {took:?}");
        world.cut(false);
        timer::Sleep::lasting(seconds(1)).await;
        world.put("key", seconds(30)).await.0.unwrap();
    });
}

#[test]
fn a_deadline_passes_on_a_cut_link() {
    simulate(1, async |world| {
        world.put("key", seconds(1)).await.0.unwrap();
        world.cut(true);
        let (result, took) = world.put("key", seconds(1)).await;
        assert_eq!(trouble_of(&result), (Code::DeadlineExceeded, Some(Trouble { sent: true })));
        assert!((seconds(1)..seconds(2)).contains(&took), "{took:?}");
        world.cut(false);
        while world.put("key", seconds(1)).await.0.is_err() {}
    });
}

#[test]
fn keepalive_finds_a_link_that_was_cut() {
    let trace = simulate(1, async |world| {
        world.put("key", seconds(1)).await.0.unwrap();
        world.cut(true);
        let (result, took) = world.put("hang", seconds(60)).await;
        assert_eq!(trouble_of(&result), (Code::Unavailable, Some(Trouble { sent: true })));
        assert!((seconds(2)..seconds(5)).contains(&took), "{took:?}");
    });
    assert_eq!(trace.marks["http2 keepalive gave a connection up"], 1);
}

#[test]
fn the_end_of_a_stream_does_not_cross_a_cut_link() {
    let died = |cut: bool| {
        simulate(1, async move |world| {
            world.put("key", seconds(1)).await.0.unwrap();
            if cut {
                world.cut(true);
            }
            world.handle.kill(world.server.id());
            let (result, took) = world.put("key", seconds(60)).await;
            assert_eq!(trouble_of(&result).0, Code::Unavailable);
            assert_eq!(took > seconds(2), cut, "{took:?}");
        })
    };
    died(false);
    let trace = died(true);
    assert!(trace.marks["the end of a stream waits for a cut link"] > 0);
}

#[test]
fn a_restarted_server_is_found_again() {
    simulate(1, async |world| {
        world.put("key", seconds(1)).await.0.unwrap();
        world.handle.kill(world.server.id());
        world.put("key", seconds(1)).await.0.unwrap_err();
        world.handle.restart(world.server.id());
        timer::Sleep::lasting(seconds(1)).await;
        world.put("key", seconds(1)).await.0.unwrap();
    });
}
