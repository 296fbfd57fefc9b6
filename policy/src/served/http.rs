//! Requests to a server: addresses, time limits, retries, and answers that come in pieces.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use reqwest::header::{AUTHORIZATION, RETRY_AFTER};
use serde_json::Value;

use super::error::ServedError;
use super::key::Key;

/// The longest answer that is read. The list of a whole vocabulary's log-probabilities stays far below.
const MAX_REPLY: usize = 256 << 20;
/// Characters of a server's message that are shown.
const SHOWN: usize = 400;
/// The longest that a server's `Retry-After` is heeded.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A server's address without a path behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Reads `http://HOST:PORT` or `https://..`; a path is kept, a trailing `/v1` is not part of it.
    ///
    /// # Errors
    /// When it is no such address. One with a user, a password or a query is refused, because addresses stand in the log.
    pub fn parse(text: &str) -> Result<Self, ServedError> {
        let fault = |reason| {
            // What stands before an `@` may be a password.
            let given = text.rsplit('@').next().unwrap_or_default().split('?').next().unwrap_or_default();
            Err(ServedError::Address { given: given.to_owned(), reason })
        };
        let Ok(url) = reqwest::Url::parse(text) else { return fault("it is no URL") };
        if !matches!(url.scheme(), "http" | "https") {
            return fault("it begins with neither http:// nor https://");
        }
        if url.host_str().is_none_or(str::is_empty) {
            return fault("it names no host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return fault("a user or password has no place in it; a key is taken from RAO_LOG_API_KEY");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return fault("it has a query or fragment");
        }
        let whole = url.as_str().trim_end_matches('/');
        Ok(Address(whole.strip_suffix("/v1").unwrap_or(whole).trim_end_matches('/').to_owned()))
    }

    /// The address as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_plain(&self) -> bool {
        self.0.starts_with("http://")
    }
}

/// Whether more of a stream is wanted.
pub(super) enum More {
    Yes,
    No,
}

/// One server.
pub(super) struct Http {
    client: reqwest::Client,
    address: Address,
    key: Option<Key>,
    timeout: Duration,
    retries: usize,
}

impl Http {
    pub(super) fn new(
        address: Address,
        key: Option<Key>,
        timeout: Duration,
        retries: usize,
    ) -> Result<Self, ServedError> {
        // It fails only where a provider is installed already, and then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout.min(Duration::from_secs(20)))
            .tcp_nodelay(true);
        if address.is_plain() {
            // Without TLS no certificate is needed, and a system without any is no reason to fail.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| ServedError::Client { reason: chain(&error) })?;
        if key.as_ref().is_some_and(|key| key.header().is_none()) {
            let reason = "it has characters that no HTTP header can hold".to_owned();
            return Err(ServedError::Setting { what: "the key", reason });
        }
        Ok(Http { client, address, key, timeout, retries })
    }

    pub(super) fn address(&self) -> &str {
        self.address.as_str()
    }

    pub(super) fn reply(&self, path: &'static str, reason: impl Into<String>) -> ServedError {
        ServedError::Reply { server: self.server(), path, reason: self.clean(&reason.into()) }
    }

    fn server(&self) -> String {
        self.address.0.clone()
    }

    fn clean(&self, text: &str) -> String {
        let text: String = text.chars().take(4 * SHOWN).collect();
        let text = self.key.as_ref().map_or(text.clone(), |key| key.redact(&text));
        let mut short: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect();
        if short.chars().count() == SHOWN {
            short.push('…');
        }
        short
    }

    /// Runs `attempt` until it succeeds, fails for good, or was tried often enough. `seed` spreads the waits of requests
    /// that failed together.
    pub(super) async fn retrying<T, F, Fut>(&self, seed: u64, attempt: F) -> Result<T, ServedError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, ServedError>>,
    {
        let waits = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(250))
            .with_max_delay(Duration::from_secs(20))
            .with_max_times(self.retries)
            .with_jitter()
            .with_jitter_seed(seed);
        attempt
            .retry(waits)
            .when(ServedError::is_transient)
            .adjust(|error, wait| {
                wait.map(|wait| error.retry_after().map_or(wait, |asked| asked.min(MAX_WAIT).max(wait)))
            })
            .notify(|error, wait| tracing::warn!(%error, ?wait, "asking again"))
            .await
    }

    /// One GET; the answer as JSON.
    pub(super) async fn get(&self, path: &'static str) -> Result<Value, ServedError> {
        self.limited(path, async {
            let response = self.send(path, self.client.get(self.url(path))).await?;
            self.body(path, response).await
        })
        .await
    }

    /// One POST; the answer as JSON.
    pub(super) async fn post(&self, path: &'static str, body: &Value) -> Result<Value, ServedError> {
        self.limited(path, async {
            let response = self.send(path, self.client.post(self.url(path)).json(body)).await?;
            self.body(path, response).await
        })
        .await
    }

