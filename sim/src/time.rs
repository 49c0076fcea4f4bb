//! The one clock that no node can bend, and sleeps on it.

use futures::task::{ArcWake, AtomicWaker};
use madsim::time::{Sleep, TimeHandle};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// Virtual nanoseconds since the run began.
pub fn now_ns() -> u64 {
    ns(&TimeHandle::current())
}

pub fn ns(time: &TimeHandle) -> u64 {
    u64::try_from(time.elapsed().as_nanos()).expect("a run lasts less than 500 years")
}

/// Ends at a moment of virtual time.
///
/// madsim's own sleep adds a timer at every poll, frees it only at its
/// deadline, and lasts a millisecond or more; this one registers once and is exact.
pub struct Until {
    sleep: Sleep,
    waker: Option<Arc<Relay>>,
}

struct Relay(AtomicWaker);

impl ArcWake for Relay {
    fn wake_by_ref(relay: &Arc<Self>) {
        relay.0.wake();
    }
}

impl Until {
    pub fn new(time: &TimeHandle, at_ns: u64) -> Until {
        let now = time.now_instant();
        let left = Duration::from_nanos(at_ns.saturating_sub(ns(time)));
        let mut sleep = time.sleep(left);
        Pin::new(&mut sleep).reset(now + left);
        Until { sleep, waker: None }
    }
}

impl Future for Until {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(relay) = &self.waker {
            relay.0.register(context.waker());
            return if self.sleep.is_elapsed() { Poll::Ready(()) } else { Poll::Pending };
        }
        let relay = Arc::new(Relay(AtomicWaker::new()));
        relay.0.register(context.waker());
        self.waker = Some(relay.clone());
        let waker = futures::task::waker(relay);
        Pin::new(&mut self.sleep).poll(&mut Context::from_waker(&waker))
    }
}

/// Completes when this much virtual time has passed.
pub fn pass(by: Duration) -> Until {
    let time = TimeHandle::current();
    let at = ns(&time) + u64::try_from(by.as_nanos()).expect("a sleep lasts less than 500 years");
    Until::new(&time, at)
}

/// Completes at this virtual time.
pub fn until(at_ns: u64) -> Until {
    Until::new(&TimeHandle::current(), at_ns)
}
