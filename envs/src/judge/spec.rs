//! Judges as the command line names them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::panel::proxy;
use super::{Exact, F1, JudgeIdentity, Seat, SharedJudge};

/// A judge by name: `exact`, `f1:THRESHOLD`, `root`, `recorded:LOG` or `llm:..`.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// [`Exact`].
    Exact,
    /// [`F1`].
    F1(f64),
    /// The root's success; for children only.
    Root,
    /// Verdicts of another log.
    Recorded(PathBuf),
    /// A model behind HTTP; what follows `llm:` is the judge's own to read.
    Llm(String),
}

/// Why a text names no judge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No judge has that name.
    #[error("there is no judge `{given}`: choose exact, f1:THRESHOLD, root, recorded:LOG or llm:URL")]
    Unknown {
        /// What was given.
        given: String,
    },
    /// A threshold outside its range.
    #[error("f1 takes a threshold in (0, 1], such as f1:0.8; got `{given}`")]
    Threshold {
        /// What was given.
        given: String,
    },
}

impl Spec {
    /// The seat, for judges that need nothing but their name; `None` for those that need a log or a connection.
    #[must_use]
    pub fn computed(&self) -> Option<Seat> {
        let judge: SharedJudge = match self {
            Spec::Exact => Arc::new(Exact),
            Spec::F1(threshold) => Arc::new(F1 { threshold: *threshold }),
            Spec::Root => return Some(Seat::Root),
            Spec::Recorded(_) | Spec::Llm(_) => return None,
        };
        Some(Seat::Judge(judge))
    }

    /// The seat of a computed judge with that identity; `None` for others, and for those of another version.
    #[must_use]
    pub fn of_identity(identity: &JudgeIdentity) -> Option<Seat> {
        let spec = match identity.kind.as_str() {
            "exact" => Spec::Exact,
            "f1" => Spec::F1(identity.settings.get("threshold")?.as_f64()?),
            "root" => Spec::Root,
            _ => return None,
        };
        let seat = spec.computed()?;
        let now = match &seat {
            Seat::Judge(judge) => judge.identity(),
            Seat::Root => proxy(),
        };
        (now == *identity).then_some(seat)
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            None if text == "exact" => Ok(Spec::Exact),
            None if text == "root" => Ok(Spec::Root),
            Some(("f1", threshold)) => match threshold.parse() {
                Ok(threshold) if threshold > 0.0 && threshold <= 1.0 => Ok(Spec::F1(threshold)),
                _ => Err(SpecError::Threshold { given: threshold.to_owned() }),
            },
            Some(("recorded", log)) if !log.is_empty() => Ok(Spec::Recorded(PathBuf::from(log))),
            Some(("llm", rest)) if !rest.is_empty() => Ok(Spec::Llm(rest.to_owned())),
            _ => Err(SpecError::Unknown { given: text.to_owned() }),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Exact => f.write_str("exact"),
            Spec::F1(threshold) => write!(f, "f1:{threshold}"),
            Spec::Root => f.write_str("root"),
            Spec::Recorded(log) => write!(f, "recorded:{}", log.display()),
            Spec::Llm(rest) => write!(f, "llm:{rest}"),
        }
    }
}
