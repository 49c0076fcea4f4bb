//! The receiving side of peers: what arrives on the peers' listeners.
//!
//! Serves four kinds of connections: raft messages and forwarded requests; snapshots; questions
//! for a hash; and questions about the membership, which are answered from the first moment on, also by a member
//! that is not started yet (so that members of a new cluster do not wait for each other). Every
//! connection has a pulse, and there is a bound on how many there are (I10). **Never** lets into
//! raft what another member than the greeted one says.

use super::{
    frame::{self, FrameReader},
    inbox::{Inbox, Input, NotProposed, NotTaken, Proposal},
    peer_hash,
    peer_hello::{self, PROTOCOL_VERSION},
    pulse::{Pulse, Pulses},
    raft_message::{self, Carrier},
    snapshot_receive::{self, Receiving},
};
use crate::{
    env::{Env, net::Listener, net::Stream, task},
    members::Members,
    store::Store,
};
use quorate_proto::quorate::v1::{Forward, Hello, MemberRecord, Membership, frame::Body, hello::Purpose};
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::io::{AsyncWrite, WriteHalf};

/// Two streams from each peer, some that are dying, and questions.
const CONNECTIONS_MAX: usize = 256;
/// After a failed accept (out of file descriptors), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a started member serves its peers with.
#[derive(Clone)]
pub(super) struct Serving {
    pub member_id: u64,
    pub cluster_id: u64,
    pub store: Store,
    pub inbox: Arc<Inbox>,
    pub receiving: Arc<Receiving>,
}

/// Everything that connections share.
pub(super) struct Host {
    pub env: Env,
    pub pulses: Arc<Pulses>,
    pub beats_max: u32,
    pub snapshot_beats_max: u32,
    pub frame_bytes_max: u32,
    /// What a member that has not started yet says of the cluster.
    pub first_known: Mutex<Members>,
    pub serving: Mutex<Option<Serving>>,
}

impl Host {
    /// Accepts until the member stops.
    pub async fn accept(self: Arc<Self>, listener: Listener) {
        let stop = self.pulses.start(u32::MAX);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.ended() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(_) if self.pulses.len() >= CONNECTIONS_MAX => {
                    tracing::warn!(connections = CONNECTIONS_MAX, "refused a connection: too many");
                }
                Ok((stream, remote)) => drop(task::spawn(self.clone().serve(stream, remote))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a peer's connection");
                    self.env.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn serving(&self) -> Option<Serving> {
        self.serving.lock().expect("no panic while the host is locked").clone()
    }

    fn members(&self, serving: Option<&Serving>) -> Members {
        let first = || self.first_known.lock().expect("no panic while the host is locked").clone();
        match serving {
            // A joiner's store knows no cluster until its first entries came.
            Some(serving) => Members { cluster_id: serving.cluster_id, ..serving.store.members() },
            None => first(),
        }
    }

    async fn serve(self: Arc<Self>, stream: Stream, remote: SocketAddr) {
        let pulse = self.pulses.start(self.beats_max);
        let from = remote.to_string();
        let end = tokio::select! {
            biased;
            end = self.connection(stream, &pulse, &from) => end,
            () = pulse.ended() => return,
        };
        if let Err(error) = end {
            tracing::debug!(%remote, %error, "a peer's connection ended");
        }
    }

    async fn connection(&self, stream: Stream, pulse: &Pulse, remote: &str) -> io::Result<()> {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = FrameReader::new(reader, self.frame_bytes_max);
        let Body::Hello(hello) = reader.expect().await? else {
            return Err(invalid("the first frame is not a greeting"));
        };
        pulse.heard();
        let serving = self.serving();
        let members = self.members(serving.as_ref());
        let own_id = serving.as_ref().map_or(0, |serving| serving.member_id);
        let refused = match &serving {
            None if hello.purpose() != Purpose::Question => "not started yet".to_owned(),
            _ => peer_hello::judge(&hello, own_id, &members),
        };
        if !refused.is_empty() && serving.is_some() {
            peer_hello::log_refusal(&hello, &refused, &members, remote);
        }
        let answer = Hello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: members.cluster_id,
            from: own_id,
            to: hello.from,
            purpose: hello.purpose,
            refused: refused.clone(),
        };
        frame::write(&mut writer, Body::Hello(answer)).await?;
        if !refused.is_empty() {
            return Ok(());
        }
        match (hello.purpose(), serving) {
            (Purpose::Messages, Some(serving)) => {
                messages(&mut reader, &mut writer, hello.from, &serving, pulse).await
            }
            (Purpose::Snapshot, Some(serving)) => {
                // Pages may be slow to come and to install.
                pulse.allow(self.snapshot_beats_max);
                snapshot_receive::receive(&mut reader, &mut writer, hello.from, &serving, pulse).await
            }
            (Purpose::Hash, Some(serving)) => {
                peer_hash::answer(&mut reader, &mut writer, &serving.store, &*self.env.clock, pulse).await
            }
            (Purpose::Question, _) => frame::write(&mut writer, Body::Membership(membership(&members))).await,
            (_, None) => Err(invalid("refused above")),
        }
    }
}

/// Raft messages and forwarded requests of one peer, until it goes away.
async fn messages<R: tokio::io::AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    writer: &mut WriteHalf<Stream>,
    from: u64,
    serving: &Serving,
    pulse: &Pulse,
) -> io::Result<()> {
    while let Some(body) = reader.next().await? {
        pulse.heard();
        match body {
            Body::Raft(message) => {
                let message = raft_message::from_wire(message, Carrier::Stream).map_err(invalid)?;
                if message.from != from || message.to != serving.member_id {
                    return Err(invalid("a message of or for another member"));
                }
                taken(serving.inbox.push(Input::Raft(message)))?;
            }
            Body::Forward(forward) => {
                let Forward { request_id: id, data, grows } = forward;
                let proposal = Proposal { id, data, grows, from: Some(from) };
                // Beyond the bound it is dropped: the client sees a timeout.
                taken(serving.inbox.push(Input::Propose(proposal)))?;
            }
            Body::ForwardRefused(refused) => {
                let why = NotProposed::of(&refused.reason);
                serving.inbox.push_always(Input::ForwardRefused { id: refused.request_id, why });
            }
            Body::Ping(number) => pong(writer, number).await?,
            _ => return Err(invalid("a frame that does not belong on this stream")),
        }
    }
    Ok(())
}

fn taken(pushed: Result<(), NotTaken>) -> io::Result<()> {
    match pushed {
        Ok(()) => Ok(()),
        // Raft asks again; a forwarded request times out.
        Err(NotTaken::Full) => {
            crate::reached!("inbox full");
            Ok(())
        }
        Err(NotTaken::Closed) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the member stops")),
    }
}

async fn pong<W: AsyncWrite + Unpin>(writer: &mut W, number: u64) -> io::Result<()> {
    frame::write(writer, Body::Pong(number)).await
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn membership(members: &Members) -> Membership {
    let record = |member: &crate::members::Member| MemberRecord {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        client_urls: member.client_urls.clone(),
        is_learner: member.is_learner,
    };
    Membership {
        cluster_id: members.cluster_id,
        members: members.members.values().map(record).collect(),
        removed: members.removed.iter().copied().collect(),
    }
}
