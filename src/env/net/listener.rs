//! Bound ports and outgoing connections.

use super::Stream;
use crate::env::timer::within;
use std::{io, net::SocketAddr, time::Duration};
use tokio::net::{TcpListener, TcpStream, lookup_host};

/// A bound port. A server that listens on several addresses has several.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// `address`: an IP and port; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> io::Result<Listener> {
        Ok(Listener(TcpListener::bind(address).await?))
    }

    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        let stream = Stream::new(stream)?;
        #[cfg(madsim)]
        super::links::Links::get().place(madsim::plugin::node(), stream.local_address()?.ip());
        Ok((stream, peer))
    }

    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Connects to `host:port` within `timeout`, name resolution included; each
/// address of a name is tried in turn.
pub async fn connect(address: &str, timeout: Duration) -> io::Result<Stream> {
    let attempt = async {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host(address).await? {
            match dial(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    within(timeout, attempt).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(not(madsim))]
async fn dial(address: SocketAddr) -> io::Result<Stream> {
    Stream::new(TcpStream::connect(address).await?)
}

/// madsim refuses a connect over a cut link at once; a real one waits for an
/// answer that does not come.
#[cfg(madsim)]
async fn dial(address: SocketAddr) -> io::Result<Stream> {
    use super::links::{Links, RETRANSMIT};
    use crate::env::timer::Sleep;
    let links = Links::get();
    loop {
        while links.own_address().is_some_and(|own| links.is_apart(own, address.ip())) {
            crate::reached!("a connect waits for a cut link");
            Sleep::lasting(RETRANSMIT).await;
        }
        let result = TcpStream::connect(address).await;
        // The link may have been cut while the connect was under way.
        if links.own_address().is_some_and(|own| links.is_apart(own, address.ip())) {
            continue;
        }
        let stream = Stream::new(result?)?;
        links.place(madsim::plugin::node(), stream.local_address()?.ip());
        return Ok(stream);
    }
}
