//! Frames between peers: length (u32, little endian), CRC32C (u32, little endian), one
//! `quorate.v1.Frame`.
//!
//! The checksum covers the length too, so that a flipped length is known before it is believed for
//! long; no frame is longer than the limit that both sides agree on. Payloads are handed on as
//! slices of the receive buffer. **Never** panics on what came from outside.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use quorate_proto::quorate::v1::{Frame, frame::Body};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const HEADER_BYTES: usize = 8;
/// Read at once from a socket, and kept for it between frames.
const READ_BYTES: usize = 64 << 10;

/// Why a stream of frames cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    #[error("frame of {length} bytes is over the limit of {limit}")]
    TooLong { length: u32, limit: u32 },
    #[error("frame checksum does not match")]
    Checksum,
    #[error("frame does not decode: {0}")]
    Decode(String),
    #[error("frame is empty")]
    Empty,
}

impl From<BadFrame> for io::Error {
    fn from(bad: BadFrame) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, bad)
    }
}

/// Adds one frame to `out`.
pub(super) fn encode(body: Body, out: &mut BytesMut) {
    let frame = Frame { body: Some(body) };
    let length = frame.encoded_len();
    out.reserve(HEADER_BYTES + length);
    let start = out.len();
    out.put_u32_le(u32::try_from(length).expect("senders keep frames far below 4 GiB"));
    out.put_u32_le(0);
    frame.encode(out).expect("the buffer grows as needed");
    let checksum = checksum(length as u32, &out[start + HEADER_BYTES..]);
    out[start + 4..start + HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    debug_assert_eq!(out.len(), start + HEADER_BYTES + length);
}

fn checksum(length: u32, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), payload)
}

/// Takes the first frame out of `buffer`; `None` if it is not whole yet.
pub(super) fn decode(buffer: &mut BytesMut, limit: u32) -> Result<Option<Body>, BadFrame> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let expected = u32::from_le_bytes([c0, c1, c2, c3]);
    if length > limit {
        return Err(BadFrame::TooLong { length, limit });
    }
    if buffer.len() < HEADER_BYTES + length as usize {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    let payload: Bytes = buffer.split_to(length as usize).freeze();
    if checksum(length, &payload) != expected {
        return Err(BadFrame::Checksum);
    }
    let frame = Frame::decode(payload).map_err(|error| BadFrame::Decode(error.to_string()))?;
    frame.body.map(Some).ok_or(BadFrame::Empty)
}

/// Reads frames from a stream.
pub(super) struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    limit: u32,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R, limit: u32) -> FrameReader<R> {
        FrameReader { stream, buffer: BytesMut::new(), limit }
    }

    /// The next frame; `None` at a clean end of the stream.
    pub async fn next(&mut self) -> io::Result<Option<Body>> {
        loop {
            if let Some(body) = decode(&mut self.buffer, self.limit)? {
                return Ok(Some(body));
            }
            // The header's length was checked against the limit by `decode`.
            let whole =
                self.buffer.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
            let lacking = (HEADER_BYTES + whole).saturating_sub(self.buffer.len());
            self.buffer.reserve(lacking.max(READ_BYTES));
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// As [`FrameReader::next`], where the end of the stream is a failure.
    pub async fn expect(&mut self) -> io::Result<Body> {
        self.next().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Writes one frame and flushes.
pub(super) async fn write<W: AsyncWrite + Unpin>(stream: &mut W, body: Body) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    encode(body, &mut buffer);
    stream.write_all(&buffer).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_proto::quorate::v1::{Forward, SnapshotPage};

    const LIMIT: u32 = 1 << 20;

    fn bodies() -> Vec<Body> {
        vec![
            Body::Ping(7),
            Body::Forward(Forward { request_id: 9, data: Bytes::from(vec![5; 3000]), grows: true }),
            Body::SnapshotPage(SnapshotPage {
                kind: 2,
                payload: Bytes::from_static(b"page"),
                number: 7,
                span: 3,
                first: 9,
                weight: 4,
            }),
            Body::SnapshotAnswer(String::new()),
        ]
    }

    fn encoded() -> Vec<u8> {
        let mut buffer = BytesMut::new();
        bodies().into_iter().for_each(|body| encode(body, &mut buffer));
        buffer.to_vec()
    }

    fn decode_all(buffer: &mut BytesMut) -> Result<Vec<Body>, BadFrame> {
        std::iter::from_fn(|| decode(buffer, LIMIT).transpose()).collect()
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bytes = encoded();
        for cut in 1..bytes.len() {
            let mut buffer = BytesMut::from(&bytes[..cut]);
            let mut seen = decode_all(&mut buffer).unwrap();
            buffer.extend_from_slice(&bytes[cut..]);
            seen.extend(decode_all(&mut buffer).unwrap());
            assert_eq!(seen, bodies(), "cut at {cut}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn payloads_are_slices_of_the_receive_buffer() {
        let mut buffer = BytesMut::from(&encoded()[..]);
        let range = buffer.as_ptr() as usize..buffer.as_ptr() as usize + buffer.len();
        let seen = decode_all(&mut buffer).unwrap();
        let Body::Forward(forward) = &seen[1] else { panic!("a forward") };
        assert!(range.contains(&(forward.data.as_ptr() as usize)));
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let bytes = encoded();
        for at in 0..bytes.len() {
            for flip in [1_u8, 0x80, 0xff] {
                let mut spoilt = bytes.clone();
                spoilt[at] ^= flip;
                let mut buffer = BytesMut::from(&spoilt[..]);
                let seen = decode_all(&mut buffer);
                // Refused, or still waiting for the rest of a frame that claims to be longer.
                assert!(seen.is_err() || seen.unwrap().len() < bodies().len(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_long_frame_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::new();
        buffer.put_u32_le(LIMIT + 1);
        buffer.put_u32_le(0);
        assert_eq!(decode(&mut buffer, LIMIT), Err(BadFrame::TooLong { length: LIMIT + 1, limit: LIMIT }));
    }

    #[test]
    fn an_empty_frame_is_refused() {
        let mut buffer = BytesMut::new();
        buffer.put_u32_le(0);
        buffer.put_u32_le(checksum(0, &[]));
        assert_eq!(decode(&mut buffer, LIMIT), Err(BadFrame::Empty));
    }
}
