//! The operating system behind the door: disk, clock and seed of production.
//!
//! [`disk`] is the data directory, [`pool`] the threads that serve it. Nothing
//! here is used in simulation, which hands in its own [`Env`].

mod disk;
mod pool;

use super::{Clock, Env, Moment, Rng, timer::Sleep};
use futures::future::BoxFuture;
use rand_core::{OsRng, TryRngCore};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use disk::OsDisk;

/// The real world. `io_threads` serve the disk.
pub fn env(io_threads: usize) -> Env {
    let mut seed = [0; 32];
    OsRng.try_fill_bytes(&mut seed).expect("the kernel's random source answers once the system is up");
    Env {
        disk: Arc::new(OsDisk::new(io_threads)),
        clock: Arc::new(OsClock::new()),
        rng: Rng::from_seed(seed),
    }
}

/// The kernel's clocks.
pub struct OsClock {
    started: Instant,
}

impl OsClock {
    pub fn new() -> OsClock {
        OsClock { started: super::timer::now() }
    }
}

impl Default for OsClock {
    fn default() -> Self {
        OsClock::new()
    }
}

impl Clock for OsClock {
    fn now(&self) -> Moment {
        let passed = super::timer::now().saturating_duration_since(self.started);
        Moment(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    #[allow(clippy::disallowed_methods)] // This is the door.
    fn wall(&self) -> Duration {
        // Before 1970 there is no data to protect; nothing is asserted on wall time anyway.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let deadline = super::timer::far(self.started, Duration::from_nanos(at.0));
        Box::pin(Sleep::until(deadline))
    }
}

#[cfg(test)]
#[cfg(not(madsim))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_clock_never_falls_and_a_sleep_lasts_its_time() {
        let clock: Arc<dyn Clock> = Arc::new(OsClock::new());
        let before = clock.now();
        assert!(clock.now() >= before);
        let by = Duration::from_millis(3);
        clock.sleep(by).await;
        assert!(clock.now() >= before + by);
        clock.sleep_until(before).await; // The past is now.
        assert!(clock.wall() > Duration::from_secs(1_700_000_000));
    }

    #[test]
    fn two_environments_draw_differently() {
        let (one, other) = (env(1), env(1));
        assert_ne!(one.rng.next_u128(), other.rng.next_u128());
    }
}
