//! What a member's store says of itself, asked without the wire.

use crate::history::Records;
use quorate::store::Store;

/// All records at `revision`, in both ways that the store tells them.
pub async fn records(_store: &Store, _revision: i64) -> Result<Records, String> {
    Err("not there yet".into())
}
