//! Recording rollouts: what `record`, `eval`, `demo` and `train --iterations` have in common.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rao_engine::record::{self, Plan, Recorded};
use rao_engine::repl::{CellLimits, ReplEngine};
use rao_engine::rounds::Standing;
use rao_engine::{Actor, BudgetModel, EngineConfig, EngineError, Judges};
use rao_envs::judge::Panel;
use rao_envs::{EnvSettings, Environment, Options, PromptStyle, Selection, Split, catalog};
use rao_replay::rejudge::on_record;
use rao_store::event::HostFacts;
use rao_store::{EventSource, Log, RolloutId, RunId};
use serde::{Deserialize, Serialize};

use super::args::{BudgetName, Count, DataArgs, EngineArgs, EnvName, PolicyArgs, PromptName, SplitName, TaskArgs};
use super::exit::{Code, Failure};
use super::hints;
use super::judges;
use super::open;
use super::policies::{self, Loaded, MODEL_FACT};
use super::repls::{self, PythonArgs};
use super::worlds;

/// The fact under which a run notes how its tasks were chosen; a resumed run chooses them again.
pub(crate) const SELECTION_FACT: &str = "selection";

/// What a command decides that flags leave open.
pub(crate) struct Choices {
    pub(crate) tasks: usize,
    pub(crate) split: Split,
    pub(crate) temperature: f32,
    pub(crate) group: u32,
    pub(crate) only: Option<Vec<RolloutId>>,
    pub(crate) width: usize,
}

/// Everything that a recording needs, checked.
pub(crate) struct Setup {
    pub(crate) plan: Plan,
    pub(crate) actor: Box<dyn Actor>,
    pub(crate) repl: Arc<dyn ReplEngine>,
    pub(crate) host: HostFacts,
}

/// How a run's tasks were chosen, as the log notes it.
#[derive(Serialize, Deserialize)]
struct StoredSelection {
    presets: Vec<String>,
    split: String,
    tasks: Option<usize>,
    seed: u64,
}

impl StoredSelection {
    fn of(selection: &Selection) -> Self {
        let split = match selection.split {
            Split::Train => "train",
            Split::Val => "val",
        };
        let (presets, seed) = (selection.presets.clone(), selection.seed);
        StoredSelection { presets, split: split.to_owned(), tasks: selection.count, seed }
    }

    fn selection(self) -> Selection {
        let split = if self.split == "val" { Split::Val } else { Split::Train };
        Selection { presets: self.presets, split, count: self.tasks, seed: self.seed }
    }
}

/// The presets that a run's tasks came from, if it notes them.
pub(crate) fn stored_presets(host: &HostFacts) -> Option<String> {
    let stored: StoredSelection = serde_json::from_str(open::fact(host, SELECTION_FACT)?).ok()?;
    Some(stored.presets.join(","))
}

/// The environment that flags describe.
pub(crate) fn environment(tasks: &TaskArgs) -> Result<Arc<dyn Environment>, Failure> {
    Ok(catalog::open(tasks.env.name(), &env_settings(tasks))?)
}

/// What flags say of an environment.
pub(super) fn env_settings(tasks: &TaskArgs) -> EnvSettings {
    let mut options = Options::default();
    let mut data = tasks.data.data.clone();
    if tasks.env == EnvName::Textcraft {
        options = options.with("verify", tasks.verify.to_string()).with("worlds", tasks.worlds.to_string());
        // Tiny tasks are always generated: a folder that merely happens to be there must not become a part of the run.
        if !tasks.preset.iter().all(|preset| preset == "tiny") {
            data = tasks.data.folder();
        }
    }
    let options = tasks.env_option.iter().fold(options, |options, (name, value)| options.with(name, value));
    EnvSettings { data, options, search_key: open::search_key() }
}

/// The tasks that flags choose.
pub(crate) fn selection(env: &dyn Environment, tasks: &TaskArgs, choices: &Choices) -> Selection {
    let split = match tasks.split {
        Some(SplitName::Train) => Split::Train,
        Some(SplitName::Val) => Split::Val,
        None => choices.split,
    };
    let count = match tasks.tasks {
        Some(Count::All) => None,
        Some(Count::Some(count)) => Some(count),
        None => Some(choices.tasks),
    };
    let mut presets = tasks.preset.clone();
    if presets.is_empty() {
        presets.push(env.default_preset().to_owned());
    }
    Selection { presets, split, count, seed: tasks.seed }
}

