//! Running cells: from an action to the end of its cell, with the calls in between.

use rao_envs::{Args, Text, ToolResult, Value};
use rao_store::NodePath;
use rao_store::event::{CallAnswered, CallIssued, CellFinished, CellStarted, LimitKind, Outcome, StopReason};

use super::{FINISH, LAUNCH, Rollout, Session, length, repl_error};
use crate::answer;
use crate::error::EngineError;
use crate::outside::CallSite;
use crate::protocol;
use crate::repl::{Call, CellOutput, Function, Limit, Progress, Reply};
use crate::seed;
use crate::session;
use crate::tree::{Node, Step};

impl Rollout {
    pub(super) fn run_cell(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let node = self.node(path)?;
        let step = length(node.steps.len())?.saturating_sub(1);
        let Some(last) = node.last_step() else {
            return Err(EngineError::Internal(format!("node {path} has no action to run")));
        };
        let closed = last.text.contains(protocol::CELL_END);
        if last.stop == StopReason::Window && !closed {
            return self.end(path, Outcome::ContextOverflow);
        }
        let code = protocol::code_of(&last.text).unwrap_or_default().to_owned();
        if self.parts.config.loop_guard {
            let mut cells: Vec<&str> = node.steps.iter().map(|s| s.code.as_deref().unwrap_or_default()).collect();
            if let Some(current) = cells.last_mut() {
                *current = &code;
            }
            if protocol::is_stuck(&cells) {
                return self.end(path, Outcome::Stuck);
            }
        }
        self.emit(CellStarted { node: path.clone(), step, code }.into())
    }

    pub(super) fn cell_finished(&mut self, path: &NodePath, step: u32, output: CellOutput) -> Result<(), EngineError> {
        let limit = output.limit.map(|limit| match limit {
            Limit::Time => LimitKind::Time,
            Limit::Memory => LimitKind::Memory,
            Limit::Calls => LimitKind::Calls,
        });
        let (stdout, error, rejected) = (output.stdout, output.error, output.rejected);
        self.detached.forget(path);
        self.emit(CellFinished { node: path.clone(), step, stdout, error, limit, rejected }.into())
    }

    /// Runs a node's cell until it ends or is suspended.
    pub(super) fn drive(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let node = self.node(path)?;
        let step = length(node.steps.len())?.saturating_sub(1);
        if let Some(problem) = node.last_step().and_then(no_cell) {
            let output = CellOutput { stdout: String::new(), error: Some(problem.into()), limit: None, rejected: true };
            return self.cell_finished(path, step, output);
        }
        let mut progress = self.take_progress(path, step)?;
        loop {
            progress = match progress {
                Progress::Done(output) => {
                    if let Some(session) = self.sessions.get_mut(path) {
                        session.stand_in = None;
                    }
                    self.ease(path)?;
                    return self.cell_finished(path, step, output);
                }
                Progress::Blocked { pending } => {
                    self.detach_pending(path, step, &pending)?;
                    if let Some(session) = self.sessions.get_mut(path) {
                        session.progress = Some(Progress::Blocked { pending });
                    }
                    return self.ease(path);
                }
                Progress::Call(mut call) => match self.call(path, step, &mut call)? {
                    Some(reply) => {
                        // Its arguments may be long, and the cell goes on to make the next ones.
                        drop(call);
                        self.reply(path, reply)?
                    }
                    None => {
                        if let Some(session) = self.sessions.get_mut(path) {
                            session.progress = Some(Progress::Call(call));
                        }
                        return self.ease(path);
                    }
                },
            };
        }
    }

    pub(super) fn reply(&mut self, path: &NodePath, reply: Reply) -> Result<Progress, EngineError> {
        let session = self
            .sessions
            .get_mut(path)
            .ok_or_else(|| EngineError::Internal(format!("node {path} has no interpreter")))?;
        let repl = session.stand_in.as_mut().unwrap_or(&mut session.repl);
        repl.answer(reply).map_err(|source| repl_error(path, source))
    }

    /// The state of the node's current cell: where its session stands, or, for a session that does not exist yet,
    /// where the log leaves the cell.
    pub(super) fn take_progress(&mut self, path: &NodePath, step: u32) -> Result<Progress, EngineError> {
        if !self.sessions.contains_key(path) {
            let node = self.node(path)?;
            let repl = self.opening(node).session(node, &self.whole(path)?)?;
            self.sessions.insert(path.clone(), Session { repl, stand_in: None, progress: None });
        }
        let whole = self.whole(path)?;
        let node = self.tree.node(path).ok_or_else(|| EngineError::Internal(format!("node {path} does not exist")))?;
        let Some(session) = self.sessions.get_mut(path) else {
            return Err(EngineError::Internal(format!("node {path} has no interpreter")));
        };
        if let Some(progress) = session.progress.take() {
            return Ok(progress);
        }
        session.stand_in = self.parts.outside.stand_in(path, step);
        let repl = session.stand_in.as_mut().unwrap_or(&mut session.repl);
        session::rerun_current(&mut **repl, node, &whole)
    }

    /// The text that a node's launches are written against: what its interpreter holds.
    fn whole(&self, path: &NodePath) -> Result<Text, EngineError> {
        match self.parts.outside.context_variable() {
            Some(_) => Ok(self.node(path)?.context_text.clone()),
            None => Ok(Text::default()),
        }
    }

