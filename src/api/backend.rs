//! What the API asks of a member: the few calls of [`Replica`] and its store
//! that services use, as a trait so that tests can stand in for a member.
//! Dispatch is static.

use crate::{
    machine::Reply,
    members::Members,
    replica::{ProposeError, ReadIndexError, Replica, Status},
    store::{Figures, ReadError},
};
use quorate_proto::etcdserverpb::{
    HashKvResponse, InternalRaftRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use std::{future::Future, sync::Arc, time::Duration};

/// A member as the API sees it; cheap to clone. See [`Replica`] and
/// [`crate::store::Store`] for the meaning of each call.
pub trait Backend: Clone + Send + Sync + 'static {
    fn propose(
        &self,
        request: InternalRaftRequest,
    ) -> impl Future<Output = Result<(Reply, i64), ProposeError>> + Send;
    fn read_index(&self) -> impl Future<Output = Result<(), ReadIndexError>> + Send;
    fn transfer_leadership(
        &self,
        target: u64,
        within: Duration,
    ) -> impl Future<Output = Result<(), ProposeError>> + Send;
    fn status(&self) -> Status;
    fn range(&self, request: &RangeRequest) -> impl Future<Output = Result<RangeResponse, ReadError>> + Send;
    /// As [`Backend::range`] in key order, without a count: a part that follows the first.
    fn range_part(
        &self,
        request: &RangeRequest,
    ) -> impl Future<Output = Result<RangeResponse, ReadError>> + Send;
    fn txn(&self, request: &TxnRequest) -> impl Future<Output = Result<TxnResponse, ReadError>> + Send;
    fn hash_kv(&self, revision: i64) -> impl Future<Output = Result<HashKvResponse, ReadError>> + Send;
    fn wait_compacted(&self, revision: i64) -> impl Future<Output = ()> + Send;
    fn members(&self) -> Members;
    fn cluster_version(&self) -> String;
    /// (member id, alarm type number).
    fn alarms(&self) -> Vec<(u64, i32)>;
    /// Current revision and compacted mark (-1 = never).
    fn revisions(&self) -> (i64, i64);
    /// Bytes on disk without preallocation; live bytes.
    fn sizes(&self) -> (u64, u64);
    /// The first of [`Backend::sizes`], for a look at every write.
    fn db_bytes(&self) -> u64;
    /// Cleans to the stated share and completes when that is done. The cleaning goes on when the
    /// future is dropped.
    fn defragment(&self) -> impl Future<Output = ()> + Send;
    /// Whether log and store have space for more than deletes and cleaning.
    fn has_reserve(&self) -> bool;
    /// Why this member serves nobody any more.
    fn out_of_service(&self) -> Option<Arc<str>>;
    /// Completes when [`Backend::out_of_service`] has a reason.
    fn taken_out(&self) -> impl Future<Output = ()> + Send + 'static;
    /// What only Quorate measures.
    fn figures(&self) -> Figures;
    fn keys(&self) -> u64;
}

impl Backend for Replica {
    fn propose(
        &self,
        request: InternalRaftRequest,
    ) -> impl Future<Output = Result<(Reply, i64), ProposeError>> + Send {
        Replica::propose(self, request)
    }

    fn read_index(&self) -> impl Future<Output = Result<(), ReadIndexError>> + Send {
        Replica::read_index(self)
    }

    fn transfer_leadership(
        &self,
        target: u64,
        within: Duration,
    ) -> impl Future<Output = Result<(), ProposeError>> + Send {
        Replica::transfer_leadership(self, target, within)
    }

    fn status(&self) -> Status {
        Replica::status(self)
    }

    fn range(&self, request: &RangeRequest) -> impl Future<Output = Result<RangeResponse, ReadError>> + Send {
        self.store().range(request)
    }

    fn range_part(
        &self,
        request: &RangeRequest,
    ) -> impl Future<Output = Result<RangeResponse, ReadError>> + Send {
        self.store().part(request)
    }

    fn txn(&self, request: &TxnRequest) -> impl Future<Output = Result<TxnResponse, ReadError>> + Send {
        self.store().txn(request)
    }

    fn hash_kv(&self, revision: i64) -> impl Future<Output = Result<HashKvResponse, ReadError>> + Send {
        self.store().hash_kv(revision)
    }

    fn wait_compacted(&self, revision: i64) -> impl Future<Output = ()> + Send {
        self.store().wait_compacted(revision)
    }

    fn members(&self) -> Members {
        self.store().members()
    }

    fn cluster_version(&self) -> String {
        self.store().cluster_version()
    }

    fn alarms(&self) -> Vec<(u64, i32)> {
        self.store().alarms()
    }

    fn revisions(&self) -> (i64, i64) {
        self.store().revisions()
    }

    fn sizes(&self) -> (u64, u64) {
        self.store().sizes()
    }

    fn keys(&self) -> u64 {
        self.store().keys()
    }

    fn db_bytes(&self) -> u64 {
        self.store().db_bytes()
    }

    fn defragment(&self) -> impl Future<Output = ()> + Send {
        self.store().defragment()
    }

    fn has_reserve(&self) -> bool {
        Replica::has_reserve(self)
    }

    fn out_of_service(&self) -> Option<Arc<str>> {
        Replica::out_of_service(self)
    }

    fn taken_out(&self) -> impl Future<Output = ()> + Send + 'static {
        Replica::taken_out(self)
    }

    fn figures(&self) -> Figures {
        self.store().figures()
    }
}
