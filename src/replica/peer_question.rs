//! Questions to peers before this member runs: what do you know of the cluster?
//!
//! All are asked at once, each for a bounded time; who does not answer is left out. **Never**
//! decides what an answer means (see [`super::first_start`]).

use super::{
    frame::FrameReader,
    peer_hello::{self, NotWelcome, PROTOCOL_VERSION},
    peer_set::address,
};
use crate::{
    env::{Env, net},
    members::{Member, Members},
};
use futures::future::join_all;
use quorate_proto::quorate::v1::{Hello, Membership, frame::Body, hello::Purpose};
use std::time::Duration;

/// Asks each of `urls` and returns the answers in their order.
pub(super) async fn ask(env: &Env, urls: &[String], within: Duration, frame_bytes_max: u32) -> Vec<Members> {
    let asked = urls.iter().map(|url| async move {
        let answer = tokio::select! {
            biased;
            answer = question(url, within, frame_bytes_max) => answer,
            () = env.clock.sleep(within) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        };
        answer
            .inspect_err(
                |error| tracing::info!(address = url, %error, "a peer does not answer about the cluster"),
            )
            .ok()
    });
    join_all(asked).await.into_iter().flatten().map(members).collect()
}

async fn question(url: &str, within: Duration, frame_bytes_max: u32) -> Result<Membership, NotWelcome> {
    let address = address(url);
    let stream = net::connect(&address, within).await?;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader, frame_bytes_max);
    let hello =
        Hello { protocol_version: PROTOCOL_VERSION, purpose: Purpose::Question as i32, ..Hello::default() };
    peer_hello::greet(&mut reader, &mut writer, hello, &address).await?;
    match reader.expect().await? {
        Body::Membership(membership) => Ok(membership),
        _ => Err(NotWelcome::NotAGreeting),
    }
}

fn members(membership: Membership) -> Members {
    let member = |record: quorate_proto::quorate::v1::MemberRecord| Member {
        id: record.id,
        peer_urls: record.peer_urls,
        is_learner: record.is_learner,
        name: record.name,
        client_urls: record.client_urls,
    };
    Members {
        cluster_id: membership.cluster_id,
        members: membership.members.into_iter().map(|record| (record.id, member(record))).collect(),
        removed: membership.removed.into_iter().collect(),
    }
}
