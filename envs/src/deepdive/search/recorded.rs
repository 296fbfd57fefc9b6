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
        results: Vec<Found>,
    },
    Page {
        url: String,
        /// `None` if there was no such page.
        text: Option<String>,
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
    searches: BTreeMap<(String, u32), Vec<Hit>>,
    pages: BTreeMap<String, Option<String>>,
    digest: String,
}

impl Recorded {
    /// Reads a recording: JSON lines of `{"request": "search", "query", "count", "results": [{"url", "title",
    /// "content", "score"}]}` and `{"request": "page", "url", "text"}`. Of two answers to one request the first stands.
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
                Line::Search { query, count, results } => {
                    let hits = results.into_iter().map(Hit::from).collect();
                    recorded.searches.entry((query, count)).or_insert(hits);
                }
                Line::Page { url, text } => {
                    recorded.pages.entry(url).or_insert(text);
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
        let found = self.searches.get(&(query.to_owned(), count));
        found.cloned().ok_or_else(|| SearchError::NotRecorded { what: format!("the search {query:?} for {count}") })
    }

    fn open(&self, _lane: &Lane, url: &str) -> Result<String, SearchError> {
        match self.pages.get(url) {
            Some(Some(text)) => Ok(text.clone()),
            Some(None) => Err(SearchError::NoPage { url: url.to_owned() }),
            None => Err(SearchError::NotRecorded { what: format!("the page {url}") }),
        }
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
        let hits = self.inner.search(lane, query, count)?;
        let results = hits.iter().cloned().map(Found::from).collect();
        self.write(&Line::Search { query: query.to_owned(), count, results })?;
        Ok(hits)
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        let page = self.inner.open(lane, url);
        let text = match &page {
            Ok(text) => Some(text.clone()),
            Err(SearchError::NoPage { .. }) => None,
            Err(_) => return page,
        };
        self.write(&Line::Page { url: url.to_owned(), text })?;
        page
    }
}
