//! What a member becomes that starts on an empty directory: decided here, once.
//!
//! State `new`: one of the initial members, unless a peer already knows it as started, for then it
//! may have voted. State `existing`: the member of the running cluster that has its peer URLs.
//! **Never** writes.

use super::{Identity, Options, StartError, identity::Known, peer_question};
use crate::{
    env::Env,
    members::{Member, Members},
};

/// Asks the peers and decides.
pub(super) async fn decide(env: &Env, options: &Options, identity: &Identity) -> Result<Known, StartError> {
    let others: Vec<String> = identity
        .initial
        .members
        .values()
        .filter(|member| member.id != identity.member_id)
        .flat_map(|member| member.peer_urls.iter().cloned())
        .collect();
    // As long as an election: who does not answer by then is taken for not started.
    let answers = peer_question::ask(env, &others, options.election_timeout, options.frame_bytes_max).await;
    if identity.new_cluster { begin(identity, &answers) } else { join(identity, &answers) }
}

fn begin(identity: &Identity, answers: &[Members]) -> Result<Known, StartError> {
    if !identity.initial.members.contains_key(&identity.member_id) {
        return Err(StartError::Other(format!(
            "couldn't find local name \"{}\" in the initial cluster configuration",
            identity.name
        )));
    }
    for answer in answers {
        if answer.cluster_id != identity.initial.cluster_id {
            tracing::error!(
                local_member_cluster_id = %format_args!("{:x}", identity.initial.cluster_id),
                remote_peer_cluster_id = %format_args!("{:x}", answer.cluster_id),
                "a peer belongs to another cluster: cluster ID mismatch"
            );
            continue;
        }
        if answer.removed.contains(&identity.member_id) {
            return Err(StartError::Other(
                "the member has been permanently removed from the cluster".to_owned(),
            ));
        }
        if answer.members.get(&identity.member_id).is_some_and(is_started) {
            return Err(StartError::AlreadyBootstrapped(identity.member_id));
        }
    }
    Ok(Known {
        member_id: identity.member_id,
        cluster_id: identity.initial.cluster_id,
        new_cluster: true,
        members: identity.initial.members.values().cloned().collect(),
    })
}

/// A member publishes its client URLs through the log once it runs. (Its name may stand there from
/// the bootstrap on.)
fn is_started(member: &Member) -> bool {
    !member.client_urls.is_empty()
}

/// Whether who answered knows a running cluster: someone was started in it.
fn is_running(members: &Members) -> bool {
    members.members.values().any(is_started)
}

