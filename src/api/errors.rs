//! The one table of every status error that leaves the server, and the
//! mapping from the errors of the lower floors to it.
//!
//! Clients match on the text, so a text that is not in this table does not
//! leave this room (but for `Unimplemented` of what is not served yet).
//! Source: `tests/facts/errors.tsv`, compared row by row in the test below.
//! **Never** decides anything: it only names what was decided below.

use crate::{
    machine::{Refusal, check::CheckError},
    mvcc,
    replica::{ProposeError, ReadIndexError},
    store::ReadError,
};
use tonic::{Code, Status};

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// etcd's identifier; `-` = it has none.
    pub id: &'static str,
    /// The code that the identifier is declared with.
    pub declared: Code,
    /// The code on the wire, which differs where etcd hands out its client-side value.
    pub wire: Code,
    /// The message; upper-case letters standing alone are filled in (see the functions below).
    pub text: &'static str,
}

macro_rules! errors {
    (@wire $declared:ident) => { Code::$declared };
    (@wire $declared:ident $wire:ident) => { Code::$wire };
    ($($name:ident = $id:literal, $declared:ident $(as $wire:ident)?, $text:literal;)*) => {
        /// Every status error, in the order of the facts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Error {
            $($name,)*
        }

        /// Indexed by [`Error`].
        pub const TABLE: &[Row] = &[
            $(Row {
                id: $id,
                declared: Code::$declared,
                wire: errors!(@wire $declared $($wire)?),
                text: $text,
            },)*
        ];
    };
}

