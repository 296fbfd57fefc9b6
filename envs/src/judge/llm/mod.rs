//! A judge that is a model behind a chat endpoint.
//!
//! It is asked for one JSON object, and what it answers is read leniently where the meaning is beyond doubt: with or without
//! a fence or prose around it, `"true"` for `true`. Anything else, and a server that fails for good, is a verdict of
//! score 0 that says so in its evidence and is warned of: all-zero scores would otherwise look like a bad policy.

mod http;
mod prompt;
mod reply;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use serde_json::{Value as Json, json};

pub use http::{LlmError, Secret};

use super::panel::source;
use super::{Judge, JudgeError, JudgeIdentity, Question, Remote, Reply, Request, rubrics};
use crate::Judgement;
use http::{Endpoint, Fault};

/// Bytes of a reply that the evidence keeps.
const KEPT: usize = 8192;

/// Told of every verdict that could not be had, in a sentence.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Which model judges, and how it is asked.
#[derive(Clone)]
pub struct LlmSettings {
    /// The server, as `http://HOST:PORT`; `/v1` may follow.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// The temperature it samples at.
    pub temperature: f64,
    /// The most tokens of a reply; `None` leaves it to the server, as some models ask for.
    pub max_tokens: Option<u32>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How often a question is asked again after a failure or a reply that cannot be read.
    pub retries: usize,
    /// Questions at a time.
    pub concurrency: usize,
    /// The key, if the server wants one.
    pub key: Option<Secret>,
    /// Who is warned.
    pub warn: Warn,
}

impl LlmSettings {
    /// The settings behind `llm:`: `URL,model=NAME` and any of `temperature=`, `max-tokens=`, `timeout=` (seconds),
    /// `retries=` and `concurrency=`, separated by commas.
    ///
    /// # Errors
    /// Names the part that cannot be read.
    pub fn parse(text: &str, key: Option<Secret>, warn: Warn) -> Result<Self, LlmError> {
        let mut parts = text.split(',').map(str::trim);
        let url = parts.next().unwrap_or_default().to_owned();
        let mut settings = LlmSettings {
            url,
            model: String::new(),
            temperature: 1.0,
            max_tokens: None,
            timeout: Duration::from_secs(180),
            retries: 3,
            concurrency: 8,
            key,
            warn,
        };
        for part in parts.filter(|part| !part.is_empty()) {
            settings.set(part)?;
        }
        if settings.model.is_empty() {
            return Err(LlmError::Setting { part: text.to_owned(), reason: "it names no model: add ,model=NAME" });
        }
        Ok(settings)
    }

    fn set(&mut self, part: &str) -> Result<(), LlmError> {
        let fault = |reason| LlmError::Setting { part: part.to_owned(), reason };
        let (name, value) = part.split_once('=').ok_or_else(|| fault("write it as name=value"))?;
        let whole = |low: u32, high: u32, reason| match value.parse::<u32>() {
            Ok(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(fault(reason)),
        };
        match name {
            "model" => value.clone_into(&mut self.model),
            "temperature" => match value.parse::<f64>() {
                Ok(number) if (0.0..=2.0).contains(&number) => self.temperature = number,
                _ => return Err(fault("a temperature lies between 0 and 2")),
            },
            "max-tokens" => self.max_tokens = Some(whole(1, 1 << 20, "it takes a number of at least 1")?),
            "timeout" => self.timeout = Duration::from_secs(whole(1, 86_400, "it takes seconds, 1 to 86400")?.into()),
            "retries" => self.retries = whole(0, 100, "it takes a number up to 100")? as usize,
            "concurrency" => self.concurrency = whole(1, 1024, "it takes a number from 1 to 1024")? as usize,
            _ => {
                // Its value may be a key that somebody put in the wrong place.
                let reason = "known are model, temperature, max-tokens, timeout, retries and concurrency";
                return Err(LlmError::Setting { part: format!("{name}=.."), reason });
            }
        }
        Ok(())
    }
}

/// A model behind a chat endpoint.
pub struct Llm {
    link: Arc<Link>,
    handle: tokio::runtime::Handle,
    /// There until the judge is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// What a question needs on its way.
struct Link {
    endpoint: Endpoint,
    settings: LlmSettings,
    slots: tokio::sync::Semaphore,
}

impl fmt::Debug for Llm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Llm").field("identity", &self.identity()).finish_non_exhaustive()
    }
}

