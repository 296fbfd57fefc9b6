//! Workers on systems without Unix sockets: there are none, and the engine says so.

use std::time::Instant;

use serde_json::Value as Json;

use super::protocol::Message;
use super::sandbox::Interpreter;

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The deadline passed.
    Late,
    /// There is no worker.
    Broken(String),
}

/// A worker that cannot exist.
#[derive(Debug)]
pub(super) enum Worker {}

impl Worker {
    pub(super) fn spawn(_interpreter: &Interpreter) -> std::io::Result<Worker> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "its worker needs Unix sockets"))
    }

    pub(super) fn id(&self) -> u32 {
        match *self {}
    }

    pub(super) fn is_alive(&mut self) -> bool {
        match *self {}
    }

    pub(super) fn send(&mut self, _body: &Json, _deadline: Instant) -> Result<(), Stop> {
        match *self {}
    }

    pub(super) fn receive(&mut self, _deadline: Instant) -> Result<Message, Stop> {
        match *self {}
    }
}
