//! Whole Quorate clusters, seeded and fault-injected, on a deterministic
//! simulator. The judges ([`history`], [`model`], [`oracle`]) are plain code:
//! they build and are tested with and without `cfg(madsim)`.

pub mod history;
pub mod model;
pub mod oracle;
