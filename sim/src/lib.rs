//! Whole Quorate clusters, seeded and fault-injected, on a deterministic simulator.
//!
//! A [`scenario`] says how to draw a [`plan`]; the [`cluster`] runs the product's
//! own servers on simulated [`disk`]s, [`clock`]s and a network; the [`workload`]
//! records what clients saw; the [`oracle`]s judge it; the [`runner`] does so for
//! many seeds. **Never** part of the product: nothing in `quorate` imports this.
//!
//! Everything that runs needs `cfg(madsim)`: build with `cargo sim`.

pub mod dice;
pub mod history;
pub mod model;
pub mod oracle;
pub mod plan;
pub mod scenario;

#[cfg(madsim)]
pub mod clock;
#[cfg(madsim)]
pub mod cluster;
#[cfg(madsim)]
pub mod disk;
#[cfg(madsim)]
pub mod exhaust;
#[cfg(madsim)]
pub mod inside;
#[cfg(madsim)]
pub mod journal;
#[cfg(madsim)]
pub mod logs;
#[cfg(madsim)]
pub mod mutant;
#[cfg(madsim)]
pub mod net;
#[cfg(madsim)]
pub mod runner;
#[cfg(madsim)]
pub mod seed;
#[cfg(madsim)]
pub mod shim;
#[cfg(madsim)]
pub mod time;
#[cfg(madsim)]
pub mod workload;
#[cfg(madsim)]
pub mod world;
