//! Who is who by the flags: URLs of members, and the initial cluster.
//!
//! For everything that makes a member: the server, and the tools that make a
//! data directory from a snapshot. **Never** decides ids: that is `members`'.

pub mod initial_cluster;
pub mod urls;

pub use initial_cluster::{InitialCluster, InitialClusterError};
pub use urls::{Scheme, Url, UrlError};
