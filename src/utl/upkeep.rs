//! defrag and migrate of a stopped member.

use super::{
    Session,
    args::{DataDir, Migrate},
    failed, say,
};
use crate::layout::Failure;
use crate::members::Members;
use crate::replica::StoppedMember;
use crate::store::{self, Store};

/// The one version of Quorate's files so far.
const FORMAT_VERSION: &str = "1";

pub(super) async fn defrag(session: &Session, args: DataDir) -> Result<(), Failure> {
    let in_words = |error: &dyn std::fmt::Display| {
        failed(format!("Failed to defragment etcd data[{}] ({error})", args.data_dir.display()))
    };
    let dir = args.data_dir.join("member");
    let member = StoppedMember::open(&session.env, &dir).await.map_err(|error| in_words(&error))?;
    let initial = Members { cluster_id: member.cluster_id, ..Members::default() };
    let opened = Store::open(&session.env, dir.join("store"), store::Options::default(), initial).await;
    let (store, applier, _) = opened.map_err(|error| in_words(&error))?;
    let before = store.sizes().0;
    store.defragment().await;
    applier.mark_synced().await.map_err(|error| in_words(&error))?;
    say(&format!("{before} bytes before, {} after", store.sizes().0));
    Ok(())
}

pub(super) async fn migrate(session: &Session, args: Migrate) -> Result<(), Failure> {
    StoppedMember::open(&session.env, &args.data_dir.join("member")).await.map_err(failed)?;
    if args.target_version != FORMAT_VERSION {
        return Err(failed(format!(
            "there is one format version so far, {FORMAT_VERSION}: {:?} is not known to this release",
            args.target_version
        )));
    }
    say(&format!("nothing to do: format version {FORMAT_VERSION} is the only one so far"));
    Ok(())
}
