//! A snapshot made by etcd 3.5 to 3.7 (or a database of a stopped one) as a view.
//!
//! The file is read in large blocks, some of which are kept; it is never
//! changed. Snapshot and digest: tests/facts/storage.md, section 2.

use super::{
    Content, Error, Records, Stored, View,
    content::{KEY, META},
    walk::BucketsHash,
};
use crate::{
    bolt::{self, Database},
    env::File,
    mvcc::{Fields, RevisionKey},
};
use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io,
    sync::{Arc, Mutex},
};

/// Bytes of the digest behind a snapshot.
const DIGEST_BYTES: u64 = 32;
/// A file whose length leaves this rest has a digest.
pub(super) const LENGTH_UNIT: u64 = 512;
/// Bytes read at once, and how many such blocks are kept.
const BLOCK_BYTES: u64 = 256 << 10;
const BLOCKS_MAX: usize = 16;

/// Length of what the digest covers and whether there is one.
pub fn without_digest(length: u64) -> (u64, bool) {
    if length % LENGTH_UNIT == DIGEST_BYTES { (length - DIGEST_BYTES, true) } else { (length, false) }
}

/// Compares the digest at the end of a snapshot with its content.
pub async fn verify_digest(file: &Arc<dyn File>) -> Result<(), Error> {
    let (length, present) = without_digest(file.length().await?);
    if !present {
        return Err(Error::malformed("snapshot missing hash but --skip-hash-check=false"));
    }
    let mut digest = Sha256::new();
    let mut at = 0;
    while at < length {
        let bytes = file.read_at(at, (length - at).min(4 * BLOCK_BYTES) as usize).await?;
        if bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        digest.update(&bytes);
        at += bytes.len() as u64;
    }
    let expected = file.read_at(length, DIGEST_BYTES as usize).await?;
    let got = digest.finalize();
    if expected[..] != got[..] {
        // As Go prints bytes.
        let list = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(" ");
        return Err(Error::Malformed(format!("expected sha256 [{}], got [{}]", list(&expected), list(&got))));
    }
    Ok(())
}

/// A file as bolt reads it.
#[derive(Clone)]
pub struct FileSource {
    file: Arc<dyn File>,
    length: u64,
    blocks: Arc<Mutex<VecDeque<(u64, Bytes)>>>,
}

impl FileSource {
    /// The first `length` bytes of a file.
    pub fn new(file: Arc<dyn File>, length: u64) -> FileSource {
        FileSource { file, length, blocks: Arc::default() }
    }

    async fn block(&self, number: u64) -> io::Result<Bytes> {
        let lock = || self.blocks.lock().expect("no panic while the blocks are locked");
        if let Some((_, bytes)) = lock().iter().find(|(kept, _)| *kept == number) {
            return Ok(bytes.clone());
        }
        let at = number * BLOCK_BYTES;
        let wanted = (self.length - at).min(BLOCK_BYTES) as usize;
        let bytes = self.file.read_at(at, wanted).await?;
        if bytes.len() < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut blocks = lock();
        blocks.push_back((number, bytes.clone()));
        if blocks.len() > BLOCKS_MAX {
            blocks.pop_front();
        }
        Ok(bytes)
    }
}

impl bolt::Source for FileSource {
    fn length(&self) -> u64 {
        self.length
    }

    async fn read(&self, at: u64, length: usize) -> io::Result<Bytes> {
        let mut out = BytesMut::new();
        let mut at = at;
        while out.len() < length {
            let block = self.block(at / BLOCK_BYTES).await?;
            let from = (at % BLOCK_BYTES) as usize;
            let end = block.len().min(from + length - out.len());
            if out.is_empty() && end - from == length {
                return Ok(block.slice(from..end));
            }
            out.extend_from_slice(&block[from..end]);
            at += (end - from) as u64;
        }
        Ok(out.freeze())
    }
}

/// etcd's buckets in a file.
pub struct EtcdSnapshot {
    database: Database<FileSource>,
    content: Content,
}

