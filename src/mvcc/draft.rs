//! What a request would do, worked out on paper before anything changes.
//!
//! A draft reads the state through its own writes (T12), gathers the pages it
//! lacks, and ends as a list of writes that [`super::Mvcc::commit`] carries
//! out. **Promises**: whatever fails or lacks, nothing was changed.

use super::{
    Error, Missing, Mvcc, Pages,
    index::Span,
    page::Place,
    range::{Fact, PageReader, Source, header, plan, plan_stored},
    record,
};
use bytes::Bytes;
use quorate_proto::{etcdserverpb as pb, mvccpb::KeyValue};
use std::collections::BTreeMap;

/// One record to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Put { key: Bytes, value: Bytes, lease: i64, create_revision: u64, version: u64 },
    Delete { key: Bytes },
}

impl Write {
    pub fn key(&self) -> &Bytes {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }
}

pub(super) struct Draft<'a> {
    mvcc: &'a Mvcc,
    reader: PageReader<'a>,
    writes: Vec<Write>,
    /// Key → its newest write; kept only when more ops follow that could read it.
    newest: Option<BTreeMap<Bytes, usize>>,
}

/// A live pair as the draft sees it.
#[derive(Clone, Copy)]
enum Seen<'a> {
    Stored { create_revision: u64, version: u64, place: Place },
    Drafted(&'a Write, u64),
}

