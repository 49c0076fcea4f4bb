//! What others want of the raft loop: one queue, bounded in items and bytes.
//!
//! Promises: pushing never waits; beyond a bound a proposal is refused and a raft message dropped
//! (raft asks again); words that must not be lost (a fetch that ended, a peer that went away) are
//! let in above the bound, for their number is bounded by what they answer. **Never** looks inside.

use super::read_index::Read;
use bytes::Bytes;
use quorate_proto::quorate::v1::SnapshotPage;
use raft::{GetEntriesContext, eraftpb::Message};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::{Notify, oneshot};

pub(super) const INBOX_ITEMS_MAX: usize = 16_384;
pub(super) const INBOX_BYTES_MAX: usize = 64 << 20;

/// A request on its way into the log.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub id: u64,
    pub data: Bytes,
    /// It makes the store larger: refused where there is no space.
    pub grows: bool,
    /// The member that forwarded it; `None`: its waiter is here.
    pub from: Option<u64>,
}

/// Why a request certainly did not enter the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotProposed {
    /// Another leader may take it.
    NotLeader,
    TooMany,
    /// It would grow the store, and log or store have no reserve.
    NoSpace,
}

impl NotProposed {
    /// As members say it to each other: ids of the error table.
    pub fn word(self) -> &'static str {
        match self {
            NotProposed::NotLeader => "ErrNotLeader",
            NotProposed::TooMany => "ErrGRPCRequestTooManyRequests",
            NotProposed::NoSpace => "ErrGRPCNoSpace",
        }
    }

    /// A word that is not known here counts as too many requests: certainly not proposed, not tried again.
    pub fn of(word: &str) -> NotProposed {
        let all = [NotProposed::NotLeader, NotProposed::NoSpace];
        all.into_iter().find(|why| why.word() == word).unwrap_or(NotProposed::TooMany)
    }
}

#[derive(Debug)]
pub(super) enum Input {
    Propose(Proposal),
    /// A forwarded request was certainly not proposed there.
    ForwardRefused {
        id: u64,
        why: NotProposed,
    },
    Read(Read),
    /// From a peer, checked by [`super::raft_message`].
    Raft(Message),
    /// A whole snapshot from a peer, with its message.
    Snapshot {
        message: Message,
        pages: Vec<SnapshotPage>,
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// What became of a snapshot that was sent.
    SnapshotSent {
        to: u64,
        delivered: bool,
    },
    /// A connection to a peer stands: what waited for it may go.
    Reachable,
    Unreachable(u64),
    /// Old entries are in memory; `context` is raft's, if a follower waits for them.
    Fetched {
        low: u64,
        context: Option<GetEntriesContext>,
        result: Result<(), String>,
    },
    /// `answer`: whether this member was the leader and has begun to hand over.
    Transfer {
        target: u64,
        answer: oneshot::Sender<bool>,
    },
    Stop,
}

impl Input {
    fn cost_bytes(&self) -> usize {
        match self {
            Input::Propose(proposal) => 64 + proposal.data.len(),
            Input::Raft(message) => message_bytes(message),
            // A snapshot is bounded by its receiver: one at a time.
            _ => 64,
        }
    }
}

/// About what a message holds on to.
pub(super) fn message_bytes(message: &Message) -> usize {
    128 + message.entries.iter().map(|entry| 64 + entry.data.len()).sum::<usize>()
}

#[derive(Default)]
struct Held {
    inputs: VecDeque<Input>,
    bytes: usize,
    /// Proposals of this member wake nobody: the loop's timer will.
    gathering: bool,
    closed: bool,
}

/// Why an input was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Full,
    Closed,
}

pub(super) struct Inbox {
    held: Mutex<Held>,
    wake: Arc<Notify>,
}

impl Inbox {
    /// `wake` is told of every input, except of what [`Inbox::gather`] names.
    pub fn new(wake: Arc<Notify>) -> Inbox {
        Inbox { held: Mutex::default(), wake }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no panic while the inbox is locked")
    }

