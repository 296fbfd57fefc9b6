//! The engine's settings: everything besides policy, environment and seed that decides a rollout.

use rao_envs::PromptStyle;
use rao_envs::judge::{JudgeIdentity, Panel};
use rao_policy::{PolicyError, Sampler, Stops, TemplateValues};
use serde::{Deserialize, Serialize};

use crate::repl::CellLimits;

/// How steps are counted against budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetModel {
    /// Every agent has `max_steps` of its own; only depth and the number of nodes bound the tree.
    PerAgent,
    /// The root has `max_steps` for the whole tree. A launch reserves the child's steps and one more from its parent;
    /// what the child's subtree leaves unused returns when the child ends.
    Shared,
}

/// In which order nodes go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// All ready nodes act as one batch, then cells run in node order ([`crate::rounds`]). For local policies.
    #[default]
    Rounds,
    /// Each node goes on as soon as its own answer is there ([`crate::arrival`]); the order is a fact of the log. For
    /// policies whose answers take long and come singly.
    Arrival,
}

impl Scheduler {
    /// Whether it is the one that manifests leave out.
    fn is_rounds(&self) -> bool {
        *self == Scheduler::Rounds
    }
}

/// Which tokens a local policy can draw besides what `top_p` says, and what ends a completion besides its cell's end, the
/// model's own end tokens and its length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoding {
    /// Only so many of the most probable tokens can be drawn; 0 leaves none out.
    pub top_k: u32,
    /// A completion ends once its text holds one of these.
    pub stop_texts: Vec<String>,
    /// A completion ends with any of these ids.
    pub stop_ids: Vec<u32>,
}

impl Decoding {
    fn is_plain(&self) -> bool {
        *self == Decoding::default()
    }

    /// What ends a completion.
    ///
    /// # Errors
    /// When a text is empty.
    pub fn stops(&self) -> Result<Stops, PolicyError> {
        Stops::new(&self.stop_texts, &self.stop_ids)
    }
}

/// A rollout's settings. They stand in the run's manifest as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Whether agents have `launch_subagent`.
    pub recursive: bool,
    /// The deepest depth a node may have; a launch beyond it is refused.
    pub max_depth: u32,
    /// Steps an agent may take (of a whole tree, if `budget` is `shared`).
    pub max_steps: u32,
    /// How steps are counted.
    pub budget: BudgetModel,
    /// The most nodes a tree may have; a launch beyond it is refused.
    pub max_nodes: u32,
    /// The context window of every node, in tokens.
    pub context: u32,
    /// The most tokens a completion may have.
    pub max_tokens: u32,
    /// The sampler's temperature: 1 to train, 0 to evaluate.
    pub temperature: f32,
    /// How much the prompts say.
    pub prompt: PromptStyle,
    /// End a node whose last cells repeat a pattern of at most three cells four times.
    pub loop_guard: bool,
    /// The weight of the delegation bonus (lambda of Eq. 1).
    pub lambda: f64,
    /// Limits of a cell.
    pub cell: CellLimits,
    /// In which order nodes go on. Manifests leave `rounds` out.
    #[serde(default, skip_serializing_if = "Scheduler::is_rounds")]
    pub scheduler: Scheduler,
    /// Whether a node's first prompt shows its ancestors' goals.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ancestors: bool,
    /// Who judges what the environment does not judge itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judges: Option<Judges>,
    /// Only the most probable tokens that together have this probability are drawn; 1 leaves none out, and manifests then
    /// leave it out.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub top_p: f32,
    /// What else decides which tokens are drawn and where completions end, for local policies. Manifests leave the default out.
    #[serde(default, skip_serializing_if = "Decoding::is_plain")]
    pub decoding: Decoding,
    /// Values of variables of the model's chat template. Manifests leave none out.
    #[serde(default, skip_serializing_if = "TemplateValues::is_empty")]
    pub chat_template_kwargs: TemplateValues,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over by reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The judges' identities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judges {
    /// Who judges roots.
    pub root: JudgeIdentity,
    /// Who judges children.
    pub child: JudgeIdentity,
}

impl Judges {
    /// The identities of a panel's judges.
    #[must_use]
    pub fn of(panel: &Panel) -> Self {
        let (root, child) = panel.identities();
        Judges { root, child }
    }
}

fn whole() -> f32 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_whole(top_p: &f32) -> bool {
    *top_p == whole()
}

impl EngineConfig {
    /// How a local policy draws tokens.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        let whole = Sampler::whole(self.temperature, self.max_tokens);
        Sampler { top_p: self.top_p, top_k: self.decoding.top_k, ..whole }
    }

    /// Checks the ranges that a rollout relies on.
    ///
    /// # Errors
    /// Names the setting, its value and its range.
    pub fn check(&self) -> Result<(), String> {
        let range = |name: &str, value: f64, low: f64, high: f64| {
            if value >= low && value <= high {
                Ok(())
            } else {
                Err(format!("{name} is {value}: it must lie between {low} and {high}"))
            }
        };
        range("max-steps", f64::from(self.max_steps), 1.0, 10_000.0)?;
        range("max-depth", f64::from(self.max_depth), 0.0, 64.0)?;
        range("max-nodes", f64::from(self.max_nodes), 1.0, 1_000_000.0)?;
        range("context", f64::from(self.context), 32.0, f64::from(1 << 20))?;
        range("max-tokens", f64::from(self.max_tokens), 1.0, f64::from(self.context))?;
        range("temperature", f64::from(self.temperature), 0.0, 10.0)?;
        range("top-p", f64::from(self.top_p), 0.001, 1.0)?;
        self.decoding.stops().map_err(|e| e.to_string())?;
        range("lambda", self.lambda, 0.0, 1000.0)
    }
}
