//! Questions to judges outside this process, asked beside everything else.
//!
//! A verdict's identity is asked once: whoever asks while the same question is on its way waits for the same answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::panel::Signature;
use super::{JudgeError, Question, SharedJudge};
use crate::Judgement;

/// A judge outside this process, such as a model behind a server.
pub trait Remote: Send + Sync {
    /// Asks and returns at once. The verdict goes into `reply`, later and from any thread. The judge itself sees to it that
    /// not more questions are on their way than it bears; the others wait for their turn.
    fn ask(&self, question: &Question, reply: Reply) -> Request;
}

/// A question on its way to a judge. Dropped, it is given up.
pub struct Request(Option<Box<dyn FnOnce() + Send>>);

impl Request {
    /// A request that `give_up` ends. That may come after the answer, and then does nothing.
    #[must_use]
    pub fn new(give_up: impl FnOnce() + Send + 'static) -> Self {
        Request(Some(Box::new(give_up)))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(give_up) = self.0.take() {
            give_up();
        }
    }
}

type Outcome = Result<Judgement, JudgeError>;
type Listener = Box<dyn FnOnce(Outcome) + Send>;

/// Where a [`Remote`] judge puts its verdict. Dropped without one, it counts as [`JudgeError::Dropped`].
pub struct Reply(Option<Listener>);

impl Reply {
    fn new(listener: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Reply(Some(Box::new(listener)))
    }

    /// Hands the verdict over. Never waits.
    pub fn give(mut self, judgement: Judgement) {
        self.send(Ok(judgement));
    }

    fn send(&mut self, outcome: Outcome) {
        if let Some(listener) = self.0.take() {
            listener(outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Err(JudgeError::Dropped));
    }
}

/// What the judges of a panel have said, and what they are being asked. Keys are digests of verdicts' identities.
#[derive(Default)]
pub(super) struct Ledger(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    said: BTreeMap<String, Judgement>,
    asked: BTreeMap<String, Asked>,
    /// The next listener's number.
    next: u64,
}

/// One question on its way, and who waits for its answer.
#[derive(Default)]
struct Asked {
    listeners: BTreeMap<u64, Listener>,
    request: Option<Request>,
}

/// How a question stands that is to be asked.
enum Entry {
    /// It was answered before.
    Said(Judgement, Listener),
    /// Somebody else is asking it.
    OnItsWay(u64),
    /// It is to be asked now.
    New(u64),
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // The entries are whole between any two statements that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn said(&self, key: &str) -> Option<Judgement> {
        self.lock().said.get(key).cloned()
    }

    pub(super) fn note(&self, key: String, judgement: Judgement) {
        self.lock().said.entry(key).or_insert(judgement);
    }

    fn enter(&self, key: &str, listener: Listener) -> Entry {
        let mut entries = self.lock();
        if let Some(said) = entries.said.get(key) {
            return Entry::Said(said.clone(), listener);
        }
        let number = entries.next;
        entries.next += 1;
        let is_new = !entries.asked.contains_key(key);
        entries.asked.entry(key.to_owned()).or_default().listeners.insert(number, listener);
        if is_new { Entry::New(number) } else { Entry::OnItsWay(number) }
    }

    /// Keeps the request of a question for as long as somebody waits for its answer.
    fn hold(&self, key: &str, request: Request) {
        let mut over = Some(request);
        if let Some(asked) = self.lock().asked.get_mut(key) {
            asked.request = over.take();
        }
        // Outside the lock: giving a request up may come back here.
        drop(over);
    }

    fn answer(&self, key: &str, outcome: Outcome) {
        let asked = {
            let mut entries = self.lock();
            if let Ok(judgement) = &outcome {
                entries.said.entry(key.to_owned()).or_insert_with(|| judgement.clone());
            }
            entries.asked.remove(key)
        };
        let Some(Asked { listeners, request }) = asked else { return };
        for listener in listeners.into_values() {
            listener(outcome.clone());
        }
        drop(request);
    }

    /// Nobody waits any more under that number; a question that nobody waits for is given up.
    fn leave(&self, key: &str, number: u64) {
        let over = {
            let mut entries = self.lock();
            let Some(asked) = entries.asked.get_mut(key) else { return };
            let left = asked.listeners.remove(&number);
            if asked.listeners.is_empty() { (left, entries.asked.remove(key)) } else { (left, None) }
        };
        drop(over);
    }
}

/// A question that a judge outside this process has to answer.
pub struct Inquiry {
    question: Box<Question>,
    judge: SharedJudge,
    signature: Signature,
    ledger: Arc<Ledger>,
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inquiry").field("identity", &self.signature.identity).finish_non_exhaustive()
    }
}

impl Inquiry {
    pub(super) fn new(question: Box<Question>, judge: SharedJudge, signature: Signature, ledger: Arc<Ledger>) -> Self {
        Inquiry { question, judge, signature, ledger }
    }

    /// The judge's identity as canonical JSON.
    #[must_use]
    pub fn judge(&self) -> &str {
        &self.signature.judge
    }

    /// Digest of the verdict's identity.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.signature.identity
    }

    /// Asks and returns at once. `listener` is told of the verdict: at once if it is known already, else later and from any
    /// thread. Dropping the sitting takes the question back.
    pub fn start(self, listener: impl FnOnce(Result<Judgement, JudgeError>) + Send + 'static) -> Sitting {
        let Inquiry { mut question, judge, signature, ledger } = self;
        // What the environment saw is the node's own, even where another node's verdict is taken over.
        let notes = question.notes.take();
        let listener: Listener =
            Box::new(move |outcome| listener(outcome.map(|judgement| judgement.with_notes(notes.as_ref()))));
        let key = signature.identity.clone();
        let number = match ledger.enter(&key, listener) {
            Entry::Said(judgement, listener) => {
                listener(Ok(judgement));
                return Sitting(None);
            }
            Entry::OnItsWay(number) => number,
            Entry::New(number) => {
                let (own, to) = (key.clone(), Arc::clone(&ledger));
                let reply =
                    Reply::new(move |outcome| to.answer(&own, outcome.map(|judgement| signature.sign(judgement))));
                let request = match judge.remote() {
                    Some(remote) => remote.ask(&question, reply),
                    None => {
                        let mut reply = reply;
                        reply.send(judge.judge(&question));
                        Request(None)
                    }
                };
                ledger.hold(&key, request);
                number
            }
        };
        Sitting(Some((ledger, key, number)))
    }
}

/// Somebody who waits for a verdict. Dropped, the question is taken back; it is given up when nobody else waits for it.
pub struct Sitting(Option<(Arc<Ledger>, String, u64)>);

impl fmt::Debug for Sitting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sitting").finish_non_exhaustive()
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        if let Some((ledger, key, number)) = self.0.take() {
            ledger.leave(&key, number);
        }
    }
}