    /// Takes an input if there is room.
    pub fn push(&self, input: Input) -> Result<(), NotTaken> {
        let cost = input.cost_bytes();
        let mut held = self.held();
        if held.closed {
            return Err(NotTaken::Closed);
        }
        if held.inputs.len() >= INBOX_ITEMS_MAX || held.bytes + cost > INBOX_BYTES_MAX {
            return Err(NotTaken::Full);
        }
        let waits = held.gathering && matches!(input, Input::Propose(Proposal { from: None, .. }));
        held.bytes += cost;
        held.inputs.push_back(input);
        drop(held);
        if !waits {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// While true, proposals of this member come in without waking the loop, which must be woken
    /// by something else soon.
    pub fn gather(&self, gathering: bool) {
        self.held().gathering = gathering;
    }

    /// Takes an input that must not be lost.
    pub fn push_always(&self, input: Input) {
        let mut held = self.held();
        if held.closed {
            return;
        }
        held.bytes += input.cost_bytes();
        held.inputs.push_back(input);
        drop(held);
        self.wake.notify_one();
    }

    /// Moves everything to `into`, which must be empty.
    pub fn drain(&self, into: &mut VecDeque<Input>) {
        assert!(into.is_empty(), "the last turn took everything");
        let mut held = self.held();
        std::mem::swap(&mut held.inputs, into);
        held.bytes = 0;
    }

    /// Refuses all further inputs and drops what is there; whoever waits for an answer sees its
    /// channel close.
    pub fn close(&self) {
        let dropped = {
            let mut held = self.held();
            held.closed = true;
            held.bytes = 0;
            std::mem::take(&mut held.inputs)
        };
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn proposal(bytes: usize) -> Input {
        Input::Propose(Proposal { id: 1, data: Bytes::from(vec![0; bytes]), grows: false, from: None })
    }

    #[test]
    fn words_of_refusal_are_told_apart() {
        for why in [NotProposed::NotLeader, NotProposed::TooMany, NotProposed::NoSpace] {
            assert_eq!(NotProposed::of(why.word()), why);
        }
        assert_eq!(NotProposed::of("a word of a later release"), NotProposed::TooMany);
    }

    #[test]
    fn the_inbox_is_bounded_in_items_and_bytes() {
        let inbox = Inbox::new(Arc::default());
        for _ in 0..INBOX_ITEMS_MAX {
            inbox.push(proposal(0)).unwrap();
        }
        assert_eq!(inbox.push(proposal(0)), Err(NotTaken::Full));
        inbox.push_always(Input::Unreachable(3));
        let mut taken = VecDeque::new();
        inbox.drain(&mut taken);
        assert_eq!(taken.len(), INBOX_ITEMS_MAX + 1);

        inbox.push(proposal(INBOX_BYTES_MAX / 2)).unwrap();
        assert_eq!(inbox.push(proposal(INBOX_BYTES_MAX / 2)), Err(NotTaken::Full));
        inbox.close();
        assert_eq!(inbox.push(proposal(0)), Err(NotTaken::Closed));
    }
    #[test]
    fn while_it_gathers_only_proposals_of_this_member_let_the_loop_sleep() {
        let wake = Arc::new(Notify::new());
        let inbox = Inbox::new(wake.clone());
        let woken = || wake.notified().now_or_never().is_some();
        inbox.gather(true);
        inbox.push(proposal(1)).unwrap();
        assert!(!woken());
        inbox
            .push(Input::Propose(Proposal { id: 2, grows: false, data: Bytes::new(), from: Some(7) }))
            .unwrap();
        assert!(woken());
        inbox.push(Input::Reachable).unwrap();
        assert!(woken());
        inbox.gather(false);
        inbox.push(proposal(1)).unwrap();
        assert!(woken());
    }
}
