use serde::{Deserialize, Serialize};

use super::spawned::Context;
use crate::id::{Depth, Digest, LogProb, NodePath, PolicyVersion, TokenId};

/// A node came into being.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpawned {
    /// The new node.
    pub node: NodePath,
    /// The parent's step and call that asked for it; `None` for the root.
    pub call: Option<(u32, u32)>,
    /// The goal in words, as the node reads it.
    pub goal: String,
    /// The goal as data, as JSON: what the verifier checks.
    pub targets: String,
    /// What the parent passed along. Layout 1 has the text, layout 2 its place in the parent's context.
    pub context: Context,
    /// The node's depth.
    pub depth: Depth,
    /// How many steps the node may take.
    pub budget: u32,
}

/// Why a spawn was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// The child would be deeper than the cap.
    Depth,
    /// The shared step budget does not cover the child.
    Budget,
    /// The tree has as many nodes as it may.
    Nodes,
    /// The environment cannot make a task of the arguments.
    Goal,
}

/// A spawn was refused: no node came into being, and the call's answer is `text`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnRefused {
    /// The node that asked.
    pub node: NodePath,
    /// Its step.
    pub step: u32,
    /// The call within the step.
    pub call: u32,
    /// Why.
    pub reason: RefusalReason,
    /// The goal in words, as the child would have read it; empty if the arguments make no goal.
    pub goal: String,
    /// What the asking cell is given.
    pub text: String,
}

/// Whose turn a piece of context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// System prompt and first user turn.
    Prompt,
    /// The output of a cell.
    Observation,
}

/// Tokens that the node did not generate were appended to its context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextExtended {
    /// The node.
    pub node: NodePath,
    /// The step whose action will follow.
    pub step: u32,
    /// Whose turn it is.
    pub role: Role,
    /// The turn's own text, without the chat template around it.
    pub text: String,
    /// Length of the context before this event, in tokens: the prefix that must stay as it is.
    pub at: u32,
    /// The exact ids appended, template included.
    pub tokens: Vec<TokenId>,
}

/// Which distribution a log-probability belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogProbKind {
    /// There is none: the action was scripted, or its server gives only text. The list is empty.
    Absent,
    /// The model's own distribution at temperature 1 over the whole vocabulary, as the decoder of this program computes it.
    Model,
    /// The same distribution as a server computed it: with other kernels and rounding, so never equal to the bit.
    Served,
    /// The distribution that the token was drawn from: after temperature, top-k and top-p.
    Sampled,
    /// The server does not say which distribution its numbers belong to.
    Unknown,
}

/// How tokens were chosen. Layout 1 of `action_sampled` has the first two fields; the others then leave nothing out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplerSettings {
    /// 0 takes the most probable token; 1 samples the model's own distribution.
    pub temperature: f32,
    /// The most tokens a completion may have.
    pub max_tokens: u32,
    /// Only the most probable tokens that together have this probability can be drawn; 1 leaves none out.
    pub top_p: f32,
    /// Only so many of the most probable tokens can be drawn; 0 leaves none out.
    pub top_k: u32,
}

impl SamplerSettings {
    /// Settings that draw from the whole vocabulary.
    #[must_use]
    pub fn whole(temperature: f32, max_tokens: u32) -> Self {
        SamplerSettings { temperature, max_tokens, top_p: 1.0, top_k: 0 }
    }

    /// Whether every token of the vocabulary could be drawn.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.top_p == 1.0 && self.top_k == 0
    }
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The text ended with the end of a cell (`</python>`).
    CellEnd,
    /// The model ended its turn with its end-of-turn token.
    EndOfTurn,
    /// The completion has `max_tokens` tokens.
    MaxTokens,
    /// The context window is full.
    Window,
    /// A scripted policy ended its turn.
    Scripted,
    /// A server ended it by itself, such as at an end token that the chat format does not know.
    Server,
    /// A stop text or stop id that was asked for.
    Asked,
}

/// The policy's completion, exactly as sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionSampled {
    /// The node.
    pub node: NodePath,
    /// The step, from 0.
    pub step: u32,
    /// The completion's text (lossy where its bytes are no UTF-8; the ids are the truth).
    pub text: String,
    /// Length of the context before this event, in tokens.
    pub at: u32,
    /// The sampled ids.
    pub tokens: Vec<TokenId>,
    /// One per id, or none at all if `logprob_kind` is `Absent`.
    pub logprobs: Vec<LogProb>,
    /// What the log-probabilities are of.
    pub logprob_kind: LogProbKind,
    /// How tokens were chosen.
    pub sampler: SamplerSettings,
    /// Why the completion ended.
    pub stop: StopReason,
    /// The weights' version.
    pub policy_version: PolicyVersion,
}

