//! `rao-log doctor`: repairs what can be repaired, and says what is lost.

use clap::Args;
use rao_store::{Finding, FindingClass, Log, Options, VerifyReport, verify};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::{Code, Failure};
use crate::shared::open;
use crate::shared::out::{Out, plural};

/// Repair a log after a crash or damage: cut an unfinished commit, rebuild the manifest and the ordered store, finish
/// sealing and pruning. No readable event is ever thrown away; what is lost is named.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Say what is wrong and what would be done, and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs, out: &mut Out) -> Result<(), Failure> {
    let dir = &args.log.log;
    let before = verify(dir)?;
    let plan = plan(dir, &before);
    if !args.json.json {
        for line in &plan {
            out.line(format_args!("plan  {line}"));
        }
    }
    let mut done = Vec::new();
    if !args.dry_run {
        let (log, report) = Log::open(dir, Options::new(Arc::new(open::now_us)))?;
        log.close()?;
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        done = report.lines.into_iter().filter(|line| !found.contains(line)).collect();
        if report.freed_bytes > 0 {
            done.push(format!(
                "what sealed and dropped runs had left was removed; {} bytes were given back",
                report.freed_bytes
            ));
        }
    }
    let after = if args.dry_run { before.clone() } else { verify(dir)? };
    let lost: Vec<&Finding> = after.findings.iter().filter(|finding| !is_repairable(finding)).collect();
    if args.json.json {
        let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
        out.json(&to_json(args.dry_run, &plan, &done, &lost, &after));
    } else {
        for line in &done {
            out.line(format_args!("done  {line}"));
        }
        for finding in &lost {
            out.line(format_args!("lost  {finding}"));
        }
        let (events, streams) = (plural(after.events, "event"), plural(after.streams.len() as u64, "stream"));
        out.line(format_args!("kept  {events} in {streams} can be read"));
    }
    if lost.is_empty() {
        return Ok(());
    }
    let message =
        format!("{}: what is damaged cannot be repaired ({})", dir.display(), plural(lost.len() as u64, "finding"));
    let help = "restore the named file from a copy if there is one; everything else can be read, and new runs recorded";
    Err(Failure::new(Code::Integrity, message).help(help))
}

/// Whether opening the log for writing mends it.
fn is_repairable(finding: &Finding) -> bool {
    let manifest = finding.class == FindingClass::ManifestDisagreement && finding.file.as_deref() == Some("MANIFEST");
    manifest || finding.class == FindingClass::TornTail
}

fn plan(dir: &Path, found: &VerifyReport) -> Vec<String> {
    let mut plan = Vec::new();
    for finding in found.findings.iter().filter(|finding| is_repairable(finding)) {
        let what =
            if finding.class == FindingClass::TornTail { "cut the unfinished commit" } else { "rebuild MANIFEST" };
        plan.push(format!("{what} ({finding})"));
    }
    let unfinished = found.dropped.iter().filter(|dropped| dropped.unfinished).count();
    if unfinished > 0 {
        plan.push(format!("remove what is left of {}", plural(unfinished as u64, "dropped run")));
    }
    let sled = if dir.join("events").exists() {
        "compare the ordered store with the journal; if it differs, set it aside and build it anew"
    } else {
        "build the ordered store from the journal"
    };
    plan.push(sled.to_owned());
    plan
}

fn to_json(dry_run: bool, plan: &[String], done: &[String], lost: &[String], after: &VerifyReport) -> Value {
    json!({
        "dry_run": dry_run,
        "plan": plan,
        "done": done,
        "lost": lost,
        "events": after.events,
        "streams": after.streams.len(),
    })
}
