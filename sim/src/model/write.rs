//! Puts, deletes and compactions (P, C). Revisions are handed in: one txn's
//! writes share one.

use super::{Model, Moment, Refusal, Version, header};
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, mvccpb::KeyValue};

/// C1, C2: whether the state forbids a compaction.
pub(super) fn check_compact(request: &pb::CompactionRequest, moment: Moment) -> Result<(), Refusal> {
    if request.revision > moment.revision {
        return Err(Refusal::FutureRevision);
    }
    if request.revision <= moment.compacted { Err(Refusal::Compacted) } else { Ok(()) }
}

impl Model {
    /// P3, P4: what the state forbids at a revision.
    pub(super) fn check_put(&self, request: &pb::PutRequest, revision: i64) -> Result<(), Refusal> {
        // No lease exists yet.
        if request.lease != 0 {
            return Err(Refusal::LeaseNotFound);
        }
        let needs_key = request.ignore_value || request.ignore_lease;
        if needs_key && self.pair(&request.key, revision).is_none() {
            return Err(Refusal::KeyNotFound);
        }
        Ok(())
    }

    /// Puts at `revision`, over what stands there before. [`Model::check_put`] comes first.
    pub(super) fn put(&mut self, request: &pb::PutRequest, revision: i64) -> pb::PutResponse {
        let before = self.pair(&request.key, revision).cloned();
        let pair = KeyValue {
            key: request.key.clone(),
            create_revision: before.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: before.as_ref().map_or(0, |kv| kv.version) + 1,
            value: match &before {
                Some(kv) if request.ignore_value => kv.value.clone(),
                _ => request.value.clone(),
            },
            lease: match &before {
                Some(kv) if request.ignore_lease => kv.lease,
                _ => request.lease,
            },
        };
        self.record(request.key.clone(), revision, Some(pair));
        pb::PutResponse { header: header(revision), prev_kv: before.filter(|_| request.prev_kv) }
    }

    /// P6, P7. `current` is the revision before this request, `changed` whether the txn around it
    /// has written already; tells whether anything has been written by now.
    pub(super) fn delete_range(
        &mut self,
        request: &pb::DeleteRangeRequest,
        current: i64,
        changed: bool,
    ) -> (pb::DeleteRangeResponse, bool) {
        let gone = self.select(&request.key, &request.range_end, current + i64::from(changed));
        for kv in &gone {
            self.record(kv.key.clone(), current + 1, None);
        }
        let changed = changed || !gone.is_empty();
        let reply = pb::DeleteRangeResponse {
            header: header(current + i64::from(changed)),
            deleted: gone.len() as i64,
            prev_kvs: if request.prev_kv { gone } else { Vec::new() },
        };
        (reply, changed)
    }

    pub(super) fn compact(&mut self, request: &pb::CompactionRequest) -> pb::CompactionResponse {
        self.compacted = request.revision;
        pb::CompactionResponse { header: header(self.revision) }
    }

    fn record(&mut self, key: Bytes, revision: i64, pair: Option<KeyValue>) {
        let sub = if self.records.0 == revision { self.records.1 } else { 0 };
        self.records = (revision, sub + 1);
        let versions = self.versions.entry(key).or_default();
        assert!(versions.last().is_none_or(|last| last.revision <= revision), "versions only grow");
        versions.push(Version { revision, sub, pair });
    }
}
