//! Interpreters out of use, and the state before a cell: in a form that leaves the host's own texts out.

use std::sync::Arc;

use monty::{MontyRepl, ReplProgress};

use super::ReplError;
use super::alloc::charged;
use super::compact::Compact;
use super::machine::{Before, Machine, State};
use super::monty::Setting;

/// A machine's state that is put away.
#[derive(Clone)]
pub(super) enum Resting {
    Idle(Arc<Compact>),
    Running(Arc<Compact>),
}

fn failed(reason: impl ToString) -> ReplError {
    ReplError::snapshot(reason.to_string())
}

/// An idle session, for the case that its next cell breaks it.
pub(super) fn keep(repl: &MontyRepl, setting: &Setting) -> Result<Before, ReplError> {
    Compact::write(repl, setting.texts()).map(|compact| Before::Kept(Arc::new(compact))).map_err(failed)
}

/// A session that was kept.
pub(super) fn kept(compact: &Compact) -> Result<MontyRepl, ReplError> {
    compact.read().map_err(failed)
}

impl Machine {
    /// Bytes that the session holds.
    pub(super) fn held(&self) -> usize {
        match self.state {
            State::Resting(_) => 0,
            _ => usize::try_from(self.charge).unwrap_or_default(),
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting(_))
    }

    /// Puts the state away; what it held is free when this returns.
    pub(super) fn rest(&mut self, setting: &Setting) -> Result<(), ReplError> {
        let resting = match &self.state {
            State::Idle(repl) => Resting::Idle(Arc::new(Compact::write(repl, setting.texts()).map_err(failed)?)),
            State::Running(progress) => {
                Resting::Running(Arc::new(Compact::write(progress, setting.texts()).map_err(failed)?))
            }
            State::Resting(_) | State::Moving => return Ok(()),
        };
        let state = std::mem::replace(&mut self.state, State::Resting(resting));
        charged(&mut self.charge, || drop(state));
        Ok(())
    }

    /// Makes the state again.
    pub(super) fn wake(&mut self) -> Result<(), ReplError> {
        let State::Resting(resting) = &self.state else { return Ok(()) };
        let resting = resting.clone();
        self.state = charged(&mut self.charge, || match &resting {
            Resting::Idle(compact) => compact.read::<MontyRepl>().map(State::Idle),
            Resting::Running(compact) => compact.read::<ReplProgress>().map(State::Running),
        })
        .map_err(|reason| ReplError::lost(reason.to_string()))?;
        Ok(())
    }
}
