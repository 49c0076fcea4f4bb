//! How members greet each other: who am I, whom do I want, which cluster, which protocol.
//!
//! The first frame in both directions of every connection. A mismatch is refused, with a log line
//! on both sides. **Never** lets a member of another cluster, another protocol or a removed member
//! through.

use super::frame::{self, FrameReader};
use crate::members::Members;
use quorate_proto::quorate::v1::{Hello, frame::Body, hello::Purpose};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// Of the frames and messages between members.
pub(super) const PROTOCOL_VERSION: u32 = 1;

/// The words for another cluster: both sides know them.
const CLUSTER_MISMATCH: &str = "cluster ID mismatch";

/// Why a greeting was not answered with a welcome.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWelcome {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer's word; `peer_cluster` is its cluster.
    #[error("{reason}")]
    Refused { reason: String, peer_cluster: u64 },
    #[error("the first frame is not a greeting")]
    NotAGreeting,
    #[error("peer speaks protocol version {0}, this release {PROTOCOL_VERSION}")]
    Version(u32),
    #[error("{address} is member {found:x}, not {wanted:x}")]
    OtherMember { address: String, wanted: u64, found: u64 },
}

impl NotWelcome {
    /// The other side, or this one, belongs to another cluster.
    pub fn is_cluster_mismatch(&self) -> bool {
        matches!(self, NotWelcome::Refused { reason, .. } if reason == CLUSTER_MISMATCH)
    }
}

/// Says hello and waits for the answer. The caller bounds the time.
pub(super) async fn greet<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    hello: Hello,
    address: &str,
) -> Result<Hello, NotWelcome>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (wanted, purpose) = (hello.to, hello.purpose());
    frame::write(writer, Body::Hello(hello)).await?;
    let Body::Hello(answer) = reader.expect().await? else { return Err(NotWelcome::NotAGreeting) };
    if !answer.refused.is_empty() {
        return Err(NotWelcome::Refused { reason: answer.refused, peer_cluster: answer.cluster_id });
    }
    if answer.protocol_version != PROTOCOL_VERSION {
        return Err(NotWelcome::Version(answer.protocol_version));
    }
    if purpose != Purpose::Question && answer.from != wanted {
        return Err(NotWelcome::OtherMember { address: address.to_owned(), wanted, found: answer.from });
    }
    Ok(answer)
}

/// Judges a peer's greeting: an empty answer is a welcome. `members`: as known here.
pub(super) fn judge(hello: &Hello, own_id: u64, members: &Members) -> String {
    if hello.protocol_version != PROTOCOL_VERSION {
        return format!(
            "protocol version {} is not spoken here, {PROTOCOL_VERSION} is",
            hello.protocol_version
        );
    }
    if hello.purpose() == Purpose::Question {
        return String::new();
    }
    if hello.cluster_id != members.cluster_id {
        return CLUSTER_MISMATCH.to_owned();
    }
    if hello.to != own_id {
        return format!("this is member {own_id:x}, not {:x}", hello.to);
    }
    if hello.from == 0 || hello.from == own_id {
        return format!("{:x} is no peer of this member", hello.from);
    }
    if members.removed.contains(&hello.from) {
        return "the member has been permanently removed from the cluster".to_owned();
    }
    String::new()
}

/// The receiver's log line for a greeting that it refused.
pub(super) fn log_refusal(hello: &Hello, refused: &str, members: &Members, remote: &str) {
    if refused == CLUSTER_MISMATCH {
        tracing::warn!(
            local_member_cluster_id = %format_args!("{:x}", members.cluster_id),
            remote_peer_server_from = %format_args!("{:x}", hello.from),
            remote_peer_cluster_id = %format_args!("{:x}", hello.cluster_id),
            remote_address = remote,
            "request cluster ID mismatch"
        );
    } else {
        tracing::warn!(
            remote_peer_server_from = %format_args!("{:x}", hello.from),
            remote_address = remote,
            error = refused,
            "refused a peer's connection"
        );
    }
}

/// The sender's log line for a greeting that was refused for the cluster's id.
pub(super) fn log_mismatch(peer: u64, local_cluster: u64, peer_cluster: u64) {
    tracing::error!(
        remote_peer_id = %format_args!("{peer:x}"),
        remote_peer_cluster_id = %format_args!("{peer_cluster:x}"),
        local_member_cluster_id = %format_args!("{local_cluster:x}"),
        "request sent was ignored due to cluster ID mismatch"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn members() -> Members {
        Members { cluster_id: 0xc, removed: [9].into(), ..Members::default() }
    }

    fn hello() -> Hello {
        Hello { protocol_version: PROTOCOL_VERSION, cluster_id: 0xc, from: 2, to: 1, ..Hello::default() }
    }

    #[test]
    fn a_greeting_is_welcome_only_when_all_of_it_fits() {
        let check = |change: fn(&mut Hello), expected: &str| {
            let mut hello = hello();
            change(&mut hello);
            assert_eq!(judge(&hello, 1, &members()), expected);
        };
        check(|_| {}, "");
        check(|hello| hello.protocol_version = 2, "protocol version 2 is not spoken here, 1 is");
        check(|hello| hello.cluster_id = 0xd, "cluster ID mismatch");
        check(|hello| hello.to = 3, "this is member 1, not 3");
        check(|hello| hello.from = 0, "0 is no peer of this member");
        check(|hello| hello.from = 1, "1 is no peer of this member");
        check(|hello| hello.from = 9, "the member has been permanently removed from the cluster");
        // A question comes from a member that may know neither itself nor the cluster.
        check(
            |hello| {
                hello.set_purpose(Purpose::Question);
                (hello.cluster_id, hello.from, hello.to) = (0, 0, 0);
            },
            "",
        );
    }

    fn answered(answer: Body) -> Result<Hello, NotWelcome> {
        let mut bytes = bytes::BytesMut::new();
        frame::encode(answer, &mut bytes);
        let mut reader = FrameReader::new(&bytes[..], 1 << 20);
        let mut sent = Vec::new();
        let result = greet(&mut reader, &mut sent, hello(), "n1:2380").now_or_never().unwrap();
        assert!(!sent.is_empty(), "the greeting goes first");
        result
    }

    #[test]
    fn the_answer_is_checked_too() {
        let welcome = Hello { from: 1, to: 2, ..hello() };
        assert_eq!(answered(Body::Hello(welcome.clone())).unwrap(), welcome);
        let refused = Hello { refused: "cluster ID mismatch".into(), cluster_id: 5, ..welcome.clone() };
        assert!(answered(Body::Hello(refused)).unwrap_err().is_cluster_mismatch());
        let other = answered(Body::Hello(Hello { from: 4, ..welcome.clone() })).unwrap_err();
        assert_eq!(other.to_string(), "n1:2380 is member 4, not 1");
        let version = answered(Body::Hello(Hello { protocol_version: 3, ..welcome })).unwrap_err();
        assert_eq!(version.to_string(), "peer speaks protocol version 3, this release 1");
        assert!(matches!(answered(Body::Ping(1)), Err(NotWelcome::NotAGreeting)));
    }
}
