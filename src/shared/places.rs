//! What is compared, named: in the log at hand, in another log, or in a sealed file.

use std::path::{Path, PathBuf};

use rao_replay::regression;
use rao_store::{EventSource, RunId, Target, resolve_target};

use super::exit::Failure;
use super::open;

/// A run or a rollout, with the log or file that holds it.
pub(crate) struct Place {
    pub(crate) source: Box<dyn EventSource>,
    pub(crate) target: Target,
    /// The log's folder or the file, where it is not the log at hand.
    path: Option<PathBuf>,
}

impl Place {
    /// One of its runs as people read it.
    pub(crate) fn shown(&self, run: RunId) -> String {
        let id = open::short(&*self.source, run);
        match &self.path {
            Some(path) => format!("{}:{id}", path.display()),
            None => id,
        }
    }
}

/// Finds what a text names: `RUN` or `RUN/ROLLOUT` of the log at hand, a log's folder or a sealed file (of which the newest
/// run is meant), or one of these with `:RUN` or `:RUN/ROLLOUT` behind it.
pub(crate) fn named(text: &str, at_hand: &Path) -> Result<Place, Failure> {
    if is_log(Path::new(text)) {
        return elsewhere(Path::new(text), "latest");
    }
    for (colon, _) in text.rmatch_indices(':') {
        let (path, rest) = (text.get(..colon).unwrap_or_default(), text.get(colon + 1..).unwrap_or_default());
        if is_log(Path::new(path)) {
            return elsewhere(Path::new(path), if rest.is_empty() { "latest" } else { rest });
        }
    }
    if looks_like_a_path(text) {
        let failure = Failure::usage(format!("`{text}` is no log's folder, no sealed file and no run of a log"));
        return Err(failure.help("write RUN, RUN/ROLLOUT, FILE.raolog, DIR, DIR:RUN or DIR:RUN/ROLLOUT"));
    }
    let source = open::reader(at_hand)?;
    let target = resolve_target(&source, text)?;
    Ok(Place { source: Box::new(source), target, path: None })
}

fn elsewhere(path: &Path, target: &str) -> Result<Place, Failure> {
    let source: Box<dyn EventSource> = match regression::is_archive(path) {
        true => regression::open(path)?,
        false => Box::new(open::reader(path)?),
    };
    let target = resolve_target(&*source, target)?;
    Ok(Place { source, target, path: Some(path.to_owned()) })
}

fn is_log(path: &Path) -> bool {
    regression::is_archive(path) || path.join("journal").is_dir()
}

/// Runs are named by hexadecimal digits or `latest`, and rollouts by one number more.
fn looks_like_a_path(text: &str) -> bool {
    text.contains(':')
        || text.ends_with(".raolog")
        || text.matches('/').count() > 1
        || text.starts_with(['.', '/', '~'])
}
