//! Range: which records answer a request (the index alone), then what they
//! hold (pages). The first step can run under a lock, the second outside it.

use super::{
    Error, Missing, Mvcc, Pages,
    choice::Choice,
    index::{Found, Span},
    page::{Place, key_value_at},
    record,
    view::View,
};
use crate::pagefile::PageNumber;
use bytes::Bytes;
use quorate_proto::{
    etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader},
    mvccpb::KeyValue,
};

/// A pair that a range may show.
#[derive(Clone, Copy)]
pub(super) struct Fact<'a> {
    pub key: &'a [u8],
    pub create_revision: u64,
    pub mod_revision: u64,
    pub version: u64,
    pub source: Source<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    At(Place),
    /// Written by the txn that is being resolved.
    Drafted {
        value: &'a Bytes,
        lease: i64,
    },
}

impl<'a> Fact<'a> {
    pub fn stored(key: &'a [u8], found: Found) -> Fact<'a> {
        let Found { create_revision, mod_revision, version, place } = found;
        Fact { key, create_revision, mod_revision, version, source: Source::At(place) }
    }

    /// The pair without value and lease.
    fn bare(&self) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(self.key),
            create_revision: self.create_revision as i64,
            mod_revision: self.mod_revision as i64,
            version: self.version as i64,
            ..KeyValue::default()
        }
    }
}

/// One pair of an answer, as far as the index knows it.
#[derive(Clone, Debug)]
enum Item {
    /// Complete already.
    Ready(KeyValue),
    /// Read under the same look at the state: it lay in a page that only the state has.
    Stored(Bytes),
    At(Place),
}

/// The answer to a range but for what lies in pages. The pages must stay
/// readable until [`RangePlan::finish`].
#[derive(Clone, Debug)]
pub struct RangePlan {
    revision: i64,
    count: i64,
    more: bool,
    items: Vec<Item>,
    /// Sorted and cut only once the values are there.
    by_value: Option<Choice>,
}

impl RangePlan {
    /// Pages that [`RangePlan::finish`] will ask for, ascending.
    pub fn pages(&self) -> Vec<PageNumber> {
        let at = |item: &Item| if let Item::At(place) = item { Some(place.page()) } else { None };
        let mut pages: Vec<_> = self.items.iter().filter_map(at).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    pub fn finish(&self, pages: &dyn Pages) -> Result<RangeResponse, Missing> {
        let mut reader = PageReader::new(pages);
        let response = self.finish_with(&mut reader);
        reader.finish()?;
        Ok(response)
    }

    /// The answer, with empty pairs where a page lacks; the reader knows which.
    pub(super) fn finish_with(&self, reader: &mut PageReader<'_>) -> RangeResponse {
        let mut kvs = Vec::with_capacity(self.items.len());
        for item in &self.items {
            kvs.push(match item {
                Item::Ready(pair) => pair.clone(),
                Item::Stored(bytes) => record::message(bytes),
                Item::At(place) => reader.message(*place),
            });
        }
        if let Some(choice) = &self.by_value {
            choice.finish_by_value(&mut kvs);
        }
        let header = Some(header(self.revision));
        RangeResponse { header, kvs, more: self.more, count: self.count }
    }
}

/// Reads records of pages that the state does not hold itself, and notes the ones that lack.
pub(super) struct PageReader<'a> {
    pages: &'a dyn Pages,
    last: Option<(PageNumber, Bytes)>,
    missing: Vec<PageNumber>,
}

impl<'a> PageReader<'a> {
    pub fn new(pages: &'a dyn Pages) -> PageReader<'a> {
        PageReader { pages, last: None, missing: Vec::new() }
    }

    pub fn key_value(&mut self, place: Place) -> Option<Bytes> {
        self.payload(place.page()).map(|payload| key_value_at(&payload, place))
    }

    /// The payload of the page that stands for `page`; it is noted if it lacks.
    pub fn payload(&mut self, page: PageNumber) -> Option<Bytes> {
        if self.last.as_ref().is_none_or(|(number, _)| *number != page) {
            if self.missing.last() == Some(&page) {
                return None;
            }
            match self.pages.get(page) {
                Some(payload) => self.last = Some((page, payload)),
                None => {
                    self.missing.push(page);
                    return None;
                }
            }
        }
        self.last.as_ref().map(|(_, payload)| payload.clone())
    }

    /// An empty pair stands in where the page lacks.
    pub fn message(&mut self, place: Place) -> KeyValue {
        self.key_value(place).map_or_else(KeyValue::default, |bytes| record::message(&bytes))
    }

    pub fn lacks(&self) -> bool {
        !self.missing.is_empty()
    }

    pub fn finish(mut self) -> Result<(), Missing> {
        self.missing.sort_unstable();
        self.missing.dedup();
        if self.missing.is_empty() { Ok(()) } else { Err(Missing(self.missing)) }
    }
}

/// A header that says the revision and leaves the rest to `api`.
pub(super) fn header(revision: i64) -> ResponseHeader {
    ResponseHeader { revision, ..ResponseHeader::default() }
}

/// Chooses, sorts and cuts (R6 to R12). `facts` are the live pairs in key order, `count` how many there
/// are, if that is known: then no more of them are looked at than the answer needs.
pub(super) fn plan<'a>(
    mvcc: &Mvcc,
    request: &RangeRequest,
    revision: i64,
    facts: impl Iterator<Item = Fact<'a>>,
    count: Option<u64>,
) -> RangePlan {
    let mut plan = RangePlan { revision, count: 0, more: false, items: Vec::new(), by_value: None };
    if request.count_only {
        plan.count = count.unwrap_or_else(|| facts.count() as u64) as i64;
        return plan;
    }
    let choice = Choice::of(request);
    let wanted = choice.looked_at();
    let mut chosen = Vec::new();
    for fact in facts {
        plan.count += 1;
        if chosen.len() < wanted && choice.passes(&fact) {
            chosen.push(fact);
        }
        if let Some(count) = count
            && chosen.len() == wanted
        {
            plan.count = count as i64;
            break;
        }
    }
    plan.more = chosen.len() > choice.limit;
    match choice.is_by_value() {
        true => plan.by_value = Some(choice),
        false => choice.finish(&mut chosen),
    }
    let bare = request.keys_only && plan.by_value.is_none();
    plan.items = chosen.iter().map(|fact| item(mvcc, fact, bare)).collect();
    plan
}

