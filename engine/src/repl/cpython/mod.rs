//! The second engine: CPython in worker processes. The whole language and every installed module, at the price of a
//! process for each live session.
//!
//! One worker serves one session, not a whole tree: the traits know no trees, sessions cannot disturb one another, the
//! memory limit is a session's own, and a cell that has to be killed takes nothing else with it. All workers of an engine
//! are forks of one process, its fork server, that has loaded what they need and never runs a cell. CPython has no
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
#[cfg(unix)]
mod server;
mod session;
#[cfg(unix)]
mod wire;
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
use self::worker::{Server, Stop, Worker};

pub use self::sandbox::{CpythonError, Protections};

/// The Python that the fork server runs, and each worker after its fork.
const PROGRAM: &str =
    concat!(include_str!("lockdown.py"), "\n", include_str!("worker.py"), "\n", include_str!("forkserver.py"));

/// How long a fork server, or a worker, may take to be there.
const START: Duration = Duration::from_secs(60);

/// How the engine is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpythonOptions {
    /// The interpreter: a path, or a name that is looked for in `PATH`.
    pub python: PathBuf,
    /// Run cells even where the machine does not allow the sandbox.
    pub allow_unsandboxed: bool,
    /// The most workers at a time, each of about 3 MiB and what its cells keep. Sessions beyond it share them: a session without a worker gets
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
    /// Starts the fork server and a worker, to see what the interpreter is and how far the machine lets it be locked in.
    ///
    /// # Errors
    /// [`CpythonError`] if there is no interpreter that does, or if cells could reach the network, start processes or
    /// change files and `allow_unsandboxed` is not set.
    pub fn new(options: CpythonOptions) -> Result<Cpython, CpythonError> {
        let CpythonOptions { python, allow_unsandboxed, workers } = options;
        let interpreter = Interpreter::find(&python)?;
        let (server, ready) = first(&interpreter).map_err(|stop| {
            let reason = match stop {
                Stop::Late => "its worker did not start in time".to_owned(),
                Stop::Broken(reason) => format!("its worker broke: {reason}"),
            };
            CpythonError::Interpreter { python, reason }
        })?;
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
            server: Mutex::new(Some(server)),
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
    /// What workers are forked from. It starts again if it ends; its workers end with it, and are made again.
    server: Mutex<Option<Arc<Server>>>,
}

impl Shared {
    /// A worker for the session of `slot`, which the caller holds.
    fn worker(&self, slot: &Slot) -> Result<Worker, ReplError> {
        self.make_room(slot);
        let mut failed = String::new();
        // That a server has ended may show only when it is asked for a worker.
        for _ in 0..2 {
            let made = self.server().and_then(|server| {
                let worker = Worker::open(&server, Instant::now() + START);
                worker.inspect_err(|_| self.discard(&server))
            });
            match made {
                Ok(worker) => return Ok(worker),
                Err(Stop::Late) => "the fork server does not answer".clone_into(&mut failed),
                Err(Stop::Broken(reason)) => failed = reason,
            }
            tracing::warn!(reason = %failed, "a Python worker could not be forked");
        }
        Err(ReplError::lost(format!("its process cannot be started: {failed}")))
    }

    /// The fork server, started again if it has ended.
    fn server(&self) -> Result<Arc<Server>, Stop> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = server.as_ref().filter(|server| server.is_alive()) {
            return Ok(Arc::clone(server));
        }
        let new = Arc::new(Server::start(&self.interpreter, Instant::now() + START)?);
        *server = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Forks no more workers from this server. It lives on for those that it has.
    fn discard(&self, broken: &Arc<Server>) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if server.as_ref().is_some_and(|server| Arc::ptr_eq(server, broken)) {
            *server = None;
        }
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

/// A fork server, and what its first worker says of itself.
fn first(interpreter: &Interpreter) -> Result<(Arc<Server>, protocol::Ready), Stop> {
    let deadline = Instant::now() + START;
    let server = Arc::new(Server::start(interpreter, deadline)?);
    let mut worker = Worker::open(&server, deadline)?;
    let limits = CellLimits::default();
    let setting = Setting { functions: Vec::new(), limits, seed: 0, variables: Vec::new() };
    let ready = greet(&mut worker, &setting, deadline)?;
    Ok((server, ready))
}

fn greet(worker: &mut Worker, setting: &Setting, deadline: Instant) -> Result<protocol::Ready, Stop> {
    worker.send(&session::order(setting), deadline)?;
    session::greeting(worker.receive(deadline)?)
}
