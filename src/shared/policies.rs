//! Policies and tokenizers by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rao_engine::{Actor, EngineConfig, Sampled, Scripted, ServedActor};
use rao_envs::Script;
use rao_policy::served::Served;
use rao_policy::{Chat, Decoder, Limits, LocalPolicy, Policy as _, QuantizedPolicy};
use rao_store::Digest;
use rao_store::event::{HostFacts, RunStarted};

use super::args::{PolicyArgs, PolicyName};
use super::exit::{Code, Failure};
use super::open;
use super::served::{self, Facts, ServedArgs, ServerName};

pub(crate) use rao_replay::recorded::MODEL_FACT;

/// The largest tokenizer whose policies are taken to be tiny ones, trained on brief prompts.
const BRIEF_VOCABULARY: usize = 4096;

/// A policy that is ready to act.
pub(crate) enum Loaded {
    Scripted(Script, Arc<Chat>),
    Local(Box<LocalPolicy>, Option<PathBuf>),
    Quantized(Box<QuantizedPolicy>, PathBuf),
    Served(Box<Served>, Facts),
}

impl Loaded {
    pub(crate) fn chat(&self) -> Arc<Chat> {
        match self {
            Loaded::Scripted(_, chat) => Arc::clone(chat),
            Loaded::Local(policy, _) => Arc::new(policy.chat().clone()),
            Loaded::Quantized(policy, _) => Arc::new(policy.chat().clone()),
            Loaded::Served(served, _) => Arc::new(served.chat().clone()),
        }
    }

    pub(crate) fn is_served(&self) -> bool {
        matches!(self, Loaded::Served(..))
    }

    /// Adds what a run notes of where its policy was.
    pub(crate) fn add_facts(&self, host: &mut HostFacts) {
        if let Loaded::Served(_, facts) = self {
            facts.add_to(host);
        }
    }

    /// The folder that its weights came from.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            Loaded::Scripted(..) | Loaded::Served(..) => None,
            Loaded::Local(_, folder) => folder.as_deref(),
            Loaded::Quantized(_, file) => Some(file),
        }
    }

    /// Whether brief prompts are the default for it.
    pub(crate) fn is_tiny(&self) -> bool {
        !self.is_served() && self.chat().vocab_size() <= BRIEF_VOCABULARY
    }

    /// Positions that its model has.
    pub(crate) fn positions(&self) -> Option<usize> {
        match self {
            Loaded::Scripted(..) => None,
            Loaded::Local(policy, _) => Some(policy.config().max_positions),
            Loaded::Quantized(policy, _) => Some(policy.positions()),
            Loaded::Served(served, _) => served.window().map(|window| window as usize),
        }
    }

    pub(crate) fn into_actor(self, config: &EngineConfig) -> Result<Box<dyn Actor>, Failure> {
        let chat = Arc::new(self.chat().with_template(&config.chat_template_kwargs)?);
        let (sampler, window) = (config.sampler(), config.context);
        Ok(match self {
            Loaded::Scripted(script, _) => Box::new(Scripted::new(script, chat)),
            Loaded::Local(policy, _) => {
                let policy = policy.with_stops(config.decoding.stops()?);
                Box::new(Sampled::new(Box::new(policy), chat, sampler, window))
            }
            Loaded::Quantized(policy, _) => {
                let policy = policy.with_stops(config.decoding.stops()?);
                Box::new(Sampled::new(Box::new(policy), chat, sampler, window).of_kind("gguf"))
            }
            Loaded::Served(served, _) => Box::new(ServedActor::new(*served, config)?),
        })
    }
}

/// Loads a policy by name.
pub(crate) fn load(args: &PolicyArgs) -> Result<Loaded, Failure> {
    let name = args.policy.clone().unwrap_or(PolicyName::Mini);
    match &args.adapter {
        Some(adapter) => load_adapted(&name, adapter, args.limits()),
        None => load_named(&name, args.tokenizer.as_deref(), &args.server, args.limits()),
    }
}

