//! Start-up: from a directory and flags to a running member.
//!
//! In order: look (a foreign directory is refused unchanged), lock, learn or read the identity, open
//! store and log, complete the bootstrap, start raft and apply. The peers' listeners answer
//! questions from the beginning and the rest once raft runs. A start that fails leaves no task
//! behind.

use super::{
    Identity, Observer, Options, Replica, StartError,
    applier::ApplyTask,
    apply_queue::{ApplyQueue, Reports},
    bootstrap, first_start, identity,
    inbox::Inbox,
    log_view::LogView,
    peer_listen::{Host, Serving},
    peer_set::{PeerSet, PeerSettings},
    persistence::Persistence,
    pulse::Pulses,
    raft_loop::{Parts, RaftLoop},
    raft_message, rot,
    shared::{Part, Published, Shared, request_timeout},
    snapshot_receive::Receiving,
    snapshot_send::SnapshotDesk,
    waiters::{RequestIds, Waiters},
};
use crate::{
    env::{Env, net::Listener, task},
    log::Log,
    members::Members,
    store::Store,
};
use std::sync::{Arc, Mutex, atomic::AtomicBool};
use tokio::sync::{Notify, oneshot, watch};

/// A frame holds one raft message: entries up to this, or one entry, plus their framing.
pub(super) const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// What framing may add.
const FRAMING_BYTES: u64 = 64 << 10;

pub(super) async fn start(
    env: Env,
    options: Options,
    identity: Identity,
    listeners: Vec<Listener>,
    metrics: Arc<dyn Observer>,
) -> Result<Replica, StartError> {
    assert!(!options.heartbeat_interval.is_zero(), "the flags were checked");
    assert!(options.election_timeout > options.heartbeat_interval, "the flags were checked");
    let least = options.max_request_bytes + MESSAGE_BYTES_MAX + FRAMING_BYTES;
    assert!(u64::from(options.frame_bytes_max) >= least, "a frame holds the largest message: {least} bytes");

    let timing = peer_settings(&options, 0, 0);
    let pulses = Arc::new(Pulses::default());
    let host = Arc::new(Host {
        env: env.clone(),
        pulses: pulses.clone(),
        beats_max: timing.beats_max,
        snapshot_beats_max: timing.snapshot_beats_max,
        frame_bytes_max: options.frame_bytes_max,
        first_known: Mutex::new(Members::default()),
        serving: Mutex::default(),
    });
    let mut accepting = Vec::new();
    let started = start_behind(env, options, identity, &host, listeners, &mut accepting, metrics).await;
    let listeners_ended = async move {
        for listener in accepting {
            // It fails only if the runtime ends, and everything with it.
            let _ = listener.await;
        }
    };
    match &started {
        Ok(replica) => {
            let shared = replica.shared.clone();
            drop(task::spawn(async move {
                listeners_ended.await;
                shared.part_ended(Part::Listeners);
            }));
        }
        Err(_) => {
            pulses.stop();
            listeners_ended.await;
        }
    }
    started
}

fn peer_settings(options: &Options, member_id: u64, cluster_id: u64) -> PeerSettings {
    let (heartbeat, election) = (options.heartbeat_interval, options.election_timeout);
    PeerSettings::new(member_id, cluster_id, heartbeat, election, options.frame_bytes_max)
}

