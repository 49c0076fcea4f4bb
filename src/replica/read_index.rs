//! Rounds of read indexes: all reads that wait share one.
//!
//! **Invariant (I7).** A read is released by an index that a quorum confirmed after the read
//! arrived: reads that come while a round is under way belong to the next one, and a confirmation
//! counts only if its context was made for this round. Raft drops a request without a word when
//! it has no leader or the leader has committed nothing in its term yet: so a round asks again, and
//! every time with a new context, for an answer to an older one may be as old as the network
//! likes. Contexts are never used twice, in this life or the next.
//!
//! **Never** talks to raft itself: values in, contexts out.

use super::ReadIndexError;
use crate::env::{Moment, Rng};
use std::time::Duration;
use tokio::sync::oneshot;

/// Beyond it a read fails at once (I10).
pub(super) const READS_MAX: usize = 100_000;
/// R14.
const RETRY: Duration = Duration::from_millis(500);

pub(super) type Read = oneshot::Sender<Result<u64, ReadIndexError>>;
type Context = [u8; 24];

struct Round {
    reads: Vec<Read>,
    contexts: Vec<Context>,
    began: Moment,
    /// `None`: it is time to ask.
    asked: Option<Moment>,
    /// Known when the round began; 0 = none.
    leader: u64,
}

/// The round under way and the reads of the next.
pub(super) struct ReadRounds {
    member: u64,
    life: u64,
    counter: u64,
    queued: Vec<Read>,
    round: Option<Round>,
    timeout: Duration,
}

impl ReadRounds {
    /// `timeout`: N3.
    pub fn new(member: u64, rng: &Rng, timeout: Duration) -> ReadRounds {
        assert!(timeout > RETRY, "a round has time for more than one try");
        ReadRounds { member, life: rng.next_u64(), counter: 0, queued: Vec::new(), round: None, timeout }
    }

    /// A read joins the next round.
    pub fn ask(&mut self, read: Read) {
        if self.waiting() >= READS_MAX {
            let _ = read.send(Err(ReadIndexError::Timeout));
            return;
        }
        self.queued.push(read);
    }

    pub fn waiting(&self) -> usize {
        self.queued.len() + self.round.as_ref().map_or(0, |round| round.reads.len())
    }

    /// Whether it is time to ask, whatever the clock says.
    pub fn is_pending(&self) -> bool {
        self.round.as_ref().map_or(!self.queued.is_empty(), |round| round.asked.is_none())
    }

    /// The context to ask raft with now, if it is time: a new round's first, or a retry's.
    pub fn due(&mut self, now: Moment, leader: u64) -> Option<Vec<u8>> {
        if let Some(round) = self.round.take_if(|round| now.since(round.began) >= self.timeout) {
            release(round.reads, Err(ReadIndexError::Timeout));
        }
        match &self.round {
            Some(Round { asked: Some(asked), .. }) if now.since(*asked) < RETRY => return None,
            Some(_) => {
                crate::reached!("read index retried");
            }
            None if self.queued.is_empty() => return None,
            None => {
                let reads = std::mem::take(&mut self.queued);
                self.round = Some(Round { reads, contexts: Vec::new(), began: now, asked: None, leader });
            }
        }
        let context = self.context();
        let round = self.round.as_mut().expect("made above if it was not there");
        round.asked = Some(now);
        round.contexts.push(context);
        Some(context.to_vec())
    }

    fn context(&mut self) -> Context {
        self.counter += 1;
        let mut context = [0; 24];
        context[..8].copy_from_slice(&self.member.to_be_bytes());
        context[8..16].copy_from_slice(&self.life.to_be_bytes());
        context[16..].copy_from_slice(&self.counter.to_be_bytes());
        context
    }

    /// Raft has confirmed `index` for `context`. Releases the round if the context is one of its own.
    pub fn confirmed(&mut self, context: &[u8], index: u64) {
        // Every context of this round was made after all of its reads had come.
        let ours = self.round.take_if(|round| round.contexts.iter().any(|own| own == context));
        if let Some(round) = ours {
            release(round.reads, Ok(index));
        }
    }

    /// A leader is known. Another one than the round began with fails the round (R14); the first
    /// one known is asked at once.
    pub fn leader_is(&mut self, leader: u64) {
        assert!(leader != 0, "a leader is known");
        match &mut self.round {
            Some(round) if round.leader == 0 => {
                round.leader = leader;
                round.asked = None;
            }
            Some(round) if round.leader != leader => {
                let round = self.round.take().expect("just seen");
                release(round.reads, Err(ReadIndexError::LeaderChanged));
            }
            _ => {}
        }
    }

    /// What raft dropped without a word it may take now.
    pub fn ask_again(&mut self) {
        if let Some(round) = &mut self.round {
            round.asked = None;
        }
    }

