//! Where interpreters are stepped: on one thread at a time, with a stack of known size.
//!
//! One at a time, because their memory is counted in a process-wide static (see the `alloc` module), and on a large stack,
//! because a cell may nest deeply. A thread that [`host`] made steps its interpreters itself; every other thread hands its
//! steps to one that is kept for them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvError, Sender, TryRecvError, bounded, unbounded};

use super::{ReplError, alloc};

/// Address space, not memory: pages are taken only when a cell really nests that deep. Enough for the parse and the
/// walk of a cell of `MAX_CODE` bytes that consists of nothing but nesting.
const STACK_BYTES: usize = 256 << 20;

/// How long a thread looks for its next message before it sleeps.
const PATIENCE: Duration = Duration::from_micros(40);

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Whether this thread's stack is large enough for a step.
    static ROOMY: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread is in the middle of a step.
    static STEPPING: Cell<bool> = const { Cell::new(false) };
}

/// Held by the thread that steps.
static TURN: Mutex<()> = Mutex::new(());

static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();

/// Receives, looking for a while before going to sleep: steps take microseconds, waking a thread much longer.
fn patient<T>(receiver: &Receiver<T>) -> Result<T, RecvError> {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            match receiver.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
            }
        }
        if start.elapsed() > PATIENCE {
            return receiver.recv();
        }
    }
}

fn jobs() -> Option<&'static Sender<Job>> {
    JOBS.get_or_init(|| {
        let (sender, receiver) = unbounded::<Job>();
        let work = move || {
            ROOMY.set(true);
            while let Ok(job) = patient(&receiver) {
                job();
            }
        };
        std::thread::Builder::new()
            .name("rao-interpreters".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .ok()
            .map(|_| sender)
    })
    .as_ref()
}

/// Runs `work` on a thread of its own that can step interpreters itself, and waits for it.
///
/// A step made there takes about 3 us, against 10 to 100 us for one that has to wake another thread. So a program that
/// drives rollouts does all of it inside.
///
/// # Panics
/// If `work` does. If the thread cannot be started, `work` runs on the calling one.
pub fn host<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let there = || {
        ROOMY.set(true);
        take().map(|work| work())
    };
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("rao-host".to_owned()).stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, there).ok().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    match done.flatten().or_else(|| take().map(|work| work())) {
        Some(out) => out,
        None => unreachable!("the work was taken without being run"),
    }
}

/// Runs `work`, a step or several, where interpreters may be stepped, and waits for it.
///
/// # Errors
/// [`ReplError::Lost`] if the thread for it cannot be started or `work` panicked; the thread itself lives on.
pub fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ReplError> {
    if ROOMY.get() {
        return step(work).map_err(|_| ReplError::lost("the interpreter panicked"));
    }
    let sender = jobs().ok_or_else(|| ReplError::lost("the interpreter thread could not be started"))?;
    let (reply, result) = bounded(1);
    let job = move || {
        // The receiver waits below; it cannot be gone.
        let _ = reply.send(step(work));
    };
    sender.send(Box::new(job)).map_err(|_| ReplError::lost("the interpreter thread has ended"))?;
    match patient(&result) {
        Ok(Ok(out)) => Ok(out),
        Ok(Err(_)) => Err(ReplError::lost("the interpreter panicked")),
        Err(_) => Err(ReplError::lost("the interpreter thread has ended")),
    }
}

/// Takes this thread's turn, unless it has it already, and runs `work`.
fn step<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    let work = AssertUnwindSafe(work);
    if STEPPING.get() {
        return catch_unwind(work);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    alloc::arm();
    STEPPING.set(true);
    let done = catch_unwind(work);
    STEPPING.set(false);
    done
}
