//! What the tests and benches of rao-log share: settings, a world, logs, recordings, tables, and actors that play what
//! they are told. Nothing of the program depends on it.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "support of tests: what fails here fails the test")]

mod asking;
mod cells;
mod judge;
mod late;
pub mod long_text;
mod played;
mod tables;
mod wired;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rao_engine::record::{Plan, Recorded, record, resume};
use rao_engine::repl::{CellLimits, Monty, ReplEngine};
use rao_engine::{Actor, BudgetModel, EngineConfig, EngineError, Sampled, Scheduler, Scripted, Sink};
use rao_envs::judge::Panel;
use rao_envs::textcraft::{TextCraft, TextCraftConfig};
use rao_envs::{Environment, PromptStyle, Script, Selection, Split, Task};
use rao_policy::{Chat, Config, Decoder, Limits, LocalPolicy, Sampler};
use rao_store::event::{Body, Event, HostFacts};
use rao_store::{EventSource, Expected, Filter, Log, Options, RolloutId, RunId, Seq, Stream};

pub use asking::Asking;
pub use cells::{finish_cell, run_cell};
pub use judge::{Deliberate, Questions};
pub use late::Late;
pub use played::{Asked, Played};
pub use tables::{Column, write_parquet};
pub use wired::Wired;

/// The run that [`record_in`] records.
pub const RUN: RunId = RunId([7; 16]);

/// Settings for TextCraft's tiny tasks with brief prompts. Contexts and completions are short.
#[must_use]
pub fn config() -> EngineConfig {
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
        scheduler: Scheduler::Rounds,
        ancestors: false,
        judges: None,
        top_p: 1.0,
        decoding: rao_engine::Decoding::default(),
        chat_template_kwargs: rao_policy::TemplateValues::default(),
    }
}

/// TextCraft with generated tasks.
#[must_use]
pub fn env() -> Arc<dyn Environment> {
    Arc::new(TextCraft::new(TextCraftConfig::default()).unwrap())
}

/// Tiny tasks for training.
#[must_use]
pub fn tiny(env: &dyn Environment, count: usize, seed: u64) -> Vec<Task> {
    let presets = vec!["tiny".to_owned()];
    env.tasks(&Selection { presets, split: Split::Train, count: Some(count), seed }).unwrap()
}

/// A plan of tiny tasks.
#[must_use]
pub fn plan(tasks: usize, group_size: u32, config: EngineConfig) -> Plan {
    plan_in(env(), tasks, group_size, config)
}

/// A plan of tiny tasks in this world.
#[must_use]
pub fn plan_in(env: Arc<dyn Environment>, tasks: usize, group_size: u32, config: EngineConfig) -> Plan {
    let tasks = tiny(&*env, tasks, 3);
    Plan { env, tasks, group_size, config, seed: 11, only: None, width: 8, panel: Panel::default() }
}

/// A log without the ordered store: tests open many logs and are not about it. The clock stands still.
#[must_use]
pub fn open(dir: &Path) -> Arc<Log> {
    let mut options = Options::new(Arc::new(|| 1));
    options.ordered_store = false;
    Arc::new(Log::open(dir, options).unwrap().0)
}

/// The embedded interpreter.
#[must_use]
pub fn repl() -> Arc<dyn ReplEngine> {
    Arc::new(Monty::new())
}

/// Facts about no host in particular.
#[must_use]
pub fn host() -> HostFacts {
    HostFacts { program: "test".into(), facts: Vec::new() }
}

/// A scripted policy that writes with one token per byte.
#[must_use]
pub fn scripted(script: Script) -> Box<dyn Actor> {
    Box::new(Scripted::new(script, Arc::new(Chat::bytes().unwrap())))
}

/// A random model: its cells rarely parse, but its tokens and log-probabilities are real ones.
#[must_use]
pub fn sampled(seed: u64) -> Box<dyn Actor> {
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
    let sampler = Sampler::whole(1.0, config().max_tokens);
    Box::new(Sampled::new(Box::new(policy), Arc::new(chat), sampler, config().context))
}

/// The model that ships in the program, as it records with these settings.
#[must_use]
pub fn mini(config: &EngineConfig) -> Box<dyn Actor> {
    let policy = rao_policy::mini().unwrap();
    let chat = Arc::new(policy.chat().clone());
    Box::new(Sampled::new(Box::new(policy), chat, config.sampler(), config.context))
}

/// Records [`RUN`] from its manifest to its end.
pub fn record_in(log: &Arc<Log>, plan: &Plan, actor: &mut dyn Actor) -> Recorded {
    record(log, RUN, plan, host(), actor, &repl(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Carries a run to its end.
pub fn resume_in(log: &Arc<Log>, run: RunId, plan: &Plan, actor: &mut dyn Actor) -> Recorded {
    resume(log, run, plan, actor, &repl(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A stream's events.
pub fn bodies(log: &dyn EventSource, stream: Stream) -> Vec<Body> {
    log.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
}

/// A log that holds the manifest of [`RUN`] and these events of its first rollout.
pub fn copied(log: &dyn EventSource, dir: &Path, rollout: &[Body]) -> Arc<Log> {
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

/// What a [`Memory`] was given.
pub type Written = Arc<Mutex<Vec<Event>>>;

/// A sink that keeps events in memory.
pub struct Memory {
    /// The stream that they belong to.
    pub stream: Stream,
    /// Where they are kept.
    pub written: Written,
}

impl Sink for Memory {
    fn emit(&mut self, seq: Seq, body: &Body) -> Result<(), EngineError> {
        self.written.lock().unwrap().push(Event { stream: self.stream, seq, at_us: 0, body: body.clone() });
        Ok(())
    }

    fn hand_on(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}
