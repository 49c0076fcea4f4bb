//! Which pairs of a range an answer shows, and in which order (R6 to R12).
//!
//! One place for the rules, whether an answer is planned by the index in one
//! look or gathered slice by slice. **Never** looks for pairs itself.

use super::range::Fact;
use bytes::Bytes;
use quorate_proto::{
    etcdserverpb::{RangeRequest, range_request::SortOrder, range_request::SortTarget},
    mvccpb::KeyValue,
};
use std::cmp::Reverse;

/// What is asked of a pair before its value is known.
pub trait Shown {
    fn create_revision(&self) -> i64;
    fn mod_revision(&self) -> i64;
    fn version(&self) -> i64;
}

impl Shown for KeyValue {
    fn create_revision(&self) -> i64 {
        self.create_revision
    }

    fn mod_revision(&self) -> i64 {
        self.mod_revision
    }

    fn version(&self) -> i64 {
        self.version
    }
}

impl Shown for Fact<'_> {
    fn create_revision(&self) -> i64 {
        self.create_revision as i64
    }

    fn mod_revision(&self) -> i64 {
        self.mod_revision as i64
    }

    fn version(&self) -> i64 {
        self.version as i64
    }
}

/// Smallest and largest revision that pass, both included; 0 is none (R8).
type Bounds = (i64, i64);

fn within(revision: i64, (min, max): Bounds) -> bool {
    (min == 0 || revision >= min) && (max == 0 || revision <= max)
}

/// How a request chooses.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    order: SortOrder,
    target: SortTarget,
    /// Pairs that are shown at most; `usize::MAX` = no limit.
    pub limit: usize,
    created: Bounds,
    modified: Bounds,
    keys_only: bool,
}

impl Choice {
    pub fn of(request: &RangeRequest) -> Choice {
        Choice {
            order: SortOrder::try_from(request.sort_order).unwrap_or(SortOrder::None),
            target: SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key),
            limit: usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX),
            created: (request.min_create_revision, request.max_create_revision),
            modified: (request.min_mod_revision, request.max_mod_revision),
            keys_only: request.keys_only,
        }
    }

    /// Whether the limit cuts the pairs in key order before anything is sorted (R7); sorted by ascending
    /// keys they stay as they are.
    pub fn is_plain(&self) -> bool {
        let ascends = self.order == SortOrder::Ascend && self.target == SortTarget::Key;
        (self.order == SortOrder::None || ascends) && self.created == (0, 0) && self.modified == (0, 0)
    }

    /// Whether the pairs are shown as they lie, in key order.
    pub fn is_in_key_order(&self) -> bool {
        self.target == SortTarget::Key && self.order != SortOrder::Descend
    }

    /// How many of the pairs in key order are to be looked at: one more than are shown tells whether
    /// there are more.
    pub fn looked_at(&self) -> usize {
        if self.is_plain() { self.limit.saturating_add(1) } else { usize::MAX }
    }

    /// Whether the order depends on values, so that all of them are read before anything is cut.
    pub fn is_by_value(&self) -> bool {
        self.target == SortTarget::Value
    }

    pub fn passes(&self, pair: &impl Shown) -> bool {
        within(pair.mod_revision(), self.modified) && within(pair.create_revision(), self.created)
    }

    /// Sorts pairs that are in key order and passed, and cuts them; equal ones keep their order. Not by
    /// value: see [`Choice::finish_by_value`].
    pub fn finish<P: Shown>(&self, pairs: &mut Vec<P>) {
        let descending = self.order == SortOrder::Descend;
        let by = |pairs: &mut [P], of: fn(&P) -> i64| match descending {
            false => pairs.sort_by_key(of),
            true => pairs.sort_by_key(|pair| Reverse(of(pair))),
        };
        match self.target {
            SortTarget::Key if descending => pairs.reverse(),
            SortTarget::Key => {}
            SortTarget::Version => by(pairs, P::version),
            SortTarget::Create => by(pairs, P::create_revision),
            SortTarget::Mod => by(pairs, P::mod_revision),
            SortTarget::Value => unreachable!("values are not known yet"),
        }
        pairs.truncate(self.limit);
    }

    /// The same for an order by value; values that are not asked for go.
    pub fn finish_by_value(&self, kvs: &mut Vec<KeyValue>) {
        assert!(self.is_by_value(), "the order is another");
        match self.order {
            SortOrder::Descend => kvs.sort_by(|a, b| b.value.cmp(&a.value)),
            SortOrder::Ascend | SortOrder::None => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
        }
        kvs.truncate(self.limit);
        if self.keys_only {
            kvs.iter_mut().for_each(|pair| pair.value = Bytes::new());
        }
    }
}
