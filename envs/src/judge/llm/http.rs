//! One question to a chat endpoint.

use std::fmt;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use serde_json::Value as Json;

/// The longest reply that is read.
const MAX_REPLY: usize = 16 << 20;
/// Characters of a server's message that are kept.
const SHOWN: usize = 400;
/// The longest that a server's `Retry-After` is heeded.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A key. It goes into one request header: its debug form hides it, and it is taken out of what a server says.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A key; an empty one is none.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Secret(text.to_owned()))
    }

    fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([key])")
    }
}

/// Why there is no such judge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// A part of its description that cannot be read.
    #[error("judge llm: `{part}`: {reason}")]
    Setting {
        /// The part.
        part: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An address that cannot be used.
    #[error("judge llm: {reason}; write it as llm:http://HOST:PORT,model=NAME")]
    Address {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No HTTP client.
    #[error("judge llm: the HTTP client cannot be made: {reason}; check the certificates that the system trusts")]
    Client {
        /// Why.
        reason: String,
    },
}

/// Why one attempt gave no verdict.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    #[error("no answer within {} s", after.as_secs_f64())]
    Timeout { after: Duration },
    #[error("no connection, or it broke off: {reason}")]
    Broken { reason: String },
    #[error("the server answered with status {status}: {message}")]
    Status { status: u16, message: String, wait: Option<Duration> },
    #[error("the server's answer is no chat completion: {reason}")]
    Shape { reason: String },
    #[error("the reply cannot be read: {reason}")]
    Unreadable { reason: String, text: String },
}

impl Fault {
    /// Whether asking again can help. A model that samples may write its next reply as it was asked to.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Fault::Timeout { .. } | Fault::Broken { .. } | Fault::Unreadable { .. } => true,
            Fault::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Fault::Shape { .. } => false,
        }
    }

    pub(super) fn asked_wait(&self) -> Option<Duration> {
        match self {
            Fault::Status { wait, .. } => wait.map(|wait| wait.min(MAX_WAIT)),
            _ => None,
        }
    }

    pub(super) fn reply(&self) -> Option<&str> {
        match self {
            Fault::Unreadable { text, .. } => Some(text),
            _ => None,
        }
    }
}

pub(super) struct Endpoint {
    client: reqwest::Client,
    url: String,
    key: Option<Secret>,
    timeout: Duration,
}

impl Endpoint {
    pub(super) fn new(address: &str, key: Option<Secret>, timeout: Duration) -> Result<Self, LlmError> {
        let fault = |reason| LlmError::Address { reason };
        let url = reqwest::Url::parse(address).map_err(|_| fault("its address is no URL"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(fault("its address begins with neither http:// nor https://"));
        }
        // The address stands in the log, as a part of the command.
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err(fault("its address has a user, a password or a query; a key is taken from RAO_LOG_API_KEY"));
        }
        if key.as_ref().is_some_and(|key| key.header().is_none()) {
            return Err(LlmError::Client { reason: "the key has characters that no header can hold".into() });
        }
        let whole = url.as_str().trim_end_matches('/');
        let root = whole.strip_suffix("/v1").unwrap_or(whole).trim_end_matches('/');
        // It fails only where a provider is installed already, and then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout.min(Duration::from_secs(20)));
        if url.scheme() == "http" {
            // Without TLS no certificate is needed, and a system without any is no reason to fail.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| LlmError::Client { reason: chain(&error) })?;
        Ok(Endpoint { client, url: format!("{root}/v1/chat/completions"), key, timeout })
    }

    /// What the model says.
    pub(super) async fn chat(&self, request: &Json) -> Result<String, Fault> {
        let after = self.timeout;
        let outcome = tokio::time::timeout(after, self.send(request)).await;
        outcome.unwrap_or(Err(Fault::Timeout { after }))
    }

    async fn send(&self, request: &Json) -> Result<String, Fault> {
        let broken = |error: reqwest::Error| Fault::Broken { reason: self.clean(&chain(&error)) };
        let post = self.client.post(&self.url).json(request);
        let post = match self.key.as_ref().and_then(Secret::header) {
            Some(value) => post.header(AUTHORIZATION, value),
            None => post,
        };
        let mut response = post.send().await.map_err(broken)?;
        let status = response.status().as_u16();
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = asked.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_REPLY {
                return Err(Fault::Shape { reason: "it is far too long".into() });
            }
        }
        if !(200..300).contains(&status) {
            let message = self.clean(&String::from_utf8_lossy(&body));
            return Err(Fault::Status { status, message, wait });
        }
        let shape = |reason: String| Fault::Shape { reason: self.clean(&reason) };
        let answer: Json = serde_json::from_slice(&body).map_err(|error| shape(format!("it is no JSON ({error})")))?;
        let text = answer.pointer("/choices/0/message/content").and_then(Json::as_str);
        text.map(str::to_owned).ok_or_else(|| shape("its message has no text".into()))
    }

    fn clean(&self, text: &str) -> String {
        let text: String = text.chars().take(4 * SHOWN).collect();
        let text = self.key.as_ref().map_or(text.clone(), |key| text.replace(&key.0, "[key]"));
        text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect()
    }
}

/// What caused an error: the client's own message alone says little, and names the address.
fn chain(error: &reqwest::Error) -> String {
    let mut all = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        all.push(error.to_string());
        cause = error.source();
    }
    if all.is_empty() { "no cause is known".to_owned() } else { all.join(": ") }
}
