//! A snapshot in Quorate's own form: the pages of a store as they lie.
//!
//! Faster to make than etcd's: nothing is looked up, nothing is laid anew. All
//! numbers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `QrtmSnap` |
//! | 8..12 | format version: 1 |
//! | 12..16 | length of the contents |
//! | 16..24 | incompatible features, one bit each: none yet |
//! | 24..32 | length of the whole, the digest left out: a multiple of 512 |
//! | 32..36 | CRC32C over bytes 0..32 and the contents |
//! | 36.. | contents: a `SnapshotContents` (proto/proto/backup.proto) |
//! | | the pages, one after the other, in the order of their numbers; the mark comes last |
//! | | zeros up to the next multiple of 512 |
//! | last 32 | SHA-256 over all before |
//!
//! A page:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | length of the payload |
//! | 4..8 | CRC32C over bytes 8..32 and the payload |
//! | 8..16 | page number |
//! | 16..18 | span: the page stands for its number and as many after it |
//! | 18..20 | kind, as in the store |
//! | 20..24 | number of records |
//! | 24..32 | main revision of the first record |
//! | 32.. | payload, as in the store |
//!
//! What stands before the payload of a page, and the magics, the version, the
//! features, the lengths and the checksums keep their places in later versions.

use super::{
    Carried, Content, Error, Records, Settled, Status, Stored, Survivors, View, content,
    etcd_snapshot::{FileSource, LENGTH_UNIT},
    parts::{Part, Parts},
    walk::whole_hash,
};
use crate::{
    bolt::Source,
    env::File,
    mvcc,
    pagefile::PageNumber,
    store::{SnapshotReader, kind},
};
use bytes::{BufMut, Bytes};
use prost::Message;
use quorate_proto::quorate::v1::{
    BucketPage, SnapshotContents, SnapshotPage, StoreMark, snapshot_contents::Segment,
};
use std::{collections::VecDeque, sync::Arc};

pub const MAGIC: &[u8; 8] = b"QrtmSnap";
const VERSION: u32 = 1;
const FEATURES_KNOWN: u64 = 0;
const HEAD: usize = 36;
const PAGE_HEAD: usize = 32;
/// Far above what lists of segments take.
const CONTENTS_BYTES_MAX: usize = 64 << 20;
/// A page holds one request at most, or a page's worth of small ones.
const PAYLOAD_BYTES_MAX: usize = 512 << 20;

fn page_head(page: &SnapshotPage) -> Result<[u8; PAGE_HEAD], Error> {
    let unfit = || Error::malformed("a page of the store that no snapshot can hold");
    let length = u32::try_from(page.payload.len()).map_err(|_| unfit())?;
    let (span, kind) = (u16::try_from(page.span), u16::try_from(page.kind));
    let mut head = [0; PAGE_HEAD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[8..16].copy_from_slice(&page.number.to_le_bytes());
    head[16..18].copy_from_slice(&span.map_err(|_| unfit())?.to_le_bytes());
    head[18..20].copy_from_slice(&kind.map_err(|_| unfit())?.to_le_bytes());
    head[20..24].copy_from_slice(&page.weight.to_le_bytes());
    head[24..].copy_from_slice(&page.first.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[8..]), &page.payload);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    Ok(head)
}

/// Makes length and checksums of a snapshot match, as far as they lie in it: a fuzzer never gets past them.
pub(super) fn seal(file: &mut [u8]) {
    let length = file.len();
    if length < HEAD {
        return;
    }
    file[..8].copy_from_slice(MAGIC);
    file[24..32].copy_from_slice(&(length as u64).to_le_bytes());
    let contents = u32::from_le_bytes(file[12..16].try_into().expect("four bytes")) as usize;
    let Some(end) = HEAD.checked_add(contents).filter(|end| *end <= length) else { return };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&file[..HEAD - 4]), &file[HEAD..end]);
    file[HEAD - 4..HEAD].copy_from_slice(&crc.to_le_bytes());
    let mut at = end;
    while at + PAGE_HEAD <= length {
        let payload = u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes")) as usize;
        let Some(next) = (at + PAGE_HEAD).checked_add(payload).filter(|next| *next <= length) else { return };
        let crc = crc32c::crc32c(&file[at + 8..next]);
        file[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at = next;
    }
}

/// A snapshot being made.
pub struct OwnFile {
    reader: SnapshotReader,
    parts: Parts,
    /// Of the pages, not yet taken from the reader.
    pages_bytes: u64,
    padding: usize,
}

