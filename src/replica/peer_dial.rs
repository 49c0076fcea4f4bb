//! The sending side of a peer: one long-lived stream, dialled again whenever it breaks.
//!
//! The dialer sends; on its stream the peer answers pings and nothing else. A peer that does not
//! answer for `beats_max` beats is taken for dead: the stream is closed, raft is told, and it is
//! dialled again with growing pauses. A member that restarts is found again under its address, and
//! greeted as whom it must be.

use super::{
    frame::{self, FrameReader},
    inbox::Input,
    peer_hello::{self, NotWelcome, PROTOCOL_VERSION},
    peer_queue::{Outgoing, PeerQueue},
    peer_set::PeerSet,
    pulse::Pulse,
};
use crate::env::net;
use bytes::BytesMut;
use quorate_proto::quorate::v1::{Hello, frame::Body, hello::Purpose};
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A write buffer that grew beyond this is not kept.
const BUFFER_KEPT_BYTES: usize = 2 << 20;

/// One peer as the sender sees it.
pub(super) struct Link {
    peer: u64,
    addresses: Mutex<Vec<String>>,
    pub queue: PeerQueue,
    /// Of the connection that stands or is being made.
    pulse: Mutex<Option<Arc<Pulse>>>,
    closed: AtomicBool,
    pings: AtomicU64,
}

impl Link {
    pub fn new(peer: u64, addresses: Vec<String>) -> Link {
        assert!(!addresses.is_empty(), "a member has a peer URL");
        Link {
            peer,
            addresses: Mutex::new(addresses),
            queue: PeerQueue::default(),
            pulse: Mutex::default(),
            closed: AtomicBool::new(false),
            pings: AtomicU64::new(0),
        }
    }

    fn pulse(&self) -> MutexGuard<'_, Option<Arc<Pulse>>> {
        self.pulse.lock().expect("no panic while the pulse is locked")
    }

    pub fn addresses(&self) -> Vec<String> {
        self.addresses.lock().expect("no panic while the addresses are locked").clone()
    }

    /// The member has other peer URLs now: used from the next dialling on.
    pub fn move_to(&self, addresses: Vec<String>) {
        assert!(!addresses.is_empty(), "a member has a peer URL");
        let before = std::mem::replace(
            &mut *self.addresses.lock().expect("no panic while the addresses are locked"),
            addresses.clone(),
        );
        if before != addresses
            && let Some(pulse) = &*self.pulse()
        {
            pulse.end();
        }
    }

    /// No member any more, or this one stops.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(pulse) = &*self.pulse() {
            pulse.end();
        }
    }

    pub fn ping(&self) {
        if self.queue.is_connected() {
            let number = self.pings.fetch_add(1, Ordering::Relaxed);
            // A full queue: the pulse will tell whether it moves.
            let _ = self.queue.push(Outgoing::Ping(number));
        }
    }

    fn is_closed(&self, peers: &PeerSet) -> bool {
        self.closed.load(Ordering::Acquire) || peers.pulses.is_stopped()
    }

    /// Keeps a connection until closed.
    pub async fn run(self: Arc<Self>, peers: Arc<PeerSet>) {
        let mut pause = PAUSE_MIN;
        let mut quiet = Quiet::default();
        for attempt in 0_usize.. {
            if self.is_closed(&peers) {
                return;
            }
            let pulse = peers.pulses.start(peers.settings.beats_max);
            *self.pulse() = Some(pulse.clone());
            let mut stood = false;
            let end = tokio::select! {
                biased;
                end = self.connection(&peers, &pulse, attempt, &mut stood) => end,
                () = pulse.ended() => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer from the peer").into()),
            };
            *self.pulse() = None;
            peers.broke(self.peer, self.queue.disconnected());
            if self.is_closed(&peers) {
                return;
            }
            if stood {
                pause = PAUSE_MIN;
                quiet = Quiet::default();
            }
            if let Err(error) = end {
                quiet.log(self.peer, &peers, &error);
            }
            peers.env.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn connection(
        &self,
        peers: &PeerSet,
        pulse: &Pulse,
        attempt: usize,
        stood: &mut bool,
    ) -> Result<(), NotWelcome> {
        let address = {
            let addresses = self.addresses();
            addresses[attempt % addresses.len()].clone()
        };
        let stream = net::connect(&address, peers.settings.connect_timeout).await?;
        pulse.heard();
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = FrameReader::new(reader, peers.settings.frame_bytes_max);
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: peers.settings.cluster_id,
            from: peers.settings.member_id,
            to: self.peer,
            purpose: Purpose::Messages as i32,
            refused: String::new(),
        };
        peer_hello::greet(&mut reader, &mut writer, hello, &address).await?;
        pulse.heard();
        *stood = true;
        tracing::info!(
            local_member_id = %format_args!("{:x}", peers.settings.member_id),
            remote_peer_id = %format_args!("{:x}", self.peer),
            address,
            "established a stream to a peer"
        );
        self.queue.connected();
        peers.inbox.push_always(Input::Reachable);
        tokio::select! {
            biased;
            end = listen(&mut reader, pulse) => end?,
            end = self.write(&mut writer) => end?,
        }
        Ok(())
    }

    async fn write<W: AsyncWrite + Unpin>(&self, writer: &mut W) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut buffer = BytesMut::new();
        loop {
            self.queue.take(&mut batch).await;
            for item in batch.drain(..) {
                frame::encode(item.into_body(), &mut buffer);
            }
            writer.write_all(&buffer).await?;
            writer.flush().await?;
            if buffer.capacity() > BUFFER_KEPT_BYTES {
                buffer = BytesMut::new();
            }
            buffer.clear();
        }
    }
}

/// Hears the peer's answers to pings.
async fn listen<R: AsyncRead + Unpin>(reader: &mut FrameReader<R>, pulse: &Pulse) -> io::Result<()> {
    loop {
        match reader.expect().await? {
            Body::Pong(_) => pulse.heard(),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "only answers to pings come back")),
        }
    }
}

/// Says each kind of trouble once for each connection that stood, not at every attempt.
#[derive(Default)]
struct Quiet {
    said: Option<String>,
}

impl Quiet {
    fn log(&mut self, peer: u64, peers: &PeerSet, error: &NotWelcome) {
        let text = error.to_string();
        if self.said.as_ref() == Some(&text) {
            return;
        }
        if let (NotWelcome::Refused { peer_cluster, .. }, true) = (error, error.is_cluster_mismatch()) {
            peer_hello::log_mismatch(peer, peers.settings.cluster_id, *peer_cluster);
        } else {
            tracing::warn!(
                local_member_id = %format_args!("{:x}", peers.settings.member_id),
                remote_peer_id = %format_args!("{peer:x}"),
                error = text,
                "lost the stream to a peer"
            );
        }
        self.said = Some(text);
    }
}
