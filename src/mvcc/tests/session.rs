//! A recorded session with etcd 3.7.3: random requests, some of them wrong,
//! over its JSON gateway. Checks, answers and errors must be the same here.

use super::*;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, prost::Message};

/// One line of the recording.
#[derive(serde::Deserialize)]
struct Call {
    call: String,
    request: serde_json::Value,
    reply: serde_json::Value,
}

fn message<M: Message + Default>(pool: &DescriptorPool, name: &str, json: &serde_json::Value) -> M {
    let descriptor = pool.get_message_by_name(&format!("etcdserverpb.{name}")).unwrap();
    let message =
        DynamicMessage::deserialize(descriptor, json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(message.descriptor().name(), name);
    message.transcode_to().unwrap()
}

/// The answer or the text of the error, as a call of api would have them.
fn answer<C: ToString, T>(
    check: Result<(), C>,
    serve: impl FnOnce() -> Result<T, Error>,
) -> Result<T, String> {
    check.map_err(|error| error.to_string())?;
    serve().map_err(|error| error.to_string())
}

#[test]
fn a_session_with_etcd_gives_the_same_answers() {
    let pool = DescriptorPool::decode(quorate_proto::DESCRIPTORS).unwrap();
    let mut store = Store::default();
    store.shelf.forgetful.set(1);
    let mut errors = 0;
    for (number, line) in include_str!("etcd_session.jsonl").lines().enumerate() {
        let Call { call, request, reply } = serde_json::from_str(line).unwrap();
        let refused = reply.get("message").map(|text| text.as_str().unwrap().replace("etcdserver: ", ""));
        errors += usize::from(refused.is_some());
        macro_rules! check {
            ($request:ident, $response:ident, $check:expr, $serve:expr) => {{
                let request: pb::$request = message(&pool, stringify!($request), &request);
                let check: fn(&pb::$request) -> Result<(), check::CheckError> = $check;
                let serve: fn(&mut Store, &pb::$request) -> Result<pb::$response, Error> = $serve;
                let ours = answer(check(&request), || serve(&mut store, &request));
                let theirs = match refused {
                    Some(text) => Err(text),
                    None => Ok(message::<pb::$response>(&pool, stringify!($response), &reply)),
                };
                assert_eq!(ours, theirs, "line {}: {request:?}", number + 1);
            }};
        }
        match &*call {
            "range" => check!(RangeRequest, RangeResponse, check::check_range, |store, r| store.range(r)),
            "put" => check!(PutRequest, PutResponse, check::check_put, |store, r| store.put(r)),
            "deleterange" => {
                check!(DeleteRangeRequest, DeleteRangeResponse, check::check_delete, |store, r| Ok(
                    store.delete(r)
                ))
            }
            "txn" => check!(TxnRequest, TxnResponse, |r| check::check_txn(r, 128), |store, r| store.txn(r)),
            "compaction" => check!(CompactionRequest, CompactionResponse, |_| Ok(()), |store, r| {
                store.mvcc.compact(r.revision)?;
                store.reopen();
                store.reclaim();
                let header = Some(header(store.mvcc.revision()));
                Ok(pb::CompactionResponse { header })
            }),
            other => panic!("{other}"),
        }
        if number % 7 == 0 {
            store.commit();
        }
    }
    assert!(errors > 100, "the session has its share of wrong requests");
}
