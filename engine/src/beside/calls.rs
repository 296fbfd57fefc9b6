//! Threads for tool calls that run by themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::{Came, Deliver};
use crate::error::EngineError;
use crate::rollout::DetachedCall;

/// The most calls that run at a time; the others wait for their turn.
const THREADS: usize = 32;

/// Runs calls on threads of its own, which end when it is dropped and their calls are over.
pub(super) struct Workers {
    work: Sender<(usize, DetachedCall)>,
    waiting: Receiver<(usize, DetachedCall)>,
    results: Deliver,
    threads: usize,
    running: usize,
}

impl Workers {
    pub(super) fn new(results: Deliver) -> Self {
        let (work, waiting) = unbounded();
        Workers { work, waiting, results, threads: 0, running: 0 }
    }

    /// Calls whose results have not been taken.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// A result was taken.
    pub(super) fn note_end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Starts a call of the rollout with that number.
    pub(super) fn start(&mut self, rollout: usize, call: DetachedCall) -> Result<(), EngineError> {
        self.running += 1;
        if self.threads < self.running.min(THREADS) {
            let (waiting, results) = (self.waiting.clone(), Arc::clone(&self.results));
            let work = move || {
                // Ends when the workers are dropped.
                while let Ok((rollout, call)) = waiting.recv() {
                    results(run(rollout, call));
                }
            };
            std::thread::Builder::new()
                .name("rao-calls".to_owned())
                .spawn(work)
                .map_err(|error| EngineError::Internal(format!("no thread can be started for a tool call: {error}")))?;
            self.threads += 1;
        }
        self.work.send((rollout, call)).map_err(|_| EngineError::Internal("no thread takes tool calls".into()))
    }
}

fn run(rollout: usize, call: DetachedCall) -> Came {
    let DetachedCall { key, job } = call;
    let result = catch_unwind(AssertUnwindSafe(job)).map_err(|_| {
        EngineError::Internal(format!("call {} in step {} of node {} panicked", key.call, key.step, key.node))
    });
    Came::Call(rollout, key, result)
}
