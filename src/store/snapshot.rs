//! The store as pages: for a peer, and for HashKV.

use super::{Error, Position, ReadError, Shared, Store, kind};
use crate::mvcc::{HashKv, Pages};
use crate::pagefile::{PageNumber, PageReader};
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, quorate::v1::SnapshotPage};
use std::sync::Arc;

/// Streams every record up to one commit; the last page is its mark.
pub struct SnapshotReader {
    pub position: Position,
    pub pages: u64,
    reader: PageReader,
    /// Oldest first.
    numbers: std::vec::IntoIter<PageNumber>,
}

impl SnapshotReader {
    /// The next page; `None` at the end. Fails when the store has dropped the
    /// page meanwhile: take a new snapshot then.
    pub async fn next(&mut self) -> Result<Option<SnapshotPage>, Error> {
        let Some(number) = self.numbers.next() else { return Ok(None) };
        let page = self.reader.read(number).await?;
        assert_eq!(page.number, number, "a page says which one it is");
        Ok(Some(SnapshotPage {
            kind: u32::from(page.kind),
            payload: page.payload,
            number: number.0,
            ..Default::default()
        }))
    }
}

impl Shared {
    /// A record page wherever it is.
    async fn page(&self, reader: &PageReader, number: PageNumber) -> Result<Bytes, crate::pagefile::Error> {
        match self.cache.get(number) {
            Some(payload) => Ok(payload),
            None => Ok(reader.read(number).await?.payload),
        }
    }
}

impl Store {
    /// The store as of its last durable commit.
    pub async fn snapshot(&self) -> Result<SnapshotReader, Error> {
        let reader = self.shared.reader.read().expect("no panic while the reader is locked").clone();
        let (mut numbers, mark, position) = {
            let layout = self.shared.layout();
            let Some((mark, position)) = layout.committed.clone() else {
                return Err(Error::Snapshot("nothing is committed yet".into()));
            };
            let end = layout.records.partition_point(|page| *page < mark);
            (layout.records[..end].to_vec(), mark, position)
        };
        numbers.push(mark);
        Ok(SnapshotReader { position, pages: numbers.len() as u64, reader, numbers: numbers.into_iter() })
    }

    /// HashKV at `revision` (0 = current), as etcd computes it (C9, C10).
    pub async fn hash_kv(&self, revision: i64) -> Result<pb::HashKvResponse, ReadError> {
        let shared: &Arc<Shared> = &self.shared;
        let reader = shared.reader.read().expect("no panic while the reader is locked").clone();
        let (view, at, pages, open) = {
            let mut state = shared.state_mut();
            let view = state.mvcc().view();
            let at = view.hash_revision(revision)?;
            state.pin();
            // The open page is copied while the list of pages stands still.
            let pages = state.mvcc().live_pages(PageNumber(0), usize::MAX);
            (view, at, pages, state.mvcc().open_page())
        };
        let mut hash = HashKv::new(at, view);
        let fed = self.feed(&reader, &mut hash, &pages, open).await;
        shared.state_mut().unpin(view.compacted);
        fed?;
        Ok(pb::HashKvResponse {
            header: Some(pb::ResponseHeader { revision: view.revision, ..Default::default() }),
            hash: hash.finish(),
            compact_revision: view.compacted,
            hash_revision: at,
        })
    }

    async fn feed(
        &self,
        reader: &PageReader,
        hash: &mut HashKv,
        pages: &[PageNumber],
        open: (PageNumber, Bytes),
    ) -> Result<(), ReadError> {
        for number in pages {
            let payload =
                if *number == open.0 { open.1.clone() } else { self.shared.page(reader, *number).await? };
            let state = self.shared.state();
            match hash.feed(*number, &payload, state.mvcc()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(what) => return Err(ReadError::Decode(format!("page {}: {what}", number.0))),
            }
        }
        Ok(())
    }
}

/// Kinds are stored; what a peer sends must mean the same here.
const _: () = assert!(kind::RECORDS == 1 && kind::MARK == 2);
