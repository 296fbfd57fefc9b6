//! The rate limiter around a service: so many requests a minute, so many at once, turns shared out fairly.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{FairQueue, Lane, TokenBucket};

/// What a service allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests a minute; `None` for no limit.
    pub per_minute: Option<u32>,
    /// Requests at a time, at least 1.
    pub concurrency: u32,
}

impl Default for Rate {
    /// The authors' limiter: 100 requests a minute. Eight at a time are this project's.
    fn default() -> Self {
        Self { per_minute: Some(100), concurrency: 8 }
    }
}

#[derive(Debug)]
struct State {
    bucket: Option<TokenBucket>,
    free: u32,
    waiting: FairQueue<oneshot::Sender<Permit>>,
    timer: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    start: Instant,
    handle: Handle,
}

/// Hands out permits. Clones share one limit.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<Shared>);

/// Leave to make one request. Dropping it ends the request.
#[derive(Debug)]
pub struct Permit(Option<Arc<Shared>>);

impl Limiter {
    /// A limiter whose waiting takes place on a runtime. It decides when a request is made, never what it answers.
    #[must_use]
    pub fn new(rate: Rate, handle: Handle) -> Self {
        let concurrency = rate.concurrency.max(1);
        // A burst of what may run at once: more could not be used at one moment.
        let bucket = rate.per_minute.map(|per_minute| TokenBucket::new(per_minute, concurrency.min(per_minute)));
        let state = State { bucket, free: concurrency, waiting: FairQueue::default(), timer: false };
        Self(Arc::new(Shared { state: Mutex::new(state), start: Instant::now(), handle }))
    }

    /// Waits for a turn. `None` when the limiter's runtime shuts down.
    pub async fn acquire(&self, lane: &Lane) -> Option<Permit> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock(|state| state.waiting.push(lane, sender));
        Shared::serve(&self.0);
        receiver.await.ok()
    }
}

impl Shared {
    fn lock<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // The state is whole between any two statements that could panic.
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives permits to whoever may have one now, and sets a timer for the next.
    fn serve(this: &Arc<Self>) {
        while let Some(waiter) = this.lock(|state| this.next(state)) {
            // A waiter that has gone gives its permit back by dropping it.
            let _ = waiter.send(Permit(Some(Arc::clone(this))));
        }
        if let Some(wait) = this.lock(|state| this.due(state)) {
            let shared = Arc::clone(this);
            this.handle.spawn(async move {
                tokio::time::sleep(wait).await;
                shared.lock(|state| state.timer = false);
                Shared::serve(&shared);
            });
        }
    }

    fn next(&self, state: &mut State) -> Option<oneshot::Sender<Permit>> {
        if state.free == 0 || state.waiting.is_empty() {
            return None;
        }
        let now = self.start.elapsed();
        if state.bucket.as_mut().is_some_and(|bucket| bucket.take(now).is_err()) {
            return None;
        }
        state.free -= 1;
        state.waiting.pop()
    }

    /// How long until the bucket lets the next waiter through, if that is all it waits for.
    fn due(&self, state: &mut State) -> Option<Duration> {
        if state.timer || state.free == 0 || state.waiting.is_empty() {
            return None;
        }
        let bucket = state.bucket.as_mut()?;
        let wait = match bucket.take(self.start.elapsed()) {
            Err(wait) => wait,
            Ok(()) => {
                // There is one by now: look again at once.
                bucket.give_back();
                Duration::ZERO
            }
        };
        state.timer = true;
        Some(wait)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.lock(|state| state.free += 1);
            Shared::serve(&shared);
        }
    }
}
