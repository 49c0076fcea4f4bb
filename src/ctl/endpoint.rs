//! endpoint health, status, hashkv: each endpoint asked by itself.

use super::Session;
use super::args::{Endpoint, HashKv, OfCluster};
use super::failure::{Failure, text_of};
use super::printer::{self, Fields, Format};
use quorate_proto::etcdserverpb as pb;
use serde_json::json;
use std::time::Duration;

pub async fn run(session: &Session, endpoint: Endpoint) -> Result<(), Failure> {
    match endpoint {
        Endpoint::Health(of) => health(session, &of).await,
        Endpoint::Status(of) => status(session, &of).await,
        Endpoint::Hashkv(hash) => hash_kv(session, &hash).await,
    }
}

/// The endpoints to ask: those of the flags, or the client URLs of all members.
pub(super) async fn endpoints(session: &Session, cluster: bool) -> Result<Vec<String>, Failure> {
    if !cluster {
        return Ok(session.global.endpoints());
    }
    let members = session.client().member_list(pb::MemberListRequest { linearizable: false }).await?;
    Ok(members.members.into_iter().flat_map(|member| member.client_ur_ls).collect())
}

struct Health {
    endpoint: String,
    took: Duration,
    error: Option<String>,
}

async fn health(session: &Session, of: &OfCluster) -> Result<(), Failure> {
    let mut all = Vec::new();
    for endpoint in endpoints(session, of.cluster).await? {
        let client = session.client_of(vec![endpoint.clone()]);
        let begun = session.env.clock.now();
        let read = client.range(pb::RangeRequest { key: "health".into(), ..Default::default() }).await;
        let took = session.env.clock.now().since(begun);
        let mut error = match read {
            Ok(_) => None,
            // The read was refused by rights, so it was served.
            Err(error) if error.status.code() == tonic::Code::PermissionDenied => None,
            Err(error) => Some(text_of(&error.status)),
        };
        if error.is_none() {
            error = match client.alarm(pb::AlarmRequest::default()).await {
                Ok(alarms) if alarms.alarms.is_empty() => None,
                Ok(alarms) => {
                    let names: String = alarms
                        .alarms
                        .iter()
                        .map(|alarm| format!("{} ", alarm.alarm().as_str_name()))
                        .collect();
                    Some(format!("Active Alarm(s): {names}"))
                }
                Err(_) => Some("Unable to fetch the alarm list".to_owned()),
            };
        }
        all.push(Health { endpoint, took, error });
    }
    print_health(session.format, &all)?;
    match all.iter().all(|health| health.error.is_none()) {
        true => Ok(()),
        false => Err(Failure::server("unhealthy cluster")),
    }
}

fn print_health(format: Format, all: &[Health]) -> Result<(), Failure> {
    let took = |health: &Health| format!("{:?}", health.took);
    let error = |health: &Health| health.error.clone().unwrap_or_default();
    match format {
        Format::Simple => {
            for health in all {
                match &health.error {
                    None => printer::line(&format!(
                        "{} is healthy: successfully committed proposal: took = {}",
                        health.endpoint,
                        took(health)
                    )),
                    Some(error) => {
                        eprintln!("{} is unhealthy: failed to commit proposal: {error}", health.endpoint)
                    }
                }
            }
        }
        Format::Json => {
            let rows: Vec<_> = all
                .iter()
                .map(|health| {
                    let mut row = json!({ "endpoint": health.endpoint, "health": health.error.is_none(), "took": took(health) });
                    if let Some(error) = &health.error {
                        row["error"] = json!(error);
                    }
                    row
                })
                .collect();
            printer::json(&json!(rows));
        }
        Format::Fields => {
            let mut fields = Fields::default();
            for health in all {
                fields.quoted("Endpoint", health.endpoint.as_bytes());
                fields.plain("Health", health.error.is_none());
                fields.plain("Took", took(health));
                fields.plain("Error", error(health));
                fields.blank();
            }
            fields.print();
        }
        Format::Table => {
            let rows: Vec<_> = all
                .iter()
                .map(|health| {
                    vec![
                        health.endpoint.clone(),
                        health.error.is_none().to_string(),
                        took(health),
                        error(health),
                    ]
                })
                .collect();
            printer::out(printer::table(&["ENDPOINT", "HEALTH", "TOOK", "ERROR"], &rows).as_bytes());
        }
        Format::Protobuf => return Err(format.unsupported()),
    }
    Ok(())
}

/// Asks every endpoint; those that fail are named on stderr, the others are printed.
async fn ask<T, F>(
    session: &Session,
    cluster: bool,
    what: &str,
    call: F,
) -> Result<(Vec<(String, T)>, Option<String>), Failure>
where
    F: AsyncFn(&str) -> Result<T, crate::client::Error>,
{
    let (mut answers, mut failed) = (Vec::new(), None);
    for endpoint in endpoints(session, cluster).await? {
        match call(&endpoint).await {
            Ok(answer) => answers.push((endpoint, answer)),
            Err(error) => {
                let text = text_of(&error.status);
                eprintln!("Failed to get the {what} of endpoint {endpoint} ({text})");
                failed = Some(text);
            }
        }
    }
    Ok((answers, failed))
}

