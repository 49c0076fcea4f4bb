//! A connection and the calls on it, run by one task.
//!
//! hyper would give each call a task of its own: spawned, stolen by another
//! thread, woken one by one, each waking the connection in turn, and both at
//! odds over the lock of the connection's streams. Here all calls that are
//! ready are polled first, then the connection, which sends what they answered
//! in one go, then the calls that it brought. **Promises**: no wake is lost;
//! calls end with their connection, as their clients have gone. **Never** for
//! work that must outlive the connection.

use futures::{
    StreamExt,
    stream::FuturesUnordered,
    task::{ArcWake, AtomicWaker, waker_ref},
};
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where hyper leaves the calls that a connection brings.
#[derive(Clone, Default)]
pub(super) struct Begun(Arc<Mutex<Vec<Work>>>);

impl Begun {
    fn take(&self) -> Vec<Work> {
        std::mem::take(&mut *self.0.lock().expect("nothing panics while this is locked"))
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Begun {
    fn execute(&self, work: F) {
        self.0.lock().expect("nothing panics while this is locked").push(Box::pin(work));
    }
}

pin_project_lite::pin_project! {
    /// Completes when the connection does.
    pub(super) struct Together<C> {
        #[pin]
        connection: C,
        begun: Begun,
        calls: FuturesUnordered<Work>,
        // The task was put behind whatever else is ready on its thread.
        waited: bool,
        of_connection: Arc<Bell>,
        of_calls: Arc<Bell>,
    }
}

impl<C> Together<C> {
    /// `begun` is the executor that the connection was made with.
    pub(super) fn new(connection: C, begun: Begun) -> Together<C> {
        let calls = FuturesUnordered::new();
        Together {
            connection,
            begun,
            calls,
            waited: false,
            of_connection: Arc::default(),
            of_calls: Arc::default(),
        }
    }

    pub(super) fn connection(self: Pin<&mut Self>) -> Pin<&mut C> {
        self.project().connection
    }
}

impl<C: Future> Future for Together<C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.project();
        // When many calls are answered at once, the first answer wakes this task; polled then and
        // there it would send that one alone.
        *this.waited = !*this.waited;
        if *this.waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (of_connection, of_calls) = (&**this.of_connection, &**this.of_calls);
        of_connection.task.register(cx.waker());
        of_calls.task.register(cx.waker());
        of_connection.mute();
        poll_calls(this.calls, this.of_calls);
        // Whatever rang for the connection so far, it is polled now.
        of_connection.mute();
        let ended = this.connection.poll(&mut Context::from_waker(&waker_ref(this.of_connection)));
        if ended.is_pending() {
            this.calls.extend(this.begun.take());
            poll_calls(this.calls, this.of_calls);
        }
        let rang = (of_connection.unmute(), of_calls.unmute());
        if rang.0 || rang.1 {
            cx.waker().wake_by_ref();
        }
        ended
    }
}

/// Polls the calls that are ready; what is ready after that rings. `FuturesUnordered` wakes itself
/// whenever it has polled all it has, so it is asked again once.
fn poll_calls(calls: &mut FuturesUnordered<Work>, bell: &Arc<Bell>) {
    const ROUNDS: usize = 2;
    for _ in 0..ROUNDS {
        bell.mute();
        let ring = waker_ref(bell);
        while let Poll::Ready(Some(())) = calls.poll_next_unpin(&mut Context::from_waker(&ring)) {}
        if !bell.rang() {
            return;
        }
    }
}

const LOUD: u8 = 0;
/// The task is at it; who rings is remembered.
const MUTE: u8 = 1;
const RANG: u8 = 2;

/// Wakes the task, but not while it is about to look anyway.
#[derive(Default)]
struct Bell {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Bell {
    /// What rang so far is about to be seen to.
    fn mute(&self) {
        self.state.swap(MUTE, Ordering::AcqRel);
    }

    fn rang(&self) -> bool {
        self.state.load(Ordering::Acquire) == RANG
    }

    /// Whether it rang since it was muted; from now on it wakes.
    fn unmute(&self) -> bool {
        self.state.swap(LOUD, Ordering::AcqRel) == RANG
    }
}

impl ArcWake for Bell {
    fn wake_by_ref(bell: &Arc<Self>) {
        let rung = bell.state.compare_exchange(MUTE, RANG, Ordering::AcqRel, Ordering::Acquire);
        if rung == Err(LOUD) {
            bell.task.wake();
        }
    }
}

#[cfg(test)]
#[cfg(not(madsim))]
mod tests {
    use super::*;
    use futures::task::noop_waker;
    use hyper::rt::Executor;
    use std::task::Waker;
    use std::{
        collections::VecDeque,
        sync::atomic::{AtomicBool, AtomicUsize},
    };
    use tokio::sync::oneshot;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.store(true, Ordering::SeqCst);
        }
    }

    /// A connection that brings a call at each poll while it has some, and notes how many were
    /// answered when it was polled.
    struct Scripted {
        executor: Begun,
        calls: VecDeque<oneshot::Receiver<()>>,
        answered: Arc<AtomicUsize>,
        seen: Vec<usize>,
        waker: Arc<Mutex<Waker>>,
    }

    impl Future for Scripted {
        type Output = Vec<usize>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<usize>> {
            let answered = self.answered.load(Ordering::SeqCst);
            self.seen.push(answered);
            *self.waker.lock().unwrap() = cx.waker().clone();
            while let Some(call) = self.calls.pop_front() {
                let (answered, waker) = (self.answered.clone(), self.waker.clone());
                self.executor.execute(async move {
                    call.await.unwrap();
                    answered.fetch_add(1, Ordering::SeqCst);
                    waker.lock().unwrap().wake_by_ref();
                });
            }
            if answered == 3 { Poll::Ready(std::mem::take(&mut self.seen)) } else { Poll::Pending }
        }
    }

    #[test]
    fn answers_of_one_moment_go_in_one_poll_and_no_wake_is_lost() {
        let executor = Begun::default();
        let (answers, calls): (Vec<_>, VecDeque<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        let answered = Arc::<AtomicUsize>::default();
        let waker = Arc::new(Mutex::new(noop_waker()));
        let connection =
            Scripted { executor: executor.clone(), calls, answered, seen: Vec::new(), waker: waker.clone() };
        let mut together = Box::pin(Together::new(connection, executor));
        let woken = Arc::new(Woken::default());
        let task = futures::task::waker(woken.clone());
        let mut cx = Context::from_waker(&task);
        // Polls until nobody asks for another poll.
        let mut settle = move || {
            loop {
                woken.0.store(false, Ordering::SeqCst);
                if let Poll::Ready(seen) = together.as_mut().poll(&mut cx) {
                    return Some(seen);
                }
                if !woken.0.load(Ordering::SeqCst) {
                    return None;
                }
            }
        };
        assert_eq!(settle(), None);
        let mut answers = answers.into_iter();
        answers.next().unwrap().send(()).unwrap();
        answers.next().unwrap().send(()).unwrap();
        assert_eq!(settle(), None);
        // A ring between two polls wakes the task.
        waker.lock().unwrap().wake_by_ref();
        assert_eq!(settle(), None);
        answers.next().unwrap().send(()).unwrap();
        assert_eq!(settle(), Some(vec![0, 2, 2, 3]));
    }
}
