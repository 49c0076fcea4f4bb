use super::*;
use crate::plan::Decay;
use crate::seed;
use crate::time::pass;
use bytes::Bytes;
use madsim::runtime::Handle;
use madsim::task::NodeId;
use quorate::env::disk::{Disk, File, Open};
use std::{
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

fn run<T: Send + 'static>(seed: u64, world: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    seed::run(seed, Duration::from_secs(1000), false, move || async move { world().await }).result.unwrap()
}

fn page(byte: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![byte; 512])]
}

const FILE: &str = "/d/f";

/// Makes a file with one synced page of 1.
async fn prepared(disk: &SimDisk) -> Arc<dyn File> {
    disk.make_dir(Path::new("/d")).await.unwrap();
    disk.sync_dir(Path::new("/")).await.unwrap();
    let file = disk.open(Path::new(FILE), Open::New).await.unwrap();
    disk.sync_dir(Path::new("/d")).await.unwrap();
    file.append(0, page(1)).await.unwrap();
    file.sync_data().await.unwrap();
    file
}

/// A node whose first life runs `first` and each later one `later`; returns its id.
fn node<F, G, A, B>(first: F, later: G) -> NodeId
where
    F: Fn() -> A + Send + Sync + 'static,
    G: Fn() -> B + Send + Sync + 'static,
    A: Future<Output = ()> + 'static,
    B: Future<Output = ()> + 'static,
{
    let lives = std::sync::atomic::AtomicU64::new(0);
    let init = move || {
        let life = lives.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (one, two) = (first(), later());
        async move {
            if life == 0 {
                one.await
            } else {
                two.await
            }
            std::future::pending::<()>().await;
        }
    };
    Handle::current().create_node().name("n").init(init).build().id()
}

/// Both pages after a crash of this kind that came when the second was written and not synced.
fn crash(power: Option<Keep>, seed: u64) -> Option<Vec<u8>> {
    run(seed, async move || {
        let read = Arc::new(Mutex::new(None));
        let seen = read.clone();
        let id = node(
            || async {
                let file = prepared(&SimDisk::mount()).await;
                file.append(512, page(2)).await.unwrap();
            },
            move || {
                let seen = seen.clone();
                async move {
                    let file = SimDisk::mount().open(Path::new(FILE), Open::Existing).await.unwrap();
                    *seen.lock().unwrap() = Some(file.read_at(0, 2000).await.unwrap().to_vec());
                }
            },
        );
        pass(Duration::from_secs(1)).await;
        if let Some(keep) = power {
            DiskSim::get().lose_power(id, keep);
        }
        Handle::current().kill(id);
        pass(Duration::from_secs(1)).await;
        Handle::current().restart(id);
        pass(Duration::from_secs(1)).await;
        read.lock().unwrap().take()
    })
}

#[test]
fn a_kill_leaves_all_writes_readable_and_a_power_loss_takes_the_unsynced_ones() {
    let pages = |second: bool| [vec![1; 512], vec![2; if second { 512 } else { 0 }]].concat();
    assert_eq!(crash(None, 1).unwrap(), pages(true));
    assert_eq!(crash(Some(Keep::Everything), 1).unwrap(), pages(true));
    assert_eq!(crash(Some(Keep::Nothing), 1).unwrap(), pages(false));
}

#[test]
fn what_a_kill_left_unsynced_is_still_lost_by_a_later_power_loss() {
    let left = run(1, async || {
        let read = Arc::new(Mutex::new(Vec::new()));
        let seen = read.clone();
        let id = node(
            || async {
                let file = prepared(&SimDisk::mount()).await;
                file.append(512, page(2)).await.unwrap();
            },
            move || {
                let seen = seen.clone();
                async move {
                    let file = SimDisk::mount().open(Path::new(FILE), Open::Existing).await.unwrap();
                    seen.lock().unwrap().push(file.length().await.unwrap());
                }
            },
        );
        for power in [false, true] {
            pass(Duration::from_secs(1)).await;
            if power {
                DiskSim::get().lose_power(id, Keep::Nothing);
            }
            Handle::current().kill(id);
            Handle::current().restart(id);
        }
        pass(Duration::from_secs(1)).await;
        read.lock().unwrap().clone()
    });
    assert_eq!(left, [1024, 512]);
}

