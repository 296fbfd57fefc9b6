//! The fork server: a Python that has loaded everything and runs no cells; each session's process is a fork of it.
//!
//! `forkserver.py` is the other side. The host connects to it once for each session, and asks it over a socket of its own
//! to end a session's process or how one ended: the server is their parent, so no number can mean another process.

use std::os::fd::OwnedFd;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::PROGRAM;
use super::protocol::{Message, Token};
use super::sandbox::Interpreter;
use super::wire::{Fault, Wire};
use super::worker::Stop;

/// How long a server may take to answer about a process, which includes the end of that process.
const ANSWER: Duration = Duration::from_secs(30);

/// How long a server may take to end its sessions and itself.
const ENDING: Duration = Duration::from_secs(2);

/// A running fork server; dropping it ends it with every session that it still has.
#[derive(Debug)]
pub(super) struct Server {
    child: Mutex<Child>,
    control: Mutex<Wire>,
    address: SocketAddr,
    token: Token,
}

impl Server {
    /// Starts one and waits until it is ready to fork.
    ///
    /// The environment holds nothing of the caller's, and the process group is its own, so that Ctrl-C reaches the host
    /// only.
    pub(super) fn start(interpreter: &Interpreter, deadline: Instant) -> Result<Server, Stop> {
        let broken = |error: std::io::Error| Stop::Broken(error.to_string());
        let (socket, theirs) = UnixStream::pair().map_err(broken)?;
        let mut child = interpreter
            .command()
            .args(["-S", "-s", "-B", "-X", "utf8", "-c", PROGRAM])
            .env_clear()
            .envs([("PYTHONHASHSEED", "0"), ("TZ", "UTC0"), ("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(broken)?;
        let mut control = Wire::new(socket);
        match ready(interpreter, &mut control, deadline) {
            Ok((token, address)) => {
                Ok(Server { child: Mutex::new(child), control: Mutex::new(control), address, token })
            }
            Err(fault) => {
                let status = end(&mut child, &control);
                Err(match fault {
                    Fault::Late => Stop::Late,
                    Fault::Closed => Stop::Broken(ended(status)),
                    Fault::Nonsense(reason) => Stop::Broken(format!("it sent {reason}")),
                })
            }
        }
    }

    /// Whether the process still runs.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait(), Ok(None))
    }

    /// A connection that a new session takes, and what that session must say first.
    pub(super) fn connect(&self) -> std::io::Result<(UnixStream, &Token)> {
        Ok((UnixStream::connect_addr(&self.address)?, &self.token))
    }

    /// How a session's process ended; `None` if it has not. Once it has, its number may mean another process.
    pub(super) fn ending(&self, process: u32) -> Result<Option<ExitStatus>, Fault> {
        self.ask(process, false)
    }

    /// Ends a session's process, if it has not ended.
    pub(super) fn end(&self, process: u32) {
        // A server that does not answer is gone, and its sessions with it.
        if let Err(fault) = self.ask(process, true) {
            tracing::debug!(?fault, process, "the fork server could not end a session");
        }
    }

    fn ask(&self, process: u32, end: bool) -> Result<Option<ExitStatus>, Fault> {
        let deadline = Instant::now() + ANSWER;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control.send(&json!({ "process": process, "end": end }), deadline)?;
        match control.receive(deadline)? {
            Message::Ended(status) => Ok(status.map(ExitStatus::from_raw)),
            _ => Err(Fault::Nonsense("no answer".to_owned())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let control = self.control.get_mut().unwrap_or_else(PoisonError::into_inner);
        end(child, control);
    }
}

/// What a session's end reads like.
pub(super) fn ended(status: ExitStatus) -> String {
    format!("its process ended with {status}")
}

/// Tells a new server what it needs; gives how its sessions are reached.
fn ready(interpreter: &Interpreter, control: &mut Wire, deadline: Instant) -> Result<(Token, SocketAddr), Fault> {
    let host = std::process::id();
    control.send(&json!({ "path": interpreter.path, "host": host }), deadline)?;
    let Message::Listening { token, name } = control.receive(deadline)? else {
        return Err(Fault::Nonsense("something before it was ready".to_owned()));
    };
    let address = address(&name).map_err(|error| Fault::Nonsense(format!("an address that is none: {error}")))?;
    Ok((token, address))
}

#[cfg(target_os = "linux")]
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    match name.strip_prefix(b"\0") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => path(name),
    }
}

#[cfg(not(target_os = "linux"))]
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    path(name)
}

fn path(name: &[u8]) -> std::io::Result<SocketAddr> {
    use std::os::unix::ffi::OsStrExt;
    SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))
}

/// Ends a server: it is told, so that it ends its sessions first and leaves nothing behind, and killed if it does not.
fn end(child: &mut Child, control: &Wire) -> ExitStatus {
    control.close();
    let start = Instant::now();
    while start.elapsed() < ENDING {
        match child.try_wait() {
            Ok(Some(status)) => return status,
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => break,
        }
    }
    // Both fail only if the process has ended already.
    let _ = child.kill();
    child.wait().unwrap_or_default()
}
