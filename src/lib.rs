//! Quorate: a replicated, multi-version key-value store that speaks the etcd
//! v3.7 API. This file is the map; `ARCHITECTURE.md` is the guide.
//!
//! Imports point down only (checked by `tests/house.rs`):
//!
//! | floor | room |
//! |---|---|
//! | 8 | `bin/` |
//! | 7 | [`server`], [`ctl`], [`utl`] |
//! | 6 | [`api`], [`client`] |
//! | 5 | [`replica`], [`backup`] |
//! | 4 | [`store`] |
//! | 3 | [`machine`] |
//! | 2 | [`mvcc`], [`members`], [`log`] |
//! | 1 | [`pagefile`], [`bolt`], [`layout`], [`naming`] |
//! | 0 | [`env`], `quorate_proto` |

pub mod api;
pub mod backup;
pub mod bolt;
pub mod client;
pub mod ctl;
pub mod env;
pub mod layout;
pub mod log;
pub mod machine;
pub mod members;
pub mod mvcc;
pub mod naming;
pub mod pagefile;
pub mod replica;
pub mod server;
pub mod store;
pub mod utl;

pub use quorate_proto as proto;
