//! What an operator asks of members while the others work: a transfer of
//! leadership, a defragmentation, relief when there is no room.
//!
//! Promises: what changes the store is in the history like anyone's request.
//! **Never** judges what comes of it.

use super::{World, client_node};
use crate::cluster::client_address;
use crate::history::{Call, Outcome};
use crate::journal::note;
use crate::plan::{Head, Whom};
use crate::time::pass;
use crate::workload::{Line, Notebook, everything};
use madsim::task::JoinHandle;
use quorate::env::net::{Channel, HttpOptions};
use quorate_proto::etcdserverpb::{
    self as pb, AlarmRequest, DefragmentRequest, MoveLeaderRequest, alarm_request::AlarmAction,
    maintenance_client::MaintenanceClient,
};
use std::{collections::BTreeMap, time::Duration};

/// Who asks for a transfer of leadership waits so long.
const TRANSFER_LASTS: Duration = Duration::from_secs(3);
/// Who asks for a defragmentation, or about alarms, waits so long.
const UPKEEP_LASTS: Duration = Duration::from_secs(10);

/// What an operator knows.
#[derive(Clone)]
pub(super) struct Operator {
    head: Head,
    /// The number between the clients and those who ask at the end.
    client: u32,
    ids: BTreeMap<usize, u64>,
    notebook: Notebook,
}

pub(super) fn service(number: usize) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(Channel::lazy(&client_address(number), HttpOptions::default()))
}

fn within<T>(message: T, time: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(time);
    request
}

impl World {
    /// Asks as a client would; whatever comes of it, the oracles of the others judge.
    fn operate<F>(&mut self, work: impl FnOnce(Operator) -> F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let client = self.plan.head.clients as u32;
        let node = self.operator.get_or_insert_with(|| client_node(&mut self.cluster, client));
        let (head, ids, notebook) = (self.plan.head.clone(), self.ids.clone(), self.notebook.clone());
        node.spawn(work(Operator { head, client, ids, notebook }))
    }

    pub(super) fn ask_to_hand_over(&mut self, to: &Whom) {
        let (leader, target) = (self.resolve(&Whom::Leader), self.resolve(to));
        let target_id = self.cluster.id_of(target);
        drop(self.operate(move |_| async move {
            let request = within(MoveLeaderRequest { target_id }, TRANSFER_LASTS);
            let answer = service(leader).move_leader(request).await;
            note(|| match answer {
                Ok(_) => format!("n{leader} handed over to n{target}"),
                Err(status) => format!("n{leader} did not hand over to n{target}: {status}"),
            });
        }));
    }

    pub(super) fn ask_to_defragment(&mut self, number: usize) {
        drop(self.operate(move |_| async move {
            defragment(number).await;
        }));
    }

    pub(super) fn ask_for_relief(&mut self, wipe: bool) {
        drop(self.operate(move |operator| async move {
            operator.relieve(wipe).await;
        }));
    }

    /// Relief until it came, now that nothing is wrong any more.
    pub(super) fn ask_for_lasting_relief(&mut self) -> JoinHandle<()> {
        self.operate(move |operator| async move {
            while !operator.relieve(true).await {
                pass(Duration::from_millis(500)).await;
            }
        })
    }
}

/// Whether it was done.
pub(super) async fn defragment(number: usize) -> bool {
    let answer = service(number).defragment(within(DefragmentRequest {}, UPKEEP_LASTS)).await;
    note(|| match &answer {
        Ok(_) => format!("n{number} is defragmented"),
        Err(status) => format!("n{number} is not defragmented: {status}"),
    });
    if answer.is_ok() {
        quorate::reached!("a member was defragmented");
    }
    answer.is_ok()
}

impl Operator {
    /// Whether no alarm is left.
    async fn relieve(&self, wipe: bool) -> bool {
        let mut line = Line::new(&self.head, self.client, self.ids.clone(), self.notebook.clone());
        line.set_timeout(UPKEEP_LASTS);
        if wipe {
            let (key, range_end) = everything();
            let delete = pb::DeleteRangeRequest { key, range_end, prev_kv: false };
            drop(line.send(None, Call::DeleteRange(delete)).await);
        }
        let (key, range_end) = everything();
        let look = pb::RangeRequest { key, range_end, count_only: true, ..Default::default() };
        if let Outcome::Range(reply) = line.send(None, Call::Range(look)).await {
            let revision = reply.header.map_or(0, |header| header.revision);
            drop(line.send(None, Call::Compact(pb::CompactionRequest { revision, physical: true })).await);
        }
        for number in self.ids.keys() {
            defragment(*number).await;
        }
        for number in self.ids.keys() {
            if let Some(left) = disarm(*number).await {
                return left == 0;
            }
        }
        false
    }
}

/// Disarms every alarm through a member; how many are left, if it answers.
async fn disarm(number: usize) -> Option<usize> {
    let mut service = service(number);
    let ask = |action: AlarmAction, member_id, alarm| {
        within(AlarmRequest { action: action as i32, member_id, alarm }, UPKEEP_LASTS)
    };
    let on = service.alarm(ask(AlarmAction::Get, 0, 0)).await.ok()?.into_inner().alarms;
    for pb::AlarmMember { member_id, alarm } in on {
        service.alarm(ask(AlarmAction::Deactivate, member_id, alarm)).await.ok()?;
        quorate::reached!("an alarm was disarmed");
    }
    Some(service.alarm(ask(AlarmAction::Get, 0, 0)).await.ok()?.into_inner().alarms.len())
}
