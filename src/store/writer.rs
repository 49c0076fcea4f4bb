//! The task that owns the store's page file: batches are written and synced
//! here while the applier goes on.

use super::{Error, Position, Shared, kind};
use crate::pagefile::{CommitNumber, Label, Page, PageFile, PageNumber};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot};

/// What the writer is asked to do.
pub enum Job {
    /// One commit: record pages in order, then the mark.
    Commit(Batch),
    /// The same, in place of everything that is there.
    Replace(Batch),
    /// After an idle moment: names the last sync on disk (I6).
    MarkSynced(oneshot::Sender<Result<(), Error>>),
}

pub struct Batch {
    pub records: Vec<(PageNumber, Bytes)>,
    pub mark: (PageNumber, Bytes),
    pub position: Position,
    /// Pages below may go.
    pub keep: PageNumber,
    pub done: oneshot::Sender<Result<Position, Error>>,
}

pub async fn run(mut file: PageFile, shared: Arc<Shared>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Commit(batch) => {
                let done = commit(&mut file, &shared, &batch.records, &batch.mark, batch.keep).await;
                if !answer(&shared, batch, done) {
                    return;
                }
            }
            Job::Replace(batch) => {
                let records = batch.records.iter().map(|(number, payload)| (*number, kind::RECORDS, payload));
                let pages = records
                    .chain([(batch.mark.0, kind::MARK, &batch.mark.1)])
                    .map(|(number, kind, payload)| Page {
                        number,
                        span: 0,
                        kind,
                        commit: CommitNumber(0),
                        label: Label::default(),
                        payload: payload.clone(),
                    })
                    .collect();
                let done = file.replace(pages).await.map(drop);
                *shared.reader.write().expect("no panic while the reader is locked") = file.reader();
                if !answer(&shared, batch, done) {
                    return;
                }
            }
            Job::MarkSynced(done) => {
                let marked = file.mark_synced().await.map_err(Error::from);
                let failed = marked.is_err();
                // Nobody waiting for the answer is fine: the mark is there.
                let _ = done.send(marked);
                if failed {
                    return;
                }
            }
        }
        shared.size_on_disk.store(file.size_written(), Ordering::Relaxed);
    }
}

fn append(file: &mut PageFile, records: &[(PageNumber, Bytes)], mark: &(PageNumber, Bytes)) {
    for (number, payload) in records {
        let given = file.append(kind::RECORDS, Label::default(), payload.clone());
        assert_eq!(given, *number, "records point to the page that holds them");
    }
    let given = file.append(kind::MARK, Label::default(), mark.1.clone());
    assert_eq!(given, mark.0, "applier and page file count pages alike");
}

async fn commit(
    file: &mut PageFile,
    shared: &Shared,
    records: &[(PageNumber, Bytes)],
    mark: &(PageNumber, Bytes),
    keep: PageNumber,
) -> Result<(), crate::pagefile::Error> {
    append(file, records, mark);
    file.commit().await?;
    for (number, _) in records {
        shared.cache.unpin(*number);
    }
    file.sync().await?;
    if file.drop_before(keep).await? > 0 {
        crate::reached!("store segment dropped");
        let mut layout = shared.layout();
        let first = layout.records.partition_point(|page| *page < keep);
        layout.records.drain(..first);
    }
    Ok(())
}

/// Tells the applier; false when the writer must stop.
fn answer(shared: &Shared, batch: Batch, done: Result<(), crate::pagefile::Error>) -> bool {
    let answer = match done {
        Ok(()) => {
            shared.layout().committed = Some((batch.mark.0, batch.position.clone()));
            Ok(batch.position)
        }
        Err(error) => Err(Error::PageFile(error)),
    };
    let goes_on = answer.is_ok();
    // An applier that is gone (the member stops) needs no answer.
    let _ = batch.done.send(answer);
    goes_on
}
