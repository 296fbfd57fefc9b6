//! Tasks, tools, verifiers and scripted policies: the worlds that agents act in.
//!
//! An [`Environment`] makes [`Task`]s and opens an [`Episode`] for each rollout. One episode is shared by the whole
//! execution tree of the rollout: it holds the world's state, answers tool calls, turns delegations into goals and
//! judges nodes. Nothing here reads a clock, the environment or a global generator: seeds are arguments.

mod bind;
pub mod catalog;
pub mod deepdive;
pub mod judge;
pub mod mail;
mod mistakes;
pub mod oolong;
mod options;
mod prompts;
mod rng;
mod text;
pub mod textcraft;
mod value;

pub use judge::{Act, Assessment, Ending, Question};
pub use options::{EnvSettings, Options, Secret};
pub use text::Text;
pub use value::{Args, Value, ValueError};

/// A node's place in its tree: spawn ordinals from the root, the root being `[0]`.
pub type NodeKey = [u32];

/// What an agent is asked to do, in words and as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The goal as the agent reads it.
    pub text: String,
    /// The goal as data: what the verifier checks. Never parsed back from `text`.
    pub targets: serde_json::Value,
    /// What the node works on: what its parent passed along, or a root's own material; may be empty. Where the
    /// environment has a [context variable](Episode::context_variable), the node's REPL holds it under that name.
    pub context: Text,
}

/// One root problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Unique in its environment.
    pub id: String,
    /// The label that success rates are reported by.
    pub difficulty: String,
    /// Everything that [`Environment::open`] needs, in the environment's own shape.
    pub body: serde_json::Value,
}

/// Which tasks a run takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Presets or difficulties, such as `tiny` or `easy,medium`.
    pub presets: Vec<String>,
    /// `train` or `val`; no task belongs to both.
    pub split: Split,
    /// How many tasks; `None` takes all that there are (an error for generators without an end).
    pub count: Option<usize>,
    /// Seed of generated tasks and of the order of loaded ones.
    pub seed: u64,
}

/// Training or validation tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Tasks to train on.
    Train,
    /// Tasks to evaluate on.
    Val,
}

/// How much the prompts say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptStyle {
    /// Rules, advice and signatures, for a general language model.
    Full,
    /// One line, for a tiny policy that was trained on the task.
    Brief,
}

/// The settings that an environment's own papers and configurations use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// Steps an agent may take when it can delegate.
    pub max_steps: u32,
    /// Steps a single agent may take when it cannot (`--flat`).
    pub max_steps_flat: u32,
    /// The deepest depth a node may have.
    pub max_depth: u32,
    /// The weight of the delegation bonus (lambda of Eq. 1).
    pub lambda: f64,
    /// The context window of every node, in tokens.
    pub context: u32,
    /// Tokens that a completion may have under full prompts; `None` leaves it to the command line.
    pub max_tokens: Option<u32>,
    /// Characters of a cell's output that are kept.
    pub output_chars: usize,
    /// What cells may not hold.
    pub guards: Guards,
    /// Whether a node's first prompt shows its ancestors' goals below its own, the closest first.
    pub shows_ancestors: bool,
}

/// Static checks of cells, besides that for unawaited launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    /// Refuse cells with a `while` loop.
    pub no_while: bool,
    /// Refuse cells that call `input()`.
    pub no_input: bool,
}

/// One of the tools a cell can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The function's name in the REPL.
    pub name: &'static str,
    /// Whether the call must be awaited.
    pub is_async: bool,
}

/// What a tool call gives back: a value, or a Python exception.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolResult {
    /// The call's value.
    Value(Value),
    /// An exception raised at the call: type name (a built-in) and message.
    Raised {
        /// Such as `ValueError`.
        kind: String,
        /// The message.
        message: String,
    },
}

/// A judgement of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Success in [0, 1].
    pub score: f64,
    /// The verifier and its mode, such as `textcraft/delta`.
    pub source: String,
    /// The numbers that it rests on.
    pub evidence: serde_json::Value,
}

/// A scripted policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Solves every solvable task, delegating as the environment's design says.
    Oracle,
    /// The oracle with seeded mistakes of many kinds.
    Noisy,
}

/// What a scripted policy is told about the turn it has to take.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The acting node.
    pub node: &'a NodeKey,
    /// Its goal.
    pub goal: &'a Goal,
    /// The step it is about to take, from 0.
    pub step: u32,
    /// The steps it may take in all.
    pub budget: u32,
    /// The deepest depth a node may have.
    pub max_depth: u32,
    /// Whether `launch_subagent` exists.
    pub recursive: bool,
    /// What the last cell showed (stdout and error as the agent reads them); `None` at step 0.
    pub observation: Option<&'a str>,
    /// The rollout's seed: with `node` and `step` it decides everything random.
    pub seed: u64,
}

/// A world and its tasks.
pub trait Environment: Send + Sync {
    /// The name used on the command line.
    fn name(&self) -> &'static str;

    /// Every setting that decides the environment's behaviour, for the run's manifest: data by digest, not by path.
    fn config(&self) -> serde_json::Value;

    /// The settings that go with this environment, for tasks of `presets`.
    fn defaults(&self, presets: &[String]) -> Defaults;

