//! Physical compaction: what the mark hides leaves the index, in small steps.
//!
//! Owns the order of things: the hash at the new mark is taken first (C9), over
//! a pin of the mark before; then it waits until a durable mark holds the
//! compaction; then steps are taken, between which everyone else gets on.
//! **Promises** that no record leaves the index while a copy is made that
//! relies on it (`physical`).

use super::ReadError;
use super::ground::Ground;
use super::shared::Shared;
use super::view::View;
use crate::env::task;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TryRecvError};

/// Keys that one step looks at: short enough that no request notices the lock.
const STEP_KEYS: usize = 512;

/// After so much of steps in a row, nothing is done for as long. The state's lock is not fair: let
/// go and taken again at once, it leaves out who waits for it (a put waited 190 ms for a million keys).
const STEPS_TIME: Duration = Duration::from_millis(1);

/// A compaction that was applied.
pub struct Compaction {
    /// Where the state stood.
    pub ground: Arc<Ground>,
    /// The mark before, pinned for this.
    pub before: i64,
    pub revision: i64,
    /// Whether its hash can be taken: it stands for this one compaction alone.
    pub single: bool,
}

/// Compactions that wait; those beyond are taken together.
pub const WAITING_MAX: usize = 64;

pub async fn run(shared: Arc<Shared>, mut compactions: mpsc::Receiver<Compaction>) {
    let closed = shared.clone();
    let work = async {
        loop {
            match compactions.try_recv() {
                Ok(compaction) => carry_out(&shared, compaction).await,
                Err(TryRecvError::Disconnected) => return,
                // A view that held back what it might read is gone.
                Err(TryRecvError::Empty) if shared.state().mvcc().compacting() => {
                    let (_, compacted) = shared.state().revisions();
                    remove(&shared, &shared.ground(), compacted).await;
                }
                Err(TryRecvError::Empty) => {
                    tokio::select! {
                        biased;
                        compaction = compactions.recv() => match compaction {
                            Some(compaction) => carry_out(&shared, compaction).await,
                            None => return,
                        },
                        () = shared.compact_more.notified() => {}
                    }
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = closed.until_closed() => {}
        () = work => {}
    }
}

/// One compaction from its hash to its last step.
pub async fn carry_out(shared: &Arc<Shared>, compaction: Compaction) {
    let Compaction { ground, before, revision, single } = compaction;
    let view = View::adopted(shared.clone(), ground.clone(), revision, before);
    // 0 means the current revision in a request: an answer kept for it would be stale (C9).
    if revision > 0 && single {
        match view.hash(revision).await {
            Ok(hash) if view.stands() => shared.remember_hash(revision, hash, before),
            Ok(_) | Err(ReadError::Replaced) => {}
            Err(error) => tracing::warn!(revision, %error, "no hash was kept for a compaction"),
        }
    }
    drop(view);
    remove(shared, &ground, revision).await;
}

/// Waits until the compaction is durable, and carries it out as far as views allow.
async fn remove(shared: &Shared, ground: &Arc<Ground>, revision: i64) {
    let mut commits = shared.commits.subscribe();
    loop {
        if !Arc::ptr_eq(&shared.ground(), ground) {
            // What took the state's place was loaded compacted.
            return;
        }
        if shared.committed().is_some_and(|committed| committed.compacted >= revision) {
            break;
        }
        if commits.changed().await.is_err() {
            return;
        }
    }
    let begun = shared.clock.now();
    let mut rested = begun;
    loop {
        let reached = {
            let _alone = shared.physical.lock().await;
            let step = shared.clock.now();
            let mut state = shared.state_mut();
            let reached = state.compact_step(STEP_KEYS).then(|| state.mvcc().physically_compacted());
            drop(state);
            if let Some(meter) = shared.tally.meter() {
                meter.compaction_paused(shared.clock.now().since(step).as_secs_f64());
            }
            reached
        };
        if let Some(reached) = reached {
            crate::reached!("compaction finished");
            if let Some(meter) = shared.tally.meter() {
                meter.compacted(shared.clock.now().since(begun).as_secs_f64());
            }
            shared.compacted.raise(reached);
            shared.clean_more.notify_one();
            return;
        }
        if shared.clock.now().since(rested) >= STEPS_TIME {
            shared.clock.sleep(STEPS_TIME).await;
            rested = shared.clock.now();
        }
        task::yield_now().await;
    }
}
