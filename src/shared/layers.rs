//! Settings in layers: `rao-log.toml` in the working directory, then the environment, then flags.
//!
//! A key is a flag's long name. In the file it stands at the top (for every command that has the flag) or in a table
//! named after a command; in the environment it is `RAO_LOG_` and the key in capitals, hyphens as underscores. The
//! lower layers become arguments in front of the user's own, so that one parser checks every layer and the last wins.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::exit::Failure;

/// The file's name.
pub(crate) const FILE: &str = "rao-log.toml";
/// The beginning of the variables' names.
const PREFIX: &str = "RAO_LOG_";
/// Variables with a meaning of their own: where data and reference vectors are, what to trace, and a server's key.
const OWN: [&str; 6] =
    ["RAO_LOG_DATA", "RAO_LOG_VECTORS", "RAO_LOG_MODELS", "RAO_LOG_TRACE", "RAO_LOG_API_KEY", "RAO_LOG_SEARCH_KEY"];
/// Flags that name one thing or one moment, and so are no settings.
const NOT_KEYS: [&str; 12] =
    ["help", "version", "resume", "only", "from", "cursor", "node", "credit", "all", "dry-run", "n", "bless"];

/// Puts the settings of file and environment in front of the user's arguments.
///
/// # Errors
/// When a key is unknown or its value is refused, in whatever layer and for whatever command.
pub(crate) fn arguments(
    program: &Command,
    given: Vec<OsString>,
    file: Option<&str>,
    environment: &[(String, String)],
) -> Result<Vec<OsString>, Failure> {
    let mut settings = match file {
        Some(text) => from_file(program, text)?,
        None => Vec::new(),
    };
    settings.extend(from_environment(program, environment)?);
    let Some(command) = given.get(1).and_then(|name| name.to_str()).and_then(|name| program.find_subcommand(name))
    else {
        return Ok(given);
    };
    let fits = |setting: &&Setting| {
        setting.command.as_deref().is_none_or(|name| name == command.get_name()) && has(command, &setting.key)
    };
    let mut arguments: Vec<OsString> = given.iter().take(2).cloned().collect();
    arguments.extend(settings.iter().filter(fits).map(|setting| setting.argument().into()));
    arguments.extend(given.into_iter().skip(2));
    Ok(arguments)
}

struct Setting {
    /// Only for this command; `None` for all that have the flag.
    command: Option<String>,
    key: String,
    value: String,
}

impl Setting {
    fn argument(&self) -> String {
        format!("--{}={}", self.key, self.value)
    }
}

fn keys(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter_map(clap::Arg::get_long).filter(|key| !NOT_KEYS.contains(key))
}

fn has(command: &Command, key: &str) -> bool {
    keys(command).any(|known| known == key)
}

fn all_keys(program: &Command) -> Vec<&str> {
    let mut all: Vec<&str> = program.get_subcommands().flat_map(keys).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What the parser says against a setting, if anything.
fn problem(program: &Command, setting: &Setting) -> Option<String> {
    let commands = program.get_subcommands().filter(|command| {
        setting.command.as_deref().is_none_or(|name| name == command.get_name()) && has(command, &setting.key)
    });
    for command in commands {
        let arguments = [program.get_name().to_owned(), command.get_name().to_owned(), setting.argument()];
        match program.clone().try_get_matches_from(arguments) {
            Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => return Some(reason(&error)),
            _ => {}
        }
    }
    None
}

/// The parser's message without its usage lines.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let kept: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    kept.join(" ").trim_start_matches("error: ").to_owned()
}

fn from_file(program: &Command, text: &str) -> Result<Vec<Setting>, Failure> {
    let table = DeTable::parse(text).map_err(|error| {
        let failure = Failure::usage(format!("{FILE} is no TOML: {}", error.message()));
        match error.span() {
            Some(span) => failure.at(FILE, text, span, "here"),
            None => failure,
        }
    })?;
    let mut settings = Vec::new();
    for (key, value) in table.get_ref() {
        let is_command = program.find_subcommand(key.get_ref().as_ref()).is_some();
        match value.get_ref() {
            DeValue::Table(inner) if is_command => {
                for (inner_key, inner_value) in inner {
                    settings.push(file_setting(program, text, Some(key.get_ref()), inner_key, inner_value)?);
                }
            }
            _ => settings.push(file_setting(program, text, None, key, value)?),
        }
    }
    // A command's own table counts for more than the top of the file.
    settings.sort_by_key(|setting| setting.command.is_some());
    Ok(settings)
}

