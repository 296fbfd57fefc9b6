//! `rao-log seal`: finished runs into compressed archives.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rao_store::archive::{self, SealReport};
use rao_store::{EventSource, Options, RunId, resolve_target, stream_size};
use serde_json::{Value, json};

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::open;
use crate::shared::out::{Out, plural};

/// Move finished runs out of the journal into compressed, checked archives in the log's folder `sealed`. Every command
/// reads them there as before.
#[derive(Args, Debug)]
pub(crate) struct SealArgs {
    /// The runs, recorded or training.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Write a copy of the archive to this file as well.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Say what would be sealed, and do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &SealArgs, out: &mut Out) -> Result<(), Failure> {
    if args.out.is_some() && args.runs.len() > 1 {
        return Err(Failure::usage("--out takes the archive of one run").help("seal the runs one by one"));
    }
    let (runs, names) = chosen(args)?;
    if args.dry_run {
        return plan(args, &runs, out);
    }
    let mut sealed = Vec::new();
    for (run, name) in runs.into_iter().zip(names) {
        let report = archive::seal(&args.log.log, run, Options::new(Arc::new(open::now_us)))?;
        if let Some(copy) = &args.out {
            archive::export(&open::reader(&args.log.log)?, run, copy)?;
        }
        if args.json.json {
            sealed.push(to_json(&report));
        } else {
            print(out, &name, &report);
        }
    }
    if args.json.json {
        out.json(&json!({ "sealed": sealed }));
    }
    Ok(())
}

fn chosen(args: &SealArgs) -> Result<(Vec<RunId>, Vec<String>), Failure> {
    let source = open::reader(&args.log.log)?;
    let mut runs: Vec<RunId> =
        args.runs.iter().map(|text| Ok(resolve_target(&source, text)?.run())).collect::<Result<_, Failure>>()?;
    runs.sort_unstable();
    runs.dedup();
    let names = runs.iter().map(|run| open::short(&source, *run)).collect();
    Ok((runs, names))
}

fn plan(args: &SealArgs, runs: &[RunId], out: &mut Out) -> Result<(), Failure> {
    let source = open::reader(&args.log.log)?;
    let mut planned = Vec::new();
    for run in runs {
        archive::check_sealable(&source, *run)?;
        let (mut events, mut bytes) = (0u64, 0u64);
        for stream in source.streams(*run) {
            let size = stream_size(&source, stream)?;
            events += size.events;
            bytes += size.bytes;
        }
        if args.json.json {
            planned.push(json!({ "run": run.to_string(), "events": events, "bytes": bytes }));
        } else {
            let name = open::short(&source, *run);
            let events = plural(events, "event");
            out.line(format_args!("would seal {name}: {events}, {bytes} bytes of the journal"));
        }
    }
    if args.json.json {
        out.json(&json!({ "would_seal": planned }));
    }
    Ok(())
}

fn print(out: &mut Out, name: &str, report: &SealReport) {
    let archive = &report.archive;
    let events = plural(archive.events, "event");
    out.line(format_args!("sealed   {name}: {events} in {}", plural(archive.streams, "stream")));
    out.line(format_args!(
        "archive  {} bytes for {} of the journal ({})",
        archive.bytes,
        archive.raw_bytes,
        percent(archive.bytes, archive.raw_bytes)
    ));
    out.line(format_args!("freed    {} bytes of the journal", report.freed));
}

#[expect(clippy::cast_precision_loss, reason = "sizes of files are far below 2^53")]
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

fn to_json(report: &SealReport) -> Value {
    let mut value = summary_json(&report.archive);
    if let Some(fields) = value.as_object_mut() {
        fields.insert("freed".into(), report.freed.into());
    }
    value
}

/// An archive as JSON.
pub(crate) fn summary_json(archive: &archive::ArchiveSummary) -> Value {
    json!({
        "run": archive.run.to_string(),
        "streams": archive.streams,
        "events": archive.events,
        "journal_bytes": archive.raw_bytes,
        "bytes": archive.bytes,
        "digest": archive.digest.to_string(),
    })
}
