//! `rao-log replay`: run recorded rollouts again and compare every event.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use rao_engine::repl::{Keeping, KeptSessions, Monty};
use rao_envs::Environment;
use rao_replay::check::{Check, Checked, Divergence, Means, ReplayError, Request, manifest, replay_rollout};
use rao_replay::recorded::OtherData;
use rao_store::{EventSource, RolloutId, RunId, Seq, Stream, Target, resolve_target};
use serde_json::{Value, json};

use crate::shared::args::{DataArgs, JsonArgs, LogArgs, PolicyArgs, ThreadArgs};
use crate::shared::exit::{Code, Failure};
use crate::shared::out::{Out, plural};
use crate::shared::repls::{self, PythonArgs};
use crate::shared::{open, policies, recording};

/// The folder in the log's directory that sessions are kept in.
const SESSIONS: &str = "sessions";

/// How deep a replay goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckName {
    /// Rebuild the trees and compute every stored number again.
    Fold,
    /// Also run the Python cells again, with logged answers.
    Cells,
    /// Also run the environment again.
    Tools,
    /// Also sample again from the recorded weights.
    Tokens,
}

impl CheckName {
    pub(crate) fn check(self) -> Check {
        match self {
            CheckName::Fold => Check::Fold,
            CheckName::Cells => Check::Cells,
            CheckName::Tools => Check::Tools,
            CheckName::Tokens => Check::Tokens,
        }
    }
}

/// Replay recorded rollouts and stop at the first event that differs (exit code 3).
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// What to replay: RUN or RUN/ROLLOUT [default: latest].
    #[arg(value_name = "RUN|ROLLOUT")]
    target: Option<String>,
    /// The first event to make again: RUN/ROLLOUT#SEQ, or #SEQ of the rollout named. What comes before it is folded
    /// from the log.
    #[arg(long, value_name = "EVENT")]
    from: Option<String>,
    /// How deep.
    #[arg(long, value_enum, default_value = "tools")]
    check: CheckName,
    /// Go on through the other rollouts after a difference, and sum up.
    #[arg(long)]
    all: bool,
    /// Run every earlier cell of a session again that is entered in its middle, rather than taking the session from where
    /// an earlier replay kept it (`sessions` in the log's directory). It decides time, never results.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    fresh_sessions: bool,
    #[command(flatten)]
    data: DataArgs,
    /// Replay with the data that `--data` names even if it is not what the run was recorded with: the first event at which
    /// it makes a difference is then reported.
    #[arg(long)]
    other_data: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    python: PythonArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// What a replay of several rollouts came to.
#[derive(Default)]
pub(crate) struct Replayed {
    pub(crate) rollouts: Vec<(RunId, RolloutId, Checked)>,
    /// The first event that differs, of each rollout that has one.
    pub(crate) divergences: Vec<Divergence>,
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    let source = open::checked_reader(&args.log.log)?;
    let (chosen, from) = choose(args, &source)?;
    recording::stop_on_ctrl_c();
    let mut all = Replayed::default();
    // A replay from the start enters no session in its middle.
    let keeps = from > Seq(0) && args.log.log.is_dir() && !args.fresh_sessions;
    let sessions = keeps.then(|| Arc::new(KeptSessions::new(&args.log.log.join(SESSIONS))));
    for (run, rollouts) in &chosen {
        let mut means = means(&source, *run, args.check.check(), &args.data, &args.policy, &args.python)?;
        if args.other_data {
            means.env = means.env.map(|env| -> Arc<dyn Environment> { Arc::new(OtherData(env)) });
        }
        if let Some(sessions) = &sessions {
            means.repl = Keeping::of(means.repl, sessions);
        }
        let request = Request { check: args.check.check(), from };
        check_run(&source, *run, rollouts, &request, &mut means, args.all, &mut all)?;
    }
    if args.json.json {
        out.json(&to_json(args.check.check(), &all));
    } else {
        report(out, &source, args.check.check(), &all);
        if let Some(taken) = sessions.map(|sessions| sessions.taken()).filter(|taken| *taken > 0) {
            let taken = plural(taken, "session");
            out.line(format_args!(
                "taken up where an earlier replay kept them: {taken} (`--fresh-sessions` runs their cells)"
            ));
        }
    }
    verdict(&all)
}

