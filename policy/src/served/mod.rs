//! Policies behind HTTP: tokens in, tokens and log-probabilities out, where the server can.
//!
//! Three kinds of server are spoken to in tokens, each in its own way ([`Kind`]): the exact context goes out as ids, and
//! ids with one log-probability each come back. Any other server with a chat endpoint is spoken to in text; what comes back
//! then has no log-probabilities and is marked so.
//!
//! A request's seed is derived from its [`SampleKey`], so a retry asks for the very same thing. How far a
//! server heeds seeds is its own affair: nothing here promises the same tokens twice.

mod check;
mod error;
mod http;
mod key;
mod llamacpp;
mod messages;
mod sglang;
mod text;
mod vllm;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

pub use error::ServedError;
pub use http::Address;
pub use key::Key;

use crate::{Chat, SampleKey};
use http::Http;

/// Which program serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM: `/v1/completions` with prompt ids.
    Vllm,
    /// SGLang: `/generate` with input ids.
    Sglang,
    /// llama.cpp's server: `/completion` with prompt ids, streamed.
    LlamaCpp,
    /// Anything with `/v1/chat/completions`: text in, text out, no log-probabilities.
    Text,
}

impl Kind {
    /// The name on the command line and in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Vllm => "vllm",
            Kind::Sglang => "sglang",
            Kind::LlamaCpp => "llamacpp",
            Kind::Text => "text",
        }
    }

    /// Whether tokens go out and come back.
    #[must_use]
    pub fn has_tokens(self) -> bool {
        self != Kind::Text
    }
}

/// What decides how a server is spoken to.
#[derive(Clone, Debug)]
pub struct ServedSettings {
    /// Where it is.
    pub address: Address,
    /// The model's name at the server; `None` takes the only one that it has.
    pub model: Option<String>,
    /// Which program it is; `None` asks it.
    pub kind: Option<Kind>,
    /// The key, if it wants one.
    pub key: Option<Key>,
    /// Requests at a time; `None` takes what the server says of itself, or 16.
    pub concurrency: Option<usize>,
    /// How long one attempt at a request may take.
    pub timeout: Duration,
    /// How often a request is repeated after a failure that may pass.
    pub retries: usize,
}

/// Requests at a time where neither flag nor server says.
const CONCURRENCY: usize = 16;

/// One completion to ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The exact context.
    pub context: Vec<u32>,
    /// 0 takes the most probable token; 1 samples the model's own distribution.
    pub temperature: f32,
    /// Only the most probable tokens that together have this probability can be drawn; 1 leaves none out.
    pub top_p: f32,
    /// The most tokens a completion may have.
    pub max_tokens: u32,
    /// The context window in tokens: context and completion together never exceed it.
    pub window: u32,
    /// Where the request's seed comes from.
    pub key: SampleKey,
}

impl Job {
    /// Tokens that the completion may have.
    fn room(&self) -> usize {
        (self.window as usize).saturating_sub(self.context.len()).min(self.max_tokens as usize)
    }

    /// How a completion of `room` tokens ends.
    fn limit(&self) -> End {
        if self.room() == self.max_tokens as usize { End::MaxTokens } else { End::Window }
    }

    /// The seed, of at most 53 bits: what every JSON reader takes exactly.
    fn seed(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.key.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 11
    }

    /// Whether tokens are drawn from the model's own distribution, so that a server has no choice which one to report.
    fn is_plain(&self) -> bool {
        self.temperature == 1.0 && self.top_p >= 1.0
    }
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its text ended with `</python>`.
    CellEnd,
    /// The model gave its end-of-turn token, which is part of the tokens.
    EndOfTurn,
    /// It has as many tokens as it may have.
    MaxTokens,
    /// The window is full.
    Window,
    /// The server ended it by itself, such as at another end token.
    Server,
}

/// What a completion's log-probabilities are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// There are none.
    Absent,
    /// The model's own distribution at temperature 1 over the whole vocabulary.
    Own,
    /// One that the server does not name.
    Unknown,
}

/// What a server gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// The text.
    pub text: String,
    /// The ids: the server's own, or in text mode those that the tokenizer here gives the text.
    pub tokens: Vec<u32>,
    /// One for each id, or none.
    pub logprobs: Vec<f32>,
    /// What they are of.
    pub score: Score,
    /// Why it ended.
    pub end: End,
}

/// Says whether the work is to stop; asked a few times a second.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// A model behind a server.
pub struct Served {
    link: Arc<Link>,
    runtime: tokio::runtime::Runtime,
}

struct Link {
    http: Http,
    kind: Kind,
    model: String,
    chat: Chat,
    window: Option<u32>,
    slots: tokio::sync::Semaphore,
    concurrency: usize,
    checked: bool,
    interrupt: Interrupt,
}

