//! The comparing sink: what a replay emits is held against what the log has.

use std::cell::RefCell;
use std::rc::Rc;

use rao_engine::contexts::Contexts;
use rao_engine::{Action, EngineError, Sink};
use rao_envs::Text;
use rao_store::event::{ActionSampled, Body, Context, Event, NodeSpawned, RolloutStarted};
use rao_store::{NodePath, RolloutId, RunId, Seq};

use super::Checked;
use super::divergence::Divergence;

/// The state that sink, outside and driver of one replay share.
pub(super) struct Shared {
    run: RunId,
    rollout: RolloutId,
    events: Vec<Event>,
    /// What the nodes of the log work on.
    contexts: Contexts,
    from: usize,
    /// The position of the next event to be compared.
    next: usize,
    complete: bool,
    pub(super) tool_calls: u64,
    pub(super) policy_calls: u64,
    pub(super) judge_calls: u64,
    pub(super) divergence: Option<Divergence>,
}

impl Shared {
    pub(super) fn new(run: RunId, rollout: RolloutId, events: Vec<Event>, from: Seq, complete: bool) -> Self {
        let from = usize::try_from(from.0).unwrap_or(usize::MAX);
        Shared {
            run,
            rollout,
            contexts: Contexts::of(&events),
            events,
            from,
            next: from,
            complete,
            tool_calls: 0,
            policy_calls: 0,
            judge_calls: 0,
            divergence: None,
        }
    }

    pub(super) fn before(&self) -> Vec<Event> {
        self.events.iter().take(self.from).cloned().collect()
    }

