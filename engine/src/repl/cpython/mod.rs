//! The second engine: CPython in worker processes. The whole language and every installed module, at the price of a
//! process for each live session.
//!
//! One worker serves one session, not a whole tree: the traits know no trees, sessions cannot disturb one another, the
//! memory limit is a session's own, and a cell that has to be killed takes nothing else with it. CPython has no
//! snapshots, so a session keeps its journal: the code of its cells and the replies that they got, in order and
//! grouping. A worker that is gone is made again by running the journal, and every stop on the way must be the one that
//! was there before. That is also what lets the engine take idle workers away when there are too many.
//!
//! Inside a worker asynchronous code is real `asyncio` on an event loop whose only wake-ups are the host's answers
//! (`worker.py`). Time stands still and `random` is seeded, as in the embedded engine.

mod journal;
mod protocol;
mod run;
mod sandbox;
mod session;
#[cfg(unix)]
mod worker;
#[cfg(not(unix))]
#[path = "nowhere.rs"]
mod worker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rao_envs::Text;

use super::{CellLimits, Function, Repl, ReplEngine, ReplError, checks};

use self::journal::Journal;
use self::sandbox::Interpreter;
use self::session::{Session, Slot};
use self::worker::{Stop, Worker};

pub use self::sandbox::{CpythonError, Protections};

/// The Python that a worker runs.
const PROGRAM: &str = concat!(include_str!("lockdown.py"), "\n", include_str!("worker.py"));

/// How long the first worker may take.
const FIRST: Duration = Duration::from_secs(60);

/// How the engine is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpythonOptions {
    /// The interpreter: a path, or a name that is looked for in `PATH`.
    pub python: PathBuf,
    /// Run cells even where the machine does not allow the sandbox.
    pub allow_unsandboxed: bool,
    /// The most workers at a time, each of about 12 MiB. Sessions beyond it share them: a session without a worker gets
    /// one when its next cell runs.
    pub workers: usize,
}

impl Default for CpythonOptions {
    fn default() -> CpythonOptions {
        CpythonOptions { python: PathBuf::from("python3"), allow_unsandboxed: false, workers: 128 }
    }
}

/// The CPython engine.
#[derive(Clone, Debug)]
pub struct Cpython {
    shared: Arc<Shared>,
}

impl Cpython {
    /// Starts a worker, to see what the interpreter is and how far the machine lets it be locked in.
    ///
    /// # Errors
    /// [`CpythonError`] if there is no interpreter that does, or if cells could reach the network, start processes or
    /// change files and `allow_unsandboxed` is not set.
    pub fn new(options: CpythonOptions) -> Result<Cpython, CpythonError> {
        let CpythonOptions { python, allow_unsandboxed, workers } = options;
        let interpreter = Interpreter::find(&python)?;
        let failed = |reason: String| CpythonError::Interpreter { python: python.clone(), reason };
        let mut first = Worker::spawn(&interpreter).map_err(|error| failed(error.to_string()))?;
        let limits = CellLimits::default();
        let setting = Setting { functions: Vec::new(), limits, seed: 0, variables: Vec::new() };
        let ready = match greet(&interpreter, &mut first, &setting, Instant::now() + FIRST) {
            Ok(ready) => ready,
            Err(Stop::Late) => return Err(failed("its worker did not start in time".to_owned())),
            Err(Stop::Broken(reason)) => return Err(failed(format!("its worker broke: {reason}"))),
        };
        let protections = Protections::of(&ready);
        if !protections.hold() && !allow_unsandboxed {
            return Err(CpythonError::Unprotected { protections });
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(PROGRAM.as_bytes());
        hasher.update(&checks::VERSION.to_le_bytes());
        let digest = hasher.finalize().to_hex();
        let digest = digest.get(..12).unwrap_or_default();
        let identity = format!("cpython {} worker {digest}", interpreter.version);
        let shared = Shared {
            interpreter,
            identity,
            protections,
            workers: workers.max(1),
            live: Mutex::default(),
            spare: Mutex::default(),
        };
        Ok(Cpython { shared: Arc::new(shared) })
    }

    /// What keeps cells in on this machine.
    #[must_use]
    pub fn protections(&self) -> &Protections {
        &self.shared.protections
    }

    /// The processes that serve sessions now.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let live = self.shared.live.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = live.iter().filter_map(Weak::upgrade);
        slots.filter_map(|slot| slot.try_lock().ok()?.as_ref().map(Worker::id)).collect()
    }
}

