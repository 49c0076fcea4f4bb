//! The directory of a sealed segment: what each of its pages is and where.
//!
//! Owns its encoding (byte for byte in the room's head) and what the page file
//! keeps in memory for each page. Promises that bytes of any origin decode to a
//! directory in order or to a reason why not, never to a panic. Never does I/O.

use super::header::{HEADER, Header, footprint};
use super::{Label, NUMBERS_END, PageFacts, PageNumber};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

const HEAD: usize = 8;
const ENTRY: usize = 36;

/// One page of a segment: enough to find it, and to know it when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub number: u64,
    pub label: Label,
    /// Where it begins, in units of the page size.
    pub slot: u32,
    /// Bytes of payload.
    pub length: u32,
    /// The checksum in its header.
    pub checksum: u32,
    pub span: u16,
    pub kind: u8,
}

impl Entry {
    pub(super) fn new(header: &Header, checksum: u32, page_size: u64) -> Entry {
        assert!(!header.internal, "internal pages have no entry");
        let slot = u32::try_from(header.position / page_size).expect("a segment has less than 2^32 slots");
        Entry {
            number: header.number,
            label: header.label,
            slot,
            length: header.length,
            checksum,
            span: header.span,
            kind: header.kind,
        }
    }

    /// The last page number that it stands for.
    pub(super) fn last(&self) -> u64 {
        self.number + u64::from(self.span)
    }

    pub(super) fn facts(&self, page_size: u64) -> PageFacts {
        PageFacts {
            number: PageNumber(self.number),
            span: self.span,
            kind: self.kind,
            label: self.label,
            length: self.length,
            footprint: u32::try_from(footprint(self.length as usize, page_size)).unwrap_or(u32::MAX),
        }
    }

    /// Whether `header` (checked, with this checksum) is the page that was written here.
    pub(super) fn is(&self, header: &Header, checksum: u32) -> bool {
        header.number == self.number && header.length == self.length && checksum == self.checksum
    }
}

/// Bytes on disk of a directory of so many pages.
pub(super) fn room(pages: usize, page_size: u64) -> u64 {
    footprint(HEAD + pages * ENTRY, page_size)
}

pub(super) fn encode(entries: &[Entry]) -> Bytes {
    let mut bytes = Vec::with_capacity(HEAD + entries.len() * ENTRY);
    bytes.extend_from_slice(&u32::try_from(entries.len()).expect("less than 2^32 slots").to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for entry in entries {
        bytes.extend_from_slice(&entry.number.to_le_bytes());
        bytes.extend_from_slice(&entry.label.first.to_le_bytes());
        bytes.extend_from_slice(&entry.label.weight.to_le_bytes());
        bytes.extend_from_slice(&entry.slot.to_le_bytes());
        bytes.extend_from_slice(&entry.length.to_le_bytes());
        bytes.extend_from_slice(&entry.checksum.to_le_bytes());
        bytes.extend_from_slice(&entry.span.to_le_bytes());
        bytes.extend_from_slice(&[entry.kind, 0]);
    }
    assert_eq!(bytes.len(), HEAD + entries.len() * ENTRY, "every entry has the same length");
    bytes.into()
}

/// SHA-256 of a directory's payload.
pub(super) fn digest(payload: &[u8]) -> [u8; 32] {
    Sha256::digest(payload).into()
}

/// Decodes bytes of any origin. `end`: where the directory itself begins.
pub(super) fn decode(payload: &[u8], page_size: u64, end: u64) -> Result<Vec<Entry>, &'static str> {
    let Some((head, rest)) = payload.split_first_chunk::<HEAD>() else {
        return Err("the directory is too short");
    };
    let [a, b, c, d, reserved @ ..] = *head;
    let count = u32::from_le_bytes([a, b, c, d]) as usize;
    if reserved != [0; 4] || count.checked_mul(ENTRY) != Some(rest.len()) {
        return Err("the directory's length does not match");
    }
    let mut entries = Vec::with_capacity(count);
    let (mut number_min, mut position) = (1, 0);
    for bytes in rest.chunks_exact(ENTRY) {
        let (Some(entry), Some(0)) = (entry(bytes), bytes.last()) else {
            return Err("reserved bits are set");
        };
        if entry.number < number_min || entry.number >= NUMBERS_END {
            return Err("the directory's pages are out of order");
        }
        let at = u64::from(entry.slot) * page_size;
        if at < position {
            return Err("the directory's pages overlap");
        }
        number_min = entry.last() + 1;
        position = at + footprint(entry.length as usize, page_size);
        entries.push(entry);
    }
    if position > end {
        return Err("the directory lists a page behind itself");
    }
    Ok(entries)
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let (number, bytes) = bytes.split_first_chunk()?;
    let (first, bytes) = bytes.split_first_chunk()?;
    let (weight, bytes) = bytes.split_first_chunk()?;
    let (slot, bytes) = bytes.split_first_chunk()?;
    let (length, bytes) = bytes.split_first_chunk()?;
    let (checksum, bytes) = bytes.split_first_chunk()?;
    let (span, bytes) = bytes.split_first_chunk()?;
    Some(Entry {
        number: u64::from_le_bytes(*number),
        label: Label { first: u64::from_le_bytes(*first), weight: u32::from_le_bytes(*weight) },
        slot: u32::from_le_bytes(*slot),
        length: u32::from_le_bytes(*length),
        checksum: u32::from_le_bytes(*checksum),
        span: u16::from_le_bytes(*span),
        kind: *bytes.first()?,
    })
}

const _: () = assert!(HEADER + HEAD + ENTRY < 512, "the smallest page holds a directory of one page");

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Entry> {
        let entry = |number, slot, length, span| Entry {
            number,
            label: Label { first: number * 3, weight: 7 },
            slot,
            length,
            checksum: 0x0102_0304,
            span,
            kind: 200,
        };
        vec![entry(5, 0, 100, 0), entry(6, 1, 900, 20), entry(40, 3, 0, 0)]
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let bytes = encode(&sample());
        assert_eq!(decode(&bytes, 512, 2048), Ok(sample()));
        assert_eq!(decode(&encode(&[]), 512, 0), Ok(Vec::new()));
        assert!(bytes.len() as u64 <= room(3, 512));
        assert!(decode(&bytes, 512, 2047).is_err(), "a page reaches behind the directory");
    }

    #[test]
    fn disorder_is_refused_and_nothing_panics() {
        let good = sample();
        let refused = |change: fn(&mut Vec<Entry>)| {
            let mut entries = good.clone();
            change(&mut entries);
            decode(&encode(&entries), 512, 2048).unwrap_err()
        };
        assert!(refused(|entries| entries.swap(0, 1)).contains("order"));
        assert!(refused(|entries| entries[1].span = 34).contains("order"));
        assert!(refused(|entries| entries[0].number = 0).contains("order"));
        assert!(refused(|entries| entries[2].number = NUMBERS_END).contains("order"));
        assert!(refused(|entries| entries[2].slot = 2).contains("overlap"));
        assert!(refused(|entries| entries[2].length = u32::MAX).contains("behind"));
        let bytes = encode(&good);
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = bytes.to_vec();
                bad[at] = value;
                drop(decode(&bad, 512, 2048));
            }
            assert!(decode(&bytes[..at], 512, 2048).is_err(), "cut to {at}");
        }
    }
}
