//! What a crash left of a segment (I6).
//!
//! Owns the walk over a segment's bytes: which commits are whole, which is the
//! highest commit that anything names as synced, where the first bad page is,
//! and so whether that is a tear (cut) or rot (refused). Promises to take no
//! page on trust. Never writes.

use super::Error;
use super::directory::Entry;
use super::header::{self, Fault, HEADER, Header, footprint};
use super::manifest::{Extent, Listed};
use super::segment::refusal;
use crate::env::File;
use crate::reached;
use bytes::Bytes;
use std::{path::Path, sync::Arc};

/// Bytes read at once; larger pages are read whole.
const CHUNK: u64 = 1 << 20;

/// A whole commit and where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub number: u64,
    /// Bytes from the start of the segment.
    pub start: u64,
    pub end: u64,
    /// Pages of the segment (those with a number) before this commit.
    pub pages_before: usize,
    /// A mark or directory of the page file's own, without pages.
    pub internal: bool,
}

/// What a segment holds after the torn tail was cut.
pub(super) struct Walked {
    pub entries: Vec<Entry>,
    /// Whole commits; kept for an open segment only.
    pub commits: Vec<Whole>,
    pub last_commit: u64,
    /// End of the last whole commit.
    pub end: u64,
    /// Highest commit that is known to be synced.
    pub synced: u64,
    /// Bytes behind `end` up to the last that is not zero (an open segment's).
    pub torn_bytes: u64,
}

/// Reads a file front to back in large pieces.
struct Pieces<'a> {
    file: &'a Arc<dyn File>,
    path: &'a Path,
    /// Bytes of the file that count.
    limit: u64,
    piece: Bytes,
    piece_at: u64,
}

impl Pieces<'_> {
    /// `length` bytes from `at`, fewer at the limit.
    async fn get(&mut self, at: u64, length: u64) -> Result<Bytes, Error> {
        let end = at.saturating_add(length).min(self.limit);
        if at >= end {
            return Ok(Bytes::new());
        }
        let holds = self.piece_at <= at && end <= self.piece_at + self.piece.len() as u64;
        if !holds {
            let wanted = (end - at).max(CHUNK).min(self.limit - at);
            let read = self.file.read_at(at, wanted as usize).await;
            self.piece = read.map_err(|source| Error::Io { path: self.path.to_owned(), source })?;
            self.piece_at = at;
        }
        let from = (at - self.piece_at) as usize;
        let to = ((end - self.piece_at) as usize).min(self.piece.len());
        Ok(self.piece.slice(from..to.max(from)))
    }

    /// The page at `at`, if a whole one stands there: its header, and its bytes from there on.
    async fn page(&mut self, at: u64, segment: u128) -> Result<Result<(Header, Bytes), Fault>, Error> {
        let head = self.get(at, HEADER as u64).await?;
        let length = match Header::claimed_length(&head) {
            Ok(length) => length as u64,
            Err(fault) => return Ok(Err(fault)),
        };
        if at + HEADER as u64 + length > self.limit {
            return Ok(Err(Fault::Bad("the segment ends inside a payload")));
        }
        let bytes = self.get(at, HEADER as u64 + length).await?;
        Ok(Header::check(&bytes, segment, at).map(|header| (header, bytes)))
    }
}

/// Walks `listed` in `file`, lists the pages of each whole commit and decides
/// about the rest. `synced`: highest commit that the manifest names as synced.
pub(super) async fn walk(
    file: &Arc<dyn File>,
    path: &Path,
    listed: &Listed,
    page_size: u64,
    synced: u64,
) -> Result<Walked, Error> {
    let length = file.length().await.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let (sealed, limit) = match listed.extent {
        Extent::Sealed(end) => (true, end),
        Extent::Open(size) => (false, size),
    };
    if length < limit {
        // Its length was durable before the manifest listed it.
        return Err(Error::Rot { path: path.to_owned(), position: length, what: "the segment is too short" });
    }
    let mut pieces = Pieces { file, path, limit, piece: Bytes::new(), piece_at: 0 };
    let mut walked = Walked {
        entries: Vec::new(),
        commits: Vec::new(),
        last_commit: listed.first_commit - 1,
        end: 0,
        synced,
        torn_bytes: 0,
    };
    let mut next_page = listed.first_page;
    let mut at = 0;
    let mut unfinished: Vec<(Header, u32)> = Vec::new();
    let fault = loop {
        if at >= limit {
            break Fault::Bad("a commit has no end");
        }
        let (header, bytes) = match pieces.page(at, listed.id).await? {
            Ok(found) => found,
            Err(fault) => break fault,
        };
        let expected = next_page + unfinished.len() as u64;
        if header.commit != walked.last_commit + 1 || !header.internal && header.number != expected {
            break Fault::Bad("the page is out of sequence");
        }
        if header.internal && !(header.end && unfinished.is_empty()) {
            break Fault::Bad("a mark stands inside a commit");
        }
        if header.copy {
            // Segments with copies are sealed, and have a directory, before they are listed.
            break Fault::Bad("a copy stands among commits");
        }
        if (at / page_size) >> 32 != 0 {
            return Err(refusal(Fault::Bad("the segment is too long"), path, at));
        }
        at += footprint(header.length as usize, page_size);
        walked.synced = walked.synced.max(header.synced);
        unfinished.push((header, header::checksum(&bytes)));
        if !header.end {
            continue;
        }
        if !sealed {
            let (number, start, pages_before) = (header.commit, walked.end, walked.entries.len());
            walked.commits.push(Whole { number, start, end: at, pages_before, internal: header.internal });
        }
        for (header, checksum) in unfinished.drain(..).filter(|(header, _)| !header.internal) {
            walked.entries.push(Entry::new(&header, checksum, page_size));
            next_page += 1;
        }
        walked.last_commit = header.commit;
        walked.end = at;
    };
    if sealed {
        // All of it was synced before the manifest named its end.
        if walked.end == limit {
            return Ok(walked);
        }
        reached!("rot refused");
        return Err(refusal(fault, path, at));
    }
    if !matches!(fault, Fault::Bad(_)) {
        return Err(refusal(fault, path, at));
    }
    look_behind(&mut pieces, listed.id, page_size, &mut walked).await?;
    if walked.synced > walked.last_commit {
        reached!("rot refused");
        return Err(refusal(fault, path, at));
    }
    Ok(walked)
}

/// Looks at everything behind the last whole commit: whole pages there may name
/// a higher synced commit, and then what is missing before them is rot.
async fn look_behind(
    pieces: &mut Pieces<'_>,
    segment: u128,
    page_size: u64,
    walked: &mut Walked,
) -> Result<(), Error> {
    let zeros = vec![0; page_size as usize];
    let mut at = walked.end;
    while at < pieces.limit {
        let slot = pieces.get(at, page_size).await?;
        if slot.is_empty() {
            break;
        }
        if slot == zeros[..slot.len()] {
            at += page_size;
            continue;
        }
        let next = match pieces.page(at, segment).await? {
            Ok((header, _)) => {
                walked.synced = walked.synced.max(header.synced);
                at + footprint(header.length as usize, page_size)
            }
            Err(Fault::Bad(_)) => at + page_size,
            Err(fault) => return Err(refusal(fault, pieces.path, at)),
        };
        walked.torn_bytes = next.min(pieces.limit.next_multiple_of(page_size)) - walked.end;
        at = next;
    }
    Ok(())
}
