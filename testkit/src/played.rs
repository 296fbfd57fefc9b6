use std::sync::{Arc, Mutex};

use rao_engine::{Action, Actor, Ask, EngineError, Scripted};
use rao_envs::Script;
use rao_policy::Chat;
use rao_store::TokenId;
use rao_store::event::{LogProbKind, PolicyIdentity, SamplerSettings, StopReason};

type Program = Arc<dyn Fn(&Ask<'_>) -> String + Send + Sync>;

/// The actions that were asked for, in order: node and step.
pub type Asked = Arc<Mutex<Vec<(String, u32)>>>;

/// Plays the cells that a function of node, step and seed gives, and notes what it was asked for.
pub struct Played {
    chat: Arc<Chat>,
    program: Program,
    /// What it was asked for so far.
    pub asked: Asked,
}

impl Played {
    /// An actor that plays what `program` gives.
    pub fn new(program: impl Fn(&Ask<'_>) -> String + Send + Sync + 'static) -> Self {
        Played { chat: Arc::new(Chat::bytes().unwrap()), program: Arc::new(program), asked: Asked::default() }
    }

    /// Cells by node; `GOAL` in them stands for the node's own targets, and nodes without cells finish.
    #[must_use]
    pub fn cells(cells: &'static [(&'static str, &'static [&'static str])]) -> Self {
        Played::new(move |ask| {
            let own = cells.iter().find(|(node, _)| *node == ask.node.to_string());
            let cell = own.and_then(|(_, cells)| cells.get(ask.step as usize)).copied().unwrap_or("finish('done')");
            cell.replace("GOAL", &ask.goal.targets.to_string())
        })
    }

    /// Another actor that plays the same, with notes of its own.
    #[must_use]
    pub fn again(&self) -> Box<dyn Actor> {
        Box::new(Played { chat: Arc::clone(&self.chat), program: Arc::clone(&self.program), asked: Asked::default() })
    }
}

impl Actor for Played {
    fn identity(&self) -> PolicyIdentity {
        Scripted::new(Script::Oracle, Arc::clone(&self.chat)).identity()
    }

    fn chat(&self) -> &Arc<Chat> {
        &self.chat
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        let play = |ask: &Ask<'_>| {
            self.asked.lock().unwrap().push((ask.node.to_string(), ask.step));
            let text = format!("<python>{}</python>", (self.program)(ask));
            Action {
                tokens: self.chat.encode_action(&text).unwrap().into_iter().map(TokenId).collect(),
                text,
                logprobs: Vec::new(),
                logprob_kind: LogProbKind::Absent,
                sampler: SamplerSettings::whole(0.0, 0),
                stop: StopReason::Scripted,
            }
        };
        Ok(batch.iter().map(play).collect())
    }

    fn release(&mut self, _row: u64) {}
}
