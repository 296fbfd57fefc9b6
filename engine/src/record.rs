//! Recording a run: the manifest, its rollouts, its end; and taking up a run that was interrupted.

use std::sync::Arc;

use rao_envs::judge::Panel;
use rao_envs::{Environment, Task};
use rao_store::event::{Body, HostFacts, Kind, PolicyIdentity, RolloutStarted, RunFinished, RunStarted};
use rao_store::{Digest, EventSource, Expected, Filter, Log, RolloutId, RunId, Seq, Stream, content_digest_of_run};
use serde_json::json;

use crate::actor::Actor;
use crate::arrival;
use crate::config::{EngineConfig, Scheduler};
use crate::error::EngineError;
use crate::outside::{self, Live};
use crate::repl::ReplEngine;
use crate::rollout::{Parts, Rollout};
use crate::rounds::{self, Watch};
use crate::seed;
use crate::sink::LogSink;
use crate::tree::Tree;

/// What to record.
pub struct Plan {
    /// The environment.
    pub env: Arc<dyn Environment>,
    /// The tasks, in the order of their groups.
    pub tasks: Vec<Task>,
    /// Rollouts of each task.
    pub group_size: u32,
    /// The engine's settings.
    pub config: EngineConfig,
    /// The run's seed.
    pub seed: u64,
    /// Record only these rollouts of the `tasks.len() * group_size` that the plan has; `None` records all.
    pub only: Option<Vec<RolloutId>>,
    /// The most rollouts in progress at a time. It decides memory and speed, not content.
    pub width: usize,
    /// Who judges what the environment does not judge itself.
    pub panel: Panel,
}

impl Plan {
    /// The rollouts that the plan records, in ascending order.
    #[must_use]
    pub fn rollouts(&self) -> Vec<RolloutId> {
        let all = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX).saturating_mul(self.group_size);
        match &self.only {
            None => (0..all).map(RolloutId).collect(),
            Some(only) => {
                let mut chosen: Vec<RolloutId> = only.iter().copied().filter(|rollout| rollout.0 < all).collect();
                chosen.sort_unstable();
                chosen.dedup();
                chosen
            }
        }
    }

    fn started(&self, rollout: RolloutId, policy: &PolicyIdentity) -> Result<(RolloutStarted, &Task), EngineError> {
        let (group, member) = (rollout.0 / self.group_size.max(1), rollout.0 % self.group_size.max(1));
        let task = self
            .tasks
            .get(group as usize)
            .ok_or_else(|| EngineError::Internal(format!("rollout {rollout} has no task")))?;
        let started = RolloutStarted {
            task_id: task.id.clone(),
            difficulty: task.difficulty.clone(),
            task: task_json(task),
            group,
            member,
            seed: seed::rollout(self.seed, &task.id, member),
            policy: policy.clone(),
            fork_base: None,
        };
        Ok((started, task))
    }
}

/// A task as the log stores it.
#[must_use]
pub fn task_json(task: &Task) -> String {
    json!({ "id": task.id, "difficulty": task.difficulty, "body": task.body }).to_string()
}

/// A task from the log.
///
/// # Errors
/// When the stored JSON is no task.
pub fn task_from_json(text: &str) -> Result<Task, EngineError> {
    let damaged = |reason: String| EngineError::Config(format!("the stored task cannot be read: {reason}"));
    let mut value: serde_json::Value = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
    let field = |value: &serde_json::Value, name: &str| value.get(name).and_then(|v| v.as_str()).map(str::to_owned);
    match (field(&value, "id"), field(&value, "difficulty"), value.get_mut("body")) {
        (Some(id), Some(difficulty), Some(body)) => Ok(Task { id, difficulty, body: body.take() }),
        _ => Err(damaged("id, difficulty or body is missing".into())),
    }
}

/// What a recording came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The run.
    pub run: RunId,
    /// Finished rollouts.
    pub rollouts: u32,
    /// How many of them their root solved (own success 1).
    pub solved: u32,
    /// The sum of the roots' own success.
    pub success: f64,
    /// Nodes of all rollouts.
    pub nodes: u64,
    /// Steps of all rollouts.
    pub steps: u64,
    /// Generated tokens of all rollouts.
    pub tokens: u64,
    /// Events of all rollouts.
    pub events: u64,
    /// The run's content digest.
    pub content: Digest,
}

impl Recorded {
    fn add(&mut self, tree: &Summary) {
        self.rollouts += 1;
        self.success += tree.success;
        self.solved += u32::from(tree.success >= 1.0);
        self.nodes += u64::from(tree.nodes);
        self.steps += u64::from(tree.steps);
        self.tokens += tree.tokens;
        self.events += tree.events;
    }
}

/// Records a run from its manifest to its end.
///
/// # Errors
/// At the first failure. Everything acknowledged before stays in the log, and [`resume`] goes on from it.
pub fn record(
    log: &Arc<Log>,
    run: RunId,
    plan: &Plan,
    host: HostFacts,
    actor: &mut dyn Actor,
    repl: &Arc<dyn ReplEngine>,
    watch: &mut Watch<'_>,
) -> Result<Recorded, EngineError> {
    plan.config.check().map_err(EngineError::Config)?;
    let manifest = RunStarted {
        env: plan.env.name().to_owned(),
        env_config: env_config(plan)?,
        engine_config: serde_json::to_string(&plan.config).map_err(|e| EngineError::Internal(e.to_string()))?,
        policy: actor.identity(),
        repl: repl.identity(),
        seed: plan.seed,
        group_size: plan.group_size,
        tasks: u32::try_from(plan.tasks.len()).unwrap_or(u32::MAX),
        rollouts: plan.rollouts(),
        durability: log.durability().to_string(),
    };
    log.append(Stream::Run(run), Expected::Exactly(Seq(0)), vec![manifest.into(), Body::from(host)])?;
    finish_run(log, run, plan, actor, repl, watch)
}

