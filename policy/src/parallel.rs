use std::sync::atomic::{AtomicUsize, Ordering};
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
