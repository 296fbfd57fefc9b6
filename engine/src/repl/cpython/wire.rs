//! Messages over a socket, each with a deadline.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::protocol::{self, Message};

/// Why there is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The deadline passed.
    Late,
    /// Nobody is at the other end any more.
    Closed,
    /// What came is no message.
    Nonsense(String),
}

/// A socket and what of the next message has arrived.
#[derive(Debug)]
pub(super) struct Wire {
    socket: UnixStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn new(socket: UnixStream) -> Wire {
        Wire { socket, buffer: Vec::new() }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, body: &Json, deadline: Instant) -> Result<(), Fault> {
        let bytes = protocol::frame(body);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let left = left(deadline)?;
            self.socket.set_write_timeout(Some(left)).map_err(|_| Fault::Closed)?;
            match self.socket.write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if is_passing(error.kind()) => {}
                Err(_) => return Err(Fault::Closed),
            }
        }
        Ok(())
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message, Fault> {
        loop {
            match protocol::take(&mut self.buffer) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(reason) => return Err(Fault::Nonsense(reason)),
            }
            let left = left(deadline)?;
            self.socket.set_read_timeout(Some(left)).map_err(|_| Fault::Closed)?;
            let mut chunk = [0; 16 << 10];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(Fault::Closed),
                Ok(read) => self.buffer.extend_from_slice(chunk.get(..read).unwrap_or_default()),
                Err(error) if is_passing(error.kind()) => {}
                Err(_) => return Err(Fault::Closed),
            }
        }
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn close(&self) {
        // It fails only if the other end is gone already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Time until the deadline; never zero, which a socket would take for no limit.
fn left(deadline: Instant) -> Result<Duration, Fault> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Fault::Late) } else { Ok(left.max(Duration::from_micros(100))) }
}
