//! A node's session: a worker that may go away at any time, and the journal that makes it again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rao_envs::Text;
use serde_json::{Value as Json, json};

use super::super::machine::{limit_text, too_long};
use super::super::{CellOutput, Limit, Progress, Repl, ReplError, Reply, checks, thread};
use super::journal::{Current, Finished, Journal, Turn};
use super::protocol::{self, Message};
use super::run::{Next, Run, digest};
use super::worker::{Stop, Worker};
use super::{Setting, Shared, greet};

/// A session's worker, if it has one now. The engine may take it away between two steps.
pub(super) type Slot = Arc<Mutex<Option<Worker>>>;

/// How long a worker may take to be ready for its first cell.
const BOOT: Duration = Duration::from_secs(60);

/// Beyond its cells' own limits, what a rebuild may take for each.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Session {
    shared: Arc<Shared>,
    setting: Setting,
    slot: Slot,
    journal: Journal,
}

/// The next message of the host.
enum Move {
    Cell,
    Reply(Json, Vec<u32>),
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, setting: Setting, journal: Journal) -> Session {
        Session { shared, setting, slot: Slot::default(), journal }
    }

    /// Makes a move and waits for what comes of it. A worker that is missing, or breaks, is made again once; if it
    /// breaks again at the same place, that is the cell's doing and ends it.
    fn advance(&mut self, next: &Move) -> Result<Progress, ReplError> {
        let slot = Arc::clone(&self.slot);
        let mut guard = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reason = String::new();
        for _ in 0..2 {
            let mut worker = match guard.take() {
                Some(worker) => worker,
                None => match self.rebuild(next)? {
                    Some(worker) => worker,
                    None => {
                        "its process ended before the cell began".clone_into(&mut reason);
                        continue;
                    }
                },
            };
            let mut run = self.current()?.run.clone();
            match self.exchange(&mut worker, &mut run, next) {
                Ok(Next::Limit(limit)) => return Ok(self.limited(run, limit, limit_text(limit, &self.setting.limits))),
                Ok(outcome) => {
                    *guard = Some(worker);
                    return self.accept(run, next, outcome);
                }
                Err(Stop::Late) => {
                    let text = limit_text(Limit::Time, &self.setting.limits);
                    return Ok(self.limited(run, Limit::Time, text));
                }
                Err(Stop::Broken(why)) => reason = why,
            }
        }
        tracing::warn!(%reason, "a cell broke its Python worker twice");
        let text = format!(
            "RuntimeError: the cell broke the Python interpreter ({reason}) and was stopped. Variables are as they were \
             before this cell."
        );
        let run = self.current()?.run.clone();
        Ok(self.limited(run, Limit::Memory, text))
    }

    fn current(&mut self) -> Result<&mut Current, ReplError> {
        self.journal.current.as_mut().ok_or_else(|| ReplError::lost("the running cell went missing"))
    }

    fn exchange(&mut self, worker: &mut Worker, run: &mut Run, next: &Move) -> Result<Next, Stop> {
        let code = self.journal.current.as_ref().map_or("", |current| current.code.as_str());
        let time = Duration::from_millis(self.setting.limits.time_ms);
        let deadline = Instant::now() + time.saturating_sub(run.used);
        match next {
            Move::Cell => worker.send(&protocol::cell(code), deadline)?,
            Move::Reply(body, answered) => {
                worker.send(body, deadline)?;
                run.answered(answered);
            }
        }
        run.next(worker, &self.setting, deadline)
    }

    /// Takes down what a move led to.
    fn accept(&mut self, run: Run, next: &Move, outcome: Next) -> Result<Progress, ReplError> {
        let current = self.current()?;
        if let Move::Reply(reply, answered) = next {
            let seen = std::mem::take(&mut current.run.seen);
            current.turns.push(Turn { seen, reply: reply.clone(), answered: answered.clone() });
        }
        let output = run.output.clone();
        current.run = run;
        Ok(match outcome {
            Next::Call(call) => Progress::Call(call),
            Next::Blocked(pending) => Progress::Blocked { pending },
            Next::Limit(_) => return Err(ReplError::lost("a limit was taken for an end")),
            Next::Done { error } => {
                let stdout = output.finish();
                let end = end(&stdout, error.as_deref());
                if let Some(Current { code, turns, .. }) = self.journal.current.take() {
                    self.journal.finished.push(Finished { code, turns, end });
                }
                Progress::Done(CellOutput { stdout, error, limit: None, rejected: false })
            }
        })
    }

    /// Ends the cell. Its worker is gone; the next cell makes a new one, which knows nothing of this cell.
    fn limited(&mut self, run: Run, limit: Limit, text: String) -> Progress {
        self.journal.current = None;
        let stdout = run.output.finish();
        Progress::Done(CellOutput { stdout, error: Some(text), limit: Some(limit), rejected: false })
    }

    /// Makes a worker that stands where the journal ends: before the running cell if `next` starts it, at its last stop
    /// otherwise. `None` if the worker broke on the way and it is worth another try.
    fn rebuild(&mut self, next: &Move) -> Result<Option<Worker>, ReplError> {
        let mut worker = self.shared.worker(&self.slot)?;
        let made = match self.greet(&mut worker) {
            Ok(()) => self.replay(&mut worker, next),
            Err(stop) => Err(stop),
        };
        match made {
            Ok(Ok(())) => Ok(Some(worker)),
            Ok(Err(reason)) => Err(ReplError::lost(reason)),
            Err(Stop::Late) => Err(ReplError::lost("making it again took too long")),
            Err(Stop::Broken(reason)) => {
                tracing::warn!(%reason, "a Python worker broke while its session was made again");
                let is_worth_another = self.journal.finished.is_empty() || worker.is_orphan();
                if is_worth_another { Ok(None) } else { Err(ReplError::lost(reason)) }
            }
        }
    }

    fn greet(&self, worker: &mut Worker) -> Result<(), Stop> {
        let ready = greet(worker, &self.setting, Instant::now() + BOOT)?;
        if !self.shared.accepts(&ready) {
            return Err(Stop::Broken("it is not locked in as the first one was".to_owned()));
        }
        for (name, text) in &self.setting.variables {
            worker.send(&protocol::define(name, text), Instant::now() + BOOT)?;
        }
        Ok(())
    }

    /// Runs the journal. The inner error says that a cell did not repeat itself.
    fn replay(&mut self, worker: &mut Worker, next: &Move) -> Result<Result<(), String>, Stop> {
        for (number, cell) in self.journal.finished.iter().enumerate() {
            let mut run = Run::new(&self.setting.limits);
            let differs = Ok(Err(format!("its cell {} did something else when it was run again", number + 1)));
            let deadline = self.patience();
            worker.send(&protocol::cell(&cell.code), deadline)?;
            if !self.retrace(worker, &mut run, &cell.turns, deadline)? {
                return differs;
            }
            match run.next(worker, &self.setting, deadline)? {
                Next::Done { error } if end(&run.output.finish(), error.as_deref()) == cell.end => {}
                _ => return differs,
            }
        }
        let (Some(current), Move::Reply(..)) = (&mut self.journal.current, next) else { return Ok(Ok(())) };
        let mut run = Run::new(&self.setting.limits);
        let limits = &self.setting.limits;
        let deadline = Instant::now() + PATIENCE + 4 * Duration::from_millis(limits.time_ms);
        worker.send(&protocol::cell(&current.code), deadline)?;
        let turns = current.turns.clone();
        let (used, seen) = (current.run.used, current.run.seen.clone());
        if self.retrace(worker, &mut run, &turns, deadline)? {
            match run.next(worker, &self.setting, deadline)? {
                Next::Call(_) | Next::Blocked(_) if run.seen == seen => {
                    run.used = used;
                    if let Some(current) = &mut self.journal.current {
                        current.run = run;
                    }
                    return Ok(Ok(()));
                }
                _ => {}
            }
        }
        Ok(Err("its running cell did something else when it was run again".to_owned()))
    }

    /// Goes through the stops of a cell; false if one is another than it was.
    fn retrace(&self, worker: &mut Worker, run: &mut Run, turns: &[Turn], deadline: Instant) -> Result<bool, Stop> {
        for turn in turns {
            match run.next(worker, &self.setting, deadline)? {
                Next::Call(_) | Next::Blocked(_) if run.seen == turn.seen => {}
                _ => return Ok(false),
            }
            worker.send(&turn.reply, deadline)?;
            run.answered(&turn.answered);
        }
        Ok(true)
    }

    fn patience(&self) -> Instant {
        Instant::now() + PATIENCE + 4 * Duration::from_millis(self.setting.limits.time_ms)
    }
}

