//! A record's key in etcd's bucket `key`: its revision, big-endian, so that byte
//! order is the order of history (tests/facts/storage.md, section 4). HashKV is
//! taken over these keys and the records' values.

use super::record::Record;
use std::ops::Deref;

/// Bytes of a put's key; a tombstone's has one more.
const PUT_BYTES: usize = 17;
const SEPARATOR: u8 = b'_';
const TOMBSTONE: u8 = b't';

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevisionKey {
    pub main: u64,
    pub sub: u64,
    pub tombstone: bool,
}

impl RevisionKey {
    /// A mark's revision: (main, 0) of no record.
    pub fn mark(main: u64) -> RevisionKey {
        RevisionKey { main, sub: 0, tombstone: false }
    }

    pub fn encode(self) -> KeyBytes {
        let mut bytes = [TOMBSTONE; PUT_BYTES + 1];
        bytes[..8].copy_from_slice(&self.main.to_be_bytes());
        bytes[8] = SEPARATOR;
        bytes[9..PUT_BYTES].copy_from_slice(&self.sub.to_be_bytes());
        KeyBytes { bytes, length: PUT_BYTES + usize::from(self.tombstone) }
    }

    /// `None` if the bytes are no such key.
    pub fn decode(bytes: &[u8]) -> Option<RevisionKey> {
        let tombstone = match bytes.len() {
            PUT_BYTES => false,
            length if length == PUT_BYTES + 1 && bytes[PUT_BYTES] == TOMBSTONE => true,
            _ => return None,
        };
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (main, sub) = (number(0), number(9));
        let fits = bytes[8] == SEPARATOR && i64::try_from(main).is_ok() && i64::try_from(sub).is_ok();
        fits.then_some(RevisionKey { main, sub, tombstone })
    }
}

impl From<&Record<'_>> for RevisionKey {
    fn from(record: &Record<'_>) -> RevisionKey {
        RevisionKey { main: record.main, sub: record.sub, tombstone: record.tombstone }
    }
}

/// An encoded [`RevisionKey`], on the stack: one is made for each record that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBytes {
    bytes: [u8; PUT_BYTES + 1],
    length: usize,
}

impl Deref for KeyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_as_they_were_written_and_ascend_as_revisions_do() {
        let key = |main, sub, tombstone| RevisionKey { main, sub, tombstone };
        let ascending =
            [key(2, 0, false), key(2, 1, true), key(3, 0, true), key(256, 0, false), key(1 << 40, 9, false)];
        let encoded: Vec<_> = ascending.iter().map(|key| key.encode().to_vec()).collect();
        assert!(encoded.is_sorted());
        for (key, bytes) in ascending.iter().zip(&encoded) {
            assert_eq!(RevisionKey::decode(bytes), Some(*key));
        }
    }

    #[test]
    fn other_bytes_are_no_revision() {
        let good = RevisionKey { main: 2, sub: 0, tombstone: true }.encode();
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = byte;
            RevisionKey::decode(&bytes)
        };
        assert_eq!(changed(8, b'-'), None);
        assert_eq!(changed(17, b'u'), None);
        assert_eq!(changed(0, 0x80), None);
        for length in (0..17).chain([19]) {
            assert_eq!(RevisionKey::decode(&vec![b'_'; length]), None);
        }
    }
}
