//! The beginning of a new cluster's log: one conf change for each initial member, in ascending id,
//! term 1, committed, as in etcd (tests/facts/storage.md, section 2). A later joiner that replays from 1
//! learns the first voters.
//!
//! Every member makes the same bytes from the same initial members. The entries are durable in the
//! log, and applied in the store's first commit, before raft runs: a crash at any point in between
//! leaves a prefix of that, and the next start completes it.

use super::{StartError, persistence::Persistence};
use crate::{
    log::{Log, Opened},
    machine,
    members::Members,
    store::{self, Position},
};
use prost::Message as _;
use raft::{
    Storage,
    eraftpb::{Entry, EntryType, HardState},
};

const TERM: u64 = 1;

fn entries(initial: &Members) -> Vec<Entry> {
    let changes = initial.bootstrap_changes();
    assert!(!changes.is_empty(), "a cluster has a member");
    assert!(changes.is_sorted_by_key(|change| change.node_id), "ascending member id");
    (1..)
        .zip(changes)
        .map(|(index, change)| Entry {
            entry_type: EntryType::EntryConfChange,
            term: TERM,
            index,
            data: change.encode_to_vec().into(),
            ..Entry::default()
        })
        .collect()
}

/// Brings log and store to where raft may start; returns the store's durable position.
/// Takes ticket 1 if it writes the log.
pub(super) async fn complete(
    initial: &Members,
    log: &Log,
    opened: &Opened,
    persistence: &Persistence,
    applier: &mut store::Applier,
    position: Position,
) -> Result<Position, StartError> {
    let entries = entries(initial);
    let count = entries.len() as u64;
    if position.index >= count {
        // The member has lived on from here.
        return Ok(position);
    }
    assert_eq!(opened.first_index, 1, "the log is compacted only below the store's mark (I3)");
    if opened.last_index < count {
        assert_eq!(position.index, 0, "what the log does not hold is not applied");
        let hard_state = HardState { term: TERM, commit: count, ..HardState::default() };
        log.append(&entries, Some(&hard_state), 1);
        persistence.durable(1).await.map_err(StartError::Other)?;
    }
    for entry in entries.iter().skip(position.index as usize) {
        let term = log.term(entry.index).map_err(|error| StartError::Other(error.to_string()))?;
        assert_eq!(term, TERM, "entry {} is the initial cluster's", entry.index);
        let entry =
            machine::Entry { index: entry.index, term: TERM, is_conf_change: true, data: entry.data.clone() };
        let applied = applier.apply(&entry).await?;
        assert!(matches!(applied.conf_change, Some(Some(_))), "an initial member is never refused");
    }
    let position = applier.commit().await?;
    assert_eq!((position.index, position.term), (count, TERM), "the first commit holds the first members");
    Ok(position)
}
