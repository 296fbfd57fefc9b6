//! Finding the interpreter, and what is asked of the machine before agents' code runs in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::protocol::Ready;

/// Prints where the interpreter is and where it finds modules. It runs with the caller's environment, because `python3`
/// may be a script that needs it; workers get an empty one.
const PROBE: &str = "import json, platform, sys\n\
                     path = [entry for entry in sys.path if entry]\n\
                     print(json.dumps({'program': sys.executable, 'path': path, 'minor': sys.version_info[:2],\n\
                     'version': platform.python_version(), 'kind': sys.implementation.name}))";

/// The oldest Python whose `asyncio` the worker knows.
const OLDEST: (u32, u32) = (3, 10);

/// Why there is no CPython engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpythonError {
    /// There is no usable interpreter.
    #[error("`{python}` cannot run cells: {reason}; name a CPython of version 3.10 or later with --python PATH, or use --repl monty", python = python.display())]
    Interpreter {
        /// What was tried.
        python: PathBuf,
        /// Why it does not do.
        reason: String,
    },
    /// Cells could reach the network, start processes or write files.
    #[error(
        "this machine does not let the Python worker be locked in: {protections}. Cells could open sockets, start processes and write files. Allow that with --allow-unsandboxed, or use --repl monty"
    )]
    Unprotected {
        /// What is on and what is off.
        protections: Protections,
    },
}

/// What keeps a worker's cells in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protections {
    /// Resource limits (memory, processor time, open files, no file growth): why they are off, or `None`.
    pub limits: Option<String>,
    /// The system call filter (no network, no processes, threads or signals, no change of files): why it is off, or
    /// `None`.
    pub seccomp: Option<String>,
    /// Landlock (reads only of Python's own folders, no writes): why it is off, or `None`.
    pub landlock: Option<String>,
}

impl Protections {
    pub(super) fn of(ready: &Ready) -> Protections {
        let Ready { limits, landlock, seccomp, .. } = ready.clone();
        Protections { limits, seccomp, landlock }
    }

    /// Whether cells can neither reach the network nor start processes nor change files.
    ///
    /// Landlock is not needed for that: without it cells can read files that are not Python's.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.limits.is_none() && self.seccomp.is_none()
    }

    /// Whether all of them are on.
    #[must_use]
    pub fn all(&self) -> bool {
        self.hold() && self.landlock.is_none()
    }
}

impl fmt::Display for Protections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [("resource limits", &self.limits), ("seccomp", &self.seccomp), ("Landlock", &self.landlock)];
        for (at, (name, off)) in all.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match off {
                None => write!(f, "{comma}{name} on")?,
                Some(reason) => write!(f, "{comma}{name} off ({reason})")?,
            }
        }
        Ok(())
    }
}

/// An interpreter that exists.
#[derive(Clone, Debug)]
pub(super) struct Interpreter {
    pub(super) program: PathBuf,
    pub(super) path: Vec<String>,
    pub(super) version: String,
    /// Whether `setarch -R` works here: memory addresses are then the same in every process.
    pub(super) fixed_addresses: bool,
}

#[derive(Deserialize)]
struct Probed {
    program: PathBuf,
    path: Vec<String>,
    minor: (u32, u32),
    version: String,
    kind: String,
}

impl Interpreter {
    /// Asks `python` what it is.
    pub(super) fn find(python: &Path) -> Result<Interpreter, CpythonError> {
        let failed = |reason: String| CpythonError::Interpreter { python: python.to_owned(), reason };
        let output = Command::new(python)
            .args(["-s", "-E", "-c", PROBE])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.trim_end().lines().next_back().unwrap_or_default();
            return Err(failed(format!("it ended with {}: {last}", output.status)));
        }
        let probed: Probed = serde_json::from_slice(&output.stdout)
            .map_err(|error| failed(format!("it does not say what it is ({error})")))?;
        if probed.kind != "cpython" || probed.minor < OLDEST {
            return Err(failed(format!("it is {} {}", probed.kind, probed.version)));
        }
        let Probed { program, path, version, .. } = probed;
        let fixed_addresses = runs_under_setarch(&program);
        Ok(Interpreter { program, path, version, fixed_addresses })
    }

    /// The command that starts it; what it is to run follows.
    pub(super) fn command(&self) -> Command {
        if !self.fixed_addresses {
            return Command::new(&self.program);
        }
        let mut command = Command::new("setarch");
        command.arg("-R").arg(&self.program);
        command
    }
}

fn runs_under_setarch(program: &Path) -> bool {
    let mut command = Command::new("setarch");
    command.arg("-R").arg(program).args(["-I", "-S", "-c", ""]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_what_is_on_and_what_to_do() {
        let off = |text: &str| Some(text.to_owned());
        let protections = Protections { limits: None, seccomp: off("Invalid argument"), landlock: off("none here") };
        assert!(!protections.hold());
        let text = CpythonError::Unprotected { protections }.to_string();
        for part in ["resource limits on", "seccomp off (Invalid argument)", "Landlock off", "--allow-unsandboxed"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(Protections { limits: None, seccomp: None, landlock: off("none here") }.hold());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_python_is_named() {
        let text = Interpreter::find(Path::new("no-such-python")).unwrap_err().to_string();
        assert!(text.contains("`no-such-python` cannot run cells") && text.contains("--python PATH"), "{text}");
        let text = Interpreter::find(Path::new("true")).unwrap_err().to_string();
        assert!(text.contains("does not say what it is"), "{text}");
    }
}
