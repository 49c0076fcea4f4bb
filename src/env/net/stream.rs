//! A connected socket.
//!
//! Production: TCP with TCP_NODELAY (Nagle and delayed acknowledgements
//! together would cost 40 ms a request). Simulation: madsim's stream with what
//! it lacks:
//! - an empty flush sends nothing (madsim makes a message of it, which wakes
//!   the peer, which flushes: peers would keep each other awake without end);
//! - the end of the stream and a reset do not cross a link that is cut
//!   ([`super::links`]), since no packet would;
//! - every byte handed to the wire goes into the trace hash.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

#[cfg(not(madsim))]
pub use production::Stream;
#[cfg(madsim)]
pub use simulated::Stream;

#[cfg(not(madsim))]
mod production {
    use super::*;

    /// A connected socket with TCP_NODELAY.
    #[derive(Debug)]
    pub struct Stream(TcpStream);

    impl Stream {
        pub(in crate::env::net) fn new(stream: TcpStream) -> io::Result<Stream> {
            stream.set_nodelay(true)?;
            Ok(Stream(stream))
        }

        pub fn local_address(&self) -> io::Result<SocketAddr> {
            self.0.local_addr()
        }

        pub fn peer_address(&self) -> io::Result<SocketAddr> {
            self.0.peer_addr()
        }
    }

    impl AsyncRead for Stream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Stream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffers: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write_vectored(cx, buffers)
        }

        fn is_write_vectored(&self) -> bool {
            self.0.is_write_vectored()
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }
}

#[cfg(madsim)]
mod simulated {
    use super::*;
    use crate::env::{
        net::links::{Links, RETRANSMIT},
        timer::Sleep,
    };
    use std::{task::ready, time::Duration};

    /// A connected simulated socket.
    pub struct Stream {
        inner: TcpStream,
        local: SocketAddr,
        peer: SocketAddr,
        /// Bytes were written since the last flush.
        unflushed: bool,
        /// The other side has ended the stream; its FIN arrives when this fires.
        end: Option<Pin<Box<Sleep>>>,
    }

    impl std::fmt::Debug for Stream {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "Stream({} to {})", self.local, self.peer)
        }
    }

    impl Stream {
        pub(in crate::env::net) fn new(inner: TcpStream) -> io::Result<Stream> {
            let (local, peer) = (inner.local_addr()?, inner.peer_addr()?);
            Ok(Stream { inner, local, peer, unflushed: false, end: None })
        }

        pub fn local_address(&self) -> io::Result<SocketAddr> {
            Ok(self.local)
        }

        pub fn peer_address(&self) -> io::Result<SocketAddr> {
            Ok(self.peer)
        }
    }

    impl AsyncRead for Stream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            loop {
                if let Some(end) = &mut self.end {
                    ready!(end.as_mut().poll(cx));
                    if !Links::get().is_cut(self.peer.ip(), self.local.ip()) {
                        return Poll::Ready(Ok(()));
                    }
                    crate::reached!("the end of a stream waits for a cut link");
                    self.end = Some(Box::pin(Sleep::lasting(RETRANSMIT)));
                    continue;
                }
                let before = buffer.filled().len();
                ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
                if buffer.filled().len() > before || buffer.remaining() == 0 {
                    return Poll::Ready(Ok(()));
                }
                // A FIN takes as long as data would.
                let delay_us = madsim::rand::Rng::gen_range(&mut madsim::rand::thread_rng(), 1_000..10_000);
                self.end = Some(Box::pin(Sleep::lasting(Duration::from_micros(delay_us))));
            }
        }
    }

    impl AsyncWrite for Stream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            crate::trace!("wire", u64::from(self.local.port()) << 16 | u64::from(self.peer.port()), bytes);
            self.unflushed |= !bytes.is_empty();
            Pin::new(&mut self.inner).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            if !self.unflushed {
                return Poll::Ready(Ok(()));
            }
            self.unflushed = false;
            match ready!(Pin::new(&mut self.inner).poll_flush(cx)) {
                // The other end is gone, but its reset cannot reach us: to us the
                // bytes are merely on their way.
                Err(_) if Links::get().is_apart(self.peer.ip(), self.local.ip()) => {
                    crate::reached!("a write to a dead peer over a cut link");
                    Poll::Ready(Ok(()))
                }
                result => Poll::Ready(result),
            }
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            ready!(self.as_mut().poll_flush(cx))?;
            Pin::new(&mut self.inner).poll_shutdown(cx)
        }
    }
}