async fn start_behind(
    env: Env,
    options: Options,
    identity: Identity,
    host: &Arc<Host>,
    listeners: Vec<Listener>,
    accepting: &mut Vec<task::JoinHandle<()>>,
    metrics: Arc<dyn Observer>,
) -> Result<Replica, StartError> {
    let (disk, dir) = (&*env.disk, &options.dir);
    identity::refuse_foreign(disk, dir).await?;
    let lock = identity::claim(disk, dir).await?;
    let read = identity::read(disk, dir).await?;
    // A member that has not started yet is asked what it is about to be.
    *host.first_known.lock().expect("no panic while the host is locked") =
        read.as_ref().map_or_else(|| identity.initial.clone(), identity::Known::as_members);
    for listener in listeners {
        accepting.push(task::spawn(host.clone().accept(listener)));
    }
    let known = match read {
        Some(known) => known,
        None => {
            let known = first_start::decide(&env, &options, &identity).await?;
            identity::write(disk, dir, &known).await?;
            known
        }
    };
    let first_known = known.as_members();

    let opened = Store::open(&env, dir.join("store"), options.store.clone(), first_known.clone()).await;
    let (store, mut applier, mut position) = match opened {
        Ok(opened) => opened,
        Err(error) => return Err(rot::in_the_way(disk, dir, error).await),
    };
    rot::look_again(disk, dir, &store).await?;
    let (view, mark) = store.marked_view();
    (options.admission.0)(&mark, view.buckets(&mark).await?).map_err(StartError::NotAdmitted)?;
    drop(view);
    store.observe(metrics.clone());
    let conf_state = raft_message::conf_state_from_wire(&position.conf_state);
    let mark = (position.index, position.term);
    let (log, writer, opened) =
        Log::open(&env, dir.join("log"), options.log.clone(), mark, conf_state).await?;

    let (member_id, cluster_id) = (known.member_id, known.cluster_id);
    let wake = Arc::new(Notify::new());
    let inbox = Arc::new(Inbox::new(wake.clone()));
    let shared = Arc::new(Shared {
        member_id,
        cluster_id,
        request_timeout: request_timeout(options.election_timeout),
        request_bytes_max: options.max_request_bytes,
        frame_bytes_max: options.frame_bytes_max,
        store: store.clone(),
        log_space: log.space(),
        waiters: Arc::new(Waiters::default()),
        ids: RequestIds::new(member_id, &env.rng),
        inbox: inbox.clone(),
        wake: wake.clone(),
        published: Published::default(),
        leader: watch::Sender::new(0),
        stopping: AtomicBool::new(false),
        failure: watch::Sender::new(None),
        out_of_service: watch::Sender::new(None),
        ended: watch::Sender::new(0),
        lock: Mutex::new(Some(lock)),
        env: env.clone(),
    });

    let persistence = Arc::new(Persistence::new(wake.clone()));
    let (said, synced, ended) = (persistence.clone(), metrics.clone(), shared.clone());
    let (begin, loop_to_run) = oneshot::channel::<RaftLoop>();
    // The log's writer shares the raft loop's thread: it only encodes and submits, and a put that
    // nobody else waits beside would pay for each thread that must wake.
    task::dedicated("quorate-raft", async move {
        let log_ended = ended.clone();
        let writing = task::spawn(async move {
            writer.run(move |word| said.said(word), move |seconds| synced.log_synced(seconds)).await;
            log_ended.part_ended(Part::Log);
        });
        // An error means that the start failed: the log's handles are gone then.
        if let Ok(raft_loop) = loop_to_run.await {
            raft_loop.run().await;
            ended.part_ended(Part::Loop);
        }
        // It ends with the last handle of the log, all it was given being durable.
        drop(writing.await);
    });
    if known.new_cluster {
        position =
            bootstrap::complete(&first_known, &log, &opened, &persistence, &mut applier, position).await?;
        log.set_conf_state(raft_message::conf_state_from_wire(&position.conf_state));
    }

    let pulses = host.pulses.clone();
    let peers = Arc::new(PeerSet::new(
        env.clone(),
        peer_settings(&options, member_id, cluster_id),
        inbox.clone(),
        pulses,
        first_known,
    ));
    peers.update(&store.members());
    peers.follow();
    drop(task::spawn(peers.clone().tick()));
    let desk = SnapshotDesk::start(peers.clone(), store.clone());

    let queue = Arc::new(ApplyQueue::default());
    let reports = Arc::new(Reports::new(wake));
    let apply = ApplyTask {
        member_id,
        applier,
        store: store.clone(),
        options: options.store.clone(),
        clock: env.clock.clone(),
        queue: queue.clone(),
        reports: reports.clone(),
        waiters: shared.waiters.clone(),
        metrics,
    };
    let ended = shared.clone();
    task::dedicated("quorate-apply", async move {
        apply.run().await;
        ended.part_ended(Part::Applier);
    });

    let parts = Parts {
        shared: shared.clone(),
        view: LogView::new(log.clone(), (position.index, position.term)),
        log,
        peers,
        desk,
        queue,
        reports,
        persistence,
        position,
    };
    let raft_loop = RaftLoop::new(parts, &options)?;
    if begin.send(raft_loop).is_err() {
        return Err(StartError::Other("the raft thread has ended".to_owned()));
    }
    *host.serving.lock().expect("no panic while the host is locked") = Some(Serving {
        member_id,
        cluster_id,
        store,
        inbox,
        receiving: Arc::new(Receiving::new(env.clock.clone())),
    });
    let replica = Replica { shared };
    drop(task::spawn(rot::watch(replica.clone(), dir.clone(), 2 * options.election_timeout)));
    Ok(replica)
}
