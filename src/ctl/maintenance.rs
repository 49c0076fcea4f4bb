//! alarm list, alarm disarm, defrag.

use super::Session;
use super::args::{Alarm, NoWords, OfCluster};
use super::endpoint;
use super::failure::{Failure, text_of};
use super::printer::{self, Fields, Format};
use quorate_proto::etcdserverpb::{self as pb, AlarmType, alarm_request::AlarmAction};

pub async fn alarm(session: &Session, alarm: Alarm) -> Result<(), Failure> {
    match alarm {
        Alarm::List(words) => list(session, &words).await,
        Alarm::Disarm(words) => disarm(session, &words).await,
    }
}

fn no_words(command: &str, words: &NoWords) -> Result<(), Failure> {
    match words.words.is_empty() {
        true => Ok(()),
        false => Err(Failure::arguments(format!("alarm {command} command accepts no arguments"))),
    }
}

async fn list(session: &Session, words: &NoWords) -> Result<(), Failure> {
    no_words("list", words)?;
    let response = session.client().alarm(pb::AlarmRequest::default()).await?;
    print(session, &response)
}

/// Takes back every alarm that is on, one after the other.
async fn disarm(session: &Session, words: &NoWords) -> Result<(), Failure> {
    no_words("disarm", words)?;
    let client = session.client();
    let on = client.alarm(pb::AlarmRequest::default()).await?;
    let mut disarmed = pb::AlarmResponse::default();
    for alarm in on.alarms {
        let request = pb::AlarmRequest {
            action: AlarmAction::Deactivate as i32,
            member_id: alarm.member_id,
            alarm: alarm.alarm,
        };
        disarmed.alarms.extend(client.alarm(request).await?.alarms);
    }
    print(session, &disarmed)
}

fn print(session: &Session, response: &pb::AlarmResponse) -> Result<(), Failure> {
    match session.format {
        Format::Simple => response.alarms.iter().for_each(|alarm| printer::line(&text(alarm))),
        Format::Json => printer::json(&printer::json_value(response, "etcdserverpb.AlarmResponse")),
        Format::Fields => fields(response, session.global.hex).print(),
        Format::Protobuf => super::kv::message(session, response, "etcdserverpb.AlarmResponse")?,
        Format::Table => return Err(session.format.unsupported()),
    }
    Ok(())
}

fn kind(alarm: &pb::AlarmMember) -> String {
    AlarmType::try_from(alarm.alarm)
        .map_or_else(|_| alarm.alarm.to_string(), |kind| kind.as_str_name().to_owned())
}

/// Protobuf's text form, with two spaces between as etcdctl prints it.
fn text(alarm: &pb::AlarmMember) -> String {
    let member = match alarm.member_id {
        0 => String::new(),
        id => format!("memberID:{id}"),
    };
    let kind = match alarm.alarm {
        0 => String::new(),
        _ => format!("alarm:{}", kind(alarm)),
    };
    [member, kind].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

fn fields(response: &pb::AlarmResponse, hex: bool) -> Fields {
    let mut fields = Fields::default();
    fields.header(response.header.as_ref(), hex);
    for alarm in &response.alarms {
        match hex {
            true => fields.quoted("MemberID", format!("{:x}", alarm.member_id).as_bytes()),
            false => fields.plain("MemberID", alarm.member_id),
        }
        fields.plain("AlarmType", kind(alarm));
        fields.blank();
    }
    fields
}

/// One endpoint after the other, so that never all members clean at once.
pub async fn defrag(session: &Session, of: &OfCluster) -> Result<(), Failure> {
    let client = session.client();
    let mut failed = false;
    for endpoint in endpoint::endpoints(session, of.cluster).await? {
        let begun = session.env.clock.now();
        let outcome = client.defragment(&endpoint).await;
        let took = session.env.clock.now().since(begun);
        match outcome {
            Ok(_) => {
                printer::line(&format!("Finished defragmenting etcd member[{endpoint}]. took {took:?}"));
            }
            Err(error) => {
                failed = true;
                let text = text_of(&error.status);
                eprintln!("Failed to defragment etcd member[{endpoint}]. took {took:?}. ({text})");
            }
        }
    }
    if failed { Err(Failure::said(1)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_printed_as_etcdctl_prints_them() {
        let check = |member_id: u64, alarm: i32, expected: &str| {
            assert_eq!(text(&pb::AlarmMember { member_id, alarm }), expected);
        };
        check(10_276_657_743_932_975_437, 1, "memberID:10276657743932975437  alarm:NOSPACE");
        check(1, 2, "memberID:1  alarm:CORRUPT");
        check(0, 1, "alarm:NOSPACE");
        check(7, 9, "memberID:7  alarm:9");
    }
}