    fn opening(&self, node: &Node) -> session::Opening<'_> {
        let mut functions: Vec<Function> =
            self.parts.outside.tools().into_iter().map(|(name, is_async)| Function { name, is_async }).collect();
        functions.push(Function { name: FINISH.into(), is_async: false });
        if self.parts.config.recursive {
            functions.push(Function { name: LAUNCH.into(), is_async: true });
        }
        session::Opening {
            engine: &*self.parts.repl,
            functions,
            limits: &self.parts.config.cell,
            seed: seed::repl(self.tree.seed_at(node.spawned), &node.path),
            variable: self.parts.outside.context_variable(),
        }
    }

    /// What a call is replied with; `None` while it waits for its result elsewhere. A launch takes the arguments.
    fn call(&mut self, path: &NodePath, step: u32, call: &mut Call) -> Result<Option<Reply>, EngineError> {
        let known = self.node(path)?.last_step().map_or(0, |s| s.calls.len());
        if known <= call.call as usize {
            let args = answer::args_text(&call.name, &call.args, &self.whole(path)?);
            let (node, name) = (path.clone(), call.name.clone());
            self.emit(CallIssued { node, step, call: call.call, name, args }.into())?;
        }
        if call.name == LAUNCH {
            self.launch(path, step, call.call, std::mem::take(&mut call.args))?;
            return Ok(Some(Reply::Pending));
        }
        if call.is_async {
            return Ok(Some(Reply::Pending));
        }
        let result = if call.name == FINISH {
            finish_result(&call.args)
        } else {
            let site = CallSite { node: path, step, call: call.call };
            if !self.detach(&site, &call.name, &call.args) {
                return Ok(None);
            }
            self.executed(&site, &call.name, &call.args)
        };
        let answers = vec![(call.call, answer::from_result(&result))];
        self.emit(CallAnswered { node: path.clone(), step, answers }.into())?;
        Ok(Some(Reply::Now(result)))
    }

    /// Answers that a suspended node can be given now, in the order of its calls.
    pub(super) fn deliverable(&self, node: &Node) -> Vec<u32> {
        let Some(Session { progress: Some(Progress::Blocked { pending }), .. }) = self.sessions.get(&node.path) else {
            return Vec::new();
        };
        let Some(step) = node.last_step() else { return Vec::new() };
        let is_answerable = |number: &u32| {
            step.calls.get(*number as usize).is_some_and(|call| match (&call.child, &call.refused) {
                // Whatever was to be said of a node that ended before its parent goes on has been said by now.
                (Some(child), _) => self.tree.node(child).is_some_and(|child| child.outcome.is_some()),
                (None, Some(_)) => true,
                (None, None) => call.name != LAUNCH && self.has_come(node, *number),
            })
        };
        let mut calls: Vec<u32> = pending.iter().copied().filter(is_answerable).collect();
        calls.sort_unstable();
        calls
    }

    pub(super) fn deliver(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let node = self.node(path)?;
        let step = length(node.steps.len())?.saturating_sub(1);
        let calls = self.deliverable(node);
        if !self.detach_for_round(path, step, &calls)? {
            return Ok(());
        }
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            results.push((call, self.result_of(path, call)?));
        }
        let answers = results.iter().map(|(call, result)| (*call, answer::from_result(result))).collect();
        self.emit(CallAnswered { node: path.clone(), step, answers }.into())?;
        let progress = self.reply(path, Reply::Answers(results))?;
        if let Some(session) = self.sessions.get_mut(path) {
            session.progress = Some(progress);
        }
        self.ease(path)
    }

    pub(super) fn result_of(&mut self, path: &NodePath, number: u32) -> Result<ToolResult, EngineError> {
        let call = self.node(path)?.last_step().and_then(|s| s.calls.get(number as usize)).cloned();
        let Some(call) = call else {
            return Err(EngineError::Internal(format!("node {path} has no call {number}")));
        };
        if let Some(text) = call.refused {
            return Ok(ToolResult::Value(Value::str(text)));
        }
        let Some(child) = call.child else {
            let args = answer::args(path, &call.args)?;
            let step = length(self.node(path)?.steps.len())?.saturating_sub(1);
            let site = CallSite { node: path, step, call: number };
            return Ok(self.executed(&site, &call.name, &args));
        };
        let child = self.node(&child)?;
        Ok(ToolResult::Value(match (&child.finish, child.outcome) {
            (Some(json), _) => answer::value(&child.path, json)?,
            (None, Some(outcome)) => Value::str(protocol::unfinished(outcome)),
            (None, None) => return Err(EngineError::Internal(format!("node {} has not ended", child.path))),
        }))
    }
}

/// Why an action has no cell that could run, if it has none.
fn no_cell(step: &Step) -> Option<&'static str> {
    if step.stop == StopReason::MaxTokens && !step.text.contains(protocol::CELL_END) {
        return Some(protocol::CUT_OFF);
    }
    step.code.as_deref().is_none_or(str::is_empty).then_some(protocol::NO_CELL)
}

/// `finish` takes one value, under any keyword, and gives it back.
fn finish_result(args: &Args) -> ToolResult {
    match session::finish_argument(args) {
        Some(value) => ToolResult::Value(value.clone()),
        None => ToolResult::Raised {
            kind: "TypeError".into(),
            message: "finish() takes exactly one argument: the value to give back".into(),
        },
    }
}
