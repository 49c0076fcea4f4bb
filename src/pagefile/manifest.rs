//! The manifest: which segments make the page file, in order, and where each
//! one ends. Byte for byte in the room's head.
//!
//! Owns its encoding and the steps that put a new one in place of the old one.
//! Promises that after a crash the old or the new one is there, whole. Never
//! looks into a segment.

use super::{Error, FEATURES_KNOWN, FORMAT_VERSION, NUMBERS_END};
use crate::env::{Disk, disk::Open};
use bytes::Bytes;
use std::{io, path::Path};

pub(super) const NAME: &str = "manifest";
pub(super) const NAME_NEW: &str = "manifest.new";
const MAGIC: [u8; 8] = *b"QrtmList";
const HEAD: usize = 56;
const ENTRY: usize = 80;
/// Set in the stored extent of the one segment that may still grow.
const OPEN: u64 = 1 << 63;

/// How much of a segment counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// This many bytes, all of them synced; what follows is void.
    Sealed(u64),
    /// It may grow within this many bytes, which are durably preallocated.
    Open(u64),
}

/// One segment of the page file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub id: u128,
    /// Number of its first page that has one.
    pub first_page: u64,
    pub first_commit: u64,
    pub extent: Extent,
    /// Of a segment that was sealed while it was being written, or copied.
    pub directory: Option<Directory>,
}

/// Where a sealed segment's directory stands, and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    /// Bytes from the start of the segment; behind the first page.
    pub position: u64,
    /// SHA-256 of its payload.
    pub digest: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub page_size: u32,
    /// Highest commit known to be synced when this was written.
    pub synced: u64,
    /// Lower bounds for the next numbers (they count when no segment is left).
    pub next_page: u64,
    pub next_commit: u64,
    pub segments: Vec<Listed>,
}

impl Manifest {
    /// Bytes of a manifest of so many segments.
    pub(super) fn length(segments: usize) -> usize {
        HEAD + segments * ENTRY + 4
    }

    pub(super) fn encode(&self) -> Bytes {
        let length = Manifest::length(self.segments.len());
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(length).expect("under 100 million segments").to_le_bytes());
        bytes.extend_from_slice(&FEATURES_KNOWN.to_le_bytes());
        bytes.extend_from_slice(&self.page_size.to_le_bytes());
        bytes.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.synced.to_le_bytes());
        bytes.extend_from_slice(&self.next_page.to_le_bytes());
        bytes.extend_from_slice(&self.next_commit.to_le_bytes());
        for segment in &self.segments {
            bytes.extend_from_slice(&segment.id.to_le_bytes());
            bytes.extend_from_slice(&segment.first_page.to_le_bytes());
            bytes.extend_from_slice(&segment.first_commit.to_le_bytes());
            let extent = match segment.extent {
                Extent::Sealed(end) => end,
                Extent::Open(size) => size | OPEN,
            };
            bytes.extend_from_slice(&extent.to_le_bytes());
            let (position, digest) = segment.directory.map_or((0, [0; 32]), |at| (at.position, at.digest));
            bytes.extend_from_slice(&position.to_le_bytes());
            bytes.extend_from_slice(&digest);
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        assert_eq!(bytes.len(), length, "the manifest has the length it names");
        bytes.into()
    }

    /// Decodes bytes of any origin; never panics.
    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Manifest, Error> {
        let rot = |what| Error::Rot { path: path.to_owned(), position: 0, what };
        let Some((body, checksum)) = bytes.split_last_chunk::<4>() else {
            return Err(rot("the manifest is too short"));
        };
        if body.len() < HEAD || body[0..8] != MAGIC {
            return Err(rot("this is no manifest"));
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(rot("the manifest's checksum does not match"));
        }
        let mut fields = Fields(&body[8..]);
        let version = u32::from_le_bytes(fields.take());
        if version != FORMAT_VERSION {
            return Err(Error::Version { path: path.to_owned(), version, known: FORMAT_VERSION });
        }
        let length = u32::from_le_bytes(fields.take()) as usize;
        let features = u64::from_le_bytes(fields.take());
        if features & !FEATURES_KNOWN != 0 {
            return Err(Error::Features { path: path.to_owned(), features: features & !FEATURES_KNOWN });
        }
        let page_size = u32::from_le_bytes(fields.take());
        let count = u32::from_le_bytes(fields.take()) as usize;
        if length != bytes.len() || body.len() - HEAD != count.saturating_mul(ENTRY) {
            return Err(rot("the manifest's length does not match"));
        }
        if !super::page_size_fits(page_size) {
            return Err(rot("the manifest names an impossible page size"));
        }
        let mut manifest = Manifest {
            page_size,
            synced: u64::from_le_bytes(fields.take()),
            next_page: u64::from_le_bytes(fields.take()),
            next_commit: u64::from_le_bytes(fields.take()),
            segments: Vec::with_capacity(count),
        };
        let numbers = [manifest.next_page, manifest.next_commit];
        let possible = numbers.iter().all(|number| (1..NUMBERS_END).contains(number));
        if !possible || manifest.synced >= manifest.next_commit {
            return Err(rot("the manifest names an impossible number"));
        }
        for index in 0..count {
            let segment = listed(&mut fields).map_err(rot)?;
            if matches!(segment.extent, Extent::Open(_)) && index + 1 != count {
                return Err(rot("only the last segment may be open"));
            }
            let before = manifest.segments.last();
            if before.is_some_and(|before: &Listed| before.first_page >= segment.first_page) {
                return Err(rot("the manifest's segments are out of order"));
            }
            manifest.segments.push(segment);
        }
        Ok(manifest)
    }

    /// Reads the manifest of the page file in `dir`; `None` if there is none.
    pub(super) async fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>, Error> {
        let path = dir.join(NAME);
        let io_error = |source| Error::Io { path: path.clone(), source };
        let file = match disk.open(&path, Open::Existing).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(error)),
        };
        let length = file.length().await.map_err(io_error)?;
        if length > 1 << 30 {
            return Err(Error::Rot { path, position: 0, what: "the manifest is too long" });
        }
        let bytes = file.read_at(0, length as usize).await.map_err(io_error)?;
        Manifest::decode(&bytes, &path).map(Some)
    }

    /// Puts this manifest in place of the one in `dir`, durably. The segments
    /// it names must be durable already, contents and names.
    pub(super) async fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), WriteError> {
        let bytes = self.encode();
        let (new, path) = (dir.join(NAME_NEW), dir.join(NAME));
        let early = |source: io::Error| WriteError {
            // Lack of space before the rename harms nothing: the old manifest stands.
            harmless: out_of_space(&source),
            error: Error::Io { path: new.clone(), source },
        };
        let prepared = async {
            let file = disk.open(&new, Open::New).await?;
            file.preallocate(bytes.len() as u64).await?;
            file.append(0, vec![bytes]).await?;
            file.sync_data().await
        };
        if let Err(error) = prepared.await {
            drop(disk.remove(&new).await);
            return Err(early(error));
        }
        let late = |source| WriteError { harmless: false, error: super::late(&path)(source) };
        disk.rename(&new, &path).await.map_err(late)?;
        disk.sync_dir(dir).await.map_err(late)
    }
}

