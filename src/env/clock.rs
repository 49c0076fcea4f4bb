//! Time as one node sees it: a monotonic clock that may drift and jump
//! forward, never back, and a wall clock on which nothing is ever asserted.

use futures::future::BoxFuture;
use std::time::Duration;

/// Nanoseconds since some fixed point of this process's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A node's clock.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic: never falls.
    fn now(&self) -> Moment;
    /// Wall time since the Unix epoch; may go anywhere.
    fn wall(&self) -> Duration;
    /// Completes when `now() >= at`. Keep one for long, never build one in a hot loop.
    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()>;
}

impl dyn Clock {
    /// Completes when `by` has passed on this clock.
    pub fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + by)
    }
}

/// A clock on which no time passes: nothing that sleeps ever wakes.
#[cfg(test)]
pub(crate) struct StoppedClock;

#[cfg(test)]
impl Clock for StoppedClock {
    fn now(&self) -> Moment {
        Moment(0)
    }
    fn wall(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
