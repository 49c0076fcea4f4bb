//! Whether the other end of a connection still lives, counted in beats of one shared ticker.
//!
//! Silence is counted in beats, not in time: a clock that jumps declares nobody dead. The
//! simulated network can hang a stream for ever and a real one nearly so; every connection here
//! has a pulse.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
use tokio::sync::Notify;

pub(super) struct Pulse {
    silent: AtomicU32,
    beats_max: AtomicU32,
    over: AtomicBool,
    ended: Notify,
}

impl Pulse {
    /// Ends after `beats_max` beats in which nothing was heard.
    pub fn new(beats_max: u32) -> Pulse {
        assert!(beats_max > 0, "a pulse has time for one word");
        Pulse {
            silent: AtomicU32::new(0),
            beats_max: AtomicU32::new(beats_max),
            over: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    /// The other end said something, or a step was made.
    pub fn heard(&self) {
        self.silent.store(0, Ordering::Relaxed);
    }

    /// From now on steps may take up to `beats_max` beats.
    pub fn allow(&self, beats_max: u32) {
        self.beats_max.store(beats_max, Ordering::Relaxed);
    }

    /// One beat of the ticker.
    pub fn beat(&self) {
        if self.silent.fetch_add(1, Ordering::Relaxed) >= self.beats_max.load(Ordering::Relaxed) {
            self.end();
        }
    }

    /// Ends the connection now.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        // One task waits; a permit is kept if it does not yet.
        self.ended.notify_one();
    }

    /// Completes when the other end is taken for dead. For one task.
    pub async fn ended(&self) {
        while !self.over.load(Ordering::Acquire) {
            self.ended.notified().await;
        }
    }
}

/// Every pulse of a member, beaten together by one ticker.
#[derive(Default)]
pub(super) struct Pulses {
    pulses: Mutex<Vec<Weak<Pulse>>>,
    stopped: AtomicBool,
}

impl Pulses {
    /// A new pulse, beaten until it is dropped; ended at once when the member has stopped.
    pub fn start(&self, beats_max: u32) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse::new(beats_max));
        self.pulses.lock().expect("no panic while the pulses are locked").push(Arc::downgrade(&pulse));
        if self.is_stopped() {
            pulse.end();
        }
        pulse
    }

    pub fn beat(&self) {
        self.each(|pulse| pulse.beat());
    }

    /// Ends all connections, those to come too.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.each(|pulse| pulse.end());
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Connections that are there.
    pub fn len(&self) -> usize {
        self.pulses.lock().expect("no panic while the pulses are locked").len()
    }

    fn each(&self, act: impl Fn(&Pulse)) {
        let mut pulses = self.pulses.lock().expect("no panic while the pulses are locked");
        pulses.retain(|pulse| pulse.upgrade().inspect(|pulse| act(pulse)).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn silence_ends_a_connection_and_a_word_keeps_it() {
        let pulse = Pulse::new(2);
        for _ in 0..10 {
            pulse.beat();
            pulse.beat();
            pulse.heard();
        }
        assert!(pulse.ended().now_or_never().is_none());
        (0..3).for_each(|_| pulse.beat());
        assert!(pulse.ended().now_or_never().is_some());
        pulse.heard();
        assert!(pulse.ended().now_or_never().is_some(), "it stays ended");
    }

    #[test]
    fn all_pulses_end_when_the_member_stops() {
        let pulses = Pulses::default();
        let early = pulses.start(1);
        drop(pulses.start(1));
        assert_eq!(pulses.len(), 2);
        pulses.beat();
        assert_eq!(pulses.len(), 1, "a dropped one is forgotten");
        pulses.stop();
        let late = pulses.start(1);
        assert!(early.ended().now_or_never().is_some() && late.ended().now_or_never().is_some());
    }
}
