//! Forks: from which event they left, how their runs are made ready, and how they are drawn.

use rao_engine::EngineConfig;
use rao_engine::fork::{self, Base};
use rao_engine::record::Plan;
use rao_replay::recorded::FORK_FACT;
use rao_store::event::{Body, ForkBase, HostFacts, Kind, RunStarted};
use rao_store::{EventSource, Filter, Log, RolloutId, RunId, Seq, Stream, Target, resolve_target};
use serde_json::{Value, json};

use super::args::{DataArgs, PolicyArgs};
use super::exit::{Code, Failure};
use super::out::Out;
use super::policies::{self, Loaded};
use super::recording::{self, SELECTION_FACT, Setup};
use super::repls::{self, PythonArgs};
use super::{judges, open, table};

/// The event that a text names, as the last one that forks share with their base.
pub(crate) fn named(source: &dyn EventSource, text: &str) -> Result<ForkBase, Failure> {
    match resolve_target(source, text)? {
        Target::Event(address) => match address.stream {
            Stream::Rollout(run, rollout) => Ok(ForkBase { run, rollout, seq: address.seq }),
            Stream::Run(_) | Stream::Training(_) => Err(Failure::usage(format!("{address} is no event of a rollout"))
                .help("write RUN/ROLLOUT#SEQ, such as latest/3#120")),
        },
        _ => Err(Failure::usage(format!("`{text}` names no event to fork from"))
            .help("write RUN/ROLLOUT#SEQ, such as latest/3#120; `rao-log show RUN/ROLLOUT --node 0` lists events")),
    }
}

/// An address in full, as others rely on it.
pub(crate) fn address(base: &ForkBase) -> String {
    format!("{}/{}#{}", base.run, base.rollout, base.seq)
}

/// An address as people read it.
pub(crate) fn place(source: &dyn EventSource, base: &ForkBase) -> String {
    format!("{}/{}#{}", open::short(source, base.run), base.rollout, base.seq)
}

/// Where the run's rollouts left their base, if they are forks. All forks of a run left at the same event. Damaged events
/// are passed over: whoever draws forks is looking at something else.
pub(crate) fn base_of(source: &dyn EventSource, run: RunId) -> Option<ForkBase> {
    let first = open::rollouts(source, run).first().copied()?;
    let filter = Filter::kinds([Kind::RolloutStarted]);
    let events = source.events(Stream::Rollout(run, first), Seq(0), &filter).filter_map(Result::ok);
    let beginnings = events.filter_map(|event| match event.body {
        Body::RolloutStarted(started) => Some(started),
        _ => None,
    });
    beginnings.last().and_then(|started| started.fork_base)
}

/// The same from the run's own notes, which are there before its first rollout is.
pub(crate) fn noted_base(source: &dyn EventSource, run: RunId) -> Result<Option<ForkBase>, Failure> {
    let (_, host) = open::manifest(source, run)?;
    open::fact(&host, FORK_FACT).map(|text| named(source, text)).transpose()
}

/// What a fork is made with.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) data: &'a DataArgs,
    pub(crate) policy: &'a PolicyArgs,
    pub(crate) python: &'a PythonArgs,
    pub(crate) width: usize,
}

/// A fork to be made or completed, ready.
pub(crate) struct Forking {
    pub(crate) base: Base,
    pub(crate) manifest: RunStarted,
    pub(crate) setup: Setup,
}

/// Makes forks ready: reads the base, opens its world and loads the policy.
pub(crate) fn setup(
    source: &dyn EventSource,
    place: ForkBase,
    members: u32,
    seed: Option<u64>,
    means: Means<'_>,
) -> Result<Forking, Failure> {
    let (base_run, base_host) = open::manifest(source, place.run)?;
    let base = Base::read(source, place)?;
    let loaded = policies::recorded(&base_run, &base_host, means.policy)?;
    let selection = open::fact(&base_host, SELECTION_FACT).unwrap_or_default().to_owned();
    let mut host = recording::facts_with(selection, loaded.folder());
    host.facts.push((FORK_FACT.to_owned(), address(&base.place)));
    loaded.add_facts(&mut host);
    judges::keep_facts(&base_host, &mut host);
    let seed = seed.unwrap_or(base.started.seed);
    assemble(base, &base_run, host, loaded, (members, seed), means)
}

/// Makes an interrupted run of forks ready to go on, and completes the beginnings of its rollouts.
pub(crate) fn resume(log: &Log, run: RunId, place: ForkBase, means: Means<'_>) -> Result<Setup, Failure> {
    let (own, host) = open::manifest(log, run)?;
    let base = Base::read(log, place)?;
    let loaded = policies::recorded(&own, &host, means.policy)?;
    let forking = assemble(base, &own, host.clone(), loaded, (own.group_size, own.seed), means)?;
    if forking.manifest.policy != own.policy {
        let message = format!("run {run} was recorded with other weights than `{}` now has", own.policy.name);
        return Err(Failure::new(Code::Unavailable, message).help("name the right ones with `--policy local:DIR`"));
    }
    fork::begin(log, run, &forking.base, forking.manifest, host, &forking.setup.plan)?;
    Ok(forking.setup)
}

