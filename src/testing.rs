//! Stored logs as tests.
//!
//! ```no_run
//! #[test]
//! fn agents_do_what_they_did() {
//!     rao_log::testing::assert_replays("tests/logs/textcraft-oracle");
//! }
//! ```
//!
//! Paths are those of the test's working directory, which under cargo is the package's folder. `rao-log test` runs the same
//! from the command line, and `rao-log test --bless` records stored logs anew.

use std::path::{Path, PathBuf};

use rao_engine::repl::on_host_thread;
pub use rao_replay::check::Check;
use rao_replay::regression;

/// Replays a stored log, or every log in a folder, with Python cells and environment run again ([`Check::Tools`]).
///
/// # Panics
/// At the first event that differs, with the report; and if the log is damaged, has no end, or cannot be replayed.
#[track_caller]
pub fn assert_replays(path: impl AsRef<Path>) {
    if let Err(reason) = replays(path.as_ref(), Check::Tools, None) {
        panic!("{reason}");
    }
}

/// As [`assert_replays`], at another depth. `data` is what the logs' worlds were made from, for logs that used files and
/// have none beside them (`x.data` for `x.raolog`). Runs of served policies, which cannot be sampled again, are checked at
/// [`Check::Tools`] at most.
///
/// # Panics
/// As [`assert_replays`].
#[track_caller]
pub fn assert_replays_at(path: impl AsRef<Path>, check: Check, data: Option<PathBuf>) {
    if let Err(reason) = replays(path.as_ref(), check, data) {
        panic!("{reason}");
    }
}

fn replays(path: &Path, check: Check, data: Option<PathBuf>) -> Result<(), String> {
    on_host_thread(|| replay_all(path, check, data.as_deref()))
}

fn replay_all(path: &Path, check: Check, data: Option<&Path>) -> Result<(), String> {
    for case in regression::find(path).map_err(|error| error.to_string())? {
        let failed = |error: String| format!("{}: {error}", case.path.display());
        let source = regression::open(&case.path).map_err(|error| failed(error.to_string()))?;
        let own = case.data();
        let data = own.as_deref().or(data);
        let report = regression::replay(&*source, check, data).map_err(|error| failed(error.to_string()))?;
        if let Some(divergence) = report.divergence {
            return Err(failed(divergence.to_string()));
        }
        if !report.incomplete.is_empty() {
            return Err(failed(format!("rollouts without an end: {}", report.incomplete.join(", "))));
        }
        if report.rollouts == 0 {
            return Err(failed("it holds no rollout, so nothing was tested".to_owned()));
        }
    }
    Ok(())
}
