//! Memory accounting for many interpreters in one process.
//!
//! The interpreter compares one process-wide counter ([`LIVE_MEMORY`]) with its limit, which suits one interpreter per
//! process. Here every session keeps its own charge: it is loaded into the counter before a step and taken back after
//! it, and the global allocator counts only what the interpreter thread allocates in between. Whatever is allocated
//! inside must be freed inside, and the other way round; [`pause`] marks the host's own work in the middle of a step.
//!
//! On every other thread an allocation costs one extra read of a thread-local flag.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use monty_types::{BASELINE_MEMORY, LIVE_MEMORY};

/// Stands for "nothing charged": far enough from zero that a session which frees more than it was charged for (tables
/// that the interpreter keeps for the whole process) cannot make the unsigned counter wrap.
const ZERO: usize = 1 << 40;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
}

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Only the interpreter thread counts, so plain loads and stores do.
fn moved(gained: usize, lost: usize) {
    LIVE_MEMORY.store(LIVE_MEMORY.load(Relaxed).wrapping_add(gained).wrapping_sub(lost), Relaxed);
}

#[expect(unsafe_code, reason = "a global allocator is an unsafe trait; this one only counts and forwards to System")]
// SAFETY: every method forwards its arguments unchanged to `System`, whose contract is the same, and returns what it
// gave. Counting touches a const-initialised thread-local without destructor and two atomics: it neither allocates nor
// unwinds.
unsafe impl GlobalAlloc for Counted {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.get() {
            moved(layout.size(), 0);
        }
        // SAFETY: the caller's guarantees are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if COUNTING.get() {
            moved(layout.size(), 0);
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if COUNTING.get() {
            moved(0, layout.size());
        }
        // SAFETY: `block` came from `System` with this layout, since every allocation here does.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if COUNTING.get() {
            moved(new_size, layout.size());
        }
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

/// Sets the flag and puts the old one back, also when a panic passes through.
struct Flag(bool);

impl Flag {
    fn set(on: bool) -> Flag {
        Flag(COUNTING.replace(on))
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        COUNTING.set(self.0);
    }
}

/// Arms the limits: without it the interpreter takes every session's memory for zero.
pub(super) fn arm() {
    BASELINE_MEMORY.store(ZERO, Relaxed);
}

/// Runs `step` with every allocation of this thread added to `charge` (bytes) and every release taken from it.
/// Only the interpreter thread may call it.
pub(super) fn charged<T>(charge: &mut i64, step: impl FnOnce() -> T) -> T {
    LIVE_MEMORY.store(ZERO.wrapping_add_signed(*charge as isize), Relaxed);
    let flag = Flag::set(true);
    let out = step();
    drop(flag);
    *charge = LIVE_MEMORY.load(Relaxed).wrapping_sub(ZERO) as i64;
    out
}

/// Runs the host's own work in the middle of a step: what it allocates outlives the step and is not the session's.
pub(super) fn pause<T>(work: impl FnOnce() -> T) -> T {
    let _flag = Flag::set(false);
    work()
}

/// A gap of so many bytes is worth giving back to the system, and a block of so many is worth making room for.
pub(super) const LARGE: usize = 4 << 20;

/// Gives free memory back to the system, as far as the allocator can. Left to itself, glibc keeps what a large block took once
/// such a block was freed before, and the next one may not fit into it.
pub(super) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::malloc_trim(0);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    #[expect(unsafe_code, reason = "std has no way to say it")]
    // SAFETY: this is its declaration in malloc.h; it takes a number and may be called at any time from any thread.
    unsafe extern "C" {
        pub(super) safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_charged_for_what_it_leaves() {
        let (kept, charge) = super::super::thread::run(|| {
            let mut charge = 100;
            let kept = charged(&mut charge, || {
                let kept = vec![0u8; 5_000];
                drop(vec![1u8; 7_000]);
                std::mem::forget(pause(|| vec![2u8; 9_000]));
                kept
            });
            (kept, charge)
        })
        .unwrap();
        assert_eq!((kept.len(), charge), (5_000, 5_100));

        let charge = super::super::thread::run(move || {
            let mut charge = 5_100;
            charged(&mut charge, || drop(kept));
            charge
        })
        .unwrap();
        assert_eq!(charge, 100);
    }
}