#[test]
fn operations_are_submitted_when_called_and_kept_in_order() {
    run(2, async || {
        let disk = SimDisk::mount();
        let file = prepared(&disk).await;
        // Neither future is polled, and the first is dropped.
        drop(file.append(512, page(7)));
        let read = file.read_at(512, 512);
        assert_eq!(read.await.unwrap(), page(7)[0]);
    });
}

#[test]
fn a_zombie_is_refused_and_its_lock_is_gone() {
    run(3, async || {
        let kept = Arc::new(Mutex::new(None));
        let (keep, again) = (kept.clone(), kept.clone());
        let id = node(
            move || {
                let keep = keep.clone();
                async move {
                    let disk = SimDisk::mount();
                    let file = prepared(&disk).await;
                    let lock = disk.lock(Path::new("/d/lock")).await.unwrap();
                    let second = disk.lock(Path::new("/d/lock")).await;
                    assert_eq!(second.err().unwrap().kind(), ErrorKind::WouldBlock);
                    *keep.lock().unwrap() = Some((file, lock));
                }
            },
            move || {
                let again = again.clone();
                async move {
                    let disk = SimDisk::mount();
                    let _lock = disk.lock(Path::new("/d/lock")).await.unwrap();
                    let zombie = again.lock().unwrap().take().unwrap();
                    let error = zombie.0.append(512, page(3)).await.unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
                    drop(zombie);
                    let taken = disk.lock(Path::new("/d/lock")).await;
                    assert!(taken.is_err(), "a zombie's drop frees no lock of the living");
                    *again.lock().unwrap() = None;
                }
            },
        );
        pass(Duration::from_secs(1)).await;
        Handle::current().kill(id);
        Handle::current().restart(id);
        pass(Duration::from_secs(1)).await;
        assert!(kept.lock().unwrap().is_none(), "the second life came to its end");
    });
}

#[test]
fn a_frozen_disk_answers_nothing_until_the_kill() {
    run(4, async || {
        let done = Arc::new(Mutex::new(0));
        let count = done.clone();
        let id = node(
            move || {
                let count = count.clone();
                async move {
                    let file = prepared(&SimDisk::mount()).await;
                    for place in 1.. {
                        file.append(512 * place, page(2)).await.unwrap();
                        *count.lock().unwrap() += 1;
                        pass(Duration::from_millis(100)).await;
                    }
                }
            },
            || async {},
        );
        pass(Duration::from_millis(350)).await;
        let before = *done.lock().unwrap();
        DiskSim::get().freeze_after(id, 3);
        DiskSim::get().frozen().await;
        assert!(DiskSim::get().is_frozen(id));
        pass(Duration::from_secs(5)).await;
        assert_eq!(*done.lock().unwrap(), before + 2, "the third operation does not happen");
        Handle::current().kill(id);
        assert!(!DiskSim::get().is_frozen(id));
    });
}

