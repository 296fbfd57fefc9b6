//! Finding and reading pages, whatever stands behind it: an index in memory, a service, or a recording.

mod cache;
mod corpus;
mod fair;
mod http;
mod json_api;
mod limiter;
mod local;
mod recorded;
mod tavily;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub use cache::Cached;
pub(crate) use corpus::slug as corpus_slug;
pub use corpus::{Corpus, CorpusError, Page};
pub use fair::{FairQueue, TokenBucket};
pub use http::{HttpSettings, Transport};
pub use json_api::{FieldMap, JsonApi};
pub use limiter::{Limiter, Permit, Rate};
pub use local::LocalBm25;
pub use recorded::{Recorded, Recording};
pub use tavily::{TAVILY_URL, Tavily};

/// The most results that one search may ask for.
pub const MOST_RESULTS: u32 = 20;

/// One result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Where the page is.
    pub url: String,
    /// Its title.
    pub title: String,
    /// A passage of it, or a summary.
    pub content: String,
    /// How well it fits, in [0, 1] where the back end says so; the larger the better.
    pub score: f64,
}

/// Who asks. Waiting for a rate limit is shared out fairly between rollouts, and in a rollout between its nodes; no
/// answer depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// The rollout, by a number of this process.
    pub rollout: u64,
    /// The node's path.
    pub node: Vec<u32>,
}

/// Something that finds pages and reads them.
///
/// Calls block until they are answered. What they answer may depend on nothing but the arguments and the world outside.
pub trait SearchBackend: Send + Sync {
    /// The kind and every setting that decides the answers, for the run's manifest. Never holds a key.
    fn identity(&self) -> Json;

    /// The `count` best results for `query`, best first; fewer if there are no more.
    ///
    /// # Errors
    /// [`SearchError`].
    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError>;

    /// A page's text.
    ///
    /// # Errors
    /// [`SearchError::NoPage`] if there is no such page, and the others.
    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError>;

    /// Whether answers come from outside this process, so that it is worth asking for several at once.
    fn waits(&self) -> bool {
        false
    }
}

impl<B: SearchBackend + ?Sized> SearchBackend for Arc<B> {
    fn identity(&self) -> Json {
        (**self).identity()
    }

    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        (**self).search(lane, query, count)
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        (**self).open(lane, url)
    }

    fn waits(&self) -> bool {
        (**self).waits()
    }
}

/// Why a search or a page was not answered. The texts are shown to agents, so they hold neither keys nor anything that
/// changes from call to call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum SearchError {
    /// There is no such page, or nothing can be read from it.
    #[error("there is no page at {url}")]
    NoPage {
        /// The page's address.
        url: String,
    },
    /// The service does not accept the key.
    #[error("the search service refused the request (HTTP {status}): check its key")]
    Refused {
        /// 401 or 403.
        status: u16,
    },
    /// The service does not understand the request.
    #[error("the search service did not accept the request (HTTP {status})")]
    BadRequest {
        /// The status.
        status: u16,
    },
    /// The service gives no answer, however often it is asked.
    #[error("the search service gave no answer after {attempts} attempts ({reason})")]
    Unavailable {
        /// How often it was asked.
        attempts: u32,
        /// What happened the last time.
        reason: String,
    },
    /// The answer is not of the expected shape.
    #[error("the search service answered something else than expected ({reason})")]
    Garbage {
        /// What is wrong with it.
        reason: String,
    },
    /// A recording without this request.
    #[error("the recording holds no answer to {what}; record it with the live back end")]
    NotRecorded {
        /// The request.
        what: String,
    },
}

impl SearchError {
    /// Whether the same request would be answered the same way again; anything else may pass.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::NoPage { .. } | Self::BadRequest { .. } | Self::NotRecorded { .. })
    }
}
