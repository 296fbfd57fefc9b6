//! Everything that reaches a rollout from outside the REPL and the policy: the world, the prompts and the judge.
//!
//! The live engine asks the environment; a replay answers from the log. Both drive the same [`crate::Rollout`].

use std::collections::BTreeMap;
use std::sync::Arc;

use rao_envs::judge::{Panel, Ruling};
use rao_envs::{Args, Assessment, Detached, Ending, Episode, Goal, ToolResult};
use rao_policy::Chat;
use rao_store::event::{Body, CallIssued, Event, StopReason};
use rao_store::{NodePath, TokenId};

use crate::answer;
use crate::config::EngineConfig;
use crate::contexts::Contexts;
use crate::error::EngineError;
use crate::protocol;
use crate::repl::{CellOutput, Repl};

/// A piece of context to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The turn's own text.
    pub text: String,
    /// The exact ids, template included.
    pub tokens: Vec<TokenId>,
}

/// What outside knows of the node that it is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The node.
    pub node: &'a NodePath,
    /// Its goal.
    pub goal: &'a Goal,
    /// Its ancestors' goals in words, the closest first; empty unless prompts show them.
    pub ancestors: &'a [String],
    /// Its current step.
    pub step: u32,
    /// Steps it may take.
    pub budget: u32,
    /// Length of its context in tokens.
    pub context: usize,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug)]
pub struct CallSite<'a> {
    /// The calling node.
    pub node: &'a NodePath,
    /// Its step.
    pub step: u32,
    /// The call's number within the step.
    pub call: u32,
}

/// The outside of one rollout.
pub trait Outside {
    /// The root's goal.
    fn root_goal(&mut self) -> Goal;

    /// The tools that a cell can call, with whether each must be awaited; `finish` and `launch_subagent` apart.
    fn tools(&self) -> Vec<(String, bool)>;

    /// A node begins.
    fn enter(&mut self, node: &NodePath, goal: &Goal);

