//! A data directory from a snapshot: `snapshot restore` takes either form,
//! `import` etcd's; the new member belongs to a new cluster, with ids made of
//! the flags, as etcdutl makes them.

use super::{
    Session,
    args::Restore,
    failed, say,
    source::{self, Source},
};
use crate::backup::{self, Records, View};
use crate::layout::Failure;
use crate::members::Members;
use crate::naming::{InitialCluster, urls};
use crate::replica::StoppedMember;
use crate::store::{self, Maker};
use quorate_proto::quorate::v1::StoreMark;
use std::io;
use std::path::{Path, PathBuf};

/// The term that a new cluster's log begins in.
const FIRST_TERM: u64 = 1;

pub(super) async fn restore(session: &Session, args: Restore) -> Result<(), Failure> {
    make(session, args, "snapshot restore", false).await
}

pub(super) async fn import(session: &Session, args: Restore) -> Result<(), Failure> {
    make(session, args, "import", true).await
}

async fn make(session: &Session, args: Restore, command: &str, etcd_only: bool) -> Result<(), Failure> {
    let [file] = &args.files[..] else {
        return Err(Failure::arguments(format!("{command} requires exactly one argument")));
    };
    if (args.bump_revision > 0) != args.mark_compacted {
        return Err(Failure::arguments("--mark-compacted required if --revision-bump > 0"));
    }
    let (members, member_id) = members(&args).await?;
    let data_dir = args.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("{}.etcd", args.name)));
    refuse_used(session, &data_dir).await?;
    if !args.skip_hash_check {
        source::verify_digest(&session.env, file).await?;
    }
    let source = source::open_file(&session.env, file).await?;
    match &source {
        Source::Etcd(snapshot) => snapshot.verify_version().map_err(failed)?,
        Source::Own(_) if etcd_only => {
            return Err(failed("the snapshot is of Quorate's own form: use snapshot restore"));
        }
        Source::Own(_) | Source::Stopped(_) => {}
    }
    let dir = data_dir.join("member");
    let directory = StoppedMember::begin(&session.env, &dir, member_id, members.cluster_id).await;
    let directory = directory.map_err(failed)?;
    let filled = fill(session, &source, &args, &members, &dir).await?;
    directory.complete(&session.env, &members).await.map_err(failed)?;
    say(&format!(
        "made {} from {}: revision {}, compacted revision {}, {} records, {} leases{}; member {member_id:x} of cluster {:x}",
        data_dir.display(),
        file.display(),
        filled.revision,
        filled.compacted,
        filled.records,
        source.content().leases(),
        if source.content().auth_enabled() { ", auth enabled" } else { "" },
        members.cluster_id,
    ));
    Ok(())
}

/// Members of the new cluster and the id of this one.
async fn members(args: &Restore) -> Result<(Members, u64), Failure> {
    let cluster = InitialCluster::parse(&args.initial_cluster).map_err(failed)?;
    let advertised = urls::parse_list(&args.initial_advertise_peer_urls).map_err(failed)?;
    cluster.verify(&args.name, &advertised).await.map_err(failed)?;
    let initial = cluster.for_members();
    let token = &args.initial_cluster_token;
    let own = initial.iter().find(|(name, _)| *name == args.name);
    let (_, own_urls) = own.expect("verify found the local name");
    Ok((Members::bootstrap(&initial, token), Members::member_id(own_urls, token, None)))
}

async fn refuse_used(session: &Session, data_dir: &Path) -> Result<(), Failure> {
    match session.env.disk.list_dir(data_dir).await {
        Ok(names) if names.is_empty() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => Err(failed(format!(
            "data-dir {:?} not empty or could not be read",
            data_dir.display().to_string()
        ))),
    }
}

struct Filled {
    revision: i64,
    compacted: i64,
    records: u64,
}

async fn fill(
    session: &Session,
    source: &Source,
    args: &Restore,
    members: &Members,
    dir: &Path,
) -> Result<Filled, Failure> {
    let options = store::Options::default();
    let mut maker = Maker::create(&session.env, dir.join("store"), &options).await.map_err(failed)?;
    let content = source.content();
    maker.buckets(content.carried().map(Into::into)).await.map_err(failed)?;
    let mut records = source.records();
    let mut count = 0;
    while let Some(record) = records.next().await.map_err(failed)? {
        let backup::Stored { main, sub, tombstone, key_value } = record;
        maker.record((main, sub), tombstone, &key_value).await.map_err(failed)?;
        count += 1;
    }
    let (mut revision, mut compacted) = (content.revision, content.compacted);
    if args.bump_revision > 0 {
        // As etcdutl does it: a record of no key, and everything before it compacted.
        let bumped = maker.last().0.checked_add(args.bump_revision);
        let bumped = bumped.filter(|bumped| i64::try_from(*bumped).is_ok());
        let bumped = bumped.ok_or_else(|| failed("--bump-revision leads beyond the last revision"))?;
        maker.record((bumped, 0), false, &[]).await.map_err(failed)?;
        revision = bumped as i64;
        compacted = revision;
        count += 1;
    }
    let mark = StoreMark {
        applied_index: members.members.len() as u64,
        applied_term: FIRST_TERM,
        conf_state: Some(members.conf_state()),
        revision,
        compacted,
        membership: Some(members.to_membership()),
        ..StoreMark::default()
    };
    maker.finish(mark).await.map_err(failed)?;
    Ok(Filled { revision, compacted, records: count })
}
