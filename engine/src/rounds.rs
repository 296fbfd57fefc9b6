//! The `rounds` scheduler: in each round all ready nodes of all rollouts act as one batch, then every rollout runs its
//! cells in node order. Nothing depends on the clock, and a rollout's events do not depend on its neighbours.
//!
//! Judges outside this process are asked beside all that, and tool calls that can run by themselves run on threads. A
//! rollout stands still where its next event needs one of their answers, and the others go on without it; so its events are
//! the same however long they take.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use crossbeam::channel::{Receiver, unbounded};

use crate::actor::{Actor, Ask};
use crate::beside::{Beside, Came};
use crate::error::EngineError;
use crate::rollout::{Need, Rollout};

/// How long the scheduler waits at most before it looks whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// How far a set of rollouts has come; handed to the watcher after every round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Rollouts that have finished.
    pub finished: usize,
    /// Rollouts in progress.
    pub active: usize,
    /// Actions taken so far.
    pub actions: u64,
    /// Events emitted by finished rollouts.
    pub events: u64,
}

/// Told of the standing after every round, and several times a second while nobody can go on; `Break` stops there.
pub type Watch<'a> = dyn FnMut(Standing) -> ControlFlow<()> + 'a;

/// Runs rollouts to their end, at most `width` at a time, taking the next from `queue` as one finishes.
/// Each finished rollout is handed to `done`.
///
/// # Errors
/// At the first failure; every event acknowledged before stays in the log, and what is on its way is given up.
/// [`EngineError::Stopped`] if the watcher stopped it.
pub fn run(
    queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
    width: usize,
    actor: &mut dyn Actor,
    watch: &mut Watch<'_>,
    done: &mut dyn FnMut(Rollout),
) -> Result<Standing, EngineError> {
    let mut rounds = Rounds::new();
    match rounds.run(queue, width.max(1), actor, watch, done) {
        Ok(()) => Ok(rounds.standing),
        Err(EngineError::Stopped) => {
            rounds.hand_on()?;
            Err(EngineError::Stopped)
        }
        Err(error) => Err(error),
    }
}

/// A rollout in progress.
struct Running {
    rollout: Rollout,
    /// What it waits for; `None` if it can go on.
    need: Option<Need>,
}

struct Rounds {
    /// By the order in which they began.
    active: BTreeMap<usize, Running>,
    begun: usize,
    beside: Beside,
    arrivals: Receiver<Came>,
    standing: Standing,
}

impl Rounds {
    fn new() -> Self {
        let (sender, arrivals) = unbounded();
        // A scheduler that has ended does not listen any more.
        let beside = Beside::new(move |came| drop(sender.send(came)));
        Rounds { active: BTreeMap::new(), begun: 0, beside, arrivals, standing: Standing::default() }
    }

    fn run(
        &mut self,
        queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
        width: usize,
        actor: &mut dyn Actor,
        watch: &mut Watch<'_>,
        done: &mut dyn FnMut(Rollout),
    ) -> Result<(), EngineError> {
        loop {
            self.admit(queue, width)?;
            if self.active.is_empty() {
                return Ok(());
            }
            self.go_on(actor)?;
            for running in self.active.values_mut() {
                running.rollout.settle()?;
            }
            let acted = self.act(actor)?;
            let finished = self.retire(done);
            self.take_arrivals(acted == 0 && finished == 0)?;
            self.standing.active = self.active.len();
            if watch(self.standing).is_break() {
                return Err(EngineError::Stopped);
            }
        }
    }

    fn admit(
        &mut self,
        queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
        width: usize,
    ) -> Result<(), EngineError> {
        while self.active.len() < width {
            let Some(rollout) = queue.next() else { return Ok(()) };
            self.active.insert(self.begun, Running { rollout: rollout?, need: None });
            self.begun += 1;
        }
        Ok(())
    }

    /// Lets every rollout that can go on do so.
    fn go_on(&mut self, actor: &mut dyn Actor) -> Result<(), EngineError> {
        for (number, Running { rollout, need }) in &mut self.active {
            if need.is_none() {
                *need = Some(rollout.advance()?);
                for row in rollout.take_released() {
                    actor.release(row);
                }
                self.beside.start(*number, rollout)?;
            }
        }
        Ok(())
    }

    /// Takes all actions of a round as one batch.
    fn act(&mut self, actor: &mut dyn Actor) -> Result<u64, EngineError> {
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for Running { rollout, need } in self.active.values_mut() {
            if let Some(Need::Actions(nodes)) = need {
                asks.extend(rollout.asks(nodes)?);
            }
        }
        if asks.is_empty() {
            return Ok(0);
        }
        let mut actions = actor.act(&asks)?.into_iter();
        drop(asks);
        let mut taken = 0;
        for Running { rollout, need } in self.active.values_mut() {
            let Some(Need::Actions(nodes)) = need else { continue };
            for node in nodes.iter() {
                let action = actions
                    .next()
                    .ok_or_else(|| EngineError::Internal("the policy gave fewer actions than asked for".into()))?;
                rollout.act(node, action)?;
                taken += 1;
            }
            *need = None;
        }
        self.standing.actions += taken;
        Ok(taken)
    }

    /// Hands over the rollouts that have finished; says how many.
    fn retire(&mut self, done: &mut dyn FnMut(Rollout)) -> usize {
        let before = self.active.len();
        for (_, running) in self.active.extract_if(.., |_, running| running.need == Some(Need::Nothing)) {
            self.standing.finished += 1;
            self.standing.events += running.rollout.tree().events;
            done(running.rollout);
        }
        before - self.active.len()
    }

    /// Takes in what has come; waits for something to come if nobody can go on.
    fn take_arrivals(&mut self, waits: bool) -> Result<(), EngineError> {
        if self.beside.outstanding() == 0 {
            return match waits {
                true => Err(EngineError::Internal("no rollout can go on".into())),
                false => Ok(()),
            };
        }
        let first = match waits {
            true => self.arrivals.recv_timeout(PATIENCE).ok(),
            false => self.arrivals.try_recv().ok(),
        };
        let mut next = first;
        while let Some(came) = next {
            let running = self.active.get_mut(&came.rollout());
            let (rollout, need) = match running {
                Some(Running { rollout, need }) => (Some(rollout), Some(need)),
                None => (None, None),
            };
            self.beside.take(came, rollout)?;
            if let Some(need) = need
                && matches!(need, Some(Need::Calls | Need::Verdicts(_)))
            {
                *need = None;
            }
            next = self.arrivals.try_recv().ok();
        }
        Ok(())
    }

    /// Hands on the actions of the last round, so that a stopped run can be taken up where it stood.
    fn hand_on(&mut self) -> Result<(), EngineError> {
        for running in self.active.values_mut() {
            running.rollout.hand_on()?;
            running.rollout.settle()?;
        }
        Ok(())
    }
}
