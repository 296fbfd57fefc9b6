//! rao-log: an event-sourced flight recorder and replay trainer for recursive language-model agents.
//!
//! One file per command; `shared` holds what several need. Everything that is not parsing or printing lives in the
//! crates.

#![forbid(unsafe_code)]

mod demo;
mod diff;
mod doctor;
mod eval;
mod export;
mod fork;
mod import;
mod init;
mod list;
mod prune;
mod record;
mod rejudge;
mod replay;
mod schema;
mod seal;
mod shared;
mod show;
mod tail;
mod test;
mod train;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rao_engine::repl::on_host_thread;

use crate::shared::exit::{Code, Failure};
use crate::shared::layers;
use crate::shared::out::Out;

const AFTER: &str = "Settings: every flag is also a key in rao-log.toml (at the top, or in a table named after a command) \
and a variable such as RAO_LOG_GROUP. Flags count for more than variables, and variables for more than the file.\n\n\
Exit codes: 0 done, 1 other failure, 2 usage or configuration, 3 divergence, 4 integrity, 5 incomplete log, 6 policy \
unavailable.";

/// An event-sourced flight recorder and replay trainer for recursive language-model agents.
#[derive(Parser, Debug)]
#[command(name = "rao-log", version, args_override_self = true, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::DemoArgs),
    Record(Box<record::RecordArgs>),
    Replay(replay::ReplayArgs),
    Fork(fork::ForkArgs),
    Train(Box<train::TrainArgs>),
    Eval(Box<eval::EvalArgs>),
    Diff(diff::DiffArgs),
    Show(show::ShowArgs),
    List(list::ListArgs),
    Verify(verify::VerifyArgs),
    Test(test::TestArgs),
    Seal(seal::SealArgs),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
    Prune(prune::PruneArgs),
    Rejudge(rejudge::RejudgeArgs),
    Tail(tail::TailArgs),
    Schema(schema::SchemaArgs),
    Doctor(doctor::DoctorArgs),
    Init(init::InitArgs),
}

fn main() -> ExitCode {
    // Messages are whole sentences with paths and ids in them: they are not to be broken.
    let _ = miette::set_hook(Box::new(|_| {
        Box::new(miette::MietteHandlerOpts::new().wrap_lines(false).terminal_links(false).build())
    }));
    trace();
    let mut out = Out::new();
    // Commands that drive rollouts step their interpreters themselves.
    let outcome = parse().and_then(|cli| on_host_thread(|| run(&cli, &mut out)));
    let outcome = outcome.and(out.finish().map_err(Stop::Failure));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Clap(error)) => {
            // Help and version come this way too; a closed pipe is no reason to fail.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { Code::Usage as u8 } else { 0 })
        }
        Err(Stop::Failure(failure)) => {
            let code = failure.code as u8;
            shared::out::note(format_args!("{:?}", miette::Report::new(failure)));
            ExitCode::from(code)
        }
    }
}

/// Why the program ends early.
enum Stop {
    Clap(clap::Error),
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failure(failure)
    }
}

fn parse() -> Result<Cli, Stop> {
    let given: Vec<OsString> = std::env::args_os().collect();
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let file = match std::fs::read_to_string(layers::FILE) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::usage(format!("{} cannot be read: {error}", layers::FILE)).into()),
    };
    let arguments = layers::arguments(&Cli::command(), given, file.as_deref(), &environment)?;
    Cli::try_parse_from(arguments).map_err(Stop::Clap)
}

fn run(cli: &Cli, out: &mut Out) -> Result<(), Stop> {
    let outcome = match &cli.command {
        Command::Demo(args) => demo::run(args, out),
        Command::Record(args) => record::run(args, out),
        Command::Replay(args) => replay::run(args, out),
        Command::Fork(args) => fork::run(args, out),
        Command::Train(args) => train::run(args, out),
        Command::Eval(args) => eval::run(args, out),
        Command::Diff(args) => diff::run(args, out),
        Command::Show(args) => show::run(args, out),
        Command::List(args) => list::run(args, out),
        Command::Verify(args) => verify::run(args, out),
        Command::Test(args) => test::run(args, out),
        Command::Seal(args) => seal::run(args, out),
        Command::Export(args) => export::run(args, out),
        Command::Import(args) => import::run(args, out),
        Command::Prune(args) => prune::run(args, out),
        Command::Rejudge(args) => rejudge::run(args, out),
        Command::Tail(args) => tail::run(args, out),
        Command::Schema(args) => schema::run(args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Init(args) => init::run(args, out),
    };
    outcome.map_err(Stop::Failure)
}

/// Diagnostics on standard error, if RAO_LOG_TRACE asks for them (`debug`, or a filter such as `rao_store=trace`).
fn trace() {
    if let Ok(filter) = std::env::var("RAO_LOG_TRACE") {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}
