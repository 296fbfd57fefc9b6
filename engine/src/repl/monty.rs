//! The embedded engine: monty 1.4.0, a Python subset whose every external call surfaces as a value.
//!
//! A session's interpreter belongs to its [`Session`] and travels to the interpreter thread for each step; see the
//! `thread` and `alloc` modules for why there is only one.

use std::sync::Arc;
use std::time::Duration;

use monty_types::{
    DateTimeSource, MONTY_VERSION, OsPolicy, RandomSeed, RandomStart, ResourceLimits, ResourceTracker, SleepMode,
};

use rao_envs::Text;

use super::alloc::{LARGE, give_back};
use super::machine::{Machine, PRELUDE};
use super::{CellLimits, Function, Progress, Repl, ReplEngine, ReplError, Reply, checks, snapshot, thread};

/// The instant that a cell reads from the clock, in seconds since the Unix epoch: 1 January 2026, 00:00 UTC.
const NOW: i64 = 1_767_225_600;

/// The embedded engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monty(());

impl Monty {
    /// The engine. It has no state: all sessions of the process share one interpreter thread.
    #[must_use]
    pub fn new() -> Monty {
        Monty(())
    }
}

impl ReplEngine for Monty {
    fn identity(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(PRELUDE.as_bytes());
        hasher.update(&checks::VERSION.to_le_bytes());
        let digest = hasher.finalize().to_hex();
        format!("monty {MONTY_VERSION} prelude {}", digest.get(..12).unwrap_or_default())
    }

    fn open(&self, functions: &[Function], limits: &CellLimits, seed: u64) -> Result<Box<dyn Repl>, ReplError> {
        let (functions, limits, variables) = (functions.to_vec(), limits.clone(), Vec::new());
        Session::from(Arc::new(Setting { functions, limits, seed, variables }), Machine::fresh)
    }

    fn restore(&self, functions: &[Function], limits: &CellLimits, bytes: &[u8]) -> Result<Box<dyn Repl>, ReplError> {
        let parts = snapshot::read(&self.identity(), bytes)?;
        let seed = parts.head.seed;
        let (functions, limits, variables) = (functions.to_vec(), limits.clone(), Vec::new());
        let setting = Arc::new(Setting { functions, limits, seed, variables });
        Session::from(setting, move |setting| Machine::from_snapshot(setting, parts))
    }

    fn snapshots_are_quick(&self) -> bool {
        true
    }
}

/// What a session was opened with.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) functions: Vec<Function>,
    pub(super) limits: CellLimits,
    pub(super) seed: u64,
    /// Variables that the host holds until a cell reads them.
    pub(super) variables: Vec<(String, Text)>,
}

impl Setting {
    pub(super) fn variable(&self, name: &str) -> Option<&Text> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, text)| text)
    }

    /// The texts of those variables.
    pub(super) fn texts(&self) -> Vec<Text> {
        self.variables.iter().map(|(_, text)| text.clone()).collect()
    }

    pub(super) fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    pub(super) fn tracker(&self) -> ResourceTracker {
        ResourceTracker::new(ResourceLimits {
            max_feed_duration: Some(Duration::from_millis(self.limits.time_ms)),
            max_memory: Some(self.limits.memory),
            max_recursion_depth: self.limits.recursion,
            ..ResourceLimits::default()
        })
    }

    pub(super) fn policy(&self) -> OsPolicy {
        OsPolicy {
            datetime: DateTimeSource::Fixed { unix_seconds: NOW, microsecond: 0 },
            random_start: RandomStart::Seed(RandomSeed::Int(self.seed.into())),
            sleep: SleepMode::Zero,
            ..OsPolicy::default()
        }
    }
}

/// A node's session. `machine` is away while a step runs, and gone for good if a step broke it beyond repair.
struct Session {
    setting: Arc<Setting>,
    machine: Option<Box<Machine>>,
}

impl Session {
    fn from(
        setting: Arc<Setting>,
        make: impl FnOnce(&Setting) -> Result<Machine, ReplError> + Send + 'static,
    ) -> Result<Box<dyn Repl>, ReplError> {
        let shared = Arc::clone(&setting);
        let machine = thread::run(move || make(&shared))??;
        Ok(Box::new(Session { setting, machine: Some(Box::new(machine)) }))
    }

    fn machine(&mut self) -> Result<&mut Machine, ReplError> {
        self.machine.as_deref_mut().ok_or_else(broken)
    }

    /// Runs `step` on the interpreter thread. If it panics, the session goes back to the state before the cell.
    fn step(
        &mut self,
        step: impl FnOnce(&Setting, &mut Machine) -> Result<Progress, ReplError> + Send + 'static,
    ) -> Result<Progress, ReplError> {
        let mut machine = self.machine.take().ok_or_else(broken)?;
        let before = machine.before();
        let setting = Arc::clone(&self.setting);
        let done = thread::run(move || {
            let progress = machine.wake().and_then(|()| step(&setting, &mut machine));
            (machine, progress)
        });
        match done {
            Ok((machine, progress)) => {
                self.machine = Some(machine);
                progress
            }
            Err(error) => {
                let setting = Arc::clone(&self.setting);
                let again = thread::run(move || before.map(|before| Machine::back(&setting, &before)));
                self.machine = again.ok().flatten().and_then(Result::ok).map(Box::new);
                Err(error)
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let held = self.held();
        drop(self.machine.take());
        if held >= LARGE {
            give_back();
        }
    }
}

impl Session {
    /// Does something with the machine on the interpreter thread that runs no Python.
    fn away(
        &mut self,
        work: impl FnOnce(&Setting, &mut Machine) -> Result<(), ReplError> + Send + 'static,
    ) -> Result<(), ReplError> {
        let mut machine = self.machine.take().ok_or_else(broken)?;
        let setting = Arc::clone(&self.setting);
        let (machine, done) = thread::run(move || {
            let done = work(&setting, &mut machine);
            (machine, done)
        })?;
        self.machine = Some(machine);
        done
    }
}

impl Repl for Session {
    fn define(&mut self, name: &str, text: Text) -> Result<(), ReplError> {
        if !self.machine()?.is_idle() {
            return Err(ReplError::misuse("a variable was given while a cell is running"));
        }
        let mut setting = Setting::clone(&self.setting);
        setting.variables.retain(|(known, _)| known != name);
        setting.variables.push((name.to_owned(), text));
        self.setting = Arc::new(setting);
        Ok(())
    }

    fn start(&mut self, code: &str) -> Result<Progress, ReplError> {
        let setting = Arc::clone(&self.setting);
        self.machine()?.keep(&setting)?;
        let code = code.to_owned();
        self.step(move |setting, machine| machine.start(setting, &code))
    }

    fn answer(&mut self, reply: Reply) -> Result<Progress, ReplError> {
        self.step(move |setting, machine| machine.answer(setting, &reply))
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, ReplError> {
        let seed = self.setting.seed;
        if self.machine()?.is_resting() {
            self.away(|_, machine| machine.wake())?;
        }
        self.machine()?.snapshot(Monty::new().identity(), seed)
    }

    fn held(&self) -> usize {
        self.machine.as_ref().map_or(0, |machine| machine.held())
    }

    fn rest(&mut self) -> Result<(), ReplError> {
        let held = self.held();
        self.away(|setting, machine| machine.rest(setting))?;
        if held >= LARGE {
            give_back();
        }
        Ok(())
    }
}

fn broken() -> ReplError {
    ReplError::lost("an earlier cell broke it")
}
