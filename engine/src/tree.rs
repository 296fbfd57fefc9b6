//! Execution trees as folds of events.
//!
//! [`Tree::apply`] is the only way in which a tree changes: the live engine emits an event and applies it, and every
//! reader applies what it reads. So a tree rebuilt from the log is the tree that was recorded.

use std::collections::BTreeMap;

use rao_envs::Text;
use rao_store::event::{
    ActionSampled, Answer, Body, CellFinished, ContextExtended, Event, LogProbKind, NodeSpawned, Outcome,
    RewardAssigned, Role, RolloutFinished, RolloutStarted, SamplerSettings, StopReason, Verdict,
};
use rao_store::{Depth, LogProb, NodePath, PolicyVersion, Seq, TokenId};

use crate::contexts;

/// What a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its first prompt.
    Spawned,
    /// An action; `since` is the event that made it ready.
    Ready {
        /// The context event that made the node ready.
        since: Seq,
    },
    /// Its cell to be run; `at` is the action's event.
    Acted {
        /// The action's event.
        at: Seq,
    },
    /// Its cell to end: running, or suspended on calls.
    InCell,
    /// The observation to be appended, or the node to end.
    CellDone,
    /// Nothing: it has ended.
    Ended,
}

/// One contiguous piece of a node's token sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Where the piece comes from.
    pub source: Source,
    /// Its first position in the node's context.
    pub start: usize,
    /// How many tokens it has.
    pub len: usize,
    /// The event that appended it.
    pub seq: Seq,
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// System prompt and first user turn.
    Prompt,
    /// A cell's output.
    Observation,
    /// The node itself: the only tokens that carry a loss.
    Action,
}

/// A tool call or spawn of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function's name.
    pub name: String,
    /// Its arguments, as JSON.
    pub args: String,
    /// The child that a spawn made.
    pub child: Option<NodePath>,
    /// The text that a refused spawn gives back.
    pub refused: Option<String>,
    /// The answer, once the cell was given it.
    pub answer: Option<Answer>,
}

/// One step of a node: an action and its cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The action's event.
    pub seq: Seq,
    /// The action's text.
    pub text: String,
    /// Log-probabilities of the action's tokens; empty for scripted actions.
    pub logprobs: Vec<LogProb>,
    /// What they are of.
    pub logprob_kind: LogProbKind,
    /// How tokens were chosen.
    pub sampler: SamplerSettings,
    /// Why the action ended.
    pub stop: StopReason,
    /// The weights' version.
    pub policy_version: PolicyVersion,
    /// The code, once the cell was started.
    pub code: Option<String>,
    /// The cell's calls in the order of their numbers.
    pub calls: Vec<Call>,
    /// The answers in the order and grouping in which the cell was given them.
    pub resumes: Vec<Vec<u32>>,
    /// The cell's end.
    pub output: Option<CellFinished>,
}

/// One agent instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its path.
    pub path: NodePath,
    /// The parent's step and call that asked for it.
    pub call: Option<(u32, u32)>,
    /// Its goal in words.
    pub goal: String,
    /// Its goal as data (JSON).
    pub targets: String,
    /// What it works on: what the parent passed along.
    pub context_text: Text,
    /// Its depth.
    pub depth: Depth,
    /// Steps it may take.
    pub budget: u32,
    /// The event that made it.
    pub spawned: Seq,
    /// What it waits for.
    pub phase: Phase,
    /// Its whole token sequence.
    pub tokens: Vec<TokenId>,
    /// The pieces of `tokens`, in order and without gaps.
    pub segments: Vec<Segment>,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Its children in spawn order.
    pub children: Vec<NodePath>,
    /// The value given to `finish`, as JSON; the last call counts.
    pub finish: Option<String>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// The event that ended it.
    pub ended: Option<Seq>,
    /// Its verdicts; the first is the rollout's own.
    pub verdicts: Vec<Verdict>,
    /// Its reward, with the event that assigned it.
    pub reward: Option<(Seq, RewardAssigned)>,
}

impl Node {
    /// Tokens that the node generated itself.
    #[must_use]
    pub fn generated(&self) -> usize {
        self.segments.iter().filter(|s| s.source == Source::Action).map(|s| s.len).sum()
    }