impl OwnFile {
    /// Looks through the pages once for their lengths.
    pub async fn plan(reader: SnapshotReader) -> Result<OwnFile, Error> {
        let mut contents = SnapshotContents {
            segments: reader.segments.iter().map(segment).collect(),
            ..SnapshotContents::default()
        };
        let mut first_pass = reader.clone();
        while let Some(page) = first_pass.next().await? {
            match u8::try_from(page.kind) {
                Ok(kind::BUCKETS) => contents.buckets_at.push(contents.pages_bytes),
                Ok(kind::MARK) => contents.mark_at = contents.pages_bytes,
                _ => {}
            }
            contents.pages += 1;
            contents.pages_bytes += (PAGE_HEAD + page.payload.len()) as u64;
        }
        let pages_bytes = contents.pages_bytes;
        let contents = contents.encode_to_vec();
        let whole = (HEAD + contents.len()) as u64 + pages_bytes;
        let total = whole.next_multiple_of(LENGTH_UNIT);
        let mut parts = Parts::new(total);
        let ready = parts.ready();
        ready.put_slice(MAGIC);
        ready.put_u32_le(VERSION);
        ready.put_u32_le(u32::try_from(contents.len()).map_err(|_| Error::malformed("too many segments"))?);
        ready.put_u64_le(FEATURES_KNOWN);
        ready.put_u64_le(total);
        let crc = crc32c::crc32c_append(crc32c::crc32c(ready), &contents);
        ready.put_u32_le(crc);
        assert_eq!(ready.len(), HEAD, "the head is as documented");
        ready.put_slice(&contents);
        Ok(OwnFile { reader, parts, pages_bytes, padding: (total - whole) as usize })
    }

    /// Bytes that were not handed out yet, the digest left out.
    pub fn remaining(&self) -> u64 {
        self.parts.remaining()
    }

    /// The next part; `None` behind the digest.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        while self.parts.is_short() && self.pages_bytes > 0 {
            let page = self.reader.next().await?.ok_or(crate::bolt::PlanMismatch)?;
            let ready = self.parts.ready();
            ready.put_slice(&page_head(&page)?);
            ready.put_slice(&page.payload);
            let taken = (PAGE_HEAD + page.payload.len()) as u64;
            self.pages_bytes = self.pages_bytes.checked_sub(taken).ok_or(crate::bolt::PlanMismatch)?;
            if self.pages_bytes == 0 {
                ready.put_bytes(0, self.padding);
            }
        }
        Ok(self.parts.cut()?)
    }
}

fn segment(facts: &crate::pagefile::SegmentFacts) -> Segment {
    Segment {
        id: Bytes::copy_from_slice(&facts.id.to_le_bytes()),
        first: facts.first.0,
        end: facts.end.0,
        written: facts.written,
        digest: facts.digest.map_or(Bytes::new(), |digest| Bytes::copy_from_slice(&digest)),
    }
}

/// A snapshot file as a view. Its records may include some that were compacted.
pub struct OwnSnapshot {
    source: FileSource,
    /// Where the pages begin and end.
    pages: (u64, u64),
    content: Content,
    mark: StoreMark,
}

impl OwnSnapshot {
    /// Whether a file that begins so is one.
    pub fn is_one(beginning: &[u8]) -> bool {
        beginning.starts_with(MAGIC)
    }

    /// `length`: of the file without its digest.
    pub async fn open(file: Arc<dyn File>, length: u64) -> Result<OwnSnapshot, Error> {
        let source = FileSource::new(file, length);
        if length < HEAD as u64 {
            return Err(Error::malformed("the snapshot is cut off"));
        }
        let head = source.read(0, HEAD).await?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        if !Self::is_one(&head) {
            return Err(Error::malformed("it is no snapshot of Quorate's own form"));
        }
        let (version, features, contents_bytes) = (number(8), long(16), number(12) as usize);
        if version != VERSION || features & !FEATURES_KNOWN != 0 {
            return Err(Error::Malformed(format!(
                "snapshot format {version} with features {features:#x} is not known to this release"
            )));
        }
        if long(24) != length || contents_bytes > CONTENTS_BYTES_MAX {
            return Err(Error::malformed("the snapshot is cut off, or something was added"));
        }
        let start = (HEAD + contents_bytes) as u64;
        if start > length {
            return Err(Error::malformed("the snapshot's contents lie behind its end"));
        }
        let contents = source.read(HEAD as u64, contents_bytes).await?;
        if crc32c::crc32c_append(crc32c::crc32c(&head[..HEAD - 4]), &contents) != number(HEAD - 4) {
            return Err(Error::malformed("the snapshot's head is damaged"));
        }
        let contents = SnapshotContents::decode(contents)
            .map_err(|error| Error::Malformed(format!("the snapshot's contents: {error}")))?;
        let end = start.checked_add(contents.pages_bytes).filter(|end| *end <= length);
        let end = end.ok_or_else(|| Error::malformed("the snapshot's pages lie behind its end"))?;
        let at = |offset: u64| start.saturating_add(offset);
        let (mark, _) = read_page(&source, at(contents.mark_at), end).await?;
        if mark.kind != u32::from(kind::MARK) {
            return Err(Error::malformed("the snapshot has no mark where it says"));
        }
        let undecoded =
            |error: prost::DecodeError| Error::Malformed(format!("page {}: {error}", mark.number));
        let decoded = StoreMark::decode(mark.payload).map_err(undecoded)?;
        let mut carried = Vec::new();
        for offset in contents.buckets_at {
            let (page, _) = read_page(&source, at(offset), end).await?;
            let buckets = BucketPage::decode(page.payload)
                .map_err(|error| Error::Malformed(format!("page {}: {error}", page.number)))?;
            if page.kind != u32::from(kind::BUCKETS) {
                return Err(Error::malformed("the snapshot has no buckets where it says"));
            }
            carried.extend(buckets.records.into_iter().map(Carried::from));
        }
        let content = Content::new(&decoded, carried)?;
        Ok(OwnSnapshot { source, pages: (start, end), content, mark: decoded })
    }

