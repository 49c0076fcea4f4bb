//! Rot in the store (I6): the member hands over, stops voting and serving, and stays up to say why.
//!
//! What was found is written down beside the identity, so that the next start looks at the same page
//! before it votes: a page that is still bad refuses the start with the same words, one that is well
//! again (or gone) clears the note.
//!
//! ```text
//! quorate rot 1
//! page 123
//! found segment ... position ...
//! crc32c 00000000
//! ```
//!
//! **Never** tries to mend a page: the other members have the data.

use super::{Replica, StartError};
use crate::{
    env::{
        Disk,
        disk::{Open, put_in_place},
    },
    pagefile::{self, PageNumber},
    store::{self, Rot, Store},
};
use bytes::Bytes;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(super) const FILE: &str = "rot";
const FORMAT: &str = "quorate rot 1";
const LENGTH_MAX: u64 = 64 << 10;

/// What an earlier life found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    page: PageNumber,
    found: String,
}

impl Note {
    fn encode(&self) -> String {
        let found = self.found.replace(['\n', '\r'], " ");
        let body = format!("{FORMAT}\npage {}\nfound {found}\n", self.page.0);
        format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()))
    }

    fn decode(bytes: &[u8]) -> Option<Note> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, checksum) = text.split_at(text.rfind("crc32c ")?);
        if checksum != format!("crc32c {:08x}\n", crc32c::crc32c(body.as_bytes())) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != FORMAT {
            return None;
        }
        let page = PageNumber(lines.next()?.strip_prefix("page ")?.parse().ok()?);
        Some(Note { page, found: lines.next()?.strip_prefix("found ")?.to_owned() })
    }
}

/// What an earlier life wrote down; `None`: nothing.
async fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Note>, StartError> {
    let other = |error: io::Error| StartError::Other(format!("cannot read {}: {error}", path.display()));
    let file = match disk.open(path, Open::Existing).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(other(error)),
    };
    let length = file.length().await.map_err(other)?.min(LENGTH_MAX);
    let bytes = file.read_at(0, length as usize).await.map_err(other)?;
    Note::decode(&bytes).map(Some).ok_or_else(|| {
        StartError::Other(format!(
            "{} says that rot was found in the store and is damaged itself: \
             check the store, then remove that file",
            path.display()
        ))
    })
}

/// Why a store with a damaged page does not open: in the words of whoever found it first.
pub(super) async fn in_the_way(disk: &dyn Disk, dir: &Path, error: store::Error) -> StartError {
    let store::Error::PageFile(pagefile::Error::Rot { path, position, .. }) = &error else {
        return error.into();
    };
    let place = format!("{}: the page at byte {position},", path.display());
    match read(disk, &dir.join(FILE)).await {
        Ok(Some(note)) if note.found.contains(&place) => {
            crate::reached!("start refused for rot that is still there");
            StartError::Rot(note.found)
        }
        _ => StartError::Rot(format!("rot in the store: {error}")),
    }
}

/// Before this member votes: looks again at the page that an earlier life found rotten.
pub(super) async fn look_again(disk: &dyn Disk, dir: &Path, store: &Store) -> Result<(), StartError> {
    let path = dir.join(FILE);
    let other = |error: io::Error| StartError::Other(format!("cannot remove {}: {error}", path.display()));
    let Some(note) = read(disk, &path).await? else { return Ok(()) };
    match store.verify(note.page).await {
        Err(rot) => {
            crate::reached!("start refused for rot that is still there");
            Err(StartError::Rot(rot.to_string()))
        }
        Ok(()) => {
            crate::reached!("rot is gone at the next start");
            tracing::warn!(
                page = note.page.0,
                found = note.found,
                "rot that an earlier run found in the store is not there any more"
            );
            disk.remove(&path).await.map_err(other)?;
            disk.sync_dir(dir).await.map_err(other)
        }
    }
}

/// Waits for rot and takes the member out, once; ends with the member. `within`: what handing over
/// leadership may take.
pub(super) async fn watch(replica: Replica, dir: PathBuf, within: Duration) {
    let shared = replica.shared.clone();
    let mut rot = shared.store.rot();
    // Rot that apply met is told before the loop ends for it.
    let found = tokio::select! {
        biased;
        found = rot.wait_for(Option::is_some) => found.ok().and_then(|found| found.clone()),
        () = shared.loop_ended() => None,
    };
    if let Some(found) = found {
        take_out(&replica, &dir, within, &found).await;
    }
}

async fn take_out(replica: &Replica, dir: &Path, within: Duration, rot: &Rot) {
    crate::reached!("member taken out for rot");
    let shared = &replica.shared;
    let reason: Arc<str> = rot.to_string().into();
    tracing::error!(
        member_id = %format_args!("{:x}", shared.member_id),
        segment = %rot.path.display(),
        position = rot.position,
        first_page = rot.first.0,
        last_page = rot.last.0,
        error = %reason,
        "rot in the store: this member hands over and serves nobody until it is stopped"
    );
    // First of all: nobody gets another answer from here.
    shared.out_of_service.send_replace(Some(reason.clone()));
    let note = Note { page: rot.first, found: reason.to_string() };
    if let Err(error) = put_in_place(&*shared.env.disk, dir, FILE, Bytes::from(note.encode())).await {
        tracing::error!(%error, "cannot write down what rot was found");
    }
    if let Err(error) = replica.transfer_leadership(0, within).await {
        tracing::warn!(%error, "leadership was not handed over: another member will take it");
    }
    replica.stop().await;
    tracing::error!(error = %reason, "raft has stopped; the other members go on without this one");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_as_it_was_written_and_no_changed_byte_goes_unnoticed() {
        let note = Note { page: PageNumber(42), found: "segment a\nposition 7".to_owned() };
        let bytes = note.encode().into_bytes();
        let read = Note::decode(&bytes).unwrap();
        assert_eq!((read.page, read.found.as_str()), (note.page, "segment a position 7"));
        for at in 0..bytes.len() {
            let mut spoilt = bytes.clone();
            spoilt[at] ^= 1;
            assert_eq!(Note::decode(&spoilt), None, "byte {at}");
            assert_eq!(Note::decode(&bytes[..at]), None, "cut at {at}");
        }
    }
}
