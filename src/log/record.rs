//! Log pages: the one place that knows how entries and hard state are stored,
//! and how a sequence of pages becomes a log again.
//!
//! A page's payload is a `LogPage` (proto/peer.proto). Entry types carry etcd's
//! numbers; an entry's data is passed through as it is. Promises never to panic
//! on what it reads.

use super::tail::Tail;
use super::{Error, places::Places};
use crate::pagefile::Page;
use bytes::Bytes;
use prost::Message;
use quorate_proto::quorate::v1 as stored;
use raft::eraftpb::{Entry, EntryType, HardState};

/// The kind of a log page in its page file.
pub(super) const KIND: u8 = 1;
/// Entries are gathered into pages of about this many bytes: large enough to
/// fetch fast, small enough that one entry does not cost much more than itself.
const PAGE_BYTES: usize = 64 << 10;

pub(super) fn to_stored(entry: &Entry) -> stored::Entry {
    let entry_type = match entry.entry_type {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => panic!("membership changes one at a time (I11): no joint consensus"),
    };
    stored::Entry {
        entry_type,
        term: entry.term,
        index: entry.index,
        data: entry.data.clone(),
        context: entry.context.clone(),
    }
}

pub(super) fn from_stored(entry: stored::Entry) -> Result<Entry, String> {
    let entry_type = match entry.entry_type {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        other => return Err(format!("entry {} has type {other}", entry.index)),
    };
    let stored::Entry { term, index, data, context, .. } = entry;
    Ok(Entry { entry_type, term, index, data, context, ..Entry::default() })
}

/// A page ready to be written, and the entries in it (first and last index).
pub(super) struct Record {
    pub payload: Bytes,
    pub entries: Option<(u64, u64)>,
}

/// Entries and hard state as pages; one page at least. `start`: the entry
/// before the first one, when the log begins anew or lost its front.
pub(super) fn encode(
    entries: Vec<stored::Entry>,
    hard_state: Option<&HardState>,
    start: Option<(u64, u64)>,
) -> Vec<Record> {
    let (start_index, start_term) = start.unwrap_or_default();
    let hard_state = hard_state.map(|state| stored::HardState {
        term: state.term,
        vote: state.vote,
        commit: state.commit,
    });
    let mut page = stored::LogPage { entries: Vec::new(), hard_state, start_index, start_term };
    let mut records = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        bytes += entry.data.len() + entry.context.len();
        page.entries.push(entry);
        if bytes >= PAGE_BYTES {
            records.push(record(&std::mem::take(&mut page)));
            bytes = 0;
        }
    }
    if records.is_empty() || !page.entries.is_empty() {
        records.push(record(&page));
    }
    records
}

fn record(page: &stored::LogPage) -> Record {
    let ends = page.entries.first().zip(page.entries.last());
    Record {
        payload: page.encode_to_vec().into(),
        entries: ends.map(|(first, last)| (first.index, last.index)),
    }
}

/// The entries of one page; they share its buffer.
pub(super) fn decode_entries(page: &Page) -> Result<Vec<Entry>, Error> {
    log_page(page).map(|page| page.entries)
}

/// A whole page.
pub(super) fn log_page(page: &Page) -> Result<super::LogPage, Error> {
    let number = page.number;
    let decode = |what| Error::Decode { page: number.0, what };
    let stored = decode_page(page).map_err(decode)?;
    let entries = stored.entries.into_iter().map(from_stored).collect::<Result<_, _>>().map_err(decode)?;
    let hard_state = stored.hard_state.map(|state| (state.term, state.vote, state.commit));
    let start = (stored.start_index > 0).then_some((stored.start_index, stored.start_term));
    Ok(super::LogPage { number, entries, hard_state, start })
}

fn decode_page(page: &Page) -> Result<stored::LogPage, String> {
    if page.kind != KIND {
        return Err(format!("its kind is {}", page.kind));
    }
    stored::LogPage::decode(page.payload.clone()).map_err(|error| error.to_string())
}