    /// The mark of the commit that was taken.
    pub fn mark(&self) -> &StoreMark {
        &self.mark
    }
}

/// As [`super::status`], of the etcd snapshot that this one would be.
pub async fn own_status(snapshot: &Settled<OwnSnapshot>) -> Result<Status, Error> {
    let content = snapshot.content();
    let newest = Survivors::find(&mut snapshot.records(), content.revision).await?;
    let version = content.get(content::META, b"storageVersion").cloned().unwrap_or_default();
    Ok(Status {
        hash: whole_hash(snapshot, false).await?,
        revision: content.revision,
        keys: newest.live_keys(),
        size: snapshot.view().source.length(),
        version: String::from_utf8_lossy(&version).into_owned(),
    })
}

/// The page at `at` and where the next one begins.
async fn read_page(source: &FileSource, at: u64, end: u64) -> Result<(SnapshotPage, u64), Error> {
    let outside = || Error::Malformed(format!("the page at byte {at} lies outside of the snapshot"));
    let body = at.checked_add(PAGE_HEAD as u64).filter(|body| *body <= end).ok_or_else(outside)?;
    let head = source.read(at, PAGE_HEAD).await?;
    let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
    let next = body.checked_add(length as u64).filter(|next| *next <= end).ok_or_else(outside)?;
    if length > PAYLOAD_BYTES_MAX {
        return Err(outside());
    }
    let payload = source.read(body, length).await?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[8..]), &payload);
    if crc.to_le_bytes() != head[4..8] {
        return Err(Error::Malformed(format!("the page at byte {at} of the snapshot is damaged")));
    }
    let half = |at: usize| u32::from(u16::from_le_bytes(head[at..at + 2].try_into().expect("two bytes")));
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let page = SnapshotPage {
        kind: half(18),
        payload,
        number: long(8),
        span: half(16),
        first: long(24),
        weight: u32::from_le_bytes(head[20..24].try_into().expect("four bytes")),
    };
    Ok((page, next))
}

impl View for OwnSnapshot {
    type Records = OwnRecords;

    fn records(&self) -> OwnRecords {
        let (at, end) = self.pages;
        OwnRecords {
            source: self.source.clone(),
            at,
            end,
            records: VecDeque::new(),
            last: (0, 0),
            revision: self.content.revision,
        }
    }

    fn content(&self) -> &Content {
        &self.content
    }
}

pub struct OwnRecords {
    source: FileSource,
    at: u64,
    end: u64,
    /// Of the page that was read last.
    records: VecDeque<Stored>,
    last: (u64, u64),
    revision: i64,
}

impl Records for OwnRecords {
    async fn next(&mut self) -> Result<Option<Stored>, Error> {
        loop {
            if let Some(record) = self.records.pop_front() {
                return Ok(Some(record));
            }
            if self.at == self.end {
                return Ok(None);
            }
            let (page, next) = read_page(&self.source, self.at, self.end).await?;
            self.at = next;
            if page.kind == u32::from(kind::RECORDS) {
                let number = PageNumber(page.number);
                for stored in records_of(number, &page.payload)? {
                    let at = (stored.main, stored.sub);
                    if at <= self.last || stored.main as i64 > self.revision {
                        return Err(Error::Malformed(format!(
                            "page {}: record {}/{} does not follow",
                            page.number, at.0, at.1
                        )));
                    }
                    self.last = at;
                    self.records.push_back(stored);
                }
            }
        }
    }
}

/// The records of a page of kind RECORDS.
pub(super) fn records_of(number: PageNumber, payload: &Bytes) -> Result<Vec<Stored>, Error> {
    let bad = |what: mvcc::Malformed| Error::Malformed(format!("page {}: {what}", number.0));
    let mut out = Vec::new();
    for record in mvcc::records(number, payload) {
        let (_, record) = record.map_err(bad)?;
        out.push(Stored {
            main: record.main,
            sub: record.sub,
            tombstone: record.tombstone,
            key_value: payload.slice_ref(record.key_value),
        });
    }
    Ok(out)
}