fn assemble(
    base: Base,
    like: &RunStarted,
    host: HostFacts,
    policy: Loaded,
    (members, seed): (u32, u64),
    means: Means<'_>,
) -> Result<Forking, Failure> {
    let config: EngineConfig = serde_json::from_str(&like.engine_config).map_err(|error| {
        Failure::new(Code::Integrity, format!("the settings of run {} cannot be read: {error}", base.place.run))
            .help("use the version of rao-log that recorded it")
    })?;
    recording::check_positions(&config, &policy)?;
    let repl = repls::recorded(&like.repl, means.python)?;
    if repl.identity() != like.repl {
        let message = format!("the base was recorded with `{}`, this program has `{}`", like.repl, repl.identity());
        return Err(Failure::usage(message).help("fork it with the version of rao-log that recorded it"));
    }
    let env = open::recorded_environment(like, means.data)?;
    let actor = policy.into_actor(&config)?;
    let manifest = fork::manifest(like, members, seed, &actor.identity());
    let panel = judges::recorded(&config, &host)?;
    let (tasks, width) = (vec![base.task()?], means.width);
    let plan = Plan { env, tasks, group_size: members, config, seed, only: None, width, panel };
    Ok(Forking { base, manifest, setup: Setup { plan, actor, repl, host } })
}

/// A fork that the log holds.
pub(crate) struct Known {
    run: RunId,
    rollout: RolloutId,
    base: ForkBase,
    success: Option<f64>,
    events: u64,
    policy: String,
}

/// Every fork of the log, by run and number.
pub(crate) fn all(source: &dyn EventSource) -> Vec<Known> {
    let mut known = Vec::new();
    for run in source.runs() {
        if base_of(source, run).is_none() {
            continue;
        }
        for rollout in open::rollouts(source, run) {
            let stream = Stream::Rollout(run, rollout);
            let (mut base, mut policy, mut success) = (None, String::new(), None);
            let filter = Filter::kinds([Kind::RolloutStarted, Kind::RolloutFinished]);
            for event in source.events(stream, Seq(0), &filter).filter_map(Result::ok) {
                match event.body {
                    Body::RolloutStarted(started) => (base, policy) = (started.fork_base, started.policy.name),
                    Body::RolloutFinished(end) => success = Some(end.success),
                    _ => {}
                }
            }
            let events = source.head(stream).map_or(0, |head| head.count);
            known.extend(base.map(|base| Known { run, rollout, base, success, events, policy }));
        }
    }
    known
}

fn of(all: &[Known], run: RunId, rollout: Option<RolloutId>) -> Vec<&Known> {
    let mut forks: Vec<&Known> = all
        .iter()
        .filter(|fork| fork.base.run == run && rollout.is_none_or(|rollout| fork.base.rollout == rollout))
        .collect();
    forks.sort_by_key(|fork| (fork.base.rollout, fork.base.seq, fork.run, fork.rollout));
    forks
}

/// Draws the forks of a run, or of one of its rollouts, and the forks of those.
pub(crate) fn print(out: &mut Out, source: &dyn EventSource, all: &[Known], run: RunId, rollout: Option<RolloutId>) {
    if of(all, run, rollout).is_empty() {
        return;
    }
    let mut table = table::Table::new(&["fork", "policy", ">success", ">events"]);
    add(&mut table, source, all, (run, rollout), "");
    out.line("");
    table.print(out);
}

fn add(
    table: &mut table::Table,
    source: &dyn EventSource,
    all: &[Known],
    (run, rollout): (RunId, Option<RolloutId>),
    below: &str,
) {
    let forks = of(all, run, rollout);
    for (place, fork) in forks.iter().enumerate() {
        let is_last = place + 1 == forks.len();
        let (branch, rest) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let from = match rollout {
            Some(_) => format!("#{}", fork.base.seq),
            None => format!("{}#{}", fork.base.rollout, fork.base.seq),
        };
        table.row([
            format!("{below}{branch}{from} -> {}/{}", open::short(source, fork.run), fork.rollout),
            fork.policy.clone(),
            fork.success.map_or("-".to_owned(), |success| success.to_string()),
            fork.events.to_string(),
        ]);
        add(table, source, all, (fork.run, Some(fork.rollout)), &format!("{below}{rest}"));
    }
}

/// The forks of a rollout, with the forks of those.
pub(crate) fn to_json(all: &[Known], run: RunId, rollout: RolloutId) -> Value {
    let row = |fork: &&Known| {
        json!({
            "fork": format!("{}/{}", fork.run, fork.rollout),
            "from": fork.base.seq.0,
            "policy": fork.policy,
            "success": fork.success,
            "events": fork.events,
            "forks": to_json(all, fork.run, fork.rollout),
        })
    };
    of(all, run, Some(rollout)).iter().map(row).collect()
}
