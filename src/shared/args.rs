//! Flags that several commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rao_engine::Scheduler;
use rao_envs::judge::Spec;
use rao_envs::textcraft::{Verify, Worlds};
use rao_policy::Limits;
use rao_policy::served::Address;
use rao_store::RolloutId;

use super::decoding::DecodingArgs;
use super::repls::{PythonArgs, ReplName};
use super::served::{self, ServedArgs};

/// Where the log is.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// The log's directory.
    #[arg(long, value_name = "DIR", default_value = "rao-log-data")]
    pub(crate) log: PathBuf,
}

/// How many threads compute.
#[derive(Args, Clone, Debug)]
pub(crate) struct ThreadArgs {
    /// Threads that compute [default: one per core]. They decide speed, never content.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

impl ThreadArgs {
    /// Makes the pool that every computation of this process uses.
    pub(crate) fn apply(&self) {
        if let Some(threads) = self.threads {
            // It can only fail where a pool exists already, and then that one stays.
            let _ = rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads)).build_global();
        }
    }
}

/// An environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvName {
    /// TextCraft-Synth: craft items by recipes.
    Textcraft,
    /// Oolong: questions about long transcripts.
    Oolong,
    /// Questions of several hops, answered by searching and reading pages.
    Deepdive,
    /// ART-E: answer questions about a mailbox.
    Mail,
}

impl EnvName {
    /// The name in manifests and in [`rao_envs::catalog`].
    pub(crate) fn name(self) -> &'static str {
        match self {
            EnvName::Textcraft => "textcraft",
            EnvName::Oolong => "oolong",
            EnvName::Deepdive => "deepdive",
            EnvName::Mail => "mail",
        }
    }
}

/// One of an environment's own options.
fn env_option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".into()),
    }
}

/// Training or validation tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SplitName {
    /// Tasks to train on.
    Train,
    /// Tasks to evaluate on.
    Val,
}

/// How many tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    All,
    Some(usize),
}

fn count(text: &str) -> Result<Count, String> {
    match text {
        "all" => Ok(Count::All),
        _ => match text.parse() {
            Ok(0) | Err(_) => Err("give a number of at least 1, or `all`".into()),
            Ok(number) => Ok(Count::Some(number)),
        },
    }
}

/// Where data files are looked for: named, or found through the environment.
#[derive(Args, Clone, Debug)]
pub(crate) struct DataArgs {
    /// A file or folder with tasks, in one of the environment's own formats [default for textcraft: textcraft-synth in
    /// $RAO_LOG_DATA, if it is there]. Without one, tasks are generated.
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
}

impl DataArgs {
    /// What to load TextCraft's tasks from, if it is there.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.of_env("textcraft")
    }

    /// What to load an environment's tasks from, if it is there. Only TextCraft's own files are looked for unnamed.
    pub(crate) fn of_env(&self, env: &str) -> Option<PathBuf> {
        let found = || {
            let folder = PathBuf::from(std::env::var_os("RAO_LOG_DATA")?).join("textcraft-synth");
            folder.is_dir().then_some(folder)
        };
        self.data.clone().or_else(|| if env == "textcraft" { found() } else { None })
    }
}

/// Which tasks, in which world.
#[derive(Args, Clone, Debug)]
pub(crate) struct TaskArgs {
    /// The environment.
    #[arg(long, value_enum, default_value = "textcraft", help_heading = "Tasks")]
    pub(crate) env: EnvName,
    /// How many tasks, or `all` where they have an end.
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Tasks")]
    pub(crate) tasks: Option<Count>,
    /// Presets, separated by commas [default: the environment's smallest]. textcraft: tiny, easy, medium, hard, extreme;
    /// mail: easy, medium, hard; oolong: 2k, 8k, 32k, 128k, 175k, or with --data 1ep, 2ep, .. or all.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Tasks")]
    pub(crate) preset: Vec<String>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    /// The split that tasks are taken from [default: train; eval: val].
    #[arg(long, value_enum, help_heading = "Tasks")]
    pub(crate) split: Option<SplitName>,
    /// Seed of tasks, their order and everything random in their rollouts.
    #[arg(long, value_name = "S", default_value_t = 0, help_heading = "Tasks")]
    pub(crate) seed: u64,
    /// An option of the environment's own; see its guide page. More than one: separated by commas, or repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_option, value_delimiter = ',', help_heading = "Tasks")]
    pub(crate) env_option: Vec<(String, String)>,
    /// textcraft: what counts as success: items gained (delta), items crafted (ledger), or both.
    #[arg(long, value_name = "MODE", default_value = "delta", help_heading = "Tasks")]
    pub(crate) verify: Verify,
    /// textcraft: generated tasks: one shared world of recipes, or a fresh one for each task.
    #[arg(long, value_name = "KIND", default_value = "shared", help_heading = "Tasks")]
    pub(crate) worlds: Worlds,
}

