//! Commands by their exit codes and what they leave; layouts are held to the
//! real etcdutl by `ci/moving`.

use super::run;
use crate::env::{Env, Rng, clock::StoppedClock, disk::Open};
use crate::pagefile::test_disk::TestDisk;
use crate::store::{Maker, Options};
use quorate_proto::quorate::v1::{BucketRecord, StoreMark};
use std::{path::Path, sync::Arc};

fn env() -> Env {
    Env { disk: Arc::new(TestDisk::default()), clock: Arc::new(StoppedClock), rng: Rng::from_seed([5; 32]) }
}

async fn check(env: &Env, line: &str, code: i32) {
    let args = ["quorateutl"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
    assert_eq!(run(args, env.clone()).await, code, "{line}");
}

/// A stopped member with a few records, a lease and an identity.
async fn member(env: &Env, dir: &str) {
    let path = Path::new(dir).join("member");
    let members = crate::members::Members::bootstrap(&[("default".into(), vec!["http://a:1".into()])], "t");
    let id = *members.members.keys().next().unwrap();
    let directory = crate::replica::StoppedMember::begin(env, &path, id, members.cluster_id).await.unwrap();
    let options = Options { page_size: 512, segment_size: 4096, ..Options::default() };
    let mut maker = Maker::create(env, path.join("store"), &options).await.unwrap();
    let lease = BucketRecord { bucket: "lease".into(), key: vec![7; 8].into(), value: vec![8, 7].into() };
    maker.buckets([lease]).await.unwrap();
    for main in 2..40_u64 {
        let key = format!("key{}", main % 7);
        let fields = crate::mvcc::Fields {
            key: key.as_bytes(),
            create_revision: if main < 9 {
                main as i64
            } else {
                (main % 7 + if main % 7 < 2 { 7 } else { 0 }) as i64
            },
            mod_revision: main as i64,
            version: (main as i64 - if main % 7 < 2 { 7 } else { 0 } - (main % 7) as i64) / 7 + 1,
            value: b"value",
            lease: 0,
        };
        let mut bytes = Vec::new();
        fields.encode(&mut bytes);
        maker.record((main, 0), false, &bytes).await.unwrap();
    }
    let mark = StoreMark {
        applied_index: 1,
        applied_term: 1,
        conf_state: Some(members.conf_state()),
        membership: Some(members.to_membership()),
        revision: 39,
        compacted: -1,
        ..StoreMark::default()
    };
    maker.finish(mark).await.unwrap();
    directory.complete(env, &members).await.unwrap();
}

#[tokio::test]
async fn a_member_goes_out_and_comes_back() {
    let env = env();
    member(&env, "one").await;
    check(&env, "check --data-dir one", 0).await;
    check(&env, "dump store --data-dir one --key key1 -w json", 0).await;
    check(&env, "hashkv --data-dir one --rev 30", 0).await;
    check(&env, "hashkv --data-dir one --rev 40", 1).await;
    check(&env, "export --data-dir one out", 0).await;
    check(&env, "snapshot status out", 0).await;
    check(&env, "snapshot status out -w protobuf", 4).await;
    check(&env, "snapshot status", 128).await;
    check(&env, "snapshot status none", 1).await;
    check(&env, "import out --data-dir two", 0).await;
    check(&env, "check --data-dir two", 0).await;
    // A member that was never started has no log.
    check(&env, "dump log --data-dir two", 1).await;
    check(&env, "import out --data-dir two", 1).await;
    check(&env, "export --data-dir two again", 0).await;
    let read = |name: &'static str| {
        let env = env.clone();
        async move {
            let file = env.disk.open(Path::new(name), Open::ReadOnly).await.unwrap();
            file.read_at(0, 1 << 20).await.unwrap()
        }
    };
    // Members and ids are the new cluster's, the records are the same.
    assert_eq!(read("out").await.len(), read("again").await.len());
    check(&env, "migrate --data-dir two --target-version 1", 0).await;
    check(&env, "migrate --data-dir two --target-version 2", 1).await;
}

#[tokio::test]
async fn flags_are_checked_before_anything_is_made() {
    let env = env();
    member(&env, "one").await;
    check(&env, "export --data-dir one out", 0).await;
    check(&env, "snapshot restore out --bump-revision 5 --data-dir new", 128).await;
    check(&env, "snapshot restore out --mark-compacted --data-dir new", 128).await;
    check(&env, "snapshot restore out --name other --data-dir new", 1).await;
    check(&env, "snapshot restore out --initial-cluster default=x --data-dir new", 1).await;
    check(&env, "snapshot restore --data-dir new", 128).await;
    check(&env, "snapshot nonsense", 1).await;
    check(&env, "hashkv out --data-dir one", 1).await;
    assert!(env.disk.list_dir(Path::new("new")).await.is_err());
    check(&env, "snapshot restore out --bump-revision 5 --mark-compacted --data-dir new", 0).await;
    check(&env, "hashkv --data-dir new --rev 44", 0).await;
    check(&env, "hashkv --data-dir new --rev 43", 1).await;
    check(&env, "check --data-dir none", 1).await;
    assert!(env.disk.list_dir(Path::new("none")).await.is_err(), "looking makes no directory");
}

#[tokio::test]
async fn damage_is_named_and_left_alone() {
    let env = env();
    member(&env, "one").await;
    let names = env.disk.list_dir(Path::new("one/member/store")).await.unwrap();
    let segment = names.iter().find(|name| name.name.ends_with(".seg")).unwrap();
    let path = Path::new("one/member/store").join(&segment.name);
    let file = env.disk.open(&path, Open::Existing).await.unwrap();
    file.truncate(700).await.unwrap();
    check(&env, "check --data-dir one", 1).await;
    check(&env, "export --data-dir one out", 1).await;
    assert_eq!(file.length().await.unwrap(), 700);
}
