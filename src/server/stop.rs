//! The order in which a member goes down.
//!
//! No new requests; those in flight are answered; leadership goes to someone
//! alive; the store commits and closes. All of it within the proposal timeout,
//! whatever the others do. **Never** ends the process.

use super::logging::list;
use super::start::{Server, hex};
use crate::env::Moment;
use std::future::Future;

impl Server {
    /// Stops in order and within 5 s + 2 x election timeout; a second call waits for the first.
    pub async fn stop(&self) {
        let mut stopped = self.stopped.lock().await;
        if std::mem::replace(&mut *stopped, true) {
            return;
        }
        let budget = self.config.proposal_timeout();
        let end = self.env.clock.now() + budget;
        self.log("closing etcd server");
        self.stopping.send_replace(true);
        // The sender goes when the last connection has; until half the time is over they may finish.
        let mut drained = self.drained.lock().await;
        let gone = async { while drained.changed().await.is_ok() {} };
        if self.before(self.env.clock.now() + budget / 2, gone).await.is_none() {
            crate::reached!("connections outlived the drain");
            tracing::warn!("connections were still open when the time to answer them was over");
        }
        self.hand_over(end).await;
        if self.before(end, self.replica.stop()).await.is_none() {
            crate::reached!("the replica did not stop in time");
            tracing::warn!("the replica did not stop in time");
        }
        self.log("closed etcd server");
    }

    async fn hand_over(&self, end: Moment) {
        let status = self.replica.status();
        if status.leader != status.member_id {
            return;
        }
        let members = self.replica.store().members();
        let voters = members.members.values().filter(|member| !member.is_learner).count();
        if voters <= 1 {
            tracing::info!(
                "local-member-id" = hex(status.member_id),
                "current-leader-member-id" = hex(status.leader),
                "skipped leadership transfer for single voting member cluster"
            );
            return;
        }
        tracing::info!(
            "local-member-id" = hex(status.member_id),
            "current-leader-member-id" = hex(status.leader),
            "leadership transfer starting"
        );
        // The rest is for closing the store.
        let within = end.since(self.env.clock.now()).mul_f64(0.75);
        let transfer = self.replica.transfer_leadership(0, within);
        let outcome = self.before(self.env.clock.now() + within, transfer).await;
        match outcome {
            Some(Ok(())) => {
                crate::reached!("leadership was handed over at stop");
                tracing::info!(
                    "local-member-id" = hex(status.member_id),
                    "current-leader-member-id" = hex(self.replica.status().leader),
                    "leadership transfer finished"
                );
            }
            Some(Err(error)) => tracing::warn!(
                "local-member-id" = hex(status.member_id),
                error = %error,
                "leadership transfer failed"
            ),
            None => tracing::warn!(
                "local-member-id" = hex(status.member_id),
                error = "request timed out, leader transfer took too long",
                "leadership transfer failed"
            ),
        }
    }

    /// What `work` gives, or `None` when `end` comes first.
    async fn before<T>(&self, end: Moment, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.env.clock.sleep_until(end) => None,
        }
    }

    fn log(&self, message: &'static str) {
        tracing::info!(
            name = self.config.name,
            "data-dir" = %self.config.data_dir().display(),
            "advertise-peer-urls" = ?list(&self.config.advertise_peer_urls),
            "advertise-client-urls" = ?list(&self.config.advertise_client_urls),
            "{message}"
        );
    }
}
