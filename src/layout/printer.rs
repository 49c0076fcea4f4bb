//! The output formats: simple, json, fields, table (protobuf where it is a message).

use super::failure::Failure;
use super::quote;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use quorate_proto::{DESCRIPTORS, etcdserverpb as pb, mvccpb::KeyValue};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Simple,
    Json,
    Fields,
    Protobuf,
    Table,
}

impl Format {
    pub fn parse(name: &str) -> Result<Format, Failure> {
        Ok(match name {
            "simple" => Format::Simple,
            "json" => Format::Json,
            "fields" => Format::Fields,
            "protobuf" => Format::Protobuf,
            "table" => Format::Table,
            _ => return Err(Failure::option("unsupported output format")),
        })
    }

    /// The failure of a command that has no such layout.
    pub fn unsupported(self) -> Failure {
        let name = match self {
            Format::Simple => "simple",
            Format::Json => "json",
            Format::Fields => "fields",
            Format::Protobuf => "protobuf",
            Format::Table => "table",
        };
        Failure::option(format!("{name} not supported as output format"))
    }
}

/// Standard output; a reader that went away ends the output, not the program.
pub fn out(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

pub fn line(text: &str) {
    out(format!("{text}\n").as_bytes());
}

/// A message as etcdctl's json: proto names, numbers as numbers, enums as
/// numbers, bytes as base64, zero fields left out.
pub fn json_value(message: &impl Message, name: &str) -> Value {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("our own descriptors decode"));
    let descriptor = POOL.get_message_by_name(name).expect("a message of our own descriptors");
    let dynamic = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
        .expect("what was just encoded decodes");
    let options = SerializeOptions::new()
        .stringify_64_bit_integers(false)
        .use_enum_numbers(true)
        .use_proto_field_name(true)
        .skip_default_fields(true);
    dynamic.serialize_with_options(serde_json::value::Serializer, &options).expect("a message is JSON")
}

pub fn json(value: &Value) {
    line(&value.to_string());
}

/// Key and value on a line each, as `get` prints them.
pub fn key_value(kv: &KeyValue, hex: bool) -> Vec<u8> {
    let shown = |bytes: &[u8]| if hex { quote::hex(bytes) } else { bytes.to_vec() };
    [shown(&kv.key), b"\n".to_vec(), shown(&kv.value), b"\n".to_vec()].concat()
}

/// The lines of the fields format.
#[derive(Default)]
pub struct Fields(String);

impl Fields {
    pub fn header(&mut self, header: Option<&pb::ResponseHeader>, hex: bool) {
        let header = header.cloned().unwrap_or_default();
        if hex {
            self.quoted("ClusterID", format!("{:x}", header.cluster_id).as_bytes());
            self.quoted("MemberID", format!("{:x}", header.member_id).as_bytes());
        } else {
            self.plain("ClusterID", header.cluster_id);
            self.plain("MemberID", header.member_id);
        }
        if header.revision > 0 {
            self.plain("Revision", header.revision);
        }
        self.plain("RaftTerm", header.raft_term);
    }

    pub fn plain(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "\"{name}\" : {value}").expect("a String takes everything");
    }

    pub fn quoted(&mut self, name: &str, value: &[u8]) {
        self.plain(name, quote::go(value));
    }

    pub fn key_value(&mut self, prefix: &str, kv: &KeyValue) {
        self.quoted(&format!("{prefix}Key"), &kv.key);
        self.plain(&format!("{prefix}CreateRevision"), kv.create_revision);
        self.plain(&format!("{prefix}ModRevision"), kv.mod_revision);
        self.plain(&format!("{prefix}Version"), kv.version);
        self.quoted(&format!("{prefix}Value"), &kv.value);
        self.plain(&format!("{prefix}Lease"), kv.lease);
    }

    pub fn blank(&mut self) {
        self.0.push('\n');
    }

    pub fn print(&self) {
        out(self.0.as_bytes());
    }
}

/// A table of light box lines: header centred, cells to the right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = header.len();
    assert!(rows.iter().all(|row| row.len() == columns), "every row fills every column");
    let width = |text: &str| text.chars().count();
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().map(|row| width(&row[at])).chain([width(header[at])]).max().unwrap_or(0))
        .collect();
    let rule = |left: &str, middle: &str, right: &str| {
        let cells: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}\n", cells.join(middle))
    };
    let mut out = rule("┌", "┬", "┐");
    let centred: Vec<String> = header
        .iter()
        .zip(&widths)
        .map(|(name, room)| {
            let spare = room - width(name);
            let left = spare / 2;
            format!(" {}{name}{} ", " ".repeat(left), " ".repeat(spare - left))
        })
        .collect();
    writeln!(out, "│{}│", centred.join("│")).expect("a String takes everything");
    out += &rule("├", "┼", "┤");
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, room)| format!(" {}{cell} ", " ".repeat(room - width(cell))))
            .collect();
        writeln!(out, "│{}│", cells.join("│")).expect("a String takes everything");
    }
    out + &rule("└", "┴", "┘")
}

/// Sizes as etcdctl humanizes them: SI units, two significant digits below ten.
pub fn size(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    let magnitude = bytes.unsigned_abs();
    if magnitude < 10 {
        return format!("{sign}{magnitude} B");
    }
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut step = 0;
    let mut value = magnitude as f64;
    while value >= 1000.0 && step + 1 < units.len() {
        value /= 1000.0;
        step += 1;
    }
    let rounded = (value * 10.0 + 0.5).floor() / 10.0;
    if rounded < 10.0 {
        format!("{sign}{rounded:.1} {}", units[step])
    } else {
        format!("{sign}{rounded:.0} {}", units[step])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_humanized_in_si_units() {
        let check = |bytes, text: &str| assert_eq!(size(bytes), text);
        check(0, "0 B");
        check(9, "9 B");
        check(20_480, "20 kB");
        check(2_147_483_648, "2.1 GB");
        check(82_854_982, "83 MB");
    }

    #[test]
    fn json_is_the_message_with_numbers_as_numbers() {
        let response = pb::RangeResponse {
            header: Some(pb::ResponseHeader { cluster_id: 7, revision: 2, ..Default::default() }),
            kvs: vec![KeyValue { key: "a".into(), mod_revision: 2, ..Default::default() }],
            more: false,
            count: 1,
        };
        insta::assert_snapshot!(
            json_value(&response, "etcdserverpb.RangeResponse").to_string(),
            @r#"{"header":{"cluster_id":7,"revision":2},"kvs":[{"key":"YQ==","mod_revision":2}],"count":1}"#
        );
    }

    #[test]
    fn a_table_is_drawn_with_light_box_lines() {
        insta::assert_snapshot!(table(&["ENDPOINT", "HASH"], &[vec!["a:1".into(), "123456".into()]]), @"
        ┌──────────┬────────┐
        │ ENDPOINT │  HASH  │
        ├──────────┼────────┤
        │      a:1 │ 123456 │
        └──────────┴────────┘
        ");
    }
}
