//! The REPL that a node's cells run in.
//!
//! A [`ReplEngine`] opens one [`Repl`] per node. A cell is started, stops at every call of a host function and whenever
//! everything it waits for is pending, and is continued with the answers: the host sees each call as a value with a
//! number and decides when and in which order it is answered. Nothing here knows tools, agents or logs.
//!
//! ```
//! use rao_engine::repl::{CellLimits, Function, Monty, Progress, ReplEngine, Reply};
//! use rao_envs::{ToolResult, Value};
//!
//! let engine = Monty::new();
//! let mut repl = engine.open(&[Function::sync("double")], &CellLimits::default(), 7)?;
//! let Progress::Call(call) = repl.start("x = double(4)\nprint(x)")? else { panic!("the cell calls double") };
//! assert_eq!((call.name.as_str(), call.args.args.as_slice()), ("double", &[Value::Int(4)][..]));
//! let Progress::Done(cell) = repl.answer(Reply::Now(ToolResult::Value(Value::Int(8))))? else { panic!("it is over") };
//! assert_eq!(cell.stdout, "8\n");
//! # Ok::<(), rao_engine::repl::ReplError>(())
//! ```

mod alloc;
mod checks;
mod compact;
mod convert;
mod cpython;
mod kept;
mod machine;
mod monty;
mod output;
mod rest;
mod snapshot;
mod thread;

use std::sync::Arc;

use rao_envs::{Args, Text, ToolResult};
use serde::{Deserialize, Serialize};

pub use self::cpython::{Cpython, CpythonError, CpythonOptions, Protections};
pub use self::kept::{Keeping, KeptSessions};
pub use self::monty::Monty;
pub use self::thread::{host as on_host_thread, run as on_interpreter_thread};

/// The longest cell that is run, in bytes of code.
pub const MAX_CODE: usize = 64 * 1024;

/// A function that cells can call and the host answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Function {
    /// The name under which cells call it.
    pub name: String,
    /// Whether the call gives an awaitable: several can then be pending at once.
    pub is_async: bool,
}

impl Function {
    /// A function whose call waits for its answer.
    pub fn sync(name: impl Into<String>) -> Function {
        Function { name: name.into(), is_async: false }
    }

    /// A function whose call must be awaited.
    pub fn asynchronous(name: impl Into<String>) -> Function {
        Function { name: name.into(), is_async: true }
    }
}

/// What a cell may use, and which cells are refused unread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellLimits {
    /// Execution time of one cell in milliseconds; the host's own time does not count.
    pub time_ms: u64,
    /// Memory of the whole session in bytes, its variables included.
    pub memory: usize,
    /// Nested Python calls; more raise `RecursionError`, which a cell can catch.
    pub recursion: usize,
    /// Host calls of one cell.
    pub calls: u32,
    /// Characters of stdout that are kept: the first three quarters and the last quarter of this number.
    pub output_chars: usize,
    /// Refuse cells with a `while` loop.
    pub reject_while: bool,
    /// Refuse cells that call `input()`.
    pub reject_input: bool,
}

impl Default for CellLimits {
    fn default() -> CellLimits {
        CellLimits {
            time_ms: 2_000,
            memory: 64 << 20,
            recursion: 1_000,
            calls: 1_000,
            output_chars: 10_000,
            reject_while: false,
            reject_input: true,
        }
    }
}

/// A call of a host function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The call's number within its cell, from 0 in the order of issue.
    pub call: u32,
    /// The function's name.
    pub name: String,
    /// Its arguments.
    pub args: Args,
    /// Whether it is one of the asynchronous functions.
    pub is_async: bool,
}

/// Where a cell stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// It called a host function. Answer a synchronous call with [`Reply::Now`], an asynchronous one with
    /// [`Reply::Pending`].
    Call(Call),
    /// Everything it could do waits for these calls. Answer with [`Reply::Answers`].
    Blocked {
        /// Numbers of the calls that can be answered now, in the order of issue.
        pending: Vec<u32>,
    },
    /// It is over; the session takes the next cell.
    Done(CellOutput),
}

/// What the host answers to a cell that stands at [`Progress::Call`] or [`Progress::Blocked`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The result of the synchronous call.
    Now(ToolResult),
    /// The asynchronous call is under way; the cell goes on without its result.
    Pending,
    /// Results of one or more pending calls. Order and grouping decide in which order the cell's tasks go on.
    Answers(Vec<(u32, ToolResult)>),
}

/// The limit that ended a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// [`CellLimits::time_ms`].
    Time,
    /// [`CellLimits::memory`].
    Memory,
    /// [`CellLimits::calls`].
    Calls,
}

