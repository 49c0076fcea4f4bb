//! All small state in one message: the mark that ends a commit of the store (I3).

use super::State;
use crate::members::Members;
use quorate_proto::quorate::v1::{Alarm, StoreMark};

impl State {
    /// The mark that must stand in the same commit as every page taken so far (I3).
    pub fn mark(&self) -> StoreMark {
        let alarm = |&(member_id, alarm): &(u64, i32)| Alarm { member_id, alarm };
        let (revision, compacted) = self.revisions();
        StoreMark {
            applied_index: self.applied.0,
            applied_term: self.applied.1,
            conf_state: Some(self.members.conf_state()),
            revision,
            compacted,
            membership: Some(self.members.to_membership()),
            cluster_version: self.cluster_version.clone(),
            alarms: self.alarms.iter().map(alarm).collect(),
            downgrade_target: self.downgrade_target.clone(),
            bucket_pages: self.bucket_pages.clone(),
            // The store's business.
            lineage: 0,
        }
    }

    /// Takes the last mark of a store, before its records (see [`crate::mvcc::Mvcc::load_mark`]).
    pub fn load_mark(&mut self, mark: &StoreMark) -> Result<(), String> {
        let membership = mark.membership.as_ref().ok_or("mark without members")?;
        let members = Members::from_membership(membership);
        if mark.conf_state.as_ref() != Some(&members.conf_state()) {
            return Err("mark whose configuration is not that of its members".to_owned());
        }
        self.mvcc.load_mark(mark.revision, mark.compacted)?;
        self.applied = (mark.applied_index, mark.applied_term);
        self.members = members;
        self.cluster_version.clone_from(&mark.cluster_version);
        self.alarms = mark.alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect();
        self.downgrade_target.clone_from(&mark.downgrade_target);
        self.bucket_pages.clone_from(&mark.bucket_pages);
        Ok(())
    }
}
