//! Requests in flight: how the `arrival` scheduler asks a policy whose answers take long.
//!
//! The scheduler submits one request per ready node and goes on; the policy fills each request's [`Slot`] when its answer
//! is there, from whatever thread it likes. In which order answers come is a fact that the log keeps.

use std::fmt;

use crossbeam::channel::Sender;

use crate::actor::{Action, Ask};
use crate::error::EngineError;

/// One request, in this process. Never used twice by a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A policy that can have several requests in flight.
pub trait InFlight {
    /// The most requests that may be in flight at a time; at least 1. The scheduler never submits more.
    fn capacity(&self) -> usize;

    /// Starts taking an action and returns at once. `ask` lives only as long as this call: what the request needs of it is
    /// copied. The answer goes into `slot`, later and from any thread; an error in it ends the run, so a policy retries
    /// what can be retried before it gives up.
    ///
    /// # Errors
    /// When the request cannot even be started.
    fn submit(&mut self, ask: &Ask<'_>, slot: Slot) -> Result<(), EngineError>;

    /// The answer is not wanted any more, because its node was cancelled or the run is stopping. The request is given up
    /// as soon as may be; whatever its slot is given is ignored. Returns at once.
    fn cancel(&mut self, ticket: Ticket);
}

/// What reaches the scheduler from a policy.
pub(crate) type Answer = (Ticket, Result<Action, EngineError>);

/// Where the answer to one request goes. A slot that is dropped unfilled counts as a failure.
pub struct Slot {
    ticket: Ticket,
    answers: Option<Box<dyn FnOnce(Answer) + Send>>,
}

impl Slot {
    pub(crate) fn new<T: Send + 'static>(
        ticket: Ticket,
        answers: Sender<T>,
        wrap: impl FnOnce(Answer) -> T + Send + 'static,
    ) -> Slot {
        // A scheduler that has ended does not listen any more.
        Slot { ticket, answers: Some(Box::new(move |answer| drop(answers.send(wrap(answer))))) }
    }

    /// The request that it belongs to.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Hands the answer to the scheduler. Never waits.
    pub fn fill(mut self, answer: Result<Action, EngineError>) {
        self.send(answer);
    }

    fn send(&mut self, answer: Result<Action, EngineError>) {
        if let Some(send) = self.answers.take() {
            send((self.ticket, answer));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.answers.is_some() {
            self.send(Err(EngineError::Internal("the policy dropped a request without answering it".into())));
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
