//! Policies behind servers: `--policy openai:URL` and what goes with it.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rao_engine::{SERVED, SERVED_TEXT};
use rao_policy::Chat;
use rao_policy::served::{Address, Key, Kind, Served, ServedError, ServedSettings};
use rao_store::event::{HostFacts, RunStarted};

use super::args::PolicyName;
use super::exit::{Code, Failure};
use super::out::note;
use super::{open, recording};

/// The fact under which a run notes where its server was.
const SERVER_FACT: &str = "server";
/// The fact under which a run notes which kind of server it was.
const KIND_FACT: &str = "server kind";
/// The fact under which a run notes the model's whole name at the server.
const MODEL_FACT: &str = "server model";
/// The fact under which a run notes which tokenizer it was given.
const TOKENIZER_FACT: &str = "server tokenizer";

/// Variables that a key is taken from; the first that is set counts.
const KEYS: [&str; 2] = ["RAO_LOG_API_KEY", "OPENAI_API_KEY"];

/// Seconds that one attempt at a request may take.
const TIMEOUT: u32 = 600;
/// How often a request is repeated.
const RETRIES: u16 = 5;

/// Which program serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerName {
    /// vLLM, spoken to in tokens.
    Vllm,
    /// SGLang, spoken to in tokens.
    Sglang,
    /// llama.cpp's server, spoken to in tokens.
    Llamacpp,
    /// Any server with chat completions, spoken to in text: nothing can be trained on what it says.
    Text,
}

impl ServerName {
    fn kind(self) -> Kind {
        match self {
            ServerName::Vllm => Kind::Vllm,
            ServerName::Sglang => Kind::Sglang,
            ServerName::Llamacpp => Kind::LlamaCpp,
            ServerName::Text => Kind::Text,
        }
    }
}

/// How a served policy is spoken to. A key is taken from RAO_LOG_API_KEY or OPENAI_API_KEY.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServedArgs {
    /// What kind of server `openai:URL` is [default: as it says itself].
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Policy")]
    pub(crate) server: Option<ServerName>,
    /// The model's name at the server [default: the only one that it has].
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub(crate) server_model: Option<String>,
    /// Seconds that one attempt at a request may take [default: 600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400), help_heading = "Policy")]
    pub(crate) server_timeout: Option<u32>,
    /// How often a request is repeated after a failure that may pass [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=100), help_heading = "Policy")]
    pub(crate) server_retries: Option<u16>,
    /// Requests at a time [default: as many as the server says, or 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096), help_heading = "Policy")]
    pub(crate) server_concurrency: Option<u16>,
}

/// Reads the address behind `openai:`.
pub(crate) fn address(text: &str) -> Result<PolicyName, String> {
    Address::parse(text).map(PolicyName::Served).map_err(|error| error.to_string())
}

/// The key of a server, if the environment has one.
pub(crate) fn key_text() -> Option<String> {
    KEYS.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.trim().is_empty()))
}

/// Connects to a server, and tells what was found there.
pub(crate) fn connect(
    address: &Address,
    args: &ServedArgs,
    tokenizer: Option<&str>,
    chat: Option<Chat>,
) -> Result<(Box<Served>, Facts), Failure> {
    let is_text = args.server == Some(ServerName::Text);
    let Some(chat) = chat else {
        let failure = Failure::usage("a served policy needs the tokenizer of the model that is served");
        return Err(failure.help(
            "give its folder, tokenizer.json or GGUF file with --tokenizer; or --server text, which needs none",
        ));
    };
    let key = key_text().and_then(|text| Key::new(&text));
    if key.is_some() && is_open(address.as_str()) {
        note(format_args!("note: the key goes to {} without encryption", address.as_str()));
    }
    let settings = ServedSettings {
        address: address.clone(),
        model: args.server_model.clone(),
        kind: args.server.map(ServerName::kind),
        key,
        concurrency: args.server_concurrency.map(usize::from),
        timeout: Duration::from_secs(args.server_timeout.unwrap_or(TIMEOUT).into()),
        retries: args.server_retries.unwrap_or(RETRIES).into(),
    };
    let served = Served::connect(&settings, chat, Arc::new(recording::stopped))?;
    if is_text {
        note(
            "note: text mode: what this server samples has no token ids and no log-probabilities, and is not trained on",
        );
    } else if !served.is_tokenizer_checked() {
        note("note: the server cannot show its tokenizer; that it is the one given with --tokenizer was not checked");
    }
    let facts = Facts {
        address: address.as_str().to_owned(),
        kind: served.kind().name(),
        model: args.server_model.clone(),
        tokenizer: tokenizer.map(whole_path),
    };
    Ok((Box::new(served), facts))
}