type Chosen = Vec<(RunId, Vec<RolloutId>)>;

fn choose(args: &ReplayArgs, source: &dyn EventSource) -> Result<(Chosen, Seq), Failure> {
    let named = match (&args.target, &args.from) {
        (target, Some(from)) if from.starts_with('#') || from.bytes().all(|byte| byte.is_ascii_digit()) => {
            let target = target.as_deref().unwrap_or("latest");
            format!("{target}#{}", from.trim_start_matches('#'))
        }
        (None, Some(from)) => from.clone(),
        (Some(target), None) => target.clone(),
        (None, None) => "latest".to_owned(),
        (Some(target), Some(from)) => {
            let message = format!("both `{target}` and `--from {from}` name what to replay");
            return Err(
                Failure::usage(message).help("write `--from RUN/ROLLOUT#SEQ` alone, or `RUN/ROLLOUT --from #SEQ`")
            );
        }
    };
    match resolve_target(source, &named)? {
        Target::Run(run) => Ok((vec![(run, open::rollouts(source, run))], Seq(0))),
        Target::Rollout(run, rollout) => Ok((vec![(run, vec![rollout])], Seq(0))),
        Target::Event(address) => match address.stream {
            Stream::Rollout(run, rollout) => Ok((vec![(run, vec![rollout])], address.seq)),
            Stream::Run(_) | Stream::Training(_) => {
                let message = format!("{address} is no event of a rollout");
                Err(Failure::usage(message).help("write RUN/ROLLOUT#SEQ, such as latest/3#120"))
            }
        },
        Target::Training(run) => {
            let message = format!("{run} is a training run: there is nothing to run again in it");
            Err(Failure::usage(message).help("`rao-log train --dry-run` computes its numbers again"))
        }
    }
}

/// Gathers what a check of the run needs, and nothing that it does not.
pub(crate) fn means(
    source: &dyn EventSource,
    run: RunId,
    check: Check,
    data: &DataArgs,
    policy: &PolicyArgs,
    python: &PythonArgs,
) -> Result<Means, Failure> {
    let mut means = Means { env: None, repl: Arc::new(Monty::new()), actor: None };
    // A fold runs no cell, so it needs no interpreter.
    if check >= Check::Cells {
        let (started, host) = open::manifest(source, run)?;
        means.repl = repls::recorded(&started.repl, python)?;
        if check < Check::Tools {
            return Ok(means);
        }
        means.env = Some(open::recorded_environment(&started, data)?);
        if check == Check::Tokens {
            let (_, config) = manifest(source, run)?;
            means.actor = Some(policies::to_sample_again(&started, &host, policy)?.into_actor(&config)?);
        }
    }
    Ok(means)
}

