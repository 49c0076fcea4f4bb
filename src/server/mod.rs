//! A member from its settings to its last log line: wiring, configuration
//! (flags and `ETCD_*` variables), start-up and shutdown order.
//!
//! [`start()`] and [`Server`] run unchanged in simulation; [`process`] is what
//! only production has: command line, signals, exit status. **Never** protocol
//! details: requests are `api`'s, replication is `replica`'s.

pub mod command_line;
mod compactor;
pub mod config;
mod corruption;
mod data_dir;
pub mod features;
pub mod flags;
pub mod help;
mod initial_cluster;
pub mod logging;
#[cfg(not(madsim))]
pub mod process;
pub mod settings;
mod start;
mod stop;
pub mod urls;
pub mod values;

pub use compactor::Retention;
pub use config::{ClusterState, Config, ConfigError};
pub use corruption::Checks;
pub use start::{Server, StartError, start};
pub use urls::Url;
