//! Snapshots that go out: for each peer that raft wants to bring back, one stream of the store's
//! pages.
//!
//! Promises: the snapshot's index, term and configuration are those of the pages that are sent
//! (raft may have asked for an older one; a newer one serves as well); raft hears of every end, good
//! or bad; one at a time for each peer. A peer that makes no step for long is given up.

use super::{
    frame::{self, FrameReader},
    inbox::Input,
    peer_hello::{self, PROTOCOL_VERSION},
    peer_set::PeerSet,
    pulse::Pulse,
    raft_message,
    snapshot_receive::checksum,
};
use crate::{
    env::{net, task},
    store::Store,
};
use bytes::BytesMut;
use quorate_proto::quorate::v1::{
    Hello, SnapshotBegin, SnapshotEnd, SnapshotPage, frame::Body, hello::Purpose,
};
use raft::eraftpb::Message;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::{io::AsyncWriteExt, sync::mpsc};

/// Jobs that wait; more peers than this at once are told to come again.
const JOBS_MAX: usize = 16;
/// Pages are written in batches of about this size.
const BATCH_BYTES: usize = 256 << 10;

/// The raft loop's side.
pub(super) struct SnapshotDesk {
    jobs: mpsc::Sender<Message>,
    sending: Arc<Mutex<BTreeSet<u64>>>,
}

fn locked(sending: &Mutex<BTreeSet<u64>>) -> MutexGuard<'_, BTreeSet<u64>> {
    sending.lock().expect("no panic while the set is locked")
}

impl SnapshotDesk {
    /// Starts the task that carries jobs out; call it where sockets are served. It ends with the desk.
    pub fn start(peers: Arc<PeerSet>, store: Store) -> SnapshotDesk {
        let (jobs, mut waiting) = mpsc::channel::<Message>(JOBS_MAX);
        let sending = Arc::<Mutex<BTreeSet<u64>>>::default();
        let running = sending.clone();
        drop(task::spawn(async move {
            while let Some(message) = waiting.recv().await {
                drop(task::spawn(carry_out(peers.clone(), store.clone(), message, running.clone())));
            }
        }));
        SnapshotDesk { jobs, sending }
    }

    /// Takes raft's message; `false` if it must be reported as failed at once.
    pub fn send(&self, message: Message) -> bool {
        let to = message.to;
        if !locked(&self.sending).insert(to) {
            return false;
        }
        let taken = self.jobs.try_send(message).is_ok();
        if !taken {
            locked(&self.sending).remove(&to);
        }
        taken
    }
}

async fn carry_out(peers: Arc<PeerSet>, store: Store, message: Message, sending: Arc<Mutex<BTreeSet<u64>>>) {
    let to = message.to;
    let pulse = peers.pulses.start(peers.settings.snapshot_beats_max);
    let sent = tokio::select! {
        biased;
        sent = send(&peers, &store, message, &pulse) => sent,
        () = pulse.ended() => Err("no step for too long".into()),
    };
    match &sent {
        Ok(bytes) => {
            crate::reached!("snapshot sent");
            tracing::info!(to = %format_args!("{to:x}"), bytes, "sent database snapshot to peer");
        }
        Err(error) => tracing::warn!(to = %format_args!("{to:x}"), error, "failed to send database snapshot"),
    }
    locked(&sending).remove(&to);
    peers.inbox.push_always(Input::SnapshotSent { to, delivered: sent.is_ok() });
}

async fn send(peers: &PeerSet, store: &Store, mut message: Message, pulse: &Pulse) -> Result<u64, String> {
    let to = message.to;
    let asked = message.get_snapshot().get_metadata().index;
    let mut snapshot = store.snapshot().await.map_err(|error| error.to_string())?;
    let position = snapshot.position.clone();
    assert!(position.index >= asked, "raft was offered only what a commit holds");
    message.set_snapshot(raft_message::snapshot(
        position.index,
        position.term,
        raft_message::conf_state_from_wire(&position.conf_state),
    ));
    let address = peers.addresses(to).into_iter().next().ok_or("its address is not known")?;
    let stream =
        net::connect(&address, peers.settings.connect_timeout).await.map_err(|error| error.to_string())?;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader, peers.settings.frame_bytes_max);
    let hello = Hello {
        protocol_version: PROTOCOL_VERSION,
        cluster_id: peers.settings.cluster_id,
        from: peers.settings.member_id,
        to,
        purpose: Purpose::Snapshot as i32,
        refused: String::new(),
    };
    peer_hello::greet(&mut reader, &mut writer, hello, &address).await.map_err(|error| error.to_string())?;
    pulse.heard();

    let mut buffer = BytesMut::new();
    let (mut sum, mut sent, mut bytes) = (0, 0_u64, 0_u64);
    let begin = SnapshotBegin { message: Some(raft_message::to_wire(&message)) };
    frame::encode(Body::SnapshotBegin(begin), &mut buffer);
    loop {
        let page: Option<SnapshotPage> = snapshot.next().await.map_err(|error| error.to_string())?;
        let last = page.is_none();
        match page {
            Some(page) => {
                sum = checksum(sum, &page);
                sent += 1;
                bytes += page.payload.len() as u64;
                frame::encode(Body::SnapshotPage(page), &mut buffer);
            }
            None => {
                frame::encode(Body::SnapshotEnd(SnapshotEnd { crc32c: sum, pages: sent }), &mut buffer);
            }
        }
        if last || buffer.len() >= BATCH_BYTES {
            writer.write_all(&buffer).await.map_err(|error| error.to_string())?;
            writer.flush().await.map_err(|error| error.to_string())?;
            pulse.heard();
            buffer.clear();
        }
        if last {
            break;
        }
    }
    loop {
        let body = reader.expect().await.map_err(|error| error.to_string())?;
        pulse.heard();
        match body {
            Body::Ping(_) => {}
            Body::SnapshotAnswer(word) if word.is_empty() => return Ok(bytes),
            Body::SnapshotAnswer(word) => return Err(format!("refused: {word}")),
            _ => return Err("a frame that does not belong in a snapshot".to_owned()),
        }
    }
}
