//! Runs one world under one seed, so that nothing but the seed decides.
//!
//! Promises: a fresh operating-system thread for each run (the hash keys of
//! `RandomState` are drawn once a thread), madsim's runtime made *before* the
//! seeded real tokio runtime that surrounds it (or hash order breaks), a limit
//! of virtual time, and one of processor time. A panic is an ordinary result.

use quorate::env::trace::{self, Trace};
use std::{
    any::Any,
    cell::RefCell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Once, mpsc},
    time::Duration,
};

/// A run that takes longer than this in real time will not end: some loop moves no virtual time.
const REAL_TIME_MAX: Duration = Duration::from_secs(240);

/// How a run ended.
pub struct Ended<T> {
    /// `Err`: the panic's message and place.
    pub result: Result<T, String>,
    pub trace: Trace,
    /// Lines for people, if asked for.
    pub journal: Vec<String>,
    /// Processor time of the run's thread.
    pub cpu: Duration,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps a panic's message and place for [`run`]; prints nothing on the threads that run seeds.
fn catch_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let on_seed = std::thread::current().name().is_some_and(|name| name.starts_with("seed-"));
            if !on_seed {
                return before(info);
            }
            let what = message(info.payload());
            let place = info.location().map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
            // The first panic is the cause; later ones happen while it unwinds.
            PANIC.with_borrow_mut(|kept| _ = kept.get_or_insert(format!("{what}{place}")));
        }));
    });
}

fn message(payload: &dyn Any) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without words".to_owned(),
    }
}

/// Processor time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).expect("processor time is positive"),
        u32::try_from(time.tv_nsec).expect("below a second"),
    )
}

/// Runs the world that `make` makes to its end, on a thread of its own.
///
/// `limit`: virtual time after which the run fails. `keep`: lines of trace and journal are kept.
pub fn run<F, T>(
    seed: u64,
    limit: Duration,
    keep: bool,
    make: impl FnOnce() -> F + Send + 'static,
) -> Ended<T>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    catch_messages();
    let (done, wait) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("seed-{seed}"))
        .spawn(move || {
            let before = thread_cpu();
            trace::start(keep);
            crate::journal::start(keep);
            let work = AssertUnwindSafe(|| simulate(seed, limit, make));
            let result = match keep {
                true => tracing::subscriber::with_default(crate::logs::Logs, || catch_unwind(work)),
                false => catch_unwind(work),
            };
            let result = result.map_err(|payload| PANIC.take().unwrap_or_else(|| message(&*payload)));
            let ended = Ended {
                result,
                trace: trace::take(),
                journal: crate::journal::take(),
                cpu: thread_cpu().saturating_sub(before),
            };
            drop(done.send(ended));
        })
        .expect("the process can start a thread");
    match wait.recv_timeout(REAL_TIME_MAX) {
        Ok(ended) => {
            // Its thread-locals are gone before the next seed begins.
            drop(thread.join());
            ended
        }
        // The thread goes on for ever; the campaign reports it and the process ends soon.
        Err(_) => Ended {
            result: Err(format!(
                "no end after {} s of real time: a loop that moves no virtual time",
                REAL_TIME_MAX.as_secs()
            )),
            trace: Trace::default(),
            journal: Vec::new(),
            cpu: REAL_TIME_MAX,
        },
    }
}

fn simulate<F: Future<Output = T> + 'static, T>(seed: u64, limit: Duration, make: impl FnOnce() -> F) -> T {
    let mut runtime = madsim::runtime::Runtime::with_seed_and_config(seed, madsim::Config::default());
    runtime.set_time_limit(limit);
    runtime.add_simulator::<crate::disk::DiskSim>();
    runtime.add_simulator::<crate::clock::ClockSim>();
    runtime.add_simulator::<quorate::env::net::links::Links>();
    let around = surround(seed);
    // The handle's `block_on`, not the runtime's: within a runtime's scheduler `yield_now` would wait
    // for that scheduler's next turn, which never comes.
    around.handle().block_on(real_tokio::task::unconstrained(async move {
        runtime.block_on(async move { make().await })
    }))
}

/// tokio's own counters (select, watch) are drawn from this runtime's seed.
#[cfg(tokio_unstable)]
fn surround(seed: u64) -> real_tokio::runtime::Runtime {
    let seed = real_tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes());
    let mut builder = real_tokio::runtime::Builder::new_current_thread();
    builder.rng_seed(seed).build().expect("a runtime without drivers needs nothing of the system")
}

#[cfg(not(tokio_unstable))]
compile_error!("the simulation needs --cfg tokio_unstable: build it with `cargo sim`");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_result() {
        let ended = run(1, Duration::from_secs(1), false, || async { panic!("broken {}", 7) });
        let error: Result<(), String> = ended.result;
        assert!(error.unwrap_err().starts_with("broken 7 ("));
    }

    #[test]
    fn virtual_time_is_limited() {
        let ended = run(1, Duration::from_secs(5), false, || crate::time::pass(Duration::from_secs(9)));
        assert!(ended.result.unwrap_err().starts_with("time limit exceeded"));
    }

    #[test]
    fn a_task_that_yields_goes_on() {
        let ended = run(1, Duration::from_secs(5), false, || async {
            let yields = async { tokio::task::yield_now().await };
            tokio::time::timeout(Duration::from_secs(1), yields).await.is_ok()
        });
        assert!(ended.result.unwrap());
    }

    #[test]
    fn a_seed_decides_hash_order_and_random_numbers() {
        let draw = |seed| {
            run(seed, Duration::from_secs(5), false, || async {
                let set: std::collections::HashSet<u32> = (0..50).collect();
                (set.into_iter().collect::<Vec<_>>(), madsim::rand::random::<u64>())
            })
            .result
            .unwrap()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
