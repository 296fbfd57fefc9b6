//! One interpreter and the cell that it is running. Everything here that runs Python runs on the interpreter thread,
//! inside [`charged`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::{Arc, OnceLock};

use monty::{
    Dump, MontyRepl, ReplFunctionCall, ReplNameLookup, ReplOsCall, ReplProgress, ReplResolveFutures, ReplStartError,
    Session as Dumped, SessionRef, dump,
};
use monty_types::{
    CompileOptions, ExcType, ExtFunctionResult, MontyException, MontyObject, NameLookupResult, NamedValues,
    OsFunctionCall, PrintWriter, ResourceTracker, StringRepr,
};
use rao_envs::{Args, ToolResult};
use serde::{Deserialize, Serialize};

use super::alloc::{LARGE, charged, give_back};
use super::compact::Compact;
use super::monty::Setting;
use super::output::Output;
use super::rest::{self, Resting};
use super::{
    Call, CellLimits, CellOutput, Function, Limit, MAX_CODE, Progress, ReplError, Reply, checks, convert, snapshot,
};

/// Python that every session starts with; the `checks` module sends `import asyncio` to it.
pub(super) const PRELUDE: &str = include_str!("prelude.py");

/// The name in tracebacks and dumps.
const SCRIPT: &str = "agent.py";

/// What a cell is told that awaits a call of an earlier cell: its answer can no longer come.
const STALLED: &str = "an awaited call belongs to an earlier cell: await a call in the cell that makes it";

type Outcome = Result<ReplProgress, Box<ReplStartError>>;

/// Where a session stands: what it takes next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stand {
    /// A cell.
    Idle,
    /// The answer to a synchronous call.
    Sync,
    /// The word that an asynchronous call is pending.
    Async,
    /// Answers to some of these calls.
    Blocked(Vec<u32>),
}

/// The running cell's own numbers and text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) stand: Stand,
    /// Calls issued so far: the next call's number.
    calls: u32,
    /// The interpreter's number of each pending call, and ours.
    numbers: BTreeMap<u32, u32>,
    output: Output,
}

impl Cell {
    fn new(limits: &CellLimits) -> Cell {
        Cell { stand: Stand::Idle, calls: 0, numbers: BTreeMap::new(), output: Output::new(limits.output_chars) }
    }
}

/// The session that a broken cell gives way to.
#[derive(Clone)]
pub(super) enum Before {
    /// A fresh one.
    Fresh,
    /// The one in these bytes of a snapshot.
    Dumped(Arc<Vec<u8>>),
    /// The one that was kept when the cell began.
    Kept(Arc<Compact>),
}

#[expect(clippy::large_enum_variant, reason = "one per session, in the box that holds its machine")]
pub(super) enum State {
    Idle(MontyRepl),
    Running(ReplProgress),
    /// Put away for as long as nothing is asked of it.
    Resting(Resting),
    /// While a step has the interpreter.
    Moving,
}

pub(super) struct Machine {
    pub(super) state: State,
    /// Bytes that the session holds, as counted while it ran.
    pub(super) charge: i64,
    /// Set from just before a cell to its end.
    before: Option<Before>,
    /// No cell ran yet.
    fresh: bool,
    cell: Cell,
    /// The host's variables that the running cell read and that the session need not keep after it.
    read: BTreeSet<String>,
    /// The host's variables that a cell may have given another value: from then on they are the session's own.
    own: BTreeSet<String>,
}

/// A session that has run the prelude and nothing else, as bytes: loading it is cheaper than compiling it anew.
fn template() -> Result<&'static [u8], ReplError> {
    static TEMPLATE: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let made = TEMPLATE.get_or_init(|| {
        // Upstream explains a bare `assert` by default; Python gives it no message.
        let options = CompileOptions { assert_message_annotations: false.into(), ..CompileOptions::default() };
        let mut repl = MontyRepl::new(SCRIPT, ResourceTracker::default(), options);
        repl.feed_run(PRELUDE, NamedValues::new(), PrintWriter::Disabled).map_err(|error| error.to_string())?;
        dump(SCRIPT, None, &[], SessionRef::Idle(&repl)).map_err(|error| error.to_string())
    });
    made.as_deref().map_err(|reason| ReplError::lost(format!("the prelude does not run: {reason}")))
}

fn dump_idle(repl: &MontyRepl) -> Result<Vec<u8>, ReplError> {
    dump(SCRIPT, None, &[], SessionRef::Idle(repl)).map_err(|error| ReplError::snapshot(error.to_string()))
}

