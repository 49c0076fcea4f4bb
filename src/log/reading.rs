//! A stopped member's log, read and not changed.

use super::{Error, record, tail::Tail};
use crate::env::Env;
use crate::pagefile::{PageFile, PageNumber, PageReader, Scan};
use raft::eraftpb::{Entry, HardState};
use std::path::PathBuf;

/// What a stopped log holds behind what the store has applied.
#[derive(Debug)]
pub struct Unapplied {
    pub hard_state: HardState,
    /// In order, the first one right behind the store's mark.
    pub entries: Vec<Entry>,
}

/// Entries and hard states as they lie, oldest first: an entry takes the place
/// of an earlier one with its index, and of all behind that.
pub struct Pages(Scan);

/// One page of a log.
#[derive(Debug)]
pub struct LogPage {
    pub number: PageNumber,
    pub entries: Vec<Entry>,
    /// (term, vote, commit), if the page has a hard state.
    pub hard_state: Option<(u64, u64, u64)>,
    /// Entries up to this (index, term) were dropped.
    pub start: Option<(u64, u64)>,
}

impl Pages {
    pub async fn open(env: &Env, dir: PathBuf) -> Result<(PageReader, Pages), Error> {
        let (reader, _) = PageFile::open_read_only(env.disk.clone(), dir).await?;
        let pages = Pages(reader.scan(PageNumber(0)));
        Ok((reader, pages))
    }

    pub async fn next(&mut self) -> Result<Option<LogPage>, Error> {
        match self.0.next().await? {
            Some(page) => record::log_page(&page).map(Some),
            None => Ok(None),
        }
    }
}

/// The entries behind the store's mark (index, term). A log that ends below the
/// mark, or disagrees with it, is void: it begins anew at the next start.
pub async fn unapplied(env: &Env, dir: PathBuf, applied: (u64, u64)) -> Result<Unapplied, Error> {
    let (reader, _) = PageFile::open_read_only(env.disk.clone(), dir).await?;
    // What is not applied stays in memory; the rest may go.
    let mut replay = record::Replay::new(Tail::new((0, 0), applied.0, 0));
    let mut pages = reader.scan(PageNumber(0));
    while let Some(page) = pages.next().await? {
        replay.take(&page);
    }
    let (tail, _, hard_state) = replay.finish()?;
    if tail.start().0 > applied.0 {
        return Err(Error::StartsLate { start: tail.start().0, applied: applied.0 });
    }
    let entries = match tail.term(applied.0) == Some(applied.1) {
        true => tail.from(applied.0 + 1).cloned().collect(),
        false => Vec::new(),
    };
    Ok(Unapplied { hard_state, entries })
}
