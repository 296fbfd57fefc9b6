//! How people name runs, rollouts and events: `latest`, unique prefixes, `RUN/ROLLOUT#SEQ`.

use crate::error::LogError;
use crate::id::{Address, RolloutId, RunId, Seq, Stream};
use crate::source::EventSource;

/// Which runs a name may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRole {
    /// Runs of `record`: they have a manifest stream.
    Recorded,
    /// Runs of `train`: they have a training stream.
    Training,
}

impl RunRole {
    fn name(self) -> &'static str {
        match self {
            RunRole::Recorded => "recorded",
            RunRole::Training => "training",
        }
    }

    fn has(self, source: &dyn EventSource, run: RunId) -> bool {
        let stream = match self {
            RunRole::Recorded => Stream::Run(run),
            RunRole::Training => Stream::Training(run),
        };
        source.head(stream).is_some()
    }
}

/// What an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A run with all its rollouts, written `RUN`.
    Run(RunId),
    /// One rollout, written `RUN/ROLLOUT`.
    Rollout(RunId, RolloutId),
    /// A training run, written `RUN/training`.
    Training(RunId),
    /// One event: one of the others with `#SEQ`.
    Event(Address),
}

impl Target {
    /// The run that it names or belongs to.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.stream().run()
    }

    /// The stream that it names or belongs to; of a run, its own.
    #[must_use]
    pub fn stream(&self) -> Stream {
        match *self {
            Target::Run(run) => Stream::Run(run),
            Target::Rollout(run, rollout) => Stream::Rollout(run, rollout),
            Target::Training(run) => Stream::Training(run),
            Target::Event(address) => address.stream,
        }
    }
}

/// The run of that role which `text` names: `latest`, or the beginning of an id that fits no other run of the role.
/// Hyphens and upper case are accepted.
///
/// # Errors
/// [`LogError::UnknownRun`] with what there is instead, [`LogError::AmbiguousRun`] with the candidates.
pub fn resolve_run(source: &dyn EventSource, text: &str, role: RunRole) -> Result<RunId, LogError> {
    let runs: Vec<RunId> = source.runs().into_iter().filter(|run| role.has(source, *run)).collect();
    let unknown = || LogError::UnknownRun { text: text.to_owned(), role: role.name(), known: known(&runs) };
    if text == "latest" {
        return runs.last().copied().ok_or_else(unknown);
    }
    let prefix = text.replace('-', "").to_ascii_lowercase();
    if prefix.is_empty() {
        return Err(unknown());
    }
    let fitting: Vec<RunId> = runs.iter().copied().filter(|run| run.to_string().starts_with(&prefix)).collect();
    match fitting.as_slice() {
        [] => Err(unknown()),
        [run] => Ok(*run),
        _ => Err(LogError::AmbiguousRun { text: text.to_owned(), candidates: list(&fitting), runs: fitting.clone() }),
    }
}

/// What `text` names. The stream must exist and hold the event, if one is named. A bare `RUN` is a recorded run or,
/// where no recorded run fits, a training run.
///
/// # Errors
/// [`LogError::BadAddress`], [`LogError::UnknownRun`], [`LogError::AmbiguousRun`], [`LogError::UnknownStream`] or
/// [`LogError::UnknownEvent`].
pub fn resolve_target(source: &dyn EventSource, text: &str) -> Result<Target, LogError> {
    let bad = |reason| LogError::BadAddress { text: text.to_owned(), reason };
    let (place, seq) = match text.split_once('#') {
        Some((place, seq)) => (place, Some(Seq(number(seq).ok_or(bad("what follows `#` is no number"))?))),
        None => (text, None),
    };
    let target = match place.split_once('/') {
        None if place.is_empty() => return Err(bad("the run is missing")),
        None => match resolve_run(source, place, RunRole::Recorded) {
            Ok(run) => Target::Run(run),
            Err(unknown @ LogError::UnknownRun { .. }) => match resolve_run(source, place, RunRole::Training) {
                Ok(run) if place != "latest" => Target::Training(run),
                Err(ambiguous @ LogError::AmbiguousRun { .. }) => return Err(ambiguous),
                _ => return Err(unknown),
            },
            Err(error) => return Err(error),
        },
        Some((run, "training")) => Target::Training(resolve_run(source, run, RunRole::Training)?),
        Some((run, rollout)) => {
            let rollout = number(rollout).and_then(|rollout| u32::try_from(rollout).ok());
            let rollout =
                RolloutId(rollout.ok_or(bad("what follows `/` is neither a rollout's number nor `training`"))?);
            let run = resolve_run(source, run, RunRole::Recorded)?;
            if source.head(Stream::Rollout(run, rollout)).is_none() {
                return Err(LogError::UnknownStream { run, what: format!("rollout {rollout}") });
            }
            Target::Rollout(run, rollout)
        }
    };
    let Some(seq) = seq else { return Ok(target) };
    let address = Address { stream: target.stream(), seq };
    match source.head(address.stream) {
        Some(head) if seq.0 < head.count => Ok(Target::Event(address)),
        head => Err(LogError::UnknownEvent { address, count: head.map_or(0, |head| head.count) }),
    }
}

/// Digits only: no sign, no spaces.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn known(runs: &[RunId]) -> String {
    if runs.is_empty() { "there is none in this log".to_owned() } else { format!("the latest are {}", list(runs)) }
}

/// The last five ids, newest first: as short as they stay unique among those given, but at least 8 digits.
fn list(runs: &[RunId]) -> String {
    const SHOWN: usize = 5;
    let ids: Vec<String> = runs.iter().map(RunId::to_string).collect();
    let unique = |length: usize| {
        let mut short: Vec<&str> = ids.iter().filter_map(|id| id.get(..length)).collect();
        short.sort_unstable();
        short.windows(2).all(|pair| pair.first() != pair.last())
    };
    let length = (8..32).find(|length| unique(*length)).unwrap_or(32);
    let shown: Vec<&str> = ids.iter().rev().take(SHOWN).filter_map(|id| id.get(..length)).collect();
    let more = ids.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}