impl EtcdSnapshot {
    /// Reads everything but the records. `length`: see [`without_digest`].
    pub async fn open(file: Arc<dyn File>, length: u64) -> Result<EtcdSnapshot, Error> {
        let database = Database::open(FileSource::new(file, length)).await?;
        let mut buckets: BTreeMap<Bytes, super::content::Bucket> = BTreeMap::new();
        let mut scan = database.scan_without(KEY);
        let mut current = Bytes::new();
        while let Some(item) = scan.next().await? {
            match item {
                bolt::Item::Bucket(name) => {
                    current = name;
                    buckets.entry(current.clone()).or_default();
                }
                bolt::Item::Record { key, value } => {
                    // Copies keep no block alive.
                    let own = |bytes: Bytes| Bytes::copy_from_slice(&bytes);
                    buckets.entry(current.clone()).or_default().insert(own(key), own(value));
                }
            }
        }
        let Some(meta) = buckets.get(META) else {
            return Err(Error::malformed("the snapshot has no bucket meta"));
        };
        let mark = |name: &str| match meta.get(name.as_bytes()) {
            None => Ok(-1),
            Some(value) => RevisionKey::decode(value)
                .map(|mark| mark.main as i64)
                .ok_or_else(|| Error::Malformed(format!("{name} is no revision"))),
        };
        let compacted = mark("scheduledCompactRev")?.max(mark("finishedCompactRev")?);
        let last = match database.last_key(KEY).await? {
            None => 0,
            Some(key) => RevisionKey::decode(&key).ok_or_else(bad_key)?.main as i64,
        };
        let content = Content::of_buckets(last.max(compacted).max(1), compacted, buckets);
        Ok(EtcdSnapshot { database, content })
    }

    /// Text of storageVersion, if it is a version.
    pub fn storage_version(&self) -> Option<&str> {
        let text = std::str::from_utf8(self.content.get(META, b"storageVersion")?).ok()?;
        let numbers = text.split('.').filter(|part| part.parse::<u32>().is_ok()).count();
        (numbers == 3 && text.split('.').count() == 3).then_some(text)
    }

    /// Refuses what this release cannot read: only 3.5 to 3.7 are known to have these encodings.
    pub fn verify_version(&self) -> Result<(), Error> {
        match self.storage_version() {
            // 3.5 wrote none.
            None => Ok(()),
            Some(version) if ["3.5.", "3.6.", "3.7."].iter().any(|known| version.starts_with(known)) => {
                Ok(())
            }
            Some(version) => Err(Error::Malformed(format!(
                "storage version {version:?} is not supported: a snapshot of etcd 3.5 to 3.7 is"
            ))),
        }
    }
}

fn bad_key() -> Error {
    Error::malformed("a key of bucket key is no revision")
}

impl View for EtcdSnapshot {
    type Records = EtcdRecords;

    fn records(&self) -> EtcdRecords {
        EtcdRecords { scan: self.database.scan_bucket(KEY) }
    }

    fn content(&self) -> &Content {
        &self.content
    }
}

pub struct EtcdRecords {
    scan: bolt::Scan<FileSource>,
}

impl Records for EtcdRecords {
    async fn next(&mut self) -> Result<Option<Stored>, Error> {
        loop {
            match self.scan.next().await? {
                None => return Ok(None),
                Some(bolt::Item::Bucket(_)) => {}
                Some(bolt::Item::Record { key, value }) => {
                    let RevisionKey { main, sub, tombstone } =
                        RevisionKey::decode(&key).ok_or_else(bad_key)?;
                    return Ok(Some(Stored { main, sub, tombstone, key_value: value }));
                }
            }
        }
    }
}

/// What `snapshot status` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub hash: u32,
    pub revision: i64,
    /// Keys whose last record is no deletion.
    pub keys: u64,
    /// Bytes of the database.
    pub size: u64,
    /// Empty when the file names none.
    pub version: String,
}

/// Reads the whole file, checking it on the way, and says what etcdutl says of it.
pub async fn status(snapshot: &EtcdSnapshot) -> Result<Status, Error> {
    let mut hash = BucketsHash::new(false);
    let mut scan = snapshot.database.scan();
    let mut of_records = false;
    let mut live = HashSet::new();
    let mut revision = 0;
    while let Some(item) = scan.next().await? {
        match item {
            bolt::Item::Bucket(name) => {
                hash.bucket(&name);
                of_records = name == KEY;
            }
            bolt::Item::Record { key, value } => {
                hash.record(&key, &value);
                if of_records {
                    let record = RevisionKey::decode(&key).ok_or_else(bad_key)?;
                    let fields = Fields::decode(&value).map_err(|what| {
                        Error::Malformed(format!("record {}/{}: {what}", record.main, record.sub))
                    })?;
                    let identity = super::survivors::identity(fields.key);
                    if record.tombstone {
                        live.remove(&identity)
                    } else {
                        live.insert(identity)
                    };
                    revision = record.main as i64;
                }
            }
        }
    }
    Ok(Status {
        hash: hash.finish(),
        revision,
        keys: live.len() as u64,
        size: snapshot.database.size(),
        version: snapshot.storage_version().unwrap_or_default().to_owned(),
    })
}
