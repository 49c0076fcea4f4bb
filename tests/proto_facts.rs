//! The descriptors that everything is generated from, against the facts of
//! the protocol: every message, field, number, type, enum value and method.
//!
//! Left out are only the rows of package `versionpb`: four extension options
//! that annotate etcd's own .proto files with releases. They are never on the
//! wire, and our files do not carry the annotations. Package `raftpb` is not in
//! those facts: it belongs to etcd's raft library, not to the client protocol.

use prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind};
use std::collections::BTreeSet;

/// Packages that the facts list in full.
const PACKAGES: [&str; 9] = [
    "etcdserverpb",
    "mvccpb",
    "authpb",
    "membershippb",
    "v3lockpb",
    "v3electionpb",
    "leasepb",
    "walpb",
    "snappb",
];

fn pool() -> DescriptorPool {
    DescriptorPool::decode(quorate_proto::DESCRIPTORS).expect("the build wrote its own descriptors")
}

/// Part 0 of the API's facts holds the messages, part 1 the enums.
fn section(number: usize) -> &'static str {
    include_str!("facts/api.tsv").split("# ENUMS").nth(number).expect("the facts have two parts")
}

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains('\t'));
    lines.map(|line| line.split('\t').collect())
}

/// A type's name as the facts write it: without its own package.
fn local<'a>(full: &'a str, package: &str) -> &'a str {
    full.strip_prefix(package).and_then(|rest| rest.strip_prefix('.')).unwrap_or(full)
}

fn type_text(field: &FieldDescriptor, package: &str) -> String {
    let kind = match field.kind() {
        Kind::Message(message) => local(message.full_name(), package).to_owned(),
        Kind::Enum(descriptor) => format!("enum {}", local(descriptor.full_name(), package)),
        kind => format!("{kind:?}"),
    };
    match (field.containing_oneof(), field.cardinality()) {
        // etcd's stored records are proto2; ours say `optional` in proto3, which is the same on the wire.
        (Some(oneof), _) if oneof.is_synthetic() => format!("optional {kind}"),
        (Some(oneof), _) => format!("{kind} (oneof {})", oneof.name()),
        (None, Cardinality::Repeated) => format!("repeated {kind}"),
        (None, Cardinality::Required) => format!("required {kind}"),
        (None, Cardinality::Optional) => kind,
    }
}

/// Both directions, so that a mismatch names what is missing and what is too much.
fn same(ours: &BTreeSet<String>, facts: &BTreeSet<String>) {
    let missing: Vec<&String> = facts.difference(ours).collect();
    let surplus: Vec<&String> = ours.difference(facts).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "missing: {missing:#?}\nnot in the facts: {surplus:#?}"
    );
}

#[test]
fn every_message_and_field_is_the_facts() {
    let facts: BTreeSet<String> = rows(section(0))
        .filter(|cells| !matches!(cells[0], "package" | "versionpb"))
        .map(|cells| cells[..5].join(" "))
        .collect();
    let mut ours = BTreeSet::new();
    for message in pool().all_messages().filter(|message| PACKAGES.contains(&message.package_name())) {
        let package = message.package_name();
        let name = local(message.full_name(), package);
        if message.fields().len() == 0 {
            ours.insert(format!("{package} {name} - - -"));
        }
        for field in message.fields() {
            let kind = type_text(&field, package);
            ours.insert(format!("{package} {name} {} {} {kind}", field.name(), field.number()));
        }
    }
    assert!(facts.len() >= 326, "the facts were read");
    same(&ours, &facts);
}

#[test]
fn every_enum_value_is_the_facts() {
    let facts: BTreeSet<String> =
        rows(section(1)).filter(|cells| cells[0] != "package").map(|cells| cells[..4].join(" ")).collect();
    let mut ours = BTreeSet::new();
    for descriptor in pool().all_enums().filter(|descriptor| PACKAGES.contains(&descriptor.package_name())) {
        let package = descriptor.package_name();
        let name = local(descriptor.full_name(), package);
        for value in descriptor.values() {
            ours.insert(format!("{package} {name} {} {}", value.name(), value.number()));
        }
    }
    assert!(facts.len() >= 33, "the facts were read");
    same(&ours, &facts);
}

#[test]
fn every_method_is_the_facts() {
    let facts: BTreeSet<String> = rows(include_str!("facts/services.tsv"))
        .skip_while(|cells| cells[0] != "package")
        .take_while(|cells| cells[0] != "key")
        .filter(|cells| cells[0] != "package")
        .map(|cells| cells[..6].join(" "))
        .collect();
    let mut ours = BTreeSet::new();
    for service in pool().services() {
        for method in service.methods() {
            let stream = match (method.is_client_streaming(), method.is_server_streaming()) {
                (false, false) => "unary",
                (false, true) => "server",
                (true, false) => "client",
                (true, true) => "bidi",
            };
            let (input, output) = (method.input(), method.output());
            ours.insert(format!(
                "{} {} {} {} {} {stream}",
                service.package_name(),
                service.name(),
                method.name(),
                input.full_name(),
                output.full_name()
            ));
        }
    }
    assert!(facts.len() >= 50, "the facts were read");
    same(&ours, &facts);
}