/// Makes a log of pages, oldest first.
pub(super) struct Replay {
    pub tail: Tail,
    pub places: Places,
    pub hard_state: HardState,
    /// Whether the term before the first entry is known. The pages at the front
    /// may have lost what came before them; a later one then tells the start.
    start_known: bool,
    failed: Option<Error>,
}

impl Replay {
    pub(super) fn new(tail: Tail) -> Replay {
        Replay {
            tail,
            places: Places::default(),
            hard_state: HardState::default(),
            start_known: true,
            failed: None,
        }
    }

    /// Takes one page. The first failure stays, and is told by `finish`.
    pub(super) fn take(&mut self, page: &Page) {
        if self.failed.is_some() {
            return;
        }
        if let Err(what) = self.try_take(page) {
            self.failed = Some(Error::Decode { page: page.number.0, what });
        }
    }

    fn try_take(&mut self, page: &Page) -> Result<(), String> {
        let stored = decode_page(page)?;
        if let Some(state) = stored.hard_state {
            if state.term < self.hard_state.term {
                return Err(format!("the term falls from {} to {}", self.hard_state.term, state.term));
            }
            self.hard_state = HardState {
                term: state.term,
                vote: state.vote,
                commit: state.commit,
                ..HardState::default()
            };
        }
        if stored.start_index > 0 {
            self.start_at(stored.start_index, stored.start_term)?;
        }
        let Some((first, last)) = stored.entries.first().zip(stored.entries.last()) else { return Ok(()) };
        let (first, last) = (first.index, last.index);
        if self.tail.start().0 >= first || first > self.tail.last() + 1 {
            // Pages before this one are gone, and with them what lay between.
            // Legitimate as long as a later page tells a start behind the gap.
            if first == 0 {
                return Err("an entry has index 0".into());
            }
            if self.start_known && first <= self.tail.start().0 {
                return Err(format!("entry {first} lies before the log's start"));
            }
            self.begin_at(first - 1, 0);
            self.start_known = first == 1;
        }
        let mut entries = Vec::with_capacity(stored.entries.len());
        let mut before = (first - 1, self.tail.term(first - 1).unwrap_or_default());
        for entry in stored.entries {
            if entry.index != before.0 + 1 || entry.term < before.1 {
                return Err(format!("entry {} does not follow {}", entry.index, before.0));
            }
            before = (entry.index, entry.term);
            let mut entry = from_stored(entry)?;
            // The read buffer is much larger than what is kept of it.
            entry.data = Bytes::copy_from_slice(&entry.data);
            entry.context = Bytes::copy_from_slice(&entry.context);
            entries.push(entry);
        }
        self.tail.append(&entries);
        self.places.put(first, last, page.number);
        self.tail.set_persisted(last);
        Ok(())
    }

    fn begin_at(&mut self, index: u64, term: u64) {
        let applied = self.tail.applied();
        self.tail.reset(index, term);
        self.tail.set_applied(applied);
        self.places = Places::default();
    }

    fn start_at(&mut self, index: u64, term: u64) -> Result<(), String> {
        let start = self.tail.start().0;
        if index < start {
            // An older start than what is there: it told of entries that are gone.
            return if self.start_known {
                Err(format!("the start falls from {start} to {index}"))
            } else {
                Ok(())
            };
        }
        if index > self.tail.last() {
            self.begin_at(index, term);
        } else {
            if (index > start || self.start_known) && self.tail.term(index) != Some(term) {
                return Err(format!("the start {index} has another term than the entry there"));
            }
            self.tail.start_at(index, term);
            self.places.compact(index);
        }
        self.start_known = true;
        Ok(())
    }

    /// The log that the pages make, and its hard state.
    pub(super) fn finish(self) -> Result<(Tail, Places, HardState), Error> {
        let Replay { tail, places, hard_state, start_known, failed } = self;
        if let Some(failed) = failed {
            return Err(failed);
        }
        if !start_known {
            let what = format!("nothing tells the term before entry {}", tail.start().0 + 1);
            return Err(Error::Decode { page: 0, what });
        }
        if hard_state.commit > tail.last() {
            let what = format!("entry {} was committed, the log ends at {}", hard_state.commit, tail.last());
            return Err(Error::Decode { page: 0, what });
        }
        Ok((tail, places, hard_state))
    }
}
