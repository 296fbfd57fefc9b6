//! Rebuilding a node's interpreter from the log: its cells run again, and every call is answered from the log.

use rao_envs::{Args, ToolResult, Value};
use rao_store::{Digest, NodePath};

use crate::answer;
use crate::error::EngineError;
use crate::repl::{CellLimits, Function, Progress, Repl, ReplEngine, ReplError, Reply};
use crate::rollout::FINISH;
use crate::tree::{Node, Step};

/// The value given to `finish` in a step, if it was called; the last call counts.
///
/// # Errors
/// When the stored arguments cannot be read.
pub(crate) fn finish_value(node: &NodePath, step: &Step) -> Result<Option<Value>, EngineError> {
    for call in step.calls.iter().rev().filter(|call| call.name == FINISH) {
        let args = answer::args(node, &call.args)?;
        if let Some(value) = finish_argument(&args) {
            return Ok(Some(value.clone()));
        }
    }
    Ok(None)
}

/// The one argument of `finish`, whether it was given by position or by name.
pub(crate) fn finish_argument(args: &Args) -> Option<&Value> {
    match (args.args.as_slice(), args.kwargs.as_slice()) {
        ([value], []) => Some(value),
        ([], [(_, value)]) => Some(value),
        _ => None,
    }
}

/// What a session is opened with.
pub(crate) struct Opening<'a> {
    pub(crate) engine: &'a dyn ReplEngine,
    pub(crate) functions: Vec<Function>,
    pub(crate) limits: &'a CellLimits,
    pub(crate) seed: u64,
    /// The variable that holds the node's context, where there is one.
    pub(crate) variable: Option<String>,
}

impl Opening<'_> {
    /// The node's session as its finished cells left it: from a kept one as far as there is one, and by running the others
    /// again. `whole` is the text that launches are written against.
    pub(crate) fn session(&self, node: &Node, whole: &str) -> Result<Box<dyn Repl>, EngineError> {
        let failed = |source: ReplError| EngineError::Repl { node: node.path.clone(), source };
        let define = |mut repl: Box<dyn Repl>| {
            if let Some(variable) = &self.variable {
                repl.define(variable, node.context_text.clone())?;
            }
            Ok(repl)
        };
        let finished: Vec<usize> = (0..).zip(&node.steps).filter(|(_, s)| left_something(s)).map(|(n, _)| n).collect();
        let kept = self.engine.kept().filter(|_| !finished.is_empty());
        let Some(kept) = kept else {
            let mut repl =
                self.engine.open(&self.functions, self.limits, self.seed).and_then(define).map_err(failed)?;
            rebuild_finished(&mut *repl, node, &finished, whole)?;
            return Ok(repl);
        };
        let histories = self.histories(node, &finished);
        let restored = (1..=finished.len()).rev().find_map(|count| {
            let snapshot = kept.read(histories.get(count - 1)?)?;
            let repl = self.engine.restore(&self.functions, self.limits, &snapshot).and_then(define).ok()?;
            Some((count, repl))
        });
        let (mut repl, left) = match restored {
            Some((count, repl)) => {
                kept.count();
                (repl, finished.get(count..).unwrap_or_default())
            }
            None => {
                let repl = self.engine.open(&self.functions, self.limits, self.seed).and_then(define);
                (repl.map_err(failed)?, finished.as_slice())
            }
        };
        rebuild_finished(&mut *repl, node, left, whole)?;
        if let (false, Some(history)) = (left.is_empty(), histories.last())
            && let Ok(snapshot) = repl.snapshot()
        {
            kept.write(history, &snapshot);
        }
        Ok(repl)
    }

    /// A digest for each of the steps: of all that the session behind it follows from.
    fn histories(&self, node: &Node, finished: &[usize]) -> Vec<Digest> {
        let mut hasher = blake3::Hasher::new();
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
            Digest(*hasher.finalize().as_bytes())
        };
        text(&self.engine.identity());
        text(&format!("{:?} {:?} {} {:?}", self.functions, self.limits, self.seed, self.variable));
        if self.variable.is_some() {
            text(&node.context_text);
        }
        let steps = finished.iter().filter_map(|number| node.steps.get(*number));
        steps
            .map(|step| {
                text(step.code.as_deref().unwrap_or_default());
                for call in &step.calls {
                    text(&call.name);
                    text(&call.args);
                    text(&format!("{:?} {:?} {:?}", call.child, call.refused, call.answer));
                }
                text(&format!("{:?} {:?}", step.resumes, step.output))
            })
            .collect()
    }
}

