use super::{ReadError, Store};
use crate::pagefile::PageNumber;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    pub path: PathBuf,
    pub at: u64,
    pub first: PageNumber,
    pub last: PageNumber,
    pub what: String,
}

impl std::fmt::Display for Rot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub cleaned_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct CompactionHash {
    pub hash: u32,
    pub revision: i64,
    pub compact_revision: i64,
}

impl Store {
    pub fn has_reserve(&self) -> bool {
        true
    }
    pub async fn defragment(&self) -> Result<(), ReadError> {
        Ok(())
    }
    pub fn rot(&self) -> tokio::sync::watch::Receiver<Option<Rot>> {
        tokio::sync::watch::channel(None).1
    }
    pub async fn verify(&self, _: PageNumber) -> Result<(), Rot> {
        Ok(())
    }
    pub fn figures(&self) -> Figures {
        Figures::default()
    }
    pub fn compaction_hashes(&self) -> Vec<CompactionHash> {
        Vec::new()
    }
    pub fn db_bytes(&self) -> u64 {
        self.sizes().0
    }
}