    /// Own success: the first verdict's score, if there is one.
    #[must_use]
    pub fn success(&self) -> Option<f64> {
        self.verdicts.first().map(|v| v.score)
    }

    /// The step in progress or, between steps, the last one.
    #[must_use]
    pub fn last_step(&self) -> Option<&Step> {
        self.steps.last()
    }
}

/// One rollout.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Tree {
    /// The rollout's beginning; of a fork, its own.
    pub started: Option<RolloutStarted>,
    /// Where seeds took effect: a fork has its base's beginning first, and its own behind the events it shares.
    seeds: Vec<(Seq, u64)>,
    nodes: BTreeMap<NodePath, Node>,
    /// The rollout's end, if it has come.
    pub finished: Option<RolloutFinished>,
    /// Events applied so far, which is also the next event's position.
    pub events: u64,
}

/// An event that cannot follow the ones before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} ({kind}) does not fit the tree: {reason}")]
pub struct TreeError {
    /// Its position.
    pub seq: Seq,
    /// Its kind.
    pub kind: &'static str,
    /// Why.
    pub reason: String,
}

type Fit = Result<(), String>;

impl Tree {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        Tree::default()
    }

    /// Folds events in order.
    ///
    /// # Errors
    /// At the first event that does not fit.
    pub fn fold<'a>(events: impl IntoIterator<Item = &'a Event>) -> Result<Tree, TreeError> {
        let mut tree = Tree::new();
        for event in events {
            tree.apply(event)?;
        }
        Ok(tree)
    }

    /// The nodes in the order of their paths, the root first and every parent before its children.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = &Node> {
        self.nodes.values()
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True before the root was spawned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at `path`.
    #[must_use]
    pub fn node(&self, path: &NodePath) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// The root, once it was spawned.
    #[must_use]
    pub fn root(&self) -> Option<&Node> {
        self.nodes.values().next()
    }

    /// The seed in force at `seq`: an interpreter that a fork shares with its base keeps the random numbers of the base.
    #[must_use]
    pub fn seed_at(&self, seq: Seq) -> u64 {
        self.seeds.iter().rev().find(|(from, _)| *from <= seq).map_or(0, |(_, seed)| *seed)
    }

    /// How many events at the start are given: those that a fork shares with its base, and its own beginning. They are
    /// facts of another execution, so no replay makes them again. 0 for a rollout that is no fork.
    #[must_use]
    pub fn given(&self) -> u64 {
        match (self.seeds.last(), &self.started) {
            (Some((begun, _)), Some(RolloutStarted { fork_base: Some(_), .. })) => begun.0 + 1,
            _ => 0,
        }
    }

    /// Applies the next event.
    ///
    /// # Errors
    /// When the event contradicts the tree, as events of a damaged or forged log can; the tree is then not to be used.
    pub fn apply(&mut self, event: &Event) -> Result<(), TreeError> {
        if event.seq.0 != self.events {
            let reason = format!("event {} was expected", self.events);
            return Err(TreeError { seq: event.seq, kind: event.body.kind().name(), reason });
        }
        self.fit(event.seq, &event.body).map_err(|reason| TreeError {
            seq: event.seq,
            kind: event.body.kind().name(),
            reason,
        })?;
        self.events += 1;
        Ok(())
    }

    fn fit(&mut self, seq: Seq, body: &Body) -> Fit {
        if self.started.is_none() && !matches!(body, Body::RolloutStarted(_)) {
            return Err("the rollout has not started".into());
        }
        if self.finished.is_some() && !matches!(body, Body::Note(_) | Body::Verdict(_)) {
            return Err("the rollout has finished".into());
        }
        match body {
            Body::RolloutStarted(started) => self.begin(seq, started),
            Body::NodeSpawned(spawned) => self.spawn(seq, spawned),
            Body::SpawnRefused(refused) => {
                let call = self.call_mut(&refused.node, refused.step, refused.call)?;
                call.refused = Some(refused.text.clone());
                Ok(())
            }
            Body::ContextExtended(extended) => self.extend(seq, extended),
            Body::ActionSampled(action) => self.act(seq, action),
            Body::CellStarted(cell) => {
                let step = self.step_mut(&cell.node, cell.step)?;
                step.code = Some(cell.code.clone());
                self.node_mut(&cell.node)?.phase = Phase::InCell;
                Ok(())
            }
            Body::CallIssued(issued) => {
                let step = self.step_mut(&issued.node, issued.step)?;
                if step.calls.len() != issued.call as usize {
                    return Err(format!("call {} was expected", step.calls.len()));
                }
                step.calls.push(Call {
                    name: issued.name.clone(),
                    args: issued.args.clone(),
                    child: None,
                    refused: None,
                    answer: None,
                });
                Ok(())
            }
            Body::CallAnswered(answered) => {
                for (number, answer) in &answered.answers {
                    let call = self.call_mut(&answered.node, answered.step, *number)?;
                    if call.answer.replace(answer.clone()).is_some() {
                        return Err(format!("call {number} was answered before"));
                    }
                }
                let group = answered.answers.iter().map(|(number, _)| *number).collect();
                self.step_mut(&answered.node, answered.step)?.resumes.push(group);
                Ok(())
            }
            Body::CellFinished(output) => {
                let step = self.step_mut(&output.node, output.step)?;
                if step.output.replace(output.clone()).is_some() {
                    return Err("the cell has ended before".into());
                }
                self.node_mut(&output.node)?.phase = Phase::CellDone;
                Ok(())
            }
            Body::NodeFinished(finished) => {
                let node = self.node_mut(&finished.node)?;
                if node.outcome.replace(finished.outcome).is_some() {
                    return Err(format!("node {} has ended before", finished.node));
                }
                node.ended = Some(seq);
                node.finish.clone_from(&finished.value);
                node.phase = Phase::Ended;
                Ok(())
            }
            Body::Verdict(verdict) => {
                self.node_mut(&verdict.node)?.verdicts.push(verdict.clone());
                Ok(())
            }
            Body::RewardAssigned(reward) => {
                let node = self.node_mut(&reward.node)?;
                if node.reward.replace((seq, reward.clone())).is_some() {
                    return Err(format!("node {} has its reward already", reward.node));
                }
                Ok(())
            }
            Body::RolloutFinished(finished) => {
                self.finished = Some(finished.clone());
                Ok(())
            }
            Body::Note(_) | Body::HostFacts(_) => Ok(()),
            Body::RunStarted(_)
            | Body::RunFinished(_)
            | Body::TrainStarted(_)
            | Body::CreditAssigned(_)
            | Body::TrajectoryScored(_)
            | Body::TrainStep(_)
            | Body::TrainFinished(_) => Err("events of this kind do not belong to a rollout".into()),
        }
    }

    /// A second beginning is that of a fork: it stands right behind the events that the fork shares with its base.
    fn begin(&mut self, seq: Seq, started: &RolloutStarted) -> Fit {
        match (&self.started, &started.fork_base) {
            (None, _) => {}
            (Some(_), None) => return Err("the rollout has started already".into()),
            (Some(_), Some(base)) if base.seq.0 + 1 != seq.0 => {
                return Err(format!("a fork that shares events up to {} begins at the next one", base.seq));
            }
            (Some(base), Some(_)) if base.task != started.task => return Err("a fork keeps its base's task".into()),
            (Some(_), Some(_)) => {}
        }
        self.seeds.push((seq, started.seed));
        self.started = Some(started.clone());
        Ok(())
    }

    fn spawn(&mut self, seq: Seq, spawned: &NodeSpawned) -> Fit {
        if self.nodes.contains_key(&spawned.node) {
            return Err(format!("node {} exists already", spawned.node));
        }
        match (spawned.node.parent(), spawned.call) {
            (None, None) if spawned.node == NodePath::root() => {}
            (Some(parent), Some((step, call))) => {
                let ordinal = self.node_mut(&parent)?.children.len();
                if spawned.node != parent.child(u32::try_from(ordinal).map_err(|e| e.to_string())?) {
                    return Err(format!("the next child of node {parent} has ordinal {ordinal}"));
                }
                self.call_mut(&parent, step, call)?.child = Some(spawned.node.clone());
                self.node_mut(&parent)?.children.push(spawned.node.clone());
            }
            _ => return Err(format!("node {} has no parent call", spawned.node)),
        }
        if spawned.depth != spawned.node.depth() {
            return Err(format!("node {} cannot have depth {}", spawned.node, spawned.depth));
        }
        let node = Node {
            path: spawned.node.clone(),
            call: spawned.call,
            goal: spawned.goal.clone(),
            targets: spawned.targets.clone(),
            context_text: self.text(spawned)?,
            depth: spawned.depth,
            budget: spawned.budget,
            spawned: seq,
            phase: Phase::Spawned,
            tokens: Vec::new(),
            segments: Vec::new(),
            steps: Vec::new(),
            children: Vec::new(),
            finish: None,
            outcome: None,
            ended: None,
            verdicts: Vec::new(),
            reward: None,
        };
        self.nodes.insert(spawned.node.clone(), node);
        Ok(())
    }

    /// A node's text: a long one that is a piece of its parent's is shared with it, not kept twice.
    fn text(&self, spawned: &NodeSpawned) -> Result<Text, String> {
        let parent = spawned.node.parent().and_then(|parent| self.nodes.get(&parent));
        contexts::read(&spawned.context, parent.map(|parent| &parent.context_text))
    }

    /// Shares the root's text with whoever holds it anyway, such as the environment, if it reads the same: a tree from a
    /// log has a copy of its own at first.
    pub fn share(&mut self, text: &Text) {
        let Some(own) = self.root().map(|root| root.context_text.clone()) else { return };
        if own.shares(text) || !own.is_whole() || !text.is_whole() || own != *text {
            return;
        }
        for node in self.nodes.values_mut().filter(|node| node.context_text.shares(&own)) {
            node.context_text = node.context_text.moved_to(text);
        }
    }

    fn extend(&mut self, seq: Seq, extended: &ContextExtended) -> Fit {
        let source = match extended.role {
            Role::Prompt => Source::Prompt,
            Role::Observation => Source::Observation,
        };
        let node = self.node_mut(&extended.node)?;
        node.append(seq, source, extended.at, &extended.tokens)?;
        node.phase = Phase::Ready { since: seq };
        Ok(())
    }

    fn act(&mut self, seq: Seq, action: &ActionSampled) -> Fit {
        action.check().map_err(|e| e.to_string())?;
        let node = self.node_mut(&action.node)?;
        if node.steps.len() != action.step as usize {
            return Err(format!("node {} is at step {}", action.node, node.steps.len()));
        }
        node.append(seq, Source::Action, action.at, &action.tokens)?;
        node.steps.push(Step {
            seq,
            text: action.text.clone(),
            logprobs: action.logprobs.clone(),
            logprob_kind: action.logprob_kind,
            sampler: action.sampler,
            stop: action.stop,
            policy_version: action.policy_version,
            code: None,
            calls: Vec::new(),
            resumes: Vec::new(),
            output: None,
        });
        node.phase = Phase::Acted { at: seq };
        Ok(())
    }

    fn node_mut(&mut self, path: &NodePath) -> Result<&mut Node, String> {
        self.nodes.get_mut(path).ok_or_else(|| format!("there is no node {path}"))
    }

    fn step_mut(&mut self, path: &NodePath, step: u32) -> Result<&mut Step, String> {
        let node = self.node_mut(path)?;
        if node.outcome.is_some() {
            return Err(format!("node {path} has ended"));
        }
        let count = node.steps.len();
        match node.steps.last_mut() {
            Some(last) if count == step as usize + 1 => Ok(last),
            _ => Err(format!("node {path} is not at step {step}")),
        }
    }

    fn call_mut(&mut self, path: &NodePath, step: u32, call: u32) -> Result<&mut Call, String> {
        let step = self.step_mut(path, step)?;
        step.calls.get_mut(call as usize).ok_or_else(|| format!("node {path} has issued no call {call} in this step"))
    }
}

impl Node {
    fn append(&mut self, seq: Seq, source: Source, at: u32, tokens: &[TokenId]) -> Fit {
        if self.outcome.is_some() {
            return Err(format!("node {} has ended", self.path));
        }
        if at as usize != self.tokens.len() {
            return Err(format!(
                "tokens for position {at} were given, but the context of node {} has {} tokens: the prefix would break \
                 at position {}",
                self.path,
                self.tokens.len(),
                self.tokens.len().min(at as usize)
            ));
        }
        self.segments.push(Segment { source, start: self.tokens.len(), len: tokens.len(), seq });
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}
