//! Small logs made on the spot: random trees whose actions a tiny random decoder really sampled.

use std::path::Path;
use std::sync::Arc;

use rao_policy::{Architecture, Chat, Config, Decoder, Limits, LocalPolicy, Policy, Request, SampleKey, Sampler};
use rao_store::event::{
    ActionSampled, Body, ContextExtended, ForkBase, LogProbKind, NodeFinished, NodeSpawned, Outcome, PolicyIdentity,
    RewardAssigned, Role, RolloutFinished, RolloutStarted, RunFinished, RunStarted, SamplerSettings, StopReason,
    Verdict,
};
use rao_store::{
    Digest, Expected, Log, LogProb, NodePath, Options, PolicyVersion, RolloutId, RunId, Seq, Stream, TokenId,
    content_digest_of_run,
};

pub(crate) const LAMBDA: f64 = 0.25;

/// How the runs of a test differ.
#[derive(Clone, Copy)]
pub(crate) struct Recording {
    pub(crate) run: RunId,
    pub(crate) groups: u32,
    pub(crate) members: u32,
    /// Actions without log-probabilities.
    pub(crate) scripted: bool,
    pub(crate) temperature: f32,
    /// The nucleus that samplers say they drew from.
    pub(crate) top_p: f32,
    /// Leaves this rollout without its end.
    pub(crate) cut: Option<u32>,
    /// Shifts the position of one observation of rollout 0.
    pub(crate) broken_prefix: bool,
    /// Writes a number that the successes do not give into the rewards of rollout 0, by the name that errors call it.
    pub(crate) wrong_reward: Option<&'static str>,
    /// A second verdict of every node says otherwise.
    pub(crate) judged_again: bool,
    /// How every node ends, whatever its success.
    pub(crate) ends: Option<Outcome>,
    /// Every node of this task succeeds.
    pub(crate) flat: Option<u32>,
    /// Makes this rollout a fork. What comes before its own beginning was sampled by these weights, or by its own.
    pub(crate) fork: Option<(u32, Option<Digest>)>,
}

pub(crate) fn run_id(number: u8) -> RunId {
    let mut bytes = [number; 16];
    (bytes[6], bytes[8]) = (0x70, 0x80);
    RunId(bytes)
}

impl Recording {
    pub(crate) fn new(number: u8) -> Self {
        Recording {
            run: run_id(number),
            groups: 2,
            members: 3,
            scripted: false,
            temperature: 1.0,
            top_p: 1.0,
            cut: None,
            broken_prefix: false,
            wrong_reward: None,
            judged_again: false,
            ends: None,
            flat: None,
            fork: None,
        }
    }
}

pub(crate) fn open(dir: &Path) -> Log {
    let clock = Arc::new(|| 1_800_000_000_000_000);
    Log::open(dir, Options::new(clock)).unwrap().0
}

pub(crate) fn decoder(seed: u64) -> Decoder {
    decoder_with(seed, |_| ())
}

/// The same of another shape.
pub(crate) fn decoder_with(seed: u64, change: impl FnOnce(&mut Config)) -> Decoder {
    let mut config = Config {
        architecture: Architecture::Qwen3,
        vocab_size: 264,
        hidden_size: 32,
        intermediate_size: 48,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: rao_policy::RopeScaling::None,
        tie_word_embeddings: true,
        max_positions: 512,
        experts: None,
    };
    change(&mut config);
    Decoder::init(config, seed).unwrap()
}

pub(crate) fn tokenizer() -> Vec<u8> {
    Chat::bytes().unwrap().to_json().to_vec()
}

/// Records a run with actions sampled from `decoder`.
pub(crate) fn record(log: &Log, decoder: &Decoder, recording: Recording) {
    let policy =
        LocalPolicy::new("tiny", decoder.snapshot().unwrap(), Chat::bytes().unwrap(), Limits::default()).unwrap();
    let mut recorder = Recorder { log, policy, identity: identity(decoder), recording, rows: 0 };
    let (run, count) = (recording.run, recording.groups * recording.members);
    let rollouts: Vec<RolloutId> = (0..count).map(RolloutId).collect();
    let started = RunStarted {
        env: "synthetic".into(),
        env_config: "{}".into(),
        engine_config: "{}".into(),
        policy: recorder.identity.clone(),
        repl: "none".into(),
        seed: 1,
        group_size: recording.members,
        tasks: recording.groups,
        rollouts,
        durability: "durable".into(),
    };
    log.append(Stream::Run(run), Expected::Any, vec![started.into()]).unwrap();
    for rollout in 0..count {
        recorder.rollout(rollout);
    }
    log.flush().unwrap();
    let content = content_digest_of_run(log, run).unwrap();
    log.append(Stream::Run(run), Expected::Any, vec![RunFinished { rollouts: count, content }.into()]).unwrap();
    log.flush().unwrap();
}

