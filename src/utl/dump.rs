//! dump log, dump store: what a stopped member's files hold.

use super::{
    Session,
    args::{DumpStore, Window},
    failed,
    source::{self, Source},
};
use crate::backup::{Records, Stored, View};
use crate::layout::{
    Failure,
    printer::{self, Format},
    quote,
};
use crate::log;
use crate::mvcc::Fields;
use crate::replica::StoppedMember;
use base64::{Engine, prelude::BASE64_STANDARD};
use prost::Message;
use quorate_proto::{
    etcdserverpb::{InternalRaftRequest, TxnRequest, request_op::Request},
    raftpb::{ConfChange, ConfChangeType},
};
use raft::eraftpb::{Entry, EntryType};
use serde_json::{Value, json};

pub(super) async fn log(session: &Session, args: Window) -> Result<(), Failure> {
    let format = simple_or_json(session)?;
    let dir = args.data_dir.join("member");
    let _member = StoppedMember::open(&session.env, &dir).await.map_err(failed)?;
    let (_, mut pages) = log::Pages::open(&session.env, dir.join("log")).await.map_err(failed)?;
    super::say(
        "entries as they lie: one takes the place of an earlier one with its index, and of all behind that",
    );
    while let Some(page) = pages.next().await.map_err(failed)? {
        let number = page.number.0;
        if let Some((index, term)) = page.start
            && args.key.is_none()
        {
            match format {
                Format::Json => {
                    printer::json(&json!({"page": number, "start": {"index": index, "term": term}}))
                }
                _ => {
                    printer::line(&format!("page {number}: entries up to {index} (term {term}) were dropped"))
                }
            }
        }
        if let Some((term, vote, commit)) = page.hard_state
            && args.key.is_none()
        {
            match format {
                Format::Json => printer::json(
                    &json!({"page": number, "hardState": {"term": term, "vote": vote, "commit": commit}}),
                ),
                _ => printer::line(&format!("page {number}: term {term}, vote {vote:x}, commit {commit}")),
            }
        }
        for entry in page.entries.iter().filter(|entry| (args.from..=args.to).contains(&entry.index)) {
            let content = Content::of(entry);
            if args.key.as_ref().is_none_or(|key| content.names(key.as_bytes())) {
                match format {
                    Format::Json => printer::json(&json!({
                        "page": number, "index": entry.index, "term": entry.term, "content": content.json(),
                    })),
                    _ => printer::line(&format!(
                        "page {number}: entry {}, term {}: {}",
                        entry.index,
                        entry.term,
                        content.text()
                    )),
                }
            }
        }
    }
    Ok(())
}

fn simple_or_json(session: &Session) -> Result<Format, Failure> {
    match session.format {
        Format::Simple | Format::Json => Ok(session.format),
        other => Err(other.unsupported()),
    }
}

/// What an entry carries.
enum Content {
    Empty,
    Request(Box<InternalRaftRequest>),
    ConfChange(ConfChange),
    Undecodable,
}

impl Content {
    fn of(entry: &Entry) -> Content {
        match entry.entry_type {
            EntryType::EntryNormal if entry.data.is_empty() => Content::Empty,
            EntryType::EntryNormal => match InternalRaftRequest::decode(&entry.data[..]) {
                Ok(request) => Content::Request(Box::new(request)),
                Err(_) => Content::Undecodable,
            },
            _ => match ConfChange::decode(&entry.data[..]) {
                Ok(change) => Content::ConfChange(change),
                Err(_) => Content::Undecodable,
            },
        }
    }

    fn names(&self, key: &[u8]) -> bool {
        let Content::Request(request) = self else { return false };
        request.put.as_ref().is_some_and(|put| put.key == key)
            || request.delete_range.as_ref().is_some_and(|range| covers(&range.key, &range.range_end, key))
            || request.range.as_ref().is_some_and(|range| covers(&range.key, &range.range_end, key))
            || request.txn.as_ref().is_some_and(|txn| txn_names(txn, key))
    }

    fn json(&self) -> Value {
        match self {
            Content::Empty => Value::Null,
            Content::Request(request) => printer::json_value(&**request, "etcdserverpb.InternalRaftRequest"),
            Content::ConfChange(change) => conf_change(change),
            Content::Undecodable => json!("does not decode"),
        }
    }

    fn text(&self) -> String {
        match self {
            Content::Empty => "empty (a new leader's)".to_owned(),
            Content::Request(request) => {
                let mut json = printer::json_value(&**request, "etcdserverpb.InternalRaftRequest");
                if let Some(fields) = json.as_object_mut() {
                    fields.shift_remove("header");
                }
                let put = request.put.as_ref().map(|put| format!("put {}", quote::go(&put.key)));
                let delete = request.delete_range.as_ref().map(|range| match &range.range_end[..] {
                    [] => format!("delete {}", quote::go(&range.key)),
                    end => format!("delete {} up to {}", quote::go(&range.key), quote::go(end)),
                });
                put.or(delete).unwrap_or_else(|| json.to_string())
            }
            Content::ConfChange(change) => format!("conf change {}", conf_change(change)),
            Content::Undecodable => "does not decode".to_owned(),
        }
    }
}

