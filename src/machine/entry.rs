//! An entry's outer bytes: which request it carries, before any of it is decoded.
//!
//! **Promises**: a top-level field that this release does not know is found
//! here and stops the member; bytes that are no entry are an error, never a panic.

use super::UnknownEntry;
use bytes::Bytes;
use prost::Message;
use quorate_proto::etcdserverpb as pb;

/// Kinds of requests by their field in `InternalRaftRequest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Range,
    Put,
    DeleteRange,
    Txn,
    Compaction,
    Alarm,
    ClusterVersionSet,
    ClusterMemberAttrSet,
    DowngradeInfoSet,
    /// A kind that changes nothing, made for tests of upgrades.
    DowngradeVersionTest,
    /// Leases and auth: known, not served yet.
    NotServed,
}

impl Kind {
    fn of(field: u32) -> Option<Kind> {
        Some(match field {
            3 => Kind::Range,
            4 => Kind::Put,
            5 => Kind::DeleteRange,
            6 => Kind::Txn,
            7 => Kind::Compaction,
            10 => Kind::Alarm,
            8 | 9 | 11 | 1000 | 1011..=1013 | 1100..=1107 | 1200..=1204 => Kind::NotServed,
            1300 => Kind::ClusterVersionSet,
            1301 => Kind::ClusterMemberAttrSet,
            1302 => Kind::DowngradeInfoSet,
            9900 => Kind::DowngradeVersionTest,
            _ => return None,
        })
    }
}

/// What an entry carries.
#[derive(Debug)]
pub(super) struct Carried {
    /// 0: nobody waits.
    pub request_id: u64,
    /// `None`: an entry without a request.
    pub request: Option<(Kind, Bytes)>,
}

/// Walks the fields of a message; stops with the number of the first one that is refused.
fn fields(bytes: &Bytes, mut visit: impl FnMut(u32, Field<'_>) -> Result<(), u32>) -> Result<(), u32> {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let tag = varint(&mut rest).ok_or(MALFORMED)?;
        let number = u32::try_from(tag >> 3).map_err(|_| MALFORMED)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut rest).ok_or(MALFORMED)?),
            2 => {
                let length =
                    varint(&mut rest).and_then(|length| usize::try_from(length).ok()).ok_or(MALFORMED)?;
                let (slice, behind) = rest.split_at_checked(length).ok_or(MALFORMED)?;
                rest = behind;
                Field::Bytes(slice)
            }
            // No known top-level field is of another type.
            _ => return Err(number),
        };
        visit(number, field)?;
    }
    Ok(())
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// In place of a field number: the bytes do not decode.
const MALFORMED: u32 = 0;

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

/// Reads an `InternalRaftRequest`.
pub(super) fn read(index: u64, data: &Bytes) -> Result<Carried, UnknownEntry> {
    let mut carried = Carried { request_id: 0, request: None };
    let (mut id, mut header_id) = (0, 0);
    let visited = fields(data, |number, field| match (number, field) {
        (1, Field::Number(value)) => {
            id = value;
            Ok(())
        }
        (100, Field::Bytes(bytes)) => {
            header_id = pb::RequestHeader::decode(bytes).map_err(|_| MALFORMED)?.id;
            Ok(())
        }
        (number, Field::Bytes(bytes)) => {
            let kind = Kind::of(number).ok_or(number)?;
            // One entry carries one request; what a second would mean is not known.
            match carried.request.replace((kind, data.slice_ref(bytes))) {
                None => Ok(()),
                Some(_) => Err(number),
            }
        }
        (number, _) => Err(number),
    });
    visited.map_err(|field| UnknownEntry { index, field })?;
    carried.request_id = if id != 0 { id } else { header_id };
    Ok(carried)
}

/// Decodes a message whose every field is one of `1..=known`.
pub(super) fn decode_exactly<M: Message + Default>(
    index: u64,
    data: &Bytes,
    known: u32,
) -> Result<M, UnknownEntry> {
    let visited = fields(data, |number, _| if (1..=known).contains(&number) { Ok(()) } else { Err(number) });
    visited.map_err(|field| UnknownEntry { index, field })?;
    decode(index, data.clone())
}

pub(super) fn decode<M: Message + Default>(index: u64, data: Bytes) -> Result<M, UnknownEntry> {
    M::decode(data).map_err(|_| UnknownEntry { index, field: MALFORMED })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_reflect::DescriptorPool;

    #[test]
    fn every_field_of_the_protocol_is_known_and_no_other() {
        let pool = DescriptorPool::decode(quorate_proto::DESCRIPTORS).unwrap();
        let message = pool.get_message_by_name("etcdserverpb.InternalRaftRequest").unwrap();
        for number in 1..20_000 {
            let known = matches!(number, 1 | 100) || Kind::of(number).is_some();
            assert_eq!(known, message.get_field(number).is_some(), "field {number}");
        }
    }

    fn request(put: Option<pb::PutRequest>, id: u64) -> Vec<u8> {
        let header = Some(pb::RequestHeader { id, ..Default::default() });
        pb::InternalRaftRequest { header, put, ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn a_put_is_found_with_its_request_id() {
        let put = pb::PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
        let carried = read(1, &request(Some(put.clone()), 77).into()).unwrap();
        assert_eq!(carried.request_id, 77);
        let (kind, bytes) = carried.request.unwrap();
        assert_eq!(kind, Kind::Put);
        assert_eq!(decode::<pb::PutRequest>(1, bytes).unwrap(), put);
    }

    #[test]
    fn an_unknown_field_is_named() {
        let check = |extra: &[u8], field| {
            for front in [true, false] {
                let put = request(Some(pb::PutRequest::default()), 7);
                let bytes = if front { [extra, &put].concat() } else { [&put, extra].concat() };
                assert_eq!(read(9, &bytes.into()).unwrap_err(), UnknownEntry { index: 9, field });
            }
        };
        check(&[12 << 3 | 2, 1, 0], 12);
        check(&[12 << 3, 1], 12);
        check(&[0x82, 0xa9, 0x05, 0], 10_896);
        // The old v2 requests.
        check(&[2 << 3 | 2, 0], 2);
        // Known numbers of another wire type.
        check(&[4 << 3, 1], 4);
        check(&[4 << 3 | 5, 1, 2, 3, 4], 4);
    }

    #[test]
    fn two_requests_in_one_entry_are_refused() {
        let put = request(Some(pb::PutRequest::default()), 7);
        assert!(read(1, &[&put[..], &put].concat().into()).is_err());
    }

    #[test]
    fn damaged_bytes_fail_without_a_panic() {
        let put = pb::PutRequest { key: "key".into(), value: "value".into(), ..Default::default() };
        let bytes = request(Some(put), 1 << 60);
        let walk = |bytes: Vec<u8>| {
            if let Ok(Carried { request: Some((_, request)), .. }) = read(1, &bytes.into()) {
                let _ = decode::<pb::PutRequest>(1, request);
            }
        };
        for cut in 0..bytes.len() {
            walk(bytes[..cut].to_vec());
        }
        for position in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[position] = value;
                walk(changed);
            }
        }
    }
}
