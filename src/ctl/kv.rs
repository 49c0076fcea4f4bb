//! get, put, del, compaction: requests from words and flags, replies as text.

use super::Session;
use super::args::{Compaction, Del, Get, Put};
use super::failure::Failure;
use super::printer::{self, Fields, Format};
use bytes::Bytes;
use quorate_proto::etcdserverpb::{
    self as pb,
    range_request::{SortOrder, SortTarget},
};
use std::io::Read;

/// Key and end of a command that names one key, a range, a prefix or all from a key on.
struct Span {
    key: Bytes,
    range_end: Bytes,
}

/// The first key after all that begin with `prefix`; one zero byte when there is none.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(&[0])
}

fn span(command: &str, words: &[String], prefix: bool, from_key: bool) -> Result<Span, Failure> {
    if prefix && from_key {
        return Err(Failure::arguments(
            "`--prefix` and `--from-key` cannot be set at the same time, choose one",
        ));
    }
    let Some(key) = words.first() else {
        return Err(Failure::arguments(format!(
            "{command} command needs one argument as key and an optional argument as range_end"
        )));
    };
    if words.len() > 1 && (prefix || from_key) {
        return Err(Failure::arguments(
            "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
        ));
    }
    let whole = key.is_empty() && (prefix || from_key);
    let key = if whole { Bytes::from_static(&[0]) } else { Bytes::from(key.clone().into_bytes()) };
    let range_end = match words.get(1) {
        Some(end) => Bytes::from(end.clone().into_bytes()),
        None if from_key || whole => Bytes::from_static(&[0]),
        None if prefix => prefix_end(&key),
        None => Bytes::new(),
    };
    Ok(Span { key, range_end })
}

/// The request of `get`, from a command line or a txn line.
pub fn range_request(get: &Get) -> Result<pb::RangeRequest, Failure> {
    if get.keys_only && get.count_only {
        return Err(Failure::arguments(
            "`--keys-only` and `--count-only` cannot be set at the same time, choose one",
        ));
    }
    let serializable = match get.consistency.as_str() {
        "s" => true,
        "l" => false,
        other => return Err(Failure::option(format!("unknown consistency flag \"{other}\""))),
    };
    let order = match get.order.to_ascii_uppercase().as_str() {
        "" => None,
        "ASCEND" => Some(SortOrder::Ascend),
        "DESCEND" => Some(SortOrder::Descend),
        _ => return Err(Failure::option(format!("bad sort order {}", get.order))),
    };
    let target = match get.sort_by.to_ascii_uppercase().as_str() {
        "" => None,
        "CREATE" => Some(SortTarget::Create),
        "KEY" => Some(SortTarget::Key),
        "MODIFY" => Some(SortTarget::Mod),
        "VALUE" => Some(SortTarget::Value),
        "VERSION" => Some(SortTarget::Version),
        _ => return Err(Failure::option(format!("bad sort target {}", get.sort_by))),
    };
    let bounds = |low: i64, high: i64, what: &str| {
        if low > high && high > 0 {
            return Err(Failure::option(format!("min {what} revision is greater than max {what} revision")));
        }
        Ok(())
    };
    bounds(get.min_create_rev, get.max_create_rev, "create")?;
    bounds(get.min_mod_rev, get.max_mod_rev, "mod")?;
    let Span { key, range_end } = span("get", &get.words, get.prefix, get.from_key)?;
    let (mut order, target) = (order.unwrap_or(SortOrder::None), target.unwrap_or(SortTarget::Key));
    // Keys come in ascending order anyway.
    if target == SortTarget::Key && order == SortOrder::Ascend {
        order = SortOrder::None;
    }
    Ok(pb::RangeRequest {
        key,
        range_end,
        limit: get.limit,
        revision: get.rev.max(0),
        sort_order: order as i32,
        sort_target: target as i32,
        serializable,
        keys_only: get.keys_only,
        count_only: get.count_only,
        min_mod_revision: get.min_mod_rev,
        max_mod_revision: get.max_mod_rev,
        min_create_revision: get.min_create_rev,
        max_create_revision: get.max_create_rev,
    })
}