errors! {
    EmptyKey = "ErrGRPCEmptyKey", InvalidArgument, "etcdserver: key is not provided";
    KeyNotFound = "ErrGRPCKeyNotFound", InvalidArgument, "etcdserver: key not found";
    ValueProvided = "ErrGRPCValueProvided", InvalidArgument, "etcdserver: value is provided";
    LeaseProvided = "ErrGRPCLeaseProvided", InvalidArgument, "etcdserver: lease is provided";
    TooManyOps = "ErrGRPCTooManyOps", InvalidArgument, "etcdserver: too many operations in txn request";
    DuplicateKey = "ErrGRPCDuplicateKey", InvalidArgument, "etcdserver: duplicate key given in txn request";
    InvalidClientAPIVersion = "ErrGRPCInvalidClientAPIVersion", InvalidArgument,
        "etcdserver: invalid client api version";
    InvalidSortOption = "ErrGRPCInvalidSortOption", InvalidArgument, "etcdserver: invalid sort option";
    Compacted = "ErrGRPCCompacted", OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    FutureRev = "ErrGRPCFutureRev", OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    NoSpace = "ErrGRPCNoSpace", ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    LeaseNotFound = "ErrGRPCLeaseNotFound", NotFound, "etcdserver: requested lease not found";
    LeaseExist = "ErrGRPCLeaseExist", FailedPrecondition, "etcdserver: lease already exists";
    LeaseTTLTooLarge = "ErrGRPCLeaseTTLTooLarge", OutOfRange, "etcdserver: too large lease TTL";
    WatchCanceled = "ErrGRPCWatchCanceled", Cancelled, "etcdserver: watch canceled";
    MemberExist = "ErrGRPCMemberExist", FailedPrecondition, "etcdserver: member ID already exist";
    PeerURLExist = "ErrGRPCPeerURLExist", FailedPrecondition, "etcdserver: Peer URLs already exists";
    MemberNotEnoughStarted = "ErrGRPCMemberNotEnoughStarted", FailedPrecondition as Unknown,
        "etcdserver: re-configuration failed due to not enough started members";
    MemberBadURLs = "ErrGRPCMemberBadURLs", InvalidArgument, "etcdserver: given member URLs are invalid";
    MemberNotFound = "ErrGRPCMemberNotFound", NotFound, "etcdserver: member not found";
    MemberNotLearner = "ErrGRPCMemberNotLearner", FailedPrecondition,
        "etcdserver: can only promote a learner member";
    LearnerNotReady = "ErrGRPCLearnerNotReady", FailedPrecondition,
        "etcdserver: can only promote a learner member which is in sync with leader";
    TooManyLearners = "ErrGRPCTooManyLearners", FailedPrecondition,
        "etcdserver: too many learner members in cluster";
    ClusterIDMismatch = "ErrGRPCClusterIDMismatch", FailedPrecondition, "etcdserver: cluster ID mismatch";
    RequestTooLarge = "ErrGRPCRequestTooLarge", InvalidArgument, "etcdserver: request is too large";
    RequestTooManyRequests = "ErrGRPCRequestTooManyRequests", ResourceExhausted as Unknown,
        "etcdserver: too many requests";
    RootUserNotExist = "ErrGRPCRootUserNotExist", FailedPrecondition, "etcdserver: root user does not exist";
    RootRoleNotExist = "ErrGRPCRootRoleNotExist", FailedPrecondition,
        "etcdserver: root user does not have root role";
    UserAlreadyExist = "ErrGRPCUserAlreadyExist", FailedPrecondition, "etcdserver: user name already exists";
    UserEmpty = "ErrGRPCUserEmpty", InvalidArgument, "etcdserver: user name is empty";
    UserNotFound = "ErrGRPCUserNotFound", FailedPrecondition, "etcdserver: user name not found";
    RoleAlreadyExist = "ErrGRPCRoleAlreadyExist", FailedPrecondition, "etcdserver: role name already exists";
    RoleNotFound = "ErrGRPCRoleNotFound", FailedPrecondition, "etcdserver: role name not found";
    RoleEmpty = "ErrGRPCRoleEmpty", InvalidArgument, "etcdserver: role name is empty";
    AuthFailed = "ErrGRPCAuthFailed", InvalidArgument,
        "etcdserver: authentication failed, invalid user ID or password";
    PermissionNotGiven = "ErrGRPCPermissionNotGiven", InvalidArgument, "etcdserver: permission not given";
    PermissionDenied = "ErrGRPCPermissionDenied", PermissionDenied, "etcdserver: permission denied";
    RoleNotGranted = "ErrGRPCRoleNotGranted", FailedPrecondition,
        "etcdserver: role is not granted to the user";
    PermissionNotGranted = "ErrGRPCPermissionNotGranted", FailedPrecondition,
        "etcdserver: permission is not granted to the role";
    AuthNotEnabled = "ErrGRPCAuthNotEnabled", FailedPrecondition, "etcdserver: authentication is not enabled";
    InvalidAuthToken = "ErrGRPCInvalidAuthToken", Unauthenticated, "etcdserver: invalid auth token";
    InvalidAuthMgmt = "ErrGRPCInvalidAuthMgmt", InvalidArgument, "etcdserver: invalid auth management";
    AuthOldRevision = "ErrGRPCAuthOldRevision", InvalidArgument, "etcdserver: revision of auth store is old";
    NoLeader = "ErrGRPCNoLeader", Unavailable, "etcdserver: no leader";
    NotLeader = "ErrGRPCNotLeader", FailedPrecondition, "etcdserver: not leader";
    LeaderChanged = "ErrGRPCLeaderChanged", Unavailable, "etcdserver: leader changed";
    NotCapable = "ErrGRPCNotCapable", FailedPrecondition, "etcdserver: not capable";
    Stopped = "ErrGRPCStopped", Unavailable, "etcdserver: server stopped";
    Timeout = "ErrGRPCTimeout", Unavailable, "etcdserver: request timed out";
    TimeoutDueToLeaderFail = "ErrGRPCTimeoutDueToLeaderFail", Unavailable,
        "etcdserver: request timed out, possibly due to previous leader failure";
    TimeoutDueToConnectionLost = "ErrGRPCTimeoutDueToConnectionLost", Unavailable,
        "etcdserver: request timed out, possibly due to connection lost";
    TimeoutWaitAppliedIndex = "ErrGRPCTimeoutWaitAppliedIndex", Unavailable,
        "etcdserver: request timed out, waiting for the applied index took too long";
    Unhealthy = "ErrGRPCUnhealthy", Unavailable, "etcdserver: unhealthy cluster";
    Corrupt = "ErrGRPCCorrupt", DataLoss, "etcdserver: corrupt cluster";
    NotSupportedForLearner = "ErrGRPCNotSupportedForLearner", FailedPrecondition,
        "etcdserver: rpc not supported for learner";
    BadLeaderTransferee = "ErrGRPCBadLeaderTransferee", FailedPrecondition,
        "etcdserver: bad leader transferee";
    WrongDowngradeVersionFormat = "ErrGRPCWrongDowngradeVersionFormat", InvalidArgument,
        "etcdserver: wrong downgrade target version format";
    InvalidDowngradeTargetVersion = "ErrGRPCInvalidDowngradeTargetVersion", InvalidArgument,
        "etcdserver: invalid downgrade target version";
    ClusterVersionUnavailable = "ErrGRPCClusterVersionUnavailable", FailedPrecondition,
        "etcdserver: cluster version not found during downgrade";
    DowngradeInProcess = "ErrGRPCDowngradeInProcess", FailedPrecondition,
        "etcdserver: cluster has a downgrade job in progress";
    NoInflightDowngrade = "ErrGRPCNoInflightDowngrade", FailedPrecondition,
        "etcdserver: no inflight downgrade job";
    Canceled = "ErrGRPCCanceled", Cancelled, "etcdserver: request canceled";
    DeadlineExceeded = "ErrGRPCDeadlineExceeded", DeadlineExceeded, "etcdserver: context deadline exceeded";
    ContextCanceled = "-", Cancelled, "context canceled";
    ContextDeadlineExceeded = "-", DeadlineExceeded, "context deadline exceeded";
    StreamSortOrder = "-", Unimplemented, "RangeStream does not support custom sort orders";
    StreamFilters = "-", Unimplemented, "RangeStream does not support revision filters";
    NoPasswordUser = "-", Unknown, "auth: authentication failed, password was given for no password user";
    VerifyOnly = "-", Unknown, "auth: token signing attempted with verify-only key";
    UnknownMethod = "-", Unknown, "etcdserver: unknown method";
    TimeoutLeaderTransfer = "-", Unknown, "etcdserver: request timed out, leader transfer took too long";
    NotPrimaryLessor = "-", Unknown, "not a primary lessor";
    LeaderMissing = "-", Unknown, "\"leader\" field must be provided";
    ElectionNoLeader = "-", Unknown, "election: no leader";
    ElectionNotLeader = "-", Unknown, "election: not leader";
    SessionExpired = "-", Unknown, "mutex: session is expired";
    Inner = "-", Unknown, "etcdserver: T, any text T above";
    MessageTooLarge = "-", ResourceExhausted, "grpc: received message larger than max (N vs. M)";
    UnknownPath = "-", Unimplemented, "unknown service X / unknown method M for service X";
    Unmarshal = "-", Internal, "grpc: error unmarshalling request: D";
}

