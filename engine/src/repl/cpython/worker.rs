//! One worker process and the socket to it.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::PROGRAM;
use super::protocol::{self, Message};
use super::sandbox::Interpreter;

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
    child: Child,
    socket: UnixStream,
    buffer: Vec<u8>,
}

impl Worker {
    /// Starts a worker: it loads its modules and then waits for its first message.
    ///
    /// The environment holds nothing of the caller's, and the process group is its own, so that Ctrl-C reaches the host
    /// only.
    pub(super) fn spawn(interpreter: &Interpreter) -> std::io::Result<Worker> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = interpreter
            .command()
            .args(["-S", "-s", "-B", "-X", "utf8", "-c", PROGRAM])
            .env_clear()
            .envs([("PYTHONHASHSEED", "0"), ("TZ", "UTC0"), ("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Worker { child, socket, buffer: Vec::new() })
    }

    /// The process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process still runs.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a message.
    pub(super) fn send(&mut self, body: &Json, deadline: Instant) -> Result<(), Stop> {
        let bytes = protocol::frame(body);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let left = left(deadline)?;
            self.socket.set_write_timeout(Some(left)).map_err(|error| Stop::Broken(error.to_string()))?;
            match self.socket.write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if is_passing(error.kind()) => {}
                Err(_) => return Err(Stop::Broken(self.ending())),
            }
        }
        Ok(())
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Message, Stop> {
        loop {
            match protocol::take(&mut self.buffer) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(reason) => return Err(Stop::Broken(format!("it sent {reason}"))),
            }
            let left = left(deadline)?;
            self.socket.set_read_timeout(Some(left)).map_err(|error| Stop::Broken(error.to_string()))?;
            let mut chunk = [0; 16 << 10];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(Stop::Broken(self.ending())),
                Ok(read) => self.buffer.extend_from_slice(chunk.get(..read).unwrap_or_default()),
                Err(error) if is_passing(error.kind()) => {}
                Err(_) => return Err(Stop::Broken(self.ending())),
            }
        }
    }

    /// How the process ended.
    fn ending(&mut self) -> String {
        let start = Instant::now();
        while start.elapsed() < ENDING {
            match self.child.try_wait() {
                Ok(Some(status)) => return ending(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return error.to_string(),
            }
        }
        "it closed its connection".to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ending(status: ExitStatus) -> String {
    format!("its process ended with {status}")
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Time until the deadline; never zero, which a socket would take for no limit.
fn left(deadline: Instant) -> Result<Duration, Stop> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Stop::Late) } else { Ok(left.max(Duration::from_micros(100))) }
}
