//! `rao-log export`: a run as a file.

use std::path::PathBuf;

use clap::Args;
use rao_store::{archive, resolve_target};

use crate::seal::{percent, summary_json};
use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::open;
use crate::shared::out::{Out, plural};

/// Write a finished run into an archive of its own, for version control, tests or another log. The log stays as it is.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The run, recorded or training.
    #[arg(value_name = "RUN")]
    run: String,
    /// The file, by custom with the ending `.raolog`. One that is there is not replaced.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ExportArgs, out: &mut Out) -> Result<(), Failure> {
    if args.file.exists() {
        let message = format!("{}: there is such a file already", args.file.display());
        return Err(Failure::usage(message).help("name another one, or remove it first"));
    }
    let source = open::checked_reader(&args.log.log)?;
    let run = resolve_target(&source, &args.run)?.run();
    let archive = archive::export(&source, run, &args.file)?;
    if args.json.json {
        out.json(&summary_json(&archive));
        return Ok(());
    }
    let (events, streams) = (plural(archive.events, "event"), plural(archive.streams, "stream"));
    out.line(format_args!("exported {}: {events} in {streams}", open::short(&source, run)));
    let share = percent(archive.bytes, archive.raw_bytes);
    out.line(format_args!("archive  {}, {} bytes ({share} of the journal's)", args.file.display(), archive.bytes));
    Ok(())
}
