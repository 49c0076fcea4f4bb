//! The whole store for a peer: its pages as they lie, up to one commit.
//!
//! Taking one copies nothing and blocks no one: it is a scan over the segments
//! that stood at that moment, whose files stay readable until it has passed
//! them, and the mark of the last durable commit. What is cleaned or compacted
//! later changes nothing in it.

use super::shared::Committed;
use super::{Error, Position, Store, kind};
use crate::pagefile::SegmentFacts;
use crate::pagefile::{PageNumber, Scan};
use quorate_proto::quorate::v1::SnapshotPage;

/// Streams every page that counts up to one commit; the last page is its mark.
pub struct SnapshotReader {
    pub position: Position,
    /// Revision and compacted mark of the commit.
    pub revision: i64,
    pub compacted: i64,
    /// The segments that it is taken from.
    pub segments: Vec<SegmentFacts>,
    committed: Committed,
    /// `None` behind the end.
    scan: Option<Scan>,
}

impl SnapshotReader {
    /// The next page, in the order of numbers; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<SnapshotPage>, Error> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        let mark = &self.committed;
        while let Some(page) = scan.next().await? {
            if page.number >= mark.mark_page {
                break;
            }
            let counts = match page.kind {
                kind::RECORDS => true,
                kind::BUCKETS => mark.buckets.contains(&page.number),
                _ => false,
            };
            if counts {
                return Ok(Some(SnapshotPage {
                    kind: u32::from(page.kind),
                    payload: page.payload,
                    number: page.number.0,
                    span: u32::from(page.span),
                    first: page.label.first,
                    weight: page.label.weight,
                }));
            }
        }
        self.scan = None;
        Ok(Some(SnapshotPage {
            kind: u32::from(kind::MARK),
            payload: mark.mark.clone(),
            number: mark.mark_page.0,
            span: 0,
            first: mark.label().first,
            weight: 0,
        }))
    }
}

impl Store {
    /// The store as of its last durable commit.
    pub async fn snapshot(&self) -> Result<SnapshotReader, Error> {
        loop {
            let committed = self.shared.committed();
            let ground = self.shared.ground();
            let (segments, scan) = (ground.reader.segments(), ground.reader.scan(PageNumber(0)));
            let Some(committed) = committed else {
                return Err(Error::Snapshot("nothing is committed yet".into()));
            };
            // Nothing was compacted away between mark and scan if no commit came in between.
            let mark = self.shared.committed().map(|committed| committed.mark_page);
            if mark != Some(committed.mark_page) {
                crate::env::task::yield_now().await;
                continue;
            }
            return Ok(SnapshotReader {
                position: committed.position.clone(),
                revision: committed.revision,
                compacted: committed.compacted,
                segments,
                committed,
                scan: Some(scan),
            });
        }
    }
}
