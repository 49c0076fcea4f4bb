//! A clock for each node: it starts anywhere, drifts, and jumps forward; its wall time goes anywhere.
//!
//! Promises: monotonic time never falls, across restarts too; a sleeper
//! notices a jump at once. **Never** asked by the oracles: they use [`crate::time`].

use crate::time::{Until, ns};
use futures::FutureExt;
use futures::future::BoxFuture;
use madsim::{plugin::Simulator, task::NodeId, time::TimeHandle};
use quorate::env::{Clock, Moment};
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Local time as a line over true time, and who waits for it.
#[derive(Debug, Default)]
struct NodeClock {
    true_base_ns: u64,
    local_base_ns: u64,
    /// Parts in a million that this clock runs fast (or slow, below 0).
    drift_ppm: i64,
    /// Wall time minus local time.
    wall_offset_ns: i128,
    /// Rises whenever the line changes.
    generation: u64,
    sleepers: BTreeMap<u64, Waker>,
    sleeper_last: u64,
}

impl NodeClock {
    fn local(&self, true_ns: u64) -> u64 {
        let passed = i128::from(true_ns.saturating_sub(self.true_base_ns));
        let bent = passed + passed * i128::from(self.drift_ppm) / 1_000_000;
        self.local_base_ns + u64::try_from(bent).expect("drift is far below 1,000,000 ppm")
    }

    /// True time at which local time will be `at`.
    fn true_at(&self, at: u64, true_ns: u64) -> u64 {
        let left = at.saturating_sub(self.local(true_ns));
        let bent = u128::from(left) * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) as u128;
        // One more, so that rounding never wakes a sleeper early.
        true_ns.saturating_add(u64::try_from(bent).unwrap_or(u64::MAX)).saturating_add(1)
    }

    fn rebase(&mut self, true_ns: u64) {
        self.local_base_ns = self.local(true_ns);
        self.true_base_ns = true_ns;
        self.generation += 1;
        for (_, waker) in std::mem::take(&mut self.sleepers) {
            waker.wake();
        }
    }
}

/// All clocks of a run.
pub struct ClockSim {
    time: TimeHandle,
    nodes: Mutex<BTreeMap<NodeId, NodeClock>>,
}

impl Simulator for ClockSim {
    fn new(_: &madsim::rand::GlobalRng, time: &TimeHandle, _: &madsim::Config) -> Self {
        ClockSim { time: time.clone(), nodes: Mutex::default() }
    }

    fn create_node(&self, id: NodeId) {
        // 2024-01-01; the plan moves it.
        let clock = NodeClock { wall_offset_ns: 1_704_067_200_000_000_000, ..NodeClock::default() };
        self.locked().insert(id, clock);
    }
}

impl ClockSim {
    pub fn get() -> Arc<ClockSim> {
        madsim::plugin::simulator()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<NodeId, NodeClock>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, id: NodeId, act: impl FnOnce(&mut NodeClock, u64) -> T) -> T {
        let now = ns(&self.time);
        act(self.locked().get_mut(&id).expect("madsim made a clock for every node"), now)
    }

    /// Monotonic and wall time leap forward.
    pub fn jump(&self, id: NodeId, by: Duration) {
        self.with(id, |clock, now| {
            clock.rebase(now);
            clock.local_base_ns += u64::try_from(by.as_nanos()).expect("a jump is short");
        });
    }

    /// Wall time leaps either way.
    pub fn jump_wall(&self, id: NodeId, by_ns: i64) {
        self.with(id, |clock, _| clock.wall_offset_ns += i128::from(by_ns));
    }

    pub fn set_drift(&self, id: NodeId, ppm: i64) {
        assert!(ppm.abs() < 500_000, "a clock at half or double speed is broken, not drifting");
        self.with(id, |clock, now| {
            clock.rebase(now);
            clock.drift_ppm = ppm;
        });
    }
}

/// A node's clock.
pub struct SimClock {
    sim: Arc<ClockSim>,
    node: NodeId,
}

