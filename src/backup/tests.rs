//! A view leaves as etcd's snapshot and comes back the same.
