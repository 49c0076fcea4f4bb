//! Ranges: selection, order, cut (R1 to R12). **Never** changes the model.

use super::{Model, Moment, Refusal, header};
use bytes::Bytes;
use quorate_proto::{
    etcdserverpb::{self as pb, range_request::SortOrder, range_request::SortTarget},
    mvccpb::KeyValue,
};
use std::{
    cmp::Ordering,
    ops::Bound::{Excluded, Included, Unbounded},
};

/// R4: the revision asked must lie between the compacted mark and the current one.
pub(super) fn check_range(request: &pb::RangeRequest, moment: Moment) -> Result<(), Refusal> {
    if request.revision > moment.revision {
        return Err(Refusal::FutureRevision);
    }
    if request.revision > 0 && request.revision < moment.compacted {
        return Err(Refusal::Compacted);
    }
    Ok(())
}

impl Model {
    /// The reply when the store stands at `current`, and the pairs among which ties may choose.
    pub(super) fn range_at(
        &self,
        request: &pb::RangeRequest,
        current: i64,
    ) -> (pb::RangeResponse, Vec<KeyValue>) {
        let asked = if request.revision > 0 { request.revision } else { current };
        let mut pairs = self.select(&request.key, &request.range_end, asked);
        let mut reply =
            pb::RangeResponse { header: header(current), count: pairs.len() as i64, ..Default::default() };
        if request.count_only {
            return (reply, Vec::new());
        }

        pairs.retain(|kv| passes(request, kv));
        let order = sort_order(request);
        let filtered = [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ];
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        if order == SortOrder::None && filtered == [0; 4] {
            // R7: cut by key first, one more than asked, and sorted only then.
            pairs.truncate(limit.saturating_add(1));
        }
        pairs.sort_by(|one, other| {
            let by = by_target(request, one, other);
            if order == SortOrder::Descend { by.reverse() } else { by }
        });
        reply.more = pairs.len() > limit;
        let mut all: Vec<KeyValue> = pairs.into_iter().map(|kv| shown(request, kv)).collect();
        let ties = if is_key_sort(request) { Vec::new() } else { all.clone() };
        all.truncate(limit);
        reply.kvs = all;
        (reply, ties)
    }

    /// R1, R2: the live pairs of a range, ascending.
    pub(super) fn select(&self, key: &[u8], range_end: &[u8], revision: i64) -> Vec<KeyValue> {
        let key = Bytes::copy_from_slice(key);
        let bounds = match range_end {
            [] => (Included(key.clone()), Included(key)),
            [0] => (Included(key), Unbounded),
            end if end <= &key[..] => return Vec::new(),
            end => (Included(key), Excluded(Bytes::copy_from_slice(end))),
        };
        self.versions.range(bounds).filter_map(|(key, _)| self.pair(key, revision).cloned()).collect()
    }
}

fn sort_order(request: &pb::RangeRequest) -> SortOrder {
    SortOrder::try_from(request.sort_order).expect("checked before")
}

fn is_key_sort(request: &pb::RangeRequest) -> bool {
    request.sort_target == SortTarget::Key as i32
}

/// R8: a bound of 0 is no bound; bounds are inclusive.
fn passes(request: &pb::RangeRequest, kv: &KeyValue) -> bool {
    let at_least = |bound: i64, revision: i64| bound == 0 || revision >= bound;
    let at_most = |bound: i64, revision: i64| bound == 0 || revision <= bound;
    at_least(request.min_mod_revision, kv.mod_revision)
        && at_most(request.max_mod_revision, kv.mod_revision)
        && at_least(request.min_create_revision, kv.create_revision)
        && at_most(request.max_create_revision, kv.create_revision)
}

fn by_target(request: &pb::RangeRequest, one: &KeyValue, other: &KeyValue) -> Ordering {
    match SortTarget::try_from(request.sort_target).expect("checked before") {
        SortTarget::Key => one.key.cmp(&other.key),
        SortTarget::Version => one.version.cmp(&other.version),
        SortTarget::Create => one.create_revision.cmp(&other.create_revision),
        SortTarget::Mod => one.mod_revision.cmp(&other.mod_revision),
        SortTarget::Value => one.value.cmp(&other.value),
    }
}

/// R12.
fn shown(request: &pb::RangeRequest, mut kv: KeyValue) -> KeyValue {
    if request.keys_only {
        kv.value = Bytes::new();
        if request.sort_target != SortTarget::Value as i32 {
            kv.lease = 0;
        }
    }
    kv
}