/// How steps are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BudgetName {
    /// Every agent has its own steps.
    PerAgent,
    /// One budget for the whole tree.
    Shared,
}

/// How much prompts say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PromptName {
    /// Rules, advice and signatures.
    Full,
    /// One line.
    Brief,
}

/// In which order nodes go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchedulerName {
    /// All ready nodes act as one batch.
    Rounds,
    /// Each node goes on as soon as its own answer is there.
    Arrival,
}

impl SchedulerName {
    pub(crate) fn scheduler(self) -> Scheduler {
        match self {
            SchedulerName::Rounds => Scheduler::Rounds,
            SchedulerName::Arrival => Scheduler::Arrival,
        }
    }
}

/// How agents run.
#[derive(Args, Clone, Debug)]
pub(crate) struct EngineArgs {
    /// Take `launch_subagent` away: the single-agent baseline.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Agents")]
    pub(crate) flat: bool,
    /// Context window of every node, in tokens [default: the environment's].
    #[arg(long, value_name = "N", help_heading = "Agents")]
    pub(crate) context: Option<u32>,
    /// The deepest depth a node may have [default: the environment's].
    #[arg(long, value_name = "D", help_heading = "Agents")]
    pub(crate) max_depth: Option<u32>,
    /// Steps an agent may take [default: the environment's].
    #[arg(long, value_name = "K", help_heading = "Agents")]
    pub(crate) max_steps: Option<u32>,
    /// Nodes a tree may have.
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Agents")]
    pub(crate) max_nodes: u32,
    /// Tokens a completion may have [default: 256 with brief prompts; with full ones the environment's, or 1024].
    #[arg(long, value_name = "N", help_heading = "Agents")]
    pub(crate) max_tokens: Option<u32>,
    /// Whether steps are counted for each agent or for the whole tree.
    #[arg(long, value_enum, default_value = "per-agent", help_heading = "Agents")]
    pub(crate) budget: BudgetName,
    /// The sampler's temperature [default: 1; eval: 0]. 0 always takes the most probable token.
    #[arg(long, value_name = "T", help_heading = "Agents")]
    pub(crate) temperature: Option<f32>,
    /// Draw only from the most probable tokens that together have this probability [default: 1].
    #[arg(long, value_name = "P", help_heading = "Agents")]
    pub(crate) top_p: Option<f32>,
    #[command(flatten)]
    pub(crate) decoding: DecodingArgs,
    /// How much prompts say [default: brief for tokenizers of at most 4096 entries, else full].
    #[arg(long, value_enum, help_heading = "Agents")]
    pub(crate) prompt: Option<PromptName>,
    /// Weight of the delegation bonus in the reward (Eq. 1) [default: the environment's].
    #[arg(long, value_name = "L", help_heading = "Agents")]
    pub(crate) lambda: Option<f64>,
    /// Who judges roots that the environment does not judge itself: exact, f1:THRESHOLD, recorded:LOG or llm:URL [default:
    /// the environment's].
    #[arg(long, value_name = "JUDGE", help_heading = "Agents")]
    pub(crate) judge: Option<Spec>,
    /// Who judges children that the environment does not judge itself; also root, for the root's success [default: the
    /// environment's].
    #[arg(long, value_name = "JUDGE", help_heading = "Agents")]
    pub(crate) child_judge: Option<Spec>,
    /// Do not end nodes that repeat themselves.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Agents")]
    pub(crate) no_loop_guard: bool,
    /// Milliseconds of Python that a cell may take.
    #[arg(long, value_name = "MS", help_heading = "Agents")]
    pub(crate) cell_time: Option<u64>,
    /// Mebibytes that a node's Python session may hold.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Agents")]
    pub(crate) cell_memory: Option<u32>,
    /// In which order nodes go on: in rounds, the same every time, or as answers arrive, which the log keeps as a fact.
    #[arg(long, value_enum, default_value = "rounds", help_heading = "Agents")]
    pub(crate) scheduler: SchedulerName,
    /// The Python engine that cells run in.
    #[arg(long, value_enum, default_value = "monty", help_heading = "Agents")]
    pub(crate) repl: ReplName,
    #[command(flatten)]
    pub(crate) python: PythonArgs,
}

