//! `rao-log verify`: every byte, chain, count and reward of a log.

use std::path::Path;

use clap::Args;
use rao_replay::trainer::{Class, fold};
use rao_store::archive::{ArchiveReader, EXTENSION, verify_archive};
use rao_store::{EventSource, Finding, RunId, RunRole, Stream, VerifyReport, resolve_run, verify};
use serde_json::{Value, json};

use crate::seal::summary_json;
use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::{Code, Failure};
use crate::shared::open;
use crate::shared::out::{Out, plural};

/// Check a log: checksums, hash chains, counts, content digests, and every reward against its successes.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Compute the rewards of this run only [default: of all runs]; files are always checked as a whole. Or a `.raolog`
    /// file, which is then checked in place of the log.
    #[arg(value_name = "RUN|FILE")]
    run: Option<String>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, out: &mut Out) -> Result<(), Failure> {
    if let Some(file) = args.run.as_deref().filter(|name| is_archive(name)) {
        return run_archive(Path::new(file), args, out);
    }
    let report = verify(&args.log.log)?;
    let rewards = if report.is_damaged() { None } else { Some(check_rewards(args)?) };
    let wrong = rewards.as_ref().map_or(&[][..], |rewards| rewards.wrong.as_slice());
    if args.json.json {
        out.json(&to_json(&report, rewards.as_ref()));
    } else {
        print(out, &report, rewards.as_ref());
    }
    let count = report.findings.len() + wrong.len();
    if report.is_damaged() || !wrong.is_empty() {
        let message = format!("{}: the log is damaged ({})", args.log.log.display(), plural(count as u64, "finding"));
        let help = "restore the named file from a copy if there is one; intact runs can still be shown and replayed, and new ones recorded into another log";
        return Err(Failure::new(Code::Integrity, message).help(help));
    }
    Ok(())
}

fn is_archive(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending == EXTENSION)
}

/// Checks one archive that need not belong to a log.
fn run_archive(file: &Path, args: &VerifyArgs, out: &mut Out) -> Result<(), Failure> {
    let report = verify_archive(file)?;
    let damaged = !report.findings.is_empty();
    let rewards = if damaged { None } else { Some(rewards_of(&ArchiveReader::open(file)?, &[report.summary.run])?) };
    let wrong = rewards.as_ref().map_or(&[][..], |rewards| rewards.wrong.as_slice());
    if args.json.json {
        let mut value = summary_json(&report.summary);
        if let Some(fields) = value.as_object_mut() {
            fields.insert("intact".into(), (!damaged && wrong.is_empty()).into());
            fields.insert("findings".into(), report.findings.iter().map(finding_json).collect());
            fields.insert("wrong_rewards".into(), wrong.into());
            fields.insert("rewards_checked".into(), rewards.as_ref().map(|rewards| rewards.nodes).into());
        }
        out.json(&value);
    } else {
        for finding in &report.findings {
            out.line(finding);
        }
        let (events, streams) = (plural(report.summary.events, "event"), plural(report.summary.streams, "stream"));
        out.line(format_args!(
            "checked  run {}, {streams}, {events}, {} bytes",
            report.summary.run, report.summary.bytes
        ));
        print_rewards(out, rewards.as_ref());
        if !damaged && wrong.is_empty() {
            out.line("intact");
        }
    }
    if damaged || !wrong.is_empty() {
        let count = report.findings.len() + wrong.len();
        let message = format!("{}: the archive is damaged ({})", file.display(), plural(count as u64, "finding"));
        return Err(Failure::new(Code::Integrity, message).help("get the file again from where it came from"));
    }
    Ok(())
}

struct Rewards {
    runs: u64,
    rollouts: u64,
    nodes: u64,
    unfinished: u64,
    wrong: Vec<String>,
}

fn check_rewards(args: &VerifyArgs) -> Result<Rewards, Failure> {
    let source = open::reader(&args.log.log)?;
    let runs: Vec<RunId> = match &args.run {
        Some(name) => vec![resolve_run(&source, name, RunRole::Recorded)?],
        None => source.runs().into_iter().filter(|run| source.head(Stream::Run(*run)).is_some()).collect(),
    };
    rewards_of(&source, &runs)
}

