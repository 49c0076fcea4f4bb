//! Keys through time: an index in memory, records in pages.
//!
//! | file | what |
//! |---|---|
//! | `record.rs` | a record's `KeyValue` bytes, as etcd stores them |
//! | `page.rs` | the layout of a page of records, byte for byte; places |
//! | `merge.rs` | merged pages, which the cleaner leaves |
//! | `tail.rs` | pages being filled, and the count of what still counts in each |
//! | `keys.rs`, `tree.rs` | packed keys in a counted B+ tree |
//! | `revisions.rs` | all retained records of one key |
//! | `index.rs` | key → records through time → where they lie |
//! | `view.rs` | a revision and the compacted mark that belongs to it |
//! | `compaction.rs` | compaction, pins, what a cleaner must keep |
//! | `checkpoint.rs` | slices of the index, to open with |
//! | `load.rs` | the index from mark, slices and pages |
//! | `choice.rs` | which pairs a range shows, and in which order |
//! | `range.rs` | Range: plan by the index, finish with pages |
//! | `draft.rs` | put, delete and range before anything is changed |
//! | `txn.rs` | Txn on a draft |
//! | `check.rs` | checks that look only at a request |
//! | `history.rs` | records in the order of revisions |
//! | `revision_key.rs` | a record's key as etcd stores it |
//! | `hash.rs` | HashKV |
//! | `fuzz.rs` | decoders for fuzzing |
//!
//! **Invariants.** A call either completes or names the pages it lacks with
//! nothing changed. Reads at or above the compacted revision, hashes and
//! histories included, do not depend on how much was physically removed. A
//! record's address never changes, whatever the cleaner moves.
//! **Never** I/O, clock, randomness, locks: what is not in memory is named and
//! fetched by the caller.

pub mod check;
mod checkpoint;
mod choice;
mod compaction;
mod draft;
#[doc(hidden)]
pub mod fuzz;
mod hash;
mod history;
mod index;
mod keys;
mod load;
mod merge;
mod page;
mod range;
mod record;
mod revision_key;
mod revisions;
mod tail;
#[cfg(test)]
mod tests;
mod tree;
mod txn;
mod view;

pub use checkpoint::{Slice, SliceHead};
pub use choice::Choice;
pub use hash::HashKv;
pub use history::{Change, History, HistoryPlan, ScanCost};
pub use merge::{Merge, MergedPage};
pub(crate) use page::OpenPage;
pub use page::{Head, PAGE_BYTES, Place, Records, page_of, records, word_of};
pub use range::{RangePlan, RangeSlice};
pub use record::{Fields, Malformed, Record};
pub use revision_key::RevisionKey;
pub use txn::{has_put, is_read_only, is_serializable};
pub use view::View;

use crate::pagefile::PageNumber;
use bytes::Bytes;
use checkpoint::Coverage;
use draft::{Draft, Write, check_put};
use index::{Index, Span};
use quorate_proto::etcdserverpb as pb;
use range::header;
use std::{collections::BTreeMap, ops::RangeInclusive};
use tail::Tail;

/// Looks up pages that are in memory; a page that is not is to be fetched by the caller.
pub trait Pages {
    /// The payload of the page that stands for `page` now, as written or merged, if it is in memory.
    fn get(&self, page: PageNumber) -> Option<Bytes>;
}

/// Pages that a call needs and that are not in memory: nothing was changed;
/// fetch them and call again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Vec<PageNumber>);

/// Answers of mvcc that are errors; texts in `api`'s table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("key not found")]
    KeyNotFound,
    #[error("requested lease not found")]
    LeaseNotFound,
}

/// The revision of a store without any write (P1).
const FIRST_REVISION: u64 = 1;
/// The compacted mark of a store never compacted (C2).
const NEVER_COMPACTED: i64 = -1;

/// All keys and their history.
#[derive(Debug)]
pub struct Mvcc {
    index: Index,
    tail: Tail,
    revision: u64,
    compacted: i64,
    /// (main, sub) of the last record that was loaded or written.
    last: (u64, u64),
    /// Compacted marks that views hold, each with how many of them.
    pins: BTreeMap<i64, u32>,
    /// While a store is opened: what came from its checkpoint.
    loading: Option<Coverage>,
}

impl Default for Mvcc {
    fn default() -> Self {
        Mvcc {
            index: Index::default(),
            tail: Tail::new(),
            revision: FIRST_REVISION,
            compacted: NEVER_COMPACTED,
            last: (0, 0),
            pins: BTreeMap::new(),
            loading: None,
        }
    }
}

impl Mvcc {
    pub fn revision(&self) -> i64 {
        self.revision as i64
    }

    /// -1: never compacted.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Keys that are live at the current revision.
    pub fn live_keys(&self) -> u64 {
        self.index.live_keys()
    }

    /// Put (P1 to P5, P8); the request has passed [`check::check_put`].
    pub fn put(
        &mut self,
        request: &pb::PutRequest,
        pages: &dyn Pages,
    ) -> Result<Result<pb::PutResponse, Error>, Missing> {
        if !(request.prev_kv || request.ignore_value || request.ignore_lease) {
            // Nothing is read, so nothing can lack or fail behind the checks: one look at the index.
            return Ok(check_put(request, || true).map(|()| self.put_blind(request)));
        }
        let mut draft = Draft::new(self, pages, true);
        let response = draft.put(request);
        let writes = draft.finish()?;
        Ok(response.inspect(|_| self.commit(&writes)))
    }

