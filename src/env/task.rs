//! Tasks and threads.

use std::future::Future;
pub use tokio::task::JoinHandle;

/// Runs `work` on the runtime of the caller.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(work)
}

/// Goes to the end of the thread's queue once. tokio's own `yield_now` leaves
/// the waking to its driver, which the simulation does not run: it would sleep
/// for ever.
pub async fn yield_now() {
    let mut waited = false;
    std::future::poll_fn(move |context| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Runs `work` on a thread of its own (production) or as a task (simulation).
/// The name shows in the process list.
#[cfg(madsim)]
pub fn dedicated<F>(_name: &str, work: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    drop(tokio::spawn(work));
}

/// Runs `work` on a thread of its own (production) or as a task (simulation).
/// The name shows in the process list.
#[cfg(not(madsim))]
#[allow(clippy::disallowed_methods)]
pub fn dedicated<F>(name: &str, work: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs only file descriptors, which start-up checked");
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(work))
        .expect("the process can start a thread");
}
