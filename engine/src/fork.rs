//! Forks: new rollouts that go on live from an event of a recorded one.
//!
//! A fork's stream is whole: it holds a copy of the base's events up to the one forked from, the base's beginning
//! included, then a second `rollout_started` with the fork's own seed, policy and [`ForkBase`], and then what follows. So
//! it can be verified, archived, replayed and trained on without its base, at the cost of the copied bytes. The run of the
//! forks is an interrupted run like any other, and [`crate::record::resume`] carries it to its end.

use std::collections::VecDeque;

use rao_envs::Task;
use rao_store::event::{Body, ForkBase, HostFacts, PolicyIdentity, RolloutStarted, RunStarted};
use rao_store::{Address, EventSource, Expected, Filter, Log, RolloutId, RunId, Seq, Stream, Ticket};

use crate::error::EngineError;
use crate::record::{Plan, task_from_json};
use crate::seed;
use crate::tree::Tree;

/// Forks whose beginnings are on their way to the disk at a time: each is as long as what it shares.
const AT_A_TIME: usize = 8;

/// What forks leave from: a recorded rollout as of one of its events.
#[derive(Clone, Debug)]
pub struct Base {
    /// The rollout, and the last event that its forks share with it.
    pub place: ForkBase,
    /// The beginning in force at that event.
    pub started: RolloutStarted,
    bodies: Vec<Body>,
}

impl Base {
    /// Reads the events that a fork from `place` shares.
    ///
    /// # Errors
    /// When an event cannot be read or does not fit, or when the rollout has ended at `place`, so that nothing is left to
    /// go on with.
    pub fn read(source: &dyn EventSource, place: ForkBase) -> Result<Base, EngineError> {
        let stream = Stream::Rollout(place.run, place.rollout);
        let mut tree = Tree::new();
        let mut bodies = Vec::new();
        for event in source.events(stream, Seq(0), &Filter::all()) {
            let event = event?;
            if event.seq > place.seq {
                break;
            }
            tree.apply(&event)?;
            bodies.push(event.body);
        }
        let address = Address { stream, seq: place.seq };
        if tree.events != place.seq.0 + 1 {
            return Err(EngineError::Config(format!("there is no event {address} to fork from")));
        }
        if tree.finished.is_some() {
            let reason = "the rollout has ended there, so nothing is left to go on with; name an earlier event";
            return Err(EngineError::Config(format!("{address} cannot be forked from: {reason}")));
        }
        let Some(started) = tree.started else {
            return Err(EngineError::Config(format!("stream {stream} has no rollout_started event to go on from")));
        };
        Ok(Base { place, started, bodies })
    }

    /// The base's task, which its forks keep.
    ///
    /// # Errors
    /// When the stored task cannot be read.
    pub fn task(&self) -> Result<Task, EngineError> {
        task_from_json(&self.started.task)
    }

    /// How many events a fork shares with its base.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.bodies.len() as u64
    }

    fn beginning(&self, member: RolloutId, run_seed: u64, policy: &PolicyIdentity) -> Vec<Body> {
        let started = RolloutStarted {
            group: 0,
            member: member.0,
            seed: seed::fork(run_seed, member.0),
            policy: policy.clone(),
            fork_base: Some(self.place.clone()),
            ..self.started.clone()
        };
        let mut bodies = self.bodies.clone();
        bodies.push(started.into());
        bodies
    }
}

/// The manifest of a run of `members` forks: that of the base's run, with what a fork changes.
#[must_use]
pub fn manifest(base: &RunStarted, members: u32, seed: u64, policy: &PolicyIdentity) -> RunStarted {
    RunStarted {
        policy: policy.clone(),
        seed,
        group_size: members,
        tasks: 1,
        rollouts: (0..members).map(RolloutId).collect(),
        ..base.clone()
    }
}

/// Writes the beginning of a run of forks: its manifest, and for each fork the shared events and its own beginning. What
/// a crash left of an earlier attempt stays and is completed.
///
/// # Errors
/// When the policy reads other token ids than those of the base, or when the log does not take the events.
pub fn begin(
    log: &Log,
    run: RunId,
    base: &Base,
    manifest: RunStarted,
    host: HostFacts,
    plan: &Plan,
) -> Result<(), EngineError> {
    let policy = manifest.policy.clone();
    if policy.tokenizer != base.started.policy.tokenizer {
        return Err(EngineError::Config(format!(
            "the base was recorded with tokenizer {}, the policy that is to go on has {}: its token ids mean something else",
            base.started.policy.tokenizer.short(),
            policy.tokenizer.short()
        )));
    }
    let own = Stream::Run(run);
    if log.head(own).is_none() {
        let manifest = RunStarted { durability: log.durability().to_string(), ..manifest };
        log.append(own, Expected::Exactly(Seq(0)), vec![manifest.into(), host.into()])?;
    }
    let mut tickets: VecDeque<Ticket> = VecDeque::new();
    for member in plan.rollouts() {
        while tickets.len() >= AT_A_TIME {
            tickets.pop_front().map(Ticket::wait).transpose()?;
        }
        let stream = Stream::Rollout(run, member);
        let there = log.head(stream).map_or(0, |head| head.count);
        let bodies = base.beginning(member, plan.seed, &policy);
        let missing: Vec<Body> = bodies.into_iter().skip(usize::try_from(there).unwrap_or(usize::MAX)).collect();
        if !missing.is_empty() {
            tickets.push_back(log.submit(stream, Expected::Exactly(Seq(there)), missing));
        }
    }
    for ticket in tickets {
        ticket.wait()?;
    }
    log.flush()?;
    Ok(())
}