/// A request in flight; dropping it does not stop it.
pub struct Pending(tokio::task::AbortHandle);

impl Pending {
    /// Gives the request up. Its connection is closed, so the server stops as well.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether it has been answered or given up.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }
}

impl Served {
    /// Asks the server who it is, which models it has and, where it can say, whether `chat` is its tokenizer.
    ///
    /// # Errors
    /// When it is not there, is of no known kind, does not have the model, or has another tokenizer.
    pub fn connect(settings: &ServedSettings, chat: Chat, interrupt: Interrupt) -> Result<Self, ServedError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("served")
            .enable_all()
            .build()
            .map_err(|error| ServedError::Client { reason: error.to_string() })?;
        let http = Http::new(settings.address.clone(), settings.key.clone(), settings.timeout, settings.retries)?;
        let look = look(http, settings, chat, Arc::clone(&interrupt));
        let link = runtime.block_on(unless(&interrupt, look))?;
        Ok(Served { link: Arc::new(link), runtime })
    }

    /// The model's name as the log has it: never a path of the server's machine.
    #[must_use]
    pub fn name(&self) -> &str {
        base_name(&self.link.model)
    }

    /// Which program serves.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.link.kind
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> &str {
        self.link.http.address()
    }

    /// The tokenizer.
    #[must_use]
    pub fn chat(&self) -> &Chat {
        &self.link.chat
    }

    /// The longest context that the server takes, if it says.
    #[must_use]
    pub fn window(&self) -> Option<u32> {
        self.link.window
    }

    /// Requests at a time.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.link.concurrency
    }

    /// Whether the server has shown that it has the same tokenizer.
    #[must_use]
    pub fn is_tokenizer_checked(&self) -> bool {
        self.link.checked
    }

    /// Asks for one completion and returns at once; `done` is called from another thread when it is there.
    pub fn start(&self, job: Job, done: impl FnOnce(Result<Given, ServedError>) + Send + 'static) -> Pending {
        let link = Arc::clone(&self.link);
        let task = self.runtime.spawn(async move { done(link.complete(&job).await) });
        Pending(task.abort_handle())
    }

    /// Asks for all completions, as many at a time as the server takes; gives them in the order of the jobs.
    ///
    /// # Errors
    /// At the first that fails for good, or when the work is to stop; the others are given up then.
    pub fn complete(&self, jobs: Vec<Job>) -> Result<Vec<Given>, ServedError> {
        let mut given: Vec<Option<Given>> = vec![None; jobs.len()];
        let (send, receive) = channel();
        let pending: Vec<Pending> = jobs
            .into_iter()
            .enumerate()
            .map(|(at, job)| {
                let send = send.clone();
                // It can only fail when this function has returned already.
                self.start(job, move |outcome| drop(send.send((at, outcome))))
            })
            .collect();
        drop(send);
        let outcome = (0..given.len()).try_for_each(|_| {
            loop {
                match receive.recv_timeout(Duration::from_millis(100)) {
                    Ok((at, outcome)) => {
                        let outcome = outcome?;
                        if let Some(place) = given.get_mut(at) {
                            *place = Some(outcome);
                        }
                        return Ok(());
                    }
                    Err(RecvTimeoutError::Timeout) if (self.link.interrupt)() => return Err(ServedError::Cancelled),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Err(ServedError::Cancelled),
                }
            }
        });
        if outcome.is_err() {
            pending.iter().for_each(Pending::abort);
        }
        outcome.map(|()| given.into_iter().flatten().collect())
    }
}

impl Link {
    async fn complete(&self, job: &Job) -> Result<Given, ServedError> {
        if job.room() == 0 {
            let (text, score) = (String::new(), if self.kind.has_tokens() { Score::Own } else { Score::Absent });
            return Ok(Given { text, tokens: Vec::new(), logprobs: Vec::new(), score, end: job.limit() });
        }
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.map_err(|_| ServedError::Cancelled)?;
        self.http
            .retrying(job.seed(), || async {
                match self.kind {
                    Kind::Vllm => vllm::complete(self, job).await,
                    Kind::Sglang => sglang::complete(self, job).await,
                    Kind::LlamaCpp => llamacpp::complete(self, job).await,
                    Kind::Text => text::complete(self, job).await,
                }
            })
            .await
    }
}

/// Runs `work` unless the interrupt comes first.
async fn unless<T>(
    interrupt: &Interrupt,
    work: impl Future<Output = Result<T, ServedError>>,
) -> Result<T, ServedError> {
    let stop = async {
        while !interrupt() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        outcome = work => outcome,
        () = stop => Err(ServedError::Cancelled),
    }
}

const MODELS: &str = "/v1/models";