fn rewards_of(source: &dyn EventSource, runs: &[RunId]) -> Result<Rewards, Failure> {
    let mut rewards = Rewards { runs: 0, rollouts: 0, nodes: 0, unfinished: 0, wrong: Vec::new() };
    for run in runs.iter().copied().filter(|run| source.head(Stream::Run(*run)).is_some()) {
        rewards.runs += 1;
        match fold(source, &[run], None) {
            Ok(folded) => {
                rewards.rollouts += folded.rollouts.len() as u64;
                rewards.nodes += folded.rollouts.iter().map(|rollout| rollout.nodes.len() as u64).sum::<u64>();
                rewards.unfinished += folded.incomplete;
            }
            Err(error) if error.class() == Class::Integrity => rewards.wrong.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rewards)
}

fn print(out: &mut Out, report: &VerifyReport, rewards: Option<&Rewards>) {
    for finding in &report.findings {
        out.line(finding);
    }
    let (runs, events) = (plural(report.runs, "run"), plural(report.events, "event"));
    let (streams, files) = (plural(report.streams.len() as u64, "stream"), plural(report.files, "journal file"));
    out.line(format_args!("checked  {runs}, {streams}, {events}, {} bytes in {files}", report.bytes));
    if report.archives > 0 {
        let archives = plural(report.archives, "archive");
        out.line(format_args!("sealed   {archives} among them, {} bytes", report.archive_bytes));
    }
    if report.forks > 0 {
        let (forks, events) = (plural(report.forks, "fork"), plural(report.shared, "event"));
        out.line(format_args!("shared   {events} of {forks} by reference; they are counted above"));
    }
    if report.payloads > 0 {
        let texts = plural(report.payloads, "long text");
        out.line(format_args!("texts    {texts} stored once each, {} bytes of the journal", report.payload_bytes));
    }
    if !report.dropped.is_empty() {
        let events: u64 = report.dropped.iter().map(|dropped| dropped.events).sum();
        let (runs, events) = (plural(report.dropped.len() as u64, "run"), plural(events, "event"));
        out.line(format_args!("dropped  {runs} with {events}, by `rao-log prune`; none of them is counted above"));
    }
    print_rewards(out, rewards);
    if !report.is_damaged() && rewards.is_some_and(|rewards| rewards.wrong.is_empty()) {
        out.line("intact");
    }
}

fn print_rewards(out: &mut Out, rewards: Option<&Rewards>) {
    match rewards {
        None => out.line("rewards  not computed again, because the events are damaged"),
        Some(rewards) => {
            for wrong in &rewards.wrong {
                out.line(wrong);
            }
            let (nodes, rollouts) = (plural(rewards.nodes, "node"), plural(rewards.rollouts, "finished rollout"));
            let verdict = if rewards.wrong.is_empty() { "all as stored" } else { "not as stored" };
            out.line(format_args!("rewards  computed again for {nodes} of {rollouts}: {verdict}"));
            if rewards.unfinished > 0 {
                let unfinished = plural(rewards.unfinished, "rollout");
                out.line(format_args!(
                    "note     {unfinished} without an end; `rao-log record --resume RUN` finishes them"
                ));
            }
        }
    }
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "class": finding.class.name(),
        "stream": finding.stream.map(|stream| stream.to_string()),
        "seq": finding.seq.map(|seq| seq.0),
        "kind": finding.kind.map(|kind| kind.name()),
        "file": finding.file,
        "offset": finding.offset,
        "detail": finding.detail,
    })
}

fn to_json(report: &VerifyReport, rewards: Option<&Rewards>) -> Value {
    let findings: Vec<Value> = report.findings.iter().map(finding_json).collect();
    let wrong = rewards.map_or(&[][..], |rewards| rewards.wrong.as_slice());
    json!({
        "intact": !report.is_damaged() && wrong.is_empty(),
        "findings": findings,
        "wrong_rewards": wrong,
        "runs": report.runs,
        "streams": report.streams.len(),
        "events": report.events,
        "bytes": report.bytes,
        "files": report.files,
        "archives": report.archives,
        "archive_bytes": report.archive_bytes,
        "forks": report.forks,
        "shared": report.shared,
        "payloads": report.payloads,
        "payload_bytes": report.payload_bytes,
        "dropped": report.dropped.iter().map(|dropped| dropped.run.to_string()).collect::<Vec<_>>(),
        "rewards_checked": rewards.map(|rewards| rewards.nodes),
    })
}
