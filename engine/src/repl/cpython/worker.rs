//! One session's process, a fork of the fork server, and the socket to it.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::protocol::Message;
use super::server::ended;
use super::wire::{Fault, Wire};

pub(super) use super::server::Server;

/// How long a worker that closed its socket may take to end.
const ENDING: Duration = Duration::from_millis(100);

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The deadline passed.
    Late,
    /// The worker ended, or sent what no worker sends.
    Broken(String),
}

/// A running worker; dropping it kills it.
#[derive(Debug)]
pub(super) struct Worker {
    server: Arc<Server>,
    process: u32,
    /// How the process ended, once the server has said so: the process's number is then no longer ours.
    ended: Option<ExitStatus>,
    wire: Wire,
}

impl Worker {
    /// Has the server fork a worker, which then waits for its first message.
    pub(super) fn open(server: &Arc<Server>, deadline: Instant) -> Result<Worker, Stop> {
        let (socket, token) = server.connect().map_err(|error| Stop::Broken(error.to_string()))?;
        let mut wire = Wire::new(socket);
        let process = match wire.receive(deadline) {
            Ok(Message::Hello { token: said, process }) if said == *token => process,
            Ok(Message::Refused(reason)) => return Err(Stop::Broken(reason)),
            Ok(_) => return Err(Stop::Broken("it is not the fork server's".to_owned())),
            Err(Fault::Late) => return Err(Stop::Late),
            Err(Fault::Closed) => return Err(Stop::Broken("the fork server ended".to_owned())),
            Err(Fault::Nonsense(reason)) => return Err(Stop::Broken(format!("it sent {reason}"))),
        };
        Ok(Worker { server: Arc::clone(server), process, ended: None, wire })
    }

    /// The process.
    pub(super) fn id(&self) -> u32 {
        self.process
    }

    /// Whether the fork server is gone, and this worker with it through no fault of its cell.
    pub(super) fn is_orphan(&self) -> bool {
        !self.server.is_alive()
    }

    /// Sends a message.
    pub(super) fn send(&mut self, body: &Json, deadline: Instant) -> Result<(), Stop> {
        self.wire.send(body, deadline).map_err(|fault| self.stop(fault))
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message, Stop> {
        self.wire.receive(deadline).map_err(|fault| self.stop(fault))
    }

    fn stop(&mut self, fault: Fault) -> Stop {
        match fault {
            Fault::Late => Stop::Late,
            Fault::Closed => Stop::Broken(self.ending()),
            Fault::Nonsense(reason) => Stop::Broken(format!("it sent {reason}")),
        }
    }

    /// How the process ended.
    fn ending(&mut self) -> String {
        let start = Instant::now();
        while self.ended.is_none() && start.elapsed() < ENDING {
            match self.server.ending(self.process) {
                Ok(Some(status)) => self.ended = Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return "the fork server ended, and its process with it".to_owned(),
            }
        }
        self.ended.map_or_else(|| "it closed its connection".to_owned(), ended)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.server.end(self.process);
        }
    }
}
