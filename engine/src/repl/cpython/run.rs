//! A cell in progress as the host sees it: what the worker says is checked here, and nothing of it is believed.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::output::Output;
use super::super::{Call, CellLimits, Function, Limit, Reply};
use super::worker::{Stop, Worker};
use super::{Setting, protocol::Message};

/// Where a cell stands: the reply that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stand {
    /// None yet: it has not stopped.
    Begun,
    /// The answer to a synchronous call.
    Sync,
    /// The word that an asynchronous call is pending.
    Async,
    /// Answers to some of these calls.
    Blocked(Vec<u32>),
}

/// Why the worker stopped.
pub(super) enum Next {
    Call(Call),
    Blocked(Vec<u32>),
    Done { error: Option<String> },
    Limit(Limit),
}

/// The running cell's own numbers and text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) stand: Stand,
    /// Digest of the last stop.
    pub(super) seen: String,
    /// The worker's questions so far.
    pub(super) asked: u32,
    /// Calls issued so far: the next call's number.
    calls: u32,
    /// Asynchronous calls without an answer, in the order of issue.
    open: Vec<u32>,
    /// Execution time spent.
    pub(super) used: Duration,
    pub(super) output: Output,
}

impl Run {
    pub(super) fn new(limits: &CellLimits) -> Run {
        Run {
            stand: Stand::Begun,
            seen: String::new(),
            asked: 0,
            calls: 0,
            open: Vec::new(),
            used: Duration::ZERO,
            output: Output::new(limits.output_chars),
        }
    }

    /// Waits for the next stop, until `deadline`.
    pub(super) fn next(&mut self, worker: &mut Worker, setting: &Setting, deadline: Instant) -> Result<Next, Stop> {
        let start = Instant::now();
        let next = self.step(worker, setting, deadline);
        self.used += start.elapsed();
        next
    }

    fn step(&mut self, worker: &mut Worker, setting: &Setting, deadline: Instant) -> Result<Next, Stop> {
        let broken = |reason: String| Err(Stop::Broken(reason));
        loop {
            match worker.receive(deadline)? {
                Message::Output(text) => self.output.push(&text),
                Message::Done { memory: true, .. } => return Ok(Next::Limit(Limit::Memory)),
                Message::Done { error, memory: false } => return Ok(Next::Done { error }),
                Message::Call { number, name, args } => {
                    let Some(function) = setting.function(&name) else {
                        return broken(format!("it called {name:?}, which does not exist"));
                    };
                    if number != self.calls {
                        return broken(format!("it numbered call {} as {number}", self.calls));
                    }
                    if self.calls >= setting.limits.calls {
                        return Ok(Next::Limit(Limit::Calls));
                    }
                    let Function { name, is_async } = function.clone();
                    self.seen = digest(&[&format!("call {number}"), &name, &args.to_json_text()]);
                    self.asked += 1;
                    self.calls += 1;
                    self.stand = if is_async { Stand::Async } else { Stand::Sync };
                    if is_async {
                        self.open.push(number);
                    }
                    return Ok(Next::Call(Call { call: number, name, args, is_async }));
                }
                Message::Blocked(pending) => {
                    let rises = pending.windows(2).all(|pair| pair.first() < pair.last());
                    if pending.is_empty() || !rises || !pending.iter().all(|call| self.open.contains(call)) {
                        return broken(format!("it waits for the calls {pending:?} while {:?} are open", self.open));
                    }
                    self.seen = digest(&[&format!("blocked {pending:?}")]);
                    self.asked += 1;
                    self.stand = Stand::Blocked(pending.clone());
                    return Ok(Next::Blocked(pending));
                }
                Message::Ready(_) => return broken("it sent its greeting again".to_owned()),
                Message::Listening { .. } | Message::Hello { .. } | Message::Refused(_) | Message::Ended(_) => {
                    return broken("it spoke for the fork server".to_owned());
                }
            }
        }
    }

    /// Notes that these calls have their answers.
    pub(super) fn answered(&mut self, calls: &[u32]) {
        self.open.retain(|call| !calls.contains(call));
    }

    /// The calls that `reply` answers, or why it does not fit where the cell stands.
    pub(super) fn fitting(&self, reply: &Reply) -> Result<Vec<u32>, String> {
        match (&self.stand, reply) {
            (Stand::Sync, Reply::Now(_)) | (Stand::Async, Reply::Pending) => Ok(Vec::new()),
            (Stand::Blocked(pending), Reply::Answers(answers)) => {
                let mut found = Vec::with_capacity(answers.len());
                for (call, _) in answers {
                    if !pending.contains(call) || found.contains(call) {
                        return Err(format!("call {call} is not pending, or answered twice"));
                    }
                    found.push(*call);
                }
                if found.is_empty() { Err("an empty set of answers".to_owned()) } else { Ok(found) }
            }
            (stand, _) => Err(format!("the session stands at {stand:?} and does not take this reply")),
        }
    }
}

/// Digest of a few texts.
pub(super) fn digest(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().chars().take(32).collect()
}