/// A path as it is found from anywhere, a name as it is.
fn whole_path(which: &str) -> String {
    match std::path::Path::new(which).canonicalize() {
        Ok(path) if which != "mini" && which != "bytes" => path.display().to_string(),
        _ => which.to_owned(),
    }
}

/// Whether what goes there can be read on the way.
fn is_open(address: &str) -> bool {
    let Some(rest) = address.strip_prefix("http://") else { return false };
    !["127.0.0.1", "localhost", "[::1]"].iter().any(|own| rest.starts_with(own))
}

/// What a run notes of its server, so that it can be taken up again. It decides nothing of the run's content.
pub(crate) struct Facts {
    address: String,
    kind: &'static str,
    model: Option<String>,
    tokenizer: Option<String>,
}

impl Facts {
    pub(crate) fn add_to(&self, host: &mut HostFacts) {
        let all = [
            (SERVER_FACT, Some(self.address.clone())),
            (KIND_FACT, Some(self.kind.to_owned())),
            (MODEL_FACT, self.model.clone()),
            (TOKENIZER_FACT, self.tokenizer.clone()),
        ];
        for (name, value) in all {
            host.facts.retain(|(known, _)| known != name);
            host.facts.extend(value.map(|value| (name.to_owned(), value)));
        }
    }
}

/// Whether a policy was one behind a server.
pub(crate) fn is_served(kind: &str) -> bool {
    kind == SERVED || kind == SERVED_TEXT
}

/// The server that recorded a run, as far as it is noted.
pub(crate) fn recorded(started: &RunStarted, host: &HostFacts) -> Result<PolicyName, Failure> {
    let noted = open::fact(host, SERVER_FACT).and_then(|text| Address::parse(text).ok());
    noted.map(PolicyName::Served).ok_or_else(|| {
        let message = format!(
            "the run was recorded with the served model `{}`, and its server is not known",
            started.policy.name
        );
        Failure::new(Code::Unavailable, message).help("name it with `--policy openai:URL`")
    })
}

/// The flags of a run's server where the user gives none, and the tokenizer that it was given.
pub(crate) fn recorded_args(host: &HostFacts, given: &ServedArgs) -> (ServedArgs, Option<String>) {
    let mut args = given.clone();
    args.server = args.server.or_else(|| ServerName::from_str(open::fact(host, KIND_FACT)?, true).ok());
    args.server_model = args.server_model.or_else(|| open::fact(host, MODEL_FACT).map(str::to_owned));
    (args, open::fact(host, TOKENIZER_FACT).map(str::to_owned))
}

/// A server's tokens are never the same to the bit, so sampling them again proves nothing.
pub(crate) fn refuse_tokens(started: &RunStarted) -> Failure {
    let message = format!(
        "the run was recorded with the served model `{}`: a server does not give the same tokens and log-probabilities again, so `--check tokens` cannot be made",
        started.policy.name
    );
    Failure::usage(message)
        .help("use `--check tools`: it runs everything again but the sampling, with the tokens of the log")
}

impl From<ServedError> for Failure {
    fn from(error: ServedError) -> Self {
        let code = match error {
            ServedError::Cancelled => Code::Other,
            _ if error.is_usage() => Code::Usage,
            _ => Code::Unavailable,
        };
        Failure::new(code, error.to_string())
    }
}
