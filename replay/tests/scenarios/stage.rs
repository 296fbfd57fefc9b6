//! What the scenarios share: a world, actors, recording, cutting, replaying.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rao_engine::record::{Plan, Recorded, record, resume};
use rao_engine::repl::{CellLimits, Monty, ReplEngine};
use rao_engine::{Action, Actor, Ask, BudgetModel, EngineConfig, EngineError, Sampled, Scripted};
use rao_envs::judge::Panel;
use rao_envs::textcraft::{TextCraft, TextCraftConfig};
use rao_envs::{Environment, PromptStyle, Script, Selection, Split};
use rao_policy::{Chat, Config, Decoder, Limits, LocalPolicy, Sampler};
use rao_replay::check::{Check, Checked, Means, Request, replay_rollout};
use rao_store::event::{Body, HostFacts, LogProbKind, PolicyIdentity, SamplerSettings, StopReason};
use rao_store::{EventSource, Expected, Filter, Log, Options, RolloutId, RunId, Seq, Stream, TokenId};

pub(crate) const RUN: RunId = RunId([7; 16]);
pub(crate) const ALL: [Check; 4] = [Check::Fold, Check::Cells, Check::Tools, Check::Tokens];

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        recursive: true,
        max_depth: 3,
        max_steps: 8,
        budget: BudgetModel::PerAgent,
        max_nodes: 64,
        context: 8192,
        max_tokens: 48,
        temperature: 1.0,
        prompt: PromptStyle::Brief,
        loop_guard: true,
        lambda: 0.5,
        cell: CellLimits::default(),
        ancestors: false,
        judges: None,
    }
}

pub(crate) fn env() -> Arc<dyn Environment> {
    Arc::new(TextCraft::new(TextCraftConfig::default()).unwrap())
}

pub(crate) fn plan(tasks: usize, group_size: u32, config: EngineConfig) -> Plan {
    let env = env();
    let selection = Selection { presets: vec!["tiny".into()], split: Split::Train, count: Some(tasks), seed: 3 };
    let tasks = env.tasks(&selection).unwrap();
    Plan { env, tasks, group_size, config, seed: 11, only: None, width: 8, panel: Panel::default() }
}

/// A log without sled: these tests open many and are not about it.
pub(crate) fn open(dir: &Path) -> Arc<Log> {
    let mut options = Options::new(Arc::new(|| 1));
    options.ordered_store = false;
    Arc::new(Log::open(dir, options).unwrap().0)
}

pub(crate) fn repl() -> Arc<dyn ReplEngine> {
    Arc::new(Monty::new())
}

pub(crate) fn host() -> HostFacts {
    HostFacts { program: "test".into(), facts: Vec::new() }
}

pub(crate) fn scripted(script: Script) -> Box<dyn Actor> {
    Box::new(Scripted::new(script, Arc::new(Chat::bytes().unwrap())))
}

/// A random model: its cells rarely parse, but its tokens and log-probabilities are real ones.
pub(crate) fn sampled(seed: u64) -> Box<dyn Actor> {
    let chat = Chat::bytes().unwrap();
    let json = format!(
        r#"{{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": {}, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 8192, "hidden_act": "silu",
        "attention_bias": false}}"#,
        chat.vocab_size()
    );
    let decoder = Decoder::init(Config::from_json(json.as_bytes()).unwrap(), seed).unwrap();
    let policy = LocalPolicy::new("random", decoder, chat.clone(), Limits::default()).unwrap();
    let sampler = Sampler { temperature: 1.0, max_tokens: config().max_tokens };
    Box::new(Sampled::new(Box::new(policy), Arc::new(chat), sampler, config().context))
}