fn join(identity: &Identity, answers: &[Members]) -> Result<Known, StartError> {
    let Some(cluster) = answers.iter().find(|answer| is_running(answer)) else {
        return Err(StartError::Other(
            "cannot fetch cluster info from peer urls: \
             could not retrieve cluster information from the given URLs"
                .to_owned(),
        ));
    };
    let sorted = |member: &Member| {
        let mut urls = member.peer_urls.clone();
        urls.sort();
        urls
    };
    let urls = |members: &Members| {
        let mut all: Vec<_> = members.members.values().map(sorted).collect();
        all.sort();
        all
    };
    let invalid = |why: &str| {
        let member = |member: &Member| {
            format!(
                "{{ID:{:x} PeerURLs:{:?} Name:{} IsLearner:{}}}",
                member.id, member.peer_urls, member.name, member.is_learner
            )
        };
        let members: Vec<String> = cluster.members.values().map(member).collect();
        StartError::Other(format!(
            "error validating peerURLs {{ClusterID:{:x} Members:[{}]}}: {why}",
            cluster.cluster_id,
            members.join(" ")
        ))
    };
    if cluster.members.len() != identity.initial.members.len() {
        return Err(invalid("member count is unequal"));
    }
    if urls(cluster) != urls(&identity.initial) {
        return Err(invalid("unmatched member while checking PeerURLs"));
    }
    let own_urls = identity.initial.members.get(&identity.member_id).map(sorted).ok_or_else(|| {
        StartError::Other(format!(
            "couldn't find local name \"{}\" in the initial cluster configuration",
            identity.name
        ))
    })?;
    let own =
        cluster.members.values().find(|member| sorted(member) == own_urls).expect("the lists are equal");
    if is_started(own) {
        return Err(StartError::AlreadyBootstrapped(own.id));
    }
    Ok(Known {
        member_id: own.id,
        cluster_id: cluster.cluster_id,
        new_cluster: false,
        members: cluster.members.values().cloned().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members by id; those with client URLs are started.
    fn members(cluster_id: u64, list: &[(u64, &str)]) -> Members {
        let member = |id: u64, client: &str| Member {
            id,
            name: format!("n{}", id % 10),
            peer_urls: vec![format!("http://n{}:2380", id % 10)],
            client_urls: if client.is_empty() { Vec::new() } else { vec![format!("http://{client}:2379")] },
            ..Member::default()
        };
        Members {
            cluster_id,
            members: list.iter().map(|(id, name)| (*id, member(*id, name))).collect(),
            ..Members::default()
        }
    }

    fn identity(new_cluster: bool) -> Identity {
        let initial = members(0xc, &[(1, ""), (2, ""), (3, "")]);
        Identity { name: "n1".to_owned(), member_id: 1, initial, new_cluster }
    }

    #[test]
    fn a_new_member_begins_unless_a_peer_knows_better() {
        let check = |answers: &[Members], expected: Result<u64, &str>| {
            let outcome = begin(&identity(true), answers);
            assert_eq!(
                outcome
                    .map(|known| known.member_id)
                    .map_err(|error| error.to_string())
                    .as_ref()
                    .map_err(String::as_str)
                    .copied(),
                expected
            );
        };
        check(&[], Ok(1));
        check(&[members(0xc, &[(1, ""), (2, ""), (3, "")])], Ok(1));
        check(&[members(0xc, &[(1, ""), (2, "n2")])], Ok(1));
        check(
            &[members(0xc, &[(2, "n2")]), members(0xc, &[(1, "n1")])],
            Err("member 1 has already been bootstrapped"),
        );
        // Another cluster's word counts for nothing.
        check(&[members(0xd, &[(1, "n1")])], Ok(1));
        let removed = Members { removed: [1].into(), ..members(0xc, &[]) };
        check(&[removed], Err("the member has been permanently removed from the cluster"));
    }

    #[test]
    fn a_joiner_takes_its_ids_from_the_cluster() {
        let running = members(0xd, &[(11, ""), (12, "n2"), (13, "n3")]);
        let known = join(&identity(false), &[members(0xc, &[(1, "")]), running.clone()]).unwrap();
        assert_eq!((known.member_id, known.cluster_id, known.new_cluster), (11, 0xd, false));
        assert_eq!(known.members.len(), 3);
    }

    #[test]
    fn a_joiner_is_refused_with_etcds_words() {
        let check = |answers: &[Members], begins: &str, ends: &str| {
            let error = join(&identity(false), answers).unwrap_err().to_string();
            assert!(error.starts_with(begins) && error.ends_with(ends), "{error}");
        };
        let nobody = "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs";
        check(&[], nobody, "");
        check(&[members(0xc, &[(1, ""), (2, ""), (3, "")])], nobody, "");
        let begins = "error validating peerURLs {ClusterID:d Members:[";
        check(&[members(0xd, &[(12, "n2"), (13, "n3")])], begins, ": member count is unequal");
        check(
            &[members(0xd, &[(14, ""), (12, "n2"), (13, "n3")])],
            begins,
            ": unmatched member while checking PeerURLs",
        );
        check(
            &[members(0xd, &[(11, "n1"), (12, "n2"), (13, "n3")])],
            "member b has already been bootstrapped",
            "",
        );
    }
}
