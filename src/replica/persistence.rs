//! What the log's writer has made durable, as the raft loop sees it.

use crate::log::Persisted;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::Notify;

/// The highest durable ticket, or the failure.
pub(super) struct Persistence {
    upto: AtomicU64,
    failed: Mutex<Option<String>>,
    wake: Arc<Notify>,
}

impl Persistence {
    pub fn new(wake: Arc<Notify>) -> Persistence {
        Persistence { upto: AtomicU64::new(0), failed: Mutex::default(), wake }
    }

    /// The writer's word.
    pub fn said(&self, word: Persisted) {
        match word {
            Persisted::Upto(ticket) => {
                let before = self.upto.fetch_max(ticket, Ordering::AcqRel);
                assert!(before <= ticket, "tickets rise");
            }
            Persisted::Failed(error) => {
                *self.failed.lock().expect("no panic while the failure is locked") = Some(error.to_string());
            }
        }
        self.wake.notify_one();
    }

    /// The highest durable ticket.
    pub fn upto(&self) -> Result<u64, String> {
        match &*self.failed.lock().expect("no panic while the failure is locked") {
            Some(error) => Err(format!("the log cannot be written: {error}")),
            None => Ok(self.upto.load(Ordering::Acquire)),
        }
    }

    /// Waits until `ticket` is durable. Before the loop runs only: it takes the loop's wake-ups.
    pub async fn durable(&self, ticket: u64) -> Result<(), String> {
        while self.upto()? < ticket {
            self.wake.notified().await;
        }
        Ok(())
    }
}
