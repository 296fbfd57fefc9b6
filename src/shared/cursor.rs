//! What a reader has seen of a log, in a file: the last event of each stream, one address on each line.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rao_store::{Address, EventSource, LogError, RunId, Target, resolve_target};

use super::exit::{Code, Failure};
use super::out::note;

/// The addresses in the file; none if it is not there. Those whose run has left the log are told and left out.
pub(crate) fn read(source: &dyn EventSource, file: &Path) -> Result<Vec<Address>, Failure> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(trouble(file, "read", &error)),
    };
    let mut addresses = Vec::new();
    for line in text.lines() {
        if !is_address(line) {
            return Err(foreign(file, line, "it names no event"));
        }
        match resolve_target(source, line) {
            Ok(Target::Event(address)) => addresses.push(address),
            Err(error @ (LogError::UnknownRun { .. } | LogError::UnknownStream { .. })) => {
                note(format_args!("note: {}: {error}", file.display()));
            }
            Ok(_) => return Err(foreign(file, line, "it names no event")),
            Err(error) => return Err(foreign(file, line, &error.to_string())),
        }
    }
    Ok(addresses)
}

/// Whether it looks like an event's full address.
fn is_address(line: &str) -> bool {
    let run = line.split(['/', '#']).next().unwrap_or_default();
    run.len() == 32 && run.parse::<RunId>().is_ok() && line.contains('#')
}

/// Replaces the file: whatever happens, the old one or the new one is there, whole.
pub(crate) fn write(file: &Path, seen: &[Address]) -> Result<(), Failure> {
    let text: String = seen.iter().map(|address| format!("{address}\n")).collect();
    if fs::read_to_string(file).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let mut name = file.file_name().map(std::ffi::OsStr::to_owned).unwrap_or_default();
    name.push(".new");
    let new = file.with_file_name(name);
    let replace = || fs::write(&new, text).and_then(|()| fs::rename(&new, file));
    replace().map_err(|error| trouble(file, "written", &error))
}

fn trouble(file: &Path, what: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::new(Code::Other, format!("the cursor file {} cannot be {what}: {error}", file.display()));
    failure.help("name another file with --cursor, or check the permissions of this one")
}

fn foreign(file: &Path, line: &str, reason: &str) -> Failure {
    let failure = Failure::usage(format!("{}: `{line}` is no place in this log: {reason}", file.display()));
    failure.help("name the cursor file of this log, or remove the file to begin anew")
}
