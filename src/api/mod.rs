//! The client port: one file for each gRPC service, the JSON gateway, health,
//! metrics and the error table.
//!
//! **Never** decides state: a request is checked for form, handed to
//! [`crate::replica`] (or read from its store) and its answer is given etcd's
//! shape. Everything on the port goes through [`entrance`]: gRPC by content
//! type ([`grpc`]), `/v3/` to the [`gateway`], the rest to [`http`].

mod auth;
mod backend;
mod cluster;
mod direct;
mod election;
pub mod errors;
pub mod gateway;
pub mod grpc;
mod health;
pub mod http;
mod kv;
mod lease;
mod lock;
mod maintenance;
pub mod metrics;
mod quota;
mod service;
mod watch;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use backend::Backend;
pub use metrics::Metrics;
pub use service::{Entrance, Service, Settings, entrance};

/// The release of etcd whose API is spoken; what `/version` and Status answer with.
pub const ETCD_VERSION: &str = "3.7.1";
/// The format of the records, as etcd numbers it.
pub const STORAGE_VERSION: &str = "3.7.0";
/// `/version` before the cluster version is set.
pub const VERSION_NOT_DECIDED: &str = "not_decided";
/// What a gRPC message may hold above `max-request-bytes` (N1).
pub const GRPC_OVERHEAD_BYTES: u64 = 512 * 1024;
