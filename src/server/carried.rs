//! What a store carries for services that do not exist yet: leases, users, roles.
//!
//! They came with an import and go back with an export. **Promises**: data that
//! was behind a login is not served without one unless that was asked for, and
//! the log says what is not kept up meanwhile. **Never** changes anything.

use super::{Config, StartError};
use crate::backup::Content;
use crate::env::Env;
use crate::store;
use std::path::Path;

/// Looks into a member's directory before the member runs.
pub(super) async fn look(config: &Config, env: &Env, dir: &Path) -> Result<(), StartError> {
    let Ok(Some((mark, buckets))) = store::peek(env, dir.join("store")).await else {
        // Nothing is there yet, or what is there is damaged: the opening that follows says so better.
        return Ok(());
    };
    let carried = buckets.into_iter().flat_map(|page| page.records).map(Into::into);
    let Ok(content) = Content::new(&mark, carried) else { return Ok(()) };
    if content.leases() > 0 {
        tracing::warn!(
            leases = content.leases(),
            "leases do not expire yet: they are kept as they were imported"
        );
    }
    match (content.auth_enabled(), config.unsafe_ignore_auth) {
        (true, false) => Err(StartError::Auth),
        (true, true) => {
            tracing::warn!("auth is enabled in the data and not enforced: every client has every right");
            Ok(())
        }
        (false, _) => Ok(()),
    }
}
