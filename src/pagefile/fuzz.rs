//! The decoders of disk bytes, for `tests/fuzz`: whatever they get they must
//! not panic, and what they take they must give back byte for byte.
//!
//! Checksums are made to match first: nothing would get past them otherwise.

use super::header::{HEADER, Header};
use super::manifest::Manifest;
use super::{Error, directory};
use std::path::Path;

/// A page as it was read from the place that it names itself.
pub fn page(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let Ok(length) = Header::claimed_length(&bytes) else { return };
    if bytes.len() - HEADER < length {
        assert!(Header::check(&bytes, 0, 0).is_err(), "a page that is cut off is no page");
        return;
    }
    let (head, payload) = bytes.split_at_mut(HEADER);
    let covered = crc32c::crc32c(&head[..HEADER - 4]);
    let checksum = crc32c::crc32c_append(covered, &payload[..length]);
    head[HEADER - 4..].copy_from_slice(&checksum.to_le_bytes());
    let segment = u128::from_le_bytes(head[24..40].try_into().expect("sixteen bytes were taken"));
    let position = u64::from_le_bytes(head[40..48].try_into().expect("eight bytes were taken"));
    if let Ok(header) = Header::check(&bytes, segment, position) {
        assert_eq!(header.encode(&bytes[HEADER..HEADER + length]), bytes[..HEADER]);
    }
}

/// A directory's payload, in a segment of any length.
pub fn directory(payload: &[u8]) {
    for page_size in [512, 4096] {
        if let Ok(entries) = directory::decode(payload, page_size, 1 << 40) {
            assert_eq!(directory::encode(&entries), payload);
        }
    }
}

pub fn manifest(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() {
        *checksum = crc32c::crc32c(body).to_le_bytes();
    }
    match Manifest::decode(&bytes, Path::new("manifest")) {
        Ok(manifest) => assert_eq!(manifest.encode(), bytes),
        Err(Error::Rot { .. } | Error::Version { .. } | Error::Features { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus itself, every cut of it and every byte of it changed: what
    /// the fuzzer begins with is a test wherever there is no fuzzer.
    fn feed(target: fn(&[u8]), inputs: &[&[u8]]) {
        for input in inputs {
            target(input);
            for at in 0..input.len() {
                target(&input[..at]);
                for mask in [1, 0x10, 0x80, 0xff] {
                    let mut bad = input.to_vec();
                    bad[at] ^= mask;
                    target(&bad);
                }
            }
        }
    }

    macro_rules! corpus {
        ($($name:literal),*) => { &[$(include_bytes!(concat!("../../tests/fuzz/corpus/", $name)) as &[u8]),*] };
    }

    #[test]
    fn the_corpus_and_what_is_near_it() {
        feed(
            page,
            corpus!("page/copy-11", "page/internal-0", "page/internal-1", "page/page-100", "page/page-9"),
        );
        feed(directory, corpus!("directory/golden-1", "directory/golden-2"));
        feed(manifest, corpus!("manifest/golden"));
    }
}
