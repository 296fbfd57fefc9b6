//! Where pages come from, as the command line and manifests say it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::rows;
use super::search::{
    Cached, Corpus, FieldMap, HttpSettings, JsonApi, LocalBm25, Page, Recorded, Recording, SearchBackend, TAVILY_URL,
    Tavily, Transport, corpus_slug,
};
use crate::{EnvError, EnvSettings, Secret};

/// The environment's name.
pub(super) const ENV: &str = "deepdive";

/// Where pages come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// From the pages that come with the tasks.
    #[default]
    Own,
    /// From a table of pages: rows `{title, text}`, with `url` if they have addresses.
    Corpus(PathBuf),
    /// From Tavily's service or one that speaks like it.
    Tavily {
        /// Its address.
        url: String,
    },
    /// From a service that answers with JSON.
    Json {
        /// Address of a search, with `{query}` in it.
        search: String,
        /// Address of a page's text, with `{url}` in it.
        page: Option<String>,
        /// Where things stand in its answers.
        fields: FieldMap,
    },
    /// From a recording.
    Recorded(PathBuf),
}

/// The settings of [`DeepDive`](super::DeepDive).
#[derive(Clone, Debug, Default)]
pub struct DeepDiveConfig {
    /// Questions: a folder with MuSiQue's files, or a file or folder with rows of the DeepDive data set. Without it
    /// questions and pages are generated.
    pub data: Option<PathBuf>,
    /// Where pages come from.
    pub search: Search,
    /// The service's key. It is sent to the service and goes nowhere else.
    pub key: Option<Secret>,
    /// How a service is asked.
    pub http: HttpSettings,
    /// A file that a service's answers are appended to, for [`Search::Recorded`].
    pub record: Option<PathBuf>,
    /// Texts that no page may hold, besides the question itself.
    pub block: Vec<String>,
}

/// The options that the command line may give.
const OPTIONS: [&str; 10] =
    ["search", "corpus", "page", "fields", "rate", "concurrency", "timeout", "retries", "record", "block"];

/// The settings of the command line.
pub(super) fn from_command_line(settings: &EnvSettings) -> Result<DeepDiveConfig, EnvError> {
    let options = settings.options.known(ENV, &OPTIONS)?;
    let refuse = |name, reason: String| EnvError::Setting { name, reason };
    let mut fields = FieldMap::default();
    for pair in options.get("fields").into_iter().flat_map(|text| text.split(',')) {
        let (name, pointer) = pair
            .split_once('=')
            .ok_or_else(|| refuse("fields", format!("`{pair}` is not NAME=POINTER, such as url=/link")))?;
        fields.set(name.trim(), pointer.trim()).map_err(|reason| refuse("fields", reason))?;
    }
    let page = options.get("page").map(str::to_owned);
    let search = match options.get("search").map(|text| text.split_once(':').unwrap_or((text, ""))) {
        None | Some(("own", "")) => match options.get("corpus") {
            Some(file) => Search::Corpus(file.into()),
            None => Search::Own,
        },
        Some(("tavily", "")) => Search::Tavily { url: TAVILY_URL.to_owned() },
        Some(("tavily", url)) => Search::Tavily { url: url.trim_end_matches('/').to_owned() },
        Some(("json", url)) if !url.is_empty() => {
            Search::Json { search: url.to_owned(), page: page.clone(), fields: fields.clone() }
        }
        Some(("recorded", file)) if !file.is_empty() => Search::Recorded(file.into()),
        Some(_) => {
            let reason = "choose own, tavily, tavily:URL, json:URL-WITH-{query} or recorded:FILE".to_owned();
            return Err(refuse("search", reason));
        }
    };
    let is_json = matches!(search, Search::Json { .. });
    if !is_json && (page.is_some() || options.get("fields").is_some()) {
        return Err(refuse(
            "fields",
            "`fields` and `page` describe a service: they go with search=json:URL".to_owned(),
        ));
    }
    let is_service = is_json || matches!(search, Search::Tavily { .. });
    for name in ["rate", "concurrency", "timeout", "retries", "record"] {
        if !is_service && options.get(name).is_some() {
            return Err(refuse(name, "it goes with a service: search=tavily or search=json:URL".to_owned()));
        }
    }
    if !matches!(search, Search::Own | Search::Corpus(_)) && options.get("corpus").is_some() {
        return Err(refuse("corpus", "give either a corpus or another search".to_owned()));
    }
    let mut http = HttpSettings::default();
    if let Some(rate) = options.read::<u32>("rate")? {
        http.rate.per_minute = Some(rate).filter(|&rate| rate > 0);
    }
    if let Some(concurrency) = options.read::<u32>("concurrency")? {
        if !(1..=1024).contains(&concurrency) {
            return Err(refuse("concurrency", "must be 1 to 1,024".to_owned()));
        }
        http.rate.concurrency = concurrency;
    }
    if let Some(seconds) = options.read::<u64>("timeout")? {
        if !(1..=600).contains(&seconds) {
            return Err(refuse("timeout", "must be 1 to 600 seconds".to_owned()));
        }
        http.timeout = Duration::from_secs(seconds);
    }
    http.retries = options.read::<u32>("retries")?.unwrap_or(http.retries).min(20);
    let block = options.get("block").map(|text| text.split('|').map(str::to_owned).collect()).unwrap_or_default();
    Ok(DeepDiveConfig {
        data: settings.data.clone(),
        search,
        key: settings.search_key.clone(),
        http,
        record: options.get("record").map(PathBuf::from),
        block,
    })
}

/// The back end that the settings name; `None` if pages come with the tasks.
pub(super) fn backend(config: &DeepDiveConfig) -> Result<Option<Arc<dyn SearchBackend>>, EnvError> {
    let key = config.key.as_ref().map(|key| key.expose().to_owned());
    match &config.search {
        Search::Own => Ok(None),
        Search::Corpus(file) => Ok(Some(Arc::new(local(file)?))),
        Search::Recorded(file) => Ok(Some(Arc::new(Recorded::load(file)?))),
        Search::Tavily { url } => {
            service(Tavily::new(Transport::new(config.http.clone())?, url, key), config).map(Some)
        }
        Search::Json { search, page, fields } => {
            let transport = Transport::new(config.http.clone())?;
            service(JsonApi::new(transport, search, page.clone(), fields.clone(), key)?, config).map(Some)
        }
    }
}

fn service(backend: impl SearchBackend + 'static, config: &DeepDiveConfig) -> Result<Arc<dyn SearchBackend>, EnvError> {
    Ok(match &config.record {
        Some(file) => Arc::new(Cached::new(Recording::new(backend, file)?)),
        None => Arc::new(Cached::new(backend)),
    })
}

/// A table of pages as an index.
fn local(file: &std::path::Path) -> Result<LocalBm25, EnvError> {
    let mut pages = Vec::new();
    rows::read(file, &mut |row| {
        let (title, body) = (rows::text(&row, "title")?, rows::text(&row, "text")?);
        let number = pages.len();
        let made = || format!("https://corpus.example/{number}/{}", corpus_slug(&title));
        let url = rows::optional_text(&row, "url")?.unwrap_or_else(made);
        pages.push(Page { url, title, text: Arc::from(body) });
        Ok(())
    })?;
    let named = |reason: String| EnvError::Data { file: file.display().to_string(), reason };
    if pages.is_empty() {
        return Err(named("it holds no pages: expected rows with title and text".to_owned()));
    }
    let failed = |error: super::search::CorpusError| named(error.to_string());
    LocalBm25::new(Arc::new(Corpus::new(pages).map_err(failed)?)).map_err(failed)
}