/// The environment's settings with the tools that its cells can call, which a replay without the environment needs.
fn env_config(plan: &Plan) -> Result<String, EngineError> {
    let mut config = plan.env.config();
    if let (Some(task), Some(object)) = (plan.tasks.first(), config.as_object_mut()) {
        let episode = plan.env.open(task)?;
        let tools: Vec<_> = episode.tools().iter().map(|tool| json!([tool.name, tool.is_async])).collect();
        object.insert("tools".into(), tools.into());
        if let Some(variable) = episode.context_variable() {
            object.insert("context_variable".into(), variable.into());
        }
    }
    Ok(config.to_string())
}

/// Takes up an interrupted run: finishes the rollouts that are half done and records those that are missing.
///
/// The plan must be the one that the run was recorded with.
///
/// # Errors
/// As [`record`].
pub fn resume(
    log: &Arc<Log>,
    run: RunId,
    plan: &Plan,
    actor: &mut dyn Actor,
    repl: &Arc<dyn ReplEngine>,
    watch: &mut Watch<'_>,
) -> Result<Recorded, EngineError> {
    finish_run(log, run, plan, actor, repl, watch)
}

fn finish_run(
    log: &Arc<Log>,
    run: RunId,
    plan: &Plan,
    actor: &mut dyn Actor,
    repl: &Arc<dyn ReplEngine>,
    watch: &mut Watch<'_>,
) -> Result<Recorded, EngineError> {
    let policy = actor.identity();
    let chat = Arc::clone(actor.chat());
    let mut total = Recorded {
        run,
        rollouts: 0,
        solved: 0,
        success: 0.0,
        nodes: 0,
        steps: 0,
        tokens: 0,
        events: 0,
        content: Digest([0; 32]),
    };
    let mut earlier = Vec::new();
    let open = |id: RolloutId, earlier: &mut Vec<Summary>| -> Result<Option<Rollout>, EngineError> {
        let (started, task) = plan.started(id, &policy)?;
        let stream = Stream::Rollout(run, id);
        let stored = stored_events(log, stream)?;
        let next = Seq(stored.len() as u64);
        let mut episode = plan.env.open(task)?;
        outside::absorb(&mut *episode, &stored)?;
        let mut tree = Tree::fold(&stored)?;
        drop(stored);
        tree.share(&episode.root_goal().context);
        let outside = Live::new(episode, Arc::clone(&chat), plan.config.clone()).with_panel(plan.panel.clone());
        if tree.finished.is_some() {
            earlier.push(summary(&tree));
            return Ok(None);
        }
        let parts = Parts {
            stream,
            config: plan.config.clone(),
            outside: Box::new(outside),
            repl: Arc::clone(repl),
            sink: Box::new(LogSink::new(Arc::clone(log), stream, next)),
            ordinal: id.0,
        };
        let rollout = if tree.events == 0 { Rollout::start(parts, started)? } else { Rollout::restore(parts, tree)? };
        Ok(Some(rollout))
    };
    let mut queue = plan.rollouts().into_iter().filter_map(|id| open(id, &mut earlier).transpose());
    let mut trees = Vec::new();
    let run_all = match plan.config.scheduler {
        Scheduler::Rounds => rounds::run,
        Scheduler::Arrival => arrival::run,
    };
    run_all(&mut queue, plan.width, actor, watch, &mut |rollout| trees.push(summary(rollout.tree())))?;
    drop(queue);
    for tree in earlier.iter().chain(&trees) {
        total.add(tree);
    }
    total.content = end_run(log, run, total.rollouts)?;
    Ok(total)
}

struct Summary {
    success: f64,
    nodes: u32,
    steps: u32,
    tokens: u64,
    events: u64,
}

fn summary(tree: &Tree) -> Summary {
    let (success, nodes, steps, tokens) =
        tree.finished.as_ref().map_or((0.0, 0, 0, 0), |f| (f.success, f.nodes, f.steps, f.tokens));
    Summary { success, nodes, steps, tokens, events: tree.events }
}

fn stored_events(log: &Log, stream: Stream) -> Result<Vec<rao_store::event::Event>, EngineError> {
    if log.head(stream).is_none() {
        return Ok(Vec::new());
    }
    Ok(log.events(stream, Seq(0), &Filter::all()).collect::<Result<_, _>>()?)
}

/// Writes the run's end, unless it is there already, and gives the run's content digest.
fn end_run(log: &Arc<Log>, run: RunId, rollouts: u32) -> Result<Digest, EngineError> {
    log.flush()?;
    let content = content_digest_of_run(&**log, run)?;
    let stream = Stream::Run(run);
    let ended = log.headers(stream, Seq(0)).any(|header| header.is_ok_and(|h| h.kind == Kind::RunFinished));
    if !ended {
        log.append(stream, Expected::Any, vec![RunFinished { rollouts, content }.into()])?;
    }
    Ok(content)
}
