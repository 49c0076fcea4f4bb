//! A store as a view: one that is served, or that of a stopped member.

use super::{Carried, Content, Error, Records, Stored, View};
use crate::{
    env::Env,
    log,
    machine::Entry,
    members::Members,
    pagefile::{self, PageFile, PageNumber},
    store::{self, Applier, History, Position, Store, kind},
};
use prost::Message;
use quorate_proto::quorate::v1::StoreMark;
use raft::eraftpb::EntryType;
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
};

/// A store at one moment. What is compacted meanwhile stays until this is dropped.
pub struct StoreView {
    view: store::View,
    content: Content,
}

impl StoreView {
    /// The store as it is now.
    pub async fn new(store: &Store) -> Result<StoreView, Error> {
        let (view, mark) = store.marked_view();
        let buckets = view.buckets(&mark).await?;
        let records = buckets.into_iter().flat_map(|page| page.records);
        let content = Content::new(&mark, records.map(Carried::from))?;
        Ok(StoreView { view, content })
    }
}

impl View for StoreView {
    type Records = StoreRecords;

    fn records(&self) -> StoreRecords {
        StoreRecords { view: self.view.clone(), history: None, slice: VecDeque::new() }
    }

    fn content(&self) -> &Content {
        &self.content
    }
}

/// A pass over a store's records; it keeps the view alive.
pub struct StoreRecords {
    view: store::View,
    history: Option<History>,
    slice: VecDeque<Stored>,
}

impl Records for StoreRecords {
    async fn next(&mut self) -> Result<Option<Stored>, Error> {
        loop {
            if let Some(record) = self.slice.pop_front() {
                return Ok(Some(record));
            }
            let history = match &mut self.history {
                Some(history) => history,
                none => none.insert(self.view.records().await?),
            };
            let Some(changes) = history.next().await? else { return Ok(None) };
            self.slice.extend(changes.into_iter().map(|change| Stored {
                main: change.main.unsigned_abs(),
                sub: change.sub,
                tombstone: change.tombstone,
                key_value: change.key_value,
            }));
        }
    }
}

/// How far a look at a stopped member goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The entry that the store's last commit stands at.
    pub stored: u64,
    /// The last entry of the log that is known to be committed; all up to it were applied in memory.
    pub applied: u64,
    /// Entries behind it in the log: they may or may not be committed.
    pub uncertain: u64,
}

/// A stopped member's store with the committed tail of its log applied in memory: after a kill
/// the store lags behind the log. Nothing on disk is changed.
pub struct StoppedStore {
    pub covered: Covered,
    view: StoreView,
    /// Owns the store's writing end, which never writes.
    _applier: Applier,
    dir: PathBuf,
    env: Env,
}

/// A mark as it lies in a stopped store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub page: u64,
    pub index: u64,
    pub term: u64,
    pub revision: i64,
    pub compacted: i64,
}

impl StoppedStore {
    /// `dir`: `<data-dir>/member`, locked by the caller.
    pub async fn open(env: &Env, dir: &Path, member_id: u64) -> Result<StoppedStore, Error> {
        let (store, mut applier, position, _) =
            Store::open_read_only(env, dir.join("store"), Members::default()).await?;
        let stored = position.index;
        let mut covered = Covered { stored, applied: stored, uncertain: 0 };
        let mark = (position.index, position.term);
        match log::unapplied(env, dir.join("log"), mark).await {
            Ok(unapplied) => {
                let committed = committed(&unapplied, &position, member_id);
                for entry in unapplied.entries {
                    if entry.index > committed {
                        covered.uncertain += 1;
                        continue;
                    }
                    covered.applied = entry.index;
                    let entry = Entry {
                        index: entry.index,
                        term: entry.term,
                        is_conf_change: entry.entry_type != EntryType::EntryNormal,
                        data: entry.data,
                    };
                    applier.apply(&entry).await?;
                }
            }
            // A member that was made by a tool and never started has none.
            Err(log::Error::PageFile(pagefile::Error::Io { source, .. }))
                if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::Malformed(format!("the log: {error}"))),
        }
        let view = StoreView::new(&store).await?;
        Ok(StoppedStore { covered, view, _applier: applier, dir: dir.join("store"), env: env.clone() })
    }

    /// Every mark that is there, oldest first.
    pub async fn marks(&self) -> Result<Vec<Mark>, Error> {
        let (reader, _) = PageFile::open_read_only(self.env.disk.clone(), self.dir.clone()).await?;
        let mut scan = reader.scan(PageNumber(0));
        let mut marks = Vec::new();
        while let Some(page) = scan.next().await? {
            if page.kind != kind::MARK {
                continue;
            }
            let number = page.number.0;
            let mark = StoreMark::decode(page.payload)
                .map_err(|error| Error::Malformed(format!("page {number}: {error}")))?;
            marks.push(Mark {
                page: number,
                index: mark.applied_index,
                term: mark.applied_term,
                revision: mark.revision,
                compacted: mark.compacted,
            });
        }
        Ok(marks)
    }
}

/// The last entry that is known to be committed. What the log says of it may lag; a lone voter's own
/// sync commits, so that all it has is.
fn committed(unapplied: &log::Unapplied, position: &Position, member_id: u64) -> u64 {
    let changes = unapplied.entries.iter().any(|entry| entry.entry_type != EntryType::EntryNormal);
    let conf_state = &position.conf_state;
    let alone = conf_state.voters == [member_id] && conf_state.voters_outgoing.is_empty() && !changes;
    match unapplied.entries.last() {
        Some(last) if alone => last.index,
        _ => unapplied.hard_state.commit,
    }
}

impl View for StoppedStore {
    type Records = StoreRecords;

    fn records(&self) -> StoreRecords {
        self.view.records()
    }

    fn content(&self) -> &Content {
        self.view.content()
    }
}
