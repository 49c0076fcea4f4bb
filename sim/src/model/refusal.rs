//! The answers that are errors because of what was asked or of what the store
//! holds, with their codes and texts.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    EmptyKey,
    KeyNotFound,
    ValueProvided,
    LeaseProvided,
    TooManyOps,
    DuplicateKey,
    InvalidSortOption,
    Compacted,
    FutureRevision,
    LeaseNotFound,
    /// X1, X2: the store is full as far as a member can tell, or an alarm says so.
    NoSpace,
    /// X3.
    Corrupt,
}

/// gRPC code and text of each.
const TABLE: [(Refusal, i32, &str); 12] = [
    (Refusal::EmptyKey, 3, "etcdserver: key is not provided"),
    (Refusal::KeyNotFound, 3, "etcdserver: key not found"),
    (Refusal::ValueProvided, 3, "etcdserver: value is provided"),
    (Refusal::LeaseProvided, 3, "etcdserver: lease is provided"),
    (Refusal::TooManyOps, 3, "etcdserver: too many operations in txn request"),
    (Refusal::DuplicateKey, 3, "etcdserver: duplicate key given in txn request"),
    (Refusal::InvalidSortOption, 3, "etcdserver: invalid sort option"),
    (Refusal::Compacted, 11, "etcdserver: mvcc: required revision has been compacted"),
    (Refusal::FutureRevision, 11, "etcdserver: mvcc: required revision is a future revision"),
    (Refusal::LeaseNotFound, 5, "etcdserver: requested lease not found"),
    (Refusal::NoSpace, 8, "etcdserver: mvcc: database space exceeded"),
    (Refusal::Corrupt, 15, "etcdserver: corrupt cluster"),
];

impl Refusal {
    pub fn status(self) -> (i32, &'static str) {
        let row = TABLE.iter().find(|row| row.0 == self).expect("every refusal has a row");
        (row.1, row.2)
    }

    /// `None`: not a refusal on content or state (a transport's error, a timeout, ...).
    pub fn from_status(code: i32, message: &str) -> Option<Refusal> {
        TABLE.iter().find(|row| row.1 == code && row.2 == message).map(|row| row.0)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, message) = self.status();
        write!(out, "error {code}: {message}")
    }
}
