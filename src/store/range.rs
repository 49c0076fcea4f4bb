//! Range: small answers in one look, large ones slice by slice over a view.
//!
//! **Promises** one moment for the whole answer, whichever way it is made; no
//! look at the state goes over more than [`SLICE_KEYS`] keys; values are read
//! for what is answered only (but for an order by value); large replies share
//! one budget of bytes while they are made (I10).

use super::ground::Fetched;
use super::view::{SLICE_KEYS, View};
use super::{ReadError, Store};
use crate::env::task;
use crate::machine::State;
use crate::mvcc::Choice;
use quorate_proto::{
    etcdserverpb::{self as pb, RangeRequest, RangeResponse},
    mvccpb::KeyValue,
};
use std::time::Duration;
use tokio::sync::SemaphorePermit;

/// Values that one look may read, about.
const LOOK_BYTES: u64 = 4 << 20;
/// A reply below this takes nothing from the shared budget.
const SMALL_BYTES: u64 = 1 << 20;
/// A reply that turns out larger than it seemed waits so long for its share.
const BUDGET_WAIT: Duration = Duration::from_secs(5);

/// What a reply holds of the shared budget.
struct Share<'a> {
    store: &'a Store,
    permits: Vec<SemaphorePermit<'a>>,
    held: u64,
    used: u64,
}

impl<'a> Share<'a> {
    /// Waits for the share that a reply of about so many bytes takes.
    async fn of(store: &'a Store, bytes: u64) -> Result<Share<'a>, ReadError> {
        let mut share = Share { store, permits: Vec::new(), held: SMALL_BYTES, used: 0 };
        let all = store.shared.options.reply_bytes;
        share.take(bytes.min(all).saturating_sub(SMALL_BYTES)).await?;
        Ok(share)
    }

    async fn take(&mut self, bytes: u64) -> Result<(), ReadError> {
        if bytes == 0 {
            return Ok(());
        }
        let shared = &self.store.shared;
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let taken = tokio::select! {
            biased;
            taken = shared.replies.acquire_many(permits) => taken,
            () = shared.clock.sleep(BUDGET_WAIT) => {
                crate::reached!("large reply refused");
                return Err(ReadError::Busy);
            }
        };
        self.permits.push(taken.map_err(|_| ReadError::Busy)?);
        self.held += bytes;
        Ok(())
    }

    /// Counts what was gathered.
    async fn add(&mut self, kvs: &[KeyValue]) -> Result<(), ReadError> {
        let size = |pair: &KeyValue| (pair.key.len() + pair.value.len() + size_of::<KeyValue>()) as u64;
        self.used += kvs.iter().map(size).sum::<u64>();
        let all = self.store.shared.options.reply_bytes;
        if self.used > self.held && self.held < all {
            let more = self.used.next_multiple_of(SMALL_BYTES) - self.held;
            self.take(more.min(all - self.held)).await?;
        }
        Ok(())
    }
}

impl Store {
    /// Range at a revision (R1 to R12; the request was checked by `api`). The
    /// header has the revision only.
    pub async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, ReadError> {
        loop {
            if self.is_small(request) {
                return Ok(self.shared.read(|state, pages| state.range(request, pages)).await??);
            }
            match self.range_in_slices(request).await {
                Err(ReadError::Replaced) => {
                    crate::reached!("range begun again after an install");
                }
                done => return done,
            }
        }
    }

    /// The first pairs of a range in key order, for a reply that is sent part by part: no count is
    /// taken, which at an older revision walks the whole range. `more`: others follow.
    pub async fn part(&self, request: &RangeRequest) -> Result<RangeResponse, ReadError> {
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(usize::MAX - 1);
        loop {
            let view = self.view();
            let at = view.inner().read_revision(request.revision)?;
            let mut share = Share::of(self, 0).await?;
            match gather(&view, request, at, limit + 1, request.keys_only, &mut share).await {
                Ok(mut kvs) => {
                    let more = kvs.len() > limit;
                    kvs.truncate(limit);
                    let header = pb::ResponseHeader { revision: view.revision(), ..Default::default() };
                    return Ok(RangeResponse { header: Some(header), kvs, more, count: 0 });
                }
                Err(ReadError::Replaced) => crate::reached!("range begun again after an install"),
                Err(error) => return Err(error),
            }
        }
    }

