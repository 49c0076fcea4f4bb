//! The I/O threads, and strands of work on them.
//!
//! A [`Strand`] carries its jobs out one after the other, in the order in which
//! they were submitted; jobs of different strands run side by side on whatever
//! thread is free, so that one file's sync holds up no other file. The queue
//! needs no bound of its own: each job belongs to a caller that waits for it,
//! and their number is bounded above (I10).

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
};

type Job = Box<dyn FnOnce() + Send>;

/// A handle on the threads; they end when the last handle is gone and the work is done.
pub(super) struct Pool(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    #[allow(clippy::disallowed_methods)] // The one place where the disk's threads are made.
    pub(super) fn new(threads: usize) -> Pool {
        assert!(threads > 0, "someone must do the work");
        let queue = Arc::new(Queue {
            state: Mutex::new(State { jobs: VecDeque::new(), closed: false }),
            changed: Condvar::new(),
        });
        for number in 0..threads {
            let queue = queue.clone();
            std::thread::Builder::new()
                .name(format!("disk-{number}"))
                .spawn(move || queue.work())
                .expect("the process can start a thread");
        }
        Pool(queue)
    }

    /// Runs `job` on the next free thread, in no order.
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.0.submit(Box::new(job));
    }

    /// Does one waiting job on the caller's thread, which is one of the pool's
    /// and would otherwise wait; `false` if there is none.
    pub(super) fn help(&self) -> bool {
        let job = self.0.state.lock().expect("jobs run outside the lock").jobs.pop_front();
        job.map(|job| job()).is_some()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.state.lock().expect("jobs run outside the lock").closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn submit(&self, job: Job) {
        let mut state = self.state.lock().expect("jobs run outside the lock");
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
    }

    fn work(&self) {
        let mut state = self.state.lock().expect("jobs run outside the lock");
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock().expect("jobs run outside the lock");
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).expect("jobs run outside the lock");
            }
        }
    }
}

/// Work that is done in the order of its submission.
pub(super) struct Strand {
    pool: Arc<Pool>,
    line: Arc<Mutex<Line>>,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    /// A thread is at it, or about to be.
    running: bool,
}

impl Strand {
    pub(super) fn new(pool: Arc<Pool>) -> Strand {
        Strand { pool, line: Arc::default() }
    }

    /// Runs `job` after all jobs submitted before it.
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut line = self.line.lock().expect("jobs run outside the lock");
        line.jobs.push_back(Box::new(job));
        if std::mem::replace(&mut line.running, true) {
            return;
        }
        drop(line);
        let line = self.line.clone();
        self.pool.submit(move || run(&line));
    }
}

fn run(line: &Mutex<Line>) {
    loop {
        let mut locked = line.lock().expect("jobs run outside the lock");
        assert!(locked.running, "only one thread runs a strand");
        let Some(job) = locked.jobs.pop_front() else {
            locked.running = false;
            return;
        };
        drop(locked);
        job();
    }
}

#[cfg(test)]
#[cfg(not(madsim))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_strand_keeps_its_order_while_others_run_beside_it() {
        let pool = Arc::new(Pool::new(3));
        let (sender, receiver) = mpsc::channel();
        let strands: Vec<Strand> = (0..4).map(|_| Strand::new(pool.clone())).collect();
        for step in 0..200 {
            for (number, strand) in strands.iter().enumerate() {
                let sender = sender.clone();
                strand.submit(move || sender.send((number, step)).unwrap());
            }
        }
        drop(sender);
        let mut next = [0; 4];
        for (number, step) in receiver {
            assert_eq!(step, next[number], "strand {number}");
            next[number] += 1;
        }
        assert_eq!(next, [200; 4]);
    }

    #[test]
    fn a_strand_that_waits_holds_up_no_other() {
        let pool = Arc::new(Pool::new(2));
        let (slow, fast) = (Strand::new(pool.clone()), Strand::new(pool));
        let (release, held) = mpsc::channel::<()>();
        slow.submit(move || held.recv().unwrap());
        let (done, finished) = mpsc::channel();
        fast.submit(move || done.send(()).unwrap());
        finished.recv().unwrap();
        release.send(()).unwrap();
    }

    #[test]
    fn work_submitted_before_the_last_handle_went_is_done() {
        let pool = Arc::new(Pool::new(1));
        let (sender, receiver) = mpsc::channel();
        for step in 0..50 {
            let sender = sender.clone();
            pool.submit(move || sender.send(step).unwrap());
        }
        drop((pool, sender));
        assert_eq!(receiver.into_iter().count(), 50);
    }
}
