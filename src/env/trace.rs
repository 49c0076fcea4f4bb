//! What the simulation sees of the inside: trace hash, marks, probes.
//!
//! In production every call here compiles to nothing. In simulation (cfg
//! madsim) everything lands in thread-locals, since each seed runs on one
//! fresh thread: [`take`] returns and clears them.

/// A fact that the oracles watch. Values only; no handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A member became leader.
    Leader { member: u64, term: u64 },
    /// A member handed an entry to its state machine.
    Applied { member: u64, index: u64, term: u64, digest: u32 },
    /// The request bytes of an entry that a member applied; conf changes are left out.
    Entry { member: u64, index: u64, term: u64, data: bytes::Bytes },
    /// A member's committed index rose.
    Committed { member: u64, index: u64, term: u64 },
    /// A queue's length was seen next to its bound (I10).
    Bound { member: u64, queue: &'static str, length: u64, bound: u64 },
    /// A member's store stands at this revision with this HashKV-like digest.
    State { member: u64, applied: u64, revision: i64, digest: u32 },
}

/// Counts that the code came here, for campaigns: `reached!("snapshot installed")`.
#[macro_export]
macro_rules! reached {
    ($mark:literal) => {{
        #[cfg(madsim)]
        $crate::env::trace::mark($mark);
    }};
}

/// Hands a [`Probe`] to the oracles; the argument is not evaluated in production.
#[macro_export]
macro_rules! probe {
    ($probe:expr) => {{
        #[cfg(madsim)]
        $crate::env::trace::probe($probe);
    }};
}

/// Adds to the trace hash: `trace!("apply", &bytes)`, or `trace!("wire", port, &bytes)` with a
/// number that says where; not evaluated in production.
#[macro_export]
macro_rules! trace {
    ($kind:literal, $bytes:expr) => {{
        #[cfg(madsim)]
        $crate::env::trace::event($kind, $bytes);
    }};
    ($kind:literal, $place:expr, $bytes:expr) => {{
        #[cfg(madsim)]
        $crate::env::trace::event_at($kind, $place, $bytes);
    }};
}

#[cfg(madsim)]
pub use simulated::*;

#[cfg(madsim)]
mod simulated {
    use super::Probe;
    use std::{cell::RefCell, collections::BTreeMap};

    /// What a run left behind.
    #[derive(Clone, Debug, Default)]
    pub struct Trace {
        /// FNV-1a 64 over virtual time, kind and bytes of every event.
        pub hash: u64,
        pub events: u64,
        pub marks: BTreeMap<&'static str, u64>,
        pub probes: Vec<(u64, Probe)>,
        /// One line an event, kept only when asked for.
        pub lines: Option<Vec<String>>,
    }

    thread_local! {
        static TRACE: RefCell<Trace> = RefCell::new(Trace::default());
    }

    fn now_ns() -> u64 {
        madsim::time::TimeHandle::try_current().map_or(0, |time| time.elapsed().as_nanos() as u64)
    }

    /// Starts afresh on this thread.
    pub fn start(keep_lines: bool) {
        TRACE.with_borrow_mut(|trace| {
            *trace =
                Trace { hash: 0xcbf2_9ce4_8422_2325, lines: keep_lines.then(Vec::new), ..Trace::default() };
        });
    }

    pub fn take() -> Trace {
        TRACE.with_borrow_mut(std::mem::take)
    }

    /// Probes gathered since the last call, oldest first, each with its virtual time in ns.
    pub fn take_probes() -> Vec<(u64, Probe)> {
        TRACE.with_borrow_mut(|trace| std::mem::take(&mut trace.probes))
    }

    pub fn mark(mark: &'static str) {
        TRACE.with_borrow_mut(|trace| *trace.marks.entry(mark).or_default() += 1);
    }

    pub fn probe(probe: Probe) {
        let at = now_ns();
        TRACE.with_borrow_mut(|trace| trace.probes.push((at, probe)));
    }

    pub fn event(kind: &'static str, bytes: &[u8]) {
        event_at(kind, 0, bytes);
    }

    /// An event at a numbered place (a port, a file).
    pub fn event_at(kind: &'static str, place: u64, bytes: &[u8]) {
        let at = now_ns();
        TRACE.with_borrow_mut(|trace| {
            // Eight bytes a step: every wire byte passes here.
            let mut hash = trace.hash;
            let mut step = |word: u64| {
                hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
            };
            step(at);
            step(place);
            step(bytes.len() as u64);
            for byte in kind.bytes() {
                step(u64::from(byte));
            }
            let mut chunks = bytes.chunks_exact(8);
            for chunk in &mut chunks {
                step(u64::from_le_bytes(chunk.try_into().expect("chunks of eight")));
            }
            for byte in chunks.remainder() {
                step(u64::from(*byte));
            }
            trace.hash = hash;
            trace.events += 1;
            if let Some(lines) = &mut trace.lines {
                lines.push(format!("{at} {kind} {place} {} {hash:016x}", bytes.len()));
            }
        });
    }
}
