//! txn: compares and requests read line by line from standard input.

use super::args::{Del, Get, Put, Txn};
use super::failure::Failure;
use super::printer::{self, Fields, Format};
use super::{Session, kv};
use bytes::Bytes;
use clap::{Args, FromArgMatches};
use quorate_proto::etcdserverpb::{
    self as pb,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
};
use serde_json::{Value, json};
use std::io::BufRead;

pub async fn run(session: &Session, txn: Txn) -> Result<(), Failure> {
    if !txn.words.is_empty() {
        return Err(Failure::arguments("txn command does not accept argument"));
    }
    let request = {
        let mut input = std::io::stdin().lock();
        read(&mut input, txn.interactive)?
    };
    let response = session.client().txn(request).await?;
    match session.format {
        Format::Simple => printer::out(&text(&response, session.global.hex)),
        Format::Fields => fields(&response, session.global.hex).print(),
        Format::Json => printer::json(&wrapped(printer::json_value(&response, "etcdserverpb.TxnResponse"))),
        _ => kv::message(session, &response, "etcdserverpb.TxnResponse")?,
    }
    Ok(())
}

fn read(input: &mut dyn BufRead, prompts: bool) -> Result<pb::TxnRequest, Failure> {
    let mut section = |prompt: &str| -> Result<Vec<String>, Failure> {
        if prompts {
            printer::line(prompt);
        }
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let count = input.read_line(&mut line).map_err(|error| Failure::input(error.to_string()))?;
            if count == 0 {
                return Err(Failure::input("EOF"));
            }
            let line = line.trim_end_matches(['\n', '\r']).trim();
            if line.is_empty() {
                return Ok(lines);
            }
            lines.push(line.to_owned());
        }
    };
    let compare = section("compares:")?.iter().map(|line| compare(line)).collect::<Result<_, _>>()?;
    let success = section("success requests (get, put, del):")?
        .iter()
        .map(|line| request(line))
        .collect::<Result<_, _>>()?;
    let failure = section("failure requests (get, put, del):")?
        .iter()
        .map(|line| request(line))
        .collect::<Result<_, _>>()?;
    Ok(pb::TxnRequest { compare, success, failure })
}

/// `TARGET("KEY") OP "VALUE"`.
fn compare(line: &str) -> Result<pb::Compare, Failure> {
    let malformed = || Failure::input(format!("malformed comparison: {line}"));
    let (target, rest) = line.split_once('(').ok_or_else(malformed)?;
    let (key, rest) = quoted(rest.trim_start()).ok_or_else(malformed)?;
    let rest = rest.trim_start().strip_prefix(')').ok_or_else(malformed)?.trim_start();
    let (operator, rest) = rest.split_once(char::is_whitespace).ok_or_else(malformed)?;
    let (value, rest) = quoted(rest.trim_start()).ok_or_else(malformed)?;
    if !rest.trim().is_empty() {
        return Err(malformed());
    }
    let result = match operator {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        _ => return Err(malformed()),
    };
    let number = || -> Result<i64, Failure> {
        std::str::from_utf8(&value)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Failure::input(format!("invalid txn compare request: {line}")))
    };
    let (target, union) = match target.trim() {
        "ver" | "version" => (CompareTarget::Version, TargetUnion::Version(number()?)),
        "c" | "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number()?)),
        "m" | "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number()?)),
        "val" | "value" => (CompareTarget::Value, TargetUnion::Value(Bytes::from(value))),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number()?)),
        _ => return Err(malformed()),
    };
    Ok(pb::Compare {
        result: result as i32,
        target: target as i32,
        key: key.into(),
        range_end: Bytes::new(),
        target_union: Some(union),
    })
}

/// A word in double or single quotes at the start of `text`, and what follows it.
fn quoted(text: &str) -> Option<(Vec<u8>, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut out = Vec::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((out, &text[at + 1..])),
            '\\' if quote == '"' => {
                let (_, escape) = chars.next()?;
                match escape {
                    'n' => out.push(b'\n'),
                    't' => out.push(b'\t'),
                    'r' => out.push(b'\r'),
                    'a' => out.push(7),
                    'b' => out.push(8),
                    'f' => out.push(12),
                    'v' => out.push(11),
                    '\\' | '"' | '\'' => out.push(u8::try_from(escape).ok()?),
                    'x' => {
                        let high = chars.next()?.1.to_digit(16)?;
                        let low = chars.next()?.1.to_digit(16)?;
                        out.push(u8::try_from(high * 16 + low).ok()?);
                    }
                    _ => return None,
                }
            }
            c => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    None
}

/// The words of a request line; quotes keep spaces.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        if rest.starts_with(['"', '\'']) {
            let (word, after) = quoted(rest)?;
            words.push(String::from_utf8(word).ok()?);
            rest = after.trim_start();
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            rest = rest[end..].trim_start();
        }
    }
    Some(words)
}

