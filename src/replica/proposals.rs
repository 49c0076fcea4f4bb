//! Requests on their way into the log, as the loop holds them: those of this turn, to be appended
//! together, and those that wait for a leader. Bounded in items and bytes (I10).

use super::inbox::Proposal;
use std::collections::VecDeque;

pub(super) const PARKED_ITEMS_MAX: usize = 8_192;
pub(super) const PARKED_BYTES_MAX: usize = 64 << 20;

/// Requests of this member that wait until a leader can be reached.
#[derive(Default)]
pub(super) struct Parked {
    proposals: VecDeque<Proposal>,
    bytes: usize,
}

impl Parked {
    /// Gives the proposal back when there is no room.
    pub fn push(&mut self, proposal: Proposal) -> Result<(), Proposal> {
        assert!(proposal.from.is_none(), "another member's request waits there");
        if self.proposals.len() >= PARKED_ITEMS_MAX || self.bytes + proposal.data.len() > PARKED_BYTES_MAX {
            return Err(proposal);
        }
        self.bytes += proposal.data.len();
        self.proposals.push_back(proposal);
        Ok(())
    }

    pub fn take(&mut self) -> VecDeque<Proposal> {
        self.bytes = 0;
        std::mem::take(&mut self.proposals)
    }

    pub fn len(&self) -> usize {
        self.proposals.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn what_waits_for_a_leader_is_bounded() {
        let proposal =
            |bytes| Proposal { id: 1, data: Bytes::from(vec![0; bytes]), grows: false, from: None };
        let mut parked = Parked::default();
        for _ in 0..PARKED_ITEMS_MAX {
            parked.push(proposal(1)).unwrap();
        }
        assert!(parked.push(proposal(0)).is_err());
        assert_eq!(parked.take().len(), PARKED_ITEMS_MAX);
        parked.push(proposal(PARKED_BYTES_MAX)).unwrap();
        assert!(parked.push(proposal(1)).is_err());
        parked.take();
        parked.push(proposal(1)).unwrap();
    }
}
