//! Re-execution: running a recorded rollout again and comparing every event with the log.
//!
//! Four depths, each taking less from the log than the one before:
//!
//! | check | taken from the log | made again and compared |
//! |---|---|---|
//! | `fold` | everything | the tree, and every number that events derive from others |
//! | `cells` | actions, answers, verdicts | the cells: code, calls, output; the order of events |
//! | `tools` | actions | the world too: answers, goals, refusals, verdicts, prompts |
//! | `tokens` | nothing after the start | the policy's tokens and log-probabilities too |
//!
//! The same state machine that recorded the rollout ([`rao_engine::Rollout`]) runs again, restored from the events
//! before `from`; before `from` no policy, tool or judge is called. The events that a fork shares with its base are facts
//! of another execution: they are never made again, but compared with the base where the log has it.

mod bench;
mod compare;
mod divergence;
mod fold;
mod fork;
mod logged;
mod tools;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rao_engine::contexts::Contexts;
use rao_engine::repl::{KeptSessions, ReplEngine};
use rao_engine::{Action, Actor, EngineConfig, EngineError, Live, Need, Outside, Parts, Rollout, Tree};
use rao_envs::Environment;
use rao_store::event::{Body, Event, Kind, RolloutStarted, RunStarted};
use rao_store::{EventSource, Filter, LogError, NodePath, RolloutId, RunId, Seq, Stream};

pub use divergence::Divergence;

use compare::{CompareSink, Shared};
use logged::Logged;
use tools::Tools;

/// How deep a replay goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Rebuild the tree and recompute every derived number.
    Fold,
    /// Also re-run the Python cells with logged answers.
    Cells,
    /// Also re-run the environment.
    Tools,
    /// Also sample again.
    Tokens,
}

/// What to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How deep.
    pub check: Check,
    /// The first event to make again; everything before it is folded from the log.
    pub from: Seq,
}

/// What a replay may use. A check that needs something absent fails with [`ReplayError::Missing`].
pub struct Means {
    /// The environment, for `tools` and `tokens`.
    pub env: Option<Arc<dyn Environment>>,
    /// The interpreters, for everything but `fold`.
    pub repl: Arc<dyn ReplEngine>,
    /// The policy, for `tokens`.
    pub actor: Option<Box<dyn Actor>>,
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// Events of the rollout.
    pub events: u64,
    /// Events folded from the log without comparison.
    pub skipped: u64,
    /// Events made again and found equal.
    pub compared: u64,
    /// Tool calls executed.
    pub tool_calls: u64,
    /// Actions sampled.
    pub policy_calls: u64,
    /// Nodes judged.
    pub judge_calls: u64,
    /// Whether the log holds the rollout's end.
    pub complete: bool,
    /// The first event that differs.
    pub divergence: Option<Divergence>,
}

/// Why a replay could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The rollout cannot be restored or run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The check needs something that was not given.
    #[error("check `{check}` needs {what}, which is not there: {next}")]
    Missing {
        /// The check.
        check: &'static str,
        /// What is missing.
        what: &'static str,
        /// What to do.
        next: &'static str,
    },
    /// The start lies outside the rollout.
    #[error("rollout {rollout} of run {run} has {events} events: --from must name one of them, #0 to #{}", events.saturating_sub(1))]
    From {
        /// The run.
        run: RunId,
        /// The rollout.
        rollout: RolloutId,
        /// How many events it has.
        events: u64,
    },
    /// A manifest that this program cannot use.
    #[error("the manifest of run {run} cannot be used: {reason}")]
    Manifest {
        /// The run.
        run: RunId,
        /// Why.
        reason: String,
    },
}

impl Checked {
    /// Nothing was compared yet.
    fn new(events: &[Event], from: Seq, complete: bool) -> Self {
        Checked {
            events: events.len() as u64,
            skipped: from.0,
            compared: 0,
            tool_calls: 0,
            policy_calls: 0,
            judge_calls: 0,
            complete,
            divergence: None,
        }
    }

    fn diverged(events: &[Event], from: Seq, complete: bool, divergence: Divergence) -> Self {
        Checked { divergence: Some(divergence), ..Checked::new(events, from, complete) }
    }
}

impl Check {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Check::Fold => "fold",
            Check::Cells => "cells",
            Check::Tools => "tools",
            Check::Tokens => "tokens",
        }
    }
}

/// Reads a run's manifest and the engine's settings in it.
///
/// # Errors
/// When there is none, or its settings are those of another version.
pub fn manifest(source: &dyn EventSource, run: RunId) -> Result<(RunStarted, EngineConfig), ReplayError> {
    let failed = |reason: String| ReplayError::Manifest { run, reason };
    let mut events = source.events(Stream::Run(run), Seq(0), &Filter::kinds([Kind::RunStarted]));
    let Some(first) = events.next() else { return Err(failed("the run has no run_started event".into())) };
    let Body::RunStarted(started) = first?.body else {
        return Err(failed("its first event is no manifest".into()));
    };
    let config = serde_json::from_str(&started.engine_config).map_err(|e| failed(e.to_string()))?;
    Ok((started, config))
}

