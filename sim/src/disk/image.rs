//! The bytes of one simulated file: what a reader sees, what survives, and what lies between.
//!
//! Promises: a process kill changes nothing here; a power loss keeps, drops or
//! tears any of the unsynced sectors. **Never** knows names, time or faults'
//! likelihoods beyond the dice that it is handed.

use crate::dice::Dice;
use bytes::Bytes;
use std::collections::VecDeque;

/// The unit in which a write may be lost.
pub const SECTOR: u64 = 512;

/// Which unsynced changes a power loss keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Nothing,
    Everything,
    /// The oldest ones, up to somewhere.
    Prefix,
    /// Any subset; a sector may be torn.
    Subset,
}

impl Keep {
    pub fn draw(dice: &mut Dice) -> Keep {
        *dice.pick(&[Keep::Nothing, Keep::Everything, Keep::Prefix, Keep::Subset, Keep::Subset])
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, data: Bytes },
    Length(u64),
}

#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    /// A sync that failed has passed it by: readable, and no later sync will make it durable.
    stale: bool,
}

/// A file's content.
#[derive(Clone, Debug, Default)]
pub struct Image {
    readable: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
    written: Spans,
    /// Where what was written ended at the last syncs, rising.
    ends: VecDeque<u64>,
}

/// Syncs after which a later write of the same file vouches for what was synced before.
const SYNCS_OLD: usize = 3;

impl Image {
    pub fn length(&self) -> u64 {
        self.readable.len() as u64
    }

    pub fn read(&self, at: u64, length: usize) -> Bytes {
        let start = (at as usize).min(self.readable.len());
        let end = start.saturating_add(length).min(self.readable.len());
        Bytes::copy_from_slice(&self.readable[start..end])
    }

    /// Writes; `Err` names the first byte that had been written before (I5).
    pub fn write(&mut self, at: u64, data: Bytes) -> Result<(), u64> {
        let fresh = self.written.add(at, at + data.len() as u64);
        put(&mut self.readable, at, &data);
        self.pending.push(Pending { change: Change::Write { at, data }, stale: false });
        fresh
    }

    pub fn set_length(&mut self, length: u64) {
        self.readable.resize(length as usize, 0);
        self.written.cut(length);
        self.ends.retain(|end| *end <= length);
        self.pending.push(Pending { change: Change::Length(length), stale: false });
    }

    /// A sync that succeeds.
    pub fn sync(&mut self) {
        let Image { durable, pending, .. } = self;
        pending.retain(|one| {
            if !one.stale {
                apply(durable, &one.change);
            }
            one.stale
        });
        let end = self.written.0.last().map_or(0, |span| span.1);
        if self.ends.back().is_none_or(|last| *last < end) {
            self.ends.push_back(end);
        }
        if self.ends.len() > SYNCS_OLD {
            self.ends.pop_front();
        }
    }

    /// A sync that fails: some of it may be durable, all of it stays readable, and no later sync helps.
    pub fn fail_sync(&mut self, dice: &mut Dice) {
        let Image { durable, pending, .. } = self;
        pending.retain_mut(|one| {
            if !one.stale && dice.chance(0.25) {
                apply(durable, &one.change);
                return false;
            }
            one.stale = true;
            true
        });
    }

    /// The power fails: what was not durable is there in part.
    pub fn lose_power(&mut self, keep: Keep, dice: &mut Dice) {
        let pending = std::mem::take(&mut self.pending);
        let prefix = match keep {
            Keep::Nothing => 0,
            Keep::Everything => pending.len(),
            Keep::Prefix => dice.between(0, pending.len() as u64) as usize,
            Keep::Subset => {
                for one in &pending {
                    self.keep_some(&one.change, dice);
                }
                0
            }
        };
        for one in &pending[..prefix] {
            apply(&mut self.durable, &one.change);
        }
        self.readable.clone_from(&self.durable);
        assert!(self.pending.is_empty(), "after a power loss nothing is pending");
    }

    fn keep_some(&mut self, change: &Change, dice: &mut Dice) {
        let Change::Write { at, data } = change else {
            if dice.chance(0.5) {
                apply(&mut self.durable, change);
            }
            return;
        };
        let mut from = 0usize;
        while from < data.len() {
            let position = at + from as u64;
            let size = ((SECTOR - position % SECTOR) as usize).min(data.len() - from);
            let new = &data[from..from + size];
            match dice.below(20) {
                0..9 => put(&mut self.durable, position, new),
                9..18 => {}
                // A torn sector: the head of it is new.
                18 => put(&mut self.durable, position, &new[..dice.below(size as u64) as usize]),
                // A garbled one.
                _ => {
                    let garbled: Vec<u8> = new.iter().map(|byte| byte ^ (dice.word() as u8)).collect();
                    put(&mut self.durable, position, &garbled);
                }
            }
            from += size;
        }
    }

    /// Whether everything that was written is durable.
    pub fn is_synced(&self) -> bool {
        self.pending.is_empty()
    }

    /// Spans that were written and synced long ago, by position: all of a `closed` file's, else what
    /// later syncs of the same file came behind.
    pub fn old_spans(&self, closed: bool) -> Vec<(u64, u64)> {
        let end = match closed && self.is_synced() {
            true => self.ends.back().copied().unwrap_or(0),
            false if self.ends.len() < SYNCS_OLD => 0,
            false => self.ends[0],
        };
        let cut = |(from, to): (u64, u64)| (from, to.min(end));
        self.synced_spans().into_iter().map(cut).filter(|(from, to)| from < to).collect()
    }