/// The engine's settings that flags choose, for this environment and policy.
pub(crate) fn engine_config(
    engine: &EngineArgs,
    env: &dyn Environment,
    presets: &[String],
    policy: &Loaded,
    panel: Option<&Panel>,
    temperature: f32,
) -> Result<EngineConfig, Failure> {
    let defaults = env.defaults(presets);
    let prompt = match engine.prompt {
        Some(PromptName::Brief) => PromptStyle::Brief,
        Some(PromptName::Full) => PromptStyle::Full,
        None if policy.is_tiny() => PromptStyle::Brief,
        None => PromptStyle::Full,
    };
    let steps = if engine.flat { defaults.max_steps_flat } else { defaults.max_steps };
    let mut cell = CellLimits::default();
    cell.time_ms = engine.cell_time.unwrap_or(cell.time_ms);
    cell.output_chars = defaults.output_chars;
    cell.reject_while = defaults.guards.no_while;
    cell.reject_input = defaults.guards.no_input;
    cell.memory = engine.cell_memory.map_or(cell.memory, |mib| (mib as usize) << 20);
    let config = EngineConfig {
        recursive: !engine.flat,
        max_depth: engine.max_depth.unwrap_or(defaults.max_depth),
        max_steps: engine.max_steps.unwrap_or(steps),
        budget: match engine.budget {
            BudgetName::PerAgent => BudgetModel::PerAgent,
            BudgetName::Shared => BudgetModel::Shared,
        },
        max_nodes: engine.max_nodes,
        context: engine.context.unwrap_or_else(|| fitting(defaults.context, policy)),
        max_tokens: engine.max_tokens.unwrap_or(match prompt {
            PromptStyle::Brief => 256,
            PromptStyle::Full => defaults.max_tokens.unwrap_or(1024),
        }),
        temperature: engine.temperature.unwrap_or(temperature),
        prompt,
        loop_guard: !engine.no_loop_guard,
        lambda: engine.lambda.unwrap_or(defaults.lambda),
        cell,
        scheduler: engine.scheduler.scheduler(),
        ancestors: defaults.shows_ancestors,
        judges: panel.map(Judges::of),
        top_p: engine.top_p.unwrap_or(1.0),
        decoding: engine.decoding.decoding(),
        chat_template_kwargs: engine.decoding.template_values(),
    };
    config.check().map_err(Failure::usage)?;
    check_positions(&config, policy)?;
    engine.decoding.check(config.top_p, policy)?;
    Ok(config)
}

/// The environment's own window, or the model's if that is smaller.
fn fitting(window: u32, policy: &Loaded) -> u32 {
    policy.positions().and_then(|positions| u32::try_from(positions).ok()).map_or(window, |most| window.min(most))
}

pub(crate) fn check_positions(config: &EngineConfig, policy: &Loaded) -> Result<(), Failure> {
    match policy.positions() {
        Some(positions) if positions < config.context as usize => {
            let message =
                format!("the model has {positions} positions, fewer than the context window of {}", config.context);
            Err(Failure::usage(message).help(format!("record with `--context {positions}` or less")))
        }
        _ => Ok(()),
    }
}

/// Makes a recording ready: loads the policy, chooses the tasks, checks every setting.
pub(crate) fn setup(
    tasks: &TaskArgs,
    engine: &EngineArgs,
    policy: &PolicyArgs,
    choices: Choices,
) -> Result<Setup, Failure> {
    let loaded = policies::load(policy)?;
    let setup = setup_with(tasks, engine, loaded, choices)?;
    hints::before(tasks, engine, policy, &setup);
    Ok(setup)
}

/// The same with a policy that is loaded already.
pub(crate) fn setup_with(
    tasks: &TaskArgs,
    engine: &EngineArgs,
    policy: Loaded,
    choices: Choices,
) -> Result<Setup, Failure> {
    let env = environment(tasks)?;
    let selection = selection(&*env, tasks, &choices);
    let panel = judges::panel(&*env, engine.judge.as_ref(), engine.child_judge.as_ref())?;
    let config = engine_config(engine, &*env, &selection.presets, &policy, panel.as_ref(), choices.temperature)?;
    let chosen = env.tasks(&selection)?;
    let mut host = host_facts(&selection, policy.folder());
    policy.add_facts(&mut host);
    worlds::add_fact(tasks, &mut host);
    judges::add_facts(engine.judge.as_ref(), engine.child_judge.as_ref(), &mut host);
    let actor = policy.into_actor(&config)?;
    let plan = Plan {
        env,
        tasks: chosen,
        group_size: choices.group,
        config,
        seed: selection.seed,
        only: choices.only,
        width: choices.width,
        panel: panel.unwrap_or_default(),
    };
    let wanted = plan.only.as_ref().map_or(1, Vec::len);
    if plan.rollouts().is_empty() || (plan.only.is_some() && plan.rollouts().len() < wanted) {
        let all = plan.tasks.len() * plan.group_size as usize;
        let message =
            format!("--only names a rollout that the plan does not have: its {all} rollouts are numbered from 0");
        return Err(Failure::usage(message).help("rollout numbers are TASK * GROUP + MEMBER; name each once"));
    }
    Ok(Setup { plan, actor, repl: repls::named(engine.repl, &engine.python)?, host })
}