    /// A node's first prompt, or `None` if it does not fit the window.
    ///
    /// # Errors
    /// When the tokenizer fails.
    fn prompt(&mut self, asking: &Asking<'_>) -> Result<Option<Extension>, EngineError>;

    /// The turn after a cell, or `None` if it does not fit the window.
    ///
    /// # Errors
    /// When the tokenizer fails.
    fn observation(
        &mut self,
        asking: &Asking<'_>,
        stop: StopReason,
        output: &CellOutput,
    ) -> Result<Option<Extension>, EngineError>;

    /// A tool call.
    fn call(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> ToolResult;

    /// The goal of a launch.
    ///
    /// # Errors
    /// The refusal's text.
    fn delegate(&mut self, site: &CallSite<'_>, args: &Args) -> Result<Goal, String>;

    /// The variable under which a node's interpreter holds its goal's context, if it does.
    fn context_variable(&self) -> Option<String>;

    /// Judges a node that ended, or says who does. `None` where a log has the verdict, but not as its next event: a judge
    /// outside was asked, and took its time ([`Outside::is_verdict_next`]).
    ///
    /// # Errors
    /// When a verdict that had to be on record is not.
    fn verify(&mut self, node: &NodePath, ending: &Ending<'_>) -> Result<Option<Ruling>, EngineError>;

    /// The world, for scripted policies, if there is one.
    fn episode(&self) -> Option<&dyn Episode>;

    /// A call as a job of its own, where it may run beside everything else; see [`Episode::detached`].
    fn detached(&mut self, _site: &CallSite<'_>, _tool: &str, _args: &Args) -> Option<Detached> {
        None
    }

    /// Takes over the effect of a detached call that is being answered with `result`.
    fn absorb(&mut self, _site: &CallSite<'_>, _tool: &str, _args: &Args, _result: &ToolResult) {}

    /// Whether the log's next event answers this call; `None` where no log decides. Under the `arrival` scheduler the
    /// order of answers is a fact, which a replay takes from here.
    fn is_next(&self, _site: &CallSite<'_>) -> Option<bool> {
        None
    }

    /// Whether the log's next event is the verdict on this node, for one that a judge outside was asked for; `None` where
    /// no log decides.
    fn is_verdict_next(&self, _node: &NodePath) -> Option<bool> {
        None
    }

    /// A stand-in for the interpreter at one step: a replay does not run a cell that a limit ended, because time
    /// limits do not repeat, but takes its calls from the log.
    fn stand_in(&mut self, _node: &NodePath, _step: u32) -> Option<Box<dyn Repl>> {
        None
    }
}

/// The live outside: an environment's episode, and a tokenizer to write turns with.
pub struct Live {
    episode: Box<dyn Episode>,
    chat: Arc<Chat>,
    config: EngineConfig,
    panel: Panel,
}

/// A completion shorter than this could not hold a cell: a context that leaves less room has overflowed.
const LEAST_COMPLETION: usize = 8;

/// Brings a world to where `events` leave it, without executing a call.
///
/// # Errors
/// When stored arguments or answers cannot be read.
pub fn absorb(episode: &mut dyn Episode, events: &[Event]) -> Result<(), EngineError> {
    absorb_with(episode, events, &mut |_, _| Ok(()))
}

/// The same, and `see` looks at the world after every event.
///
/// # Errors
/// As [`absorb`], and what `see` gives.
pub fn absorb_with(
    episode: &mut dyn Episode,
    events: &[Event],
    see: &mut dyn FnMut(&mut dyn Episode, &Event) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mut contexts = Contexts::default();
    let mut issued: BTreeMap<(&NodePath, u32, u32), &CallIssued> = BTreeMap::new();
    for event in events {
        match &event.body {
            Body::NodeSpawned(spawned) => {
                let context = contexts.note(spawned).map_err(|reason| EngineError::Stored {
                    node: spawned.node.clone(),
                    what: "the node's context",
                    reason,
                })?;
                let goal = answer::goal(&spawned.node, &spawned.goal, &spawned.targets, context)?;
                episode.enter(spawned.node.ordinals(), &goal);
            }
            Body::CallIssued(call) => {
                issued.insert((&call.node, call.step, call.call), call);
            }
            Body::CallAnswered(answered) => {
                for (number, result) in &answered.answers {
                    let Some(call) = issued.get(&(&answered.node, answered.step, *number)) else { continue };
                    if episode.tools().iter().any(|tool| tool.name == call.name) {
                        let args = answer::args(&call.node, &call.args)?;
                        let result = answer::to_result(&call.node, result)?;
                        episode.absorb(call.node.ordinals(), &call.name, &args, &result);
                    }
                }
            }
            _ => {}
        }
        see(episode, event)?;
    }
    Ok(())
}

/// The texts of a node's first prompt: the system prompt and the first user turn.
#[must_use]
pub fn prompt_texts(episode: &dyn Episode, config: &EngineConfig, asking: &Asking<'_>) -> (String, String) {
    let (style, recursive) = (config.prompt, config.recursive);
    let space = episode.action_space(style, recursive);
    let user = protocol::first_turn(style, asking.goal, asking.ancestors, &space, asking.budget);
    (episode.system_prompt(style, recursive), user)
}

/// The text of a prompt as the log stores it.
#[must_use]
pub fn prompt_text(system: &str, user: &str) -> String {
    format!("{system}\n\n{user}")
}

impl Live {
    /// The outside of one rollout, with the standard panel of judges.
    #[must_use]
    pub fn new(episode: Box<dyn Episode>, chat: Arc<Chat>, config: EngineConfig) -> Self {
        Live { episode, chat, config, panel: Panel::default() }
    }

    /// What the environment says of a node that ended.
    pub fn assess(&mut self, node: &NodePath, ending: &Ending<'_>) -> Assessment {
        self.episode.verify(node.ordinals(), ending)
    }

    /// The same with other judges.
    #[must_use]
    pub fn with_panel(mut self, panel: Panel) -> Self {
        self.panel = panel;
        self
    }

    fn fit(&self, context: usize, text: String, ids: Vec<u32>) -> Option<Extension> {
        let fits = context + ids.len() + LEAST_COMPLETION <= self.config.context as usize;
        fits.then(|| Extension { text, tokens: ids.into_iter().map(TokenId).collect() })
    }
}

impl Outside for Live {
    fn root_goal(&mut self) -> Goal {
        self.episode.root_goal()
    }

    fn tools(&self) -> Vec<(String, bool)> {
        self.episode.tools().iter().map(|tool| (tool.name.to_owned(), tool.is_async)).collect()
    }

    fn enter(&mut self, node: &NodePath, goal: &Goal) {
        self.episode.enter(node.ordinals(), goal);
    }

    fn prompt(&mut self, asking: &Asking<'_>) -> Result<Option<Extension>, EngineError> {
        let (system, user) = prompt_texts(&*self.episode, &self.config, asking);
        let ids = self.chat.open(&system, &user)?;
        Ok(self.fit(asking.context, prompt_text(&system, &user), ids))
    }

    fn observation(
        &mut self,
        asking: &Asking<'_>,
        stop: StopReason,
        output: &CellOutput,
    ) -> Result<Option<Extension>, EngineError> {
        let text = protocol::observation(self.config.prompt, asking.step + 1, output);
        let ids = self.chat.observe(stop == StopReason::EndOfTurn, &text)?;
        Ok(self.fit(asking.context, text, ids))
    }

    fn call(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> ToolResult {
        self.episode.call(site.node.ordinals(), tool, args)
    }

    fn detached(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> Option<Detached> {
        self.episode.detached(site.node.ordinals(), tool, args)
    }

    fn absorb(&mut self, site: &CallSite<'_>, tool: &str, args: &Args, result: &ToolResult) {
        self.episode.absorb(site.node.ordinals(), tool, args, result);
    }

    fn delegate(&mut self, site: &CallSite<'_>, args: &Args) -> Result<Goal, String> {
        self.episode.delegate(site.node.ordinals(), args)
    }

    fn context_variable(&self) -> Option<String> {
        self.episode.context_variable().map(str::to_owned)
    }

    fn verify(&mut self, node: &NodePath, ending: &Ending<'_>) -> Result<Option<Ruling>, EngineError> {
        let assessment = self.assess(node, ending);
        Ok(Some(self.panel.rule(assessment)?))
    }

    fn episode(&self) -> Option<&dyn Episode> {
        Some(&*self.episode)
    }
}