impl Llm {
    /// A judge that will ask that server. Nothing is asked yet.
    ///
    /// # Errors
    /// When the address cannot be used or no HTTP client can be made.
    pub fn new(settings: LlmSettings) -> Result<Self, LlmError> {
        let endpoint = Endpoint::new(&settings.url, settings.key.clone(), settings.timeout)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("judge")
            .enable_all()
            .build()
            .map_err(|error| LlmError::Client { reason: error.to_string() })?;
        let slots = tokio::sync::Semaphore::new(settings.concurrency.max(1));
        let handle = runtime.handle().clone();
        Ok(Llm { link: Arc::new(Link { endpoint, settings, slots }), handle, runtime: Some(runtime) })
    }
}

impl Drop for Llm {
    fn drop(&mut self) {
        // Dropping a runtime waits for whatever it looks up, which a program that is stopped must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Link {
    fn identity(&self) -> JudgeIdentity {
        let mut settings = BTreeMap::from([("temperature".to_owned(), json!(self.settings.temperature))]);
        if let Some(most) = self.settings.max_tokens {
            settings.insert("max_tokens".to_owned(), most.into());
        }
        JudgeIdentity {
            kind: "llm".to_owned(),
            model: Some(self.settings.model.clone()),
            settings,
            template: prompt::digest(),
        }
    }

    /// What the model is sent.
    fn request(&self, question: &Question, contract: prompt::Contract) -> Json {
        let rubric = rubrics::text(question.rubric).unwrap_or_default();
        let mut request = json!({
            "model": self.settings.model,
            "messages": prompt::messages(question, rubric, contract),
            "temperature": self.settings.temperature,
            "n": 1,
            "stream": false,
        });
        if let (Some(most), Some(fields)) = (self.settings.max_tokens, request.as_object_mut()) {
            fields.insert("max_tokens".into(), most.into());
        }
        request
    }

    /// The verdict, and how many times the model was asked.
    async fn ask(&self, question: &Question) -> Result<(reply::Verdict, usize), (Fault, usize)> {
        let contract = prompt::contract(question.rubric);
        let waits = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(250))
            .with_max_delay(Duration::from_secs(20))
            .with_max_times(self.settings.retries)
            .with_jitter()
            .with_jitter_seed(0);
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let attempt = || async {
            // The semaphore is never closed; a slot is held while the model is asked, not while a retry waits. Questions
            // that wait for theirs are not spelled out yet: many may wait.
            let _slot = self.slots.acquire().await;
            asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let text = self.endpoint.chat(&self.request(question, contract)).await?;
            reply::read(&text, contract).map_err(|reason| Fault::Unreadable { reason, text })
        };
        let outcome = attempt
            .retry(waits)
            .when(Fault::may_pass)
            .adjust(|fault, wait| wait.map(|wait| fault.asked_wait().map_or(wait, |asked| asked.max(wait))))
            .await;
        let count = asked.load(std::sync::atomic::Ordering::Relaxed);
        outcome.map(|verdict| (verdict, count)).map_err(|fault| (fault, count))
    }
}

impl Link {
    /// The verdict; one that could not be had is a score of 0, and is warned of.
    async fn verdict(&self, question: &Question) -> Judgement {
        let (score, evidence) = match self.ask(question).await {
            Ok((verdict, attempts)) => {
                let reply = kept(&verdict.reply);
                (verdict.score, json!({ "reason": verdict.reason, "reply": reply, "attempts": attempts }))
            }
            Err((fault, attempts)) => {
                let failure = fault.to_string();
                (self.settings.warn)(&format!(
                    "the judge {} gave no verdict after {attempts} attempts, so a node scores 0 without having been judged: {failure}",
                    self.settings.model
                ));
                let reply = fault.reply().map_or(Json::Null, |text| kept(text).into());
                (0.0, json!({ "failure": failure, "reply": reply, "attempts": attempts }))
            }
        };
        Judgement { score, source: source(&self.identity(), question), evidence }
    }
}

impl Judge for Llm {
    fn identity(&self) -> JudgeIdentity {
        self.link.identity()
    }

    fn judge(&self, question: &Question) -> Result<Judgement, JudgeError> {
        Ok(self.handle.block_on(self.link.verdict(question)))
    }

    fn remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }
}

impl Remote for Llm {
    fn ask(&self, question: &Question, reply: Reply) -> Request {
        let (link, question) = (Arc::clone(&self.link), question.clone());
        let task = self.handle.spawn(async move { reply.give(link.verdict(&question).await) });
        let abort = task.abort_handle();
        // The connection is closed with it, so the server stops as well.
        Request::new(move || abort.abort())
    }
}

/// The beginning of a text, whole characters.
fn kept(text: &str) -> String {
    let end = (0..=text.len().min(KEPT)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text.get(..end).unwrap_or_default().to_owned()
}