pub async fn get(session: &Session, get: Get) -> Result<(), Failure> {
    let request = range_request(&get)?;
    if get.print_value_only && session.format != Format::Simple {
        return Err(Failure::arguments("print-value-only is only for `--write-out=simple`"));
    }
    if get.count_only && session.format != Format::Fields {
        return Err(Failure::arguments("--count-only is only for `--write-out=fields`"));
    }
    let response = session.client().range(request).await?;
    match session.format {
        Format::Simple if get.print_value_only => {
            for kv in &response.kvs {
                let value = if session.global.hex { super::quote::hex(&kv.value) } else { kv.value.to_vec() };
                printer::out(&[value.as_slice(), b"\n"].concat());
            }
        }
        Format::Simple => printer::out(&range_text(&response, session.global.hex)),
        Format::Fields => {
            let mut fields = Fields::default();
            range_fields(&mut fields, &response, session.global.hex);
            fields.print();
        }
        _ => message(session, &response, "etcdserverpb.RangeResponse")?,
    }
    Ok(())
}

pub fn range_text(response: &pb::RangeResponse, hex: bool) -> Vec<u8> {
    response.kvs.iter().flat_map(|kv| printer::key_value(kv, hex)).collect()
}

pub fn range_fields(fields: &mut Fields, response: &pb::RangeResponse, hex: bool) {
    fields.header(response.header.as_ref(), hex);
    for kv in &response.kvs {
        fields.key_value("", kv);
    }
    fields.plain("More", response.more);
    fields.plain("Count", response.count);
}

/// json and protobuf of a plain message; the other formats were dealt with.
pub fn message(session: &Session, message: &impl prost::Message, name: &str) -> Result<(), Failure> {
    match session.format {
        Format::Json => printer::json(&printer::json_value(message, name)),
        Format::Protobuf => printer::out(&message.encode_to_vec()),
        other => return Err(other.unsupported()),
    }
    Ok(())
}

/// The request of `put`; `value_of_stdin` gives the value when the line has none.
pub fn put_request(put: &Put, value_of_stdin: Option<&mut dyn Read>) -> Result<pb::PutRequest, Failure> {
    let Some(key) = put.words.first() else {
        return Err(Failure::arguments("put command needs 1 argument and input from stdin or 2 arguments"));
    };
    if put.ignore_value && put.words.len() > 1 {
        return Err(Failure::arguments("put command needs only 1 argument when 'ignore-value' is set"));
    }
    let lease = i64::from_str_radix(&put.lease, 16)
        .map_err(|error| Failure::arguments(format!("bad lease ID ({error}), expecting ID in Hex")))?;
    let value = match put.words.get(1) {
        Some(value) => Bytes::from(value.clone().into_bytes()),
        None if put.ignore_value => Bytes::new(),
        None => {
            let mut value = Vec::new();
            if let Some(stdin) = value_of_stdin {
                stdin.read_to_end(&mut value).map_err(|error| Failure::arguments(error.to_string()))?;
            }
            if value.is_empty() {
                return Err(Failure::arguments(
                    "put command needs 1 argument and input from stdin or 2 arguments",
                ));
            }
            value.into()
        }
    };
    Ok(pb::PutRequest {
        key: key.clone().into_bytes().into(),
        value,
        lease,
        prev_kv: put.prev_kv,
        ignore_value: put.ignore_value,
        ignore_lease: put.ignore_lease,
    })
}

pub async fn put(session: &Session, put: Put) -> Result<(), Failure> {
    let request = put_request(&put, Some(&mut std::io::stdin()))?;
    let response = session.client().put(request).await?;
    match session.format {
        Format::Simple => printer::out(&put_text(&response, session.global.hex)),
        Format::Fields => {
            let mut fields = Fields::default();
            put_fields(&mut fields, &response, session.global.hex);
            fields.print();
        }
        _ => message(session, &response, "etcdserverpb.PutResponse")?,
    }
    Ok(())
}