/// A model with an adapter. In the log it goes by the adapter's folder, which names its base model.
fn load_adapted(name: &PolicyName, adapter: &Path, limits: Limits) -> Result<Loaded, Failure> {
    let (decoder, chat) = match name {
        PolicyName::Mini => {
            let policy = rao_policy::mini()?;
            let chat = policy.chat().clone();
            (policy.into_decoder()?, chat)
        }
        PolicyName::Local(folder) => (Decoder::load(folder)?, Chat::load(folder)?),
        _ => return Err(Failure::usage("only models have adapters").help("choose --policy mini or local:PATH")),
    };
    let folder = adapter.canonicalize().unwrap_or_else(|_| adapter.to_owned());
    let name = folder.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy().into_owned());
    let policy = LocalPolicy::new(&name, decoder.load_adapter(adapter)?, chat, limits)?;
    Ok(Loaded::Local(Box::new(policy), Some(folder)))
}

fn load_named(
    name: &PolicyName,
    tokenizer: Option<&str>,
    server: &ServedArgs,
    limits: Limits,
) -> Result<Loaded, Failure> {
    let scripted = |script| Ok(Loaded::Scripted(script, Arc::new(chat(tokenizer.unwrap_or("mini"))?)));
    match name {
        PolicyName::Oracle => scripted(Script::Oracle),
        PolicyName::Noisy => scripted(Script::Noisy),
        PolicyName::Mini | PolicyName::Local(_) | PolicyName::Gguf(_) if tokenizer.is_some() => {
            let failure = Failure::usage("--tokenizer is for scripted policies: a model has its own tokenizer");
            Err(failure.help("leave --tokenizer out, or choose --policy oracle or noisy"))
        }
        PolicyName::Mini => Ok(Loaded::Local(Box::new(rao_policy::mini()?.with_limits(limits)), None)),
        PolicyName::Local(folder) => {
            let policy = LocalPolicy::load(folder, limits)?;
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            Ok(Loaded::Local(Box::new(policy), Some(folder)))
        }
        PolicyName::Gguf(file) => {
            let policy = QuantizedPolicy::load(file, limits)?;
            Ok(Loaded::Quantized(Box::new(policy), file.canonicalize().unwrap_or_else(|_| file.clone())))
        }
        PolicyName::Served(address) => {
            let own = (server.server == Some(ServerName::Text)).then_some("mini");
            let which = tokenizer.or(own);
            let (served, facts) = served::connect(address, server, which, which.map(chat).transpose()?)?;
            Ok(Loaded::Served(served, facts))
        }
    }
}

/// Loads a tokenizer: `mini`, `bytes`, a model folder, or a `tokenizer.json`.
fn chat(which: &str) -> Result<Chat, Failure> {
    let path = Path::new(which);
    match which {
        "mini" => Ok(rao_policy::mini_chat()?),
        "bytes" => Ok(Chat::bytes()?),
        _ if path.is_dir() => Ok(Chat::load(path)?),
        _ if path.extension().is_some_and(|end| end == "gguf") => Ok(Chat::from_gguf(path)?),
        _ => {
            let bytes = std::fs::read(path).map_err(|error| {
                let failure = Failure::usage(format!("tokenizer `{which}` cannot be read: {error}"));
                failure.help("give mini, bytes, a model folder, or the path of a tokenizer.json")
            })?;
            Ok(Chat::from_bytes(&bytes)?)
        }
    }
}

/// Where the weights that recorded a run are found.
fn recorded_name(started: &RunStarted, host: &HostFacts) -> Result<PolicyName, Failure> {
    match (started.policy.kind.as_str(), started.policy.name.as_str()) {
        ("scripted", "oracle") => Ok(PolicyName::Oracle),
        ("scripted", "noisy") => Ok(PolicyName::Noisy),
        ("local", name) => match open::fact(host, MODEL_FACT) {
            Some(folder) => Ok(PolicyName::Local(PathBuf::from(folder))),
            None if name == "mini" => Ok(PolicyName::Mini),
            None => {
                let message = format!("the run was recorded with the model `{name}`, and its folder is not known");
                Err(Failure::new(Code::Unavailable, message).help("name it with `--policy local:DIR`"))
            }
        },
        ("gguf", name) => match open::fact(host, MODEL_FACT) {
            Some(file) => Ok(PolicyName::Gguf(PathBuf::from(file))),
            None => {
                let message =
                    format!("the run was recorded with the quantized model `{name}`, and its file is not known");
                Err(Failure::new(Code::Unavailable, message).help("name it with `--policy gguf:FILE`"))
            }
        },
        (kind, _) if served::is_served(kind) => served::recorded(started, host),
        (kind, name) => {
            let message =
                format!("the run was recorded with policy `{name}` of kind `{kind}`, which this program does not know");
            Err(Failure::new(Code::Unavailable, message).help("use the version of rao-log that recorded it"))
        }
    }
}

