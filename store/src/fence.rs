//! A fence around code that may panic on damaged files: sled 0.34 does, when it opens them.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Runs `work`; a panic in it becomes its message.
///
/// While it runs, the panic hook keeps quiet for this thread, so that a failure that is handled does not also print a
/// backtrace. Other threads' panics are reported as always.
pub(crate) fn fenced<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // One at a time, so that each restores the hook that it found.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if thread::panicking() {
        return Err("the thread is already panicking".to_owned());
    }
    let own = thread::current().id();
    let usual = Arc::new(panic::take_hook());
    let inner = Arc::clone(&usual);
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != own {
            inner(info);
        }
    }));
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    drop(panic::take_hook());
    match Arc::try_unwrap(usual) {
        Ok(usual) => panic::set_hook(usual),
        Err(usual) => panic::set_hook(Box::new(move |info| usual(info))),
    }
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
    })
}