fn flags<T: Args + FromArgMatches>(words: &[String], line: &str) -> Result<T, Failure> {
    let command = T::augment_args(clap::Command::new("txn").no_binary_name(true));
    command
        .try_get_matches_from(words)
        .and_then(|matches| T::from_arg_matches(&matches))
        .map_err(|_| Failure::input(format!("invalid txn request: {line}")))
}

fn request(line: &str) -> Result<pb::RequestOp, Failure> {
    let invalid = || Failure::input(format!("invalid txn request: {line}"));
    let words = words(line).ok_or_else(invalid)?;
    let (name, arguments) = words.split_first().ok_or_else(invalid)?;
    if arguments.is_empty() {
        return Err(Failure::input(format!("invalid txn compare request: {line}")));
    }
    let request = match name.as_str() {
        "put" => Request::RequestPut(kv::put_request(&flags::<Put>(arguments, line)?, None)?),
        "get" => Request::RequestRange(kv::range_request(&flags::<Get>(arguments, line)?)?),
        "del" => Request::RequestDeleteRange(kv::delete_request(&flags::<Del>(arguments, line)?)?),
        _ => return Err(invalid()),
    };
    Ok(pb::RequestOp { request: Some(request) })
}

fn text(response: &pb::TxnResponse, hex: bool) -> Vec<u8> {
    let mut out = if response.succeeded { b"SUCCESS\n".to_vec() } else { b"FAILURE\n".to_vec() };
    for op in &response.responses {
        out.push(b'\n');
        match &op.response {
            Some(Response::ResponseRange(range)) => out.extend(kv::range_text(range, hex)),
            Some(Response::ResponsePut(put)) => out.extend(kv::put_text(put, hex)),
            Some(Response::ResponseDeleteRange(delete)) => out.extend(kv::delete_text(delete, hex)),
            Some(Response::ResponseTxn(nested)) => out.extend(text(nested, hex)),
            None => {}
        }
    }
    out
}

fn fields(response: &pb::TxnResponse, hex: bool) -> Fields {
    let mut fields = Fields::default();
    fields.header(response.header.as_ref(), hex);
    fields.plain("Succeeded", response.succeeded);
    for op in &response.responses {
        match &op.response {
            Some(Response::ResponseRange(range)) => kv::range_fields(&mut fields, range, hex),
            Some(Response::ResponsePut(put)) => kv::put_fields(&mut fields, put, hex),
            Some(Response::ResponseDeleteRange(delete)) => kv::delete_fields(&mut fields, delete, hex),
            // The input has no nested txn, so no reply has one.
            Some(Response::ResponseTxn(_)) | None => {}
        }
    }
    fields
}

/// etcdctl's json has each response one level deeper than the message.
fn wrapped(mut value: Value) -> Value {
    if let Some(Value::Array(responses)) = value.get_mut("responses") {
        for response in responses {
            let inner = response.take();
            *response = json!({ "Response": inner });
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_are_read_from_lines() {
        let check = |line: &str, expected: Option<(CompareTarget, CompareResult, &[u8], TargetUnion)>| {
            let found = compare(line).ok().map(|c| (c.target, c.result, c.key, c.target_union));
            let expected = expected
                .map(|(t, r, key, union)| (t as i32, r as i32, Bytes::copy_from_slice(key), Some(union)));
            assert_eq!(found, expected, "{line}");
        };
        use CompareResult::*;
        check(
            r#"mod("key1") > "0""#,
            Some((CompareTarget::Mod, Greater, b"key1", TargetUnion::ModRevision(0))),
        );
        check(
            r#"val("a b") = "x\ty""#,
            Some((CompareTarget::Value, Equal, b"a b", TargetUnion::Value("x\ty".into()))),
        );
        check(r#"ver('k') != "3""#, Some((CompareTarget::Version, NotEqual, b"k", TargetUnion::Version(3))));
        check(r#"c("k") < "-1""#, Some((CompareTarget::Create, Less, b"k", TargetUnion::CreateRevision(-1))));
        check(r#"mod("k") > 0"#, None);
        check(r#"mod("k") ~ "0""#, None);
        check(r#"size("k") = "0""#, None);
        check(r#"mod("k") = "x""#, None);
        check("mod", None);
    }

    #[test]
    fn a_txn_is_three_sections_each_ended_by_an_empty_line() {
        let mut input = &b"mod(\"k\") = \"0\"\n\nput k 'a b'\nget k --prefix\n\ndel k\n\n"[..];
        let txn = read(&mut input, false).expect("well formed");
        assert_eq!((txn.compare.len(), txn.success.len(), txn.failure.len()), (1, 2, 1));
        let cut = read(&mut &b"\nput k v\n"[..], false).expect_err("the input ends too early");
        assert_eq!((cut.exit_code, cut.text.as_deref()), (3, Some("EOF")));
        let unknown = read(&mut &b"\ninc k\n\n\n"[..], false).expect_err("no such request");
        assert_eq!(unknown.text.as_deref(), Some("invalid txn request: inc k"));
    }
}
