//! Who acts: a scripted policy, or a model that samples tokens.

use std::sync::Arc;

use rao_envs::{Episode, Goal, Script, Turn};
use rao_policy::{Chat, Policy, Request, Sampler, Stop};
use rao_store::event::{LogProbKind, PolicyIdentity, SamplerSettings, StopReason};
use rao_store::{Digest, LogProb, NodePath, PolicyVersion, TokenId};

use crate::error::EngineError;
use crate::in_flight::InFlight;
use crate::seed;

/// One action to be taken.
pub struct Ask<'a> {
    /// The node's identity inside this process: it keys caches and decides nothing else.
    pub row: u64,
    /// The node.
    pub node: &'a NodePath,
    /// The step to be taken, from 0.
    pub step: u32,
    /// Steps the node may take.
    pub budget: u32,
    /// The deepest depth a node may have.
    pub max_depth: u32,
    /// Whether the node can delegate.
    pub recursive: bool,
    /// The node's goal.
    pub goal: Goal,
    /// The node's exact context.
    pub context: Vec<u32>,
    /// What the last cell showed.
    pub observation: Option<String>,
    /// The rollout's seed.
    pub seed: u64,
    /// The world, for scripted policies.
    pub episode: Option<&'a dyn Episode>,
}

/// An action as taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Its text.
    pub text: String,
    /// The exact ids.
    pub tokens: Vec<TokenId>,
    /// One per id, or none.
    pub logprobs: Vec<LogProb>,
    /// What the log-probabilities are of.
    pub logprob_kind: LogProbKind,
    /// How tokens were chosen.
    pub sampler: SamplerSettings,
    /// Why it ended.
    pub stop: StopReason,
}

/// A source of actions. Each action is the same whatever else the batch holds.
pub trait Actor: Send {
    /// Who acts, as the log names it.
    fn identity(&self) -> PolicyIdentity;

    /// The tokenizer that contexts are written with.
    fn chat(&self) -> &Arc<Chat>;

    /// Takes every action asked for, in the batch's order.
    ///
    /// # Errors
    /// When the policy cannot act; no action of the batch was taken then.
    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError>;

    /// The row's node has ended.
    fn release(&mut self, row: u64);

    /// The same actor as one that keeps several requests in flight, if it can: the `arrival` scheduler then asks through
    /// it instead of [`Actor::act`].
    fn in_flight(&mut self) -> Option<&mut dyn InFlight> {
        None
    }
}

/// An environment's scripted policy. Its actions are written with `chat`'s ids and have no log-probabilities.
pub struct Scripted {
    script: Script,
    chat: Arc<Chat>,
}

impl Scripted {
    /// A scripted policy that writes with `chat`.
    #[must_use]
    pub fn new(script: Script, chat: Arc<Chat>) -> Self {
        Scripted { script, chat }
    }
}

impl Actor for Scripted {
    fn identity(&self) -> PolicyIdentity {
        let name = match self.script {
            Script::Oracle => "oracle",
            Script::Noisy => "noisy",
        };
        PolicyIdentity {
            kind: "scripted".into(),
            name: name.into(),
            weights: None,
            tokenizer: Digest(self.chat.digest()),
            version: PolicyVersion(0),
        }
    }

    fn chat(&self) -> &Arc<Chat> {
        &self.chat
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        batch.iter().map(|ask| self.act_one(ask)).collect()
    }

    fn release(&mut self, _row: u64) {}
}

impl Scripted {
    fn act_one(&self, ask: &Ask<'_>) -> Result<Action, EngineError> {
        let episode =
            ask.episode.ok_or_else(|| EngineError::Internal("a scripted policy acts without a world".into()))?;
        let turn = Turn {
            node: ask.node.ordinals(),
            goal: &ask.goal,
            step: ask.step,
            budget: ask.budget,
            max_depth: ask.max_depth,
            recursive: ask.recursive,
            observation: ask.observation.as_deref(),
            seed: ask.seed,
        };
        let text = episode.scripted(self.script, &turn);
        let tokens = self.chat.encode_action(&text)?.into_iter().map(TokenId).collect();
        Ok(Action {
            text,
            tokens,
            logprobs: Vec::new(),
            logprob_kind: LogProbKind::Absent,
            sampler: SamplerSettings::whole(0.0, 0),
            stop: StopReason::Scripted,
        })
    }
}

/// A policy that samples tokens.
pub struct Sampled {
    kind: &'static str,
    policy: Box<dyn Policy>,
    chat: Arc<Chat>,
    sampler: Sampler,
    window: u32,
}

impl Sampled {
    /// A sampling policy with its tokenizer, sampler and context window.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, chat: Arc<Chat>, sampler: Sampler, window: u32) -> Self {
        Sampled { kind: "local", policy, chat, sampler, window }
    }

    /// The same actor under another kind of policy's name: `gguf` for quantized weights that cannot be trained.
    #[must_use]
    pub fn of_kind(self, kind: &'static str) -> Self {
        Sampled { kind, ..self }
    }
}

impl Actor for Sampled {
    fn identity(&self) -> PolicyIdentity {
        let identity = self.policy.identity();
        PolicyIdentity {
            kind: self.kind.into(),
            name: identity.name,
            weights: Some(Digest(identity.weights)),
            tokenizer: Digest(self.chat.digest()),
            version: PolicyVersion(identity.version),
        }
    }

    fn chat(&self) -> &Arc<Chat> {
        &self.chat
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        let requests: Vec<Request<'_>> = batch
            .iter()
            .map(|ask| Request {
                row: ask.row,
                context: &ask.context,
                sampler: self.sampler,
                window: self.window,
                key: seed::sample_key(ask.seed, ask.node, ask.step),
            })
            .collect();
        let completions = self.policy.sample(&requests)?;
        let Sampler { temperature, max_tokens, top_p, top_k } = self.sampler;
        let sampler = SamplerSettings { temperature, max_tokens, top_p, top_k };
        let logprob_kind = if self.sampler.leaves_out() { LogProbKind::Sampled } else { LogProbKind::Model };
        Ok(completions
            .into_iter()
            .map(|completion| Action {
                text: self.chat.decode(&completion.tokens),
                tokens: completion.tokens.into_iter().map(TokenId).collect(),
                logprobs: completion.logprobs.into_iter().map(LogProb).collect(),
                logprob_kind,
                sampler,
                stop: match completion.stop {
                    Stop::CellEnd => StopReason::CellEnd,
                    Stop::EndOfTurn => StopReason::EndOfTurn,
                    Stop::Asked => StopReason::Asked,
                    Stop::MaxTokens => StopReason::MaxTokens,
                    Stop::Window => StopReason::Window,
                },
            })
            .collect())
    }

    fn release(&mut self, row: u64) {
        self.policy.release(row);
    }
}
