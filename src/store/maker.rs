//! A new store from records that come in order: what an import or a restore
//! fills. Opened afterwards it is a store like any other.
//!
//! **Promises**: bounded memory; everything but the mark is durable before the
//! mark is written, so that a store without one, which is refused, is all that
//! a crash can leave. **Never** adds to a store that is there.

use super::{Error, Options, kind};
use crate::env::Env;
use crate::mvcc::{Fields, OpenPage};
use crate::pagefile::{self, Label, PageFile};
use bytes::Bytes;
use prost::Message;
use quorate_proto::quorate::v1::{BucketPage, BucketRecord, StoreMark};
use std::path::PathBuf;

/// Payload of a page of buckets, unless one entry alone is larger.
const BUCKETS_BYTES: usize = 12 << 10;

pub struct Maker {
    file: PageFile,
    open: OpenPage,
    /// Label of the open page.
    label: Label,
    last: (u64, u64),
    /// Bytes appended since the last sync.
    unsynced: u64,
    sync_bytes: u64,
    bucket_pages: Vec<u64>,
    lineage: u64,
}

impl Maker {
    /// Makes the page file in `dir`, which must not hold one.
    pub async fn create(env: &Env, dir: PathBuf, options: &Options) -> Result<Maker, Error> {
        let sizes = pagefile::Options { page_size: options.page_size, segment_size: options.segment_size };
        let (file, opened) = PageFile::open(env.disk.clone(), dir, sizes, env.rng.clone()).await?;
        if opened.last_page.is_some() {
            return Err(Error::Decode("the new store is not empty".into()));
        }
        Ok(Maker {
            file,
            open: OpenPage::new(),
            label: Label { first: 0, weight: 0 },
            last: (0, 0),
            unsynced: 0,
            sync_bytes: options.commit_bytes,
            bucket_pages: Vec::new(),
            lineage: env.rng.next_u64(),
        })
    }

    /// Takes entries of buckets that are kept as they are; before any record.
    pub async fn buckets(&mut self, entries: impl IntoIterator<Item = BucketRecord>) -> Result<(), Error> {
        assert_eq!(self.last, (0, 0), "buckets come before records");
        let mut page = BucketPage::default();
        let mut bytes = 0;
        for entry in entries {
            let size = entry.encoded_len();
            if bytes > 0 && bytes + size > BUCKETS_BYTES {
                self.put_buckets(std::mem::take(&mut page)).await?;
                bytes = 0;
            }
            bytes += size;
            page.records.push(entry);
        }
        if bytes > 0 {
            self.put_buckets(page).await?;
        }
        Ok(())
    }

    async fn put_buckets(&mut self, page: BucketPage) -> Result<(), Error> {
        let payload = Bytes::from(page.encode_to_vec());
        let number = self.append(kind::BUCKETS, Label { first: 0, weight: 0 }, payload).await?;
        self.bucket_pages.push(number);
        Ok(())
    }

    async fn append(&mut self, kind: u8, label: Label, payload: Bytes) -> Result<u64, Error> {
        self.unsynced += payload.len() as u64;
        let number = self.file.append(kind, label, payload).0;
        if self.unsynced >= self.sync_bytes {
            self.sync().await?;
        }
        Ok(number)
    }

    async fn sync(&mut self) -> Result<(), Error> {
        if self.unsynced > 0 {
            self.file.commit().await?;
            self.file.sync().await?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Takes a record, which follows the last one. Fails on what is no record of mvcc.
    pub async fn record(
        &mut self,
        (main, sub): (u64, u64),
        tombstone: bool,
        key_value: &[u8],
    ) -> Result<(), Error> {
        let bad = |what: &dyn std::fmt::Display| Error::Decode(format!("record {main}/{sub}: {what}"));
        if (main, sub) <= self.last || i64::try_from(main).is_err() {
            return Err(bad(&"it does not follow the one before"));
        }
        let fields = Fields::decode(key_value).map_err(|what| bad(&what))?;
        if !self.open.has_room(&fields) {
            self.seal().await?;
        }
        if self.open.is_empty() {
            self.label.first = main;
        }
        self.open.push(main, sub, tombstone, &fields);
        self.label.weight += 1;
        self.last = (main, sub);
        Ok(())
    }

    async fn seal(&mut self) -> Result<(), Error> {
        if !self.open.is_empty() {
            let (label, payload) = (self.label, self.open.take());
            self.append(kind::RECORDS, label, payload).await?;
            self.label.weight = 0;
        }
        Ok(())
    }

    /// (main, sub) of the last record; zeros before the first.
    pub fn last(&self) -> (u64, u64) {
        self.last
    }

    /// Ends the store with the mark of its first commit.
    pub async fn finish(mut self, mark: StoreMark) -> Result<(), Error> {
        assert!(
            u64::try_from(mark.revision).is_ok_and(|revision| revision >= self.last.0),
            "no record is newer"
        );
        self.seal().await?;
        self.sync().await?;
        let label = Label { first: mark.revision.unsigned_abs(), weight: 0 };
        let mark = StoreMark { bucket_pages: self.bucket_pages, lineage: self.lineage, ..mark };
        self.file.append(kind::MARK, label, Bytes::from(mark.encode_to_vec()));
        self.file.commit().await?;
        self.file.sync().await?;
        self.file.mark_synced().await?;
        Ok(())
    }
}
