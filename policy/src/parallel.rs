use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A pool of one thread.
type Pool = rayon::ThreadPool;

/// Pools that no job uses. Their threads are kept: the allocator keeps memory for every thread that has ever asked, so new threads
/// for every call would let the process grow. Which pool runs a job decides nothing.
static IDLE: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

fn pool() -> Option<Pool> {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    idle.or_else(|| rayon::ThreadPoolBuilder::new().num_threads(1).build().ok())
}

/// Runs jobs `0..count`, each on one thread, as many at once as the current rayon pool has threads; results in order.
///
/// A training pass has too many short operations to use two cores well from inside. Whole micro-batches side by side do:
/// inside a job every operation stays on the job's thread. A job's result must not depend on the others, and passes of one
/// [`crate::Decoder`] do not; add the results up in order and the sum does not depend on the threads either.
pub fn side_by_side<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = rayon::current_num_threads().min(count);
    if threads <= 1 {
        return (0..count).map(job).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return done;
            }
            done.push((at, job(at)));
        }
    };
    // A pool of one thread keeps rayon's users inside the job; without one the job is only slower.
    let alone = |pool: Option<Pool>| match pool {
        Some(pool) => {
            let done = pool.install(work);
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
            done
        }
        None => work(),
    };
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| pool()).map(|pool| scope.spawn(move || alone(pool))).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|p| std::panic::resume_unwind(p))
        };
        workers.into_iter().flat_map(join).collect()
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Runs `work` with the current rayon pool's other threads awake: they look for parts of it until it is over.
///
/// A decoding step is hundreds of products of a few hundred microseconds. A thread that sleeps in between is woken too late for
/// its share of the next one, above all on a virtual or a busy machine; so it does not sleep. On no thread of a pool, or on that
/// of a pool of one, `work` just runs.
pub(crate) fn awake<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let Some(own) = rayon::current_thread_index().filter(|_| rayon::current_num_threads() > 1) else { return work() };
    let over = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        scope.spawn_broadcast(|_, context| {
            // The thread that does the work must not wait for itself.
            while context.index() != own && !over.load(Ordering::Acquire) {
                if rayon::yield_now() != Some(rayon::Yield::Executed) {
                    std::hint::spin_loop();
                }
            }
        });
        let _over = SetAtEnd(&over);
        work()
    })
}

/// Sets a flag when it goes, also in a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    #[test]
    fn awake_threads_share_the_work_and_go_to_rest() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let sum = || (0..1000u32).into_par_iter().with_max_len(1).map(u64::from).sum::<u64>();
        for _ in 0..20 {
            assert_eq!(pool.install(|| awake(|| (0..20).map(|_| sum()).sum::<u64>())), 20 * 499_500);
        }
        // One inside another, and outside of any pool.
        assert_eq!(pool.install(|| awake(|| awake(sum))), 499_500);
        assert_eq!(awake(sum), 499_500);
        let broken = std::panic::AssertUnwindSafe(|| pool.install(|| awake::<()>(|| panic!("inside"))));
        let broken = std::panic::catch_unwind(broken);
        assert!(broken.is_err());
        assert_eq!(pool.install(sum), 499_500);
    }
}
