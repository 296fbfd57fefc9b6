//! Answers written down, and answers read back.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::{Hit, Lane, SearchBackend, SearchError};
use crate::EnvError;

/// One line of a recording.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "request")]
enum Line {
    Search {
        query: String,
        count: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        results: Option<Vec<Found>>,
        /// Why there were none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<SearchError>,
    },
    Page {
        url: String,
        /// `None` if there was no such page, or none was read.
        text: Option<String>,
        /// Why none was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<SearchError>,
    },
}

/// A result as a recording holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Found {
    url: String,
    title: String,
    content: String,
    score: f64,
}

impl From<Hit> for Found {
    fn from(hit: Hit) -> Self {
        Self { url: hit.url, title: hit.title, content: hit.content, score: hit.score }
    }
}

impl From<Found> for Hit {
    fn from(result: Found) -> Self {
        Self { url: result.url, title: result.title, content: result.content, score: result.score }
    }
}

/// The answers of a recording, and no others.
#[derive(Debug)]
pub struct Recorded {
    searches: BTreeMap<(String, u32), Result<Vec<Hit>, SearchError>>,
    pages: BTreeMap<String, Result<String, SearchError>>,
    digest: String,
}

/// Keeps the first answer, or the first failure of a request that was never answered.
fn keep<K: Ord, V>(known: &mut BTreeMap<K, Result<V, SearchError>>, request: K, answer: Result<V, SearchError>) {
    match known.get(&request) {
        None => drop(known.insert(request, answer)),
        Some(Err(error)) if !error.is_lasting() && answer.is_ok() => drop(known.insert(request, answer)),
        Some(_) => {}
    }
}

impl Recorded {
    /// Reads a recording: JSON lines of `{"request": "search", "query", "count", "results": [{"url", "title",
    /// "content", "score"}]}` and `{"request": "page", "url", "text"}`, with an `"error"` where there was no answer. Of two
    /// answers to one request the first stands, and any goes before a failure that passed.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file and the line.
    pub fn load(file: &Path) -> Result<Self, EnvError> {
        let failed = |reason: String| EnvError::Data { file: file.display().to_string(), reason };
        let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        let mut recorded = Self { searches: BTreeMap::new(), pages: BTreeMap::new(), digest };
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line =
                serde_json::from_str(line).map_err(|error| failed(format!("line {}: {error}", index + 1)))?;
            match line {
                Line::Search { query, count, results, error } => {
                    let answer = match (results, error) {
                        (Some(results), None) => Ok(results.into_iter().map(Hit::from).collect()),
                        (None, Some(error)) => Err(error),
                        _ => return Err(failed(format!("line {}: give either results or an error", index + 1))),
                    };
                    keep(&mut recorded.searches, (query, count), answer);
                }
                Line::Page { url, text, error } => {
                    let answer = match (text, error) {
                        (Some(text), None) => Ok(text),
                        (None, error) => Err(error.unwrap_or_else(|| SearchError::NoPage { url: url.clone() })),
                        (Some(_), Some(_)) => {
                            return Err(failed(format!("line {}: give either a text or an error", index + 1)));
                        }
                    };
                    keep(&mut recorded.pages, url, answer);
                }
            }
        }
        Ok(recorded)
    }
}

impl SearchBackend for Recorded {
    fn identity(&self) -> Json {
        json!({ "kind": "recorded", "digest": self.digest })
    }

    fn search(&self, _lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        let missing = || Err(SearchError::NotRecorded { what: format!("the search {query:?} for {count}") });
        self.searches.get(&(query.to_owned(), count)).cloned().unwrap_or_else(missing)
    }

    fn open(&self, _lane: &Lane, url: &str) -> Result<String, SearchError> {
        let missing = || Err(SearchError::NotRecorded { what: format!("the page {url}") });
        self.pages.get(url).cloned().unwrap_or_else(missing)
    }
}

/// A back end whose answers are appended to a file as they come, for [`Recorded`].
#[derive(Debug)]
pub struct Recording<B> {
    inner: B,
    file: Mutex<File>,
    name: String,
}

impl<B: SearchBackend> Recording<B> {
    /// Appends to `file`, which is made if it is not there.
    ///
    /// # Errors
    /// [`EnvError::Data`].
    pub fn new(inner: B, file: &Path) -> Result<Self, EnvError> {
        let name = file.display().to_string();
        let opened = OpenOptions::new().create(true).append(true).open(file);
        let opened = opened.map_err(|error| EnvError::Data { file: name.clone(), reason: error.to_string() })?;
        Ok(Self { inner, file: Mutex::new(opened), name })
    }

    fn write(&self, line: &Line) -> Result<(), SearchError> {
        let failed = |reason: String| SearchError::Unavailable {
            attempts: 1,
            reason: format!("its answer cannot be written to {}: {reason}", self.name),
        };
        let mut text = serde_json::to_string(line).map_err(|error| failed(error.to_string()))?;
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(text.as_bytes()).map_err(|error| failed(error.kind().to_string()))
    }
}

impl<B: SearchBackend> SearchBackend for Recording<B> {
    fn identity(&self) -> Json {
        self.inner.identity()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        let answer = self.inner.search(lane, query, count);
        let results = answer.as_ref().ok().map(|hits| hits.iter().cloned().map(Found::from).collect());
        let error = answer.as_ref().err().cloned();
        self.write(&Line::Search { query: query.to_owned(), count, results, error })?;
        answer
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        let page = self.inner.open(lane, url);
        let (text, error) = match &page {
            Ok(text) => (Some(text.clone()), None),
            Err(SearchError::NoPage { .. }) => (None, None),
            Err(error) => (None, Some(error.clone())),
        };
        self.write(&Line::Page { url: url.to_owned(), text, error })?;
        page
    }
}