/// The same for what is stored, at a revision; the header tells `revision`.
pub(super) fn plan_stored(mvcc: &Mvcc, request: &RangeRequest, revision: i64, at: u64) -> RangePlan {
    let span = Span::new(&request.key, &request.range_end);
    let found = span.into_iter().flat_map(|span| mvcc.index.scan(span, at));
    let facts = found.map(|(key, found)| Fact::stored(key, found));
    plan(mvcc, request, revision, facts, mvcc.known_count(span, at))
}

fn item(mvcc: &Mvcc, fact: &Fact<'_>, bare: bool) -> Item {
    match fact.source {
        _ if bare => Item::Ready(fact.bare()),
        Source::Drafted { value, lease } => {
            Item::Ready(KeyValue { value: value.clone(), lease, ..fact.bare() })
        }
        Source::At(place) => match mvcc.tail.stored(place) {
            Some(bytes) => Item::Stored(bytes),
            None => Item::At(place),
        },
    }
}

/// A bounded piece of a long range.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeSlice {
    pub kvs: Vec<KeyValue>,
    /// Where the next slice begins; `None` at the end of the range.
    pub next: Option<Bytes>,
}

/// Dead keys that a slice walks over for each pair it may hold, so that its cost is bounded too.
const WALKED_FOR_EACH: usize = 16;

impl Mvcc {
    /// Keys of a range, as a request has it, that are live now; O(log n).
    pub fn count(&self, key: &[u8], range_end: &[u8]) -> u64 {
        Span::new(key, range_end).map_or(0, |span| self.index.count(span))
    }

    /// The count of a range at a revision, if it need not be counted.
    fn known_count(&self, span: Option<Span<'_>>, at: u64) -> Option<u64> {
        (at == self.revision).then(|| span.map_or(0, |span| self.index.count(span)))
    }

    /// Resolves a whole request by the index. At the current revision without order and filter it costs
    /// time with the limit, otherwise with the keys in the range.
    pub fn range_plan(&self, request: &RangeRequest) -> Result<RangePlan, Error> {
        let at = self.view().read_revision(request.revision)? as u64;
        Ok(plan_stored(self, request, self.revision(), at))
    }

    /// Range (R1 to R12); the request has passed [`super::check::check_range`].
    pub fn range(
        &self,
        request: &RangeRequest,
        pages: &dyn Pages,
    ) -> Result<Result<RangeResponse, Error>, Missing> {
        match self.range_plan(request) {
            Ok(plan) => plan.finish(pages).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Up to `limit` pairs of a range from `key` on, at `revision` (0 = the view's) of a pinned view.
    /// `range_end` as in a request. `keys_only` leaves value and lease out and needs no pages.
    #[allow(clippy::too_many_arguments)]
    pub fn range_slice(
        &self,
        view: View,
        key: &[u8],
        range_end: &[u8],
        revision: i64,
        limit: usize,
        keys_only: bool,
        pages: &dyn Pages,
    ) -> Result<Result<RangeSlice, Error>, Missing> {
        assert!(limit > 0, "a slice goes forward");
        self.assert_whole(view.compacted);
        let at = match view.read_revision(revision) {
            Ok(at) => at as u64,
            Err(error) => return Ok(Err(error)),
        };
        let mut slice = RangeSlice { kvs: Vec::new(), next: None };
        let Some(span) = Span::new(key, range_end) else { return Ok(Ok(slice)) };
        let mut reader = PageReader::new(pages);
        for (walked, (key, found)) in self.index.walk(span, at).enumerate() {
            if slice.kvs.len() == limit || walked == limit.saturating_mul(WALKED_FOR_EACH) {
                slice.next = Some(Bytes::copy_from_slice(key));
                break;
            }
            let Some(found) = found else { continue };
            slice.kvs.push(match item(self, &Fact::stored(key, found), keys_only) {
                Item::Ready(pair) => pair,
                Item::Stored(bytes) => record::message(&bytes),
                Item::At(place) => reader.message(place),
            });
        }
        reader.finish()?;
        Ok(Ok(slice))
    }

    /// Counts live keys of a range at `revision` (0 = the view's) of a pinned view, walking over at most
    /// `keys_max` keys; also says where to go on.
    pub fn count_slice(
        &self,
        view: View,
        key: &[u8],
        range_end: &[u8],
        revision: i64,
        keys_max: usize,
    ) -> Result<(u64, Option<Bytes>), Error> {
        assert!(keys_max > 0, "a slice goes forward");
        self.assert_whole(view.compacted);
        let at = view.read_revision(revision)? as u64;
        let span = Span::new(key, range_end);
        if let Some(count) = self.known_count(span, at) {
            return Ok((count, None));
        }
        let mut count = 0;
        for (walked, (key, found)) in span.into_iter().flat_map(|span| self.index.walk(span, at)).enumerate()
        {
            if walked == keys_max {
                return Ok((count, Some(Bytes::copy_from_slice(key))));
            }
            count += u64::from(found.is_some());
        }
        Ok((count, None))
    }
}
