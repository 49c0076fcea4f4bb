//! The one door to clock, disk, network, randomness and tasks.
//!
//! **Invariant (I1).** Outside this room nothing touches a clock, a file, a
//! socket, a random source or a thread. Production hands in the operating
//! system ([`os`]); the simulation hands in its own disk and clock and runs
//! the rest on madsim. **Never** policy: no retries, no limits, no meaning.

pub mod clock;
pub mod disk;
pub mod log_file;
pub mod net;
pub mod os;
pub mod resolve;
pub mod rng;
pub mod task;
pub mod trace;

pub use clock::{Clock, Moment};
pub use disk::{Disk, File, Io};
pub use rng::Rng;

use std::sync::Arc;

/// What a member may touch of the world, handed in at start-up.
#[derive(Clone)]
pub struct Env {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub rng: Rng,
}
