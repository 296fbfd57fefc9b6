//! Pass 1: the chosen runs as numbers. Token lists are looked at and dropped, so memory follows nodes, not tokens.

use std::collections::BTreeMap;

use rao_store::event::{
    ActionSampled, Body, Event, Kind, LogProbKind, NodeSpawned, Outcome, RewardAssigned, RolloutStarted,
};
use rao_store::{
    Address, Digest, EventSource, Filter, FindingClass, NodePath, RolloutId, RunId, Seq, Stream, content_digest_of_run,
};

use super::TrainError;
use crate::credit;

/// A finished node in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeNumbers {
    /// The node.
    pub node: NodePath,
    /// Own success.
    pub own: f64,
    /// Launched children.
    pub children: u32,
    /// Mean of the children's own success.
    pub child_mean: f64,
    /// The lambda of the reward.
    pub lambda: f64,
    /// The reward (Eq. 1).
    pub reward: f64,
    /// The event that assigned the reward.
    pub source: Address,
    /// Tokens that the node generated.
    pub tokens: u64,
    /// Length of its token sequence up to its last generated token.
    pub length: u64,
    /// Whether it called `finish`.
    pub finished: bool,
}

/// A finished rollout in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutNumbers {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// Its task's ordinal in the run.
    pub group: u32,
    /// Its task's difficulty.
    pub difficulty: String,
    /// Digest of the tokenizer that its ids belong to.
    pub tokenizer: Digest,
    /// Digest of the weights that acted, if any did and they were the same throughout.
    pub weights: Option<Digest>,
    /// Set for a fork.
    pub fork: bool,
    /// Its nodes in the order of their paths.
    pub nodes: Vec<NodeNumbers>,
    /// The first action without log-probabilities, or with such that nobody knows the distribution of.
    pub unscored: Option<Address>,
    /// The first action sampled at a temperature other than 1, with that temperature.
    pub tempered: Option<(Address, f32)>,
    /// The first action whose sampler left a part of the vocabulary out.
    pub truncated: Option<Address>,
}

/// What pass 1 gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    /// Each run with the content digest of its events.
    pub runs: Vec<(RunId, Digest)>,
    /// The finished rollouts: runs in the order given, rollouts by number.
    pub rollouts: Vec<RolloutNumbers>,
    /// Rollouts without an end, which are left out.
    pub incomplete: u64,
}

/// Folds the runs, in the order given.
///
/// Rewards are computed again from the stored successes and compared with the stored ones bit for bit. With `lambda`,
/// they are then replaced by Eq. 1 under that lambda.
///
/// # Errors
/// When the log is known to be damaged, an event cannot be read or contradicts the ones before it, or a reward is not
/// what the successes give.
pub fn fold(source: &dyn EventSource, runs: &[RunId], lambda: Option<f64>) -> Result<Folded, TrainError> {
    let mut rollouts = Vec::new();
    let (runs, incomplete) = fold_each(source, runs, lambda, &mut |numbers| {
        rollouts.push(numbers);
        Ok(())
    })?;
    Ok(Folded { runs, rollouts, incomplete })
}

/// As [`fold`], one finished rollout at a time: gives the runs with their digests, and the number of unfinished rollouts.
pub(crate) fn fold_each(
    source: &dyn EventSource,
    runs: &[RunId],
    lambda: Option<f64>,
    each: &mut dyn FnMut(RolloutNumbers) -> Result<(), TrainError>,
) -> Result<(Vec<(RunId, Digest)>, u64), TrainError> {
    check_runs(source, runs)?;
    let (mut folded, mut incomplete) = (Vec::new(), 0);
    for &run in runs {
        folded.push((run, check_content(source, run)?));
        for stream in source.streams(run) {
            let Stream::Rollout(_, rollout) = stream else { continue };
            match fold_one(source, run, rollout, lambda)? {
                Some(numbers) => each(numbers)?,
                None => incomplete += 1,
            }
        }
    }
    Ok((folded, incomplete))
}

