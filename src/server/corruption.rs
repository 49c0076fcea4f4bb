//! Whether the members hold the same records: at start, now and then, and after compactions.
//!
//! Hashes are compared only at equal (hash revision, compact revision); a member that gives none is
//! left out. Whoever contradicts a majority of the members is named; without a majority nobody knows
//! who is right, and the alarm names no member. The alarm CORRUPT goes through the log and is obeyed
//! at apply (X3). **Never** raised for rot: that is one member's own trouble, told by its store (I6).

use super::start::{Member, StartError, hex};
use crate::proto::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, alarm_request::AlarmAction};
use crate::replica::{PeerHash, Replica};
use std::collections::BTreeMap;
use std::time::Duration;

/// In an alarm: which member is wrong is not known.
const NOBODY: u64 = 0;

/// How often members are compared; zero = never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Before clients are served (feature `InitialCorruptCheck`).
    pub at_start: bool,
    /// `--corrupt-check-time`.
    pub interval: Duration,
    /// `--compact-hash-check-time`, if the feature `CompactHashCheck` is on.
    pub compact_hash_interval: Duration,
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// These many members, the asking one included, have the same hash; nobody has another.
    Agree(usize),
    /// These contradict the majority; empty: there is no majority.
    Disagree(Vec<u64>),
}

/// Judges the hashes of members, the asking one first. `members`: how many the cluster has.
fn judge(own: (u64, PeerHash), others: &[(u64, PeerHash)], members: usize) -> Verdict {
    let at = |hash: &PeerHash| (hash.hash_revision, hash.compact_revision);
    let mut by_hash: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    by_hash.entry(own.1.hash).or_default().push(own.0);
    for (member, hash) in others.iter().filter(|(_, hash)| at(hash) == at(&own.1)) {
        by_hash.entry(hash.hash).or_default().push(*member);
    }
    if by_hash.len() == 1 {
        return Verdict::Agree(by_hash.into_values().map(|agreed| agreed.len()).sum());
    }
    let majority = by_hash.iter().find(|(_, agreed)| agreed.len() > members / 2).map(|(hash, _)| *hash);
    Verdict::Disagree(match majority {
        None => Vec::new(),
        Some(right) => {
            let wrong = by_hash.into_iter().filter(|(hash, _)| *hash != right);
            let mut wrong: Vec<u64> = wrong.flat_map(|(_, members)| members).collect();
            wrong.sort_unstable();
            wrong
        }
    })
}

/// This member's own hash up to `revision` (0 = now); `None` if it cannot be had, which is logged.
async fn own_hash(replica: &Replica, revision: i64) -> Option<PeerHash> {
    match replica.store().hash_kv(revision).await {
        Ok(reply) => Some(PeerHash {
            hash: reply.hash,
            hash_revision: reply.hash_revision,
            compact_revision: reply.compact_revision,
            revision: reply.header.map_or(0, |header| header.revision),
        }),
        Err(error) => {
            tracing::warn!(revision, %error, "failed to hash the records for a corruption check");
            None
        }
    }
}

/// Compares `own` with what the others say at the same revision.
async fn compare(replica: &Replica, own: PeerHash, within: Duration) -> Verdict {
    let answers = replica.peer_hashes(own.hash_revision, within).await;
    let mut hashes = Vec::new();
    for (member, answer) in answers {
        match answer {
            Ok(hash) => hashes.push((member, hash)),
            Err(error) => tracing::info!(
                "remote-peer-id" = hex(member),
                "hash-revision" = own.hash_revision,
                %error,
                "a member is left out of a corruption check"
            ),
        }
    }
    let own_id = replica.status().member_id;
    let members = replica.store().members().members.len();
    let verdict = judge((own_id, own), &hashes, members);
    if let Verdict::Disagree(wrong) = &verdict {
        crate::reached!("members disagree about a hash");
        let all = hashes.iter().copied().chain([(own_id, own)]);
        let hashes: Vec<String> = all.map(|(member, hash)| format!("{member:x}={}", hash.hash)).collect();
        let wrong: Vec<String> = wrong.iter().map(|member| hex(*member)).collect();
        tracing::error!(
            "hash-revision" = own.hash_revision,
            "compact-revision" = own.compact_revision,
            hashes = ?hashes,
            wrong = ?wrong,
            "members hold different records at the same revision"
        );
    }
    verdict
}

/// Before clients are served: refuses a member that the others contradict.
pub(super) async fn at_start(replica: &Replica, within: Duration) -> Result<(), StartError> {
    let own_id = replica.status().member_id;
    tracing::info!("local-member-id" = hex(own_id), "starting initial corruption check");
    let Some(own) = own_hash(replica, 0).await else {
        return Err(StartError::Corrupt("its records cannot be hashed".to_owned()));
    };
    match compare(replica, own, within).await {
        Verdict::Disagree(wrong) if wrong.is_empty() || wrong.contains(&own_id) => {
            Err(StartError::Corrupt(format!(
                "member {own_id:x} holds other records than its peers at revision {} (compacted at {}): hash {}",
                own.hash_revision, own.compact_revision, own.hash
            )))
        }
        Verdict::Disagree(_) | Verdict::Agree(_) => {
            tracing::info!(
                "local-member-id" = hex(own_id),
                "initial corruption checking passed; no corruption"
            );
            Ok(())
        }
    }
}

