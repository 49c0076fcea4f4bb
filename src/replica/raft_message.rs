//! raft-rs's messages and the peers' wire messages, mapped field by field.
//!
//! Owns the check of what a peer may say: kinds that only a member says to itself and proposals
//! are refused, and so is whatever would make raft panic (an entry out of order, a read index
//! without its context). **Never** decodes bytes with rust-protobuf (RUSTSEC-2024-0437): prost has
//! decoded them before they come here. No byte of an entry is copied.

use quorate_proto::{quorate::v1 as wire, raftpb};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot};

/// Why a message from a peer does not reach raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad raft message: {0}")]
pub(super) struct Bad(pub &'static str);

/// How a message came: a snapshot's message travels only with its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Stream,
    Snapshot,
}

/// For the wire. Entry data and contexts are shared, not copied.
pub(super) fn to_wire(message: &Message) -> wire::RaftMessage {
    wire::RaftMessage {
        msg_type: message.msg_type as i32,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.iter().map(entry_to_wire).collect(),
        commit: message.commit,
        snapshot: message.snapshot.as_ref().map(|snapshot| {
            let metadata = snapshot.get_metadata();
            wire::SnapshotMetadata {
                conf_state: Some(conf_state_to_wire(metadata.get_conf_state())),
                index: metadata.index,
                term: metadata.term,
            }
        }),
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context.clone(),
        request_snapshot: message.request_snapshot,
        deprecated_priority: message.deprecated_priority,
        commit_term: message.commit_term,
        priority: message.priority,
    }
}

/// From the wire, checked.
pub(super) fn from_wire(message: wire::RaftMessage, carrier: Carrier) -> Result<Message, Bad> {
    let kind = kind(message.msg_type)?;
    if (kind == MessageType::MsgSnapshot) != (carrier == Carrier::Snapshot) {
        return Err(Bad("a snapshot and its pages travel together"));
    }
    if message.from == 0 || message.to == 0 {
        return Err(Bad("no sender or no receiver"));
    }
    // Raft takes a message without a term for one of its own.
    if message.term == 0 && kind != MessageType::MsgReadIndex {
        return Err(Bad("no term"));
    }
    if matches!(kind, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp) && message.entries.len() != 1
    {
        return Err(Bad("a read index has one entry: its context"));
    }
    if kind == MessageType::MsgAppend {
        let mut before = (message.index, message.log_term);
        for entry in &message.entries {
            if before.0.checked_add(1) != Some(entry.index) {
                return Err(Bad("entries do not follow each other"));
            }
            if entry.term < before.1 || entry.term > message.term {
                return Err(Bad("an entry's term is out of order"));
            }
            before = (entry.index, entry.term);
        }
    }
    let entries = message.entries.into_iter().map(entry_from_wire).collect::<Result<Vec<_>, _>>()?;
    let mut mapped = Message {
        msg_type: kind,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        commit: message.commit,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context,
        request_snapshot: message.request_snapshot,
        deprecated_priority: message.deprecated_priority,
        commit_term: message.commit_term,
        priority: message.priority,
        ..Message::default()
    };
    mapped.entries = entries.into();
    if carrier == Carrier::Snapshot {
        let metadata = message.snapshot.ok_or(Bad("a snapshot without metadata"))?;
        if metadata.index == 0 || metadata.term == 0 {
            return Err(Bad("an empty snapshot"));
        }
        let conf_state = metadata.conf_state.ok_or(Bad("a snapshot without configuration"))?;
        mapped.set_snapshot(snapshot(metadata.index, metadata.term, conf_state_from_wire(&conf_state)));
    } else if message.snapshot.is_some() {
        return Err(Bad("snapshot metadata where none belongs"));
    }
    Ok(mapped)
}

/// raft's snapshot: metadata alone, the data travels beside it.
pub(super) fn snapshot(index: u64, term: u64, conf_state: ConfState) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.set_conf_state(conf_state);
    snapshot
}

pub(super) fn conf_state_to_wire(conf_state: &ConfState) -> raftpb::ConfState {
    raftpb::ConfState {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
        voters_outgoing: conf_state.voters_outgoing.clone(),
        learners_next: conf_state.learners_next.clone(),
        auto_leave: conf_state.auto_leave,
    }
}

pub(super) fn conf_state_from_wire(conf_state: &raftpb::ConfState) -> ConfState {
    ConfState {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
        voters_outgoing: conf_state.voters_outgoing.clone(),
        learners_next: conf_state.learners_next.clone(),
        auto_leave: conf_state.auto_leave,
        ..ConfState::default()
    }
}

fn entry_to_wire(entry: &Entry) -> wire::Entry {
    wire::Entry {
        entry_type: entry.entry_type as i32,
        term: entry.term,
        index: entry.index,
        data: entry.data.clone(),
        context: entry.context.clone(),
    }
}