    /// One POST whose answer comes as server-sent events, handed to `event` one by one until it wants no more. A stream
    /// that ends before is cut.
    pub(super) async fn stream(
        &self,
        path: &'static str,
        body: &Value,
        mut event: impl FnMut(Value) -> Result<More, ServedError>,
    ) -> Result<(), ServedError> {
        self.limited(path, async {
            let mut response = self.send(path, self.client.post(self.url(path)).json(body)).await?;
            let mut held: Vec<u8> = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|error| self.cut(path, &error))? {
                held.extend_from_slice(&chunk);
                if held.len() > MAX_REPLY {
                    return Err(self.reply(path, "an event of the stream is far too long"));
                }
                while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = held.drain(..=end).collect();
                    if let Some(value) = self.line(path, &line)?
                        && let More::No = event(value)?
                    {
                        return Ok(());
                    }
                }
            }
            let reason = "the stream ended before its last event".to_owned();
            Err(ServedError::Cut { server: self.server(), path, reason })
        })
        .await
    }

    /// The JSON on a line of a stream, if it has any.
    fn line(&self, path: &'static str, line: &[u8]) -> Result<Option<Value>, ServedError> {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        let Some(data) = text.strip_prefix("data:").or_else(|| text.strip_prefix("error:")) else { return Ok(None) };
        let data = data.trim();
        if data == "[DONE]" || data.is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(data)
            .map_err(|error| self.reply(path, format!("an event is no JSON ({error}): {data}")))?;
        match value.get("error").filter(|error| !error.is_null()) {
            Some(_) => {
                let status =
                    value.pointer("/error/code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                let status = status.filter(|code| (400..600).contains(code)).unwrap_or(500);
                Err(self.refused(path, status, None, &value.to_string()))
            }
            None => Ok(Some(value)),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address.0)
    }

    async fn limited<T>(
        &self,
        path: &'static str,
        work: impl Future<Output = Result<T, ServedError>>,
    ) -> Result<T, ServedError> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ServedError::Timeout { server: self.server(), path, after: self.timeout }),
        }
    }

    async fn send(
        &self,
        path: &'static str,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ServedError> {
        let request = match self.key.as_ref().and_then(Key::header) {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let response = request.send().await.map_err(|error| match error.is_connect() {
            true => ServedError::Unreachable { server: self.server(), reason: self.clean(&chain(&error)) },
            false => self.cut(path, &error),
        })?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response);
        }
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = asked.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let text = self.bytes(path, response).await.unwrap_or_default();
        Err(self.refused(path, status, retry_after, &String::from_utf8_lossy(&text)))
    }

    fn refused(&self, path: &'static str, status: u16, retry_after: Option<Duration>, body: &str) -> ServedError {
        let said = serde_json::from_str::<Value>(body).ok().and_then(|value| {
            let places = ["/error/message", "/message", "/detail", "/error"];
            places.iter().find_map(|place| value.pointer(place).and_then(Value::as_str).map(str::to_owned))
        });
        let message = self.clean(&said.unwrap_or_else(|| body.to_owned()));
        let message = if message.is_empty() { "(nothing)".to_owned() } else { message };
        ServedError::Status { server: self.server(), path, status, message, retry_after }
    }

    fn cut(&self, path: &'static str, error: &reqwest::Error) -> ServedError {
        ServedError::Cut { server: self.server(), path, reason: self.clean(&chain(error)) }
    }

    async fn bytes(&self, path: &'static str, mut response: reqwest::Response) -> Result<Vec<u8>, ServedError> {
        let mut all = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.cut(path, &error))? {
            all.extend_from_slice(&chunk);
            if all.len() > MAX_REPLY {
                return Err(self.reply(path, "it is far too long"));
            }
        }
        Ok(all)
    }

    async fn body(&self, path: &'static str, response: reqwest::Response) -> Result<Value, ServedError> {
        let bytes = self.bytes(path, response).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            let begin = String::from_utf8_lossy(&bytes).chars().take(120).collect::<String>();
            self.reply(path, format!("it is no JSON ({error}): {begin}"))
        })
    }
}

/// An error with what caused it: the client's own message alone says little. Addresses are left out of it.
fn chain(error: &reqwest::Error) -> String {
    let mut all = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        all.push(error.to_string());
        cause = error.source();
    }
    if all.is_empty() { error.to_string() } else { all.join(": ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_v1_and_never_hold_secrets() {
        let read = |text: &str| Address::parse(text).map(|address| address.0);
        assert_eq!(read("http://127.0.0.1:8000").as_deref(), Ok("http://127.0.0.1:8000"));
        assert_eq!(read("http://h:1/v1/").as_deref(), Ok("http://h:1"));
        assert_eq!(read("https://h/base/v1").as_deref(), Ok("https://h/base"));
        for text in ["h:1", "ftp://h", "http://", "http://me:secret@h:1", "http://h:1/?key=secret", "http://me@h"] {
            let error = Address::parse(text).map(|address| address.0).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| !error.contains("secret")), "{text}: {error:?}");
        }
    }
}
