//! Stub until the owner's version replaces it at merge: exact signatures only.
use quorate_proto::etcdserverpb as pb;

/// Why a request is refused before it reaches the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckError {
    EmptyKey,
    KeyNotFound,
    ValueProvided,
    LeaseProvided,
    InvalidSortOption,
    TooManyOps,
    DuplicateKey,
}

pub fn range(request: &pb::RangeRequest, max_txn_ops: usize) -> Result<(), CheckError> {
    let _ = max_txn_ops;
    if request.key.is_empty() {
        return Err(CheckError::EmptyKey);
    }
    if !(0..=2).contains(&request.sort_order) || !(0..=4).contains(&request.sort_target) {
        return Err(CheckError::InvalidSortOption);
    }
    Ok(())
}

pub fn put(request: &pb::PutRequest, max_txn_ops: usize) -> Result<(), CheckError> {
    let _ = max_txn_ops;
    if request.key.is_empty() { Err(CheckError::EmptyKey) } else { Ok(()) }
}

pub fn delete_range(request: &pb::DeleteRangeRequest, max_txn_ops: usize) -> Result<(), CheckError> {
    let _ = max_txn_ops;
    if request.key.is_empty() { Err(CheckError::EmptyKey) } else { Ok(()) }
}

pub fn txn(request: &pb::TxnRequest, max_txn_ops: usize) -> Result<(), CheckError> {
    if request.success.len() > max_txn_ops { Err(CheckError::TooManyOps) } else { Ok(()) }
}

pub fn compact(request: &pb::CompactionRequest, max_txn_ops: usize) -> Result<(), CheckError> {
    let _ = (request, max_txn_ops);
    Ok(())
}
