//! One rollout as a state machine.
//!
//! What happens next is a function of the [`Tree`] alone (see [`Rollout::next_move`]), so a rollout that is restored
//! from any event of its log goes on exactly as it went on before. Interpreters are rebuilt from the log when they are
//! first needed.

mod cell;
mod detached;
mod ending;
mod judging;
mod launch;
mod next;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rao_envs::Goal;
use rao_store::event::{
    ActionSampled, Body, CellFinished, ContextExtended, Event, LimitKind, NodeSpawned, Outcome, Role, RolloutStarted,
};
use rao_store::{NodePath, PolicyVersion, Seq, Stream};

use crate::actor::{Action, Ask};
use crate::answer;
use crate::config::{EngineConfig, Scheduler};
use crate::contexts;
use crate::error::EngineError;
use crate::outside::{Asking, Outside};
use crate::repl::{CellOutput, Limit, Progress, Repl, ReplEngine, ReplError};
use crate::sink::Sink;
use crate::tree::{Node, Tree};

pub use detached::{CallKey, DetachedCall};
pub use ending::{Ended, reward};

/// The function that delegates.
pub const LAUNCH: &str = "launch_subagent";
/// The function that ends a node.
pub const FINISH: &str = "finish";

/// The parts that a rollout runs on.
pub struct Parts {
    /// The stream that its events belong to.
    pub stream: Stream,
    /// The settings.
    pub config: EngineConfig,
    /// The world, or the log in its place.
    pub outside: Box<dyn Outside>,
    /// The interpreters.
    pub repl: Arc<dyn ReplEngine>,
    /// Where events go.
    pub sink: Box<dyn Sink>,
    /// A number that no other rollout of the process has; with a node's ordinal it keys the policy's caches.
    pub ordinal: u32,
}

/// What a rollout waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// An action of each of these nodes, in this order.
    Actions(Vec<NodePath>),
    /// Under the `arrival` scheduler: the action of any of these nodes, the result of a call that runs by itself, or a
    /// judge's verdict.
    Arrivals(Vec<NodePath>),
    /// Under the `rounds` scheduler: the results of the calls that it has detached, before anything else.
    Calls,
    /// Under the `rounds` scheduler: judges' verdicts on these nodes, before anything else. They are logged in this order.
    Verdicts(Vec<NodePath>),
    /// Nothing: it has finished.
    Nothing,
}

/// A rollout in progress.
pub struct Rollout {
    parts: Parts,
    tree: Tree,
    seed: u64,
    policy_version: PolicyVersion,
    /// Nodes that are not settled yet; the rest of the tree needs no look.
    active: BTreeSet<NodePath>,
    /// Nodes that ended and wait for the root's verdict: theirs will be the same.
    deferred: BTreeSet<NodePath>,
    docket: judging::Docket,
    sessions: BTreeMap<NodePath, Session>,
    /// Sessions that hold much and do not rest, with the bytes that they held when their cell last stopped.
    heavy: BTreeMap<NodePath, usize>,
    rows: BTreeMap<NodePath, u64>,
    /// How many rows were handed out; a row is never used twice.
    next_row: u64,
    released: Vec<u64>,
    detached: detached::Calls,
}

struct Session {
    repl: Box<dyn Repl>,
    stand_in: Option<Box<dyn Repl>>,
    progress: Option<Progress>,
}

#[derive(Debug, PartialEq, Eq)]
enum Move {
    Prompt(NodePath),
    Settle(NodePath),
    Conclude(NodePath),
    Drive(NodePath),
    RunCell(NodePath),
    Deliver(NodePath),
    Sample(Vec<NodePath>),
    Wait(Vec<NodePath>),
    Await,
    Judge(Vec<NodePath>),
    Spawn,
    Finish,
    Nothing,
}

impl Rollout {
    /// Begins a rollout.
    ///
    /// # Errors
    /// When the first events cannot be taken.
    pub fn start(parts: Parts, started: RolloutStarted) -> Result<Self, EngineError> {
        let mut rollout = Rollout::with_tree(parts, Tree::new(), &started);
        rollout.emit(started.into())?;
        Ok(rollout)
    }

    /// Takes up a rollout where its log ends. `parts.outside` must stand where the log leaves the world.
    ///
    /// # Errors
    /// When the log has no beginning.
    pub fn restore(parts: Parts, tree: Tree) -> Result<Self, EngineError> {
        let started = tree
            .started
            .clone()
            .ok_or_else(|| EngineError::Config("the rollout has no rollout_started event to go on from".into()))?;
        Ok(Rollout::with_tree(parts, tree, &started))
    }