fn load(bytes: &[u8]) -> Result<Dumped, ReplError> {
    Dump::load(bytes).map(|dump| dump.state).map_err(|error| ReplError::snapshot(error.to_string()))
}

fn load_idle(bytes: &[u8]) -> Result<MontyRepl, ReplError> {
    let Dumped::Idle(repl) = load(bytes)? else {
        return Err(ReplError::snapshot("it is in the middle of a cell"));
    };
    Ok(*repl)
}

fn set_up(repl: MontyRepl, setting: &Setting) -> MontyRepl {
    let mut repl = repl.with_os_policy(setting.policy());
    *repl.tracker_mut() = setting.tracker();
    repl
}

/// Making, keeping and saving.
impl Machine {
    pub(super) fn fresh(setting: &Setting) -> Result<Machine, ReplError> {
        Machine::back(setting, &Before::Fresh)
    }

    /// The session as it was before a cell.
    pub(super) fn back(setting: &Setting, before: &Before) -> Result<Machine, ReplError> {
        let mut charge = 0;
        let repl = charged(&mut charge, || match before {
            Before::Fresh => load_idle(template()?),
            Before::Dumped(bytes) => load_idle(bytes),
            Before::Kept(compact) => rest::kept(compact),
        })?;
        let (repl, fresh) = (set_up(repl, setting), matches!(before, Before::Fresh));
        let cell = Cell::new(&setting.limits);
        let (read, own) = (BTreeSet::new(), BTreeSet::new());
        Ok(Machine { state: State::Idle(repl), charge, before: None, fresh, cell, read, own })
    }

    pub(super) fn from_snapshot(setting: &Setting, parts: snapshot::Parts) -> Result<Machine, ReplError> {
        let snapshot::Parts { head, before, state } = parts;
        let mut charge = 0;
        let idle = head.cell.stand == Stand::Idle;
        let state = charged(&mut charge, || {
            if idle {
                return load_idle(&state).map(|repl| State::Idle(set_up(repl, setting)));
            }
            match load(&state)? {
                Dumped::Suspended(progress) => Ok(State::Running(*progress)),
                _ => Err(ReplError::snapshot("it is not in the middle of a cell")),
            }
        })?;
        let before = match (idle, before) {
            (true, _) => None,
            (false, None) => Some(Before::Fresh),
            (false, Some(bytes)) => Some(Before::Dumped(Arc::new(bytes))),
        };
        let (read, own) = (BTreeSet::new(), BTreeSet::new());
        Ok(Machine { state, charge, before, fresh: head.fresh, cell: head.cell, read, own })
    }

    pub(super) fn snapshot(&self, identity: String, seed: u64) -> Result<Vec<u8>, ReplError> {
        let session = match &self.state {
            State::Idle(repl) => SessionRef::Idle(repl),
            State::Running(progress) => SessionRef::Suspended(progress),
            State::Resting(_) | State::Moving => return Err(ReplError::lost("an earlier cell broke it")),
        };
        let state = dump(SCRIPT, None, &[], session).map_err(|error| ReplError::snapshot(error.to_string()))?;
        let before = match &self.before {
            Some(Before::Dumped(bytes)) => Some(bytes.as_ref().clone()),
            Some(Before::Kept(compact)) => Some(dump_idle(&rest::kept(compact)?)?),
            Some(Before::Fresh) | None => None,
        };
        let head = snapshot::Head { identity, seed, fresh: self.fresh, cell: self.cell.clone() };
        snapshot::write(&snapshot::Parts { head, before, state })
    }

    /// Whether the next cell can start.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_) | State::Resting(Resting::Idle(_)))
    }

    /// The session that the running cell gives way to if it breaks.
    pub(super) fn before(&self) -> Option<Before> {
        self.before.clone()
    }

    /// Keeps the idle session's state for the case that the next cell breaks it. Runs no Python.
    pub(super) fn keep(&mut self, setting: &Setting) -> Result<(), ReplError> {
        self.before = Some(match &self.state {
            State::Idle(_) if self.fresh => Before::Fresh,
            State::Idle(repl) => rest::keep(repl, setting)?,
            State::Resting(Resting::Idle(compact)) => Before::Kept(Arc::clone(compact)),
            _ => return Err(ReplError::misuse("a cell was started while another is running")),
        });
        Ok(())
    }
}