/// Whether the step has a cell that ended and left its variables. Cells that were rejected or that a limit ended did not.
fn left_something(step: &Step) -> bool {
    step.output.as_ref().is_some_and(|output| !output.rejected && output.limit.is_none())
}

/// Re-runs the cells of these steps, which ended, so that the session has their variables.
fn rebuild_finished(repl: &mut dyn Repl, node: &Node, steps: &[usize], whole: &str) -> Result<(), EngineError> {
    for &number in steps {
        let Some((step, output)) = node.steps.get(number).and_then(|step| Some((step, step.output.as_ref()?))) else {
            continue;
        };
        match rerun(repl, node, step, whole)? {
            Progress::Done(again) if again.stdout == output.stdout && again.error == output.error => {}
            Progress::Done(_) => return Err(rebuild_error(node, number, "other output")),
            Progress::Call(call) => {
                return Err(rebuild_error(
                    node,
                    number,
                    &format!("a call of {} that the log does not have", call.name),
                ));
            }
            Progress::Blocked { .. } => {
                return Err(rebuild_error(node, number, "it waits for an answer not in the log"));
            }
        }
    }
    Ok(())
}

/// Runs the current cell as far as the log goes.
pub(crate) fn rerun_current(repl: &mut dyn Repl, node: &Node, whole: &str) -> Result<Progress, EngineError> {
    match node.last_step() {
        Some(step) if step.output.is_none() => rerun(repl, node, step, whole),
        _ => Err(EngineError::Internal(format!("node {} has no cell in progress", node.path))),
    }
}

fn rerun(repl: &mut dyn Repl, node: &Node, step: &Step, whole: &str) -> Result<Progress, EngineError> {
    let number = node.steps.iter().position(|s| s.seq == step.seq).unwrap_or_default();
    let failed = |source: ReplError| EngineError::Repl { node: node.path.clone(), source };
    let mut groups = step.resumes.iter();
    let mut progress = repl.start(step.code.as_deref().unwrap_or_default()).map_err(failed)?;
    loop {
        let reply = match &progress {
            Progress::Done(_) => return Ok(progress),
            Progress::Call(call) => {
                let Some(logged) = step.calls.get(call.call as usize) else { return Ok(progress) };
                if logged.name != call.name || logged.args != answer::args_text(&call.name, &call.args, whole) {
                    let reason = format!("call {} is {}{}", call.call, call.name, call.args.repr());
                    return Err(rebuild_error(node, number, &reason));
                }
                if call.is_async {
                    let is_open =
                        call.name == crate::rollout::LAUNCH && logged.child.is_none() && logged.refused.is_none();
                    if is_open {
                        return Ok(progress);
                    }
                    Reply::Pending
                } else {
                    match groups.next() {
                        None => return Ok(progress),
                        Some(group) if group.as_slice() == [call.call] => {
                            Reply::Now(logged_answer(node, step, call.call)?)
                        }
                        Some(_) => return Err(rebuild_error(node, number, "the answers are in another order")),
                    }
                }
            }
            Progress::Blocked { .. } => match groups.next() {
                None => return Ok(progress),
                Some(group) => {
                    let answers = group.iter().map(|call| Ok((*call, logged_answer(node, step, *call)?)));
                    Reply::Answers(answers.collect::<Result<_, EngineError>>()?)
                }
            },
        };
        // A call's arguments may be long, and the cell goes on to make the next ones.
        drop(progress);
        progress = repl.answer(reply).map_err(failed)?;
    }
}

fn logged_answer(node: &Node, step: &Step, call: u32) -> Result<ToolResult, EngineError> {
    let logged = step.calls.get(call as usize).and_then(|call| call.answer.as_ref());
    match logged {
        Some(logged) => answer::to_result(&node.path, logged),
        None => Err(EngineError::Internal(format!("node {} has no answer to call {call}", node.path))),
    }
}

fn rebuild_error(node: &Node, step: usize, reason: &str) -> EngineError {
    let step = u32::try_from(step).unwrap_or(u32::MAX);
    EngineError::Rebuild { node: node.path.clone(), step, reason: reason.to_owned() }
}