/// Who acts.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PolicyArgs {
    /// Who acts: oracle, noisy, mini, local:PATH for a model folder or GGUF file, gguf:FILE for a frozen quantized model, or
    /// openai:URL for a server [default: mini, or the policy that recorded].
    #[arg(long, value_name = "POLICY", value_parser = policy, help_heading = "Policy")]
    pub(crate) policy: Option<PolicyName>,
    /// Tokenizer of scripted and served policies: mini, bytes, a model folder, or a tokenizer.json [default: mini; a
    /// server that takes tokens needs that of its model].
    #[arg(long, value_name = "WHICH", help_heading = "Policy")]
    pub(crate) tokenizer: Option<String>,
    /// Mebibytes that key-value caches may take; one agent is always allowed what it needs [default: 1024]. It decides speed,
    /// never content.
    #[arg(long, value_name = "MIB", help_heading = "Policy")]
    pub(crate) kv_memory: Option<u32>,
    /// A low-rank adapter on the weights of --policy, in peft's layout. A folder that `train --lora` made needs no more than
    /// local:DIR.
    #[arg(long, value_name = "DIR", help_heading = "Policy")]
    pub(crate) adapter: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServedArgs,
}

impl PolicyArgs {
    /// What a local policy may use.
    pub(crate) fn limits(&self) -> Limits {
        let default = Limits::default();
        let cache_bytes = self.kv_memory.map_or(default.cache_bytes, |mib| (mib as usize) << 20);
        Limits { cache_bytes, ..default }
    }
}

/// A policy by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyName {
    Oracle,
    Noisy,
    Mini,
    Local(PathBuf),
    Gguf(PathBuf),
    Served(Address),
}

/// Reads a policy's name.
pub(crate) fn policy(text: &str) -> Result<PolicyName, String> {
    match text.split_once(':') {
        None if text == "oracle" => Ok(PolicyName::Oracle),
        None if text == "noisy" => Ok(PolicyName::Noisy),
        None if text == "mini" => Ok(PolicyName::Mini),
        Some(("local", folder)) if !folder.is_empty() => Ok(PolicyName::Local(PathBuf::from(folder))),
        Some(("gguf", file)) if !file.is_empty() => Ok(PolicyName::Gguf(PathBuf::from(file))),
        Some(("openai", address)) => served::address(address),
        _ => Err("choose oracle, noisy, mini, local:PATH, gguf:FILE or openai:URL".into()),
    }
}

/// How many rollouts.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchArgs {
    /// Rollouts of each task.
    #[arg(long, value_name = "G", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) group: u32,
}

/// Rollouts at a time.
#[derive(Args, Clone, Debug)]
pub(crate) struct WidthArgs {
    /// Rollouts in progress at a time. It decides memory and speed, never content.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) width: u16,
}

/// Machine-readable output.
#[derive(Args, Clone, Debug)]
pub(crate) struct JsonArgs {
    /// Print JSON instead of text.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) json: bool,
}

/// A rollout's number.
pub(crate) fn rollout_number(text: &str) -> Result<RolloutId, String> {
    text.parse().map(RolloutId).map_err(|_| "give rollout numbers such as 3,7".into())
}

/// The tasks of a demonstration: generated tiny ones, whatever data is there.
pub(crate) fn demo_tasks(tasks: Count, seed: u64) -> TaskArgs {
    TaskArgs {
        env: EnvName::Textcraft,
        tasks: Some(tasks),
        preset: vec!["tiny".into()],
        data: DataArgs { data: None },
        split: None,
        seed,
        env_option: Vec::new(),
        verify: Verify::default(),
        worlds: Worlds::default(),
    }
}

/// Agents as they are without flags.
pub(crate) fn engine_defaults() -> EngineArgs {
    EngineArgs {
        flat: false,
        context: None,
        max_depth: None,
        max_steps: None,
        max_nodes: 128,
        max_tokens: None,
        budget: BudgetName::PerAgent,
        temperature: None,
        top_p: None,
        decoding: DecodingArgs::default(),
        prompt: None,
        lambda: None,
        judge: None,
        child_judge: None,
        no_loop_guard: false,
        cell_time: None,
        cell_memory: None,
        scheduler: SchedulerName::Rounds,
        repl: ReplName::Monty,
        python: PythonArgs::default(),
    }
}
