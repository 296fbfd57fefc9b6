//! Where a training run's events go.

use rao_store::event::Body;
use rao_store::{Expected, Log, RunId, Seq, Stream, Ticket};

use super::TrainError;

/// Takes the events of one training run, in order.
pub trait Sink {
    /// Appends events. They may be acknowledged later.
    ///
    /// # Errors
    /// When an append failed, this one or one before it.
    fn append(&mut self, bodies: Vec<Body>) -> Result<(), TrainError>;

    /// Waits until everything appended is acknowledged.
    ///
    /// # Errors
    /// When an append failed.
    fn flush(&mut self) -> Result<(), TrainError>;
}

/// Keeps nothing: training without a record.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSink;

impl Sink for NoSink {
    fn append(&mut self, _bodies: Vec<Body>) -> Result<(), TrainError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Appends that may be waiting for the disk at once.
const WAITING: usize = 64;

/// Writes into a log's training stream.
pub struct LogSink<'a> {
    log: &'a Log,
    stream: Stream,
    next: Seq,
    waiting: std::collections::VecDeque<Ticket>,
}

impl<'a> LogSink<'a> {
    /// A sink for the training run `run`, whose stream must be new.
    #[must_use]
    pub fn new(log: &'a Log, run: RunId) -> Self {
        LogSink { log, stream: Stream::Training(run), next: Seq(0), waiting: std::collections::VecDeque::new() }
    }
}

impl Sink for LogSink<'_> {
    fn append(&mut self, bodies: Vec<Body>) -> Result<(), TrainError> {
        if bodies.is_empty() {
            return Ok(());
        }
        let count = bodies.len() as u64;
        self.waiting.push_back(self.log.submit(self.stream, Expected::Exactly(self.next), bodies));
        self.next = Seq(self.next.0 + count);
        while self.waiting.len() > WAITING {
            if let Some(ticket) = self.waiting.pop_front() {
                ticket.wait()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        for ticket in self.waiting.drain(..) {
            ticket.wait()?;
        }
        Ok(())
    }
}
