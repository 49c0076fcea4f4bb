//! What the peers' records hash to: the question and the answer.
//!
//! A question has a connection of its own, greeted like every other, so that only members of this
//! cluster ask and answer. Who answers gives a sign of life while it hashes; who asks bounds the
//! whole. **Never** judges an answer: that is the corruption check's (`server/corruption.rs`).

use super::{
    Replica,
    frame::{self, FrameReader},
    peer_hello::{self, NotWelcome, PROTOCOL_VERSION},
    peer_set::address,
    pulse::Pulse,
};
use crate::{
    env::{Clock, net},
    mvcc,
    store::{ReadError, Store},
};
use futures::future::join_all;
use quorate_proto::quorate::v1::{
    HashAnswer, HashQuestion, Hello, frame::Body, hash_answer::Refusal, hello::Purpose,
};
use std::{io, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};

/// Signs of life while a hash is taken.
const SIGN_INTERVAL: Duration = Duration::from_millis(250);

/// A member's hash, as HashKV gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHash {
    pub hash: u32,
    pub hash_revision: i64,
    /// -1: never compacted.
    pub compact_revision: i64,
    /// The member's revision when it answered.
    pub revision: i64,
}

/// Why a member gave no hash; none of these is a disagreement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHash {
    #[error("the revision is compacted there")]
    Compacted,
    #[error("the member has not reached the revision")]
    Future,
    #[error("the member cannot read its store")]
    Unreadable,
    #[error("no answer: {0}")]
    Unreachable(String),
}

impl Replica {
    /// Asks every other member, all at once, for the hash of its records up to `revision` (0 = its
    /// newest), each for `within` at most; ascending member id.
    pub async fn peer_hashes(&self, revision: i64, within: Duration) -> Vec<(u64, Result<PeerHash, NoHash>)> {
        let members = self.shared.store.members();
        let asked = members.members.values().filter(|member| member.id != self.shared.member_id).map(
            |member| async move {
                let answer = tokio::select! {
                    biased;
                    answer = self.ask_any(member.id, &member.peer_urls, revision, within) => answer,
                    () = self.shared.env.clock.sleep(within) => Err(NoHash::Unreachable("too late".to_owned())),
                };
                (member.id, answer)
            },
        );
        join_all(asked).await
    }

    /// Asks under each address until one answers.
    async fn ask_any(
        &self,
        peer: u64,
        urls: &[String],
        revision: i64,
        within: Duration,
    ) -> Result<PeerHash, NoHash> {
        let mut last = NoHash::Unreachable("it has no peer URL".to_owned());
        for url in urls {
            match self.ask(peer, &address(url), revision, within).await {
                Ok(answer) => return judged(answer),
                Err(error) => last = NoHash::Unreachable(error.to_string()),
            }
        }
        Err(last)
    }

    async fn ask(
        &self,
        peer: u64,
        address: &str,
        revision: i64,
        within: Duration,
    ) -> Result<HashAnswer, NotWelcome> {
        let stream = net::connect(address, within).await?;
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = FrameReader::new(reader, self.shared.frame_bytes_max);
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: self.shared.cluster_id,
            from: self.shared.member_id,
            to: peer,
            purpose: Purpose::Hash as i32,
            refused: String::new(),
        };
        peer_hello::greet(&mut reader, &mut writer, hello, address).await?;
        frame::write(&mut writer, Body::HashQuestion(HashQuestion { revision })).await?;
        loop {
            match reader.expect().await? {
                Body::Ping(_) => {}
                Body::HashAnswer(answer) => return Ok(answer),
                _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
        }
    }
}

fn judged(answer: HashAnswer) -> Result<PeerHash, NoHash> {
    // A reason of a later release is a reason too.
    match Refusal::try_from(answer.refusal).unwrap_or(Refusal::Unreadable) {
        Refusal::None => Ok(PeerHash {
            hash: answer.hash,
            hash_revision: answer.hash_revision,
            compact_revision: answer.compact_revision,
            revision: answer.revision,
        }),
        Refusal::Compacted => Err(NoHash::Compacted),
        Refusal::Future => Err(NoHash::Future),
        Refusal::Unreadable => Err(NoHash::Unreadable),
    }
}

/// Answers one question of a greeted peer.
pub(super) async fn answer<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    store: &Store,
    clock: &dyn Clock,
    pulse: &Pulse,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Body::HashQuestion(HashQuestion { revision }) = reader.expect().await? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a question for a hash was announced"));
    };
    let mut hashing = std::pin::pin!(store.hash_kv(revision));
    for number in 0.. {
        let hashed = tokio::select! {
            biased;
            hashed = &mut hashing => hashed,
            () = clock.sleep(SIGN_INTERVAL) => {
                pulse.heard();
                frame::write(writer, Body::Ping(number)).await?;
                continue;
            }
        };
        let answer = match hashed {
            Ok(reply) => HashAnswer {
                refusal: Refusal::None as i32,
                hash: reply.hash,
                hash_revision: reply.hash_revision,
                compact_revision: reply.compact_revision,
                revision: reply.header.map_or(0, |header| header.revision),
            },
            Err(error) => HashAnswer { refusal: refusal(&error) as i32, ..HashAnswer::default() },
        };
        return frame::write(writer, Body::HashAnswer(answer)).await;
    }
    unreachable!("numbers do not end")
}

fn refusal(error: &ReadError) -> Refusal {
    match error {
        ReadError::Mvcc(mvcc::Error::Compacted) => Refusal::Compacted,
        ReadError::Mvcc(mvcc::Error::FutureRevision) => Refusal::Future,
        error => {
            tracing::warn!(%error, "cannot hash the records for a peer");
            Refusal::Unreadable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_hash_or_a_reason() {
        let answer = |refusal: Refusal| HashAnswer {
            refusal: refusal as i32,
            hash: 7,
            hash_revision: 5,
            compact_revision: -1,
            revision: 9,
        };
        let hash = PeerHash { hash: 7, hash_revision: 5, compact_revision: -1, revision: 9 };
        assert_eq!(judged(answer(Refusal::None)), Ok(hash));
        assert_eq!(judged(answer(Refusal::Compacted)), Err(NoHash::Compacted));
        assert_eq!(judged(answer(Refusal::Future)), Err(NoHash::Future));
        assert_eq!(judged(answer(Refusal::Unreadable)), Err(NoHash::Unreadable));
        assert_eq!(refusal(&mvcc::Error::Compacted.into()), Refusal::Compacted);
        assert_eq!(refusal(&mvcc::Error::FutureRevision.into()), Refusal::Future);
    }
}
