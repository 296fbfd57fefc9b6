//! The Python engines by name.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use rao_engine::repl::{Cpython, CpythonError, CpythonOptions, Monty, ReplEngine};

use super::exit::Failure;
use super::out::note;

/// An engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplName {
    /// Embedded: a part of Python, thousands of sessions in this process.
    #[default]
    Monty,
    /// Processes forked from one python3, one for each session: the whole language and every installed module.
    Cpython,
}

/// What the engine `cpython` needs to know.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PythonArgs {
    /// The interpreter of the engine `cpython` [default: python3 from PATH].
    #[arg(long, value_name = "PATH", help_heading = "Agents")]
    pub(crate) python: Option<PathBuf>,
    /// Let `cpython` run cells where this machine cannot lock them in: they can then use the network and write files.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Agents")]
    pub(crate) allow_unsandboxed: bool,
}

/// The engine that a flag names.
pub(crate) fn named(name: ReplName, python: &PythonArgs) -> Result<Arc<dyn ReplEngine>, Failure> {
    Ok(match name {
        ReplName::Monty => Arc::new(Monty::new()),
        ReplName::Cpython => {
            let mut options =
                CpythonOptions { allow_unsandboxed: python.allow_unsandboxed, ..CpythonOptions::default() };
            if let Some(program) = &python.python {
                options.python.clone_from(program);
            }
            let engine = Cpython::new(options)?;
            let protections = engine.protections();
            if !protections.hold() {
                note(format_args!("warning: cells are not locked in: {protections}"));
            } else if !protections.all() {
                note(format_args!("note: cells can read files that are not Python's: {protections}"));
            }
            Arc::new(engine)
        }
    })
}

/// The engine of the kind that recorded a run, by the identity that the run's manifest holds.
pub(crate) fn recorded(identity: &str, python: &PythonArgs) -> Result<Arc<dyn ReplEngine>, Failure> {
    let name = if identity.starts_with("cpython ") { ReplName::Cpython } else { ReplName::Monty };
    named(name, python)
}

impl From<CpythonError> for Failure {
    fn from(error: CpythonError) -> Self {
        Failure::usage(error.to_string())
    }
}
