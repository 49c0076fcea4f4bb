//! A message to JSON text: proto names, 64-bit numbers as strings, enums by
//! name, bytes in base64, nothing that is not set.

use base64::{Engine, prelude::BASE64_STANDARD};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value};
use std::fmt::Write;

/// The message's JSON object, without white space.
pub(super) fn message(message: &DynamicMessage) -> String {
    let mut out = String::with_capacity(128);
    object(message, &mut out);
    out
}

fn object(message: &DynamicMessage, out: &mut String) {
    out.push('{');
    let mut first = true;
    for field in message.descriptor().fields().filter(|field| message.has_field(field)) {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        string(field.name(), out);
        out.push(':');
        let value = message.get_field(&field);
        match &*value {
            Value::List(items) => {
                out.push('[');
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        out.push(',');
                    }
                    single(&field, item, out);
                }
                out.push(']');
            }
            value => single(&field, value, out),
        }
    }
    out.push('}');
}

fn single(field: &FieldDescriptor, value: &Value, out: &mut String) {
    let written = match value {
        Value::Bool(value) => write!(out, "{value}"),
        Value::I32(value) => write!(out, "{value}"),
        Value::U32(value) => write!(out, "{value}"),
        Value::I64(value) => write!(out, "\"{value}\""),
        Value::U64(value) => write!(out, "\"{value}\""),
        Value::F32(value) => write!(out, "{value}"),
        Value::F64(value) => write!(out, "{value}"),
        Value::EnumNumber(number) => match field.kind() {
            Kind::Enum(descriptor) => match descriptor.get_value(*number) {
                Some(value) => write!(out, "\"{}\"", value.name()),
                None => write!(out, "{number}"),
            },
            _ => unreachable!("an enum number stands in an enum field"),
        },
        Value::String(value) => {
            string(value, out);
            Ok(())
        }
        Value::Bytes(value) => {
            out.push('"');
            BASE64_STANDARD.encode_string(value, out);
            out.push('"');
            Ok(())
        }
        Value::Message(value) => {
            object(value, out);
            Ok(())
        }
        Value::List(_) | Value::Map(_) => unreachable!("no reply has a list in a list, or a map"),
    };
    written.expect("a string takes every write");
}

fn string(text: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(text).expect("a string is JSON"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::grpc::Methods;
    use prost::Message;
    use quorate_proto::{
        etcdserverpb::{
            AlarmMember, AlarmResponse, HashKvResponse, MemberListResponse, PutResponse, RangeResponse,
            ResponseHeader, ResponseOp, StatusResponse, TxnResponse, response_op::Response,
        },
        mvccpb::KeyValue,
    };

    fn check(method: &str, reply: &impl Message, expected: &str) {
        let methods = Methods::get();
        let number = methods.find(method).unwrap();
        let output = methods.list[number].descriptor.output();
        let dynamic = DynamicMessage::decode(output, reply.encode_to_vec().as_slice()).unwrap();
        assert_eq!(message(&dynamic), expected);
    }

    #[test]
    fn replies_are_written_as_etcd_writes_them() {
        let header = ResponseHeader { cluster_id: u64::MAX, member_id: 1, revision: 2, raft_term: 3 };
        let header_json = r#""header":{"cluster_id":"18446744073709551615","member_id":"1","revision":"2","raft_term":"3"}"#;
        let kv = KeyValue {
            key: "key".into(),
            create_revision: 2,
            mod_revision: 2,
            version: 1,
            value: vec![0xfb, 0xff].into(),
            lease: -1,
        };
        check("/etcdserverpb.KV/Put", &PutResponse::default(), "{}");
        check(
            "/etcdserverpb.KV/Put",
            &PutResponse { header: Some(ResponseHeader::default()), prev_kv: None },
            r#"{"header":{}}"#,
        );
        check(
            "/etcdserverpb.KV/Range",
            &RangeResponse {
                header: Some(header),
                kvs: vec![kv.clone(), KeyValue::default()],
                more: true,
                count: 7,
            },
            &format!(
                r#"{{{header_json},"kvs":[{{"key":"a2V5","create_revision":"2","mod_revision":"2","version":"1","value":"+/8=","lease":"-1"}},{{}}],"more":true,"count":"7"}}"#
            ),
        );
        check(
            "/etcdserverpb.KV/Txn",
            &TxnResponse {
                header: None,
                succeeded: true,
                responses: vec![ResponseOp { response: Some(Response::ResponsePut(PutResponse::default())) }],
            },
            r#"{"succeeded":true,"responses":[{"response_put":{}}]}"#,
        );
        check(
            "/etcdserverpb.Maintenance/Alarm",
            &AlarmResponse {
                header: None,
                alarms: vec![AlarmMember { member_id: 5, alarm: 1 }, AlarmMember { member_id: 0, alarm: 77 }],
            },
            r#"{"alarms":[{"memberID":"5","alarm":"NOSPACE"},{"alarm":77}]}"#,
        );
        check(
            "/etcdserverpb.Maintenance/HashKV",
            &HashKvResponse { header: None, hash: 123, compact_revision: -1, hash_revision: 9 },
            r#"{"hash":123,"compact_revision":"-1","hash_revision":"9"}"#,
        );
        check(
            "/etcdserverpb.Maintenance/Status",
            &StatusResponse {
                db_size: 1,
                downgrade_info: Some(Default::default()),
                ..StatusResponse::default()
            },
            r#"{"dbSize":"1","downgradeInfo":{}}"#,
        );
        check(
            "/etcdserverpb.Cluster/MemberList",
            &MemberListResponse {
                header: None,
                members: vec![quorate_proto::etcdserverpb::Member {
                    id: 3,
                    name: "a\"b\u{1}".into(),
                    peer_ur_ls: vec!["http://h:1".into()],
                    client_ur_ls: vec![],
                    is_learner: true,
                }],
            },
            r#"{"members":[{"ID":"3","name":"a\"b\u0001","peerURLs":["http://h:1"],"isLearner":true}]}"#,
        );
    }
}
