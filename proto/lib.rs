//! Messages and services, generated from `proto/*.proto`.
//!
//! The etcd packages keep etcd's names and numbers; `quorate.v1` is ours.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

macro_rules! package {
    ($name:ident, $package:literal) => {
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

package!(etcdserverpb, "etcdserverpb");
package!(mvccpb, "mvccpb");
package!(authpb, "authpb");
package!(membershippb, "membershippb");
package!(v3lockpb, "v3lockpb");
package!(v3electionpb, "v3electionpb");
package!(leasepb, "leasepb");
package!(raftpb, "raftpb");
package!(walpb, "walpb");
package!(snappb, "snappb");

pub mod grpc {
    pub mod health {
        pub mod v1 {
            tonic::include_proto!("grpc.health.v1");
        }
    }
}

pub mod quorate {
    pub mod v1 {
        tonic::include_proto!("quorate.v1");
    }
}

/// The encoded `FileDescriptorSet` of all packages above.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
