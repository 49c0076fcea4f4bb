//! A snapshot's bytes cut into the parts of Maintenance.Snapshot (X6): blobs,
//! what is still to come beside each, and a last one that is the SHA-256 over
//! all before.
//!
//! **Promises** as many bytes as were announced. **Never** knows what they are.

use crate::bolt::PlanMismatch;
use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};

/// Bytes of a part at most.
pub const PART_BYTES: usize = 32768;

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the snapshot that are still to come, the digest left out.
    pub remaining: u64,
    /// The last one is the digest over all before.
    pub blob: Bytes,
}

/// Takes bytes as they are made and hands out parts.
pub(super) struct Parts {
    ready: BytesMut,
    remaining: u64,
    /// `None` behind the last part.
    digest: Option<Sha256>,
}

impl Parts {
    /// For a snapshot of `total` bytes.
    pub fn new(total: u64) -> Parts {
        Parts { ready: BytesMut::new(), remaining: total, digest: Some(Sha256::new()) }
    }

    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Whether more bytes are to be made before the next part is cut.
    pub fn is_short(&self) -> bool {
        self.ready.len() < PART_BYTES
    }

    /// Where the next bytes go.
    pub fn ready(&mut self) -> &mut BytesMut {
        &mut self.ready
    }

    /// The next part; `None` behind the digest. Call it when enough is there, or everything.
    pub fn cut(&mut self) -> Result<Option<Part>, PlanMismatch> {
        let Some(digest) = &mut self.digest else { return Ok(None) };
        if !self.ready.is_empty() {
            let blob = self.ready.split_to(self.ready.len().min(PART_BYTES)).freeze();
            digest.update(&blob);
            self.remaining = self.remaining.checked_sub(blob.len() as u64).ok_or(PlanMismatch)?;
            return Ok(Some(Part { remaining: self.remaining, blob }));
        }
        if self.remaining > 0 {
            return Err(PlanMismatch);
        }
        let digest = self.digest.take();
        Ok(digest.map(|digest| Part { remaining: 0, blob: Bytes::copy_from_slice(&digest.finalize()) }))
    }
}
