//! Pass 2: token sequences, one rollout at a time, exactly as recorded.

use std::collections::BTreeMap;

use rao_policy::PackedSequence;
use rao_store::event::{Body, Event, Kind, TokenCountError};
use rao_store::{Address, EventSource, Filter, LogProb, NodePath, RolloutId, RunId, Seq, Stream, TokenId};

use super::TrainError;
use super::batch::Entry;

/// One node's tokens up to the last that it generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    /// Prompt, actions and observations in order.
    pub tokens: Vec<u32>,
    /// Positions of the tokens that the node generated: the only ones that carry a loss.
    pub targets: Vec<usize>,
    /// Their log-probabilities as the sampler had them; empty for scripted actions.
    pub stored: Vec<f32>,
}

impl Trajectory {
    pub(crate) fn packed(self) -> (PackedSequence, Vec<f32>) {
        (PackedSequence { tokens: self.tokens, targets: self.targets }, self.stored)
    }

    /// Appends what `event` adds to its node's sequence.
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), TrainError> {
        let address = event.address();
        match &event.body {
            Body::ContextExtended(more) => self.extend(address, &more.node, more.at, &more.tokens),
            Body::ActionSampled(action) => {
                action.check().map_err(|source: TokenCountError| TrainError::TokenCount { address, source })?;
                if self.tokens.is_empty() && !action.tokens.is_empty() {
                    return Err(TrainError::NoContext { address, node: action.node.clone() });
                }
                let start = self.tokens.len();
                self.extend(address, &action.node, action.at, &action.tokens)?;
                self.targets.extend(start..self.tokens.len());
                self.stored.extend(action.logprobs.iter().map(|LogProb(value)| *value));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn extend(&mut self, address: Address, node: &NodePath, at: u32, tokens: &[TokenId]) -> Result<(), TrainError> {
        if at as usize != self.tokens.len() {
            let (at, expected) = (u64::from(at), self.tokens.len() as u64);
            return Err(TrainError::Prefix { address, node: node.clone(), at, expected });
        }
        self.tokens.extend(tokens.iter().map(|TokenId(id)| *id));
        Ok(())
    }

    /// Drops what follows the last generated token: nothing is predicted from it.
    pub(crate) fn cut(&mut self) {
        self.tokens.truncate(self.targets.last().map_or(0, |last| last + 1));
    }
}

/// The node that an event of a token sequence belongs to.
pub(crate) fn node_of(body: &Body) -> Option<&NodePath> {
    match body {
        Body::ContextExtended(more) => Some(&more.node),
        Body::ActionSampled(action) => Some(&action.node),
        _ => None,
    }
}

/// The kinds that make token sequences.
pub(crate) const KINDS: [Kind; 2] = [Kind::ContextExtended, Kind::ActionSampled];

/// The trajectories of a batch's entries, in the entries' order, holding one rollout's at a time.
///
/// Entries must be in the batch's order, so that those of a rollout stand together.
pub struct Trajectories<'a> {
    source: &'a dyn EventSource,
    entries: std::slice::Iter<'a, Entry>,
    at: Option<(RunId, RolloutId)>,
    held: BTreeMap<NodePath, Trajectory>,
}

impl<'a> Trajectories<'a> {
    /// Streams the trajectories of `entries`.
    #[must_use]
    pub fn new(source: &'a dyn EventSource, entries: &'a [Entry]) -> Self {
        Trajectories { source, entries: entries.iter(), at: None, held: BTreeMap::new() }
    }

    fn read(&mut self, entry: &Entry) -> Result<Trajectory, TrainError> {
        let place = (entry.run, entry.rollout);
        if self.at != Some(place) {
            self.held = read_rollout(self.source, entry.run, entry.rollout)?;
            self.at = Some(place);
        }
        cut(self.held.remove(&entry.node), entry)
    }
}

/// A node's sequence up to its last generated token, which must have the tokens that its entry says.
pub(crate) fn cut(trajectory: Option<Trajectory>, entry: &Entry) -> Result<Trajectory, TrainError> {
    let Entry { run, rollout, .. } = *entry;
    let missing = || TrainError::Missing { run, rollout, node: entry.node.clone(), what: "tokens" };
    let mut trajectory = trajectory.ok_or_else(missing)?;
    trajectory.cut();
    if trajectory.targets.len() as u64 != entry.tokens {
        let reason =
            format!("node {} has {} generated tokens, not {}", entry.node, trajectory.targets.len(), entry.tokens);
        return Err(TrainError::Event { address: entry.source, reason });
    }
    Ok(trajectory)
}

impl Iterator for Trajectories<'_> {
    type Item = Result<Trajectory, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        Some(self.read(entry))
    }
}

/// The token sequences of a rollout's nodes.
pub(crate) fn read_rollout(
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
) -> Result<BTreeMap<NodePath, Trajectory>, TrainError> {
    let mut nodes = BTreeMap::<NodePath, Trajectory>::new();
    for event in source.events(Stream::Rollout(run, rollout), Seq(0), &Filter::kinds(KINDS)) {
        let event = event?;
        if let Some(path) = node_of(&event.body) {
            nodes.entry(path.clone()).or_default().apply(&event)?;
        }
    }
    Ok(nodes)
}