impl ReplEngine for Cpython {
    fn identity(&self) -> String {
        self.shared.identity.clone()
    }

    fn open(&self, functions: &[Function], limits: &CellLimits, seed: u64) -> Result<Box<dyn Repl>, ReplError> {
        let (functions, limits, variables) = (functions.to_vec(), limits.clone(), Vec::new());
        let setting = Setting { functions, limits, seed, variables };
        let journal = Journal { identity: self.identity(), seed, finished: Vec::new(), current: None };
        Ok(Box::new(Session::new(Arc::clone(&self.shared), setting, journal)))
    }

    fn restore(&self, functions: &[Function], limits: &CellLimits, bytes: &[u8]) -> Result<Box<dyn Repl>, ReplError> {
        let journal = Journal::read(&self.identity(), bytes)?;
        let (functions, limits, variables) = (functions.to_vec(), limits.clone(), Vec::new());
        let setting = Setting { functions, limits, seed: journal.seed, variables };
        Ok(Box::new(Session::new(Arc::clone(&self.shared), setting, journal)))
    }
}

/// What a session was opened with.
#[derive(Clone, Debug)]
struct Setting {
    functions: Vec<Function>,
    limits: CellLimits,
    seed: u64,
    /// Variables that are there before the first cell.
    variables: Vec<(String, Text)>,
}

impl Setting {
    fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// What all sessions of an engine have in common.
#[derive(Debug)]
struct Shared {
    interpreter: Interpreter,
    identity: String,
    protections: Protections,
    workers: usize,
    /// Sessions that were given a worker, the longest ago first.
    live: Mutex<Vec<Weak<Mutex<Option<Worker>>>>>,
    /// A worker that has loaded its modules and has no session yet: the next session need not wait for that.
    spare: Mutex<Option<Worker>>,
}

impl Shared {
    /// A worker for the session of `slot`, which the caller holds.
    fn worker(&self, slot: &Slot) -> Result<Worker, ReplError> {
        self.make_room(slot);
        let spawn = || Worker::spawn(&self.interpreter);
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = spare.take().and_then(|mut worker| worker.is_alive().then_some(worker));
        let worker = match waiting {
            Some(worker) => worker,
            None => spawn().map_err(|error| ReplError::lost(format!("its process cannot be started: {error}")))?,
        };
        // Without a spare the next session waits longer, and hears of the error if it persists.
        *spare = spawn().ok();
        Ok(worker)
    }

    /// Takes the worker away from the sessions that got theirs the longest ago, until there is room for one more.
    fn make_room(&self, own: &Slot) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|slot| slot.upgrade().is_some_and(|slot| !Arc::ptr_eq(&slot, own)));
        let mut have = 0;
        for slot in live.iter().rev().filter_map(Weak::upgrade) {
            // A session in the middle of a step keeps its worker, and counts.
            let Ok(mut worker) = slot.try_lock() else {
                have += 1;
                continue;
            };
            if worker.is_some() && have + 1 >= self.workers {
                *worker = None;
            }
            have += usize::from(worker.is_some());
        }
        live.push(Arc::downgrade(own));
    }

    fn greet(&self, worker: &mut Worker, setting: &Setting, deadline: Instant) -> Result<protocol::Ready, Stop> {
        greet(&self.interpreter, worker, setting, deadline)
    }

    /// Whether a worker is locked in as far as the first one was.
    fn accepts(&self, ready: &protocol::Ready) -> bool {
        let (first, now) = (&self.protections, Protections::of(ready));
        let kept = |first: &Option<String>, now: &Option<String>| first.is_some() || now.is_none();
        kept(&first.limits, &now.limits)
            && kept(&first.seccomp, &now.seccomp)
            && kept(&first.landlock, &now.landlock)
            && ready.version == self.interpreter.version
    }
}

fn greet(
    interpreter: &Interpreter,
    worker: &mut Worker,
    setting: &Setting,
    deadline: Instant,
) -> Result<protocol::Ready, Stop> {
    worker.send(&session::order(&interpreter.path, setting), deadline)?;
    session::greeting(worker.receive(deadline)?)
}