fn file_setting(
    program: &Command,
    text: &str,
    command: Option<&str>,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Setting, Failure> {
    let name: &str = key.get_ref();
    let known = match command.and_then(|name| program.find_subcommand(name)) {
        Some(command) => keys(command).collect(),
        None => all_keys(program),
    };
    if !known.contains(&name) {
        let place = command.map_or(String::new(), |command| format!(" in [{command}]"));
        let failure = Failure::usage(format!("{FILE}: unknown key `{name}`{place}"));
        return Err(suggest(failure, name, &known, "").at(FILE, text, key.span(), "this key"));
    }
    let refuse = |reason: String| {
        let failure = Failure::usage(format!("{FILE}: {reason}"));
        failure.help("keys are the long names of flags; see --help").at(FILE, text, value.span(), "this value")
    };
    let value_text = scalar(value.get_ref()).ok_or_else(|| refuse(format!("`{name}` takes a single value")))?;
    let setting = Setting { command: command.map(str::to_owned), key: name.to_owned(), value: value_text };
    match problem(program, &setting) {
        Some(reason) => Err(refuse(reason)),
        None => Ok(setting),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(|item| scalar(item.get_ref())).collect();
            items.map(|items| items.join(","))
        }
        DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

fn from_environment(program: &Command, environment: &[(String, String)]) -> Result<Vec<Setting>, Failure> {
    let known = all_keys(program);
    let mut settings = Vec::new();
    for (variable, value) in environment {
        let Some(rest) = variable.strip_prefix(PREFIX) else { continue };
        if OWN.contains(&variable.as_str()) || value.is_empty() {
            continue;
        }
        let key = rest.to_lowercase().replace('_', "-");
        if !known.contains(&key.as_str()) {
            let failure = Failure::usage(format!("environment variable {variable}: there is no setting `{key}`"));
            return Err(suggest(failure, &key, &known, PREFIX));
        }
        let setting = Setting { command: None, key, value: value.clone() };
        if let Some(reason) = problem(program, &setting) {
            return Err(Failure::usage(format!("environment variable {variable}: {reason}")));
        }
        settings.push(setting);
    }
    Ok(settings)
}

fn suggest(failure: Failure, given: &str, known: &[&str], prefix: &str) -> Failure {
    let spell = |key: &str| {
        if prefix.is_empty() { key.to_owned() } else { format!("{prefix}{}", key.to_uppercase().replace('-', "_")) }
    };
    match nearest(given, known.iter().copied()) {
        Some(key) => failure.help(format!("did you mean `{}`?", spell(key))),
        None => failure.help("see `rao-log help` and each command's --help for the names there are"),
    }
}

/// The known name that differs least from `given`, if any is close: at most one edit in two characters.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase().replace('_', "-");
    let best = known.map(|name| (distance(&given, name), name)).min()?;
    (best.0 * 2 <= given.chars().count()).then_some(best.1)
}

/// Insertions, deletions and substitutions between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = row[j] + usize::from(x != *y);
            next.push(replaced.min(row[j + 1] + 1).min(next[j] + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        Command::new("p").args_override_self(true).subcommands([
            Command::new("record")
                .arg(clap::Arg::new("group").long("group").value_parser(clap::value_parser!(u32)))
                .arg(clap::Arg::new("seed").long("seed")),
            Command::new("train").arg(clap::Arg::new("lr").long("lr").value_parser(clap::value_parser!(f64))),
        ])
    }

    fn layered(file: &str, environment: &[(&str, &str)], given: &[&str]) -> Result<Vec<String>, String> {
        let environment: Vec<(String, String)> =
            environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let given = given.iter().map(OsString::from).collect();
        arguments(&program(), given, Some(file), &environment)
            .map(|all| all.iter().map(|a| a.to_string_lossy().into_owned()).collect())
            .map_err(|failure| format!("{failure} {}", miette::Diagnostic::help(&failure).unwrap_or(Box::new(""))))
    }

    #[test]
    fn file_comes_first_then_its_table_then_environment_then_flags() {
        let file = "group = 2\nseed = 1\n[record]\nseed = 5\n[train]\nlr = 0.1\n";
        let got = layered(file, &[("RAO_LOG_GROUP", "3"), ("HOME", "x")], &["p", "record", "--group", "4"]);
        let wanted = ["p", "record", "--group=2", "--seed=1", "--seed=5", "--group=3", "--group", "4"];
        assert_eq!(got.unwrap(), wanted);
    }

    #[test]
    fn unknown_names_get_the_nearest_one() {
        assert!(layered("grup = 2", &[], &["p", "record"]).unwrap_err().contains("did you mean `group`"));
        let wrong = layered("", &[("RAO_LOG_SEDE", "1")], &["p", "record"]).unwrap_err();
        assert!(wrong.contains("RAO_LOG_SEDE") && wrong.contains("`RAO_LOG_SEED`"), "{wrong}");
        assert!(layered("[train]\nseed = 1", &[], &["p", "record"]).unwrap_err().contains("in [train]"));
    }

    #[test]
    fn every_value_is_checked_whatever_the_command() {
        let wrong = layered("[train]\nlr = \"fast\"", &[], &["p", "record"]).unwrap_err();
        assert!(wrong.contains("fast") && wrong.contains("--lr"), "{wrong}");
        assert!(layered("group = [1, 2]", &[], &["p", "record"]).unwrap_err().contains("1,2"));
        assert!(layered("", &[("RAO_LOG_DATA", "/x"), ("RAO_LOG_SEED", "")], &["p", "record"]).is_ok());
    }

    #[test]
    fn distances_count_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