impl Error {
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    pub fn status(self) -> Status {
        let row = self.row();
        Status::new(row.wire, row.text)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        error.status()
    }
}

/// gRPC message above the limit, both in bytes.
pub fn message_too_large(length: u64, limit: u64) -> Status {
    Status::new(
        Error::MessageTooLarge.row().wire,
        format!("grpc: received message larger than max ({length} vs. {limit})"),
    )
}

/// Request bytes that do not parse.
pub fn unmarshal(detail: &str) -> Status {
    Status::new(Error::Unmarshal.row().wire, format!("grpc: error unmarshalling request: {detail}"))
}

/// A gRPC path (`/package.Service/Method`) that is not registered.
pub fn unknown_path(path: &str, is_known_service: impl Fn(&str) -> bool) -> Status {
    let split = path.strip_prefix('/').unwrap_or(path).rsplit_once('/');
    let text = match split {
        Some((service, method)) if is_known_service(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
        None => format!("malformed method name: {path:?}"),
    };
    Status::new(Error::UnknownPath.row().wire, text)
}

/// A call that this release knows and does not serve yet.
pub fn not_served(what: &str) -> Status {
    Status::unimplemented(format!("quorate: {what} is not served by this release yet"))
}

impl From<CheckError> for Error {
    fn from(error: CheckError) -> Error {
        match error {
            CheckError::EmptyKey => Error::EmptyKey,
            CheckError::KeyNotFound => Error::KeyNotFound,
            CheckError::ValueProvided => Error::ValueProvided,
            CheckError::LeaseProvided => Error::LeaseProvided,
            CheckError::InvalidSortOption => Error::InvalidSortOption,
            CheckError::TooManyOperations => Error::TooManyOps,
            CheckError::DuplicateKey => Error::DuplicateKey,
        }
    }
}

impl From<mvcc::Error> for Error {
    fn from(error: mvcc::Error) -> Error {
        match error {
            mvcc::Error::Compacted => Error::Compacted,
            mvcc::Error::FutureRevision => Error::FutureRev,
            mvcc::Error::KeyNotFound => Error::KeyNotFound,
            mvcc::Error::LeaseNotFound => Error::LeaseNotFound,
        }
    }
}

impl From<ReadIndexError> for Error {
    fn from(error: ReadIndexError) -> Error {
        match error {
            ReadIndexError::LeaderChanged => Error::LeaderChanged,
            ReadIndexError::Timeout => Error::Timeout,
            ReadIndexError::Stopped => Error::Stopped,
        }
    }
}

/// What a failed proposal shows on the wire.
pub fn proposal(error: ProposeError) -> Status {
    match error {
        ProposeError::Refused(refusal) => refused(refusal),
        ProposeError::TooLarge => Error::RequestTooLarge.status(),
        ProposeError::TooManyRequests => Error::RequestTooManyRequests.status(),
        // A full disk and a full quota need the same of an operator, whose tools know this text. No
        // alarm is raised: it would outlast the lack of space, which ends without anyone's doing.
        ProposeError::NoSpace => Error::NoSpace.status(),
        ProposeError::Timeout => Error::Timeout.status(),
        ProposeError::TimeoutLeaderLost => Error::TimeoutDueToLeaderFail.status(),
        ProposeError::NoLeader => Error::ContextDeadlineExceeded.status(),
        ProposeError::Stopped => Error::Stopped.status(),
    }
}

/// What a refusal at apply shows on the wire.
pub fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Mvcc(error) => Error::from(error).status(),
        Refusal::NoSpace => Error::NoSpace.status(),
        Refusal::Corrupt => Error::Corrupt.status(),
        Refusal::NotServed => not_served("this request"),
        // Conf changes are not proposed by clients yet; the text then names a row of the table.
        Refusal::Member(reason) => Status::failed_precondition(reason),
    }
}

