//! Entries for fuzzing: whatever the bytes are, nothing here panics.
//!
//! Each takes what the decoders of stored bytes take, and what comes out of
//! them is loaded as an open would load it.

use super::{Fields, Mvcc, Record, SliceHead, records};
use crate::pagefile::PageNumber;

/// Marks that an open may have: never compacted, compacted in the midst, compacted at the head.
const MARKS: [(i64, i64); 3] = [(i64::MAX, -1), (i64::MAX, 1 << 20), (i64::MAX, i64::MAX)];

/// A record page, as written or merged.
pub fn record_page(payload: &[u8]) {
    // A merged page says its own number, which the page file has checked.
    let merged =
        payload.get(24..32).map_or(1, |bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
    for number in [1, merged] {
        for (_, Record { key_value, .. }) in records(PageNumber(number), payload).flatten() {
            fields(key_value);
        }
        for (revision, compacted) in MARKS {
            let mut mvcc = Mvcc::default();
            if mvcc.load_mark(revision, compacted).is_ok()
                && mvcc.load_page(PageNumber(number), payload).is_ok()
            {
                while !mvcc.compact_step(usize::MAX) {}
                let _ = mvcc.live_pages(PageNumber(0), 9);
            }
        }
    }
}

/// A slice of a checkpoint.
pub fn slice(payload: &[u8]) {
    let _ = SliceHead::of(payload);
    for (revision, compacted) in MARKS {
        let mut mvcc = Mvcc::default();
        if mvcc.load_mark(revision, compacted).is_ok() && mvcc.load_slice(payload).is_ok() {
            // Once more: the same range again.
            let _ = mvcc.load_slice(payload);
            let _ = mvcc.first_page_to_load();
            let _ = mvcc.checkpoint_slice(b"", usize::MAX);
        }
    }
}

/// An encoded `KeyValue`.
pub fn fields(bytes: &[u8]) {
    if let Ok(fields) = Fields::decode(bytes) {
        let mut again = Vec::new();
        fields.encode(&mut again);
    }
}