fn conf_change(change: &ConfChange) -> Value {
    let kind = ConfChangeType::try_from(change.r#type).map_or("unknown", |kind| kind.as_str_name());
    let context = serde_json::from_slice(&change.context).unwrap_or(Value::Null);
    json!({"type": kind, "nodeID": format!("{:x}", change.node_id), "context": context})
}

/// Whether a range of a request holds `key`: an empty end is the key alone, `\0` no end.
fn covers(from: &[u8], end: &[u8], key: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => key >= from,
        end => (from..end).contains(&key),
    }
}

fn txn_names(txn: &TxnRequest, key: &[u8]) -> bool {
    txn.compare.iter().any(|compare| covers(&compare.key, &compare.range_end, key))
        || txn.success.iter().chain(&txn.failure).any(|op| match &op.request {
            Some(Request::RequestRange(range)) => covers(&range.key, &range.range_end, key),
            Some(Request::RequestPut(put)) => put.key == key,
            Some(Request::RequestDeleteRange(range)) => covers(&range.key, &range.range_end, key),
            Some(Request::RequestTxn(txn)) => txn_names(txn, key),
            None => false,
        })
}

pub(super) async fn store(session: &Session, args: DumpStore) -> Result<(), Failure> {
    let DumpStore { window, range_end } = args;
    let format = simple_or_json(session)?;
    let source = source::open_stopped(&session.env, &window.data_dir).await?;
    let mut records = source.records();
    let range_end = range_end.as_deref().unwrap_or_default();
    while let Some(record) = records.next().await.map_err(failed)? {
        if record.main > window.to {
            break;
        }
        let fields = Fields::decode(&record.key_value).map_err(failed)?;
        let wanted =
            window.key.as_ref().is_none_or(|key| covers(key.as_bytes(), range_end.as_bytes(), fields.key));
        if record.main >= window.from && wanted {
            match format {
                Format::Json => printer::json(&record_json(&record, &fields)),
                _ => printer::line(&record_text(&record, &fields)),
            }
        }
    }
    let content = source.content();
    let Source::Stopped(view) = &source else { unreachable!("a directory was opened") };
    for mark in view.store.marks().await.map_err(failed)? {
        match format {
            Format::Json => printer::json(&json!({"mark": {
                "page": mark.page, "appliedIndex": mark.index, "appliedTerm": mark.term,
                "revision": mark.revision, "compactRevision": mark.compacted,
            }})),
            _ => printer::line(&format!(
                "mark on page {}: entry {} of term {}, revision {}, compacted revision {}",
                mark.page, mark.index, mark.term, mark.revision, mark.compacted
            )),
        }
    }
    match format {
        Format::Json => {
            printer::json(&json!({"revision": content.revision, "compactRevision": content.compacted}));
        }
        _ => {
            printer::line(&format!("revision {}, compacted revision {}", content.revision, content.compacted))
        }
    }
    Ok(())
}

fn record_json(record: &Stored, fields: &Fields<'_>) -> Value {
    let encode = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
    json!({
        "main": record.main, "sub": record.sub, "type": if record.tombstone { "DELETE" } else { "PUT" },
        "key": encode(fields.key), "create_revision": fields.create_revision, "version": fields.version,
        "lease": fields.lease, "value": encode(fields.value),
    })
}

fn record_text(record: &Stored, fields: &Fields<'_>) -> String {
    let Stored { main, sub, .. } = record;
    let key = quote::go(fields.key);
    if record.tombstone {
        return format!("{main}.{sub} delete {key}");
    }
    let lease = match fields.lease {
        0 => String::new(),
        lease => format!(", lease {lease:x}"),
    };
    format!(
        "{main}.{sub} put {key}: {} bytes, created at {}, version {}{lease}",
        fields.value.len(),
        fields.create_revision,
        fields.version
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_proto::etcdserverpb::{PutRequest, RequestOp};

    #[test]
    fn a_range_holds_what_a_request_means_by_it() {
        for (from, end, key, want) in [
            ("a", "", "a", true),
            ("a", "", "b", false),
            ("a", "c", "b", true),
            ("a", "c", "c", false),
            ("b", "\0", "a", false),
            ("b", "\0", "zz", true),
        ] {
            assert_eq!(
                covers(from.as_bytes(), end.as_bytes(), key.as_bytes()),
                want,
                "{from:?} {end:?} {key:?}"
            );
        }
    }

    #[test]
    fn an_entry_names_the_keys_of_its_requests() {
        let put = PutRequest { key: "a".into(), ..PutRequest::default() };
        let nested = TxnRequest {
            failure: vec![RequestOp { request: Some(Request::RequestPut(put.clone())) }],
            ..TxnRequest::default()
        };
        let txn = TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestTxn(nested)) }],
            ..TxnRequest::default()
        };
        for request in [
            InternalRaftRequest { put: Some(put), ..Default::default() },
            InternalRaftRequest { txn: Some(txn), ..Default::default() },
        ] {
            let entry = Entry { data: request.encode_to_vec().into(), ..Entry::default() };
            let content = Content::of(&entry);
            assert!(content.names(b"a") && !content.names(b"b"), "{}", content.text());
        }
        let broken = Entry { data: vec![0xff].into(), ..Entry::default() };
        assert_eq!(Content::of(&broken).text(), "does not decode");
    }
}