impl Member {
    /// Compares what is current, on the leader, every `interval` until the member stops.
    pub(super) async fn compare_now_and_then(self, interval: Duration) {
        while self.pause(interval).await {
            if !self.leads() {
                continue;
            }
            // What follows is at or behind everything that was acknowledged.
            if let Err(error) = self.replica.read_index().await {
                tracing::warn!(%error, "failed to begin a corruption check");
                continue;
            }
            let Some(own) = own_hash(&self.replica, 0).await else { continue };
            let verdict = compare(&self.replica, own, self.config.proposal_timeout()).await;
            tracing::info!("hash-revision" = own.hash_revision, verdict = ?verdict, "periodic corruption check is done");
            self.alarm(verdict).await;
        }
    }

    /// Compares the hashes that compactions left, on the leader, newest first, until one is confirmed by
    /// all; what is confirmed is not compared again.
    pub(super) async fn compare_compactions(self, interval: Duration) {
        let mut confirmed = 0;
        while self.pause(interval).await {
            if !self.leads() {
                continue;
            }
            let hashes = self.replica.store().compaction_hashes();
            let members = self.replica.store().members().members.len();
            for (hash_revision, hash, compact_revision) in hashes.into_iter().rev() {
                if hash_revision <= confirmed {
                    break;
                }
                let own = PeerHash {
                    hash,
                    hash_revision,
                    compact_revision,
                    revision: self.replica.store().revisions().0,
                };
                let verdict = compare(&self.replica, own, self.config.proposal_timeout()).await;
                if verdict == Verdict::Agree(members) {
                    crate::reached!("compaction hash confirmed by all");
                    confirmed = own.hash_revision;
                    tracing::info!(
                        "compact-revision" = own.hash_revision,
                        "compaction hash is the same on every member"
                    );
                    break;
                }
                self.alarm(verdict).await;
            }
        }
    }

    /// Waits; false when the member stops.
    async fn pause(&self, interval: Duration) -> bool {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => false,
            () = self.env.clock.sleep(interval) => true,
        }
    }

    fn leads(&self) -> bool {
        let status = self.replica.status();
        status.leader == status.member_id
    }

    /// Raises what a verdict calls for and is not on yet.
    async fn alarm(&self, verdict: Verdict) {
        let Verdict::Disagree(mut wrong) = verdict else { return };
        if wrong.is_empty() {
            wrong.push(NOBODY);
        }
        let on = self.replica.store().alarms();
        for member_id in wrong {
            let alarm = AlarmType::Corrupt as i32;
            if on.contains(&(member_id, alarm)) {
                continue;
            }
            let request = AlarmRequest { action: AlarmAction::Activate as i32, member_id, alarm };
            let entry = InternalRaftRequest { alarm: Some(request), ..InternalRaftRequest::default() };
            match self.replica.propose(entry).await {
                Ok(_) => crate::reached!("alarm CORRUPT was raised"),
                // The next comparison tries again.
                Err(error) => tracing::warn!(%error, "failed to raise the alarm CORRUPT"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(hash: u32) -> PeerHash {
        PeerHash { hash, hash_revision: 10, compact_revision: 5, revision: 12 }
    }

    #[test]
    fn the_minority_is_named_and_without_a_majority_nobody() {
        let check = |own: u32, others: &[(u64, u32)], members: usize, expected: Verdict| {
            let others: Vec<_> = others.iter().map(|(member, value)| (*member, hash(*value))).collect();
            assert_eq!(judge((1, hash(own)), &others, members), expected, "{own} {others:?}");
        };
        check(7, &[], 1, Verdict::Agree(1));
        check(7, &[(2, 7), (3, 7)], 3, Verdict::Agree(3));
        check(7, &[(2, 7)], 3, Verdict::Agree(2));
        check(7, &[(2, 7), (3, 8)], 3, Verdict::Disagree(vec![3]));
        check(8, &[(2, 7), (3, 7)], 3, Verdict::Disagree(vec![1]));
        check(7, &[(2, 8)], 3, Verdict::Disagree(vec![]));
        check(7, &[(2, 8)], 2, Verdict::Disagree(vec![]));
        check(7, &[(2, 8), (3, 9)], 3, Verdict::Disagree(vec![]));
        check(7, &[(2, 7), (3, 7), (4, 8), (5, 9)], 5, Verdict::Disagree(vec![4, 5]));
        check(7, &[(2, 7), (4, 8)], 5, Verdict::Disagree(vec![]));
    }

    #[test]
    fn only_equal_revisions_are_compared() {
        let others = [
            (2, PeerHash { hash: 8, compact_revision: 6, ..hash(0) }),
            (3, PeerHash { hash: 8, hash_revision: 9, ..hash(0) }),
        ];
        assert_eq!(judge((1, hash(7)), &others, 3), Verdict::Agree(1));
        // How far a member is besides does not matter.
        let ahead = [(2, PeerHash { revision: 99, ..hash(7) })];
        assert_eq!(judge((1, hash(7)), &ahead, 3), Verdict::Agree(2));
    }
}