const STATUS_HEADER: &[&str] = &[
    "ENDPOINT",
    "ID",
    "VERSION",
    "STORAGE VERSION",
    "DB SIZE",
    "IN USE",
    "PERCENTAGE NOT IN USE",
    "QUOTA",
    "IS LEADER",
    "IS LEARNER",
    "RAFT TERM",
    "RAFT INDEX",
    "RAFT APPLIED INDEX",
    "ERRORS",
    "DOWNGRADE TARGET VERSION",
    "DOWNGRADE ENABLED",
];

fn status_row(endpoint: &str, status: &pb::StatusResponse) -> Vec<String> {
    let member = status.header.as_ref().map_or(0, |header| header.member_id);
    let unused =
        if status.db_size == 0 { 0.0 } else { 1.0 - status.db_size_in_use as f64 / status.db_size as f64 };
    let downgrade = status.downgrade_info.clone().unwrap_or_default();
    vec![
        endpoint.to_owned(),
        format!("{member:x}"),
        status.version.clone(),
        status.storage_version.clone(),
        printer::size(status.db_size),
        printer::size(status.db_size_in_use),
        format!("{:.0}%", unused * 100.0),
        printer::size(status.db_size_quota),
        (status.leader == member).to_string(),
        status.is_learner.to_string(),
        status.raft_term.to_string(),
        status.raft_index.to_string(),
        status.raft_applied_index.to_string(),
        status.errors.join(", "),
        downgrade.target_version,
        downgrade.enabled.to_string(),
    ]
}

async fn status(session: &Session, of: &OfCluster) -> Result<(), Failure> {
    let client = session.client();
    let (all, failed) =
        ask(session, of.cluster, "status", async |endpoint: &str| client.status(endpoint).await).await?;
    let rows = || all.iter().map(|(endpoint, status)| status_row(endpoint, status)).collect::<Vec<_>>();
    match session.format {
        Format::Simple => rows().iter().for_each(|row| printer::line(&row.join(", "))),
        Format::Table => printer::out(printer::table(STATUS_HEADER, &rows()).as_bytes()),
        Format::Json => {
            let rows: Vec<_> = all
                .iter()
                .map(|(endpoint, status)| {
                    json!({ "Endpoint": endpoint, "Status": printer::json_value(status, "etcdserverpb.StatusResponse") })
                })
                .collect();
            printer::json(&json!(rows));
        }
        Format::Fields => {
            let mut fields = Fields::default();
            for (endpoint, status) in &all {
                status_fields(&mut fields, endpoint, status, session.global.hex);
            }
            fields.print();
        }
        Format::Protobuf => return Err(session.format.unsupported()),
    }
    if failed.is_some() { Err(Failure::said(1)) } else { Ok(()) }
}

fn status_fields(fields: &mut Fields, endpoint: &str, status: &pb::StatusResponse, hex: bool) {
    let downgrade = status.downgrade_info.clone().unwrap_or_default();
    fields.header(status.header.as_ref(), hex);
    fields.quoted("Version", status.version.as_bytes());
    fields.quoted("StorageVersion", status.storage_version.as_bytes());
    fields.plain("DBSize", status.db_size);
    fields.plain("DBSizeInUse", status.db_size_in_use);
    fields.plain("DBSizeQuota", status.db_size_quota);
    fields.plain("Leader", status.leader);
    fields.plain("IsLearner", status.is_learner);
    fields.plain("RaftIndex", status.raft_index);
    fields.plain("RaftTerm", status.raft_term);
    fields.plain("RaftAppliedIndex", status.raft_applied_index);
    fields.plain("Errors", format!("[{}]", status.errors.join(" ")));
    fields.quoted("Endpoint", endpoint.as_bytes());
    fields.quoted("DowngradeTargetVersion", downgrade.target_version.as_bytes());
    fields.plain("DowngradeEnabled", downgrade.enabled);
    fields.blank();
}

async fn hash_kv(session: &Session, hash: &HashKv) -> Result<(), Failure> {
    let client = session.client();
    let (all, failed) =
        ask(session, hash.cluster, "hash", async |endpoint: &str| client.hash_kv(endpoint, hash.rev).await)
            .await?;
    let rows = || {
        all.iter()
            .map(|(endpoint, hash)| {
                vec![endpoint.clone(), hash.hash.to_string(), hash.hash_revision.to_string()]
            })
            .collect::<Vec<_>>()
    };
    match session.format {
        Format::Simple => rows().iter().for_each(|row| printer::line(&row.join(", "))),
        Format::Table => {
            printer::out(printer::table(&["ENDPOINT", "HASH", "HASH REVISION"], &rows()).as_bytes())
        }
        Format::Json => {
            let rows: Vec<_> = all
                .iter()
                .map(|(endpoint, hash)| {
                    json!({ "Endpoint": endpoint, "HashKV": printer::json_value(hash, "etcdserverpb.HashKVResponse") })
                })
                .collect();
            printer::json(&json!(rows));
        }
        Format::Fields => {
            let mut fields = Fields::default();
            for (endpoint, hash) in &all {
                fields.header(hash.header.as_ref(), session.global.hex);
                fields.quoted("Endpoint", endpoint.as_bytes());
                fields.plain("Hash", hash.hash);
                fields.plain("HashRevision", hash.hash_revision);
                fields.blank();
            }
            fields.print();
        }
        Format::Protobuf => return Err(session.format.unsupported()),
    }
    match failed {
        Some(text) => Err(Failure::server(text)),
        None => Ok(()),
    }
}