    /// The member stops.
    pub fn close(&mut self) {
        let round = self.round.take().map(|round| round.reads);
        release(
            round.into_iter().flatten().chain(std::mem::take(&mut self.queued)),
            Err(ReadIndexError::Stopped),
        );
    }
}

fn release(reads: impl IntoIterator<Item = Read>, result: Result<u64, ReadIndexError>) {
    for read in reads {
        // A reader that has gone wants no index.
        let _ = read.send(result.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> ReadRounds {
        ReadRounds::new(7, &Rng::from_seed([1; 32]), Duration::from_secs(7))
    }

    fn at(milliseconds: u64) -> Moment {
        Moment(milliseconds * 1_000_000)
    }

    fn ask(rounds: &mut ReadRounds) -> oneshot::Receiver<Result<u64, ReadIndexError>> {
        let (read, answer) = oneshot::channel();
        rounds.ask(read);
        answer
    }

    #[test]
    fn reads_share_a_round_and_later_ones_wait_for_the_next() {
        let mut rounds = rounds();
        assert_eq!(rounds.due(at(0), 1), None, "nobody waits");
        let (mut a, mut b) = (ask(&mut rounds), ask(&mut rounds));
        let first = rounds.due(at(0), 1).unwrap();
        let mut late = ask(&mut rounds);
        assert_eq!(rounds.due(at(1), 1), None, "one round at a time");
        rounds.confirmed(&first, 10);
        assert_eq!((a.try_recv().unwrap(), b.try_recv().unwrap()), (Ok(10), Ok(10)));
        assert!(late.try_recv().is_err());
        let second = rounds.due(at(1), 1).unwrap();
        rounds.confirmed(&first, 11);
        assert!(late.try_recv().is_err(), "an answer to an earlier round releases nobody");
        rounds.confirmed(&second, 12);
        assert_eq!(late.try_recv().unwrap(), Ok(12));
        assert_eq!(rounds.waiting(), 0);
    }

    #[test]
    fn every_retry_has_a_context_of_its_own() {
        let mut rounds = rounds();
        let mut read = ask(&mut rounds);
        let first = rounds.due(at(0), 1).unwrap();
        assert_eq!(rounds.due(at(499), 1), None);
        let second = rounds.due(at(500), 1).unwrap();
        let third = rounds.due(at(1000), 1).unwrap();
        assert!(first != second && second != third && first != third);
        rounds.confirmed(b"unknown", 4);
        assert!(read.try_recv().is_err());
        // A slow answer to an earlier try of the same round is as good: the read had come before it.
        rounds.confirmed(&second, 5);
        assert_eq!(read.try_recv().unwrap(), Ok(5));
        // Another life of the same member makes other contexts.
        let mut next_life = ReadRounds::new(7, &Rng::from_seed([2; 32]), Duration::from_secs(7));
        let _read = ask(&mut next_life);
        assert_ne!(next_life.due(at(0), 1).unwrap(), first);
    }

    #[test]
    fn a_new_leader_fails_the_round_but_not_the_queue() {
        let mut rounds = rounds();
        let mut pending = ask(&mut rounds);
        let _ = rounds.due(at(0), 1).unwrap();
        let mut queued = ask(&mut rounds);
        rounds.leader_is(1);
        assert!(pending.try_recv().is_err(), "the same leader again");
        rounds.leader_is(2);
        assert_eq!(pending.try_recv().unwrap(), Err(ReadIndexError::LeaderChanged));
        assert!(queued.try_recv().is_err());
        let context = rounds.due(at(1), 2).unwrap();
        rounds.confirmed(&context, 3);
        assert_eq!(queued.try_recv().unwrap(), Ok(3));
    }

    #[test]
    fn the_first_leader_is_asked_at_once() {
        let mut rounds = rounds();
        let mut read = ask(&mut rounds);
        let _ = rounds.due(at(0), 0).unwrap();
        rounds.leader_is(3);
        let early = rounds.due(at(1), 3).unwrap();
        assert_eq!(rounds.due(at(2), 3), None);
        rounds.ask_again();
        let context = rounds.due(at(2), 3).unwrap();
        assert_ne!(context, early);
        rounds.confirmed(&context, 9);
        assert_eq!(read.try_recv().unwrap(), Ok(9));
    }

    #[test]
    fn a_round_that_hangs_ends_in_time() {
        let mut rounds = rounds();
        let mut read = ask(&mut rounds);
        let _ = rounds.due(at(0), 0).unwrap();
        let mut next = ask(&mut rounds);
        let _ = rounds.due(at(7000), 0).unwrap();
        assert_eq!(read.try_recv().unwrap(), Err(ReadIndexError::Timeout));
        rounds.close();
        assert_eq!(next.try_recv().unwrap(), Err(ReadIndexError::Stopped));
    }
}
