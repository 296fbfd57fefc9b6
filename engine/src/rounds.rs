//! The `rounds` scheduler: in each round all ready nodes of all rollouts act as one batch, then every rollout runs its
//! cells in node order. Nothing depends on the clock, and a rollout's events do not depend on its neighbours.

use std::ops::ControlFlow;

use crate::actor::{Actor, Ask};
use crate::error::EngineError;
use crate::rollout::{Need, Rollout};

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

/// Told of the standing after every round; `Break` stops between rounds.
pub type Watch<'a> = dyn FnMut(Standing) -> ControlFlow<()> + 'a;

/// Runs rollouts to their end, at most `width` at a time, taking the next from `queue` as one finishes.
/// Each finished rollout is handed to `done`.
///
/// # Errors
/// At the first failure; every event acknowledged before stays in the log. [`EngineError::Stopped`] if the watcher
/// stopped it.
pub fn run(
    queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
    width: usize,
    actor: &mut dyn Actor,
    watch: &mut Watch<'_>,
    done: &mut dyn FnMut(Rollout),
) -> Result<Standing, EngineError> {
    let mut active: Vec<Rollout> = Vec::new();
    let mut standing = Standing::default();
    loop {
        while active.len() < width.max(1) {
            match queue.next() {
                Some(rollout) => active.push(rollout?),
                None => break,
            }
        }
        if active.is_empty() {
            return Ok(standing);
        }
        let mut needs = Vec::with_capacity(active.len());
        for rollout in &mut active {
            needs.push(rollout.advance()?);
            for row in rollout.take_released() {
                actor.release(row);
            }
        }
        for rollout in &mut active {
            rollout.settle()?;
        }
        standing.actions += act(&mut active, &needs, actor)?;
        let mut rest = Vec::with_capacity(active.len());
        for (rollout, need) in active.into_iter().zip(needs) {
            if need == Need::Nothing {
                standing.finished += 1;
                standing.events += rollout.tree().events;
                done(rollout);
            } else {
                rest.push(rollout);
            }
        }
        active = rest;
        standing.active = active.len();
        if watch(standing).is_break() {
            stop(&mut active)?;
            return Err(EngineError::Stopped);
        }
    }
}

/// Takes all actions of a round as one batch.
fn act(active: &mut [Rollout], needs: &[Need], actor: &mut dyn Actor) -> Result<u64, EngineError> {
    let mut asks: Vec<Ask<'_>> = Vec::new();
    for (rollout, need) in active.iter_mut().zip(needs) {
        if let Need::Actions(nodes) = need {
            asks.extend(rollout.asks(nodes)?);
        }
    }
    if asks.is_empty() {
        return Ok(0);
    }
    let mut actions = actor.act(&asks)?.into_iter();
    drop(asks);
    let mut taken = 0;
    for (rollout, need) in active.iter_mut().zip(needs) {
        if let Need::Actions(nodes) = need {
            for node in nodes {
                let action = actions
                    .next()
                    .ok_or_else(|| EngineError::Internal("the policy gave fewer actions than asked for".into()))?;
                rollout.act(node, action)?;
                taken += 1;
            }
        }
    }
    Ok(taken)
}

/// Hands on the actions of the last round, so that a stopped run can be taken up where it stood.
fn stop(active: &mut [Rollout]) -> Result<(), EngineError> {
    for rollout in active.iter_mut() {
        rollout.hand_on()?;
        rollout.settle()?;
    }
    Ok(())
}
