//! `rao-log import`: a run from a file.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rao_store::{Options, archive};

use crate::seal::summary_json;
use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::open;
use crate::shared::out::{Out, plural};

/// Take an archive into the log, after checking every byte, chain and digest of it.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The archive.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ImportArgs, out: &mut Out) -> Result<(), Failure> {
    let report = archive::import(&args.log.log, &args.file, Options::new(Arc::new(open::now_us)))?;
    if args.json.json {
        let mut value = summary_json(&report.archive);
        if let Some(fields) = value.as_object_mut() {
            fields.insert("added".into(), report.added.into());
        }
        out.json(&value);
        return Ok(());
    }
    let name = open::short(&open::reader(&args.log.log)?, report.archive.run);
    if report.added {
        let events = plural(report.archive.events, "event");
        out.line(format_args!("imported {name}: {events} in {}", plural(report.archive.streams, "stream")));
    } else {
        out.line(format_args!("{name} is in the log already, and is the same; nothing was done"));
    }
    Ok(())
}