    fn with_tree(parts: Parts, tree: Tree, started: &RolloutStarted) -> Self {
        let active = tree.nodes().filter(|node| node.reward.is_none()).map(|node| node.path.clone()).collect();
        Rollout {
            seed: started.seed,
            policy_version: started.policy.version,
            parts,
            tree,
            active,
            deferred: BTreeSet::new(),
            docket: judging::Docket::default(),
            sessions: BTreeMap::new(),
            heavy: BTreeMap::new(),
            rows: BTreeMap::new(),
            next_row: 0,
            released: Vec::new(),
            detached: detached::Calls::default(),
        }
    }

    /// The tree so far.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Rows whose nodes ended since the last call.
    pub fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released)
    }

    /// Hands what was emitted so far to the sink's log.
    ///
    /// # Errors
    /// When the log failed.
    pub fn hand_on(&mut self) -> Result<(), EngineError> {
        self.parts.sink.hand_on()
    }

    /// Waits until everything handed on so far is acknowledged.
    ///
    /// # Errors
    /// When the log failed.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        self.parts.sink.settle()
    }

    /// Goes on until something is needed or the rollout has finished, and hands its events on.
    ///
    /// # Errors
    /// See [`EngineError`]; what was emitted before stays valid.
    pub fn advance(&mut self) -> Result<Need, EngineError> {
        let need = loop {
            match self.next_move()? {
                Move::Spawn => self.spawn_root()?,
                Move::Prompt(node) => self.prompt(&node)?,
                Move::Settle(node) => self.settle_node(&node)?,
                Move::Conclude(node) => self.conclude(&node)?,
                Move::Drive(node) => self.drive(&node)?,
                Move::RunCell(node) => self.run_cell(&node)?,
                Move::Deliver(node) => self.deliver(&node)?,
                Move::Finish => self.finish()?,
                Move::Sample(nodes) => break Need::Actions(nodes),
                Move::Wait(nodes) => break Need::Arrivals(nodes),
                Move::Await => break Need::Calls,
                Move::Judge(nodes) => break Need::Verdicts(nodes),
                Move::Nothing => break Need::Nothing,
            }
        };
        self.parts.sink.hand_on()?;
        Ok(need)
    }

    /// The order in which the rollout's nodes go on.
    fn scheduler(&self) -> Scheduler {
        self.parts.config.scheduler
    }

    fn active_nodes(&self) -> impl DoubleEndedIterator<Item = &Node> {
        self.active.iter().filter_map(|path| self.tree.node(path))
    }

    fn emit(&mut self, body: Body) -> Result<(), EngineError> {
        let event = Event { stream: self.parts.stream, seq: Seq(self.tree.events), at_us: 0, body };
        self.tree.apply(&event)?;
        self.parts.sink.emit(event.seq, &event.body)
    }

    fn node(&self, path: &NodePath) -> Result<&Node, EngineError> {
        self.tree.node(path).ok_or_else(|| EngineError::Internal(format!("node {path} does not exist")))
    }

    fn goal(&self, path: &NodePath) -> Result<Goal, EngineError> {
        let node = self.node(path)?;
        answer::goal(path, &node.goal, &node.targets, node.context_text.clone())
    }

    fn spawn_root(&mut self) -> Result<(), EngineError> {
        let goal = self.parts.outside.root_goal();
        let budget = self.parts.config.max_steps;
        self.spawn(NodePath::root(), None, goal, budget)
    }

    fn spawn(&mut self, node: NodePath, call: Option<(u32, u32)>, goal: Goal, budget: u32) -> Result<(), EngineError> {
        self.parts.outside.enter(&node, &goal);
        self.active.insert(node.clone());
        let depth = node.depth();
        let parent = node.parent().and_then(|parent| self.tree.node(&parent));
        let context = contexts::written(&goal.context, parent.map(|parent| &parent.context_text));
        let targets = goal.targets.to_string();
        self.emit(NodeSpawned { node, call, goal: goal.text, targets, context, depth, budget }.into())
    }

    fn prompt(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let goal = self.goal(path)?;
        let node = self.node(path)?;
        let ancestors = self.ancestors(path)?;
        let asking =
            Asking { node: path, goal: &goal, ancestors: &ancestors, step: 0, budget: node.budget, context: 0 };
        match self.parts.outside.prompt(&asking)? {
            Some(extension) => self.extend(path, Role::Prompt, 0, extension),
            None => self.end(path, Outcome::ContextOverflow),
        }
    }

    /// The goals above a node, the closest first, if prompts show them.
    fn ancestors(&self, path: &NodePath) -> Result<Vec<String>, EngineError> {
        let mut goals = Vec::new();
        let mut above = path.parent().filter(|_| self.parts.config.ancestors);
        while let Some(parent) = above {
            goals.push(self.node(&parent)?.goal.clone());
            above = parent.parent();
        }
        Ok(goals)
    }

    fn extend(
        &mut self,
        path: &NodePath,
        role: Role,
        step: u32,
        extension: crate::outside::Extension,
    ) -> Result<(), EngineError> {
        let at = length(self.node(path)?.tokens.len())?;
        let (text, tokens) = (extension.text, extension.tokens);
        self.emit(ContextExtended { node: path.clone(), step, role, text, at, tokens }.into())
    }

    /// The requests for actions of `nodes`.
    ///
    /// # Errors
    /// When a stored goal cannot be read.
    pub fn asks<'a>(&'a mut self, nodes: &'a [NodePath]) -> Result<Vec<Ask<'a>>, EngineError> {
        nodes.iter().for_each(|path| self.give_row(path));
        let this = &*self;
        nodes.iter().map(|path| this.ask(path)).collect()
    }

    /// The request for the action of one node.
    ///
    /// # Errors
    /// When a stored goal cannot be read.
    pub fn request<'a>(&'a mut self, node: &'a NodePath) -> Result<Ask<'a>, EngineError> {
        self.give_row(node);
        self.ask(node)
    }

    fn give_row(&mut self, path: &NodePath) {
        if !self.rows.contains_key(path) {
            self.rows.insert(path.clone(), (u64::from(self.parts.ordinal) << 32) | self.next_row);
            self.next_row += 1;
        }
    }

    fn ask<'a>(&'a self, path: &'a NodePath) -> Result<Ask<'a>, EngineError> {
        let node = self.node(path)?;
        let config = &self.parts.config;
        Ok(Ask {
            row: self.rows.get(path).copied().unwrap_or_default(),
            node: path,
            step: length(node.steps.len())?,
            budget: node.budget,
            max_depth: config.max_depth,
            recursive: config.recursive,
            goal: self.goal(path)?,
            context: node.tokens.iter().map(|t| t.0).collect(),
            observation: node.last_step().and_then(|step| step.output.as_ref()).map(shown),
            seed: self.seed,
            episode: self.parts.outside.episode(),
        })
    }

    /// Takes a node's action.
    ///
    /// # Errors
    /// When the action cannot be logged.
    pub fn act(&mut self, path: &NodePath, action: Action) -> Result<(), EngineError> {
        let node = self.node(path)?;
        let (step, at) = (length(node.steps.len())?, length(node.tokens.len())?);
        let body = ActionSampled {
            node: path.clone(),
            step,
            text: action.text,
            at,
            tokens: action.tokens,
            logprobs: action.logprobs,
            logprob_kind: action.logprob_kind,
            sampler: action.sampler,
            stop: action.stop,
            policy_version: self.policy_version,
        };
        self.emit(body.into())
    }
}

/// What an agent sees of a cell: its output, then its error.
pub(crate) fn shown(output: &CellFinished) -> String {
    match &output.error {
        Some(error) => format!("{}Error: {error}", output.stdout),
        None => output.stdout.clone(),
    }
}

/// A cell's end as the REPL gave it, from the log's form of it.
#[must_use]
pub fn cell_output(output: &CellFinished) -> CellOutput {
    let limit = output.limit.map(|limit| match limit {
        LimitKind::Time => Limit::Time,
        LimitKind::Memory => Limit::Memory,
        LimitKind::Calls => Limit::Calls,
    });
    CellOutput { stdout: output.stdout.clone(), error: output.error.clone(), limit, rejected: output.rejected }
}

fn repl_error(path: &NodePath, source: ReplError) -> EngineError {
    EngineError::Repl { node: path.clone(), source }
}

fn length(value: usize) -> Result<u32, EngineError> {
    u32::try_from(value).map_err(|_| EngineError::Internal(format!("{value} does not fit 32 bits")))
}
