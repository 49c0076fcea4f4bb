//! The store against a model that is written for clarity, on a disk that can
//! be cut off at any operation.
//!
//! | file | what |
//! |---|---|
//! | `bench.rs` | a store without tasks: each step is taken by hand |
//! | `model.rs` | what a store must show |
//! | `script.rs` | one history that goes through everything |
//! | `serving.rs` | reads, hashes, views, cleaning, the checkpoint |
//! | `crash.rs` | the whole script, killed at every disk operation |
//! | `space.rs` | the same script, out of space at every allocation |
//! | `rot.rs` | flipped bits and misdirected writes at every page |

mod bench;
mod crash;
mod model;
mod rot;
mod script;
mod serving;
mod space;