/// A cell that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellOutput {
    /// What it printed, cut to [`CellLimits::output_chars`].
    pub stdout: String,
    /// `Type: message` of the exception that ended it, or why it was stopped or refused.
    pub error: Option<String>,
    /// Set if a limit ended it. The session is then as it was before the cell: a replay must not run the cell.
    pub limit: Option<Limit>,
    /// True if a static check refused it: nothing of it ran, and it issued no call.
    pub rejected: bool,
}

/// One node's persistent interpreter session.
///
/// Python errors are part of [`CellOutput`]; a [`ReplError`] is a mistake of the host or a broken interpreter.
/// A session may be dropped at any time, in the middle of a cell too.
pub trait Repl: Send {
    /// Gives the session a variable that is there before its first cell. The text is shared, not copied, for as long as no
    /// cell reads the variable. A session from a snapshot is to be given its variables again.
    ///
    /// # Errors
    /// [`ReplError::Misuse`] while a cell is running.
    fn define(&mut self, name: &str, text: Text) -> Result<(), ReplError>;

    /// Starts a cell.
    ///
    /// # Errors
    /// [`ReplError::Misuse`] while a cell is running; [`ReplError::Lost`] if the interpreter broke.
    fn start(&mut self, code: &str) -> Result<Progress, ReplError>;

    /// Continues the cell.
    ///
    /// # Errors
    /// [`ReplError::Misuse`] for a reply that does not fit where the cell stands, which is left unchanged;
    /// [`ReplError::Lost`] if the interpreter broke.
    fn answer(&mut self, reply: Reply) -> Result<Progress, ReplError>;

    /// The whole session as bytes, idle or in the middle of a cell. They are for [`ReplEngine::restore`] only; two
    /// snapshots of equal sessions may differ.
    ///
    /// # Errors
    /// [`ReplError::Snapshot`] if the engine cannot write one.
    fn snapshot(&mut self) -> Result<Vec<u8>, ReplError>;

    /// Bytes that the session holds in this process now, as far as it counts them. A session that rests holds none.
    fn held(&self) -> usize {
        0
    }

    /// Makes the session small for as long as nothing is asked of it, idle or in the middle of a cell. The texts that it
    /// was given are left out and put back, so only what the cells made themselves takes memory.
    ///
    /// # Errors
    /// [`ReplError::Lost`] if the interpreter broke.
    fn rest(&mut self) -> Result<(), ReplError> {
        Ok(())
    }
}

/// Makes sessions.
pub trait ReplEngine: Send + Sync {
    /// Name, version and prelude digest, such as `monty 1.4.0 prelude 0123456789ab`: sessions of equal identity behave
    /// alike.
    fn identity(&self) -> String;

    /// Opens a fresh session. `seed` decides `random`; the clock stands still, and sleeps take no time.
    ///
    /// # Errors
    /// [`ReplError::Lost`] if the interpreter cannot be started.
    fn open(&self, functions: &[Function], limits: &CellLimits, seed: u64) -> Result<Box<dyn Repl>, ReplError>;

    /// Opens a session from a [`Repl::snapshot`] that this program wrote. A cell in progress stands where it stood.
    ///
    /// # Errors
    /// [`ReplError::Snapshot`] if the bytes come from an engine of another identity or are no snapshot.
    fn restore(&self, functions: &[Function], limits: &CellLimits, snapshot: &[u8])
    -> Result<Box<dyn Repl>, ReplError>;

    /// Whether a snapshot holds the session's state, so that to restore it runs no cell.
    fn snapshots_are_quick(&self) -> bool {
        false
    }

    /// Where sessions are kept that would have to be built again otherwise.
    fn kept(&self) -> Option<&KeptSessions> {
        None
    }

    /// The same engine without kept sessions, where it has some.
    fn plain(&self) -> Option<Arc<dyn ReplEngine>> {
        None
    }
}

/// Why a session could not do what the host asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplError {
    /// The host broke the protocol.
    #[error("the REPL was driven wrongly: {reason}")]
    Misuse {
        /// What was wrong.
        reason: String,
    },
    /// A snapshot that cannot be written or read.
    #[error("a REPL snapshot cannot be used: {reason}; replay the node's cells from the log instead")]
    Snapshot {
        /// Why.
        reason: String,
    },
    /// The interpreter broke. The session is as it was before the cell if that could be restored.
    #[error("the Python interpreter broke ({reason}); replay the node's cells from the log to get its session back")]
    Lost {
        /// What happened.
        reason: String,
    },
}

impl ReplError {
    fn misuse(reason: impl Into<String>) -> ReplError {
        ReplError::Misuse { reason: reason.into() }
    }

    fn snapshot(reason: impl Into<String>) -> ReplError {
        ReplError::Snapshot { reason: reason.into() }
    }

    fn lost(reason: impl Into<String>) -> ReplError {
        ReplError::Lost { reason: reason.into() }
    }
}
