//! A model behind a server as an actor: a batch side by side under `rounds`, each request on its own under `arrival`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rao_policy::served::{End, Given, Job, Pending, Score, Served, ServedError};
use rao_policy::{Chat, PolicyError};
use rao_store::event::{LogProbKind, PolicyIdentity, SamplerSettings, StopReason};
use rao_store::{Digest, LogProb, PolicyVersion, TokenId};

use crate::actor::{Action, Actor, Ask};
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::in_flight::{InFlight, Slot, Ticket};
use crate::seed;

/// The kind of a policy behind a server that takes and gives tokens, as the log names it.
pub const SERVED: &str = "served";
/// The kind of one that takes and gives text: its actions have no log-probabilities, and their ids are not the server's.
pub const SERVED_TEXT: &str = "served-text";

/// A model behind a server.
pub struct ServedActor {
    served: Served,
    chat: Arc<Chat>,
    sampler: SamplerSettings,
    window: u32,
    pending: BTreeMap<Ticket, Pending>,
}

impl ServedActor {
    /// An actor that samples as the settings say.
    ///
    /// # Errors
    /// When the settings give values to a chat template that cannot take them: one that has no such variables, or that of a
    /// server which is spoken to in text and renders it itself.
    pub fn new(served: Served, config: &EngineConfig) -> Result<Self, PolicyError> {
        let values = &config.chat_template_kwargs;
        if !served.kind().has_tokens() && !values.is_empty() {
            let reason =
                format!("a server that is spoken to in text renders its chat template itself; set {values} there");
            return Err(PolicyError::TemplateValue { reason });
        }
        let chat = Arc::new(served.chat().with_template(values)?);
        let whole = SamplerSettings::whole(config.temperature, config.max_tokens);
        let sampler = SamplerSettings { top_p: config.top_p, ..whole };
        Ok(ServedActor { served, chat, sampler, window: config.context, pending: BTreeMap::new() })
    }

    fn job(&self, ask: &Ask<'_>) -> Job {
        Job {
            context: ask.context.clone(),
            temperature: self.sampler.temperature,
            top_p: self.sampler.top_p,
            max_tokens: self.sampler.max_tokens,
            window: self.window,
            key: seed::sample_key(ask.seed, ask.node, ask.step),
        }
    }
}

/// Who a served policy is. Its weights are not to be seen, so they have no digest.
#[must_use]
pub fn served_identity(served: &Served) -> PolicyIdentity {
    PolicyIdentity {
        kind: if served.kind().has_tokens() { SERVED } else { SERVED_TEXT }.into(),
        name: served.name().to_owned(),
        weights: None,
        tokenizer: Digest(served.chat().digest()),
        version: PolicyVersion(0),
    }
}

fn action(given: Given, sampler: SamplerSettings) -> Action {
    Action {
        text: given.text,
        tokens: given.tokens.into_iter().map(TokenId).collect(),
        logprobs: given.logprobs.into_iter().map(LogProb).collect(),
        logprob_kind: match given.score {
            Score::Absent => LogProbKind::Absent,
            Score::Own => LogProbKind::Served,
            Score::Unknown => LogProbKind::Unknown,
        },
        sampler,
        stop: match given.end {
            End::CellEnd => StopReason::CellEnd,
            End::EndOfTurn => StopReason::EndOfTurn,
            End::MaxTokens => StopReason::MaxTokens,
            End::Window => StopReason::Window,
            End::Server => StopReason::Server,
        },
    }
}

fn failed(error: ServedError) -> EngineError {
    match error {
        ServedError::Cancelled => EngineError::Stopped,
        error => PolicyError::from(error).into(),
    }
}

impl Actor for ServedActor {
    fn identity(&self) -> PolicyIdentity {
        served_identity(&self.served)
    }

    fn chat(&self) -> &Arc<Chat> {
        &self.chat
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        let jobs = batch.iter().map(|ask| self.job(ask)).collect();
        let given = self.served.complete(jobs).map_err(failed)?;
        Ok(given.into_iter().map(|given| action(given, self.sampler)).collect())
    }

    fn release(&mut self, _row: u64) {}

    fn in_flight(&mut self) -> Option<&mut dyn InFlight> {
        Some(self)
    }
}

impl InFlight for ServedActor {
    fn capacity(&self) -> usize {
        self.served.concurrency()
    }

    fn submit(&mut self, ask: &Ask<'_>, slot: Slot) -> Result<(), EngineError> {
        self.pending.retain(|_, pending| !pending.is_done());
        let (ticket, sampler) = (slot.ticket(), self.sampler);
        let pending = self.served.start(self.job(ask), move |outcome| {
            slot.fill(outcome.map(|given| action(given, sampler)).map_err(failed));
        });
        self.pending.insert(ticket, pending);
        Ok(())
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(pending) = self.pending.remove(&ticket) {
            pending.abort();
        }
    }
}