/// The first event in which two recordings of a rollout differ: `expected` is of the first, `got` of the second.
#[must_use]
pub fn first_difference(run: RunId, rollout: RolloutId, expected: &[Event], got: &[Event]) -> Option<Divergence> {
    let contexts = Contexts::of(expected);
    let at = (0..expected.len().max(got.len())).find(|at| match (expected.get(*at), got.get(*at)) {
        (Some(a), Some(b)) => !compare::same_as_stored(&a.body, &b.body, &contexts),
        _ => true,
    })?;
    let divergence = match got.get(at) {
        Some(event) => Divergence::of_bodies(expected, at, &event.body),
        None => Divergence::of_kind(expected, at, "the end of the log".into()),
    };
    Some(divergence.placed(run, rollout))
}

/// Replays one rollout.
///
/// Sessions that the engine keeps speed it up and decide nothing: a difference or a failure that is found with them is looked
/// for again without.
///
/// # Errors
/// When the replay cannot be made. A difference is no error: it stands in [`Checked::divergence`].
pub fn replay_rollout(
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    request: &Request,
    means: &mut Means,
) -> Result<Checked, ReplayError> {
    let taken = |means: &Means| means.repl.kept().map_or(0, KeptSessions::taken);
    let before = taken(means);
    let outcome = replay_with(source, run, rollout, request, means);
    let differs = outcome.as_ref().map_or(true, |checked| checked.divergence.is_some());
    match means.repl.plain().filter(|_| differs && taken(means) > before) {
        None => outcome,
        Some(plain) => {
            let keeping = std::mem::replace(&mut means.repl, plain);
            let again = replay_with(source, run, rollout, request, means);
            means.repl = keeping;
            again
        }
    }
}

fn replay_with(
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    request: &Request,
    means: &mut Means,
) -> Result<Checked, ReplayError> {
    let stream = Stream::Rollout(run, rollout);
    let mut events: Vec<Event> = source.events(stream, Seq(0), &Filter::all()).collect::<Result<_, _>>()?;
    let end = events.iter().position(|event| matches!(event.body, Body::RolloutFinished(_)));
    if let Some(end) = end {
        // Remarks and later verdicts may follow the end; they are not part of the execution.
        events.truncate(end + 1);
    }
    if request.from.0 >= events.len() as u64 {
        return Err(ReplayError::From { run, rollout, events: events.len() as u64 });
    }
    if let Some(divergence) = fork::differs_from_base(source, &events) {
        return Ok(Checked::diverged(&events, request.from, end.is_some(), divergence.placed(run, rollout)));
    }
    if request.check == Check::Fold {
        return Ok(fold::check(run, rollout, &events, request.from, end.is_some()));
    }
    let (started, config) = manifest(source, run)?;
    let from = request.from.max(Seq(fork::given(&events)));
    let shared = Rc::new(RefCell::new(Shared::new(run, rollout, events, from, end.is_some())));
    let replay = Replay { stream, started, config, check: request.check, shared: Rc::clone(&shared) };
    replay.execute(means)?;
    let mut shared = shared.borrow_mut();
    if let Some(divergence) = &mut shared.divergence {
        divergence.cause = cause(&replay.started, request.check, means);
        if let Some(actor) = &means.actor {
            divergence.decode(&|ids| actor.chat().decode(ids));
        }
    }
    Ok(shared.checked())
}

struct Replay {
    stream: Stream,
    started: RunStarted,
    config: EngineConfig,
    check: Check,
    shared: Rc<RefCell<Shared>>,
}

impl Replay {
    fn execute(&self, means: &mut Means) -> Result<(), ReplayError> {
        let outside = {
            let before = self.shared.borrow().before();
            self.outside(means, &before)?
        };
        // Behind the world, which may have the root's text to share.
        let before = self.shared.borrow().before();
        let parts = Parts {
            stream: self.stream,
            config: self.config.clone(),
            outside,
            repl: Arc::clone(&means.repl),
            sink: Box::new(CompareSink::new(Rc::clone(&self.shared))),
            ordinal: match self.stream {
                Stream::Rollout(_, rollout) => rollout.0,
                Stream::Run(_) | Stream::Training(_) => 0,
            },
        };
        let ran = if before.is_empty() {
            Rollout::start(parts, self.rollout_started()?)
        } else {
            Rollout::restore(parts, Tree::fold(&before).map_err(EngineError::from)?)
        };
        let outcome = ran.and_then(|mut rollout| self.run(&mut rollout, means));
        match outcome {
            Err(EngineError::Diverged { .. }) => Ok(()),
            Err(error) if self.shared.borrow().has_ended() => {
                // The log stops in the middle of something: what comes after its last event has nothing to compare.
                tracing::debug!(%error, "the replay stopped where the log ends");
                Ok(())
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.shared.borrow_mut().finish();
                Ok(())
            }
        }
    }