    /// Shares the root's text with the world, which has it too.
    pub(super) fn share(&mut self, text: &Text) {
        for event in &mut self.events {
            if let Body::NodeSpawned(NodeSpawned { call: None, context: Context::Whole(own), .. }) = &mut event.body
                && *text == **own
            {
                *own = text.shared();
            }
        }
        self.contexts = Contexts::of(&self.events);
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// What a node of the log works on; empty if the log does not tell.
    pub(super) fn context(&self, node: &NodePath) -> Text {
        self.contexts.get(node).cloned().unwrap_or_default()
    }

    pub(super) fn rollout_started(&self) -> Option<RolloutStarted> {
        match self.events.first().map(|event| &event.body) {
            Some(Body::RolloutStarted(started)) => Some(started.clone()),
            _ => None,
        }
    }

    /// True when every event of the log was compared.
    pub(super) fn has_ended(&self) -> bool {
        self.next >= self.events.len()
    }

    /// The event that has to come next.
    pub(super) fn upcoming(&self) -> Option<&Body> {
        self.events.get(self.next).map(|event| &event.body)
    }

    /// The logged action `offset` events ahead, which must be `node`'s; `None` where the log ends.
    pub(super) fn logged_action(&mut self, offset: usize, node: &NodePath) -> Result<Option<Action>, EngineError> {
        let at = self.next + offset;
        let action = match self.events.get(at).map(|event| &event.body) {
            None => return Ok(None),
            Some(Body::ActionSampled(action)) if action.node == *node => Some(taken(action)),
            Some(_) => None,
        };
        if action.is_none() {
            let got = format!("an action of node {node}");
            self.diverge(at, Divergence::of_kind(&self.events, at, got));
            return Err(EngineError::Diverged { seq: at as u64 });
        }
        Ok(action)
    }

    /// Which of the waiting nodes the log lets act next.
    pub(super) fn next_to_act(&mut self, waiting: &[NodePath]) -> Result<NodePath, EngineError> {
        match self.upcoming() {
            Some(Body::ActionSampled(action)) if waiting.contains(&action.node) => Ok(action.node.clone()),
            _ => {
                let at = self.next;
                let names: Vec<String> = waiting.iter().map(ToString::to_string).collect();
                let got = match names.as_slice() {
                    [] => "a wait for the answer to a call, or for a verdict".to_owned(),
                    [node] => format!("an action of node {node}"),
                    _ => format!("an action of one of the nodes {}", names.join(", ")),
                };
                self.diverge(at, Divergence::of_kind(&self.events, at, got));
                Err(EngineError::Diverged { seq: at as u64 })
            }
        }
    }

    /// The verdict on the first of these nodes has to come next, and the log has something else, or ends.
    pub(super) fn lacks_verdict(&mut self, nodes: &[NodePath]) -> Result<(), EngineError> {
        if self.has_ended() {
            return Ok(());
        }
        let at = self.next;
        let first = nodes.first().map(ToString::to_string).unwrap_or_default();
        self.diverge(at, Divergence::of_kind(&self.events, at, format!("a verdict on node {first}")));
        Err(EngineError::Diverged { seq: at as u64 })
    }

    /// Whether the next event answers this call.
    pub(super) fn answers_next(&self, node: &NodePath, step: u32, call: u32) -> bool {
        matches!(self.upcoming(), Some(Body::CallAnswered(next)) if next.node == *node && next.step == step
            && next.answers.iter().any(|(answered, _)| *answered == call))
    }

    fn diverge(&mut self, at: usize, divergence: Divergence) {
        if self.divergence.is_none() {
            self.next = at;
            self.divergence = Some(divergence.placed(self.run, self.rollout));
        }
    }

    /// Called when the execution has finished: events that the log has beyond it are a difference too.
    pub(super) fn finish(&mut self) {
        if self.divergence.is_none() && self.complete && !self.has_ended() {
            let at = self.next;
            self.diverge(at, Divergence::of_kind(&self.events, at, "the end of the rollout".into()));
        }
    }

    pub(super) fn checked(&self) -> Checked {
        Checked {
            events: self.events.len() as u64,
            skipped: self.from as u64,
            compared: self.next.saturating_sub(self.from) as u64,
            tool_calls: self.tool_calls,
            policy_calls: self.policy_calls,
            judge_calls: self.judge_calls,
            complete: self.complete,
            divergence: self.divergence.clone(),
        }
    }

    fn compare(&mut self, seq: Seq, body: &Body) -> Result<(), EngineError> {
        let at = usize::try_from(seq.0).unwrap_or(usize::MAX);
        let Some(expected) = self.events.get(at) else {
            if self.complete {
                self.diverge(at, Divergence::extra(&self.events, at, body));
            }
            return Err(EngineError::Diverged { seq: seq.0 });
        };
        if same_as_stored(&expected.body, body, &self.contexts) {
            self.next = at + 1;
            return Ok(());
        }
        self.diverge(at, Divergence::of_bodies(&self.events, at, body));
        Err(EngineError::Diverged { seq: seq.0 })
    }
}

/// Equal to the bit: `==` alone would take 0.0 for -0.0. Kinds that may be long have no such numbers and are not written out.
pub(super) fn same(a: &Body, b: &Body) -> bool {
    let is_exact = matches!(
        a,
        Body::NodeSpawned(_)
            | Body::SpawnRefused(_)
            | Body::ContextExtended(_)
            | Body::CellStarted(_)
            | Body::CallIssued(_)
            | Body::CallAnswered(_)
            | Body::CellFinished(_)
            | Body::NodeFinished(_)
    );
    if is_exact {
        return a == b;
    }
    a == b && matches!((a.encode(), b.encode()), (Ok(a), Ok(b)) if a == b)
}

/// The same, where `stored` may come from a program that wrote every context as a text: then its text has to be that of the
/// place that `made` has.
pub(super) fn same_as_stored(stored: &Body, made: &Body, contexts: &Contexts) -> bool {
    match (stored, made) {
        (Body::NodeSpawned(older), Body::NodeSpawned(newer))
            if matches!((&older.context, &newer.context), (Context::Whole(_), Context::Piece { .. })) =>
        {
            let same_text = match (&older.context, contexts.told(newer)) {
                (Context::Whole(text), Ok(piece)) => piece == **text,
                _ => false,
            };
            same_text && NodeSpawned { context: newer.context.clone(), ..older.clone() } == *newer
        }
        _ => same(stored, made),
    }
}

fn taken(action: &ActionSampled) -> Action {
    Action {
        text: action.text.clone(),
        tokens: action.tokens.clone(),
        logprobs: action.logprobs.clone(),
        logprob_kind: action.logprob_kind,
        sampler: action.sampler,
        stop: action.stop,
    }
}

pub(super) struct CompareSink {
    shared: Rc<RefCell<Shared>>,
}

impl CompareSink {
    pub(super) fn new(shared: Rc<RefCell<Shared>>) -> Self {
        CompareSink { shared }
    }
}

impl Sink for CompareSink {
    fn emit(&mut self, seq: Seq, body: &Body) -> Result<(), EngineError> {
        self.shared.borrow_mut().compare(seq, body)
    }

    fn hand_on(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}