fn identity(decoder: &Decoder) -> PolicyIdentity {
    PolicyIdentity {
        kind: "local".into(),
        name: "tiny".into(),
        weights: Some(Digest(decoder.digest().unwrap())),
        tokenizer: Digest::of(&tokenizer()),
        version: PolicyVersion(decoder.version()),
    }
}

struct Recorder<'a> {
    log: &'a Log,
    policy: LocalPolicy,
    identity: PolicyIdentity,
    recording: Recording,
    rows: u64,
}

/// A number from 0 to 7 without pattern.
fn dice(rollout: u32, what: &str) -> u8 {
    Digest::of(format!("{rollout} {what}").as_bytes()).0[0] % 8
}

fn luck(rollout: u32, node: &NodePath) -> f64 {
    [0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 0.25, 1.0][usize::from(dice(rollout, &node.to_string()))]
}

fn paths(rollout: u32) -> Vec<NodePath> {
    let root = NodePath::root();
    let mut paths = vec![root.clone()];
    for ordinal in 0..u32::from(dice(rollout, "children") % 3) {
        let child = root.child(ordinal);
        paths.push(child.clone());
        if dice(rollout, &format!("grandchild {ordinal}")) < 4 {
            paths.push(child.child(0));
        }
    }
    paths
}

impl Recorder<'_> {
    fn success(&self, rollout: u32, node: &NodePath) -> f64 {
        if self.recording.flat == Some(rollout / self.recording.members) { 1.0 } else { luck(rollout, node) }
    }

    /// The rollout's beginning; of a fork, its base's and its own.
    fn beginnings(&self, rollout: u32) -> Vec<Body> {
        let Recording { run, members, fork, .. } = self.recording;
        let started = RolloutStarted {
            task_id: format!("task-{}", rollout / members),
            difficulty: "tiny".into(),
            task: "{}".into(),
            group: rollout / members,
            member: rollout % members,
            seed: u64::from(rollout),
            policy: self.identity.clone(),
            fork_base: None,
        };
        match fork {
            Some((number, weights)) if number == rollout => {
                let mut base = started.clone();
                base.policy.weights = weights.or(base.policy.weights);
                let fork_base = Some(ForkBase { run, rollout: RolloutId(0), seq: Seq(0) });
                vec![base.into(), RolloutStarted { fork_base, ..started }.into()]
            }
            _ => vec![started.into()],
        }
    }

    fn rollout(&mut self, rollout: u32) {
        let Recording { run, cut, .. } = self.recording;
        let paths = paths(rollout);
        let mut bodies = self.beginnings(rollout);
        for path in &paths {
            bodies.push(spawned(path));
        }
        // Nodes take turns, so their events interleave as in a live recording.
        let mut contexts = vec![Vec::<u32>::new(); paths.len()];
        for step in 0..2 {
            for (path, context) in paths.iter().zip(&mut contexts) {
                self.turn(rollout, path, step, context, &mut bodies);
            }
        }
        for (path, context) in paths.iter().zip(&mut contexts) {
            self.end(rollout, path, &paths, context, &mut bodies);
        }
        if cut != Some(rollout) {
            bodies.push(finished(self.success(rollout, &NodePath::root()), &paths));
        }
        self.log.append(Stream::Rollout(run, RolloutId(rollout)), Expected::Any, bodies).unwrap();
    }

    fn turn(&mut self, rollout: u32, path: &NodePath, step: u32, context: &mut Vec<u32>, bodies: &mut Vec<Body>) {
        let chat = self.policy.chat().clone();
        let (role, text) =
            if step == 0 { (Role::Prompt, format!("goal {path}")) } else { (Role::Observation, "ok".into()) };
        let ids = if step == 0 { chat.open("be brief", &text).unwrap() } else { chat.observe(false, &text).unwrap() };
        let shift = u32::from(self.recording.broken_prefix && rollout == 0 && step == 1);
        extend(bodies, path, step, (role, text), context, &ids, shift);
        let key = SampleKey(Digest::of(format!("{rollout} {path} {step}").as_bytes()).0);
        let sampler = Sampler::whole(1.0, 3 + step * 4);
        let request = Request { row: self.rows, context, sampler, window: 512, key };
        let completion = self.policy.sample(&[request]).unwrap().remove(0);
        self.policy.release(self.rows);
        self.rows += 1;
        let scripted = self.recording.scripted;
        bodies.push(
            ActionSampled {
                node: path.clone(),
                step,
                text: chat.decode(&completion.tokens),
                at: context.len() as u32,
                tokens: completion.tokens.iter().map(|id| TokenId(*id)).collect(),
                logprobs: completion.logprobs.iter().filter(|_| !scripted).map(|value| LogProb(*value)).collect(),
                logprob_kind: if scripted { LogProbKind::Absent } else { LogProbKind::Model },
                sampler: SamplerSettings {
                    top_p: self.recording.top_p,
                    ..SamplerSettings::whole(self.recording.temperature, 8)
                },
                stop: StopReason::MaxTokens,
                policy_version: PolicyVersion(0),
            }
            .into(),
        );
        context.extend(completion.tokens);
    }

    fn end(&self, rollout: u32, path: &NodePath, paths: &[NodePath], context: &mut Vec<u32>, bodies: &mut Vec<Body>) {
        let ids = self.policy.chat().observe(false, "a last word that no action follows").unwrap();
        extend(bodies, path, 2, (Role::Observation, "a last word that no action follows".into()), context, &ids, 0);
        let own = self.success(rollout, path);
        let earned = if own == 1.0 { Outcome::Finished } else { Outcome::OutOfSteps };
        let outcome = self.recording.ends.unwrap_or(earned);
        bodies.push(NodeFinished { node: path.clone(), outcome, value: None, steps: 2, tokens: 0 }.into());
        let evidence = "{}".to_owned();
        let evidence_digest = Digest::of(evidence.as_bytes());
        let source = "synthetic".to_owned();
        let verdict = Verdict { node: path.clone(), source, score: own, evidence, evidence_digest, judge: None };
        bodies.push(verdict.clone().into());
        if self.recording.judged_again {
            bodies.push(Verdict { score: 1.0 - own, ..verdict }.into());
        }
        let children: Vec<f64> =
            paths.iter().filter(|p| p.parent().as_ref() == Some(path)).map(|p| self.success(rollout, p)).collect();
        let child_mean =
            if children.is_empty() { 0.0 } else { children.iter().fold(0.0, |a, b| a + b) / children.len() as f64 };
        let (reward, children) = (own + LAMBDA * child_mean, children.len() as u32);
        let mut assigned = RewardAssigned { node: path.clone(), own, children, child_mean, lambda: LAMBDA, reward };
        match self.recording.wrong_reward.filter(|_| rollout == 0) {
            Some("own success") => assigned.own += 0.125,
            Some("number of children") => assigned.children += 1,
            Some("child mean") => assigned.child_mean += 0.125,
            Some(_) => assigned.reward += 0.125,
            None => {}
        }
        bodies.push(assigned.into());
    }
}

fn spawned(path: &NodePath) -> Body {
    NodeSpawned {
        node: path.clone(),
        call: path.parent().map(|_| (0, 0)),
        goal: format!("goal {path}"),
        targets: "{}".into(),
        context: "".into(),
        depth: path.depth(),
        budget: 2,
    }
    .into()
}

fn extend(
    bodies: &mut Vec<Body>,
    path: &NodePath,
    step: u32,
    (role, text): (Role, String),
    context: &mut Vec<u32>,
    ids: &[u32],
    shift: u32,
) {
    let (at, tokens) = (context.len() as u32 + shift, ids.iter().map(|id| TokenId(*id)).collect());
    bodies.push(ContextExtended { node: path.clone(), step, role, text, at, tokens }.into());
    context.extend(ids);
}

fn finished(success: f64, paths: &[NodePath]) -> Body {
    RolloutFinished {
        nodes: paths.len() as u32,
        steps: 2 * paths.len() as u32,
        tokens: 0,
        max_depth: paths.iter().map(NodePath::depth).max().unwrap(),
        success,
    }
    .into()
}
