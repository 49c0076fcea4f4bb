//! What the store counts and times of its own work, for metrics. **Never**
//! read by the store itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Sees durations, in seconds.
pub trait Meter: Send + Sync + 'static {
    /// A physical compaction was carried out.
    fn compacted(&self, seconds: f64);
    /// One step of it held up everyone else.
    fn compaction_paused(&self, seconds: f64);
}

/// The counts, and who sees the durations.
#[derive(Default)]
pub struct Tally {
    /// Segments that gave way to a copy, and the bytes given back.
    pub cleanings: AtomicU64,
    pub freed_bytes: AtomicU64,
    pub scrubbed_bytes: AtomicU64,
    pub scrub_passes: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
    meter: OnceLock<Arc<dyn Meter>>,
}

impl Tally {
    /// Who sees the durations from now on; the first one stays.
    pub fn observe(&self, meter: Arc<dyn Meter>) {
        let _ = self.meter.set(meter);
    }

    pub fn meter(&self) -> Option<&dyn Meter> {
        self.meter.get().map(|meter| &**meter)
    }

    pub fn figures(&self) -> Figures {
        Figures {
            cleanings: self.cleanings.load(Relaxed),
            freed_bytes: self.freed_bytes.load(Relaxed),
            scrubbed_bytes: self.scrubbed_bytes.load(Relaxed),
            scrub_passes: self.scrub_passes.load(Relaxed),
            checkpoint_bytes: self.checkpoint_bytes.load(Relaxed),
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Runs of segments that gave way to a copy of what survived.
    pub cleanings: u64,
    /// Bytes that this gave back.
    pub freed_bytes: u64,
    pub scrubbed_bytes: u64,
    pub scrub_passes: u64,
    /// Bytes written for the checkpoint of the index.
    pub checkpoint_bytes: u64,
}
