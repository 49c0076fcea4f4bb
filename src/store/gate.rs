//! Waiting until a number that only rises has reached a value.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::sync::oneshot;

/// A rising number and those who wait for it, woken in a fixed order.
#[derive(Default)]
pub struct Gate {
    reached: AtomicI64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_ticket: u64,
    by_value: BTreeMap<(i64, u64), oneshot::Sender<()>>,
}

impl Gate {
    pub fn new(reached: i64) -> Gate {
        Gate { reached: AtomicI64::new(reached), waiting: Mutex::default() }
    }

    pub fn reached(&self) -> i64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Raises the number to `value` (a lower one changes nothing) and wakes who waited for it.
    pub fn raise(&self, value: i64) {
        let mut waiting = self.waiting.lock().expect("no panic while the gate is locked");
        if value > self.reached.load(Ordering::Relaxed) {
            // Stored under the lock: a waiter that looked before us is in the map.
            self.reached.store(value, Ordering::Release);
        }
        while let Some(first) = waiting.by_value.first_entry() {
            if first.key().0 > value {
                break;
            }
            // A waiter that gave up has dropped its end.
            let _ = first.remove().send(());
        }
    }

    /// Completes once the number is at least `value`.
    pub async fn wait(&self, value: i64) {
        if self.reached() >= value {
            return;
        }
        let woken = {
            let mut waiting = self.waiting.lock().expect("no panic while the gate is locked");
            if self.reached() >= value {
                return;
            }
            let (wake, woken) = oneshot::channel();
            let ticket = waiting.next_ticket;
            waiting.next_ticket += 1;
            waiting.by_value.retain(|_, waiter| !waiter.is_closed());
            waiting.by_value.insert((value, ticket), wake);
            woken
        };
        // An error means the gate went away with its member: nothing to wait for any more.
        let _ = woken.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn waiters_wake_only_once_their_value_is_reached() {
        let gate = Gate::new(3);
        assert!(gate.wait(3).now_or_never().is_some());
        let mut four = Box::pin(gate.wait(4));
        let mut six = Box::pin(gate.wait(6));
        assert!((&mut four).now_or_never().is_none());
        assert!((&mut six).now_or_never().is_none());
        gate.raise(5);
        assert!(four.now_or_never().is_some());
        assert!((&mut six).now_or_never().is_none());
        gate.raise(2);
        assert_eq!(gate.reached(), 5);
        gate.raise(6);
        assert!(six.now_or_never().is_some());
    }
}