/// Reads one entry.
fn listed(fields: &mut Fields<'_>) -> Result<Listed, &'static str> {
    let id = u128::from_le_bytes(fields.take());
    let first_page = u64::from_le_bytes(fields.take());
    let first_commit = u64::from_le_bytes(fields.take());
    let extent = match u64::from_le_bytes(fields.take()) {
        extent if extent & OPEN != 0 => Extent::Open(extent ^ OPEN),
        extent => Extent::Sealed(extent),
    };
    let (position, digest) = (u64::from_le_bytes(fields.take()), fields.take());
    let (Extent::Sealed(bytes) | Extent::Open(bytes)) = extent;
    if [first_page, first_commit, bytes].iter().any(|number| !(1..NUMBERS_END).contains(number)) {
        return Err("the manifest names an impossible number");
    }
    let directory = match (position, extent) {
        (0, _) if digest == [0; 32] => None,
        (1.., Extent::Sealed(end)) if position < end => Some(Directory { position, digest }),
        _ => return Err("the manifest names an impossible directory"),
    };
    Ok(Listed { id, first_page, first_commit, extent, directory })
}

/// Why a manifest was not put in place.
pub(super) struct WriteError {
    pub error: Error,
    /// The old manifest certainly stands and the disk is not in doubt.
    pub harmless: bool,
}

pub(super) fn out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Takes fixed-size fields off a slice whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let listed =
            |id, first_page, extent, directory| Listed { id, first_page, first_commit: 2, extent, directory };
        let directory = Some(Directory { position: 512, digest: [9; 32] });
        Manifest {
            page_size: 512,
            synced: 4,
            next_page: 9,
            next_commit: 5,
            segments: vec![
                listed(1 << 100, 3, Extent::Sealed(1024), directory),
                listed(7, 5, Extent::Open(4096), None),
            ],
        }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let path = Path::new("m");
        assert_eq!(Manifest::decode(&sample().encode(), path).unwrap(), sample());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let (bytes, path) = (sample().encode(), Path::new("m"));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Manifest::decode(&bad, path), Err(Error::Rot { .. })), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(
                matches!(Manifest::decode(&bytes[..length], path), Err(Error::Rot { .. })),
                "cut {length}"
            );
        }
    }

    #[test]
    fn resealed_nonsense_is_refused_without_a_panic() {
        let (bytes, path) = (sample().encode(), Path::new("m"));
        for at in 0..bytes.len() - 4 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = bytes.to_vec();
                bad[at] = value;
                let body = bad.len() - 4;
                let checksum = crc32c::crc32c(&bad[..body]);
                bad[body..].copy_from_slice(&checksum.to_le_bytes());
                drop(Manifest::decode(&bad, path));
            }
        }
        let mut later = bytes.to_vec();
        later[8] = 9;
        let body = later.len() - 4;
        let checksum = crc32c::crc32c(&later[..body]);
        later[body..].copy_from_slice(&checksum.to_le_bytes());
        let error = Manifest::decode(&later, path).unwrap_err();
        assert_eq!(error.to_string(), "m: format version 9 is not known to this release (it knows 1)");
    }
}
