//! Calls that run by themselves until their results come.
//!
//! Under `arrival` they run beside everything else: while one runs, its node's cell stays suspended and other nodes go on;
//! the result is answered, and takes effect in the world, when it comes. Under `rounds` the whole rollout stands still
//! meanwhile, so that its events are those of calls made in place, but other rollouts go on, and a run can be stopped. A
//! replay runs nothing beside anything else: there the log's next event says whether a call's result has come.

use std::collections::BTreeMap;

use rao_envs::{Args, Detached, ToolResult};
use rao_store::NodePath;

use super::{LAUNCH, Rollout, length};
use crate::answer;
use crate::config::Scheduler;
use crate::error::EngineError;
use crate::outside::CallSite;
use crate::tree::Node;

/// A call of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallKey {
    /// The calling node.
    pub node: NodePath,
    /// Its step.
    pub step: u32,
    /// The call's number within the step.
    pub call: u32,
}

impl CallKey {
    fn of(site: &CallSite<'_>) -> CallKey {
        CallKey { node: site.node.clone(), step: site.step, call: site.call }
    }
}

/// A call to be run, on any thread; its result goes to [`Rollout::arrive`].
pub struct DetachedCall {
    /// Which call it is.
    pub key: CallKey,
    /// What to run.
    pub job: Detached,
}

/// The rollout's detached calls.
#[derive(Default)]
pub(super) struct Calls {
    /// Calls that were started: without a result while they run.
    started: BTreeMap<CallKey, Option<ToolResult>>,
    /// Those of them that nobody has taken to run yet.
    waiting: Vec<DetachedCall>,
}

impl Calls {
    /// The node's cell is over: nobody waits for its calls any more.
    pub(super) fn forget(&mut self, node: &NodePath) {
        self.started.retain(|key, _| key.node != *node);
        self.waiting.retain(|call| call.key.node != *node);
    }
}

impl Rollout {
    /// Calls that were detached since the last time, to be run anywhere.
    pub fn take_detached(&mut self) -> Vec<DetachedCall> {
        std::mem::take(&mut self.detached.waiting)
    }

    /// Takes the result of a detached call; one that nobody waits for any more is dropped.
    pub fn arrive(&mut self, key: &CallKey, result: ToolResult) {
        if let Some(place) = self.detached.started.get_mut(key) {
            *place = Some(result);
        }
    }

    /// Whether a call's result is there, or is made in place.
    pub(super) fn has_come(&self, node: &Node, call: u32) -> bool {
        let Some(step) = node.steps.len().checked_sub(1).and_then(|step| u32::try_from(step).ok()) else { return true };
        let site = CallSite { node: &node.path, step, call };
        match (self.scheduler(), self.parts.outside.is_next(&site)) {
            (Scheduler::Rounds, Some(_)) => true,
            (Scheduler::Arrival, Some(is_next)) => is_next,
            (_, None) => self.detached.started.get(&CallKey::of(&site)).is_none_or(Option::is_some),
        }
    }

    /// Whether a call runs whose result is to come before anything else.
    pub(super) fn stands_still(&self) -> bool {
        self.scheduler() == Scheduler::Rounds && self.detached.started.values().any(Option::is_none)
    }

    /// Starts a call beside everything else, where that is possible and was not done yet. False while its result is awaited.
    pub(super) fn detach(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> bool {
        if let Some(is_next) = self.parts.outside.is_next(site) {
            return is_next || self.scheduler() == Scheduler::Rounds;
        }
        let key = CallKey::of(site);
        if let Some(result) = self.detached.started.get(&key) {
            return result.is_some();
        }
        match self.parts.outside.detached(site, tool, args) {
            None => true,
            Some(job) => {
                self.detached.started.insert(key.clone(), None);
                self.detached.waiting.push(DetachedCall { key, job });
                false
            }
        }
    }

    /// Starts the tool calls that a cell waits for.
    pub(super) fn detach_pending(&mut self, path: &NodePath, step: u32, pending: &[u32]) -> Result<(), EngineError> {
        if self.scheduler() == Scheduler::Rounds {
            return Ok(());
        }
        self.detach_all(path, step, pending)
    }

    fn detach_all(&mut self, path: &NodePath, step: u32, calls: &[u32]) -> Result<(), EngineError> {
        for number in calls {
            let logged = self.node(path)?.last_step().and_then(|step| step.calls.get(*number as usize));
            let Some((name, args)) =
                logged.filter(|call| call.name != LAUNCH).map(|c| (c.name.clone(), c.args.clone()))
            else {
                continue;
            };
            self.detach(&CallSite { node: path, step, call: *number }, &name, &answer::args(path, &args)?);
        }
        Ok(())
    }

    /// Starts, under `rounds`, those of the calls that can run by themselves. False while the result of one is awaited.
    pub(super) fn detach_for_round(&mut self, path: &NodePath, step: u32, calls: &[u32]) -> Result<bool, EngineError> {
        if self.scheduler() == Scheduler::Rounds {
            self.detach_all(path, step, calls)?;
        }
        Ok(!self.stands_still())
    }

    /// The result of a call that is being answered: the one that came, or else it is executed now.
    pub(super) fn executed(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> ToolResult {
        match self.detached.started.remove(&CallKey::of(site)).flatten() {
            Some(result) => {
                self.parts.outside.absorb(site, tool, args, &result);
                result
            }
            None => self.parts.outside.call(site, tool, args),
        }
    }

    /// How many calls run by themselves.
    #[must_use]
    pub fn detached_calls(&self) -> u32 {
        let running = self.detached.started.values().filter(|result| result.is_none()).count();
        length(running).unwrap_or(u32::MAX)
    }
}
