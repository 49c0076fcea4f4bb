//! What a member's store says of itself, asked without the wire.

use crate::history::{Record, Records};
use prost::Message;
use quorate::store::{History, Store};
use quorate_proto::mvccpb::KeyValue;

/// All records at `revision`, in both ways that the store tells them.
///
/// # Errors
/// What the store says, or that it is at another revision by now.
pub async fn records(store: &Store, revision: i64) -> Result<Records, String> {
    let view = store.view();
    if view.revision() != revision {
        return Err(format!("it stands at {} by now", view.revision()));
    }
    let history = view.history(&[0], &[0], view.compacted(), revision).await;
    let history = all(history.map_err(|error| error.to_string())?).await?;
    let all = all(view.records().await.map_err(|error| error.to_string())?).await?;
    Ok(Records { compacted: view.compacted(), history, all })
}

async fn all(mut history: History) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    while let Some(changes) = history.next().await.map_err(|error| error.to_string())? {
        for change in changes {
            let pair = KeyValue::decode(change.key_value).map_err(|error| error.to_string())?;
            let key = pair.key.clone();
            let pair = (!change.tombstone).then_some(pair);
            records.push(Record { main: change.main, sub: change.sub as i64, key, pair });
        }
    }
    Ok(records)
}
