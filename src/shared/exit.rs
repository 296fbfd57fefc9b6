//! Failures and the exit codes they lead to: the only place that decides one.
//!
//! 0 done, 1 other failure, 2 usage or configuration, 3 divergence, 4 integrity, 5 incomplete log, 6 policy or judge
//! unavailable.

use std::fmt;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode, SourceSpan};
use rao_engine::EngineError;
use rao_envs::EnvError;
use rao_policy::PolicyError;
use rao_replay::trainer::{Class, TrainError};
use rao_store::{ErrorClass, LogError};

/// Why the program ends with a code other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Whatever has no code of its own.
    Other = 1,
    /// A flag, a key or a name that cannot be used.
    Usage = 2,
    /// A replay gave something else than the log holds.
    Divergence = 3,
    /// Stored data is damaged or was changed.
    Integrity = 4,
    /// The log does not hold what is needed.
    Incomplete = 5,
    /// The model or the judge cannot be used.
    Unavailable = 6,
}

/// A failure as the user reads it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    message: String,
    help: Option<String>,
    place: Option<Box<Place>>,
}

#[derive(Debug)]
struct Place {
    source: NamedSource<String>,
    label: LabeledSpan,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), help: None, place: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(Code::Usage, message)
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Points at a piece of a file.
    pub(crate) fn at(mut self, file: &str, text: &str, span: std::ops::Range<usize>, label: &str) -> Self {
        let span: SourceSpan = span.into();
        let label = LabeledSpan::new_primary_with_span(Some(label.to_owned()), span);
        self.place = Some(Box::new(Place { source: NamedSource::new(file, text.to_owned()), label }));
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.place.as_ref().map(|place| Box::new(std::iter::once(place.label.clone())) as Box<dyn Iterator<Item = _>>)
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        let code = match error.class() {
            ErrorClass::Usage => Code::Usage,
            ErrorClass::Integrity => Code::Integrity,
            ErrorClass::Incomplete => Code::Incomplete,
            ErrorClass::Busy | ErrorClass::Io | ErrorClass::Newer => Code::Other,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Served(error) => error.into(),
            error @ PolicyError::TemplateValue { .. } => Failure::usage(error.to_string()),
            error => Failure::new(Code::Unavailable, error.to_string()),
        }
    }
}

impl From<EnvError> for Failure {
    fn from(error: EnvError) -> Self {
        let code = match error {
            EnvError::UnknownPreset { .. }
            | EnvError::TooFewTasks { .. }
            | EnvError::Setting { .. }
            | EnvError::UnknownEnvironment { .. }
            | EnvError::UnknownOption { .. }
            | EnvError::NeedsData { .. } => Code::Usage,
            _ => Code::Other,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::Log(error) => return error.into(),
            EngineError::Policy(error) => return error.into(),
            EngineError::Env(error) => return error.into(),
            EngineError::Config(_) => Code::Usage,
            EngineError::Rebuild { .. } | EngineError::Diverged { .. } => Code::Divergence,
            EngineError::Tree(_) | EngineError::Stored { .. } => Code::Integrity,
            _ => Code::Other,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let code = match error.class() {
            Class::Usage => Code::Usage,
            Class::Integrity => Code::Integrity,
            Class::Incomplete => Code::Incomplete,
            Class::Model => Code::Unavailable,
            _ => Code::Other,
        };
        match error {
            TrainError::Log(error) => error.into(),
            error => Failure::new(code, error.to_string()),
        }
    }
}