fn check_runs(source: &dyn EventSource, runs: &[RunId]) -> Result<(), TrainError> {
    if runs.is_empty() {
        return Err(TrainError::Runs("no run was chosen to train on; name one, such as `latest`".to_owned()));
    }
    for (index, run) in runs.iter().enumerate() {
        if runs.iter().take(index).any(|earlier| earlier == run) {
            return Err(TrainError::Runs(format!("run {run} was chosen twice; name it once")));
        }
    }
    match source.findings().into_iter().find(|finding| finding.class != FindingClass::TornTail) {
        Some(finding) => Err(TrainError::Damaged { finding: finding.to_string() }),
        None => Ok(()),
    }
}

/// The run's content digest; a finished run must have the one that it was finished with.
fn check_content(source: &dyn EventSource, run: RunId) -> Result<Digest, TrainError> {
    let computed = content_digest_of_run(source, run)?;
    for event in source.events(Stream::Run(run), Seq(0), &Filter::kinds([Kind::RunFinished])) {
        if let Body::RunFinished(end) = event?.body
            && end.content != computed
        {
            return Err(TrainError::Content { run, stored: end.content, computed });
        }
    }
    Ok(computed)
}

#[derive(Default)]
struct Node {
    length: u64,
    last_action: u64,
    generated: u64,
    own: Option<f64>,
    reward: Option<(Address, RewardAssigned)>,
    outcome: Option<Outcome>,
}

#[derive(Default)]
struct Rollout {
    started: Option<RolloutStarted>,
    /// Whether a fork went on with other weights than those that acted before it.
    mixed: bool,
    nodes: BTreeMap<NodePath, Node>,
    unscored: Option<Address>,
    tempered: Option<(Address, f32)>,
    truncated: Option<Address>,
    finished: bool,
}

const KINDS: [Kind; 8] = [
    Kind::RolloutStarted,
    Kind::NodeSpawned,
    Kind::ContextExtended,
    Kind::ActionSampled,
    Kind::NodeFinished,
    Kind::Verdict,
    Kind::RewardAssigned,
    Kind::RolloutFinished,
];

/// One rollout in numbers; `None` if it has no end.
pub(crate) fn fold_one(
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    lambda: Option<f64>,
) -> Result<Option<RolloutNumbers>, TrainError> {
    let mut state = Rollout::default();
    for event in source.events(Stream::Rollout(run, rollout), Seq(0), &Filter::kinds(KINDS)) {
        state.apply(&event?)?;
    }
    if state.finished { state.close(run, rollout, lambda).map(Some) } else { Ok(None) }
}

impl Rollout {
    fn apply(&mut self, event: &Event) -> Result<(), TrainError> {
        let address = event.address();
        match &event.body {
            Body::RolloutStarted(started) => self.begin(address, started)?,
            Body::NodeSpawned(spawned) => self.spawn(address, spawned)?,
            Body::ContextExtended(more) => {
                let node = self.node(address, &more.node)?;
                node.extend(address, &more.node, more.at, more.tokens.len())?;
            }
            Body::ActionSampled(action) => self.act(address, action)?,
            Body::NodeFinished(end) => self.node(address, &end.node)?.outcome = Some(end.outcome),
            // The first verdict is the rollout's own; later ones judge it again and do not change its reward.
            Body::Verdict(verdict) => {
                self.node(address, &verdict.node)?.own.get_or_insert(verdict.score);
            }
            Body::RewardAssigned(reward) => {
                self.node(address, &reward.node)?.reward = Some((address, reward.clone()));
            }
            Body::RolloutFinished(_) => self.finished = true,
            _ => {}
        }
        Ok(())
    }

    /// A fork's own beginning follows the events that it shares with its base, whose beginning came first.
    fn begin(&mut self, address: Address, started: &RolloutStarted) -> Result<(), TrainError> {
        if let Some(base) = self.started.replace(started.clone()) {
            if base.policy.tokenizer != started.policy.tokenizer {
                let reason = "the fork's tokenizer is not its base's".to_owned();
                return Err(TrainError::Event { address, reason });
            }
            self.mixed |= base.policy.weights != started.policy.weights;
        }
        Ok(())
    }

    fn spawn(&mut self, address: Address, spawned: &NodeSpawned) -> Result<(), TrainError> {
        let fits = match spawned.node.parent() {
            Some(parent) => self.nodes.contains_key(&parent),
            None => spawned.node == NodePath::root(),
        };
        if !fits || spawned.depth != spawned.node.depth() {
            let reason = format!("node {} of depth {} has no place in the tree", spawned.node, spawned.depth);
            return Err(TrainError::Event { address, reason });
        }
        self.nodes.insert(spawned.node.clone(), Node::default());
        Ok(())
    }

