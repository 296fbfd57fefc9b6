//! Where events go.

use std::sync::Arc;

use rao_store::event::Body;
use rao_store::{Expected, Log, Seq, Stream, Ticket};

use crate::error::EngineError;

/// Takes a rollout's events in order.
pub trait Sink {
    /// Takes the event that stands at `seq`.
    ///
    /// # Errors
    /// When the event cannot be taken: the log failed, or a replay found that it differs.
    fn emit(&mut self, seq: Seq, body: &Body) -> Result<(), EngineError>;

    /// Hands on what was taken so far; called whenever the rollout comes to wait.
    ///
    /// # Errors
    /// When the log failed.
    fn hand_on(&mut self) -> Result<(), EngineError>;

    /// Waits until everything handed on is acknowledged.
    ///
    /// # Errors
    /// When the log failed.
    fn settle(&mut self) -> Result<(), EngineError>;
}

/// Appends a rollout's events to a log.
pub struct LogSink {
    log: Arc<Log>,
    stream: Stream,
    first: Seq,
    waiting: Vec<Body>,
    tickets: Vec<Ticket>,
}

impl LogSink {
    /// A sink for `stream`, whose next event is `next`.
    #[must_use]
    pub fn new(log: Arc<Log>, stream: Stream, next: Seq) -> Self {
        LogSink { log, stream, first: next, waiting: Vec::new(), tickets: Vec::new() }
    }
}

impl Sink for LogSink {
    fn emit(&mut self, seq: Seq, body: &Body) -> Result<(), EngineError> {
        debug_assert_eq!(seq.0, self.first.0 + self.waiting.len() as u64);
        self.waiting.push(body.clone());
        Ok(())
    }

    fn hand_on(&mut self) -> Result<(), EngineError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let bodies = std::mem::take(&mut self.waiting);
        let next = Seq(self.first.0 + bodies.len() as u64);
        self.tickets.push(self.log.submit(self.stream, Expected::Exactly(self.first), bodies));
        self.first = next;
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        for ticket in self.tickets.drain(..) {
            ticket.wait()?;
        }
        Ok(())
    }
}
