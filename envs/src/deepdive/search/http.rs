//! Requests to a service from code that waits for the answer.

use std::sync::mpsc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, RequestBuilder, Response, StatusCode, redirect};
use serde_json::Value as Json;
use tokio::runtime::{Builder, Runtime};

use super::{Lane, Limiter, Rate, SearchError};
use crate::EnvError;

/// The longest pause between two attempts, whatever the service asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How requests are made. None of it decides what is answered.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Time that one attempt may take.
    pub timeout: Duration,
    /// Attempts after the first: on time-outs, cut connections and the statuses 408, 429 and 500 to 599.
    pub retries: u32,
    /// The pause before the second attempt; each further one is twice as long. A service's `Retry-After` goes before.
    pub pause: Duration,
    /// The longest answer that is read, in bytes.
    pub most_bytes: usize,
    /// What the service allows.
    pub rate: Rate,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            retries: 4,
            pause: Duration::from_millis(500),
            most_bytes: 8 << 20,
            rate: Rate::default(),
        }
    }
}

/// A client with its own small runtime, so that it can be used from any thread, whatever runtime that belongs to.
#[derive(Debug)]
pub struct Transport {
    runtime: Option<Runtime>,
    client: Client,
    limiter: Limiter,
    settings: HttpSettings,
}

/// Why one attempt failed.
#[derive(Debug)]
enum Trouble {
    Status(StatusCode, Option<Duration>),
    Reason(&'static str),
    TooLong,
}

impl Trouble {
    fn of(error: &reqwest::Error) -> Self {
        // The error's own text names addresses and system messages, which differ from call to call.
        Self::Reason(if error.is_timeout() {
            "time-out"
        } else if error.is_connect() {
            "no connection"
        } else if error.is_body() || error.is_decode() {
            "the answer was cut off"
        } else {
            "the connection failed"
        })
    }

    fn may_pass(&self) -> bool {
        match self {
            Self::Status(status, _) => {
                status.is_server_error()
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
            }
            Self::Reason(_) => true,
            Self::TooLong => false,
        }
    }

    fn into_error(self, attempts: u32, most_bytes: usize) -> SearchError {
        let may_pass = self.may_pass();
        match self {
            Self::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                SearchError::Refused { status: if let Self::Status(status, _) = self { status.as_u16() } else { 0 } }
            }
            Self::Status(status, _) if may_pass => {
                SearchError::Unavailable { attempts, reason: format!("HTTP {}", status.as_u16()) }
            }
            Self::Status(status, _) => SearchError::BadRequest { status: status.as_u16() },
            Self::Reason(reason) => SearchError::Unavailable { attempts, reason: reason.to_owned() },
            Self::TooLong => SearchError::Garbage { reason: format!("more than {most_bytes} bytes") },
        }
    }
}

impl Transport {
    /// A client.
    ///
    /// # Errors
    /// [`EnvError::Setting`] if the system gives no threads or no certificates.
    pub fn new(settings: HttpSettings) -> Result<Self, EnvError> {
        let failed = |reason: String| EnvError::Setting { name: "search", reason };
        // Another part of the program may have chosen the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("search").enable_all().build();
        let runtime = runtime.map_err(|error| failed(format!("no threads for requests: {error}")))?;
        let client = Client::builder()
            .timeout(settings.timeout)
            .redirect(redirect::Policy::limited(3))
            // What the environment says about proxies must not reach a library.
            .no_proxy()
            .build()
            .map_err(|error| failed(format!("no HTTP client: {}", error.without_url())))?;
        let limiter = Limiter::new(settings.rate, runtime.handle().clone());
        Ok(Self { runtime: Some(runtime), client, limiter, settings })
    }

    /// Sends a JSON body and reads a JSON answer.
    ///
    /// # Errors
    /// [`SearchError`], after the retries.
    pub fn post(&self, lane: &Lane, url: &str, key: Option<&str>, body: &Json) -> Result<Json, SearchError> {
        self.json(lane, authorized(self.client.post(url), key).json(body))
    }

    /// Reads a JSON answer.
    ///
    /// # Errors
    /// [`SearchError`], after the retries.
    pub fn get(&self, lane: &Lane, url: &str, key: Option<&str>) -> Result<Json, SearchError> {
        self.json(lane, authorized(self.client.get(url), key))
    }

    /// Reads an answer as text.
    ///
    /// # Errors
    /// [`SearchError`], after the retries.
    pub fn get_text(&self, lane: &Lane, url: &str, key: Option<&str>) -> Result<String, SearchError> {
        let bytes = self.send(lane, authorized(self.client.get(url), key))?;
        String::from_utf8(bytes).map_err(|_| SearchError::Garbage { reason: "not UTF-8".into() })
    }

    fn json(&self, lane: &Lane, request: RequestBuilder) -> Result<Json, SearchError> {
        let bytes = self.send(lane, request)?;
        serde_json::from_slice(&bytes).map_err(|_| SearchError::Garbage { reason: "not JSON".into() })
    }

    fn send(&self, lane: &Lane, request: RequestBuilder) -> Result<Vec<u8>, SearchError> {
        let gone = || SearchError::Unavailable { attempts: 0, reason: "the program is shutting down".into() };
        let request = request.build().map_err(|_| SearchError::BadRequest { status: 0 })?;
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        let (client, limiter, lane) = (self.client.clone(), self.limiter.clone(), lane.clone());
        let (sender, receiver) = mpsc::sync_channel(1);
        let settings = self.settings.clone();
        runtime.spawn(async move {
            // The receiver is gone only if its thread is.
            let _ = sender.send(attempts(&client, &limiter, &lane, &request, &settings).await);
        });
        receiver.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        // Dropping a runtime waits, which no thread of another runtime may do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn authorized(request: RequestBuilder, key: Option<&str>) -> RequestBuilder {
    match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    }
}

async fn attempts(
    client: &Client,
    limiter: &Limiter,
    lane: &Lane,
    request: &reqwest::Request,
    settings: &HttpSettings,
) -> Result<Vec<u8>, SearchError> {
    let mut made = 0;
    let attempt = || {
        made += 1;
        let copy = request.try_clone();
        async move {
            let permit = limiter.acquire(lane).await;
            let (Some(_permit), Some(request)) = (permit, copy) else {
                return Err(Trouble::Reason("the program is shutting down"));
            };
            let response = client.execute(request).await.map_err(|error| Trouble::of(&error))?;
            read(response, settings.most_bytes).await
        }
    };
    let pauses = ExponentialBuilder::new()
        .with_min_delay(settings.pause)
        .with_max_delay(LONGEST_PAUSE)
        .with_max_times(settings.retries as usize);
    let answer = attempt
        .retry(pauses)
        .when(Trouble::may_pass)
        .adjust(|trouble, pause| match trouble {
            // `None` means that there are no attempts left; a service cannot ask for more.
            Trouble::Status(_, Some(asked)) => pause.map(|_| (*asked).min(LONGEST_PAUSE)),
            _ => pause,
        })
        .await;
    answer.map_err(|trouble| trouble.into_error(made, settings.most_bytes))
}

async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, Trouble> {
    let status = response.status();
    if !status.is_success() {
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        return Err(Trouble::Status(status, after.map(Duration::from_secs)));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Trouble::of(&error))? {
        if bytes.len() + chunk.len() > most {
            return Err(Trouble::TooLong);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// A text as part of an address's query.
pub(super) fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