type Program = Arc<dyn Fn(&Ask<'_>) -> String + Send + Sync>;
/// The actions that were asked for: node and step.
pub(crate) type Asked = Arc<Mutex<Vec<(String, u32)>>>;

/// Plays the cells that a function of node, step and seed gives, and notes what it was asked for.
pub(crate) struct Played {
    chat: Arc<Chat>,
    program: Program,
    pub(crate) asked: Asked,
}

impl Played {
    pub(crate) fn new(program: impl Fn(&Ask<'_>) -> String + Send + Sync + 'static) -> Self {
        Played { chat: Arc::new(Chat::bytes().unwrap()), program: Arc::new(program), asked: Asked::default() }
    }

    /// Cells by node; `GOAL` in them stands for the node's own targets, and nodes without cells finish.
    pub(crate) fn cells(cells: &'static [(&'static str, &'static [&'static str])]) -> Self {
        Played::new(move |ask| {
            let own = cells.iter().find(|(node, _)| *node == ask.node.to_string());
            let cell = own.and_then(|(_, cells)| cells.get(ask.step as usize)).copied().unwrap_or("finish('done')");
            cell.replace("GOAL", &ask.goal.targets.to_string())
        })
    }

    /// Another actor that plays the same, with notes of its own.
    pub(crate) fn again(&self) -> Box<dyn Actor> {
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
                sampler: SamplerSettings { temperature: 0.0, max_tokens: 0 },
                stop: StopReason::Scripted,
            }
        };
        Ok(batch.iter().map(play).collect())
    }

    fn release(&mut self, _row: u64) {}
}

pub(crate) fn record_in(log: &Arc<Log>, plan: &Plan, actor: &mut dyn Actor) -> Recorded {
    record(log, RUN, plan, host(), actor, &repl(), &mut |_| ControlFlow::Continue(())).unwrap()
}

pub(crate) fn resume_in(log: &Arc<Log>, run: RunId, plan: &Plan, actor: &mut dyn Actor) -> Recorded {
    resume(log, run, plan, actor, &repl(), &mut |_| ControlFlow::Continue(())).unwrap()
}

pub(crate) fn means(actor: Box<dyn Actor>) -> Means {
    Means { env: Some(env()), repl: repl(), actor: Some(actor) }
}

pub(crate) fn checked(
    log: &dyn EventSource,
    run: RunId,
    rollout: u32,
    check: Check,
    from: u64,
    means: &mut Means,
) -> Checked {
    replay_rollout(log, run, RolloutId(rollout), &Request { check, from: Seq(from) }, means).unwrap()
}

pub(crate) fn bodies(log: &dyn EventSource, stream: Stream) -> Vec<Body> {
    log.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
}

/// A log that holds the run's manifest and these events of its first rollout.
pub(crate) fn copied(log: &dyn EventSource, dir: &Path, rollout: &[Body]) -> Arc<Log> {
    let copy = open(dir);
    let own = Stream::Run(RUN);
    let mut manifest = bodies(log, own);
    manifest.truncate(2);
    copy.append(own, Expected::Any, manifest).unwrap();
    if !rollout.is_empty() {
        copy.append(Stream::Rollout(RUN, RolloutId(0)), Expected::Any, rollout.to_vec()).unwrap();
    }
    copy
}

/// Replays a rollout at every check from every event.
pub(crate) fn replay_everything(log: &dyn EventSource, means: &mut Means) {
    let events = log.head(Stream::Rollout(RUN, RolloutId(0))).unwrap().count;
    for check in ALL {
        for from in 0..events {
            let result = checked(log, RUN, 0, check, from, means);
            assert!(result.divergence.is_none(), "{check:?} from {from}: {}", result.divergence.unwrap());
            assert_eq!((result.skipped, result.compared), (from, events - from), "{check:?} from {from}");
        }
    }
}

/// Cuts a rollout's log off behind every `step`th event: what is there replays, and resuming gives the whole again.
pub(crate) fn cut_and_resume(log: &dyn EventSource, plan: &Plan, actor: &Played, step: usize) {
    let stream = Stream::Rollout(RUN, RolloutId(0));
    let whole = bodies(log, stream);
    let content = log.head(stream).unwrap().content;
    for cut in (1..whole.len()).step_by(step) {
        let dir = tempfile::tempdir().unwrap();
        let part = copied(log, dir.path(), &whole[..cut]);
        let mut means = means(actor.again());
        for check in ALL {
            let result = checked(&*part, RUN, 0, check, 0, &mut means);
            assert!(result.divergence.is_none(), "{check:?}, cut at {cut}: {}", result.divergence.unwrap());
            assert!(!result.complete);
            assert_eq!(result.compared, cut as u64, "{check:?}, cut at {cut}");
        }
        resume_in(&part, RUN, plan, &mut *actor.again());
        assert_eq!(part.head(stream).unwrap().content, content, "resumed behind event {cut}");
    }
}
