//! What the allocator does with the memory of one pass before the next.

use std::sync::Once;

/// The largest block that glibc learns from (32 MiB), less what it adds to a block itself.
const LARGEST: usize = (32 << 20) - (64 << 10);

/// Lets memory that a pass has freed serve the next one.
///
/// The operations' results are tens of blocks of megabytes. glibc fetches such a block from the system and gives it back at once,
/// so that every page of it is zeroed and mapped again each time, which costs a small model a fifth of its time. It raises the
/// size from which on it does so to that of the largest block that was ever freed, up to 32 MiB, and from then on keeps twice as
/// much: freeing one such block, never touched, is enough. Other allocators do not mind.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST))));
}
