//! A snapshot that arrives: pages are gathered, checked, and handed to the raft loop whole.
//!
//! One at a time (I10). While the state is being replaced the sender is told that this member
//! lives; the last word says whether the snapshot was taken. **Never** touches the store: the loop
//! lets raft judge first, then the applier installs.

use super::{
    frame::{self, FrameReader},
    inbox::{Input, NotTaken},
    peer_listen::Serving,
    pulse::Pulse,
    raft_message::{self, Carrier},
};
use crate::env::Clock;
use quorate_proto::quorate::v1::{SnapshotBegin, SnapshotPage, frame::Body};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

/// Between two signs of life while a snapshot is installed.
const SIGN_INTERVAL: Duration = Duration::from_millis(500);

/// Whether a snapshot is coming in.
pub(super) struct Receiving {
    busy: AtomicBool,
    clock: Arc<dyn Clock>,
}

impl Receiving {
    pub fn new(clock: Arc<dyn Clock>) -> Receiving {
        Receiving { busy: AtomicBool::new(false), clock }
    }

    fn begin(&self) -> Option<Turn<'_>> {
        self.busy.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(Turn(self))
    }
}

struct Turn<'a>(&'a Receiving);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Adds a page to the checksum over a whole snapshot.
pub(super) fn checksum(before: u32, page: &SnapshotPage) -> u32 {
    let SnapshotPage { kind, payload, number, span, first, weight } = page;
    let mut head = [0; 28];
    head[..4].copy_from_slice(&kind.to_le_bytes());
    head[4..12].copy_from_slice(&number.to_le_bytes());
    head[12..16].copy_from_slice(&span.to_le_bytes());
    head[16..24].copy_from_slice(&first.to_le_bytes());
    head[24..].copy_from_slice(&weight.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(before, &head), payload)
}

/// Receives one snapshot from `from` and answers whether it was taken.
pub(super) async fn receive<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    from: u64,
    serving: &Serving,
    pulse: &Pulse,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let answer = match serving.receiving.begin() {
        None => Err("another snapshot is coming in".to_owned()),
        Some(_turn) => match gather(reader, from, serving, pulse).await? {
            Ok((message, pages)) => {
                let (answer, done) = oneshot::channel();
                match serving.inbox.push(Input::Snapshot { message, pages, answer }) {
                    Ok(()) => wait(writer, done, &*serving.receiving.clock, pulse).await?,
                    Err(NotTaken::Full) => Err("busy".to_owned()),
                    Err(NotTaken::Closed) => Err("stopping".to_owned()),
                }
            }
            Err(bad) => Err(bad),
        },
    };
    let word = answer.err().unwrap_or_default();
    frame::write(writer, Body::SnapshotAnswer(word)).await
}

type Gathered = (raft::eraftpb::Message, Vec<SnapshotPage>);

/// Reads message and pages; the inner error is told to the sender.
async fn gather<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    from: u64,
    serving: &Serving,
    pulse: &Pulse,
) -> io::Result<Result<Gathered, String>> {
    let bad = |what: &str| Ok(Err(what.to_owned()));
    let Body::SnapshotBegin(SnapshotBegin { message: Some(message) }) = reader.expect().await? else {
        return bad("a snapshot begins with its message");
    };
    let message = match raft_message::from_wire(message, Carrier::Snapshot) {
        Ok(message) if message.from == from && message.to == serving.member_id => message,
        Ok(_) => return bad("a message of or for another member"),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut pages = Vec::new();
    let mut sum = 0;
    loop {
        let body = reader.expect().await?;
        pulse.heard();
        match body {
            Body::SnapshotPage(page) => {
                sum = checksum(sum, &page);
                pages.push(page);
            }
            Body::SnapshotEnd(end) if pages.len() as u64 != end.pages || end.crc32c != sum => {
                return bad("pages are missing or damaged");
            }
            Body::SnapshotEnd(_) => return Ok(Ok((message, pages))),
            _ => return bad("a frame that does not belong in a snapshot"),
        }
    }
}

/// Waits for the loop's word, with a sign of life to the sender now and then.
async fn wait<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut done: oneshot::Receiver<Result<(), String>>,
    clock: &dyn Clock,
    pulse: &Pulse,
) -> io::Result<Result<(), String>> {
    for number in 0.. {
        tokio::select! {
            biased;
            word = &mut done => return Ok(word.unwrap_or_else(|_| Err("stopping".to_owned()))),
            () = clock.sleep(SIGN_INTERVAL) => {}
        }
        pulse.heard();
        frame::write(writer, Body::Ping(number)).await?;
    }
    unreachable!("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn the_checksum_sees_order_kind_and_numbers() {
        let page = |kind, payload: &'static [u8]| SnapshotPage {
            kind,
            payload: Bytes::from_static(payload),
            number: 7,
            ..SnapshotPage::default()
        };
        let sum = |pages: &[SnapshotPage]| pages.iter().fold(0, checksum);
        let (a, b) = (page(1, b"a"), page(1, b"b"));
        assert_ne!(sum(&[a.clone(), b.clone()]), sum(&[b.clone(), a.clone()]));
        assert_ne!(sum(std::slice::from_ref(&a)), sum(&[page(2, b"a")]));
        assert_ne!(sum(&[a.clone(), b]), sum(std::slice::from_ref(&a)));
        assert_ne!(sum(&[SnapshotPage { number: 8, ..a.clone() }]), sum(std::slice::from_ref(&a)));
        assert_ne!(sum(&[SnapshotPage { span: 1, ..a.clone() }]), sum(&[a]));
    }
}
