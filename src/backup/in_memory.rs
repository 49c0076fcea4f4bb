//! A snapshot file in memory, only to be read: for fuzzing and tests.

use crate::env::{File, Io};
use bytes::Bytes;
use std::io;

pub struct InMemory(pub Bytes);

fn read_only() -> Io<()> {
    Box::pin(std::future::ready(Err(io::ErrorKind::ReadOnlyFilesystem.into())))
}

impl File for InMemory {
    fn preallocate(&self, _: u64) -> Io<()> {
        read_only()
    }

    fn append(&self, _: u64, _: Vec<Bytes>) -> Io<()> {
        read_only()
    }

    fn read_at(&self, at: u64, length: usize) -> Io<Bytes> {
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(self.0.len());
        let end = from.saturating_add(length).min(self.0.len());
        let bytes = self.0.slice(from..end);
        Box::pin(std::future::ready(Ok(bytes)))
    }

    fn sync_data(&self) -> Io<()> {
        read_only()
    }

    fn length(&self) -> Io<u64> {
        Box::pin(std::future::ready(Ok(self.0.len() as u64)))
    }

    fn truncate(&self, _: u64) -> Io<()> {
        read_only()
    }
}
