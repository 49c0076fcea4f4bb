//! Names of hosts to addresses; the simulated network has names of its own.

use std::{io, net::SocketAddr};

/// The addresses of `host:port`, in the resolver's order.
pub async fn addresses(authority: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host(authority).await?.collect())
}