pub fn put_text(response: &pb::PutResponse, hex: bool) -> Vec<u8> {
    let previous = response.prev_kv.iter().flat_map(|kv| printer::key_value(kv, hex));
    b"OK\n".iter().copied().chain(previous).collect()
}

pub fn put_fields(fields: &mut Fields, response: &pb::PutResponse, hex: bool) {
    fields.header(response.header.as_ref(), hex);
    if let Some(kv) = &response.prev_kv {
        fields.key_value("Prev", kv);
    }
}

/// The request of `del`, from a command line or a txn line.
pub fn delete_request(del: &Del) -> Result<pb::DeleteRangeRequest, Failure> {
    let Span { key, range_end } = span("del", &del.words, del.prefix, del.from_key)?;
    Ok(pb::DeleteRangeRequest { key, range_end, prev_kv: del.prev_kv })
}

pub async fn del(session: &Session, del: Del) -> Result<(), Failure> {
    let request = delete_request(&del)?;
    if let (Some(key), Some(end), false) = (del.words.first(), del.words.get(1), del.range) {
        eprintln!(
            "Warning: Keys between \"{key}\" and \"{end}\" will be deleted. Interrupt now if the second word is a mistake; --range says that it is meant."
        );
        session.env.clock.sleep(std::time::Duration::from_secs(2)).await;
    }
    let response = session.client().delete_range(request).await?;
    match session.format {
        Format::Simple => printer::out(&delete_text(&response, session.global.hex)),
        Format::Fields => {
            let mut fields = Fields::default();
            delete_fields(&mut fields, &response, session.global.hex);
            fields.print();
        }
        _ => message(session, &response, "etcdserverpb.DeleteRangeResponse")?,
    }
    Ok(())
}

pub fn delete_text(response: &pb::DeleteRangeResponse, hex: bool) -> Vec<u8> {
    let previous = response.prev_kvs.iter().flat_map(|kv| printer::key_value(kv, hex));
    format!("{}\n", response.deleted).into_bytes().into_iter().chain(previous).collect()
}

pub fn delete_fields(fields: &mut Fields, response: &pb::DeleteRangeResponse, hex: bool) {
    fields.header(response.header.as_ref(), hex);
    fields.plain("Deleted", response.deleted);
    for kv in &response.prev_kvs {
        fields.key_value("Prev", kv);
    }
}

pub async fn compaction(session: &Session, compaction: Compaction) -> Result<(), Failure> {
    let [word] = compaction.words.as_slice() else {
        return Err(Failure::arguments("compaction command needs 1 argument"));
    };
    let revision: i64 = word.parse().map_err(|_| {
        Failure::server(format!(
            "strconv.ParseInt: parsing {}: invalid syntax",
            super::quote::go(word.as_bytes())
        ))
    })?;
    let request = pb::CompactionRequest { revision, physical: compaction.physical };
    session.client().compact(request).await?;
    printer::line(&format!("compacted revision {revision}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_begin_with_it() {
        let check = |prefix: &[u8], end: &[u8]| assert_eq!(prefix_end(prefix), end);
        check(b"a", b"b");
        check(&[b'a', 0xff], b"b");
        check(&[0xff, 0xff], &[0]);
        check(b"", &[0]);
    }

    #[test]
    fn words_and_flags_name_a_span() {
        let check = |words: &[&str], prefix, from_key, expected: Option<(&[u8], &[u8])>| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let found = span("get", &words, prefix, from_key).ok().map(|span| (span.key, span.range_end));
            assert_eq!(found.as_ref().map(|(key, end)| (&key[..], &end[..])), expected, "{words:?}");
        };
        check(&["a"], false, false, Some((b"a", b"")));
        check(&["a", "c"], false, false, Some((b"a", b"c")));
        check(&["a"], true, false, Some((b"a", b"b")));
        check(&["a"], false, true, Some((b"a", b"\0")));
        check(&[""], true, false, Some((b"\0", b"\0")));
        check(&[""], false, true, Some((b"\0", b"\0")));
        check(&[], false, false, None);
        check(&["a", "b"], true, false, None);
        check(&["a"], true, true, None);
    }
}