/// From a member that found rot in its store (I6): another one has the data.
pub fn out_of_service(reason: &str) -> Status {
    Status::unavailable(format!("quorate: this member is out of service: {reason}"))
}

/// What a failed read shows on the wire.
pub fn read(error: ReadError) -> Status {
    match error {
        ReadError::Mvcc(error) => Error::from(error).status(),
        // The member is about to leave (I6); another one has the data.
        ReadError::Disk(reason) => Status::unavailable(format!("quorate: store: {reason}")),
        ReadError::Decode(reason) => Status::unavailable(format!("quorate: store: {reason}")),
        ReadError::Replaced => Status::unavailable(format!("quorate: {}", ReadError::Replaced)),
        ReadError::Busy => Error::RequestTooManyRequests.status(),
    }
}

/// A code's name as metrics and logs print it, by its number.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The status rows of the facts: everything before the watch cancel reasons, which are no
    /// status errors (they travel inside `WatchResponse`).
    fn facts() -> Vec<Row> {
        let text = include_str!("../../tests/facts/errors.tsv");
        text.lines()
            .take_while(|line| !line.starts_with("# WATCH CANCEL REASONS"))
            .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("id\t"))
            .map(|line| {
                let cells: Vec<&str> = line.split('\t').collect();
                let number: i32 = cells[3].parse().unwrap();
                assert_eq!(CODE_NAMES[usize::try_from(number).unwrap()], cells[2], "{line}");
                let declared = Code::from(number);
                let wire =
                    if cells[5].contains("Wire code is Unknown (2)") { Code::Unknown } else { declared };
                Row { id: cells[0], declared, wire, text: cells[4] }
            })
            .collect()
    }

    #[test]
    fn table_equals_the_facts_row_by_row() {
        let facts = facts();
        assert!(facts.len() >= 75, "the facts were read");
        for (row, fact) in TABLE.iter().zip(&facts) {
            assert_eq!(row, fact);
        }
        assert_eq!(TABLE.len(), facts.len());
    }

    #[test]
    fn lower_floors_map_to_exact_texts() {
        let check = |status: Status, code: Code, text: &str| {
            assert_eq!((status.code(), status.message()), (code, text));
        };
        check(
            Error::from(CheckError::DuplicateKey).status(),
            Code::InvalidArgument,
            "etcdserver: duplicate key given in txn request",
        );
        check(proposal(ProposeError::TooManyRequests), Code::Unknown, "etcdserver: too many requests");
        check(proposal(ProposeError::NoLeader), Code::DeadlineExceeded, "context deadline exceeded");
        check(
            proposal(Refusal::from(mvcc::Error::LeaseNotFound).into()),
            Code::NotFound,
            "etcdserver: requested lease not found",
        );
        check(
            proposal(Refusal::NoSpace.into()),
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
        );
        check(
            read(mvcc::Error::Compacted.into()),
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        );
        check(
            Error::from(ReadIndexError::LeaderChanged).status(),
            Code::Unavailable,
            "etcdserver: leader changed",
        );
        check(
            message_too_large(3, 2),
            Code::ResourceExhausted,
            "grpc: received message larger than max (3 vs. 2)",
        );
    }

    #[test]
    fn unknown_paths_are_told_apart() {
        let check = |path: &str, text: &str| {
            let status = unknown_path(path, |service| service == "etcdserverpb.KV");
            assert_eq!((status.code(), status.message()), (Code::Unimplemented, text));
        };
        check("/foo.Bar/Baz", "unknown service foo.Bar");
        check("/etcdserverpb.KV/Baz", "unknown method Baz for service etcdserverpb.KV");
        check("/Baz", "malformed method name: \"/Baz\"");
    }
}
