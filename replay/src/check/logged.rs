//! The log in the place of the world: answers, goals, prompts and verdicts come from the events that are due.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rao_engine::repl::{Call, CellOutput, Progress, Repl, ReplError, Reply};
use rao_engine::{
    Asking, CallSite, EngineConfig, EngineError, Extension, LAUNCH, Outside, answer, cell_output, protocol,
};
use rao_envs::judge::{JudgeIdentity, Ruling};
use rao_envs::{Args, Ending, Episode, Goal, Judgement, Text, ToolResult};
use rao_store::NodePath;
use rao_store::event::{Body, NodeSpawned, Role, RunStarted, StopReason};

use super::compare::Shared;

/// Answers everything from the log.
///
/// Where the log has another event than the one asked for, the answer is one that the next comparison cannot take for
/// the stored event, so the difference is found at the first event where there is one.
pub(super) struct Logged {
    pub(super) shared: Rc<RefCell<Shared>>,
    tools: Vec<(String, bool)>,
    context_variable: Option<String>,
    config: EngineConfig,
}

impl Logged {
    pub(super) fn new(shared: Rc<RefCell<Shared>>, started: &RunStarted, config: &EngineConfig) -> Self {
        let manifest: serde_json::Value = serde_json::from_str(&started.env_config).unwrap_or_default();
        let tools = manifest.get("tools").and_then(|tools| tools.as_array()).into_iter().flatten();
        let pair = |tool: &serde_json::Value| Some((tool.get(0)?.as_str()?.to_owned(), tool.get(1)?.as_bool()?));
        let context_variable = manifest.get("context_variable").and_then(|name| name.as_str()).map(str::to_owned);
        Logged { shared, tools: tools.filter_map(pair).collect(), context_variable, config: config.clone() }
    }

    /// The logged extension that is due for `node`, if one is.
    pub(super) fn due_extension(&self, node: &NodePath, role: Role) -> Option<Extension> {
        match self.shared.borrow().upcoming() {
            Some(Body::ContextExtended(due)) if due.node == *node && due.role == role => {
                Some(Extension { text: due.text.clone(), tokens: due.tokens.clone() })
            }
            _ => None,
        }
    }

    /// The verdict on `node`, if it is the next event and not the root's.
    fn due_verdict(&self, node: &NodePath) -> Option<Ruling> {
        match self.shared.borrow().upcoming() {
            Some(Body::Verdict(due)) if due.node == *node && due.source != "root" => Some(Ruling::Given {
                judgement: Judgement {
                    score: due.score,
                    source: due.source.clone(),
                    evidence: serde_json::from_str(&due.evidence).unwrap_or_default(),
                },
                judge: due.judge.clone(),
            }),
            _ => None,
        }
    }

    /// What the log says of a node that ended: its verdict if that is due, that it is to have the root's, or that its
    /// verdict stands further on (`None`), because a judge outside took its time.
    fn due_ruling(&self, node: &NodePath) -> Option<Ruling> {
        if let Some(due) = self.due_verdict(node) {
            return Some(due);
        }
        let shared = self.shared.borrow();
        let own = shared.events().iter().find_map(|event| match &event.body {
            Body::Verdict(verdict) if verdict.node == *node => Some(verdict),
            _ => None,
        });
        let is_root = *node == NodePath::root();
        match own {
            Some(verdict) if verdict.source == "root" => Some(Ruling::AsRoot),
            Some(verdict) if is_outside(verdict.judge.as_deref()) => None,
            // A log that stops before the node was judged, or the root.
            None if self.judge_of(is_root).is_some_and(|judge| !judge.is_computed()) => None,
            None if !is_root => Some(Ruling::AsRoot),
            _ => Some(Ruling::Given {
                judgement: Judgement {
                    score: 0.0,
                    source: "the log has no verdict here".into(),
                    evidence: serde_json::Value::Null,
                },
                judge: None,
            }),
        }
    }

    fn judge_of(&self, is_root: bool) -> Option<&JudgeIdentity> {
        self.config.judges.as_ref().map(|judges| if is_root { &judges.root } else { &judges.child })
    }

    /// What the log has of a judge outside this process that is to be asked about `node`: its verdict if that is due.
    pub(super) fn said(&self, node: &NodePath) -> Option<(Judgement, Option<String>)> {
        match self.due_verdict(node)? {
            Ruling::Given { judgement, judge } => Some((judgement, judge)),
            Ruling::AsRoot | Ruling::Asked(_) => None,
        }
    }

    /// Whether the log's next event is a verdict on `node` that has no notes of the environment, as those of earlier
    /// versions.
    pub(super) fn lacks_notes(&self, node: &NodePath) -> bool {
        self.said(node).is_some_and(|(judgement, _)| !judgement.has_notes())
    }

    fn not_in_log(what: &str) -> ToolResult {
        ToolResult::Raised { kind: "RuntimeError".into(), message: format!("the log has no answer to this {what}") }
    }
}

impl Outside for Logged {
    fn root_goal(&mut self) -> Goal {
        match self.shared.borrow().upcoming() {
            Some(Body::NodeSpawned(due)) => goal_of(due, self.shared.borrow().context(&due.node)),
            _ => Goal { text: String::new(), targets: serde_json::Value::Null, context: Text::default() },
        }
    }

    fn tools(&self) -> Vec<(String, bool)> {
        self.tools.clone()
    }

    fn enter(&mut self, _node: &NodePath, _goal: &Goal) {}

    fn prompt(&mut self, asking: &Asking<'_>) -> Result<Option<Extension>, EngineError> {
        Ok(self.due_extension(asking.node, Role::Prompt))
    }

