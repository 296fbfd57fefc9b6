use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rao_engine::{Action, Actor, Ask, EngineError, InFlight, Slot, Ticket};
use rao_policy::Chat;
use rao_store::event::PolicyIdentity;

type Delay = Arc<dyn Fn(&Ask<'_>) -> Duration + Send + Sync>;

/// What a [`Late`] actor saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Requests in flight now.
    pub in_flight: AtomicUsize,
    /// The most requests that were in flight at a time.
    pub most: AtomicUsize,
    /// Requests that were cancelled.
    pub cancelled: Mutex<BTreeSet<Ticket>>,
    /// Set to make every further request fail.
    pub broken: AtomicBool,
}

/// An actor whose requests are in flight at the same time: another actor's actions, each handed over from a thread of its
/// own after a while.
pub struct Late {
    inner: Box<dyn Actor>,
    capacity: usize,
    delay: Delay,
    /// What it saw so far.
    pub seen: Arc<Seen>,
}

impl Late {
    /// At most `capacity` requests at a time, each taking as long as `delay` says.
    pub fn new(
        inner: Box<dyn Actor>,
        capacity: usize,
        delay: impl Fn(&Ask<'_>) -> Duration + Send + Sync + 'static,
    ) -> Self {
        Late { inner, capacity, delay: Arc::new(delay), seen: Arc::default() }
    }

    /// Delays of up to three milliseconds that depend on node and step without a pattern.
    #[must_use]
    pub fn scrambled(inner: Box<dyn Actor>, capacity: usize, seed: u64) -> Self {
        Late::new(inner, capacity, move |ask| {
            let place = ask.node.ordinals().iter().chain([&ask.step]);
            let mixed = place.fold(seed, |mixed, part| (mixed ^ u64::from(*part)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            Duration::from_micros((mixed >> 40) % 3_000)
        })
    }
}

impl Actor for Late {
    fn identity(&self) -> PolicyIdentity {
        self.inner.identity()
    }

    fn chat(&self) -> &Arc<Chat> {
        self.inner.chat()
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        self.inner.act(batch)
    }

    fn release(&mut self, row: u64) {
        self.inner.release(row);
    }

    fn in_flight(&mut self) -> Option<&mut dyn InFlight> {
        Some(self)
    }
}

impl InFlight for Late {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, ask: &Ask<'_>, slot: Slot) -> Result<(), EngineError> {
        let delay = (self.delay)(ask);
        let answer = match self.seen.broken.load(Ordering::SeqCst) {
            true => Err(EngineError::Config("the policy is broken".into())),
            false => self.inner.act(std::slice::from_ref(ask)).map(|mut actions| actions.remove(0)),
        };
        let seen = Arc::clone(&self.seen);
        let now = seen.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        seen.most.fetch_max(now, Ordering::SeqCst);
        thread::spawn(move || {
            thread::sleep(delay);
            seen.in_flight.fetch_sub(1, Ordering::SeqCst);
            slot.fill(answer);
        });
        Ok(())
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.seen.cancelled.lock().unwrap().insert(ticket);
    }
}
