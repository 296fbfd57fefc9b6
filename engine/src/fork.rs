//! Forks: new rollouts that go on live from an event of a recorded one.
//!
//! A fork's stream begins with its base's events up to the one forked from, the base's beginning included, then comes a
//! second `rollout_started` with the fork's own seed, policy and [`ForkBase`], and then what follows. The journal holds
//! the shared events once: [`Log::share_prefix`] gives them to the fork by reference, so a fork begins at the same few
//! hundred bytes wherever it leaves. Readers see a whole stream, and an archive holds one; in older logs the shared events
//! are copies. The run of the forks is an interrupted run like any other, and [`crate::record::resume`] carries it to its
//! end.

use rao_envs::Task;
use rao_store::event::{Body, ForkBase, HostFacts, PolicyIdentity, RolloutStarted, RunStarted};
use rao_store::{Address, EventSource, Expected, Filter, Log, RolloutId, RunId, Seq, Stream, Ticket};

use crate::error::EngineError;
use crate::record::{Plan, task_from_json};
use crate::seed;
use crate::tree::Tree;

/// Forks that begin together: what they share is read once for all of them.
const AT_A_TIME: usize = 256;

/// What forks leave from: a recorded rollout as of one of its events.
#[derive(Clone, Debug)]
pub struct Base {
    /// The rollout, and the last event that its forks share with it.
    pub place: ForkBase,
    /// The beginning in force at that event.
    pub started: RolloutStarted,
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
        for event in source.events(stream, Seq(0), &Filter::all()) {
            let event = event?;
            if event.seq > place.seq {
                break;
            }
            tree.apply(&event)?;
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
        Ok(Base { place, started })
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
        self.place.seq.0 + 1
    }

    fn stream(&self) -> Stream {
        Stream::Rollout(self.place.run, self.place.rollout)
    }

    /// What a fork says first.
    fn beginning(&self, member: RolloutId, run_seed: u64, policy: &PolicyIdentity) -> Body {
        let started = RolloutStarted {
            group: 0,
            member: member.0,
            seed: seed::fork(run_seed, member.0),
            policy: policy.clone(),
            fork_base: Some(self.place.clone()),
            ..self.started.clone()
        };
        started.into()
    }

    /// The shared events from number `from` on.
    fn bodies(&self, source: &dyn EventSource, from: u64) -> Result<Vec<Body>, EngineError> {
        let count = usize::try_from(self.shared().saturating_sub(from)).unwrap_or(usize::MAX);
        let events = source.events(self.stream(), Seq(from), &Filter::all()).take(count);
        events.map(|event| Ok(event?.body)).collect()
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

/// Writes the beginning of a run of forks: its manifest, and for each fork the shared events, by reference, and its own
/// beginning. What a crash left of an earlier attempt stays and is completed, also where an older program left some of the
/// shared events as copies.
///
/// # Errors
/// When the policy reads other token ids than those of the base, when the base is not in this log, or when the log does
/// not take the events.
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
    let members: Vec<RolloutId> = plan.rollouts();
    for members in members.chunks(AT_A_TIME) {
        begin_some(log, run, base, members, &|member| base.beginning(member, plan.seed, &policy))?;
    }
    log.flush()?;
    Ok(())
}

/// Begins forks, or completes their beginnings.
fn begin_some(
    log: &Log,
    run: RunId,
    base: &Base,
    members: &[RolloutId],
    beginning: &dyn Fn(RolloutId) -> Body,
) -> Result<(), EngineError> {
    let count = |member: RolloutId| log.head(Stream::Rollout(run, member)).map_or(0, |head| head.count);
    let new: Vec<Stream> =
        members.iter().filter(|member| count(**member) == 0).map(|member| Stream::Rollout(run, *member)).collect();
    let mut tickets: Vec<Ticket> = log.share_prefix(&new, base.stream(), base.shared());
    for member in members {
        let stream = Stream::Rollout(run, *member);
        let there = if new.contains(&stream) { base.shared() } else { count(*member) };
        if there > base.shared() {
            continue;
        }
        let mut missing = base.bodies(log, there)?;
        missing.push(beginning(*member));
        tickets.push(log.submit(stream, Expected::Exactly(Seq(there)), missing));
    }
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    Ok(())
}
