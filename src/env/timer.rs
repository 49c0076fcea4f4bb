//! Timers on the runtime's clock, for the transport.
//!
//! Owns [`Sleep`], [`within`] and the executor and timer that hyper asks for.
//! **Promises** that a sleep registers one timer however often it is polled:
//! madsim's own adds one at each poll and frees none before its time.
//! **Never** for what a member decides by time: that is [`super::Clock`]'s,
//! which drifts and jumps with its node.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// The runtime's monotonic time.
#[allow(clippy::disallowed_methods)] // This is the door.
pub(crate) fn now() -> Instant {
    #[allow(clippy::useless_conversion)] // tokio's type in production, std's in simulation.
    tokio::time::Instant::now().into()
}

pub use once::Sleep;

#[cfg(not(madsim))]
mod once {
    use super::*;

    pin_project_lite::pin_project! {
        /// Completes at its deadline.
        pub struct Sleep {
            #[pin]
            inner: tokio::time::Sleep,
        }
    }

    impl Sleep {
        pub fn until(deadline: Instant) -> Sleep {
            Sleep { inner: tokio::time::sleep_until(deadline.into()) }
        }
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.project().inner.poll(cx)
        }
    }
}

#[cfg(madsim)]
mod once {
    use super::*;
    use futures::task::{ArcWake, AtomicWaker};
    use std::sync::Arc;

    /// Completes at its deadline.
    pub struct Sleep {
        deadline: Instant,
        waiter: Option<Arc<Waiter>>,
    }

    /// The waker that the one timer holds; it forwards to whoever polled last.
    struct Waiter(AtomicWaker);

    impl ArcWake for Waiter {
        fn wake_by_ref(waiter: &Arc<Self>) {
            waiter.0.wake();
        }
    }

    impl Sleep {
        pub fn until(deadline: Instant) -> Sleep {
            Sleep { deadline, waiter: None }
        }
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if let Some(waiter) = &self.waiter {
                waiter.0.register(cx.waker());
                return if now() >= self.deadline { Poll::Ready(()) } else { Poll::Pending };
            }
            let waiter = Arc::new(Waiter(AtomicWaker::new()));
            waiter.0.register(cx.waker());
            let waker = futures::task::waker(waiter.clone());
            self.waiter = Some(waiter);
            let mut timer = std::pin::pin!(tokio::time::sleep_until(self.deadline));
            timer.as_mut().poll(&mut Context::from_waker(&waker))
        }
    }
}

impl Sleep {
    pub fn lasting(duration: Duration) -> Sleep {
        Sleep::until(far(now(), duration))
    }
}

impl hyper::rt::Sleep for Sleep {}

/// `from + by`, or a time no process lives to see when that overflows.
pub(crate) fn far(from: Instant, by: Duration) -> Instant {
    const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);
    from + by.min(FOREVER)
}

/// The time was up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// Runs `work` for at most `limit`, then drops it. `work` wins a tie.
pub async fn within<F: Future>(limit: Duration, work: F) -> Result<F::Output, Elapsed> {
    tokio::select! {
        biased;
        output = work => Ok(output),
        () = Sleep::lasting(limit) => Err(Elapsed),
    }
}

/// What hyper runs its tasks and timers on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Runtime;

impl<F> hyper::rt::Executor<F> for Runtime
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        drop(tokio::spawn(work));
    }
}

impl hyper::rt::Timer for Runtime {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep::lasting(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep::until(deadline))
    }

    fn now(&self) -> Instant {
        now()
    }
}