    fn node(&mut self, address: Address, path: &NodePath) -> Result<&mut Node, TrainError> {
        let missing = || TrainError::Event { address, reason: format!("there is no node {path}") };
        self.nodes.get_mut(path).ok_or_else(missing)
    }

    fn act(&mut self, address: Address, action: &ActionSampled) -> Result<(), TrainError> {
        action.check().map_err(|source| TrainError::TokenCount { address, source })?;
        if matches!(action.logprob_kind, LogProbKind::Absent | LogProbKind::Unknown) {
            self.unscored.get_or_insert(address);
        } else if action.sampler.temperature != 1.0 {
            self.tempered.get_or_insert((address, action.sampler.temperature));
        } else if !action.sampler.is_whole() {
            self.truncated.get_or_insert(address);
        }
        let node = self.node(address, &action.node)?;
        if node.length == 0 && !action.tokens.is_empty() {
            return Err(TrainError::NoContext { address, node: action.node.clone() });
        }
        node.extend(address, &action.node, action.at, action.tokens.len())?;
        if !action.tokens.is_empty() {
            node.last_action = node.length;
        }
        node.generated += action.tokens.len() as u64;
        Ok(())
    }

    fn close(self, run: RunId, rollout: RolloutId, lambda: Option<f64>) -> Result<RolloutNumbers, TrainError> {
        let first = Address { stream: Stream::Rollout(run, rollout), seq: Seq(0) };
        let started = self
            .started
            .ok_or_else(|| TrainError::Event { address: first, reason: "the rollout has no beginning".to_owned() })?;
        let missing = |node: &NodePath, what| TrainError::Missing { run, rollout, node: node.clone(), what };
        let mut children = BTreeMap::<NodePath, Vec<f64>>::new();
        for (path, node) in &self.nodes {
            let own = node.own.ok_or_else(|| missing(path, "verdict"))?;
            if let Some(parent) = path.parent() {
                children.entry(parent).or_default().push(own);
            }
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (path, node) in &self.nodes {
            let own = node.own.ok_or_else(|| missing(path, "verdict"))?;
            let (address, stored) = node.reward.as_ref().ok_or_else(|| missing(path, "reward"))?;
            let kids = children.get(path).map_or(&[][..], Vec::as_slice);
            check_reward(*address, path, stored, &credit::reward(own, kids, stored.lambda))?;
            let lambda = lambda.unwrap_or(stored.lambda);
            let reward = credit::reward(own, kids, lambda);
            nodes.push(NodeNumbers {
                node: path.clone(),
                own,
                children: reward.children,
                child_mean: reward.child_mean,
                lambda,
                reward: reward.reward,
                source: *address,
                tokens: node.generated,
                length: node.last_action,
                finished: node.outcome == Some(Outcome::Finished),
            });
        }
        Ok(RolloutNumbers {
            run,
            rollout,
            group: started.group,
            difficulty: started.difficulty,
            tokenizer: started.policy.tokenizer,
            weights: if self.mixed { None } else { started.policy.weights },
            fork: started.fork_base.is_some(),
            nodes,
            unscored: self.unscored,
            tempered: self.tempered,
            truncated: self.truncated,
        })
    }
}

impl Node {
    fn extend(&mut self, address: Address, path: &NodePath, at: u32, count: usize) -> Result<(), TrainError> {
        if u64::from(at) != self.length {
            return Err(TrainError::Prefix { address, node: path.clone(), at: u64::from(at), expected: self.length });
        }
        self.length += count as u64;
        Ok(())
    }
}

fn check_reward(
    address: Address,
    node: &NodePath,
    stored: &RewardAssigned,
    computed: &credit::Reward,
) -> Result<(), TrainError> {
    let numbers = [
        ("own success", stored.own, computed.own),
        ("number of children", f64::from(stored.children), f64::from(computed.children)),
        ("child mean", stored.child_mean, computed.child_mean),
        ("reward", stored.reward, computed.reward),
    ];
    match numbers.into_iter().find(|(_, stored, computed)| stored.to_bits() != computed.to_bits()) {
        Some((what, stored, computed)) => {
            Err(TrainError::Reward { address, node: node.clone(), what, stored, computed })
        }
        None => Ok(()),
    }
}
