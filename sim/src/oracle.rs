//! Stand-in until the oracles are merged.
use crate::history::{Evidence, History};

pub struct Violation {
    pub guarantee: &'static str,
    pub sentence: String,
    pub op: Option<u64>,
}

pub fn judge(_: &History, _: &Evidence) -> Vec<Violation> {
    Vec::new()
}
