//! Membership changes: etcd's numbers in the log, raft-rs's at its door.
//!
//! The one place that maps between them. An update never reaches raft: it changes a member's
//! addresses, not who votes. **Never** changes the members themselves; that is `machine`'s.

use quorate_proto::raftpb;
use raft::eraftpb::{ConfChange, ConfChangeType};

/// What raft must do for an applied change; `None` for an update.
///
/// Panics on a number that is not etcd's: `machine` has applied the change, so it knows it.
pub(super) fn to_raft(change: &raftpb::ConfChange) -> Option<ConfChange> {
    let change_type = match raftpb::ConfChangeType::try_from(change.r#type) {
        Ok(raftpb::ConfChangeType::ConfChangeAddNode) => ConfChangeType::AddNode,
        Ok(raftpb::ConfChangeType::ConfChangeRemoveNode) => ConfChangeType::RemoveNode,
        Ok(raftpb::ConfChangeType::ConfChangeUpdateNode) => return None,
        Ok(raftpb::ConfChangeType::ConfChangeAddLearnerNode) => ConfChangeType::AddLearnerNode,
        Err(_) => panic!("applied conf change of unknown type {}", change.r#type),
    };
    assert!(change.node_id != 0, "a conf change names a member");
    Some(ConfChange { change_type, node_id: change.node_id, ..ConfChange::default() })
}

/// Whether the change takes `member` out of the cluster.
pub(super) fn removes(change: &raftpb::ConfChange, member: u64) -> bool {
    change.r#type == raftpb::ConfChangeType::ConfChangeRemoveNode as i32 && change.node_id == member
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcds_numbers_become_raft_rss() {
        let check = |number: i32, expected: Option<ConfChangeType>| {
            let change = raftpb::ConfChange { r#type: number, node_id: 7, ..Default::default() };
            let mapped = to_raft(&change);
            assert_eq!(mapped.as_ref().map(|change| change.change_type), expected, "etcd's {number}");
            assert!(mapped.is_none_or(|change| change.node_id == 7));
            assert_eq!(removes(&change, 7), number == 1);
            assert!(!removes(&change, 8));
        };
        check(0, Some(ConfChangeType::AddNode));
        check(1, Some(ConfChangeType::RemoveNode));
        check(2, None);
        check(3, Some(ConfChangeType::AddLearnerNode));
        // The numbers differ, which is why this file exists.
        assert_eq!(ConfChangeType::AddLearnerNode as i32, 2);
    }
}