/// Running cells.
impl Machine {
    pub(super) fn start(&mut self, setting: &Setting, code: &str) -> Result<Progress, ReplError> {
        let code = match prepare(code, setting) {
            Ok(code) => code,
            Err(reason) => {
                self.before = None;
                return Ok(Progress::Done(CellOutput { error: Some(reason), rejected: true, ..CellOutput::default() }));
            }
        };
        let State::Idle(repl) = std::mem::replace(&mut self.state, State::Moving) else {
            return Err(ReplError::lost("the idle session went missing"));
        };
        self.fresh = false;
        self.cell = Cell::new(&setting.limits);
        let rebinds = |name: &&String| checks::may_bind(&code, name);
        self.own.extend(setting.variables.iter().map(|(name, _)| name).filter(rebinds).cloned());
        let outcome = self.run(|print| repl.feed_start(&code, NamedValues::new(), print));
        self.pump(setting, outcome)
    }

    pub(super) fn answer(&mut self, setting: &Setting, reply: &Reply) -> Result<Progress, ReplError> {
        let answers = self.fitting(reply)?;
        let State::Running(progress) = std::mem::replace(&mut self.state, State::Moving) else {
            return Err(ReplError::lost("the running cell went missing"));
        };
        let outcome = self.run(|print| match (progress, reply) {
            (ReplProgress::FunctionCall(call), Reply::Now(result)) => call.resume(result_in(result), print),
            (ReplProgress::FunctionCall(call), _) => call.resume_pending(print),
            (ReplProgress::ResolveFutures(wait), _) => {
                wait.resume(answers.iter().map(|(id, result)| (*id, result_in(result))).collect(), print)
            }
            (other, _) => Ok(other),
        });
        self.pump(setting, outcome)
    }

    /// Runs a piece of Python. What `step` builds is the session's.
    fn run(&mut self, step: impl FnOnce(PrintWriter<'_>) -> Outcome) -> Outcome {
        let Machine { charge, cell, .. } = self;
        charged(charge, || step(PrintWriter::Callback(&mut cell.output)))
    }

    /// Checks that `reply` fits where the cell stands; gives the answers under the interpreter's numbers.
    fn fitting<'a>(&mut self, reply: &'a Reply) -> Result<Vec<(u32, &'a ToolResult)>, ReplError> {
        match (&self.cell.stand, reply) {
            (Stand::Sync, Reply::Now(_)) | (Stand::Async, Reply::Pending) => Ok(Vec::new()),
            (Stand::Blocked(pending), Reply::Answers(answers)) => {
                let mut found = Vec::with_capacity(answers.len());
                for (call, result) in answers {
                    let id = self.cell.numbers.iter().find(|(_, ours)| **ours == *call).map(|(id, _)| *id);
                    match id.filter(|id| pending.contains(call) && found.iter().all(|(seen, _)| seen != id)) {
                        Some(id) => found.push((id, result)),
                        None => {
                            return Err(ReplError::misuse(format!("call {call} is not pending, or answered twice")));
                        }
                    }
                }
                if found.is_empty() {
                    return Err(ReplError::misuse("an empty set of answers"));
                }
                self.cell.numbers.retain(|id, _| found.iter().all(|(seen, _)| seen != id));
                Ok(found)
            }
            (stand, _) => {
                Err(ReplError::misuse(format!("the session stands at {stand:?} and does not take this reply")))
            }
        }
    }

    /// Answers what the host need not see, until the cell stops or ends.
    fn pump(&mut self, setting: &Setting, mut outcome: Outcome) -> Result<Progress, ReplError> {
        loop {
            let progress = match outcome {
                Ok(progress) => progress,
                Err(failed) => return self.failed(setting, failed),
            };
            let stop = match progress {
                ReplProgress::Complete { mut repl, value } => {
                    let read = std::mem::take(&mut self.read);
                    charged(&mut self.charge, || {
                        drop(value);
                        release(&mut repl, &read);
                    });
                    return Ok(self.done(repl, None));
                }
                ReplProgress::NameLookup(lookup) => Continue(self.name(setting, lookup)),
                ReplProgress::OsCall(call) => Continue(self.os_call(call)),
                ReplProgress::FunctionCall(call) => match setting.function(&call.function_name) {
                    Some(_) if self.cell.calls >= setting.limits.calls => return self.limited(setting, Limit::Calls),
                    Some(function) if call.object_id.is_none() => self.function_call(setting, function, call),
                    _ => Continue(self.unknown_call(call)),
                },
                ReplProgress::ResolveFutures(wait) => self.blocked(wait),
            };
            match stop {
                Break(progress) => return Ok(progress),
                Continue(next) => outcome = next,
            }
        }
    }

