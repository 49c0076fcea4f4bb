//! The Lock service; served by a later release.

use super::service::service;
use quorate_proto::v3lockpb as pb;

service! {
    impl pb::lock_server::Lock as "Lock" {}
    unserved {
        lock: pb::LockRequest => pb::LockResponse, "Lock";
        unlock: pb::UnlockRequest => pb::UnlockResponse, "Unlock";
    }
}