/// Makes an interrupted run ready to go on, from what its log says of it.
pub(crate) fn resume_setup(
    source: &dyn EventSource,
    run: RunId,
    data: &DataArgs,
    policy: &PolicyArgs,
    python: &PythonArgs,
    width: usize,
) -> Result<Setup, Failure> {
    let (started, host) = open::manifest(source, run)?;
    let unreadable = |what: &str, why: String| {
        let failure = Failure::new(Code::Integrity, format!("the {what} of run {run} cannot be read: {why}"));
        failure.help("use the version of rao-log that recorded it, or record anew")
    };
    let config: EngineConfig =
        serde_json::from_str(&started.engine_config).map_err(|error| unreadable("settings", error.to_string()))?;
    let stored = open::fact(&host, SELECTION_FACT)
        .ok_or_else(|| unreadable("choice of tasks", "the log does not note it".into()))?;
    let stored: StoredSelection =
        serde_json::from_str(stored).map_err(|error| unreadable("choice of tasks", error.to_string()))?;
    let env = worlds::resumed(&started, &host, data)?;
    let tasks = env.tasks(&stored.selection())?;
    let repl = repls::recorded(&started.repl, python)?;
    if repl.identity() != started.repl {
        let message = format!("run {run} was recorded with `{}`, this program has `{}`", started.repl, repl.identity());
        return Err(Failure::usage(message).help("resume it with the version of rao-log that recorded it"));
    }
    let loaded = policies::recorded(&started, &host, policy)?;
    let plan = Plan {
        env,
        tasks,
        group_size: started.group_size,
        config: config.clone(),
        seed: started.seed,
        only: Some(started.rollouts.clone()),
        width,
        panel: judges::recorded(&config, &host)?,
    };
    let actor = loaded.into_actor(&config)?;
    if actor.identity() != started.policy {
        let message = format!("run {run} was recorded with other weights than `{}` now has", started.policy.name);
        return Err(Failure::new(Code::Unavailable, message).help("name the right ones with `--policy local:DIR`"));
    }
    Ok(Setup { plan, actor, repl, host })
}

fn host_facts(selection: &Selection, model: Option<&Path>) -> HostFacts {
    let stored = serde_json::to_string(&StoredSelection::of(selection)).unwrap_or_default();
    facts_with(stored, model)
}

/// Facts about this process, with the choice of tasks as the log notes it.
pub(crate) fn facts_with(stored: String, model: Option<&Path>) -> HostFacts {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let mut facts = vec![
        ("os".to_owned(), std::env::consts::OS.to_owned()),
        ("cpu".to_owned(), std::env::consts::ARCH.to_owned()),
        ("threads".to_owned(), rayon::current_num_threads().to_string()),
        ("command".to_owned(), command.join(" ")),
        (SELECTION_FACT.to_owned(), stored),
    ];
    if let Some(folder) = model {
        facts.push((MODEL_FACT.to_owned(), folder.display().to_string()));
    }
    HostFacts { program: format!("rao-log {}", env!("CARGO_PKG_VERSION")), facts }
}

/// Set by the first Ctrl-C; whoever works looks at it between steps.
static STOP: AtomicBool = AtomicBool::new(false);

/// True after Ctrl-C.
pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// From now on the first Ctrl-C asks the work to stop at the next good moment, and the second ends the process: the log
/// keeps what was acknowledged either way.
pub(crate) fn stop_on_ctrl_c() {
    let handler = || {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(1);
        }
    };
    // It fails only where a handler is set already, and there is no other.
    let _ = ctrlc::set_handler(handler);
}

/// A progress bar on standard error, if that is a terminal.
pub(crate) fn bar(length: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}  {{elapsed}}  {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Records a run, or goes on with one, and shows its progress.
pub(crate) fn run(log: &Arc<Log>, setup: &mut Setup, resume: Option<RunId>) -> Result<Recorded, Failure> {
    stop_on_ctrl_c();
    let run = resume.unwrap_or_else(open::new_run);
    let bar = bar(setup.plan.rollouts().len() as u64, "rollouts");
    let mut watch = |standing: Standing| {
        bar.set_position(standing.finished as u64);
        bar.set_message(format!("{} actions", standing.actions));
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let Setup { plan, actor, repl, host } = setup;
    if let Some(run) = resume
        && plan.panel.is_remote()
    {
        // What the run's judges have said already is not asked again.
        plan.panel.remember(on_record(&**log, run)?.into_values().flatten());
    }
    let outcome = match resume {
        None => record::record(log, run, plan, host.clone(), &mut **actor, repl, &mut watch),
        Some(run) => record::resume(log, run, plan, &mut **actor, repl, &mut watch),
    };
    bar.finish_and_clear();
    outcome.map_err(|error| {
        let is_stop = matches!(error, EngineError::Stopped);
        let is_busy = matches!(&error, EngineError::Log(log) if log.class() == rao_store::ErrorClass::Busy);
        let failure = Failure::from(error);
        let id = open::short(&**log, run);
        match (is_stop, is_busy) {
            (true, _) => failure.help(format!("go on with `rao-log record --resume {id}`")),
            (false, true) => failure,
            (false, false) => {
                failure.help(format!("once the cause is gone, go on with `rao-log record --resume {id}`"))
            }
        }
    })
}