    fn name(&mut self, setting: &Setting, lookup: ReplNameLookup) -> Outcome {
        let known = lookup.object_id().is_none() && setting.function(&lookup.name).is_some();
        let variable = setting.variable(&lookup.name).filter(|_| lookup.object_id().is_none());
        if variable.is_some() && !self.own.contains(&lookup.name) {
            self.read.insert(lookup.name.clone());
        }
        if variable.is_some_and(|text| text.len() >= LARGE) {
            // Whoever read or wrote it before, such as the log, has left as much behind.
            give_back();
        }
        self.run(|print| {
            let found = match (known, variable) {
                (true, _) => NameLookupResult::Value(MontyObject::function(lookup.name.as_str(), None)),
                (false, Some(text)) => NameLookupResult::Value(MontyObject::string(text.as_str())),
                (false, None) => NameLookupResult::Undefined,
            };
            lookup.resume(found, print)
        })
    }

    /// Nothing of the operating system is there, and no module that the interpreter does not bring itself.
    fn os_call(&mut self, call: ReplOsCall) -> Outcome {
        self.run(|print| {
            let refusal = match &call.function_call {
                OsFunctionCall::Import(module) => ExtFunctionResult::NotFound(module.clone()),
                other => ExtFunctionResult::Error(other.on_no_handler()),
            };
            call.resume(refusal, print)
        })
    }

    fn unknown_call(&mut self, call: ReplFunctionCall) -> Outcome {
        self.run(|print| {
            let unknown = ExtFunctionResult::NotFound(call.function_name.clone());
            call.resume(unknown, print)
        })
    }

    /// Stops at a call; or goes on at once if its arguments cannot leave the interpreter.
    fn function_call(
        &mut self,
        setting: &Setting,
        function: &Function,
        mut call: ReplFunctionCall,
    ) -> ControlFlow<Progress, Outcome> {
        // What an agent is handed is named by its place in the caller's text, so pieces of it cost nothing to carry out.
        let hosts = if function.is_async { setting.texts() } else { Vec::new() };
        let mut moved = 0;
        let args = convert::args_out(&mut call.args, &hosts, &mut moved);
        self.charge -= i64::try_from(moved).unwrap_or(i64::MAX);
        charged(&mut self.charge, || drop(std::mem::take(&mut call.args)));
        match args {
            Ok(args) => Break(self.stop_at_call(function, args, call)),
            Err(convert::TooLarge(why)) => Continue(self.run(|print| {
                let text = format!("the arguments of {}() are too large to leave the REPL: {why}", function.name);
                call.resume(ExtFunctionResult::Error(MontyException::new(ExcType::ValueError, Some(text))), print)
            })),
        }
    }

    fn stop_at_call(&mut self, function: &Function, args: Args, call: ReplFunctionCall) -> Progress {
        let number = self.cell.calls;
        self.cell.calls += 1;
        self.cell.stand = if function.is_async { Stand::Async } else { Stand::Sync };
        if function.is_async {
            self.cell.numbers.insert(call.call_id, number);
        }
        self.state = State::Running(ReplProgress::FunctionCall(call));
        Progress::Call(Call { call: number, name: function.name.clone(), args, is_async: function.is_async })
    }

    /// Stops for answers; or goes on with an error if none of what the cell waits for is a call of its own.
    fn blocked(&mut self, wait: ReplResolveFutures) -> ControlFlow<Progress, Outcome> {
        let numbers = &self.cell.numbers;
        let mut pending: Vec<u32> = wait.pending_call_ids().iter().filter_map(|id| numbers.get(id).copied()).collect();
        if pending.is_empty() {
            return Continue(
                self.run(|print| {
                    wait.abort(MontyException::new(ExcType::RuntimeError, Some(STALLED.to_owned())), print)
                }),
            );
        }
        pending.sort_unstable();
        self.cell.stand = Stand::Blocked(pending.clone());
        self.state = State::Running(ReplProgress::ResolveFutures(wait));
        Break(Progress::Blocked { pending })
    }

    fn done(&mut self, repl: MontyRepl, error: Option<String>) -> Progress {
        self.state = State::Idle(repl);
        self.before = None;
        self.cell.stand = Stand::Idle;
        let stdout = std::mem::take(&mut self.cell.output).finish();
        Progress::Done(CellOutput { stdout, error, limit: None, rejected: false })
    }

