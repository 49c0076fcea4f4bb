//! Automatic compaction (semantics C8): by period or by number of revisions, on the leader only.
//!
//! Owns when and up to which revision; the compaction itself is an entry like a client's. Time is
//! this node's own monotonic clock. Every member notes revisions, so that a new leader knows what
//! was current one period ago. **Never** compacts on a member that does not lead.

use super::start::Member;
use super::values::{duration_text, parse_duration_ns};
use crate::env::Moment;
use crate::mvcc;
use crate::proto::etcdserverpb::{CompactionRequest, InternalRaftRequest};
use crate::{machine::Refusal, replica::ProposeError};
use std::collections::VecDeque;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// Between two looks in revision mode.
const REVISION_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Shortest time between two looks.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Revisions noted at most; a period that would need more is looked at less often.
const NOTED_MAX: u32 = 20_000;

/// What history is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// What was current this long ago, and later.
    Periodic(Duration),
    /// This many revisions.
    Revisions(i64),
}

impl Retention {
    /// From `--auto-compaction-mode` and `--auto-compaction-retention`; `None`: off.
    ///
    /// # Errors
    /// What is wrong with the two.
    pub fn parse(mode: &str, retention: &str) -> Result<Option<Retention>, String> {
        let number = retention.parse::<i64>().ok().filter(|number| *number >= 0);
        match (mode, number) {
            (_, Some(0)) => Ok(None),
            ("revision", Some(revisions)) => Ok(Some(Retention::Revisions(revisions))),
            ("periodic", Some(hours)) => {
                let hours = u64::try_from(hours).expect("it is not negative");
                Ok(Some(Retention::Periodic(HOUR.saturating_mul(u32::try_from(hours).unwrap_or(u32::MAX)))))
            }
            ("periodic", None) => match parse_duration_ns(retention) {
                Some(0) => Ok(None),
                Some(ns) if ns > 0 => Ok(Some(Retention::Periodic(Duration::from_nanos(ns.unsigned_abs())))),
                _ => Err(format!("error parsing auto-compaction-retention: invalid duration {retention:?}")),
            },
            ("revision", None) => Err(format!(
                "error parsing auto-compaction-retention: {retention:?} is no number of revisions"
            )),
            _ => Err("auto-compaction-retention needs an auto-compaction-mode".to_owned()),
        }
    }

    /// Between two looks.
    fn interval(self) -> Duration {
        match self {
            Retention::Periodic(period) => (period.min(HOUR) / 10).max(period / NOTED_MAX).max(INTERVAL_MIN),
            Retention::Revisions(_) => REVISION_INTERVAL,
        }
    }
}

/// When to compact, and to which revision.
#[derive(Debug)]
struct Schedule {
    retention: Retention,
    /// When what was current at what revision, oldest first.
    noted: VecDeque<(Moment, i64)>,
    /// The last compaction, or the start.
    since: Moment,
    compacted: i64,
}

impl Schedule {
    fn new(retention: Retention, now: Moment) -> Schedule {
        Schedule { retention, noted: VecDeque::new(), since: now, compacted: 0 }
    }

    /// A look at the clock: the revision to compact to, if it is time.
    fn look(&mut self, now: Moment, revision: i64, leads: bool) -> Option<i64> {
        let target = match self.retention {
            Retention::Revisions(kept) => revision - kept,
            Retention::Periodic(period) => {
                self.noted.push_back((now, revision));
                // The newest that is old enough stays in front.
                while self.noted.get(1).is_some_and(|(at, _)| now.since(*at) >= period) {
                    self.noted.pop_front();
                }
                assert!(self.noted.len() <= NOTED_MAX as usize + 2, "what is noted is bounded");
                let (at, target) = *self.noted.front()?;
                // The first after one period, the others as often as that, but every hour at least.
                let due = if self.compacted == 0 { period } else { period.min(HOUR) };
                if now.since(at) < period || now.since(self.since) < due {
                    return None;
                }
                target
            }
        };
        (leads && target > 0 && target > self.compacted).then_some(target)
    }

    fn done(&mut self, now: Moment, revision: i64) {
        (self.since, self.compacted) = (now, revision);
    }
}

impl Member {
    /// Compacts by itself until the member stops.
    pub(super) async fn compact_by_itself(self, retention: Retention) {
        let clock = &self.env.clock;
        let mut schedule = Schedule::new(retention, clock.now());
        let mut stop = self.stop.clone();
        loop {
            let (revision, compacted) = self.replica.store().revisions();
            let status = self.replica.status();
            let leads = status.leader == status.member_id;
            if let Some(target) = schedule.look(clock.now(), revision, leads).filter(|to| *to > compacted) {
                self.compact(&mut schedule, target).await;
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = clock.sleep(retention.interval()) => {}
            }
        }
    }

