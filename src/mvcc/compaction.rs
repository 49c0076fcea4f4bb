//! Compaction: logical at once, physical in small steps, held back by views.
//!
//! **Promises**: no answer, hash or history at or above the compacted mark
//! depends on what was physically dropped; a pinned view loses nothing; what
//! [`Mvcc::survives`] gives up cannot come back, whatever is cleaned next and
//! however the store is opened.

use super::{
    Error, Mvcc,
    page::Place,
    record::{Fields, Record},
};
use crate::pagefile::PageNumber;

impl Mvcc {
    /// Compaction (C1 to C4): at once for every reader; [`Mvcc::compact_step`] frees memory later.
    pub fn compact(&mut self, revision: i64) -> Result<(), Error> {
        if revision <= self.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.revision() {
            return Err(Error::FutureRevision);
        }
        self.compacted = revision;
        Ok(())
    }

    /// Holds physical compaction back at the current compacted mark, which is returned, until
    /// [`Mvcc::unpin`]. Compaction as readers see it goes on. Each pin is to be undone once.
    pub fn pin(&mut self) -> i64 {
        *self.pins.entry(self.compacted).or_insert(0) += 1;
        self.compacted
    }

    /// Undoes one [`Mvcc::pin`]; then [`Mvcc::compacting`] may hold again.
    pub fn unpin(&mut self, compacted: i64) {
        let pins = self.pins.get_mut(&compacted).expect("what is unpinned was pinned");
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&compacted);
        }
    }

    /// Records that a compaction step has dropped leave the counts of their pages a little later, so that
    /// no step is long. Takes up to `work_max` of them out; `true`: the counts are those of the index.
    pub fn settle(&mut self, work_max: usize) -> bool {
        let Mvcc { index, tail, .. } = self;
        index.tell_dropped(work_max, |place| tail.discount(place));
        index.is_settled()
    }

    /// How far physical compaction may go now.
    pub(super) fn compaction_goal(&self) -> i64 {
        let held = self.pins.first_key_value().map(|(compacted, _)| *compacted);
        held.map_or(self.compacted, |held| held.min(self.compacted))
    }

    /// Drops what compaction hides, about `work_max` (at least 1) keys and records more; `true`
    /// when nothing is left to do now (views may hold the rest back). No answer depends on it.
    pub fn compact_step(&mut self, work_max: usize) -> bool {
        let Ok(goal) = u64::try_from(self.compaction_goal()) else { return true };
        let Mvcc { index, tail, .. } = self;
        index.compact_step(goal, work_max, |place| tail.discount(place))
    }

    /// Whether [`Mvcc::compact_step`] has work to do now.
    pub fn compacting(&self) -> bool {
        u64::try_from(self.compaction_goal()).is_ok_and(|goal| !self.index.compacted(goal))
    }

    /// Up to where physical compaction is finished; -1: never compacted.
    pub fn physically_compacted(&self) -> i64 {
        self.index.done().map_or(super::NEVER_COMPACTED, |done| done as i64)
    }

    /// What is read at a view with this compacted mark must still be there.
    pub(super) fn assert_whole(&self, compacted: i64) {
        assert!(self.compaction_goal() <= compacted, "a view is pinned while it is read");
    }

    /// The cleaner's question: whether a record that stands at `place` must be kept. True if the index
    /// points to it. True too for a tombstone that nobody reads any more while an older record of its
    /// key might come back to life without it when the store is opened:
    /// - from a page below that holds dead records. `oldest_dead` is the lowest number of a page that
    ///   has fewer live records than its weight, the pages that this copy replaces left out (all that
    ///   is dead in them goes together); `PageNumber(u64::MAX)` if there is none.
    /// - from a slice of the checkpoint that does not know of the tombstone. `oldest_slice` is the
    ///   smallest `as_of` of the slices that may be loaded; `u64::MAX` if there is no checkpoint.
    ///   For the same reason no page from that slice's `first_page` on may be dropped unread.
    ///
    /// For the whole of a copy no [`Mvcc::compact_step`] may come between, and before `oldest_dead` is
    /// looked for [`Mvcc::settle`] must be done: a count that is too high hides what is dead. What was
    /// dropped so far must be compacted by the durable mark before the copy is adopted. Bytes that
    /// are no record are kept: it is not the cleaner who judges them.
    pub fn survives(
        &self,
        record: &Record<'_>,
        place: Place,
        oldest_dead: PageNumber,
        oldest_slice: u64,
    ) -> bool {
        assert!(self.index.is_settled(), "what is dead is counted before it is asked for");
        let Ok(fields) = Fields::decode(record.key_value) else { return true };
        if self.index.holds(fields.key, record.main, place) {
            return true;
        }
        let waits = record.tombstone && (place.page() > oldest_dead || place.word() >= oldest_slice);
        if waits {
            crate::reached!("cleaner kept a dead tombstone");
        }
        waits
    }
}
