//! Tavily's service, and whatever speaks its language.

use serde_json::{Value as Json, json};

use super::{Hit, Lane, SearchBackend, SearchError, Transport};

/// Where the service is.
pub const TAVILY_URL: &str = "https://api.tavily.com";

/// `POST {url}/search` and `POST {url}/extract`. The service's own `answer` is neither asked for nor read: it would give
/// questions away.
#[derive(Debug)]
pub struct Tavily {
    transport: Transport,
    url: String,
    key: Option<String>,
}

impl Tavily {
    /// The service at `url`, without a slash at the end, and a key for it.
    #[must_use]
    pub fn new(transport: Transport, url: &str, key: Option<String>) -> Self {
        Self { transport, url: url.trim_end_matches('/').to_owned(), key }
    }
}

impl SearchBackend for Tavily {
    fn identity(&self) -> Json {
        json!({ "kind": "tavily", "url": self.url })
    }

    fn waits(&self) -> bool {
        true
    }

    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        let body = json!({
            "query": query,
            "max_results": count,
            "search_depth": "basic",
            "include_answer": false,
            "include_images": false,
            "include_raw_content": false,
        });
        let answer = self.transport.post(lane, &format!("{}/search", self.url), self.key.as_deref(), &body)?;
        let results = answer.get("results").and_then(Json::as_array).ok_or_else(|| garbage("no list `results`"))?;
        results.iter().take(count as usize).map(hit).collect()
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        let body = json!({ "urls": [url], "include_images": false, "extract_depth": "basic" });
        let answer = self.transport.post(lane, &format!("{}/extract", self.url), self.key.as_deref(), &body)?;
        let results = answer.get("results").and_then(Json::as_array).ok_or_else(|| garbage("no list `results`"))?;
        let text = results.first().and_then(|result| result.get("raw_content")).and_then(Json::as_str);
        match text.filter(|text| !text.trim().is_empty()) {
            Some(text) => Ok(text.to_owned()),
            None => Err(SearchError::NoPage { url: url.to_owned() }),
        }
    }
}

fn hit(result: &Json) -> Result<Hit, SearchError> {
    let text = |name: &str| result.get(name).and_then(Json::as_str).map(str::to_owned);
    Ok(Hit {
        url: text("url").ok_or_else(|| garbage("a result without `url`"))?,
        title: text("title").unwrap_or_default(),
        content: text("content").unwrap_or_default(),
        score: result.get("score").and_then(Json::as_f64).unwrap_or(0.0),
    })
}

fn garbage(reason: &str) -> SearchError {
    SearchError::Garbage { reason: reason.to_owned() }
}