    fn put_blind(&mut self, request: &pb::PutRequest) -> pb::PutResponse {
        let main = self.revision + 1;
        let Mvcc { index, tail, .. } = self;
        index.put(&request.key, main, |create, version| {
            let fields = Fields {
                key: &request.key,
                create_revision: create as i64,
                mod_revision: main as i64,
                version: version as i64,
                value: &request.value,
                lease: request.lease,
            };
            tail.append(main, 0, false, &fields)
        });
        self.advance(main, 1);
        pb::PutResponse { header: Some(header(self.revision())), prev_kv: None }
    }

    /// DeleteRange (P6 to P8); the request has passed [`check::check_delete`].
    pub fn delete_range(
        &mut self,
        request: &pb::DeleteRangeRequest,
        pages: &dyn Pages,
    ) -> Result<pb::DeleteRangeResponse, Missing> {
        if request.prev_kv {
            let mut draft = Draft::new(self, pages, true);
            let response = draft.delete(request);
            let writes = draft.finish()?;
            self.commit(&writes);
            return Ok(response);
        }
        // Nothing is read, so the keys need not be listed first.
        let mut deleted = 0;
        if let Some(span) = Span::new(&request.key, &request.range_end) {
            let (main, mut sub) = (self.revision + 1, 0);
            let Mvcc { index, tail, .. } = self;
            deleted = index.delete_all(span, main, |key| {
                let place = tail.append(main, sub, true, &Fields::tombstone(key));
                sub += 1;
                place
            });
            if deleted > 0 {
                self.advance(main, sub);
            }
        }
        Ok(pb::DeleteRangeResponse {
            header: Some(header(self.revision())),
            deleted: deleted as i64,
            prev_kvs: Vec::new(),
        })
    }

    /// Txn (T5 to T16); the request has passed [`check::check_txn`].
    pub fn txn(
        &mut self,
        request: &pb::TxnRequest,
        pages: &dyn Pages,
    ) -> Result<Result<pb::TxnResponse, Error>, Missing> {
        Ok(self.resolve_txn(request, pages)?.map(|(response, writes)| {
            self.commit(&writes);
            response
        }))
    }

    /// Carries out what a draft worked out: one revision for all (T13).
    fn commit(&mut self, writes: &[Write]) {
        if writes.is_empty() {
            return;
        }
        let main = self.revision + 1;
        let Mvcc { index, tail, .. } = self;
        for (sub, write) in (0..).zip(writes) {
            match write {
                Write::Put { key, value, lease, create_revision, version } => {
                    index.put(key, main, |create, number| {
                        assert_eq!(
                            (create, number),
                            (*create_revision, *version),
                            "a draft sees what it changes"
                        );
                        let fields = Fields {
                            key,
                            create_revision: create as i64,
                            mod_revision: main as i64,
                            version: number as i64,
                            value,
                            lease: *lease,
                        };
                        tail.append(main, sub, false, &fields)
                    });
                }
                Write::Delete { key } => {
                    let place = tail.append(main, sub, true, &Fields::tombstone(key));
                    index.delete(key, main, place);
                }
            }
        }
        self.advance(main, writes.len() as u64);
    }

    fn advance(&mut self, main: u64, records: u64) {
        assert!(main == self.revision + 1 && records > 0, "each change takes the next revision");
        self.revision = main;
        self.last = (main, records - 1);
    }

    /// See [`Tail`].
    pub fn take_sealed(&mut self) -> Vec<(PageNumber, Bytes)> {
        self.tail.take_sealed()
    }

    pub fn seal(&mut self) {
        self.tail.seal();
    }

    /// The number that the (empty) open page will have; loading ends here.
    pub fn set_next_page(&mut self, next: PageNumber) {
        self.loading = None;
        self.tail.set_next(next);
    }

    /// Bytes of records that were written and not taken yet.
    pub fn untaken_bytes(&self) -> u64 {
        self.tail.untaken_bytes()
    }

    /// Pages below this hold nothing that any reader may still ask for.
    pub fn oldest_live_page(&self) -> PageNumber {
        self.tail.oldest_live()
    }

    /// Records in pages of these numbers that the index points to: what is live of a page with
    /// this span. During a compaction it may be too many, see [`Mvcc::settle`].
    pub fn live_records(&self, pages: RangeInclusive<PageNumber>) -> u32 {
        self.tail.live_records(pages)
    }

    /// Up to `pages_max` pages from `from` on, ascending, that hold records which still count: what a
    /// hash or a copy of the whole store has to read. Pages that [`Mvcc::holds`] are not to be
    /// fetched elsewhere: seal and take them first.
    pub fn live_pages(&self, from: PageNumber, pages_max: usize) -> Vec<PageNumber> {
        self.tail.live_pages(from, pages_max)
    }

    /// How many pages hold records that still count.
    pub fn live_page_count(&self) -> u64 {
        self.tail.live_page_count()
    }

    /// The page being filled and a copy of what it holds so far.
    pub fn open_page(&self) -> (PageNumber, Bytes) {
        self.tail.open_page()
    }

    /// A page that was not taken yet; of the open one a copy of what it holds so far.
    pub fn page(&self, page: PageNumber) -> Option<Bytes> {
        self.tail.page(page)
    }

    /// Whether the page was not taken yet.
    pub fn holds(&self, page: PageNumber) -> bool {
        self.tail.holds(page)
    }
}