impl SimClock {
    /// The clock of the node that the calling task runs on.
    pub fn current() -> SimClock {
        SimClock { sim: ClockSim::get(), node: madsim::plugin::node() }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        Moment(self.sim.with(self.node, |clock, now| clock.local(now)))
    }

    fn wall(&self) -> Duration {
        let ns = self.sim.with(self.node, |clock, now| i128::from(clock.local(now)) + clock.wall_offset_ns);
        Duration::from_nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        LocalSleep { sim: self.sim.clone(), node: self.node, at, id: None, timer: None }.boxed()
    }
}

/// Ends when its node's clock says so.
struct LocalSleep {
    sim: Arc<ClockSim>,
    node: NodeId,
    at: Moment,
    /// Its place among the sleepers.
    id: Option<u64>,
    /// The timer, and the generation of the clock that it was made for.
    timer: Option<(u64, Until)>,
}

impl Future for LocalSleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let (at, known) = (this.at.0, this.id);
            let (id, generation, local, end) = this.sim.with(this.node, |clock, now| {
                let id = known.unwrap_or_else(|| {
                    clock.sleeper_last += 1;
                    clock.sleeper_last
                });
                clock.sleepers.insert(id, context.waker().clone());
                (id, clock.generation, clock.local(now), clock.true_at(at, now))
            });
            this.id = Some(id);
            if local >= at {
                return Poll::Ready(());
            }
            if this.timer.as_ref().is_none_or(|(made_for, _)| *made_for != generation) {
                this.timer = Some((generation, Until::new(&this.sim.time, end)));
            }
            let (_, timer) = this.timer.as_mut().expect("made above");
            if Pin::new(timer).poll(context).is_pending() {
                return Poll::Pending;
            }
            // The timer ended and local time lacks a rounding error: make another.
            this.timer = None;
        }
    }
}

impl Drop for LocalSleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.sim.with(self.node, |clock, _| clock.sleepers.remove(&id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
    use crate::time::pass;

    fn run<T: Send + 'static>(world: impl AsyncFnOnce(NodeId, SimClock) -> T + Send + 'static) -> T {
        seed::run(1, Duration::from_secs(100), false, move || async move {
            let node = madsim::plugin::node();
            world(node, SimClock::current()).await
        })
        .result
        .unwrap()
    }

    #[test]
    fn a_drifting_clock_sleeps_longer_or_shorter_in_true_time() {
        for (ppm, low_ms, high_ms) in [(0, 999, 1002), (100_000, 907, 912), (-100_000, 1110, 1114)] {
            let slept = run(async move |node, clock| {
                ClockSim::get().set_drift(node, ppm);
                let start = crate::time::now_ns();
                (&clock as &dyn Clock).sleep(Duration::from_secs(1)).await;
                (crate::time::now_ns() - start) / 1_000_000
            });
            assert!((low_ms..high_ms).contains(&slept), "{ppm}: {slept}");
        }
    }

    #[test]
    fn a_jump_wakes_sleepers_at_once_and_time_never_falls() {
        let (slept, grew) = run(async |node, clock| {
            let start = crate::time::now_ns();
            let before = clock.now();
            let sleep = madsim::task::spawn((&clock as &dyn Clock).sleep(Duration::from_secs(50)));
            pass(Duration::from_secs(1)).await;
            ClockSim::get().jump(node, Duration::from_secs(60));
            sleep.await.unwrap();
            ((crate::time::now_ns() - start) / 1_000_000, clock.now().since(before).as_secs())
        });
        assert!((1000..1010).contains(&slept), "{slept}");
        assert_eq!(grew, 61);
    }

    #[test]
    fn wall_time_goes_back_and_monotonic_time_does_not() {
        run(async |node, clock| {
            let (wall, now) = (clock.wall(), clock.now());
            ClockSim::get().jump_wall(node, -3_600_000_000_000);
            assert!(clock.wall() < wall);
            assert!(clock.now() >= now);
        });
    }
}