fn entry_from_wire(entry: wire::Entry) -> Result<Entry, Bad> {
    let entry_type = match entry.entry_type {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        // Joint consensus is not spoken (EntryConfChangeV2): apply would not know it.
        _ => return Err(Bad("unknown kind of entry")),
    };
    Ok(Entry {
        entry_type,
        term: entry.term,
        index: entry.index,
        data: entry.data,
        context: entry.context,
        ..Entry::default()
    })
}

/// The kinds that members say to each other. Not among them: raft's own (hup, beat, unreachable,
/// snapshot status, check quorum), proposals (raft would decode conf changes in them with
/// rust-protobuf; requests travel as `Forward`) and transfer requests (asked of the leader itself).
fn kind(number: i32) -> Result<MessageType, Bad> {
    const SPOKEN: [MessageType; 12] = [
        MessageType::MsgAppend,
        MessageType::MsgAppendResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgSnapshot,
        MessageType::MsgHeartbeat,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgTimeoutNow,
        MessageType::MsgReadIndex,
        MessageType::MsgReadIndexResp,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestPreVoteResponse,
    ];
    SPOKEN.into_iter().find(|kind| *kind as i32 == number).ok_or(Bad("not a kind that peers say"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use prost::Message as _;

    fn append() -> Message {
        let mut message = Message {
            msg_type: MessageType::MsgAppend,
            to: 1,
            from: 2,
            term: 9,
            log_term: 4,
            index: 5,
            commit: 6,
            commit_term: 7,
            request_snapshot: 8,
            reject: true,
            reject_hint: 9,
            context: Bytes::from_static(b"context"),
            deprecated_priority: 10,
            priority: -1,
            ..Message::default()
        };
        let entry = |index, entry_type| Entry {
            entry_type,
            term: 9,
            index,
            data: Bytes::from_static(b"data"),
            context: Bytes::from_static(b"x"),
            ..Entry::default()
        };
        message.entries = vec![entry(6, EntryType::EntryConfChange), entry(7, EntryType::EntryNormal)].into();
        message
    }

    #[test]
    fn every_field_survives_the_round_trip_without_a_copy() {
        let message = append();
        let bytes = Bytes::from(to_wire(&message).encode_to_vec());
        let decoded = wire::RaftMessage::decode(bytes.clone()).unwrap();
        let back = from_wire(decoded, Carrier::Stream).unwrap();
        assert_eq!(back, message);
        let buffer = bytes.as_ptr() as usize..bytes.as_ptr() as usize + bytes.len();
        assert!(buffer.contains(&(back.entries[0].data.as_ptr() as usize)));
    }

    #[test]
    fn a_snapshot_keeps_its_metadata() {
        let mut message =
            Message { msg_type: MessageType::MsgSnapshot, to: 1, from: 2, term: 3, ..Message::default() };
        let conf_state = ConfState {
            voters: vec![1, 2],
            learners: vec![3],
            voters_outgoing: vec![4],
            learners_next: vec![5],
            auto_leave: true,
            ..ConfState::default()
        };
        message.set_snapshot(snapshot(40, 2, conf_state));
        let back = from_wire(to_wire(&message), Carrier::Snapshot).unwrap();
        assert_eq!(back, message);
        assert!(from_wire(to_wire(&message), Carrier::Stream).is_err());
    }

    #[test]
    fn only_what_peers_say_is_let_in() {
        let let_in: Vec<i32> = (-1..25)
            .filter(|kind| {
                let entries = vec![wire::Entry { index: 1, ..Default::default() }];
                let message = wire::RaftMessage {
                    msg_type: *kind,
                    to: 1,
                    from: 2,
                    term: 3,
                    entries,
                    ..Default::default()
                };
                from_wire(message, Carrier::Stream).is_ok()
            })
            .collect();
        // No MsgHup 0, MsgBeat 1, MsgPropose 2, MsgSnapshot 7, MsgUnreachable 10, MsgSnapStatus 11,
        // MsgCheckQuorum 12, MsgTransferLeader 13.
        assert_eq!(let_in, [3, 4, 5, 6, 8, 9, 14, 15, 16, 17, 18]);
    }

    #[test]
    fn what_would_make_raft_panic_is_refused() {
        let check = |spoil: fn(&mut wire::RaftMessage)| {
            let mut message = to_wire(&append());
            spoil(&mut message);
            from_wire(message, Carrier::Stream).unwrap_err()
        };
        check(|message| message.from = 0);
        check(|message| message.term = 0);
        check(|message| message.entries[1].index = 9);
        check(|message| message.index = u64::MAX);
        check(|message| message.entries[1].term = 10);
        check(|message| message.entries[0].term = 3);
        check(|message| message.entries[0].entry_type = 2);
        check(|message| message.msg_type = MessageType::MsgReadIndex as i32);
        check(|message| message.snapshot = Some(wire::SnapshotMetadata::default()));
    }
}
