//! The one thread of the process that steps interpreters.
//!
//! One at a time, because their memory is counted in a process-wide static (see the `alloc` module), and on a stack of
//! known size, because a cell may nest deeply.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
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
    /// Whether this is the interpreter thread.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

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
            HERE.set(true);
            alloc::arm();
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

/// Runs `work` on the interpreter thread and waits for it; at once where this is that thread.
///
/// Every step of a session goes through here. A host that runs many short steps in a row, such as all cells of a round
/// with their tool calls, does so inside one `work`: a step made there takes about 3 us, against 10 to 100 us for one
/// that has to wake the thread.
///
/// # Errors
/// [`ReplError::Lost`] if the thread cannot be started or `work` panicked; the thread itself lives on.
pub fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ReplError> {
    if HERE.get() {
        return catch_unwind(AssertUnwindSafe(work)).map_err(|_| ReplError::lost("the interpreter panicked"));
    }
    let sender = jobs().ok_or_else(|| ReplError::lost("the interpreter thread could not be started"))?;
    let (reply, result) = bounded(1);
    let job = move || {
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // The receiver waits below; it cannot be gone.
        let _ = reply.send(outcome);
    };
    sender.send(Box::new(job)).map_err(|_| ReplError::lost("the interpreter thread has ended"))?;
    match patient(&result) {
        Ok(Ok(out)) => Ok(out),
        Ok(Err(_)) => Err(ReplError::lost("the interpreter panicked")),
        Err(_) => Err(ReplError::lost("the interpreter thread has ended")),
    }
}
