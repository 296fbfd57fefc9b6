//! The same request is answered once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value as Json;

use super::{Hit, Lane, SearchBackend, SearchError};

/// Answers by request.
type Kept<K, V> = Mutex<BTreeMap<K, Result<V, SearchError>>>;

/// A back end whose answers are kept, so that a run sees one answer to each request, however the world moves on.
/// Failures that may pass are not kept.
#[derive(Debug)]
pub struct Cached<B> {
    inner: B,
    searches: Kept<(String, u32), Vec<Hit>>,
    pages: Kept<String, String>,
}

impl<B: SearchBackend> Cached<B> {
    /// A back end with an empty cache.
    pub fn new(inner: B) -> Self {
        Self { inner, searches: Mutex::default(), pages: Mutex::default() }
    }
}

/// The kept answer, or the one that `ask` gives, which is then kept. Two threads that ask at the same moment may both
/// ask the back end; the first answer to arrive stands.
fn kept<K: Ord, V: Clone>(
    cache: &Kept<K, V>,
    key: K,
    ask: impl FnOnce() -> Result<V, SearchError>,
) -> Result<V, SearchError> {
    // A poisoned lock would mean a panic between reading and writing a map that is whole at any moment.
    if let Some(answer) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return answer.clone();
    }
    let answer = ask();
    if answer.as_ref().err().is_some_and(|error| !error.is_lasting()) {
        return answer;
    }
    cache.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(answer).clone()
}

impl<B: SearchBackend> SearchBackend for Cached<B> {
    fn identity(&self) -> Json {
        self.inner.identity()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        kept(&self.searches, (query.to_owned(), count), || self.inner.search(lane, query, count))
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        kept(&self.pages, url.to_owned(), || self.inner.open(lane, url))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Fails the first time, and answers something new each time after.
    #[derive(Default)]
    struct Moody(AtomicU32);

    impl SearchBackend for Moody {
        fn identity(&self) -> Json {
            Json::Null
        }

        fn search(&self, _lane: &Lane, _query: &str, _count: u32) -> Result<Vec<Hit>, SearchError> {
            self.open(_lane, "").map(|content| vec![Hit { url: "u".into(), title: "t".into(), content, score: 0.5 }])
        }

        fn open(&self, _lane: &Lane, url: &str) -> Result<String, SearchError> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                _ if url == "gone" => Err(SearchError::NoPage { url: url.into() }),
                0 => Err(SearchError::Unavailable { attempts: 3, reason: "time-out".into() }),
                call => Ok(call.to_string()),
            }
        }
    }

    #[test]
    fn answers_are_kept_and_passing_failures_are_not() {
        let lane = Lane::default();
        let cached = Cached::new(Moody::default());
        assert!(cached.search(&lane, "q", 5).is_err());
        let first = cached.search(&lane, "q", 5).unwrap();
        assert_eq!(first[0].content, "1");
        assert_eq!(cached.search(&lane, "q", 5).unwrap(), first);
        assert_eq!(cached.search(&lane, "q", 6).unwrap()[0].content, "2", "another count is another request");
        let calls = |cached: &Cached<Moody>| cached.inner.0.load(Ordering::Relaxed);
        assert!(cached.open(&lane, "gone").is_err());
        let before = calls(&cached);
        assert!(cached.open(&lane, "gone").is_err());
        assert_eq!(calls(&cached), before, "that there is no such page is an answer too");
    }
}