/// The name of the run's tokenizer, if it is one of the program's that scripted policies do not take anyway.
fn own_tokenizer(started: &RunStarted) -> Option<&'static str> {
    Chat::bytes().is_ok_and(|chat| Digest(chat.digest()) == started.policy.tokenizer).then_some("bytes")
}

/// Loads the policy that recorded a run, or the one that the user names in its place, and checks that it is the one.
pub(crate) fn recorded(started: &RunStarted, host: &HostFacts, args: &PolicyArgs) -> Result<Loaded, Failure> {
    let name = match &args.policy {
        Some(name) => name.clone(),
        None => recorded_name(started, host)?,
    };
    let loaded = match (&name, &args.adapter) {
        (name, Some(adapter)) => load_adapted(name, adapter, args.limits())?,
        (PolicyName::Served(_), None) => {
            let (server, tokenizer) = served::recorded_args(host, &args.server);
            load_named(&name, args.tokenizer.as_deref().or(tokenizer.as_deref()), &server, args.limits())?
        }
        (name @ (PolicyName::Oracle | PolicyName::Noisy), None) if args.tokenizer.is_none() => {
            load_named(name, own_tokenizer(started), &args.server, args.limits())?
        }
        (name, None) => load_named(name, args.tokenizer.as_deref(), &args.server, args.limits())?,
    };
    let tokenizer = Digest(loaded.chat().digest());
    if tokenizer != started.policy.tokenizer {
        let message = format!(
            "the run was recorded with tokenizer {}, but this policy has {}: its token ids mean something else",
            started.policy.tokenizer.short(),
            tokenizer.short()
        );
        return Err(Failure::usage(message)
            .help("name the right one with `--tokenizer` (scripted and served policies) or `--policy local:DIR`"));
    }
    if let (Loaded::Served(now, _), None) = (&loaded, &args.policy)
        && now.name() != started.policy.name
    {
        let message = format!(
            "the run was recorded with the model `{}`, but {} now serves `{}`",
            started.policy.name,
            now.address(),
            now.name()
        );
        let failure = Failure::new(Code::Unavailable, message);
        return Err(failure.help("name a server that still has it with `--policy openai:URL`"));
    }
    if let (Loaded::Local(policy, _), None) = (&loaded, &args.policy) {
        let weights = Some(Digest(policy.identity().weights));
        if weights != started.policy.weights {
            let digest = |weights: Option<Digest>| weights.map_or("none".to_owned(), |digest| digest.short());
            let message = format!(
                "the run was recorded with weights {} of `{}`, but what is there now has weights {}",
                digest(started.policy.weights),
                started.policy.name,
                digest(weights)
            );
            let failure = Failure::new(Code::Unavailable, message);
            return Err(
                failure.help("name a folder that still has them with `--policy local:DIR`, or use `--check tools`")
            );
        }
    }
    Ok(loaded)
}

/// The policy that samples a run's tokens again, to be compared with those of the log.
pub(crate) fn to_sample_again(started: &RunStarted, host: &HostFacts, args: &PolicyArgs) -> Result<Loaded, Failure> {
    let by_server = match &args.policy {
        Some(name) => matches!(name, PolicyName::Served(_)),
        None => served::is_served(&started.policy.kind),
    };
    if by_server { Err(served::refuse_tokens(started)) } else { recorded(started, host, args) }
}

/// The model that a training starts from when none is named: the one that recorded the run, or mini for scripted runs.
pub(crate) fn recorded_model(started: &RunStarted, host: &HostFacts) -> Result<PolicyName, Failure> {
    match recorded_name(started, host)? {
        PolicyName::Oracle | PolicyName::Noisy => Ok(PolicyName::Mini),
        model => Ok(model),
    }
}