    fn rollout_started(&self) -> Result<RolloutStarted, ReplayError> {
        self.shared.borrow().rollout_started().ok_or_else(|| ReplayError::Manifest {
            run: self.stream.run(),
            reason: format!("stream {} does not begin with a rollout_started event", self.stream),
        })
    }

    fn run(&self, rollout: &mut Rollout, means: &mut Means) -> Result<(), EngineError> {
        loop {
            let (waiting, is_batch) = match rollout.advance()? {
                Need::Actions(nodes) => (nodes, true),
                Need::Arrivals(nodes) => (nodes, false),
                Need::Verdicts(nodes) => return self.shared.borrow_mut().lacks_verdict(&nodes),
                Need::Calls => return Err(EngineError::Internal("a replay waits for a call".into())),
                Need::Nothing => return Ok(()),
            };
            for row in rollout.take_released() {
                if let Some(actor) = &mut means.actor {
                    actor.release(row);
                }
            }
            if self.shared.borrow().has_ended() {
                return Ok(());
            }
            // Under `arrival` one node acts at a time; which one is a fact of the log.
            let nodes = if is_batch { waiting } else { vec![self.shared.borrow_mut().next_to_act(&waiting)?] };
            let actions = match (self.check, &mut means.actor) {
                (Check::Tokens, Some(actor)) => {
                    self.shared.borrow_mut().policy_calls += nodes.len() as u64;
                    actor.act(&rollout.asks(&nodes)?)?
                }
                _ => self.logged_actions(&nodes)?,
            };
            for (node, action) in nodes.iter().zip(actions) {
                rollout.act(node, action)?;
            }
        }
    }

    /// The next actions of the log. Where the log has something else, or another node's action, that is the divergence.
    fn logged_actions(&self, nodes: &[NodePath]) -> Result<Vec<Action>, EngineError> {
        let mut shared = self.shared.borrow_mut();
        let mut actions = Vec::with_capacity(nodes.len());
        for (offset, node) in nodes.iter().enumerate() {
            match shared.logged_action(offset, node)? {
                Some(action) => actions.push(action),
                None => break,
            }
        }
        Ok(actions)
    }

    fn outside(&self, means: &Means, before: &[Event]) -> Result<Box<dyn Outside>, ReplayError> {
        let logged = Logged::new(Rc::clone(&self.shared), &self.started, &self.config);
        if self.check == Check::Cells {
            return Ok(Box::new(logged));
        }
        let name = self.check.name();
        let env = means.env.as_ref().ok_or(ReplayError::Missing {
            check: name,
            what: "the environment",
            next: "name its data with --data, or use --check cells",
        })?;
        let task = rao_engine::record::task_from_json(&self.rollout_started()?.task)?;
        let mut episode = env.open(&task).map_err(EngineError::from)?;
        self.shared.borrow_mut().share(&episode.root_goal().context);
        rao_engine::absorb(&mut *episode, before)?;
        if self.check == Check::Tools {
            return Ok(Box::new(Tools::new(logged, episode, self.config.clone())));
        }
        let actor = means.actor.as_ref().ok_or(ReplayError::Missing {
            check: name,
            what: "the policy",
            next: "name it with --policy, or use --check tools",
        })?;
        let live = Live::new(episode, Arc::clone(actor.chat()), self.config.clone());
        Ok(Box::new(tools::Full::new(logged, live, &self.config)))
    }
}

/// What differs between now and the recording, if that is known to matter for the check.
fn cause(started: &RunStarted, check: Check, means: &Means) -> Option<String> {
    let repl = means.repl.identity();
    if check >= Check::Cells && repl != started.repl {
        return Some(format!("the run was recorded with REPL `{}`, this replay uses `{repl}`", started.repl));
    }
    if check < Check::Tools {
        return None;
    }
    if let Some(env) = &means.env {
        let mut stored: serde_json::Value = serde_json::from_str(&started.env_config).unwrap_or_default();
        if let Some(object) = stored.as_object_mut() {
            object.remove("tools");
            object.remove("context_variable");
        }
        let now = env.config();
        if stored != now {
            return Some(format!("the environment's settings differ: recorded {stored}, now {now}"));
        }
    }
    let identity = means.actor.as_ref().filter(|_| check == Check::Tokens)?.identity();
    (identity != started.policy).then(|| {
        let weights = |w: Option<rao_store::Digest>| w.map_or("none".into(), |d| d.short());
        format!(
            "the policy differs: recorded {} (weights {}, tokenizer {}), now {} (weights {}, tokenizer {})",
            started.policy.name,
            weights(started.policy.weights),
            started.policy.tokenizer.short(),
            identity.name,
            weights(identity.weights),
            identity.tokenizer.short()
        )
    })
}
