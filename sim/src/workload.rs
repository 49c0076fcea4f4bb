//! Clients: they carry out their part of the plan and write down what they saw.
//!
//! Promises: every request is in the history, with its invocation and its
//! return on the one clock that no node can bend; one that never returned is
//! there as unknown. **Never** judges.

mod ask;

pub use ask::Seen;

use crate::cluster::client_address;
use crate::dice::Dice;
use crate::history::{Call, History, Op, Outcome};
use crate::journal::note;
use crate::plan::{Head, Planned};
use crate::time::{now_ns, pass, until};
use bytes::Bytes;
use prost::Message;
use quorate::client::{Client, ClientOptions};
use quorate::env::net::{Channel, HttpOptions};
use quorate::env::{Env, Rng};
use quorate_proto::etcdserverpb::{self as pb, kv_client::KvClient};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::{Code, Status};

/// An operation that would begin later than this after its time is left out: the client was stuck.
const LATE_MAX: Duration = Duration::from_secs(2);

/// The history that all clients write.
#[derive(Clone, Default)]
pub struct Notebook(Arc<Mutex<History>>);

impl Notebook {
    fn locked(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down that a request is sent; returns its place.
    fn invoke(&self, client: u32, member: Option<u64>, call: Call) -> usize {
        let mut history = self.locked();
        let id = history.ops.len() as u64 + 1;
        let invoke_ns = now_ns();
        history.ops.push(Op {
            id,
            client,
            member,
            invoke_ns,
            return_ns: None,
            call,
            outcome: Outcome::Unknown,
        });
        history.ops.len() - 1
    }

    fn give_back(&self, place: usize, outcome: Outcome) {
        let mut history = self.locked();
        let op = &mut history.ops[place];
        assert!(op.return_ns.is_none(), "a request returns once");
        op.return_ns = Some(now_ns());
        let mut bytes = op.id.to_le_bytes().to_vec();
        outcome_bytes(&outcome, &mut bytes);
        quorate::trace!("reply", &bytes);
        op.outcome = outcome;
        note(|| format!("op {op}"));
    }

    pub fn take(&self) -> History {
        std::mem::take(&mut *self.locked())
    }
}

fn outcome_bytes(outcome: &Outcome, into: &mut Vec<u8>) {
    match outcome {
        Outcome::Range(reply) => into.extend(reply.encode_to_vec()),
        Outcome::Put(reply) => into.extend(reply.encode_to_vec()),
        Outcome::DeleteRange(reply) => into.extend(reply.encode_to_vec()),
        Outcome::Txn(reply) => into.extend(reply.encode_to_vec()),
        Outcome::Compact(reply) => into.extend(reply.encode_to_vec()),
        Outcome::Error { code, message, .. } => {
            into.extend(code.to_le_bytes());
            into.extend(message.as_bytes());
        }
        Outcome::Unknown => {}
    }
}

/// How a client reaches members.
pub struct Line {
    client: u32,
    members: usize,
    library: Option<Client>,
    /// Raw channels by member number.
    raw: BTreeMap<usize, Channel>,
    /// Raft ids by member number.
    ids: BTreeMap<usize, u64>,
    timeout: Duration,
    notebook: Notebook,
}

impl Line {
    /// Must be made on the client's own node.
    pub fn new(head: &Head, client: u32, ids: BTreeMap<usize, u64>, notebook: Notebook) -> Line {
        let mut dice = Dice::new(&format!("{} line of client {client}", head.scenario), head.seed);
        // Some clients are hasty: their requests end as unknown.
        let timeout = Duration::from_millis(*dice.pick(&[800, 3_000, 8_000, 8_000]));
        Line { client, members: head.members, library: None, raw: BTreeMap::new(), ids, timeout, notebook }
            .with_library(dice.seed())
    }

    fn with_library(mut self, seed: [u8; 32]) -> Line {
        let env = Env {
            disk: Arc::new(crate::disk::SimDisk::mount()),
            clock: Arc::new(crate::clock::SimClock::current()),
            rng: Rng::from_seed(seed),
        };
        let endpoints = (1..=self.members).map(client_address).collect();
        self.library = Some(Client::new(endpoints, ClientOptions::default(), env));
        self
    }

    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub fn channel(&mut self, member: usize) -> Channel {
        let options = HttpOptions { keepalive_timeout: Duration::from_secs(2), ..HttpOptions::default() };
        self.raw.entry(member).or_insert_with(|| Channel::lazy(&client_address(member), options)).clone()
    }

