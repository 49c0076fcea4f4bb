//! The header of a page, byte for byte (the table is in the room's head).
//!
//! Owns encoding and checking. Promises that bytes of any origin decode to a
//! header or to a [`Fault`], never to a panic, and that a page is taken only at
//! the place it was written for. Never decides what a fault means (rot or tear:
//! that is recovery's).

use super::{FEATURES_KNOWN, FORMAT_VERSION, Label, NUMBERS_END};

/// Bytes of a header; the payload follows at once.
pub(super) const HEADER: usize = 96;
const MAGIC: [u8; 8] = *b"QrtmPage";
const CHECKSUM_AT: usize = HEADER - 4;
/// The page is the last of its commit.
const FLAG_END: u8 = 1;
/// The page is the page file's own and takes no page number.
const FLAG_INTERNAL: u8 = 2;
/// The page stands in a segment made by copying, which is durable as a whole.
const FLAG_COPY: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_END | FLAG_INTERNAL | FLAG_COPY;

/// Kinds of internal pages.
pub(super) const MARK: u8 = 0;
pub(super) const DIRECTORY: u8 = 1;

/// What stands before a page's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub segment: u128,
    /// Bytes from the start of the segment.
    pub position: u64,
    /// 0 for an internal page.
    pub number: u64,
    /// The page stands for `number..=number + span`.
    pub span: u16,
    pub commit: u64,
    /// Highest commit known to be synced when this one was written; 0 = none.
    pub synced: u64,
    pub kind: u8,
    pub end: bool,
    pub internal: bool,
    pub copy: bool,
    pub label: Label,
    /// Bytes of payload.
    pub length: u32,
}

/// Why bytes are not the page that should be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Bad(&'static str),
    /// Whole and checked, but written by a later release.
    Version(u32),
    Features(u64),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were taken"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were taken"))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes were taken"))
}

/// The checksum that stands in a header's bytes.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    u32_at(bytes, CHECKSUM_AT)
}

impl Header {
    /// A page of the page file's own: a mark or a directory, a commit of its own.
    pub(super) fn internal(kind: u8, segment: u128, position: u64, commit: u64, synced: u64) -> Header {
        Header {
            segment,
            position,
            number: 0,
            span: 0,
            commit,
            synced,
            kind,
            end: true,
            internal: true,
            copy: false,
            label: Label::default(),
            length: 0,
        }
    }

