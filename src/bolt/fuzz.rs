//! The reader for a fuzzer: bytes in, no panic; what is read ascends.

use super::{Database, Error, Item, page::Meta};
use bytes::Bytes;

/// Reads a whole database. The first meta's checksum is made to match.
pub fn database(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    Meta::seal(&mut bytes);
    // What is refused is an answer.
    let _ = futures::executor::block_on(read(bytes.into()));
}

/// Makes the first meta's checksum match.
pub fn seal(file: &mut [u8]) {
    Meta::seal(file);
}

/// Every record of a database in memory; returns how many there are.
pub(super) async fn read(bytes: Bytes) -> Result<u64, Error> {
    let database = Database::open(bytes).await?;
    let mut scan = database.scan();
    let (mut records, mut bucket, mut last) = (0, Bytes::new(), Bytes::new());
    while let Some(item) = scan.next().await? {
        match item {
            Item::Bucket(name) => {
                assert!(name > bucket, "buckets ascend");
                (bucket, last) = (name, Bytes::new());
            }
            Item::Record { key, .. } => {
                assert!(key > last, "keys ascend");
                last = key;
                records += 1;
            }
        }
    }
    let last_key = database.last_key(b"key").await?;
    assert!(bucket != "key" || last_key.unwrap_or_default() == last, "the last key is the last one");
    Ok(records)
}
