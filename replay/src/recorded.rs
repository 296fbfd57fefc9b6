//! The world and the policy that a run's manifest names, found again.

use std::path::PathBuf;
use std::sync::Arc;

use rao_engine::{Actor, EngineConfig, Sampled, Scripted};
use rao_envs::judge::{JudgeIdentity, Panel, Seat, Spec};
use rao_envs::{Defaults, EnvError, Environment, Episode, Script, Secret, Selection, Task, catalog};
use rao_policy::{Chat, Limits, LocalPolicy, PolicyError, QuantizedPolicy};
use rao_store::Digest;
use rao_store::event::{HostFacts, RunStarted};

/// The fact under which a run notes the folder of its model.
pub const MODEL_FACT: &str = "model";

/// The fact under which a run of forks notes where they left their base.
pub const FORK_FACT: &str = "fork";

/// Why what a run was recorded with is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedError {
    /// An environment of another version.
    #[error(
        "the run was recorded in environment `{env}`, which this program does not know: use the version of rao-log that recorded it"
    )]
    UnknownEnvironment {
        /// Its name.
        env: String,
    },
    /// A manifest of another version.
    #[error(
        "the environment's settings in the manifest cannot be read: {reason}; use the version of rao-log that recorded the run, or check the log with `rao-log verify`"
    )]
    Settings {
        /// Why.
        reason: String,
    },
    /// Data that is not part of the log.
    #[error(
        "the run used {what}, and no folder with them was found: name it with `--data DIR`, or choose `--check cells`, which needs none"
    )]
    Data {
        /// What was used, with its digest.
        what: String,
    },
    /// A judge that is not part of the program.
    #[error("the run was judged by {identity}, which is not at hand: name it with `--judge` and `--child-judge`")]
    NoJudge {
        /// Its identity.
        identity: String,
    },
    /// The environment cannot be opened.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy cannot be loaded.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A policy that is not part of the program and not where it was.
    #[error(
        "the run was recorded with policy `{name}` of kind `{kind}` (tokenizer {tokenizer}), which is not at hand: choose `--check tools`, which needs none"
    )]
    NoPolicy {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Its tokenizer.
        tokenizer: String,
    },
}

/// The environment that a run was recorded in. `data` is where its data lies, for runs that used some.
///
/// # Errors
/// When the environment or its data is not there.
pub fn environment(started: &RunStarted, data: Option<PathBuf>) -> Result<Arc<dyn Environment>, RecordedError> {
    environment_with(started, data, None)
}

/// The same with the key of a search service, for runs that asked one.
///
/// # Errors
/// As [`environment`].
pub fn environment_with(
    started: &RunStarted,
    data: Option<PathBuf>,
    search_key: Option<Secret>,
) -> Result<Arc<dyn Environment>, RecordedError> {
    let stored = serde_json::from_str(&started.env_config)
        .map_err(|error| RecordedError::Settings { reason: error.to_string() })?;
    catalog::reopen_with(&started.env, &stored, data, search_key).map_err(|error| match error {
        EnvError::UnknownEnvironment { given, .. } => RecordedError::UnknownEnvironment { env: given },
        EnvError::Stored { reason } => RecordedError::Settings { reason },
        EnvError::NeedsData { what } => RecordedError::Data { what },
        error => RecordedError::Env(error),
    })
}

/// An environment whose data is not what a run was recorded with, and which opens the run's tasks all the same: a replay in
/// it finds the first event at which the data makes a difference.
pub struct OtherData(pub Arc<dyn Environment>);

impl Environment for OtherData {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn config(&self) -> serde_json::Value {
        self.0.config()
    }

    fn defaults(&self, presets: &[String]) -> Defaults {
        self.0.defaults(presets)
    }

    fn default_preset(&self) -> &'static str {
        self.0.default_preset()
    }

    fn default_judges(&self) -> Option<(&'static str, &'static str)> {
        self.0.default_judges()
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        self.0.tasks(selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        self.0.open(&self.0.on_own_data(task))
    }
}

/// The judges of a run, where they compute their verdicts.
///
/// # Errors
/// When one of them is a model, or of another version: its verdicts cannot be made here.
pub fn panel(config: &EngineConfig) -> Result<Panel, RecordedError> {
    let Some(judges) = &config.judges else { return Ok(Panel::default()) };
    let seat = |identity: &JudgeIdentity| {
        Spec::of_identity(identity).ok_or_else(|| RecordedError::NoJudge { identity: identity.to_json() })
    };
    match (seat(&judges.root)?, seat(&judges.child)?) {
        (Seat::Judge(root), child) => Ok(Panel::new(root, child)),
        (Seat::Root, _) => Err(RecordedError::NoJudge { identity: judges.root.to_json() }),
    }
}

/// The policy that recorded a run: a scripted one with the tokenizer that the run names, the built-in model, or the folder
/// that the run notes. Whether it has the weights that recorded is for the replay to say.
///
/// # Errors
/// When it is not at hand.
pub fn actor(started: &RunStarted, host: &HostFacts, config: &EngineConfig) -> Result<Box<dyn Actor>, RecordedError> {
    let folder = host.facts.iter().find(|(name, _)| name == MODEL_FACT).map(|(_, folder)| PathBuf::from(folder));
    let missing = || RecordedError::NoPolicy {
        kind: started.policy.kind.clone(),
        name: started.policy.name.clone(),
        tokenizer: started.policy.tokenizer.short(),
    };
    let sampled = |policy: LocalPolicy| -> Result<Box<dyn Actor>, RecordedError> {
        let chat = Arc::new(policy.chat().with_template(&config.chat_template_kwargs)?);
        Ok(Box::new(Sampled::new(
            Box::new(policy.with_stops(config.decoding.stops()?)),
            chat,
            config.sampler(),
            config.context,
        )))
    };
    let quantized = |policy: QuantizedPolicy| -> Result<Box<dyn Actor>, RecordedError> {
        let chat = Arc::new(policy.chat().with_template(&config.chat_template_kwargs)?);
        let stops = config.decoding.stops()?;
        let actor = Sampled::new(Box::new(policy.with_stops(stops)), chat, config.sampler(), config.context);
        Ok(Box::new(actor.of_kind("gguf")))
    };
    match (started.policy.kind.as_str(), started.policy.name.as_str(), folder) {
        ("scripted", name @ ("oracle" | "noisy"), _) => {
            let script = if name == "oracle" { Script::Oracle } else { Script::Noisy };
            let chat = known_chat(started.policy.tokenizer)?.ok_or_else(missing)?;
            Ok(Box::new(Scripted::new(script, Arc::new(chat.with_template(&config.chat_template_kwargs)?))))
        }
        ("local", "mini", None) => sampled(rao_policy::mini()?),
        ("local", _, Some(path)) if path.exists() => sampled(LocalPolicy::load(&path, Limits::default())?),
        ("gguf", _, Some(file)) if file.is_file() => quantized(QuantizedPolicy::load(&file, Limits::default())?),
        _ => Err(missing()),
    }
}

/// The tokenizer with that digest, if it is part of the program.
fn known_chat(digest: Digest) -> Result<Option<Chat>, PolicyError> {
    for chat in [Chat::bytes()?, rao_policy::mini_chat()?] {
        if Digest(chat.digest()) == digest {
            return Ok(Some(chat));
        }
    }
    Ok(None)
}
