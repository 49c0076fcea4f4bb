//! The route table: HTTP paths (below `/v3/`) and the gRPC methods they stand
//! for. Compared with `tests/facts/services.tsv` below.

use crate::api::grpc::Methods;
use std::{collections::HashMap, sync::OnceLock};

/// (path, gRPC method).
const ROUTES: &[(&str, &str)] = &[
    ("kv/range", "/etcdserverpb.KV/Range"),
    ("kv/put", "/etcdserverpb.KV/Put"),
    ("kv/deleterange", "/etcdserverpb.KV/DeleteRange"),
    ("kv/txn", "/etcdserverpb.KV/Txn"),
    ("kv/compaction", "/etcdserverpb.KV/Compact"),
    ("watch", "/etcdserverpb.Watch/Watch"),
    ("lease/grant", "/etcdserverpb.Lease/LeaseGrant"),
    ("lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("lease/keepalive", "/etcdserverpb.Lease/LeaseKeepAlive"),
    ("lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("kv/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("cluster/member/add", "/etcdserverpb.Cluster/MemberAdd"),
    ("cluster/member/remove", "/etcdserverpb.Cluster/MemberRemove"),
    ("cluster/member/update", "/etcdserverpb.Cluster/MemberUpdate"),
    ("cluster/member/list", "/etcdserverpb.Cluster/MemberList"),
    ("cluster/member/promote", "/etcdserverpb.Cluster/MemberPromote"),
    ("maintenance/alarm", "/etcdserverpb.Maintenance/Alarm"),
    ("maintenance/status", "/etcdserverpb.Maintenance/Status"),
    ("maintenance/defragment", "/etcdserverpb.Maintenance/Defragment"),
    ("maintenance/hash", "/etcdserverpb.Maintenance/Hash"),
    ("maintenance/hashkv", "/etcdserverpb.Maintenance/HashKV"),
    ("maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot"),
    ("maintenance/transfer-leadership", "/etcdserverpb.Maintenance/MoveLeader"),
    ("maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade"),
    ("auth/enable", "/etcdserverpb.Auth/AuthEnable"),
    ("auth/disable", "/etcdserverpb.Auth/AuthDisable"),
    ("auth/status", "/etcdserverpb.Auth/AuthStatus"),
    ("auth/authenticate", "/etcdserverpb.Auth/Authenticate"),
    ("auth/user/add", "/etcdserverpb.Auth/UserAdd"),
    ("auth/user/get", "/etcdserverpb.Auth/UserGet"),
    ("auth/user/list", "/etcdserverpb.Auth/UserList"),
    ("auth/user/delete", "/etcdserverpb.Auth/UserDelete"),
    ("auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword"),
    ("auth/user/grant", "/etcdserverpb.Auth/UserGrantRole"),
    ("auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole"),
    ("auth/role/add", "/etcdserverpb.Auth/RoleAdd"),
    ("auth/role/get", "/etcdserverpb.Auth/RoleGet"),
    ("auth/role/list", "/etcdserverpb.Auth/RoleList"),
    ("auth/role/delete", "/etcdserverpb.Auth/RoleDelete"),
    ("auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission"),
    ("auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission"),
    ("lock/lock", "/v3lockpb.Lock/Lock"),
    ("lock/unlock", "/v3lockpb.Lock/Unlock"),
    ("election/campaign", "/v3electionpb.Election/Campaign"),
    ("election/proclaim", "/v3electionpb.Election/Proclaim"),
    ("election/leader", "/v3electionpb.Election/Leader"),
    ("election/observe", "/v3electionpb.Election/Observe"),
    ("election/resign", "/v3electionpb.Election/Resign"),
];

/// The number of the method (in [`Methods`]) that a path below `/v3/` stands for.
pub(super) fn find(path: &str) -> Option<usize> {
    static NUMBERS: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let numbers = NUMBERS.get_or_init(|| {
        let number = |method| Methods::get().find(method).expect("every route leads to a method that exists");
        ROUTES.iter().map(|(path, method)| (*path, number(method))).collect()
    });
    numbers.get(path).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn routes_equal_the_facts() {
        let facts: BTreeSet<(String, String)> = include_str!("../../../tests/facts/services.tsv")
            .lines()
            .map(|line| line.split('\t').collect::<Vec<_>>())
            .filter(|cells| cells.len() >= 8 && cells[6] == "POST")
            .map(|cells| (cells[7].to_owned(), format!("/{}.{}/{}", cells[0], cells[1], cells[2])))
            .collect();
        assert!(facts.len() > 50, "the facts were read");
        let ours = ROUTES.iter().map(|(path, method)| (format!("/v3/{path}"), (*method).to_owned()));
        assert_eq!(ours.collect::<BTreeSet<_>>(), facts);
        for (path, method) in ROUTES {
            let number = find(path).unwrap_or_else(|| panic!("{path} leads nowhere"));
            assert_eq!(Methods::get().list[number].path, *method);
        }
        assert_eq!(find("kv/range/"), None);
        assert_eq!(find(""), None);
    }
}