/// Ids and log-probabilities that do not match one to one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node}, step {step}: {tokens} token ids with {logprobs} log-probabilities ({kind:?}); the log takes one per id or, for a scripted action, none"
)]
pub struct TokenCountError {
    /// The node.
    pub node: NodePath,
    /// The step.
    pub step: u32,
    /// How many ids.
    pub tokens: usize,
    /// How many log-probabilities.
    pub logprobs: usize,
    /// The kind that was claimed.
    pub kind: LogProbKind,
}

impl ActionSampled {
    /// Checks that there is one log-probability per id, or none for a scripted action.
    ///
    /// # Errors
    /// A [`TokenCountError`]; nothing is ever padded or cut to make the numbers fit.
    pub fn check(&self) -> Result<(), TokenCountError> {
        let wanted = match self.logprob_kind {
            LogProbKind::Absent => 0,
            LogProbKind::Model | LogProbKind::Served | LogProbKind::Sampled | LogProbKind::Unknown => self.tokens.len(),
        };
        if self.logprobs.len() == wanted {
            return Ok(());
        }
        Err(TokenCountError {
            node: self.node.clone(),
            step: self.step,
            tokens: self.tokens.len(),
            logprobs: self.logprobs.len(),
            kind: self.logprob_kind,
        })
    }
}

/// A cell was handed to the REPL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellStarted {
    /// The node.
    pub node: NodePath,
    /// The step.
    pub step: u32,
    /// The code as extracted from the action.
    pub code: String,
}

/// A cell called a tool or asked for a spawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallIssued {
    /// The node.
    pub node: NodePath,
    /// The step.
    pub step: u32,
    /// The call's number within the cell, from 0.
    pub call: u32,
    /// The tool's name, or `launch_subagent`.
    pub name: String,
    /// The arguments, as JSON: `{"args": [..], "kwargs": {..}}`. Long pieces of the node's context that a launch hands on
    /// are written as their place in it, `{"$slice": [from, to]}`.
    pub args: String,
}

/// What a call gave back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A value, as JSON.
    Value(String),
    /// A Python exception raised at the call.
    Raised {
        /// The exception's type, such as `ValueError`.
        kind: String,
        /// Its message.
        message: String,
    },
}

/// A suspended cell was resumed: with one answer, or with several at once. Order and grouping are facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallAnswered {
    /// The node.
    pub node: NodePath,
    /// The step.
    pub step: u32,
    /// Calls with their answers, in the order in which the cell was given them.
    pub answers: Vec<(u32, Answer)>,
}

/// Which limit ended a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitKind {
    /// Its execution time.
    Time,
    /// Its memory.
    Memory,
    /// Its calls to the host.
    Calls,
}

/// A cell ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellFinished {
    /// The node.
    pub node: NodePath,
    /// The step.
    pub step: u32,
    /// What it printed, cut by the host if long.
    pub stdout: String,
    /// The error text shown to the agent, if it raised, was rejected or hit a limit.
    pub error: Option<String>,
    /// Set if a limit ended it: a replay then takes the REPL as it was before the cell.
    pub limit: Option<LimitKind>,
    /// True if a static check refused the cell and nothing of it ran.
    pub rejected: bool,
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// It called `finish`.
    Finished,
    /// It ran out of steps.
    OutOfSteps,
    /// Its context window could not take the next turn.
    ContextOverflow,
    /// It repeated itself and the loop guard ended it.
    Stuck,
    /// Its parent ended while it was running.
    Cancelled,
}

/// A node ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFinished {
    /// The node.
    pub node: NodePath,
    /// How.
    pub outcome: Outcome,
    /// The value given to `finish`, as JSON.
    pub value: Option<String>,
    /// Steps taken.
    pub steps: u32,
    /// Tokens generated by the node itself.
    pub tokens: u32,
}

/// A judgement of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The node.
    pub node: NodePath,
    /// Who judged: a verifier's name with its mode, such as `textcraft/delta`.
    pub source: String,
    /// Success in [0, 1].
    pub score: f64,
    /// What the judgement rests on, as JSON.
    pub evidence: String,
    /// Digest of the evidence.
    pub evidence_digest: Digest,
    /// The judge model's identity, for judged environments.
    pub judge: Option<String>,
}

/// A node's reward (Eq. 1 of arXiv 2605.06639): own success plus lambda times the mean of its launched children's own success.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardAssigned {
    /// The node.
    pub node: NodePath,
    /// Own success, in [0, 1].
    pub own: f64,
    /// How many children were launched; refused spawns do not count.
    pub children: u32,
    /// Mean of the children's own success; 0 without children.
    pub child_mean: f64,
    /// The weight of the delegation bonus.
    pub lambda: f64,
    /// `own + lambda * child_mean`.
    pub reward: f64,
}

/// A rollout ended: all its nodes did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutFinished {
    /// Nodes in the tree.
    pub nodes: u32,
    /// Steps of all nodes.
    pub steps: u32,
    /// Generated tokens of all nodes.
    pub tokens: u64,
    /// The deepest node's depth.
    pub max_depth: Depth,
    /// The root's own success.
    pub success: f64,
}
