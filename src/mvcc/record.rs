//! One stored record: a revision, a tombstone flag and the bytes of a
//! `mvccpb.KeyValue`.
//!
//! Owns the encoding of the `KeyValue`, byte for byte what etcd stores (fields
//! ascending, zero fields left out, a tombstone holds the key alone), because
//! HashKV is taken over these bytes. Decoding never panics and never copies.

use bytes::Bytes;
use quorate_proto::mvccpb::KeyValue;

/// A record, borrowed from a page or about to be written to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub main: u64,
    pub sub: u64,
    pub tombstone: bool,
    /// The encoded `KeyValue`.
    pub key_value: &'a [u8],
}

/// The fields of an encoded `KeyValue`, borrowed from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    pub key: &'a [u8],
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub value: &'a [u8],
    pub lease: i64,
}

/// Why stored bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

const KEY: u8 = 1 << 3 | 2;
const CREATE_REVISION: u8 = 2 << 3;
const MOD_REVISION: u8 = 3 << 3;
const VERSION: u8 = 4 << 3;
const VALUE: u8 = 5 << 3 | 2;
const LEASE: u8 = 6 << 3;

/// Bytes that [`Fields::encode`] writes.
fn varint_bytes(value: u64) -> usize {
    // Seven bits a byte, at least one byte.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint at the front of `bytes` and moves past it.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Malformed("varint is cut off"))?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            return Err(Malformed("varint is too long"));
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("varint is too long"))
}

pub(crate) fn take_slice<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = take_varint(bytes)?;
    let length = usize::try_from(length).map_err(|_| Malformed("length is too large"))?;
    let (slice, rest) = bytes.split_at_checked(length).ok_or(Malformed("field is cut off"))?;
    *bytes = rest;
    Ok(slice)
}

impl<'a> Fields<'a> {
    /// What a deletion stores.
    pub fn tombstone(key: &'a [u8]) -> Fields<'a> {
        Fields { key, ..Fields::default() }
    }

    pub fn encoded_bytes(&self) -> usize {
        let slice = |slice: &[u8]| match slice.len() {
            0 => 0,
            length => 1 + varint_bytes(length as u64) + length,
        };
        let number = |number: i64| match number {
            0 => 0,
            number => 1 + varint_bytes(number as u64),
        };
        slice(self.key)
            + number(self.create_revision)
            + number(self.mod_revision)
            + number(self.version)
            + slice(self.value)
            + number(self.lease)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let slice = |out: &mut Vec<u8>, tag: u8, slice: &[u8]| {
            if !slice.is_empty() {
                out.push(tag);
                put_varint(out, slice.len() as u64);
                out.extend_from_slice(slice);
            }
        };
        let number = |out: &mut Vec<u8>, tag: u8, number: i64| {
            if number != 0 {
                out.push(tag);
                put_varint(out, number as u64);
            }
        };
        slice(out, KEY, self.key);
        number(out, CREATE_REVISION, self.create_revision);
        number(out, MOD_REVISION, self.mod_revision);
        number(out, VERSION, self.version);
        slice(out, VALUE, self.value);
        number(out, LEASE, self.lease);
        assert_eq!(out.len() - start, self.encoded_bytes(), "a record has the length that was planned");
    }

    /// Reads stored bytes; only what [`Fields::encode`] writes is accepted
    /// (each field at most once, in order), so that equal pairs have equal bytes.
    pub fn decode(mut bytes: &'a [u8]) -> Result<Fields<'a>, Malformed> {
        let mut fields = Fields::default();
        let mut last = 0;
        while let Some((&tag, rest)) = bytes.split_first() {
            bytes = rest;
            if tag <= last {
                return Err(Malformed("key-value fields are not in order"));
            }
            last = tag;
            match tag {
                KEY => fields.key = take_slice(&mut bytes)?,
                VALUE => fields.value = take_slice(&mut bytes)?,
                CREATE_REVISION => fields.create_revision = take_varint(&mut bytes)? as i64,
                MOD_REVISION => fields.mod_revision = take_varint(&mut bytes)? as i64,
                VERSION => fields.version = take_varint(&mut bytes)? as i64,
                LEASE => fields.lease = take_varint(&mut bytes)? as i64,
                _ => return Err(Malformed("key-value has an unknown field")),
            }
        }
        Ok(fields)
    }

    /// The message, its key and value sharing `owner`'s memory.
    pub fn to_message(self, owner: &Bytes) -> KeyValue {
        let share = |slice: &[u8]| if slice.is_empty() { Bytes::new() } else { owner.slice_ref(slice) };
        KeyValue {
            key: share(self.key),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            value: share(self.value),
            lease: self.lease,
        }
    }
}

/// The message of a stored put.
pub(crate) fn message(stored: &Bytes) -> KeyValue {
    Fields::decode(stored).expect("a record of a checked page decodes").to_message(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn check(message: KeyValue) {
        let fields = Fields {
            key: &message.key,
            create_revision: message.create_revision,
            mod_revision: message.mod_revision,
            version: message.version,
            value: &message.value,
            lease: message.lease,
        };
        let mut ours = Vec::new();
        fields.encode(&mut ours);
        assert_eq!(ours, message.encode_to_vec());
        assert_eq!(Fields::decode(&ours), Ok(fields));
        let owner = Bytes::from(ours);
        assert_eq!(super::message(&owner), message);
    }

    #[test]
    fn key_values_are_encoded_as_protobuf_does() {
        check(KeyValue::default());
        check(KeyValue { key: "a".into(), ..KeyValue::default() });
        check(KeyValue {
            key: "a".into(),
            create_revision: 2,
            mod_revision: 127,
            version: 128,
            value: vec![0xff; 300].into(),
            lease: -5,
        });
        check(KeyValue { key: vec![0; 1].into(), lease: i64::MAX, version: i64::MIN, ..KeyValue::default() });
    }

    #[test]
    fn every_cut_and_every_changed_byte_decodes_or_fails_without_a_panic() {
        let mut bytes = Vec::new();
        Fields {
            key: b"key",
            create_revision: 300,
            mod_revision: 1 << 40,
            version: 2,
            value: b"v",
            lease: -1,
        }
        .encode(&mut bytes);
        for cut in 0..bytes.len() {
            let _ = Fields::decode(&bytes[..cut]);
        }
        for position in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[position] = value;
                let _ = Fields::decode(&changed);
            }
        }
    }

    #[test]
    fn fields_out_of_order_or_twice_are_refused() {
        assert!(Fields::decode(&[KEY, 1, b'a', KEY, 1, b'b']).is_err());
        assert!(Fields::decode(&[VERSION, 1, CREATE_REVISION, 1]).is_err());
        assert!(Fields::decode(&[7 << 3, 1]).is_err());
    }
}