/// Looks at a server: kind, model, window, tokenizer.
async fn look(http: Http, settings: &ServedSettings, chat: Chat, interrupt: Interrupt) -> Result<Link, ServedError> {
    let listed = http.retrying(0, || http.get(MODELS)).await?;
    let entries = listed.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
    if entries.is_empty() {
        return Err(http.reply(MODELS, "it lists no model"));
    }
    let kind = match settings.kind {
        Some(kind) => kind,
        None => kind_of(&http, &entries)?,
    };
    let entry = choose(&http, &entries, settings.model.as_deref())?;
    let model = id_of(entry).unwrap_or_default().to_owned();
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let mut window = number(entry.get("max_model_len"));
    let mut slots = None;
    if kind == Kind::LlamaCpp {
        let props = http.retrying(1, || http.get(llamacpp::PROPS)).await?;
        window = number(props.pointer("/default_generation_settings/n_ctx"));
        slots = number(props.get("total_slots")).map(|slots| slots as usize);
    }
    let concurrency = settings.concurrency.or(slots).unwrap_or(CONCURRENCY).max(1);
    let slots = tokio::sync::Semaphore::new(concurrency);
    let mut link = Link { http, kind, model, chat, window, slots, concurrency, checked: false, interrupt };
    link.checked = link.check_tokenizer().await?;
    Ok(link)
}

/// The kind that the models' owner gives away.
fn kind_of(http: &Http, entries: &[Value]) -> Result<Kind, ServedError> {
    let owner = entries.iter().find_map(|entry| entry.get("owned_by").and_then(Value::as_str));
    match owner {
        Some("vllm") => Ok(Kind::Vllm),
        Some("sglang") => Ok(Kind::Sglang),
        Some("llamacpp") => Ok(Kind::LlamaCpp),
        _ => {
            let owner = owner.map_or(String::new(), |owner| {
                format!(" (its models are owned by `{}`)", owner.chars().take(40).collect::<String>())
            });
            Err(ServedError::Kind { server: http.address().to_owned(), owner })
        }
    }
}

fn id_of(entry: &Value) -> Option<&str> {
    entry.get("id").and_then(Value::as_str)
}

fn base_name(model: &str) -> &str {
    model.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or(model)
}

/// The entry of the model asked for, by its name or by the last part of it.
fn choose<'a>(http: &Http, entries: &'a [Value], wanted: Option<&str>) -> Result<&'a Value, ServedError> {
    let fault = |reason: String| {
        let names: Vec<&str> = entries.iter().filter_map(id_of).take(8).collect();
        ServedError::Model { server: http.address().to_owned(), reason, available: names.join(", ") }
    };
    match (wanted, entries) {
        (None, [only]) => Ok(only),
        (None, _) => Err(fault("has several models; name one with --server-model".to_owned())),
        (Some(name), _) => {
            let exact = entries.iter().find(|entry| id_of(entry) == Some(name));
            let base = || entries.iter().find(|entry| id_of(entry).is_some_and(|id| base_name(id) == name));
            exact.or_else(base).ok_or_else(|| fault(format!("has no model `{name}`")))
        }
    }
}

/// Texts that tokenizers differ on: digits, spaces, line ends, letters beyond ASCII, control tokens between them.
const PROBE: (&str, &str) =
    ("You are a probe.\n\n  It's 2 naïve things — 🤖!", "Craft 17x o6_i2_16\tnow:\n<python>x = [1, 20, 300]</python>");

impl Link {
    /// Whether the server writes a test text with the same ids; `false` if it cannot be asked.
    async fn check_tokenizer(&self) -> Result<bool, ServedError> {
        let failed =
            |error: crate::PolicyError| ServedError::Setting { what: "--tokenizer", reason: error.to_string() };
        let ours = self.chat.open(PROBE.0, PROBE.1).map_err(failed)?;
        let text = self.chat.decode(&ours);
        let (path, body) = match self.kind {
            Kind::Text => return Ok(false),
            Kind::LlamaCpp => llamacpp::tokenize(&text),
            Kind::Vllm | Kind::Sglang => vllm::tokenize(&self.model, &text),
        };
        let answer = self.http.retrying(2, || self.http.post(path, &body)).await;
        let answer = match answer {
            Err(ServedError::Status { status: 404 | 405, .. }) => return Ok(false),
            answer => answer?,
        };
        let theirs =
            ids(answer.get("tokens")).ok_or_else(|| self.http.reply(path, "it has no list of ids `tokens`"))?;
        check::tokenizer(&ours, &theirs).map(|()| true)
    }
}

/// A JSON list of ids.
fn ids(value: Option<&Value>) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value?.as_array()?.iter().map(id).collect()
}

/// A JSON number as a log-probability; whether it is one is checked later.
fn logprob(value: &Value) -> Option<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "log-probabilities are kept in 32 bits")]
    value.as_f64().map(|value| value as f32)
}
