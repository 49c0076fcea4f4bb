//! Stub of the api room, in the server's worktree only: the real one replaces it.

use crate::{
    env::Env,
    replica::{Observer, Replica},
};
use std::{sync::Arc, time::Duration};

pub const ETCD_VERSION: &str = "3.7.1";

#[derive(Default)]
pub struct Metrics;
impl Observer for Metrics {
    fn log_synced(&self, _: f64) {}
    fn store_committed(&self, _: f64) {}
    fn applied(&self, _: &'static str, _: bool, _: f64) {}
}

pub struct Settings {
    pub cors: Vec<String>,
    pub max_txn_ops: usize,
    pub max_request_bytes: u64,
    pub quota_backend_bytes: i64,
    pub request_timeout: Duration,
    pub gateway: bool,
}

pub struct Service;
impl Service {
    pub fn new(_: Replica, _: Arc<Metrics>, _: &Env) -> Service {
        Service
    }
}

pub fn router(_: Service, _: Settings) -> axum::Router {
    todo!()
}