    /// Spans that were written and synced, oldest position first.
    fn synced_spans(&self) -> Vec<(u64, u64)> {
        let mut spans = self.written.clone();
        for one in &self.pending {
            if let Change::Write { at, data } = &one.change {
                spans.remove(*at, *at + data.len() as u64);
            }
        }
        spans.0.into_iter().filter(|(_, end)| *end <= self.durable.len() as u64).collect()
    }

    /// Overwrites stored bytes behind everyone's back (rot, a misdirected write).
    pub fn damage(&mut self, at: u64, change: impl Fn(usize, u8) -> u8, length: usize) {
        for stored in [&mut self.readable, &mut self.durable] {
            let start = (at as usize).min(stored.len());
            let end = (start + length).min(stored.len());
            for (index, byte) in stored[start..end].iter_mut().enumerate() {
                *byte = change(index, *byte);
            }
        }
    }

    /// Takes a write for done without storing it (it went elsewhere).
    pub fn pretend(&mut self, at: u64, length: u64) -> Result<(), u64> {
        let end = at + length;
        if self.readable.len() < end as usize {
            self.set_length(end);
        }
        self.written.add(at, end)
    }
}

fn put(image: &mut Vec<u8>, at: u64, data: &[u8]) {
    let (start, end) = (at as usize, at as usize + data.len());
    if image.len() < end {
        image.resize(end, 0);
    }
    image[start..end].copy_from_slice(data);
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { at, data } => put(image, *at, data),
        Change::Length(length) => image.resize(*length as usize, 0),
    }
}

/// Disjoint, sorted, non-adjacent half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Adds a range; `Err` names the first byte that was in already.
    fn add(&mut self, start: u64, end: u64) -> Result<(), u64> {
        if start == end {
            return Ok(());
        }
        let first = self.0.partition_point(|span| span.1 < start);
        let last = self.0.partition_point(|span| span.0 <= end);
        let mut fresh = Ok(());
        let (mut low, mut high) = (start, end);
        for span in &self.0[first..last] {
            if span.0 < end && start < span.1 && fresh.is_ok() {
                fresh = Err(span.0.max(start));
            }
            low = low.min(span.0);
            high = high.max(span.1);
        }
        self.0.splice(first..last, [(low, high)]);
        fresh
    }

    fn remove(&mut self, start: u64, end: u64) {
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for span in &self.0 {
            left.extend([(span.0, span.1.min(start)), (span.0.max(end), span.1)]);
        }
        left.retain(|span| span.0 < span.1);
        self.0 = left;
    }

    fn cut(&mut self, length: u64) {
        self.remove(length, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(size: usize, byte: u8) -> Bytes {
        Bytes::from(vec![byte; size])
    }

    fn dice() -> Dice {
        Dice::new("image", 1)
    }

    #[test]
    fn a_power_loss_takes_only_what_was_not_synced() {
        for (keep, survives) in [(Keep::Nothing, 0u8), (Keep::Everything, 2)] {
            let mut image = Image::default();
            image.write(0, filled(1024, 1)).unwrap();
            image.sync();
            image.write(1024, filled(1024, 2)).unwrap();
            assert_eq!(image.read(1024, 1)[..], [2], "unsynced bytes are readable");
            image.lose_power(keep, &mut dice());
            assert_eq!(image.read(0, 1024), filled(1024, 1));
            assert_eq!(image.read(1024, 4).first().copied().unwrap_or(0), survives);
        }
    }

    #[test]
    fn a_subset_keeps_drops_and_tears_sectors() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        let mut dice = dice();
        for _ in 0..50 {
            let mut image = Image::default();
            image.set_length(8 * SECTOR);
            image.sync();
            image.write(0, filled(8 * SECTOR as usize, 7)).unwrap();
            image.lose_power(Keep::Subset, &mut dice);
            for sector in 0..8 {
                let bytes = image.read(sector * SECTOR, SECTOR as usize);
                if bytes.iter().all(|byte| *byte == 7) {
                    kept += 1;
                } else if bytes.iter().all(|byte| *byte == 0) {
                    lost += 1;
                } else {
                    torn += 1;
                }
            }
        }
        assert!(kept > 100 && lost > 100 && torn > 10, "{kept} {lost} {torn}");
    }

    #[test]
    fn after_a_failed_sync_bytes_are_readable_and_a_later_sync_does_not_save_them() {
        let mut dice = dice();
        let mut lost = 0;
        for _ in 0..40 {
            let mut image = Image::default();
            image.write(0, filled(512, 9)).unwrap();
            image.fail_sync(&mut dice);
            assert_eq!(image.read(0, 512), filled(512, 9));
            image.write(512, filled(512, 8)).unwrap();
            image.sync();
            image.lose_power(Keep::Nothing, &mut dice);
            assert_eq!(image.read(512, 512), filled(512, 8), "the second write was synced");
            lost += usize::from(image.read(0, 512) != filled(512, 9));
        }
        assert!((20..40).contains(&lost), "{lost}");
    }

    #[test]
    fn overwriting_is_told() {
        let mut image = Image::default();
        image.write(0, filled(100, 1)).unwrap();
        image.write(200, filled(100, 1)).unwrap();
        assert_eq!(image.write(150, filled(100, 1)), Err(200));
        assert_eq!(image.write(99, filled(1, 1)), Err(99));
        image.set_length(50);
        assert_eq!(image.write(50, filled(10, 1)), Ok(()), "what was cut off may be written anew");
    }

    #[test]
    fn synced_spans_leave_out_what_is_pending() {
        let mut image = Image::default();
        image.write(0, filled(1000, 1)).unwrap();
        image.sync();
        image.write(1000, filled(24, 1)).unwrap();
        assert_eq!(image.synced_spans(), [(0, 1000)]);
        assert!(!image.is_synced());
    }
}
