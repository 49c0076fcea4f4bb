//! Proposals that wait: request id → the one who waits for its reply.
//!
//! Promises: each is answered once, by apply, by a certain refusal, or by the sweep when its time
//! is over; an answer that says "certainly not proposed" is given only for what was never handed
//! to raft or to another member (`sent`), and what was answered is never sent later. Deadlines are
//! looked at by [`Waiters::sweep`], so a proposal costs no timer. **Never** more than
//! [`WAITING_MAX`].

use super::{ProposeError, inbox::Proposal};
use crate::{
    env::{Moment, Rng},
    machine::Reply,
};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::oneshot;

/// Beyond it proposals are refused with `too many requests` (I10).
pub(super) const WAITING_MAX: usize = 100_000;

/// The reply and the revision after the entry.
pub(super) type Answer = Result<(Reply, i64), ProposeError>;

/// Makes request ids: the member's low 16 bits, then 48 bits counted from a random start, so that
/// no id of an earlier life comes back while its entry may still be applied, whatever the wall
/// clock does.
pub(super) struct RequestIds {
    member: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub fn new(member_id: u64, rng: &Rng) -> RequestIds {
        RequestIds { member: member_id << 48, next: AtomicU64::new(rng.next_u64()) }
    }

    /// Never 0: that means that nobody waits.
    pub fn next(&self) -> u64 {
        loop {
            let id = self.member | self.next.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 16);
            if id != 0 {
                return id;
            }
        }
    }
}

struct Waiting {
    reply: oneshot::Sender<Answer>,
    /// A refused forward is sent again from it.
    proposal: Proposal,
    since: Moment,
    deadline: Moment,
    /// May be in some member's log.
    sent: bool,
}

#[derive(Default)]
struct Held {
    waiting: BTreeMap<u64, Waiting>,
    leader_lost: Option<Moment>,
    closed: bool,
}

/// All that wait on this member.
#[derive(Default)]
pub(super) struct Waiters {
    held: Mutex<Held>,
    /// As many as `held` has waiting; each call's answer looks at it.
    count: AtomicUsize,
}

