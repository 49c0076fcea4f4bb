//! member list.

use super::Session;
use super::args::{Member, MemberList};
use super::failure::Failure;
use super::printer::{self, Fields, Format};
use quorate_proto::etcdserverpb as pb;
use serde_json::Value;

pub async fn run(session: &Session, member: Member) -> Result<(), Failure> {
    let Member::List(list) = member;
    self::list(session, list).await
}

async fn list(session: &Session, list: MemberList) -> Result<(), Failure> {
    let linearizable = match list.consistency.as_str() {
        "l" => true,
        "s" => false,
        _ => return Err(Failure::option("unknown consistency flag \"l\"")),
    };
    let response = session.client().member_list(pb::MemberListRequest { linearizable }).await?;
    let hex = session.global.hex;
    match session.format {
        Format::Simple => {
            for row in rows(&response) {
                printer::line(&row.join(", "));
            }
        }
        Format::Table => printer::out(
            printer::table(
                &["ID", "STATUS", "NAME", "PEER ADDRS", "CLIENT ADDRS", "IS LEARNER"],
                &rows(&response),
            )
            .as_bytes(),
        ),
        Format::Fields => fields(&response, hex).print(),
        Format::Json => {
            let mut value = printer::json_value(&response, "etcdserverpb.MemberListResponse");
            if hex {
                ids_as_hex(&mut value);
            }
            printer::json(&value);
        }
        Format::Protobuf => super::kv::message(session, &response, "etcdserverpb.MemberListResponse")?,
    }
    Ok(())
}

fn rows(response: &pb::MemberListResponse) -> Vec<Vec<String>> {
    let row = |member: &pb::Member| {
        let status = if member.name.is_empty() { "unstarted" } else { "started" };
        vec![
            format!("{:x}", member.id),
            status.to_owned(),
            member.name.clone(),
            member.peer_ur_ls.join(","),
            member.client_ur_ls.join(","),
            member.is_learner.to_string(),
        ]
    };
    response.members.iter().map(row).collect()
}

fn fields(response: &pb::MemberListResponse, hex: bool) -> Fields {
    let mut fields = Fields::default();
    fields.header(response.header.as_ref(), hex);
    for member in &response.members {
        if hex {
            fields.quoted("ID", format!("{:x}", member.id).as_bytes());
        } else {
            fields.plain("ID", member.id);
        }
        fields.quoted("Name", member.name.as_bytes());
        for url in &member.peer_ur_ls {
            fields.quoted("PeerURL", url.as_bytes());
        }
        for url in &member.client_ur_ls {
            fields.quoted("ClientURL", url.as_bytes());
        }
        fields.plain("IsLearner", member.is_learner);
        fields.blank();
    }
    fields
}

/// With --hex the ids of the header and of each member are hex strings.
fn ids_as_hex(value: &mut Value) {
    let hex = |slot: Option<&mut Value>| {
        if let Some(slot) = slot
            && let Some(id) = slot.as_u64()
        {
            *slot = Value::String(format!("{id:x}"));
        }
    };
    if let Some(header) = value.get_mut("header") {
        hex(header.get_mut("cluster_id"));
        hex(header.get_mut("member_id"));
    }
    if let Some(Value::Array(members)) = value.get_mut("members") {
        for member in members {
            hex(member.get_mut("ID"));
        }
    }
}