    /// The preset that is taken where none is named.
    fn default_preset(&self) -> &'static str;

    /// The judges of roots and of children where none are named, such as `("exact", "root")`; `None` for an environment
    /// that judges every node itself. See [`judge::Spec`].
    fn default_judges(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// The chosen tasks in a fixed order: the same selection gives the same tasks everywhere.
    ///
    /// # Errors
    /// When a preset is unknown, or fewer tasks exist than were asked for.
    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError>;

    /// Opens a fresh world for one rollout of `task`.
    ///
    /// # Errors
    /// When the task's body is not one of this environment's.
    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError>;

    /// The task as one of the data that is loaded now, where it names other data by its digest. A replay that looks for
    /// the event at which changed data makes a difference opens this in the task's place.
    fn on_own_data(&self, task: &Task) -> Task {
        task.clone()
    }
}

/// The state of one rollout's world, shared by all nodes of its tree.
///
/// Calls arrive one at a time, in an order that the engine fixes and logs.
pub trait Episode: Send {
    /// The root's goal.
    fn root_goal(&self) -> Goal;

    /// The tools, without `finish` and `launch_subagent`, which the engine provides.
    fn tools(&self) -> &'static [Tool];

    /// The system prompt.
    fn system_prompt(&self, style: PromptStyle, recursive: bool) -> String;

    /// The signatures that the first user turn lists, `finish` and, if `recursive`, `launch_subagent` included.
    fn action_space(&self, style: PromptStyle, recursive: bool) -> String;

    /// The variable under which a node's REPL holds its goal's context, if it holds it at all.
    fn context_variable(&self) -> Option<&'static str> {
        None
    }

    /// A node begins: the world takes whatever snapshot its verifier needs.
    fn enter(&mut self, node: &NodeKey, goal: &Goal);

    /// Executes a tool call.
    fn call(&mut self, node: &NodeKey, tool: &str, args: &Args) -> ToolResult;

    /// Takes over the effect of a logged call without executing it: the world is afterwards as if `call` had been
    /// made and had given `result`.
    fn absorb(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult);

    /// Turns the arguments of `launch_subagent` into a child's goal, or into the text of a refusal.
    ///
    /// # Errors
    /// The refusal's text; no node is made then.
    fn delegate(&mut self, node: &NodeKey, args: &Args) -> Result<Goal, String>;

    /// Judges a node that ended, or says what a judge is to be asked. After an interruption it may be called again for a
    /// node whose judgement was put off, and must then say the same.
    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment;

    /// The action (thought and cell) that a scripted policy takes now. Looks, and changes nothing.
    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String;

    /// A tool call as a job of its own, for a call that waits for something outside this process and neither looks at the
    /// world nor changes it while it runs. Such calls overlap where the scheduler does not wait for them. Their results
    /// reach the world through [`Episode::absorb`], in the order in which they are answered. `None`: [`Episode::call`]
    /// executes it.
    fn detached(&self, _node: &NodeKey, _tool: &str, _args: &Args) -> Option<Detached> {
        None
    }
}

/// A tool call that runs by itself, on any thread. It gives what [`Episode::call`] would have given.
pub type Detached = Box<dyn FnOnce() -> ToolResult + Send>;

/// Why an environment cannot do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A preset or difficulty that does not exist.
    #[error("unknown preset `{given}` for {env}: choose from {known}")]
    UnknownPreset {
        /// What was given.
        given: String,
        /// The environment.
        env: &'static str,
        /// The presets there are.
        known: String,
    },
    /// Fewer tasks exist than were asked for.
    #[error("{wanted} tasks were asked for, but {env} has only {found} that match")]
    TooFewTasks {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        found: usize,
        /// The environment.
        env: &'static str,
    },
    /// A data file that cannot be read.
    #[error("cannot read {file}: {reason}")]
    Data {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// A setting outside its range.
    #[error("{name}: {reason}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Why it is refused.
        reason: String,
    },
    /// An environment that this program does not have.
    #[error("there is no environment `{given}`: choose from {known}")]
    UnknownEnvironment {
        /// What was given.
        given: String,
        /// The environments there are.
        known: String,
    },
    /// An option that the environment does not have.
    #[error("{env} has no option `{given}`{}: it knows {known}", nearest.as_ref().map_or(String::new(), |name| format!("; did you mean `{name}`?")))]
    UnknownOption {
        /// What was given.
        given: String,
        /// The environment.
        env: &'static str,
        /// The name that differs least, if one is close.
        nearest: Option<String>,
        /// The options there are.
        known: String,
    },
    /// Settings in a manifest that cannot be read.
    #[error("the environment's stored settings cannot be read: {reason}")]
    Stored {
        /// Why.
        reason: String,
    },
    /// A run that used data which is not at hand.
    #[error("the run used {what}, and they were not found: name their place with `--data PATH`")]
    NeedsData {
        /// What was used, with its digest.
        what: String,
    },
    /// A task body of another environment or a damaged one.
    #[error("task {id} cannot be opened: {reason}")]
    BadTask {
        /// The task's id.
        id: String,
        /// Why.
        reason: String,
    },
}
