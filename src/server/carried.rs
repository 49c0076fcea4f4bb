//! What a store carries for services that do not exist yet: leases, users, roles.
//!
//! They came with an import and go back with an export. **Promises**: data that
//! was behind a login is not served without one unless that was asked for, and
//! the log says what is not kept up meanwhile. **Never** changes anything.

use crate::backup::{Carried, Content};
use crate::replica::Admission;
use quorate_proto::quorate::v1::{BucketPage, StoreMark};
use std::sync::Arc;

/// What a member's store is looked at for before it votes.
pub(super) fn admission(unsafe_ignore_auth: bool) -> Admission {
    Admission(Arc::new(move |mark, buckets| look(mark, buckets, unsafe_ignore_auth)))
}

fn look(mark: &StoreMark, buckets: Vec<BucketPage>, unsafe_ignore_auth: bool) -> Result<(), String> {
    if buckets.is_empty() {
        return Ok(());
    }
    let carried = buckets.into_iter().flat_map(|page| page.records).map(Carried::from);
    let content = Content::new(mark, carried).map_err(|error| error.to_string())?;
    if content.leases() > 0 {
        tracing::warn!(
            leases = content.leases(),
            "leases do not expire yet: they are kept as they were imported"
        );
    }
    match (content.auth_enabled(), unsafe_ignore_auth) {
        (true, false) => {
            Err("the data has auth enabled, which this release does not enforce yet: every client \
                              would have every right; --unsafe-ignore-auth starts all the same"
                .to_owned())
        }
        (true, true) => {
            tracing::warn!("auth is enabled in the data and not enforced: every client has every right");
            Ok(())
        }
        (false, _) => Ok(()),
    }
}
