use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rao_envs::Judgement;
use rao_envs::judge::{Judge, JudgeError, JudgeIdentity, Panel, Question, Remote, Reply, Request, Seat};
use serde_json::json;

type Delay = Arc<dyn Fn(&Question) -> Duration + Send + Sync>;

/// A judge that is asked as if it were a model behind a server, and answers after a while: success for every answer but
/// those that hold "wrong".
#[derive(Clone)]
pub struct Deliberate {
    delay: Delay,
    is_remote: bool,
    /// What it saw so far.
    pub seen: Arc<Questions>,
}

/// What a [`Deliberate`] judge saw.
#[derive(Debug, Default)]
pub struct Questions {
    /// The digests of the questions that it was asked, in order.
    pub asked: Mutex<Vec<String>>,
    /// Questions that were given up before they were answered.
    pub given_up: AtomicUsize,
    /// Questions under way.
    pub now: AtomicUsize,
    /// The most that were under way at a time.
    pub most: AtomicUsize,
}

impl Deliberate {
    /// A judge that takes as long as `delay` says.
    pub fn new(delay: impl Fn(&Question) -> Duration + Send + Sync + 'static) -> Self {
        Deliberate { delay: Arc::new(delay), is_remote: true, seen: Arc::default() }
    }

    /// Delays of up to four milliseconds that depend on the question without a pattern.
    #[must_use]
    pub fn scrambled(seed: u64) -> Self {
        Deliberate::new(move |question| {
            let mixed = question
                .digest()
                .bytes()
                .fold(seed, |mixed, byte| (mixed ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            Duration::from_micros((mixed >> 40) % 4_000)
        })
    }

    /// The same judge, waited for in place, as versions did that had no other way.
    #[must_use]
    pub fn in_place(self) -> Self {
        Deliberate { is_remote: false, ..self }
    }

    /// A panel on which it judges roots and children.
    #[must_use]
    pub fn panel(&self) -> Panel {
        Panel::new(Arc::new(self.clone()), Seat::Judge(Arc::new(self.clone())))
    }
}

fn verdict(question: &Question) -> Judgement {
    let is_wrong = question.answer_text().is_none_or(|answer| answer.contains("wrong"));
    let score = if is_wrong { 0.0 } else { 1.0 };
    Judgement { score, source: format!("llm/{}", question.rubric), evidence: json!({ "reason": "it read" }) }
}

impl Judge for Deliberate {
    fn identity(&self) -> JudgeIdentity {
        let model = Some("deliberate".to_owned());
        JudgeIdentity { kind: "llm".into(), model, settings: BTreeMap::new(), template: "1".into() }
    }

    fn judge(&self, question: &Question) -> Result<Judgement, JudgeError> {
        self.seen.asked.lock().unwrap().push(question.digest());
        thread::sleep((self.delay)(question));
        Ok(verdict(question))
    }

    fn remote(&self) -> Option<&dyn Remote> {
        self.is_remote.then_some(self as &dyn Remote)
    }
}

impl Remote for Deliberate {
    fn ask(&self, question: &Question, reply: Reply) -> Request {
        let (seen, delay, question) = (Arc::clone(&self.seen), (self.delay)(question), question.clone());
        seen.asked.lock().unwrap().push(question.digest());
        seen.most.fetch_max(seen.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let (give_up, given_up) = channel::<()>();
        thread::spawn(move || {
            let is_given_up = given_up.recv_timeout(delay) != Err(RecvTimeoutError::Timeout);
            seen.now.fetch_sub(1, Ordering::SeqCst);
            if is_given_up {
                seen.given_up.fetch_add(1, Ordering::SeqCst);
            } else {
                reply.give(verdict(&question));
            }
        });
        Request::new(move || drop(give_up))
    }
}
