//! Sends `syscall(SYS_getrandom)` to madsim while a simulation runs.
//!
//! raft-rs draws election jitter from rand 0.8, whose getrandom 0.2 reaches the
//! kernel through libc's `syscall`, which madsim does not intercept: without
//! this symbol no seed would repeat. Everything else goes on to the real `syscall`.
//!
//! **The one file of `unsafe`**: exporting a C symbol and calling the next one
//! of its name cannot be written without.
#![allow(unsafe_code)]

use std::{
    ffi::{c_long, c_void},
    mem::transmute,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

type Syscall = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

unsafe extern "C" {
    /// madsim's, which draws from the seed while a runtime is current.
    fn getrandom(buffer: *mut c_void, length: usize, flags: u32) -> isize;
}

/// libc's own `syscall`. No `Once`: std's futex comes through here.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// # Safety
/// As `syscall(2)`: the caller vouches for the arguments, which are handed on unchanged.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_getrandom && madsim::runtime::Handle::try_current().is_ok() {
        // SAFETY: the arguments of this system call are those of the function.
        return unsafe { getrandom(a as *mut c_void, b as usize, c as u32) } as c_long;
    }
    let mut next = NEXT.load(Relaxed);
    if next.is_null() {
        // SAFETY: the name is a C string; the result is checked.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
        assert!(!next.is_null(), "libc exports syscall");
        NEXT.store(next, Relaxed);
    }
    // SAFETY: `next` is libc's variadic `syscall`, which takes up to six arguments in registers.
    unsafe { transmute::<*mut c_void, Syscall>(next)(number, a, b, c, d, e, f) }
}

/// Called by `main`, so that the linker keeps the symbol.
pub fn keep() {
    std::hint::black_box(syscall as *const ());
}

#[cfg(test)]
mod tests {
    use crate::seed;
    use std::time::Duration;

    fn draw(seed: u64) -> [u8; 16] {
        super::keep();
        seed::run(seed, Duration::from_secs(1), false, || async {
            let mut bytes = [0u8; 16];
            // SAFETY: the buffer is as long as is said.
            let got = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
            assert_eq!(got, 16);
            bytes
        })
        .result
        .unwrap()
    }

    #[test]
    fn the_kernels_random_bytes_come_from_the_seed() {
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
