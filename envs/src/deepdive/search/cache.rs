//! The same request is answered once.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value as Json;

use super::{Hit, Lane, SearchBackend, SearchError};

/// A back end whose answers are kept, so that a run sees one answer to each request, however the world moves on. Whoever
/// makes a request while it is being asked gets the same answer. Failures that may pass are not kept for later.
#[derive(Debug)]
pub struct Cached<B> {
    inner: B,
    searches: Kept<(String, u32), Vec<Hit>>,
    pages: Kept<String, String>,
}

impl<B: SearchBackend> Cached<B> {
    /// A back end with an empty cache.
    pub fn new(inner: B) -> Self {
        Self { inner, searches: Kept::default(), pages: Kept::default() }
    }
}

/// Requests that were answered or are being asked.
#[derive(Debug)]
struct Kept<K, V>(Mutex<BTreeMap<K, Arc<Request<V>>>>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone, V: Clone> Kept<K, V> {
    /// The answer of whoever asked first, or the one that `ask` gives.
    fn get(&self, key: &K, ask: impl FnOnce() -> Result<V, SearchError>) -> Result<V, SearchError> {
        loop {
            let known = lock(&self.0).get(key).cloned();
            if let Some(answer) = known.map(|request| request.wait()) {
                match answer {
                    Some(answer) => return answer,
                    None => continue,
                }
            }
            let mut requests = lock(&self.0);
            // Another thread may have begun in the meantime.
            if requests.contains_key(key) {
                continue;
            }
            let request = Arc::new(Request::default());
            requests.insert(key.clone(), Arc::clone(&request));
            drop(requests);
            let asking = Asking { kept: self, key, request };
            let answer = ask();
            asking.request.set(Standing::Answered(answer.clone()));
            return answer;
        }
    }
}

/// Whole at any moment, so that a panic elsewhere leaves it usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Request<V> {
    standing: Mutex<Standing<V>>,
    changed: Condvar,
}

#[derive(Debug)]
enum Standing<V> {
    Asked,
    Answered(Result<V, SearchError>),
    /// Whoever asked has gone without an answer.
    Abandoned,
}

impl<V> Default for Request<V> {
    fn default() -> Self {
        Self { standing: Mutex::new(Standing::Asked), changed: Condvar::new() }
    }
}

impl<V: Clone> Request<V> {
    fn set(&self, standing: Standing<V>) {
        *lock(&self.standing) = standing;
        self.changed.notify_all();
    }

    /// Waits for the answer; `None` if there will be none.
    fn wait(&self) -> Option<Result<V, SearchError>> {
        let mut standing = lock(&self.standing);
        loop {
            match &*standing {
                Standing::Asked => standing = self.changed.wait(standing).unwrap_or_else(PoisonError::into_inner),
                Standing::Answered(answer) => return Some(answer.clone()),
                Standing::Abandoned => return None,
            }
        }
    }
}

/// A request that this thread asks. At its end what may pass is forgotten, and those who wait are woken.
struct Asking<'a, K: Ord + Clone, V: Clone> {
    kept: &'a Kept<K, V>,
    key: &'a K,
    request: Arc<Request<V>>,
}

impl<K: Ord + Clone, V: Clone> Drop for Asking<'_, K, V> {
    fn drop(&mut self) {
        let is_kept = match &*lock(&self.request.standing) {
            Standing::Answered(answer) => answer.as_ref().err().is_none_or(SearchError::is_lasting),
            Standing::Asked | Standing::Abandoned => false,
        };
        if is_kept {
            return;
        }
        lock(&self.kept.0).remove(self.key);
        let is_abandoned = matches!(*lock(&self.request.standing), Standing::Asked);
        if is_abandoned {
            self.request.set(Standing::Abandoned);
        }
    }
}

impl<B: SearchBackend> SearchBackend for Cached<B> {
    fn identity(&self) -> Json {
        self.inner.identity()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn search(&self, lane: &Lane, query: &str, count: u32) -> Result<Vec<Hit>, SearchError> {
        self.searches.get(&(query.to_owned(), count), || self.inner.search(lane, query, count))
    }

    fn open(&self, lane: &Lane, url: &str) -> Result<String, SearchError> {
        self.pages.get(&url.to_owned(), || self.inner.open(lane, url))
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
    #[test]
    fn equal_requests_at_the_same_moment_are_asked_once() {
        use std::time::Duration;

        /// Slow, and different every time.
        #[derive(Default)]
        struct Slow(AtomicU32);

        impl SearchBackend for Slow {
            fn identity(&self) -> Json {
                Json::Null
            }

            fn search(&self, lane: &Lane, query: &str, _count: u32) -> Result<Vec<Hit>, SearchError> {
                self.open(lane, query).map(|_| Vec::new())
            }

            fn open(&self, _lane: &Lane, url: &str) -> Result<String, SearchError> {
                let call = self.0.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(150));
                match url {
                    "down" => Err(SearchError::Unavailable { attempts: 1, reason: "time-out".into() }),
                    "crash" if call == 0 => panic!("the back end"),
                    _ => Ok(call.to_string()),
                }
            }
        }

        let together = |cached: &Cached<Slow>, url: &str| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| cached.open(&Lane::default(), url))).collect();
                threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
            })
        };
        let cached = Cached::new(Slow::default());
        let answers: Vec<_> = together(&cached, "u").into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, vec![Ok("0".to_owned()); 4]);
        // A failure that may pass is theirs who waited for it, and nobody's after that.
        for asked in [2, 3] {
            let failures = together(&cached, "down");
            assert!(failures.into_iter().all(|answer| answer.unwrap().is_err()));
            assert_eq!(cached.inner.0.load(Ordering::SeqCst), asked);
        }
        let cached = Cached::new(Slow::default());
        let ended = together(&cached, "crash");
        assert_eq!(ended.iter().filter(|answer| answer.is_err()).count(), 1, "one thread crashed, the others go on");
        assert_eq!(ended.into_iter().flatten().collect::<Vec<_>>(), vec![Ok("1".to_owned()); 3]);
    }
}
