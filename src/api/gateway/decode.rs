//! JSON text to a message, as proto3 JSON is read by etcd's gateway: names in
//! either spelling, unknown names skipped, whatever follows the object ignored.

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::{collections::BTreeSet, fmt};

/// Reads one message; only white space is the empty message. The error is a text for people.
pub(super) fn message(descriptor: &MessageDescriptor, json: &[u8]) -> Result<DynamicMessage, String> {
    if json.iter().all(u8::is_ascii_whitespace) {
        return Ok(DynamicMessage::new(descriptor.clone()));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    // `end()` is not called on purpose: what follows is ignored.
    Object(descriptor).deserialize(&mut deserializer).map_err(|error| format!("proto: {error}"))
}

/// A JSON object as a message.
struct Object<'a>(&'a MessageDescriptor);

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = DynamicMessage;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DynamicMessage, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = DynamicMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of {}", self.0.full_name())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DynamicMessage, A::Error> {
        let mut message = DynamicMessage::new(self.0.clone());
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let named = self.0.get_field_by_name(&name).or_else(|| self.0.get_field_by_json_name(&name));
            let Some(field) = named else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if !seen.insert(field.number()) {
                return Err(A::Error::custom(format_args!("duplicate field {name:?}")));
            }
            let oneof = field
                .containing_oneof()
                .filter(|oneof| oneof.fields().any(|other| message.has_field(&other)));
            let Some(value) = map.next_value_seed(Nullable(&field))? else { continue };
            if let Some(oneof) = oneof {
                let oneof = oneof.full_name();
                return Err(A::Error::custom(format_args!(
                    "error parsing {name:?}, oneof {oneof} is already set"
                )));
            }
            message.set_field(&field, value);
        }
        Ok(message)
    }
}

/// The value of a field: `null` leaves it unset, and so does an enum name that is not known.
struct Nullable<'a>(&'a FieldDescriptor);

impl<'de> DeserializeSeed<'de> for Nullable<'_> {
    type Value = Option<Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Nullable<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of field {}", self.0.name())
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        let field = self.0;
        if field.is_map() {
            // No request of the API has one; the test of the descriptors below says so.
            return Err(D::Error::custom("maps are not supported"));
        }
        if field.is_list() {
            return deserializer.deserialize_seq(List(field)).map(|items| Some(Value::List(items)));
        }
        Single(field).deserialize(deserializer)
    }
}

struct List<'a>(&'a FieldDescriptor);

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list for field {}", self.0.name())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Value>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Single(self.0))? {
            items.extend(item);
        }
        Ok(items)
    }
}

/// One value by the field's kind; `None` for an enum name that is not known.
struct Single<'a>(&'a FieldDescriptor);

impl<'de> DeserializeSeed<'de> for Single<'_> {
    type Value = Option<Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        match self.0.kind() {
            Kind::Message(descriptor) => {
                Object(&descriptor).deserialize(deserializer).map(|message| Some(Value::Message(message)))
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl Single<'_> {
    fn invalid<E: Error>(&self, shown: fmt::Arguments<'_>) -> E {
        let kind = match self.0.kind() {
            Kind::Enum(_) => "enum".to_owned(),
            kind => format!("{kind:?}"),
        };
        E::custom(format_args!("invalid value for {kind} field {}: {shown}", self.0.json_name()))
    }

    /// A whole number, wherever it came from.
    fn whole(&self, number: i128) -> Option<Value> {
        Some(match self.0.kind() {
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number.try_into().ok()?),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number.try_into().ok()?),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(number.try_into().ok()?),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(number.try_into().ok()?),
            Kind::Enum(_) => Value::EnumNumber(number.try_into().ok()?),
            Kind::Double => Value::F64(number as f64),
            Kind::Float => Value::F32(number as f32),
            _ => return None,
        })
    }

    /// A number with a point or an exponent.
    fn real(&self, number: f64) -> Option<Value> {
        match self.0.kind() {
            Kind::Double => Some(Value::F64(number)),
            Kind::Float => Some(Value::F32(number as f32)),
            // Beyond 2^65 nothing fits; below, the cast of a whole number is exact.
            _ if number.fract() == 0.0 && number.abs() < 36_893_488_147_419_103_232.0 => {
                self.whole(number as i128)
            }
            _ => None,
        }
    }

    fn text(&self, text: &str) -> Option<Option<Value>> {
        match self.0.kind() {
            Kind::String => Some(Some(Value::String(text.to_owned()))),
            Kind::Bytes => base64(text).map(|bytes| Some(Value::Bytes(bytes.into()))),
            Kind::Enum(descriptor) => {
                let known = descriptor.get_value_by_name(text);
                Some(known.map(|value| Value::EnumNumber(value.number())))
            }
            Kind::Bool | Kind::Message(_) => None,
            _ => match number(text)? {
                Number::Whole(number) => self.whole(number).map(Some),
                Number::Real(number) => self.real(number).map(Some),
            },
        }
    }
}