    /// Header bytes with the checksum over them and `payload`.
    pub(super) fn encode(&self, payload: &[u8]) -> [u8; HEADER] {
        assert_eq!(self.length as usize, payload.len(), "the header must name the payload's length");
        assert!(self.internal == (self.number == 0), "internal pages, and only they, have no number");
        assert!(self.commit > self.synced, "a commit cannot be synced before it is written");
        assert!(self.span == 0 || self.copy, "only copying merges pages");
        let mut bytes = [0; HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&FEATURES_KNOWN.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.segment.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.position.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.number.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.commit.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.synced.to_le_bytes());
        bytes[72] = self.kind;
        let flag = |set: bool, flag| if set { flag } else { 0 };
        bytes[73] =
            flag(self.end, FLAG_END) | flag(self.internal, FLAG_INTERNAL) | flag(self.copy, FLAG_COPY);
        bytes[74..76].copy_from_slice(&self.span.to_le_bytes());
        bytes[76..80].copy_from_slice(&self.label.weight.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.label.first.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM_AT]), payload);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Bytes of payload that a header claims, if it looks like a header at all.
    /// Nothing is checked yet but the magic.
    pub(super) fn claimed_length(bytes: &[u8]) -> Result<usize, Fault> {
        if bytes.len() < HEADER {
            return Err(Fault::Bad("the segment ends inside a header"));
        }
        if bytes[0..8] != MAGIC {
            return Err(Fault::Bad("no page begins here"));
        }
        Ok(u32_at(bytes, 12) as usize)
    }

    /// Checks header and payload (`bytes` may go on behind them) against the
    /// place they were read from.
    pub(super) fn check(bytes: &[u8], segment: u128, position: u64) -> Result<Header, Fault> {
        let length = Header::claimed_length(bytes)?;
        let Some(payload) = bytes[HEADER..].get(..length) else {
            return Err(Fault::Bad("the segment ends inside a payload"));
        };
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM_AT]), payload);
        if checksum != u32_at(bytes, CHECKSUM_AT) {
            return Err(Fault::Bad("the checksum does not match"));
        }
        // Only a page that is whole may say that it comes from another release:
        // a torn one must not pass for that.
        match u32_at(bytes, 8) {
            FORMAT_VERSION => {}
            version => return Err(Fault::Version(version)),
        }
        match u64_at(bytes, 16) & !FEATURES_KNOWN {
            0 => {}
            features => return Err(Fault::Features(features)),
        }
        let flags = bytes[73];
        let header = Header {
            segment: u128_at(bytes, 24),
            position: u64_at(bytes, 40),
            number: u64_at(bytes, 48),
            span: u16::from_le_bytes([bytes[74], bytes[75]]),
            commit: u64_at(bytes, 56),
            synced: u64_at(bytes, 64),
            kind: bytes[72],
            end: flags & FLAG_END != 0,
            internal: flags & FLAG_INTERNAL != 0,
            copy: flags & FLAG_COPY != 0,
            label: Label { first: u64_at(bytes, 80), weight: u32_at(bytes, 76) },
            length: length as u32,
        };
        if header.segment != segment {
            return Err(Fault::Bad("the page belongs to another segment"));
        }
        if header.position != position {
            return Err(Fault::Bad("the page belongs to another position"));
        }
        if flags & !FLAGS_KNOWN != 0 || bytes[88..CHECKSUM_AT] != [0; 4] {
            return Err(Fault::Bad("reserved bits are set"));
        }
        let numbered = header.internal == (header.number == 0);
        let spans = header.span == 0 || header.copy && !header.internal;
        if !numbered || !spans || header.commit <= header.synced {
            return Err(Fault::Bad("the header contradicts itself"));
        }
        if header.number >= NUMBERS_END || header.commit >= NUMBERS_END {
            return Err(Fault::Bad("the header names an impossible number"));
        }
        Ok(header)
    }
}

/// Bytes that a page with this payload takes, alignment included.
pub(super) fn footprint(payload: usize, page_size: u64) -> u64 {
    (HEADER as u64 + payload as u64).next_multiple_of(page_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Header, Vec<u8>) {
        let payload = b"seventeen bytes..".to_vec();
        let header = Header {
            segment: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
            position: 4096,
            number: 7,
            span: 300,
            commit: 5,
            synced: 3,
            kind: 9,
            end: true,
            internal: false,
            copy: true,
            label: Label { first: 0x0102_0304_0506_0708, weight: 0x1112_1314 },
            length: payload.len() as u32,
        };
        (header, payload)
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let (header, payload) = sample();
        let bytes = [&header.encode(&payload)[..], &payload].concat();
        assert_eq!(Header::check(&bytes, header.segment, header.position), Ok(header));
        assert!(Header::check(&bytes, header.segment ^ 1, header.position).is_err());
        assert!(Header::check(&bytes, header.segment, 0).is_err());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let (header, payload) = sample();
        let bytes = [&header.encode(&payload)[..], &payload].concat();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = Header::check(&bad, header.segment, header.position);
            assert!(matches!(found, Err(Fault::Bad(_))), "bit {bit}: {found:?}");
        }
        for length in 0..bytes.len() {
            let found = Header::check(&bytes[..length], header.segment, header.position);
            assert!(matches!(found, Err(Fault::Bad(_))), "length {length}: {found:?}");
        }
    }

    #[test]
    fn a_whole_page_of_another_release_says_so() {
        let (header, payload) = sample();
        let bytes = [&header.encode(&payload)[..], &payload].concat();
        let resealed = |at: usize, value: u8| {
            let mut other = bytes.clone();
            other[at] = value;
            let checksum = crc32c::crc32c_append(crc32c::crc32c(&other[..CHECKSUM_AT]), &payload);
            other[CHECKSUM_AT..HEADER].copy_from_slice(&checksum.to_le_bytes());
            Header::check(&other, header.segment, header.position)
        };
        assert_eq!(resealed(8, 2), Err(Fault::Version(2)));
        assert_eq!(resealed(16, 4), Err(Fault::Features(4)));
        assert_eq!(resealed(73, 0x80), Err(Fault::Bad("reserved bits are set")));
    }
}