    fn observation(
        &mut self,
        asking: &Asking<'_>,
        _stop: StopReason,
        output: &CellOutput,
    ) -> Result<Option<Extension>, EngineError> {
        let text = protocol::observation(self.config.prompt, asking.step + 1, output);
        Ok(self.due_extension(asking.node, Role::Observation).map(|due| Extension { text, tokens: due.tokens }))
    }

    fn call(&mut self, site: &CallSite<'_>, _tool: &str, _args: &Args) -> ToolResult {
        let shared = self.shared.borrow();
        let Some(Body::CallAnswered(due)) = shared.upcoming() else { return Logged::not_in_log("call") };
        let same_cell = due.node == *site.node && due.step == site.step;
        let logged = due.answers.iter().find(|(call, _)| same_cell && *call == site.call);
        match logged.map(|(_, answer)| answer::to_result(site.node, answer)) {
            Some(Ok(result)) => result,
            _ => Logged::not_in_log("call"),
        }
    }

    fn delegate(&mut self, site: &CallSite<'_>, _args: &Args) -> Result<Goal, String> {
        match self.shared.borrow().upcoming() {
            Some(Body::NodeSpawned(due)) if due.call == Some((site.step, site.call)) => {
                Ok(goal_of(due, self.shared.borrow().context(&due.node)))
            }
            Some(Body::SpawnRefused(due)) if due.node == *site.node && due.call == site.call => {
                if due.goal.is_empty() {
                    Err(due.text.clone())
                } else {
                    Ok(Goal { text: due.goal.clone(), targets: serde_json::Value::Null, context: Text::default() })
                }
            }
            _ => Err("the log has no answer to this launch".into()),
        }
    }

    fn context_variable(&self) -> Option<String> {
        self.context_variable.clone()
    }

    fn verify(&mut self, node: &NodePath, _ending: &Ending<'_>) -> Result<Option<Ruling>, EngineError> {
        Ok(self.due_ruling(node))
    }

    fn is_verdict_next(&self, node: &NodePath) -> Option<bool> {
        Some(self.due_verdict(node).is_some())
    }

    fn episode(&self) -> Option<&dyn Episode> {
        None
    }

    fn is_next(&self, site: &CallSite<'_>) -> Option<bool> {
        Some(self.shared.borrow().answers_next(site.node, site.step, site.call))
    }

    fn stand_in(&mut self, node: &NodePath, step: u32) -> Option<Box<dyn Repl>> {
        let shared = self.shared.borrow();
        let whole = if self.context_variable.is_some() { shared.context(node) } else { Text::default() };
        StandIn::of(shared.events(), node, step, &self.tools, &whole)
            .map(|stand_in| Box::new(stand_in) as Box<dyn Repl>)
    }
}

/// Whether a verdict's judge is one that a replay cannot ask again.
fn is_outside(judge: Option<&str>) -> bool {
    let identity: Option<JudgeIdentity> = judge.and_then(|judge| serde_json::from_str(judge).ok());
    identity.is_some_and(|identity| !identity.is_computed())
}

fn goal_of(due: &NodeSpawned, context: Text) -> Goal {
    answer::goal(&due.node, &due.goal, &due.targets, context.clone()).unwrap_or_else(|_| Goal {
        text: due.goal.clone(),
        targets: serde_json::Value::Null,
        context,
    })
}

/// Gives the calls and the output of one logged cell without running it.
struct StandIn {
    moves: VecDeque<Progress>,
}

impl StandIn {
    /// The stand-in for a cell that a limit ended, or `None` for any other cell.
    fn of(
        events: &[rao_store::event::Event],
        node: &NodePath,
        step: u32,
        tools: &[(String, bool)],
        whole: &str,
    ) -> Option<Self> {
        let is_async = |name: &str| name == LAUNCH || tools.iter().any(|(tool, is_async)| tool == name && *is_async);
        let mut moves = VecDeque::new();
        let mut waiting: Vec<u32> = Vec::new();
        let mut limited = false;
        for event in events {
            match &event.body {
                Body::CallIssued(call) if call.node == *node && call.step == step => {
                    let is_async = is_async(&call.name);
                    if is_async {
                        waiting.push(call.call);
                    }
                    let args = Args::from_json_text_within(&call.args, whole).ok()?;
                    moves.push_back(Progress::Call(Call { call: call.call, name: call.name.clone(), args, is_async }));
                }
                Body::CallAnswered(answered) if answered.node == *node && answered.step == step => {
                    let group: Vec<u32> = answered.answers.iter().map(|(call, _)| *call).collect();
                    if group.iter().all(|call| waiting.contains(call)) {
                        moves.push_back(Progress::Blocked { pending: group });
                    }
                }
                Body::CellFinished(output) if output.node == *node && output.step == step => {
                    limited = output.limit.is_some();
                    moves.push_back(Progress::Done(cell_output(output)));
                }
                _ => {}
            }
        }
        limited.then_some(StandIn { moves })
    }

    fn next(&mut self) -> Result<Progress, ReplError> {
        self.moves.pop_front().ok_or_else(|| ReplError::Misuse { reason: "the logged cell has ended".into() })
    }
}

impl Repl for StandIn {
    fn define(&mut self, _name: &str, _text: Text) -> Result<(), ReplError> {
        Ok(())
    }

    fn start(&mut self, _code: &str) -> Result<Progress, ReplError> {
        self.next()
    }

    fn answer(&mut self, _reply: Reply) -> Result<Progress, ReplError> {
        self.next()
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, ReplError> {
        Err(ReplError::Misuse { reason: "a logged cell has no state to save".into() })
    }
}