impl Waiters {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no panic while the waiters are locked")
    }

    /// Registers a request before it is proposed.
    pub fn wait(
        &self,
        proposal: Proposal,
        now: Moment,
        within: Duration,
    ) -> Result<oneshot::Receiver<Answer>, ProposeError> {
        let mut held = self.held();
        if held.closed {
            return Err(ProposeError::Stopped);
        }
        if held.waiting.len() >= WAITING_MAX {
            return Err(ProposeError::TooManyRequests);
        }
        let id = proposal.id;
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { reply, proposal, since: now, deadline: now + within, sent: false };
        let before = held.waiting.insert(id, waiting);
        assert!(before.is_none(), "request id {id:x} is used twice");
        self.count.store(held.waiting.len(), Ordering::Relaxed);
        Ok(answer)
    }

    /// From now on the request may be in a log. `false`: it was answered already and must not be sent.
    pub fn mark_sent(&self, id: u64) -> bool {
        self.held().waiting.get_mut(&id).map(|waiting| waiting.sent = true).is_some()
    }

    /// As [`Waiters::mark_sent`] for many: leaves in `proposals` those of other members and those
    /// that were not answered.
    pub fn mark_all_sent(&self, proposals: &mut Vec<Proposal>) {
        let mut held = self.held();
        proposals.retain(|proposal| {
            proposal.from.is_some()
                || held.waiting.get_mut(&proposal.id).map(|waiting| waiting.sent = true).is_some()
        });
    }

    /// It was certainly not proposed after all; gives the request back for another try.
    pub fn mark_unsent(&self, id: u64) -> Option<Proposal> {
        let mut held = self.held();
        let waiting = held.waiting.get_mut(&id)?;
        waiting.sent = false;
        Some(waiting.proposal.clone())
    }

    pub fn is_waiting(&self, id: u64) -> bool {
        self.held().waiting.contains_key(&id)
    }

    /// Answers `id`; nothing happens if nobody waits any more. `answer` is made only when needed.
    pub fn answer(&self, id: u64, answer: impl FnOnce() -> Answer) {
        let waiting = {
            let mut held = self.held();
            let waiting = held.waiting.remove(&id);
            self.count.store(held.waiting.len(), Ordering::Relaxed);
            waiting
        };
        if let Some(waiting) = waiting {
            // The caller may have gone: then nobody wants the answer.
            let _ = waiting.reply.send(answer());
        }
    }

    /// Answers many at once; nothing happens where nobody waits any more.
    pub fn answer_all(&self, answers: impl Iterator<Item = (u64, Answer)>) {
        let waiting: Vec<(oneshot::Sender<Answer>, Answer)> = {
            let mut held = self.held();
            let waiting = answers
                .filter_map(|(id, answer)| held.waiting.remove(&id).map(|waiting| (waiting.reply, answer)))
                .collect();
            self.count.store(held.waiting.len(), Ordering::Relaxed);
            waiting
        };
        for (reply, answer) in waiting {
            // The caller may have gone: then nobody wants the answer.
            let _ = reply.send(answer);
        }
    }

    pub fn leader_lost(&self, now: Moment) {
        self.held().leader_lost = Some(now);
    }

    /// Answers all whose time is over. `leader`: known at this moment.
    pub fn sweep(&self, now: Moment, leader: bool) {
        let over: Vec<_> = {
            let mut held = self.held();
            let lost = held.leader_lost;
            let ids: Vec<u64> = held
                .waiting
                .iter()
                .filter(|(_, waiting)| waiting.deadline <= now)
                .map(|(id, _)| *id)
                .collect();
            let over: Vec<Waiting> = ids.into_iter().filter_map(|id| held.waiting.remove(&id)).collect();
            self.count.store(held.waiting.len(), Ordering::Relaxed);
            over.into_iter()
                .map(|waiting| {
                    let error = match (waiting.sent, leader) {
                        (false, false) => ProposeError::NoLeader,
                        (true, _) if lost.is_some_and(|lost| lost >= waiting.since) => {
                            ProposeError::TimeoutLeaderLost
                        }
                        _ => ProposeError::Timeout,
                    };
                    (waiting.reply, error)
                })
                .collect()
        };
        for (reply, error) in over {
            let _ = reply.send(Err(error));
        }
    }

    /// Nothing more will be applied here: all get `Stopped`, and so do all who come later.
    pub fn close(&self) {
        let waiting = {
            let mut held = self.held();
            held.closed = true;
            self.count.store(0, Ordering::Relaxed);
            std::mem::take(&mut held.waiting)
        };
        for waiting in waiting.into_values() {
            let _ = waiting.reply.send(Err(ProposeError::Stopped));
        }
    }

    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(7);

    fn proposal(id: u64, data: &'static [u8]) -> Proposal {
        Proposal { id, data: bytes::Bytes::from_static(data), grows: true, from: None }
    }

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    #[test]
    fn ids_carry_the_member_and_start_anywhere() {
        let ids = RequestIds { member: 0x1234_u64 << 48, next: AtomicU64::new(u64::MAX) };
        assert_eq!(ids.next(), 0x1234_ffff_ffff_ffff);
        assert_eq!(ids.next(), 0x1234_0000_0000_0000);
        let zero = RequestIds { member: 0, next: AtomicU64::new(0) };
        assert_eq!(zero.next(), 1, "0 means that nobody waits");
        let (a, b) = (Rng::from_seed([1; 32]), Rng::from_seed([2; 32]));
        assert_ne!(RequestIds::new(7, &a).next(), RequestIds::new(7, &b).next());
    }

    #[test]
    fn an_answer_reaches_its_waiter_once() {
        let waiters = Waiters::default();
        let mut answer = waiters.wait(proposal(1, b""), at(0), WITHIN).unwrap();
        waiters.answer(2, || unreachable!("nobody waits for 2"));
        waiters.answer(1, || Ok((Reply::Empty, 5)));
        waiters.answer(1, || unreachable!("answered already"));
        assert!(matches!(answer.try_recv().unwrap(), Ok((Reply::Empty, 5))));
        assert!(!waiters.mark_sent(1), "what was answered is never sent");
        assert_eq!(waiters.len(), 0);
    }

    #[test]
    fn the_sweep_tells_what_is_certain() {
        let check = |sent: bool, leader: bool, lost: Option<u64>, expected: ProposeError| {
            let waiters = Waiters::default();
            let mut answer = waiters.wait(proposal(1, b""), at(10), WITHIN).unwrap();
            if sent {
                assert!(waiters.mark_sent(1));
            }
            if let Some(lost) = lost {
                waiters.leader_lost(at(lost));
            }
            waiters.sweep(at(16), leader);
            assert!(answer.try_recv().is_err(), "not before its time");
            waiters.sweep(at(17), leader);
            assert_eq!(answer.try_recv().unwrap().unwrap_err(), expected);
        };
        check(false, false, None, ProposeError::NoLeader);
        check(false, true, None, ProposeError::Timeout);
        check(true, true, None, ProposeError::Timeout);
        check(true, true, Some(9), ProposeError::Timeout);
        check(true, false, Some(12), ProposeError::TimeoutLeaderLost);
    }

    #[test]
    fn a_refused_forward_gives_its_request_back() {
        let waiters = Waiters::default();
        let mut answer = waiters.wait(proposal(1, b"request"), at(0), WITHIN).unwrap();
        assert!(waiters.mark_sent(1));
        let back = waiters.mark_unsent(1).unwrap();
        assert_eq!((back.id, &back.data[..], back.grows), (1, &b"request"[..], true));
        waiters.sweep(at(8), false);
        assert_eq!(answer.try_recv().unwrap().unwrap_err(), ProposeError::NoLeader);
        assert!(waiters.mark_unsent(1).is_none());
    }

    #[test]
    fn closing_ends_all_waiting() {
        let waiters = Waiters::default();
        let mut answer = waiters.wait(proposal(1, b""), at(0), WITHIN).unwrap();
        waiters.close();
        assert_eq!(answer.try_recv().unwrap().unwrap_err(), ProposeError::Stopped);
        assert_eq!(waiters.wait(proposal(2, b""), at(0), WITHIN).unwrap_err(), ProposeError::Stopped);
    }
}