impl<'de> Visitor<'de> for Single<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of {:?} for field {}", self.0.kind(), self.0.name())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<Value>, E> {
        match self.0.kind() {
            Kind::Bool => Ok(Some(Value::Bool(value))),
            _ => Err(self.invalid(format_args!("{value}"))),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Value>, E> {
        self.whole(value.into()).map(Some).ok_or_else(|| self.invalid(format_args!("{value}")))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Value>, E> {
        self.whole(value.into()).map(Some).ok_or_else(|| self.invalid(format_args!("{value}")))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Value>, E> {
        self.real(value).map(Some).ok_or_else(|| self.invalid(format_args!("{value}")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Value>, E> {
        // A value that is refused may be a secret or a megabyte: only its beginning is told.
        let shown: String = value.chars().take(64).collect();
        self.text(value).ok_or_else(|| self.invalid(format_args!("{shown:?}")))
    }
}

enum Number {
    Whole(i128),
    Real(f64),
}

/// A number written as JSON writes it, in a string: no plus, no leading zero, no white space.
fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let first = digits.bytes().next()?;
    if !first.is_ascii_digit() || first == b'0' && digits.as_bytes().get(1).is_some_and(u8::is_ascii_digit) {
        return None;
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Number::Whole);
    }
    // What is left must be a fraction, an exponent or both; JSON's own reader knows their form.
    serde_json::from_str::<f64>(text).ok().map(Number::Real)
}

/// Either alphabet, padded or not, line breaks skipped; a mixture of alphabets is refused.
fn base64(text: &str) -> Option<Vec<u8>> {
    const fn engine(alphabet: &base64::alphabet::Alphabet, padding: DecodePaddingMode) -> GeneralPurpose {
        let config = GeneralPurposeConfig::new()
            .with_decode_padding_mode(padding)
            .with_decode_allow_trailing_bits(true);
        GeneralPurpose::new(alphabet, config)
    }
    const PADDED: GeneralPurpose = engine(&STANDARD, DecodePaddingMode::RequireCanonical);
    const BARE: GeneralPurpose = engine(&STANDARD, DecodePaddingMode::RequireNone);
    const URL_PADDED: GeneralPurpose = engine(&URL_SAFE, DecodePaddingMode::RequireCanonical);
    const URL_BARE: GeneralPurpose = engine(&URL_SAFE, DecodePaddingMode::RequireNone);
    let engine = match (text.contains(['-', '_']), text.len().is_multiple_of(4)) {
        (false, true) => &PADDED,
        (false, false) => &BARE,
        (true, true) => &URL_PADDED,
        (true, false) => &URL_BARE,
    };
    if text.contains(['\r', '\n']) {
        return engine.decode(text.replace(['\r', '\n'], "")).ok();
    }
    engine.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::grpc::Methods;
    use prost::Message;
    use quorate_proto::etcdserverpb::{
        Compare, RangeRequest, RequestOp, TxnRequest, compare::TargetUnion, request_op::Request,
    };

    fn read<M: Message + Default>(method: &str, json: &str) -> Result<M, String> {
        let methods = Methods::get();
        let number = methods.find(method).unwrap();
        let dynamic = message(&methods.list[number].descriptor.input(), json.as_bytes())?;
        Ok(M::decode(dynamic.encode_to_vec().as_slice()).unwrap())
    }

    fn range(json: &str) -> Result<RangeRequest, String> {
        read("/etcdserverpb.KV/Range", json)
    }

    /// Every case was put to a running etcd 3.7.3, which did the same.
    #[test]
    fn range_requests_are_read_as_etcd_reads_them() {
        let check = |json: &str, expected: RangeRequest| assert_eq!(range(json), Ok(expected), "{json}");
        let key = RangeRequest { key: "key".into(), ..RangeRequest::default() };
        check("", RangeRequest::default());
        check(" \n ", RangeRequest::default());
        check("{}", RangeRequest::default());
        check(r#"{"key":"a2V5"}"#, key.clone());
        check(r#"{"key":"a2V5"} trailing"#, key.clone());
        check(r#"{"key":"a2V5","foo":{"x":[1,2,{"y":null}]}}"#, key.clone());
        check(r#"{"key":"a2V5\n"}"#, key.clone());
        check(r#"{"key":"a-_5"}"#, RangeRequest { key: vec![107, 239, 249].into(), ..key.clone() });
        check(r#"{"key":"a2V"}"#, RangeRequest { key: "ke".into(), ..key.clone() });
        check(r#"{"key":"a2U="}"#, RangeRequest { key: "ke".into(), ..key.clone() });
        for revision in [r#""2""#, "2", "2.0", r#""2.0""#, r#""2e0""#, "0.2e1"] {
            let expected = RangeRequest { revision: 2, ..key.clone() };
            check(&format!(r#"{{"key":"a2V5","revision":{revision}}}"#), expected);
        }
        check(r#"{"key":"a2V5","revision":null}"#, key.clone());
        check(r#"{"key":"a2V5","revision":"-1"}"#, RangeRequest { revision: -1, ..key.clone() });
        check(r#"{"key":"a2V5","limit":1e18}"#, RangeRequest { limit: 10i64.pow(18), ..key.clone() });
        check(
            r#"{"key":"a2V5","limit":"9223372036854775807"}"#,
            RangeRequest { limit: i64::MAX, ..key.clone() },
        );
        check(r#"{"key":"a2V5","range_end":"AA=="}"#, RangeRequest { range_end: "\0".into(), ..key.clone() });
        check(r#"{"key":"a2V5","rangeEnd":"AA=="}"#, RangeRequest { range_end: "\0".into(), ..key.clone() });
        check(
            r#"{"key":"a2V5","sort_order":"DESCEND","sortTarget":3}"#,
            RangeRequest { sort_order: 2, sort_target: 3, ..key.clone() },
        );
        check(r#"{"key":"a2V5","sort_order":1.0}"#, RangeRequest { sort_order: 1, ..key.clone() });
        check(
            r#"{"key":"a2V5","sort_order":"FOO","sort_target":99}"#,
            RangeRequest { sort_target: 99, ..key.clone() },
        );
        check(r#"{"key":"a2V5","serializable":true}"#, RangeRequest { serializable: true, ..key.clone() });
    }

    #[test]
    fn what_etcd_refuses_is_refused() {
        for json in [
            r#"{"key":"a2V5","revision":"007"}"#,
            r#"{"key":"a2V5","revision":007}"#,
            r#"{"key":"a2V5","revision":"+1"}"#,
            r#"{"key":"a2V5","revision":" 1"}"#,
            r#"{"key":"a2V5","revision":""}"#,
            r#"{"key":"a2V5","revision":2.5}"#,
            r#"{"key":"a2V5","revision":"1.5"}"#,
            r#"{"key":"a2V5","revision":true}"#,
            r#"{"key":"a2V5","limit":"9223372036854775808"}"#,
            r#"{"key":"a2V5","key":"a2V5"}"#,
            r#"{"key":"a2V5","range_end":"AA==","rangeEnd":"AA=="}"#,
            r#"{"key":"a2V5","sort_order":"1","serializable":"true"}"#,
            r#"{"key":"a2V5" trailing"#,
            r#"{"key":"a2V5""#,
            "[]",
            "null",
            r#""x""#,
            r#"{"key":"a2V5="}"#,
            r#"{"key":"a+-5"}"#,
            r#"{"key":"not base64!"}"#,
            r#"{"key":5}"#,
        ] {
            range(json).expect_err(json);
        }
        for json in [
            r#"{"success":[null]}"#,
            r#"{"success":{}}"#,
            r#"{"success":[{"request_put":{"key":"a2V5"},"requestRange":{"key":"a2V5"}}]}"#,
        ] {
            read::<TxnRequest>("/etcdserverpb.KV/Txn", json).expect_err(json);
        }
        assert_eq!(
            range(r#"{"key":"a2V5","revision":"007"}"#),
            Err(r#"proto: invalid value for int64 field revision: "007" at line 1 column 30"#.to_owned())
        );
    }

    #[test]
    fn nested_messages_and_oneofs_are_read() {
        let json = r#"{
            "compare":[{"result":"FOO","target":"VERSION","key":"a2V5","version":"3"}],
            "success":[{"request_put":null,"requestRange":{"key":"a2V5"}}, {}],
            "failure":null}"#;
        let txn: TxnRequest = read("/etcdserverpb.KV/Txn", json).unwrap();
        let range = RangeRequest { key: "key".into(), ..RangeRequest::default() };
        let expected = TxnRequest {
            compare: vec![Compare {
                key: "key".into(),
                target_union: Some(TargetUnion::Version(3)),
                ..Compare::default()
            }],
            success: vec![RequestOp { request: Some(Request::RequestRange(range)) }, RequestOp::default()],
            failure: vec![],
        };
        assert_eq!(txn, expected);
    }

    #[test]
    fn no_route_needs_what_is_not_supported() {
        fn walk(message: &MessageDescriptor, seen: &mut BTreeSet<String>) {
            if seen.insert(message.full_name().to_owned()) {
                for field in message.fields() {
                    assert!(!field.is_map(), "{}", field.full_name());
                    if let Kind::Message(inner) = field.kind() {
                        walk(&inner, seen);
                    }
                }
            }
        }
        let mut seen = BTreeSet::new();
        for method in &Methods::get().list {
            if !method.path.starts_with("/grpc.health") {
                walk(&method.descriptor.input(), &mut seen);
                walk(&method.descriptor.output(), &mut seen);
            }
        }
        assert!(seen.len() > 100);
    }
}
