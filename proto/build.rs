//! Compiles the .proto files beside this one, with no protoc, and keeps their
//! descriptors for the JSON gateway.
use prost::Message;
use std::{env, error::Error, fs, path::PathBuf};

const FILES: &[&str] = &[
    "rpc.proto",
    "mvcc.proto",
    "auth.proto",
    "lock.proto",
    "election.proto",
    "membership.proto",
    "lease.proto",
    "wal.proto",
    "snap.proto",
    "raft.proto",
    "health.proto",
    "peer.proto",
    "backup.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().build_transport(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
