//! What to do about a failed call: the rules, as one function.
//!
//! Two kinds of failure (handbook, 11.1): trouble on the way, and a server's
//! answer. Trouble is tried elsewhere, unless a change may have reached a
//! server. An answer is final, except that a read may ask another member when
//! this one says that it cannot serve now.

use crate::env::net::trouble;
use tonic::{Code, Status};

/// What a call does to the cluster's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// None: doing it twice is as good as once.
    Read,
    /// Doing it twice may differ from doing it once.
    Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Retry,
    Final { maybe_applied: bool },
}

pub(super) fn judge(status: &Status, effect: Effect) -> Verdict {
    let maybe = |maybe| Verdict::Final { maybe_applied: maybe && effect == Effect::Change };
    match trouble(status) {
        // An endpoint that is none does not become one.
        Some(trouble) if !trouble.sent && status.code() == Code::InvalidArgument => maybe(false),
        Some(trouble) if !trouble.sent => Verdict::Retry,
        Some(_) if effect == Effect::Read => Verdict::Retry,
        Some(_) => maybe(true),
        None if effect == Effect::Read && is_passing(status.code()) => Verdict::Retry,
        None => maybe(!is_refusal(status)),
    }
}

/// The member cannot serve now, or was too slow for this attempt.
fn is_passing(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded)
}

/// The server has looked at the request and will not do it. Everything else
/// (timeouts, loss of leadership, a stopping server, failures) may come after
/// the request entered the log.
fn is_refusal(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented => true,
        // On the wire these two have this code (tests/facts/errors.tsv).
        Code::Unknown => matches!(
            status.message(),
            "etcdserver: too many requests"
                | "etcdserver: re-configuration failed due to not enough started members"
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::net::Trouble;
    use std::sync::Arc;

    #[test]
    fn the_rules() {
        const RETRY: Verdict = Verdict::Retry;
        const MAYBE: Verdict = Verdict::Final { maybe_applied: true };
        const NOT: Verdict = Verdict::Final { maybe_applied: false };
        let check = |code, message: &str, trouble: Option<bool>, read, change| {
            let mut status = Status::new(code, message);
            if let Some(sent) = trouble {
                status.set_source(Arc::new(Trouble { sent }));
            }
            assert_eq!(judge(&status, Effect::Read), read, "read: {status}");
            assert_eq!(judge(&status, Effect::Change), change, "change: {status}");
        };
        // Trouble.
        check(Code::Unavailable, "connection refused", Some(false), RETRY, RETRY);
        check(Code::Unavailable, "connection reset", Some(true), RETRY, MAYBE);
        check(Code::Cancelled, "stream reset", Some(true), RETRY, MAYBE);
        check(Code::ResourceExhausted, "calm down", Some(true), RETRY, MAYBE);
        check(Code::DeadlineExceeded, "context deadline exceeded", Some(false), RETRY, RETRY);
        check(Code::DeadlineExceeded, "context deadline exceeded", Some(true), RETRY, MAYBE);
        check(Code::InvalidArgument, "not a host and port", Some(false), NOT, NOT);
        // Answers.
        check(Code::Unavailable, "etcdserver: no leader", None, RETRY, MAYBE);
        check(Code::Unavailable, "etcdserver: request timed out", None, RETRY, MAYBE);
        check(Code::DeadlineExceeded, "context deadline exceeded", None, RETRY, MAYBE);
        check(Code::InvalidArgument, "etcdserver: key is not provided", None, NOT, NOT);
        check(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", None, NOT, NOT);
        check(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", None, NOT, NOT);
        check(Code::Unknown, "etcdserver: too many requests", None, NOT, NOT);
        check(Code::Unknown, "anything else", None, NOT, MAYBE);
        check(Code::Internal, "broken", None, NOT, MAYBE);
    }
}