    /// A read-only txn (T17) on one consistent view; header revision set.
    pub async fn txn(&self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, ReadError> {
        Ok(self.shared.read(|state, pages| state.txn(request, pages)).await??)
    }

    /// Whether one look at the state answers a request.
    fn is_small(&self, request: &RangeRequest) -> bool {
        if request.range_end.is_empty() {
            return true;
        }
        let state = self.shared.state();
        if request.revision > 0 && request.revision != state.mvcc().revision() {
            return false;
        }
        if request.count_only {
            return true;
        }
        let count = state.mvcc().count(&request.key, &request.range_end);
        let choice = Choice::of(request);
        let looked_at = if choice.is_plain() { count.min(choice.limit as u64) } else { count };
        drop(state);
        looked_at <= SLICE_KEYS as u64
            && (request.keys_only || looked_at.saturating_mul(self.bytes_a_key()) <= LOOK_BYTES)
    }

    /// Bytes in use for each live key, about.
    fn bytes_a_key(&self) -> u64 {
        self.shared.sizes().in_use / self.keys().max(1) + size_of::<KeyValue>() as u64
    }

    async fn range_in_slices(&self, request: &RangeRequest) -> Result<RangeResponse, ReadError> {
        let view = self.view();
        let at = view.inner().read_revision(request.revision)?;
        let count = view.count(&request.key, &request.range_end, at).await?;
        let header = Some(pb::ResponseHeader { revision: view.revision(), ..Default::default() });
        let mut response = RangeResponse {
            header,
            kvs: Vec::new(),
            more: false,
            count: i64::try_from(count).expect("fewer than 2^63 keys"),
        };
        if request.count_only {
            return Ok(response);
        }
        let choice = Choice::of(request);
        let bytes_a_key = if request.keys_only { 64 } else { self.bytes_a_key() };
        let answered = count.min(choice.limit as u64);
        let mut share = Share::of(self, answered.saturating_mul(bytes_a_key)).await?;
        if choice.is_plain() && choice.is_in_key_order() {
            response.more = count > choice.limit as u64;
            response.kvs = gather(&view, request, at, choice.limit, request.keys_only, &mut share).await?;
            return Ok(response);
        }
        let by_value = choice.is_by_value();
        let mut kvs = gather(&view, request, at, choice.looked_at(), !by_value, &mut share).await?;
        kvs.retain(|pair| choice.passes(pair));
        response.more = kvs.len() > choice.limit;
        if by_value {
            choice.finish_by_value(&mut kvs);
        } else {
            choice.finish(&mut kvs);
            if !request.keys_only {
                fill(&view, at, &mut kvs, &mut share).await?;
            }
        }
        response.kvs = kvs;
        Ok(response)
    }
}

/// The first `limit` pairs in key order.
async fn gather(
    view: &View,
    request: &RangeRequest,
    at: i64,
    limit: usize,
    keys_only: bool,
    share: &mut Share<'_>,
) -> Result<Vec<KeyValue>, ReadError> {
    let mut kvs: Vec<KeyValue> = Vec::new();
    let mut from = request.key.clone();
    let mut keys = Pace::new(keys_only);
    loop {
        let most = keys.next().min(limit - kvs.len());
        let slice = view.slice(&from, &request.range_end, at, most, keys_only).await?;
        keys.saw(&slice.kvs);
        share.add(&slice.kvs).await?;
        kvs.extend(slice.kvs);
        match slice.next {
            Some(next) if kvs.len() < limit => from = next,
            _ => return Ok(kvs),
        }
        task::yield_now().await;
    }
}

/// Reads the values of pairs that were chosen by what the index knows.
async fn fill(view: &View, at: i64, kvs: &mut [KeyValue], share: &mut Share<'_>) -> Result<(), ReadError> {
    let mut keys = Pace::new(false);
    let inner = view.inner();
    let mut from = 0;
    while from < kvs.len() {
        let to = (from + keys.next()).min(kvs.len());
        let wanted = &kvs[from..to];
        let look = |state: &State, pages: &Fetched| {
            let mut missing = Vec::new();
            let mut found = Vec::with_capacity(wanted.len());
            for pair in wanted {
                match state.range_slice(inner, &pair.key, &[], at, 1, false, pages) {
                    Ok(slice) => found.push(slice),
                    Err(lacking) => missing.extend(lacking.0),
                }
            }
            missing.sort_unstable();
            missing.dedup();
            if missing.is_empty() { Ok(found) } else { Err(crate::mvcc::Missing(missing)) }
        };
        let found = view.read(look).await?;
        for (pair, slice) in kvs[from..to].iter_mut().zip(found) {
            let mut slice = slice?;
            assert_eq!(slice.kvs.len(), 1, "a view shows the same key again");
            *pair = slice.kvs.remove(0);
        }
        keys.saw(&kvs[from..to]);
        share.add(&kvs[from..to]).await?;
        from = to;
        task::yield_now().await;
    }
    Ok(())
}

/// How many keys the next look takes: their values are to stay near [`LOOK_BYTES`].
struct Pace {
    keys: usize,
    bare: bool,
}

impl Pace {
    /// Small at first: nothing is known of the values yet.
    fn new(bare: bool) -> Pace {
        Pace { keys: if bare { SLICE_KEYS } else { 32 }, bare }
    }

    fn next(&self) -> usize {
        self.keys
    }

    fn saw(&mut self, kvs: &[KeyValue]) {
        if self.bare || kvs.is_empty() {
            return;
        }
        let bytes: u64 = kvs.iter().map(|pair| pair.value.len() as u64).sum();
        let one = (bytes / kvs.len() as u64).max(1);
        let fit = usize::try_from(LOOK_BYTES / one).unwrap_or(usize::MAX);
        self.keys = fit.clamp(1, SLICE_KEYS);
    }
}