    async fn compact(&self, schedule: &mut Schedule, revision: i64) {
        let (kind, kept) = match schedule.retention {
            Retention::Periodic(period) => {
                ("periodic", duration_text(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)))
            }
            Retention::Revisions(kept) => ("revision", kept.to_string()),
        };
        let begun = self.env.clock.now();
        tracing::info!(revision, retention = kept, "starting auto {kind} compaction");
        let request = CompactionRequest { revision, physical: false };
        let entry = InternalRaftRequest { compaction: Some(request), ..InternalRaftRequest::default() };
        let outcome = self.replica.propose(entry).await;
        let now = self.env.clock.now();
        match outcome {
            Ok(_) | Err(ProposeError::Refused(Refusal::Mvcc(mvcc::Error::Compacted))) => {
                crate::reached!("compacted automatically");
                schedule.done(now, revision);
                tracing::info!(
                    revision,
                    retention = kept,
                    took = ?now.since(begun),
                    "completed auto {kind} compaction"
                );
            }
            // Tried again at the next look.
            Err(error) => {
                tracing::warn!(revision, retention = kept, %error, "failed auto {kind} compaction");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn retentions_are_read_as_etcd_reads_them() {
        let check = |mode: &str, retention: &str, expected: Result<Option<Retention>, &str>| {
            let parsed = Retention::parse(mode, retention);
            assert_eq!(parsed, expected.map_err(str::to_owned), "{mode} {retention}");
        };
        check("periodic", "0", Ok(None));
        check("revision", "0", Ok(None));
        check("", "0", Ok(None));
        check("periodic", "2", Ok(Some(Retention::Periodic(2 * HOUR))));
        check("periodic", "1m30s", Ok(Some(Retention::Periodic(Duration::from_secs(90)))));
        check("periodic", "0s", Ok(None));
        check("revision", "1000", Ok(Some(Retention::Revisions(1000))));
        let wrong = "error parsing auto-compaction-retention: ";
        check("periodic", "x", Err(&format!("{wrong}invalid duration \"x\"")));
        check("periodic", "-1h", Err(&format!("{wrong}invalid duration \"-1h\"")));
        check("revision", "10m", Err(&format!("{wrong}\"10m\" is no number of revisions")));
        check("", "1", Err("auto-compaction-retention needs an auto-compaction-mode"));
    }

    /// Looks for `looks` intervals at a store that gains `gain` revisions in each; gives (look,
    /// revision) of each compaction.
    fn run(retention: Retention, looks: u64, gain: i64, leads: impl Fn(u64) -> bool) -> Vec<(u64, i64)> {
        let mut schedule = Schedule::new(retention, Moment(0));
        let mut compacted = Vec::new();
        for look in 0..=looks {
            let now = Moment(0) + retention.interval() * u32::try_from(look).unwrap();
            let revision = 1 + gain * i64::try_from(look).unwrap();
            if let Some(target) = schedule.look(now, revision, leads(look)) {
                compacted.push((look, target));
                schedule.done(now, target);
            }
        }
        compacted
    }

    #[test]
    fn by_period_the_first_comes_after_one_period_and_the_others_every_hour_at_least() {
        // One minute: a look every 6 s; after ten of them what was current at the first.
        assert_eq!(
            run(Retention::Periodic(MINUTE), 40, 10, |_| true),
            [(10, 1), (20, 101), (30, 201), (40, 301)]
        );
        // Three hours: a look every 6 minutes, a compaction every hour to three hours ago.
        assert_eq!(run(Retention::Periodic(3 * HOUR), 50, 10, |_| true), [(30, 1), (40, 101), (50, 201)]);
    }

    #[test]
    fn a_store_that_stands_still_is_compacted_once() {
        assert_eq!(run(Retention::Periodic(MINUTE), 100, 0, |_| true), [(10, 1)]);
        assert_eq!(run(Retention::Revisions(5), 10, 0, |_| true), []);
    }

    #[test]
    fn who_does_not_lead_notes_and_waits() {
        assert_eq!(run(Retention::Periodic(MINUTE), 100, 10, |_| false), []);
        assert_eq!(run(Retention::Periodic(MINUTE), 30, 10, |look| look >= 25)[0], (25, 151));
    }

    #[test]
    fn by_revision_a_number_is_kept() {
        assert_eq!(run(Retention::Revisions(25), 4, 10, |_| true), [(3, 6), (4, 16)]);
    }

    #[test]
    fn what_is_noted_is_bounded_whatever_the_period() {
        let retention = Retention::Periodic(Duration::from_secs(250 * 365 * 86_400));
        let mut schedule = Schedule::new(retention, Moment(0));
        for look in 0..2 * u64::from(NOTED_MAX) {
            let now = Moment(look.saturating_mul(u64::try_from(retention.interval().as_nanos()).unwrap()));
            schedule.look(now, 1, true);
        }
        assert!(schedule.noted.len() <= NOTED_MAX as usize + 2);
        assert!(Retention::Periodic(Duration::from_nanos(1)).interval() >= INTERVAL_MIN);
    }

    #[test]
    fn a_clock_that_jumps_compacts_to_what_was_noted_before() {
        let mut schedule = Schedule::new(Retention::Periodic(MINUTE), Moment(0));
        assert_eq!(schedule.look(Moment(0), 5, true), None);
        assert_eq!(schedule.look(Moment(0) + 10 * HOUR, 9, true), Some(5));
    }
}
