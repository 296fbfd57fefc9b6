//! Workers on systems without Unix sockets: there are none, and the engine says so.

use std::sync::Arc;
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

/// A fork server that cannot exist.
#[derive(Debug)]
pub(super) enum Server {}

impl Server {
    pub(super) fn start(_interpreter: &Interpreter, _deadline: Instant) -> Result<Server, Stop> {
        Err(Stop::Broken("it needs Unix sockets and fork(2)".to_owned()))
    }

    pub(super) fn is_alive(&self) -> bool {
        match *self {}
    }
}

/// A worker that cannot exist.
#[derive(Debug)]
pub(super) enum Worker {}

impl Worker {
    pub(super) fn open(server: &Arc<Server>, _deadline: Instant) -> Result<Worker, Stop> {
        match **server {}
    }

    pub(super) fn id(&self) -> u32 {
        match *self {}
    }

    pub(super) fn is_orphan(&self) -> bool {
        match *self {}
    }

    pub(super) fn send(&mut self, _body: &Json, _deadline: Instant) -> Result<(), Stop> {
        match *self {}
    }

    pub(super) fn receive(&mut self, _deadline: Instant) -> Result<Message, Stop> {
        match *self {}
    }
}