    fn failed(&mut self, setting: &Setting, failed: Box<ReplStartError>) -> Result<Progress, ReplError> {
        if let Some(limit) = limit_of(&failed.error) {
            return self.limited(setting, limit);
        }
        let text = error_text(&failed.error);
        let read = std::mem::take(&mut self.read);
        let repl = charged(&mut self.charge, || {
            let ReplStartError { mut repl, error } = *failed;
            drop(error);
            release(&mut repl, &read);
            repl
        });
        Ok(self.done(repl, Some(text)))
    }

    /// Ends the cell at a limit: the interpreter is not to be trusted then, so the session before the cell comes back.
    fn limited(&mut self, setting: &Setting, limit: Limit) -> Result<Progress, ReplError> {
        let before = self.before.take().ok_or_else(|| ReplError::lost("the state before the cell was not kept"))?;
        let stdout = std::mem::take(&mut self.cell.output).finish();
        let own = std::mem::take(&mut self.own);
        *self = Machine::back(setting, &before)?;
        self.own = own;
        let error = Some(limit_text(limit, &setting.limits));
        Ok(Progress::Done(CellOutput { stdout, error, limit: Some(limit), rejected: false }))
    }
}

/// Takes variables that the host still has out of a session: they are given again when a cell reads them.
fn release(repl: &mut MontyRepl, read: &BTreeSet<String>) {
    for name in read {
        // It fails where the cell itself has deleted the name, and then nothing is left to do.
        let _ = repl.feed_run(&format!("del {name}"), NamedValues::new(), PrintWriter::Disabled);
    }
}

/// The refusal of a cell of more than [`MAX_CODE`] bytes.
pub(super) fn too_long(code: &str) -> Option<String> {
    let len = code.len();
    (len > MAX_CODE)
        .then(|| format!("CellRejected: the cell has {len} bytes of code and may have {MAX_CODE}. Split it up."))
}

fn prepare(code: &str, setting: &Setting) -> Result<String, String> {
    if let Some(reason) = too_long(code) {
        return Err(reason);
    }
    checks::prepare(code, &setting.functions, &setting.limits)
}

fn result_in(result: &ToolResult) -> ExtFunctionResult {
    match result {
        ToolResult::Value(value) => ExtFunctionResult::Return(convert::value_in(value)),
        ToolResult::Raised { kind, message } => {
            // A type that the interpreter does not know is raised as RuntimeError under its own name.
            let (kind, message) = match kind.parse::<ExcType>() {
                Ok(known) => (known, message.as_str().to_owned()),
                Err(_) => (ExcType::RuntimeError, format!("{kind}: {message}")),
            };
            ExtFunctionResult::Error(MontyException::new(kind, Some(message)))
        }
    }
}

/// Which limit an exception stands for; the interpreter raises them uncatchably, under Python's own names.
fn limit_of(error: &MontyException) -> Option<Limit> {
    let message = error.message().unwrap_or_default();
    match error.exc_type() {
        ExcType::TimeoutError if message.starts_with("feed time limit exceeded") => Some(Limit::Time),
        ExcType::MemoryError if message.starts_with("memory limit exceeded") => Some(Limit::Memory),
        _ => None,
    }
}

pub(super) fn limit_text(limit: Limit, limits: &CellLimits) -> String {
    let what = match limit {
        Limit::Time => format!("TimeoutError: the cell ran for more than {} ms", limits.time_ms),
        Limit::Memory => format!("MemoryError: the session needed more than {} bytes", limits.memory),
        Limit::Calls => format!("RuntimeError: the cell made more than {} tool calls", limits.calls),
    };
    format!("{what} and was stopped. Variables are as they were before this cell.")
}

/// `Type: str(exception)`, as the reference prints it.
fn error_text(error: &MontyException) -> String {
    let full = error.exc_type().to_string();
    let kind = full.rsplit('.').next().unwrap_or(&full);
    match error.message() {
        // `str(KeyError("x"))` is `'x'`, with the quotes.
        Some(message) if error.exc_type() == ExcType::KeyError => format!("{kind}: {}", StringRepr(message)),
        Some(message) if message.contains("asyncio scheduler stalled") => format!("{kind}: {STALLED}"),
        message => format!("{kind}: {}", message.unwrap_or_default()),
    }
}