impl<'a> Draft<'a> {
    /// `alone`: one op, whose writes no later op reads.
    pub fn new(mvcc: &'a Mvcc, pages: &'a dyn Pages, alone: bool) -> Draft<'a> {
        Draft {
            mvcc,
            reader: PageReader::new(pages),
            writes: Vec::new(),
            newest: (!alone).then(BTreeMap::new),
        }
    }

    /// The revision as it would be now (T13): the new one as soon as there is a write.
    pub fn revision(&self) -> i64 {
        self.mvcc.revision() + i64::from(!self.writes.is_empty())
    }

    /// Where the writes of this draft will stand.
    fn main(&self) -> u64 {
        self.mvcc.revision + 1
    }

    pub fn mvcc(&self) -> &'a Mvcc {
        self.mvcc
    }

    /// Whether a page was asked for that is not in memory.
    pub fn lacks(&self) -> bool {
        self.reader.lacks()
    }

    /// Ends with the writes, or with the pages that lack for it.
    pub fn finish(self) -> Result<Vec<Write>, Missing> {
        self.reader.finish()?;
        Ok(self.writes)
    }

    /// The bytes of a stored pair; an empty pair stands in until the page is there.
    pub fn message(&mut self, place: Place) -> KeyValue {
        match self.mvcc.tail.stored(place) {
            Some(bytes) => record::message(&bytes),
            None => self.reader.message(place),
        }
    }

    fn write(&mut self, write: Write) {
        if let Some(newest) = &mut self.newest {
            newest.insert(write.key().clone(), self.writes.len());
        }
        self.writes.push(write);
    }

    fn drafted(&self, key: &[u8]) -> Option<&Write> {
        Some(&self.writes[*self.newest.as_ref()?.get(key)?])
    }

    fn seen(&self, key: &[u8]) -> Option<Seen<'_>> {
        match self.drafted(key) {
            Some(write @ Write::Put { .. }) => Some(Seen::Drafted(write, self.main())),
            Some(Write::Delete { .. }) => None,
            None => {
                let found = self.mvcc.index.live(key, self.mvcc.revision)?;
                let (create_revision, version, place) = (found.create_revision, found.version, found.place);
                Some(Seen::Stored { create_revision, version, place })
            }
        }
    }

    /// The pairs of a span in key order, as they stand after this draft's writes.
    fn facts(&self, span: Span<'a>) -> Vec<Fact<'_>> {
        let stored = self.mvcc.index.scan(span, self.mvcc.revision);
        let Some(newest) = self.newest.as_ref().filter(|newest| !newest.is_empty()) else {
            return stored.map(|(key, found)| Fact::stored(key, found)).collect();
        };
        let mut facts = Vec::new();
        let mut drafted = newest.range::<[u8], _>(span.bounds()).peekable();
        for (key, found) in stored {
            while let Some((_, position)) = drafted.next_if(|(other, _)| ***other < *key) {
                facts.extend(self.drafted_fact(*position));
            }
            match drafted.next_if(|(other, _)| ***other == *key) {
                Some((_, position)) => facts.extend(self.drafted_fact(*position)),
                None => facts.push(Fact::stored(key, found)),
            }
        }
        facts.extend(drafted.filter_map(|(_, position)| self.drafted_fact(*position)));
        facts
    }

    fn drafted_fact(&self, position: usize) -> Option<Fact<'_>> {
        match &self.writes[position] {
            Write::Delete { .. } => None,
            Write::Put { key, value, lease, create_revision, version } => Some(Fact {
                key,
                create_revision: *create_revision,
                mod_revision: self.main(),
                version: *version,
                source: Source::Drafted { value, lease: *lease },
            }),
        }
    }

    fn seen_message(&mut self, key: &[u8]) -> Option<KeyValue> {
        let place = match self.seen(key)? {
            Seen::Stored { place, .. } => place,
            Seen::Drafted(Write::Put { key, value, lease, create_revision, version }, main) => {
                return Some(KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    lease: *lease,
                    create_revision: *create_revision as i64,
                    mod_revision: main as i64,
                    version: *version as i64,
                });
            }
            Seen::Drafted(Write::Delete { .. }, _) => unreachable!("a deleted key is not seen"),
        };
        Some(self.message(place))
    }

    /// A range as an op of a txn: at the draft's state, or at an older revision.
    pub fn range(&mut self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Error> {
        let revision = self.revision();
        let drafted = self.newest.as_ref().is_some_and(|newest| !newest.is_empty());
        let at = match request.revision {
            // The draft's own writes are not part of any older revision.
            asked if asked > 0 => Some(self.mvcc.view().read_revision(asked)? as u64),
            _ => (!drafted).then_some(self.mvcc.revision),
        };
        let plan = match at {
            Some(at) => plan_stored(self.mvcc, request, revision, at),
            None => {
                let span = Span::new(&request.key, &request.range_end);
                let facts = span.map_or_else(Vec::new, |span| self.facts(span));
                plan(self.mvcc, request, revision, facts.into_iter(), None)
            }
        };
        Ok(plan.finish_with(&mut self.reader))
    }

    /// P1 to P5, P8. The request has passed [`super::check::check_put`].
    pub fn put(&mut self, request: &pb::PutRequest) -> Result<pb::PutResponse, Error> {
        check_put(request, || self.seen(&request.key).is_some())?;
        let (create_revision, version) = match self.seen(&request.key) {
            None => (self.main(), 1),
            Some(Seen::Stored { create_revision, version, .. }) => (create_revision, version + 1),
            Some(Seen::Drafted(Write::Put { create_revision, version, .. }, _)) => {
                (*create_revision, version + 1)
            }
            Some(Seen::Drafted(Write::Delete { .. }, _)) => unreachable!("a deleted key is not seen"),
        };
        let mut prev_kv = None;
        if request.prev_kv || request.ignore_value || request.ignore_lease {
            prev_kv = self.seen_message(&request.key);
        }
        let (mut value, mut lease) = (request.value.clone(), request.lease);
        if let Some(prev) = &prev_kv {
            if request.ignore_value {
                value = prev.value.clone();
            }
            if request.ignore_lease {
                lease = prev.lease;
            }
        }
        let key = request.key.clone();
        self.write(Write::Put { key, value, lease, create_revision, version });
        let prev_kv = prev_kv.filter(|_| request.prev_kv);
        Ok(pb::PutResponse { header: Some(header(self.revision())), prev_kv })
    }

    /// P6 to P8.
    pub fn delete(&mut self, request: &pb::DeleteRangeRequest) -> pb::DeleteRangeResponse {
        let span = Span::new(&request.key, &request.range_end);
        let facts = span.map_or_else(Vec::new, |span| self.facts(span));
        let keys: Vec<Bytes> = facts.iter().map(|fact| Bytes::copy_from_slice(fact.key)).collect();
        let mut response = pb::DeleteRangeResponse { deleted: keys.len() as i64, ..Default::default() };
        if request.prev_kv {
            response.prev_kvs = keys.iter().filter_map(|key| self.seen_message(key)).collect();
            assert_eq!(response.prev_kvs.len(), keys.len(), "what is deleted was there");
        }
        for key in keys {
            self.write(Write::Delete { key });
        }
        response.header = Some(header(self.revision()));
        response
    }
}

/// Leases are not served yet: none exists. The one place that will ask the lessor.
fn lease_exists(_lease: i64) -> bool {
    false
}

/// The checks of a put that look at the state: an unknown lease before a missing key (P3).
pub(super) fn check_put(request: &pb::PutRequest, key_exists: impl FnOnce() -> bool) -> Result<(), Error> {
    if request.lease != 0 && !lease_exists(request.lease) {
        return Err(Error::LeaseNotFound);
    }
    if (request.ignore_value || request.ignore_lease) && !key_exists() {
        return Err(Error::KeyNotFound);
    }
    Ok(())
}