/// Replays rollouts of a run: until one differs, or to the last with `go_on`.
pub(crate) fn check_run(
    source: &dyn EventSource,
    run: RunId,
    rollouts: &[RolloutId],
    request: &Request,
    means: &mut Means,
    go_on: bool,
    all: &mut Replayed,
) -> Result<(), Failure> {
    let bar = recording::bar(rollouts.len() as u64, "rollouts");
    for rollout in rollouts {
        if recording::stopped() {
            bar.finish_and_clear();
            return Err(Failure::new(Code::Other, "stopped; a replay changes nothing"));
        }
        let checked = replay_rollout(source, run, *rollout, request, means)?;
        bar.inc(1);
        all.divergences.extend(checked.divergence.clone());
        all.rollouts.push((run, *rollout, checked));
        if !all.divergences.is_empty() && !go_on {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The failure that a replay's outcome is, if it is one.
pub(crate) fn verdict(all: &Replayed) -> Result<(), Failure> {
    if let Some(divergence) = all.divergences.first() {
        let place = format!("{}/{}#{}", divergence.run, divergence.rollout, divergence.seq);
        let failure = Failure::new(Code::Divergence, format!("the replay differs from the log at {place}"));
        return Err(failure.help(format!("`rao-log show {place}` shows the event among its neighbours")));
    }
    let open: Vec<String> =
        all.rollouts.iter().filter(|(_, _, checked)| !checked.complete).map(|(_, id, _)| id.to_string()).collect();
    if open.is_empty() {
        return Ok(());
    }
    let message =
        format!("rollouts without an end: {}; what they have was replayed without a difference", open.join(", "));
    Err(Failure::new(Code::Incomplete, message).help("finish them with `rao-log record --resume RUN`"))
}

/// The report for people.
pub(crate) fn report(out: &mut Out, source: &dyn EventSource, check: Check, all: &Replayed) {
    if !all.divergences.is_empty() {
        report_divergences(out, check, all);
        return;
    }
    let sum = |number: fn(&Checked) -> u64| all.rollouts.iter().map(|(_, _, checked)| number(checked)).sum::<u64>();
    let mut runs: Vec<String> = Vec::new();
    for (run, _, _) in &all.rollouts {
        let id = open::short(source, *run);
        if runs.last() != Some(&id) {
            runs.push(id);
        }
    }
    let rollouts = plural(all.rollouts.len() as u64, "rollout");
    out.line(format_args!("{}: {rollouts} of {} replayed, no difference", check.name(), runs.join(", ")));
    let skipped = sum(|checked| checked.skipped);
    let (compared, calls) = (plural(sum(|c| c.compared), "event"), plural(sum(|c| c.tool_calls), "tool call"));
    let (actions, judged) = (plural(sum(|c| c.policy_calls), "action"), plural(sum(|c| c.judge_calls), "node"));
    out.line(format_args!("made again and compared: {compared} ({skipped} folded before the start)"));
    out.line(format_args!("executed: {calls}, {actions} sampled, {judged} judged"));
}

fn report_divergences(out: &mut Out, check: Check, all: &Replayed) {
    for (number, divergence) in all.divergences.iter().enumerate() {
        if number > 0 {
            out.line("");
        }
        out.line(divergence);
    }
    if all.rollouts.len() > 1 {
        let (of, differ) = (plural(all.rollouts.len() as u64, "rollout"), all.divergences.len());
        out.line("");
        out.line(format_args!("{}: {differ} of {of} replayed differ from the log", check.name()));
        for divergence in &all.divergences {
            let place = format!("{}/{}#{}", divergence.run, divergence.rollout, divergence.seq);
            out.line(format_args!("  {place} {}, {}", divergence.kind, divergence.field));
        }
    }
}

fn to_json(check: Check, all: &Replayed) -> Value {
    let rollouts: Vec<Value> = all
        .rollouts
        .iter()
        .map(|(run, rollout, checked)| {
            json!({
                "run": run.to_string(),
                "rollout": rollout.0,
                "events": checked.events,
                "skipped": checked.skipped,
                "compared": checked.compared,
                "tool_calls": checked.tool_calls,
                "policy_calls": checked.policy_calls,
                "judge_calls": checked.judge_calls,
                "complete": checked.complete,
            })
        })
        .collect();
    let divergences: Vec<Value> = all.divergences.iter().map(divergence_json).collect();
    let first = divergences.first().cloned();
    json!({ "check": check.name(), "rollouts": rollouts, "divergence": first, "divergences": divergences })
}

/// A divergence as programs read it.
pub(crate) fn divergence_json(divergence: &Divergence) -> Value {
    json!({
        "run": divergence.run.to_string(),
        "rollout": divergence.rollout.0,
        "node": divergence.node.as_ref().map(ToString::to_string),
        "step": divergence.step,
        "seq": divergence.seq.0,
        "kind": divergence.kind,
        "field": divergence.field,
        "expected": divergence.expected,
        "got": divergence.got,
        "decoded": divergence.decoded.as_ref().map(|(expected, got)| [expected, got]),
        "before": divergence.before,
        "cause": divergence.cause,
    })
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        let code = match error {
            ReplayError::Log(error) => return error.into(),
            ReplayError::Engine(error) => return error.into(),
            ReplayError::Missing { what: "the policy", .. } => Code::Unavailable,
            ReplayError::Missing { .. } | ReplayError::From { .. } => Code::Usage,
            ReplayError::Manifest { .. } => Code::Integrity,
            _ => Code::Other,
        };
        Failure::new(code, error.to_string())
    }
}