impl Repl for Session {
    fn define(&mut self, name: &str, text: Text) -> Result<(), ReplError> {
        if self.journal.current.is_some() {
            return Err(ReplError::misuse("a variable was given while a cell is running"));
        }
        self.setting.variables.retain(|(known, _)| known != name);
        self.setting.variables.push((name.to_owned(), text));
        // A worker that runs already is made again with the variable.
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    fn start(&mut self, code: &str) -> Result<Progress, ReplError> {
        if self.journal.current.is_some() {
            return Err(ReplError::misuse("a cell was started while another is running"));
        }
        if let Some(reason) = self.refusal(code)? {
            return Ok(Progress::Done(CellOutput { error: Some(reason), rejected: true, ..CellOutput::default() }));
        }
        let run = Run::new(&self.setting.limits);
        self.journal.current = Some(Current { code: code.to_owned(), turns: Vec::new(), run });
        let progress = self.advance(&Move::Cell);
        if progress.is_err() {
            self.journal.current = None;
        }
        progress
    }

    fn answer(&mut self, reply: Reply) -> Result<Progress, ReplError> {
        let Some(current) = &self.journal.current else {
            return Err(ReplError::misuse("an answer was given while no cell is running"));
        };
        let answered = current.run.fitting(&reply).map_err(ReplError::misuse)?;
        let re = current.run.asked;
        let body = match &reply {
            Reply::Now(result) => protocol::now(re, result),
            Reply::Pending => protocol::pending(re),
            Reply::Answers(answers) => protocol::answers(re, answers),
        };
        self.advance(&Move::Reply(body, answered))
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, ReplError> {
        self.journal.write()
    }
}

impl Session {
    /// Why a cell is refused unread, if it is.
    fn refusal(&self, code: &str) -> Result<Option<String>, ReplError> {
        if let Some(reason) = too_long(code) {
            return Ok(Some(reason));
        }
        let (code, setting) = (code.to_owned(), self.setting.clone());
        // The parser may nest as deeply as the code does, and that thread has the stack for it.
        thread::run(move || checks::refusal(&code, &setting.functions, &setting.limits))
    }
}

/// Digest of a cell's end.
fn end(stdout: &str, error: Option<&str>) -> String {
    digest(&[stdout, if error.is_some() { "raised" } else { "ended" }, error.unwrap_or_default()])
}

/// What a worker is told first.
pub(super) fn order(setting: &Setting) -> Json {
    let functions: Vec<Json> = setting.functions.iter().map(|f| json!([f.name, f.is_async])).collect();
    json!({
        "functions": functions,
        "memory": setting.limits.memory,
        "recursion": setting.limits.recursion,
        // Processor seconds of a whole worker: the end of one that its host left alone with an endless loop.
        "cpu": 60 + setting.limits.time_ms / 1_000 * 32,
        "seed": setting.seed,
    })
}

/// Reads a worker's greeting.
pub(super) fn greeting(message: Message) -> Result<protocol::Ready, Stop> {
    match message {
        Message::Ready(ready) => Ok(ready),
        _ => Err(Stop::Broken("it did not greet".to_owned())),
    }
}