#[test]
fn no_space_failing_syncs_and_overwriting() {
    run(5, async || {
        let (disk, sim, id) = (SimDisk::mount(), DiskSim::get(), madsim::plugin::node());
        let file = prepared(&disk).await;
        let used = sim.used(id);
        sim.set_faults(id, |faults| faults.capacity = Some(used + 512));
        assert_eq!(disk.free_space(Path::new("/d")).await.unwrap(), 512);
        assert_eq!(file.preallocate(4096).await.unwrap_err().kind(), ErrorKind::StorageFull);
        file.append(512, page(2)).await.unwrap();
        assert_eq!(file.append(1024, page(2)).await.unwrap_err().kind(), ErrorKind::StorageFull);
        sim.set_faults(id, |faults| *faults = Faults { sync_error: 1.0, ..Faults::default() });
        assert_eq!(file.sync_data().await.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(sim.take_overwrites().is_empty());
        file.append(100, page(9)).await.unwrap();
        assert_eq!(sim.take_overwrites(), ["byte 100 of /d/f was written twice"]);
    });
}

#[test]
fn rot_strikes_what_is_old_and_synced() {
    run(6, async || {
        let (disk, sim, id) = (SimDisk::mount(), DiskSim::get(), madsim::plugin::node());
        let rot = |decay| sim.rot(id, Path::new("/d"), decay);
        let file = prepared(&disk).await;
        assert_eq!(rot(Decay::Bit), None, "what was written last is spared");
        for place in 1..3 {
            file.append(512 * place, page(2 + place as u8)).await.unwrap();
            file.sync_data().await.unwrap();
        }
        assert_eq!(sim.rot(id, Path::new("/e"), Decay::Bit), None, "elsewhere");
        assert!(rot(Decay::Bit).unwrap().ends_with("of /d/f"));
        let damaged = file.read_at(0, 512).await.unwrap();
        assert_eq!(damaged.iter().filter(|byte| **byte != 1).count(), 1);
        assert_eq!(sim.rotten(id, Path::new("/")).len(), 1);
        let later = file.read_at(512, 1024).await.unwrap();
        assert_eq!(later, [page(3)[0].clone(), page(4)[0].clone()].concat(), "later syncs are needed");
        for name in ["/d/g", "/d/h", "/d/i"] {
            let newer = disk.open(Path::new(name), Open::New).await.unwrap();
            newer.append(0, page(5)).await.unwrap();
        }
        let mut damaged = 0;
        for decay in [Decay::Sector, Decay::Stray, Decay::Stray, Decay::Stray] {
            damaged += usize::from(rot(decay).is_some());
        }
        assert!(damaged >= 2, "{damaged}");
        disk.remove(Path::new(FILE)).await.unwrap();
        assert_eq!(sim.rotten(id, Path::new("/")), Vec::<String>::new(), "rot goes with its file");
    });
}

#[test]
fn a_removed_file_takes_space_until_its_last_handle_is_gone() {
    run(7, async || {
        let (disk, sim, id) = (SimDisk::mount(), DiskSim::get(), madsim::plugin::node());
        let file = prepared(&disk).await;
        file.preallocate(4096).await.unwrap();
        assert_eq!((sim.used(id), sim.peak(id, Path::new("/d"))), (4096, 4096));
        disk.remove(Path::new(FILE)).await.unwrap();
        assert_eq!(sim.used(id), 4096, "an open file is still there");
        drop(file);
        assert_eq!(sim.used(id), 0);
        assert_eq!(sim.peak(id, Path::new("/d")), 4096);
    });
}

#[test]
fn a_directory_is_forgotten_with_all_that_is_in_it() {
    run(8, async || {
        let (disk, sim, id) = (SimDisk::mount(), DiskSim::get(), madsim::plugin::node());
        drop(prepared(&disk).await);
        sim.forget(id, Path::new("/d"));
        assert_eq!(
            disk.list_dir(Path::new("/d")).await.err().map(|error| error.kind()),
            Some(ErrorKind::NotFound)
        );
        assert_eq!(disk.list_dir(Path::new("/")).await.unwrap(), []);
        prepared(&disk).await;
    });
}

#[test]
fn reads_can_be_slow_alone() {
    run(9, async || {
        let (disk, sim, id) = (SimDisk::mount(), DiskSim::get(), madsim::plugin::node());
        let file = prepared(&disk).await;
        sim.set_faults(id, |faults| faults.slow_reads = 10_000);
        let begun = crate::time::now_ns();
        file.append(512, page(1)).await.unwrap();
        let written = crate::time::now_ns();
        drop(file.read_at(0, 512).await.unwrap());
        let read = crate::time::now_ns();
        assert!(written - begun < 10_000_000 && read - written >= 100_000_000, "{begun} {written} {read}");
    });
}

#[test]
fn one_seed_gives_one_disk() {
    let torn = |seed| crash(Some(Keep::Subset), seed);
    assert_eq!((0..30).map(torn).collect::<Vec<_>>(), (0..30).map(torn).collect::<Vec<_>>());
}
