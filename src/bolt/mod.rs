//! bbolt files: what etcd calls its database and its snapshots.
//!
//! | file | what |
//! |---|---|
//! | `page.rs` | the layout of metas, pages and elements, byte for byte |
//! | `reader.rs` | a database in order, checked on the way |
//! | `fuzz.rs` | the reader, for a fuzzer |
//! | `writer.rs` | a database from records in order, planned first, then streamed |
//!
//! The format is that of tests/facts/storage.md, section 1. Ours, because the
//! ports of bbolt to Rust map the file into memory and trust it, and because a
//! snapshot is made on its way to the wire, where no file is.
//!
//! **Promises**: reading never panics, whatever the bytes; memory is bounded by
//! one bit for each page, the largest record and a window for each level of
//! the tree; what is handed out ascends strictly and was reached once. Writing
//! holds one open page for each level.
//! **Never** I/O (bytes come through [`Source`] and leave through buffers),
//! never updating in place, never a free list (etcd on Linux has none).

#[doc(hidden)]
pub mod fuzz;
mod page;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use reader::{Database, Item, Scan};
pub use writer::{Plan, PlanMismatch, Planner, Writer};

use bytes::Bytes;
use std::{future::Future, io};

/// A page or record that starts deeper in a tree than this is a loop in disguise.
const DEPTH_MAX: usize = 64;
/// Longest key of a record.
pub const KEY_BYTES_MAX: usize = 32768;
/// Longest value that is read: far above what a request can carry.
pub const VALUE_BYTES_MAX: usize = 256 << 20;

/// Where the bytes of a database lie.
pub trait Source: Send + Sync {
    /// Bytes of the database (a digest behind it left out).
    fn length(&self) -> u64;

    /// Exactly `length` bytes from `at`; what is asked for lies inside [`Source::length`].
    fn read(&self, at: u64, length: usize) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// Bytes in memory: tests and fuzzing.
impl Source for Bytes {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    async fn read(&self, at: u64, length: usize) -> io::Result<Bytes> {
        let from = usize::try_from(at).map_err(io::Error::other)?;
        let end = from.checked_add(length).filter(|end| *end <= self.len());
        end.map(|end| self.slice(from..end)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Why bytes are not a database, or cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No valid meta page.
    #[error("invalid database")]
    NoMeta,
    #[error("the database was written on a machine of the other byte order")]
    ByteOrder,
    /// The file ends before the last page that is in use.
    #[error("the file is cut off: {length} bytes of {expected}")]
    Cut { length: u64, expected: u64 },
    #[error("page {page}: {what}")]
    Page { page: u64, what: &'static str },
}