    /// Sends one request and writes down what comes of it.
    pub async fn send(&mut self, member: Option<usize>, call: Call) -> Outcome {
        let id = member.and_then(|number| self.ids.get(&number).copied());
        let place = self.notebook.invoke(self.client, id, call.clone());
        let timeout = self.timeout;
        let answer = async {
            match member {
                Some(number) => send_raw(self.channel(number), call, timeout).await,
                None => send_by_library(self.library.as_ref().expect("made with the line"), call).await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = answer => outcome,
            // A raw request has this deadline too; the margin lets its own answer win.
            () = pass(timeout + Duration::from_millis(200)) => Outcome::Unknown,
        };
        self.notebook.give_back(place, outcome.clone());
        outcome
    }
}

async fn send_raw(channel: Channel, call: Call, timeout: Duration) -> Outcome {
    fn with<T>(message: T, timeout: Duration) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(timeout);
        request
    }
    let mut kv = KvClient::new(channel);
    let result = match call {
        Call::Range(call) => {
            kv.range(with(call, timeout)).await.map(|reply| Outcome::Range(reply.into_inner()))
        }
        Call::Put(call) => kv.put(with(call, timeout)).await.map(|reply| Outcome::Put(reply.into_inner())),
        Call::DeleteRange(call) => {
            kv.delete_range(with(call, timeout)).await.map(|reply| Outcome::DeleteRange(reply.into_inner()))
        }
        Call::Txn(call) => kv.txn(with(call, timeout)).await.map(|reply| Outcome::Txn(reply.into_inner())),
        Call::Compact(call) => {
            kv.compact(with(call, timeout)).await.map(|reply| Outcome::Compact(reply.into_inner()))
        }
    };
    result.unwrap_or_else(|status| {
        let maybe_applied = may_be_applied(&status);
        error(&status, maybe_applied)
    })
}

async fn send_by_library(client: &Client, call: Call) -> Outcome {
    let result = match call {
        Call::Range(call) => client.range(call).await.map(Outcome::Range),
        Call::Put(call) => client.put(call).await.map(Outcome::Put),
        Call::DeleteRange(call) => client.delete_range(call).await.map(Outcome::DeleteRange),
        Call::Txn(call) => client.txn(call).await.map(Outcome::Txn),
        Call::Compact(call) => client.compact(call).await.map(Outcome::Compact),
    };
    result.unwrap_or_else(|failure| error(&failure.status, failure.maybe_applied))
}

fn error(status: &Status, maybe_applied: bool) -> Outcome {
    Outcome::Error { code: status.code() as i32, message: status.message().to_owned(), maybe_applied }
}

/// Whether a request that ended so may have taken effect, or may still.
fn may_be_applied(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => !status.message().starts_with("cannot connect to "),
        Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal | Code::Aborted => true,
        _ => false,
    }
}

/// One client's life: its operations one after the other, each at its time or as soon as it can.
pub async fn run(mut line: Line, ops: Vec<Planned>) {
    let mut seen = Seen::default();
    for Planned { at_ms, member, ask, .. } in ops {
        let at = at_ms * 1_000_000;
        let now = now_ns();
        if now > at + LATE_MAX.as_nanos() as u64 {
            continue;
        }
        if now < at {
            until(at).await;
        }
        let call = seen.call(&ask);
        let outcome = line.send(member, call.clone()).await;
        seen.learn(&call, &outcome);
    }
}

/// Waits until `member` answers a write, trying again and again; then reads everything there.
///
/// All of it is in the history. Returns what the member holds.
pub async fn settle(line: &mut Line, member: usize) -> pb::RangeResponse {
    let mut tries = 0;
    loop {
        tries += 1;
        let key = format!("live-{member}");
        let value = format!("{}-{tries}", line.client);
        let put = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
        if let Outcome::Put(_) = line.send(Some(member), Call::Put(put)).await {
            break;
        }
        pass(Duration::from_millis(100)).await;
    }
    read_all(line, member).await
}

/// The API's range of all keys.
pub fn everything() -> (Bytes, Bytes) {
    (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"))
}

/// Reads everything that `member` holds, linearizably, until it answers.
pub async fn read_all(line: &mut Line, member: usize) -> pb::RangeResponse {
    let (key, range_end) = everything();
    let all = pb::RangeRequest { key, range_end, ..Default::default() };
    loop {
        if let Outcome::Range(reply) = line.send(Some(member), Call::Range(all.clone())).await {
            return reply;
        }
        pass(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trouble_on_the_way_leaves_an_effect_in_doubt() {
        for (status, doubt) in [
            (Status::unavailable("cannot connect to n1:2379: refused"), false),
            (Status::unavailable("broken pipe"), true),
            (Status::deadline_exceeded(""), true),
            (Status::invalid_argument("etcdserver: key is not provided"), false),
            (Status::out_of_range("etcdserver: mvcc: required revision has been compacted"), false),
        ] {
            assert_eq!(may_be_applied(&status), doubt, "{status:?}");
        }
    }
}
