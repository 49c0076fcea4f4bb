//! The storage quota (semantics X1, X2), judged by the member that takes the request.
//!
//! What counts is the store's bytes on disk, without log and preallocation (what
//! was applied since the last commit counts with the next one). A
//! request that would exceed the quota waits while the store is cleaned to its
//! stated share, once for all that wait, and is judged again; only then this
//! member's NOSPACE alarm is raised, through the log, and the request refused.
//! **Never** refuses what frees space, and never waits longer than a proposal may.

use super::{Backend, Settings, errors::Error, service::Api};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use quorate_proto::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, alarm_request::AlarmAction};
use std::sync::Mutex;
use tonic::Status;

type Cleaning = BoxFuture<'static, ()>;

/// The cleaning that is under way for the quota's sake, shared by all who wait for it.
#[derive(Default)]
pub(super) struct Quota {
    /// Kept alive by those who wait: it holds the API, which holds this.
    cleaning: Mutex<Option<WeakShared<Cleaning>>>,
}

/// Whether `growth` more bytes stay below the quota in force.
fn fits(settings: &Settings, db_bytes: u64, growth: u64) -> bool {
    match u64::try_from(settings.quota_in_force()) {
        Ok(quota) => db_bytes.saturating_add(growth) < quota,
        // Negative: off.
        Err(_) => true,
    }
}

impl<B: Backend> Api<B> {
    /// Lets a request pass that may add `growth` bytes ([`crate::machine::growth`]; `None`: it adds
    /// nothing), or refuses it.
    ///
    /// # Errors
    /// `etcdserver: mvcc: database space exceeded`.
    pub(super) async fn admit(&self, growth: Option<u64>) -> Result<(), Status> {
        match growth {
            Some(growth) if !self.fits(growth) => Box::pin(self.make_room(growth)).await,
            _ => Ok(()),
        }
    }

    fn fits(&self, growth: u64) -> bool {
        fits(&self.settings, self.backend.db_bytes(), growth)
    }

    async fn make_room(&self, growth: u64) -> Result<(), Status> {
        // With the alarm on, cleaning was tried; what is freed from now on counts after a disarm.
        if !self.is_alarmed() {
            let cleaned = self.join_cleaning(growth);
            let cleaned = tokio::select! {
                biased;
                () = cleaned => true,
                () = self.clock.sleep(self.settings.request_timeout) => false,
            };
            if self.fits(growth) {
                crate::reached!("cleaning made room below the quota");
                return Ok(());
            }
            if !cleaned {
                crate::reached!("refused by the quota while it is being cleaned");
            }
        }
        Err(Error::NoSpace.status())
    }

    fn is_alarmed(&self) -> bool {
        let own = (self.backend.status().member_id, AlarmType::Nospace as i32);
        self.backend.alarms().contains(&own)
    }

    /// The cleaning under way, or a new one. Whoever waits drives it; the store cleans on if nobody does.
    fn join_cleaning(&self, growth: u64) -> Shared<Cleaning> {
        let mut cleaning = self.quota.cleaning.lock().expect("no panic while the cleaning is locked");
        let running = cleaning.as_ref().and_then(WeakShared::upgrade);
        if let Some(running) = running.filter(|running| running.peek().is_none()) {
            return running;
        }
        let begun = self.clone().clean(growth).boxed().shared();
        *cleaning = begun.downgrade();
        begun
    }

    /// Cleans, and raises the alarm if `growth` bytes do not fit afterwards.
    async fn clean(self, growth: u64) {
        tracing::warn!(
            "quota-size-bytes" = self.settings.quota_in_force(),
            "db-size-bytes" = self.backend.db_bytes(),
            "the quota is reached: cleaning before anything is refused"
        );
        self.defragment().await;
        if self.fits(growth) || self.is_alarmed() {
            return;
        }
        let member_id = self.backend.status().member_id;
        let alarm = AlarmRequest {
            action: AlarmAction::Activate as i32,
            member_id,
            alarm: AlarmType::Nospace as i32,
        };
        tracing::warn!(
            "local-member-id" = %format_args!("{member_id:x}"),
            "quota-size-bytes" = self.settings.quota_in_force(),
            "db-size-bytes" = self.backend.db_bytes(),
            "raising the alarm NOSPACE: the quota is exceeded"
        );
        let entry = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        match self.backend.propose(entry).await {
            Ok(_) => crate::reached!("alarm NOSPACE was raised"),
            // The next request over the quota tries again.
            Err(error) => tracing::warn!(%error, "failed to raise the alarm NOSPACE"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_is_judged_as_etcd_does() {
        let check = |quota: i64, db_bytes: u64, growth: u64, expected: bool| {
            let settings = Settings { quota_backend_bytes: quota, ..Settings::default() };
            assert_eq!(fits(&settings, db_bytes, growth), expected, "{quota} {db_bytes} {growth}");
        };
        check(1000, 500, 499, true);
        check(1000, 500, 500, false);
        check(1000, 2000, 1, false);
        check(0, (2 << 30) - 2, 1, true);
        check(0, 2 << 30, 1, false);
        check(-1, u64::MAX, u64::MAX, true);
    }
}
