//! How etcd's command line tools print and fail, for those of ours that take
//! their place.
//!
//! | file | what |
//! |---|---|
//! | `printer.rs` | formats: simple, json, fields, table; sizes |
//! | `quote.rs` | bytes as Go quotes them |
//! | `failure.rs` | a text and an exit code |
//! | `mistake.rs` | a command line that does not parse |
//!
//! **Never** knows a command.

pub mod failure;
pub mod mistake;
pub mod printer;
pub mod quote;

pub use failure::{Failure, exit_code};
