//! Any service that answers a search with a list in JSON: its address and where the fields are.

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::http::percent;
use super::{Hit, Lane, SearchBackend, SearchError, Transport};
use crate::EnvError;

/// Where things stand in a service's answers, as JSON pointers (RFC 6901). The defaults read SearXNG's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FieldMap {
    /// The list of results in a search's answer.
    pub results: String,
    /// A result's address.
    pub url: String,
    /// A result's title.
    pub title: String,
    /// A result's passage.
    pub content: String,
    /// A result's score; 0 where there is none.
    pub score: String,
    /// The text in a page's answer; empty if the whole answer is the text.
    pub text: String,
}

impl Default for FieldMap {
    fn default() -> Self {
        Self {
            results: "/results".into(),
            url: "/url".into(),
            title: "/title".into(),
            content: "/content".into(),
            score: "/score".into(),
            text: String::new(),
        }
    }
}

impl FieldMap {
    /// Changes one field by name.
    ///
    /// # Errors
    /// What is wrong with the name or the pointer.
    pub fn set(&mut self, name: &str, pointer: &str) -> Result<(), String> {
        let whole_answer = name == "text" && pointer.is_empty();
        if !whole_answer && !pointer.starts_with('/') {
            return Err(format!("`{pointer}` is no JSON pointer: it must begin with a slash, such as /items/0/link"));
        }
        let field = match name {
            "results" => &mut self.results,
            "url" => &mut self.url,
            "title" => &mut self.title,
            "content" => &mut self.content,
            "score" => &mut self.score,
            "text" => &mut self.text,
            _ => return Err(format!("there is no field `{name}`: choose results, url, title, content, score or text")),
        };
        pointer.clone_into(field);
        Ok(())
    }
}

/// A service that is asked with `GET`.
#[derive(Debug)]
pub struct JsonApi {
    transport: Transport,
    search: String,
    page: Option<String>,
    fields: FieldMap,
    key: Option<String>,
}

impl JsonApi {
    /// `search` is an address with `{query}` and, if wanted, `{count}` in it; `page` one with `{url}`, or `None` for a
    /// service that shows no pages. What is put in is percent-encoded. A key goes into the `Authorization` header.
    ///
    /// # Errors
    /// [`EnvError::Setting`] for an address without its place for the query or the page.
    pub fn new(
        transport: Transport,
        search: &str,
        page: Option<String>,
        fields: FieldMap,
        key: Option<String>,
    ) -> Result<Self, EnvError> {
        let lacks = |what: &str, address: &str| EnvError::Setting {
            name: "search",
            reason: format!("`{address}` has no {what} in it: that is where the request goes"),
        };
        if !search.contains("{query}") {
            return Err(lacks("{query}", search));
        }
        if let Some(page) = page.as_deref().filter(|page| !page.contains("{url}")) {
            return Err(lacks("{url}", page));
        }
        Ok(Self { transport, search: search.to_owned(), page, fields, key })
    }
}

impl SearchBackend for JsonApi {
    fn identity(&self) -> Json {
        json!({ "kind": "json", "search": self.search, "page": self.page, "fields": self.fields })
    }

    fn waits(&self) -> bool {
        true
    }

    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        let url = self.search.replace("{count}", &count.to_string()).replace("{query}", &percent(query));
        let answer = self.transport.get(lane, &url, self.key.as_deref())?;
        let garbage = |reason: String| SearchError::Garbage { reason };
        let results = answer.pointer(&self.fields.results).and_then(Json::as_array);
        let results = results.ok_or_else(|| garbage(format!("no list at {}", self.fields.results)))?;
        let hit = |result: &Json| {
            let text = |pointer: &str| result.pointer(pointer).and_then(Json::as_str).map(str::to_owned);
            Ok(Hit {
                url: text(&self.fields.url)
                    .ok_or_else(|| garbage(format!("a result without text at {}", self.fields.url)))?,
                title: text(&self.fields.title).unwrap_or_default(),
                content: text(&self.fields.content).unwrap_or_default(),
                score: result.pointer(&self.fields.score).and_then(Json::as_f64).unwrap_or(0.0),
            })
        };
        results.iter().take(count as usize).map(hit).collect()
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        let no_page = || SearchError::NoPage { url: url.to_owned() };
        let page = self.page.as_ref().ok_or_else(no_page)?.replace("{url}", &percent(url));
        let key = self.key.as_deref();
        let answer = if self.fields.text.is_empty() {
            self.transport.get_text(lane, &page, key)
        } else {
            self.transport.get(lane, &page, key).and_then(|answer| {
                let text = answer.pointer(&self.fields.text).and_then(Json::as_str);
                text.map(str::to_owned).ok_or_else(no_page)
            })
        };
        match answer {
            Err(SearchError::BadRequest { status: 404 | 410 }) => Err(no_page()),
            Ok(text) if text.trim().is_empty() => Err(no_page()),
            answer => answer,
        }
    }
}
