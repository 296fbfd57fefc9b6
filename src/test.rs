//! `rao-log test`: stored logs as regression tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use rao_replay::check::{Check, Divergence};
use rao_replay::regression::{self, Case, Changed, Report, TestError};
use rao_store::{ErrorClass, Log, Options};
use serde_json::{Value, json};

use crate::replay::{CheckName, divergence_json};
use crate::shared::args::{DataArgs, JsonArgs, ThreadArgs};
use crate::shared::exit::{Code, Failure};
use crate::shared::out::{Out, plural};
use crate::shared::{open, recording};

/// Replay stored logs as regression tests (exit code 3 if one differs).
#[derive(Args, Debug)]
pub(crate) struct TestArgs {
    /// Logs, or folders with logs in them. The data of a log may lie beside it: x.data beside x or x.raolog.
    #[arg(value_name = "LOG|DIR", default_value = "tests/logs")]
    paths: Vec<PathBuf>,
    /// How deep. With `tokens`, runs whose policy was behind a server are checked at `tools`.
    #[arg(long, value_enum, default_value = "tools")]
    check: CheckName,
    /// Record the logs anew and put the new ones in the place of those that come out otherwise; what changed is shown.
    #[arg(long)]
    bless: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    json: JsonArgs,
}

enum Outcome {
    Passed(Report),
    Diverged(Report, Box<Divergence>),
    Incomplete(Report),
    Failed(Code, String),
    Blessed(Vec<Changed>),
    Unchanged,
}

struct Tested {
    case: Case,
    outcome: Outcome,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(args: &TestArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    recording::stop_on_ctrl_c();
    let mut cases: Vec<Case> = Vec::new();
    for path in &args.paths {
        cases.extend(regression::find(path).map_err(|error| Failure::usage(error.to_string()))?);
    }
    let (check, data) = (args.check.check(), args.data.folder());
    if !args.json.json {
        let (logs, doing) = (plural(cases.len() as u64, "log"), if args.bless { "blessing" } else { "testing" });
        out.line(format_args!("{doing} {logs}, check {}", check.name()));
    }
    let begin = Instant::now();
    let mut all = Vec::new();
    for case in cases {
        if recording::stopped() {
            return Err(Failure::new(Code::Other, "stopped"));
        }
        let begin = Instant::now();
        let own = case.data();
        let data = own.as_deref().or(data.as_deref());
        let outcome = if args.bless { bless(&case, data) } else { test(&case, check, data) };
        let tested = Tested { case, outcome, seconds: begin.elapsed().as_secs_f64() };
        if !args.json.json {
            out.line(tested.line());
        }
        all.push(tested);
    }
    if args.json.json {
        out.json(&json!({ "check": check.name(), "logs": all.iter().map(Tested::to_json).collect::<Vec<Value>>() }));
    } else {
        details(out, &all);
        summary(out, &all, begin.elapsed().as_secs_f64());
    }
    verdict(&all)
}

fn test(case: &Case, check: Check, data: Option<&Path>) -> Outcome {
    let report = regression::open(&case.path)
        .map_err(TestError::from)
        .and_then(|source| regression::replay(&*source, check, data));
    match report {
        Err(error) => failed(error),
        Ok(mut report) => match report.divergence.take() {
            Some(divergence) => Outcome::Diverged(report, Box::new(divergence)),
            None if !report.incomplete.is_empty() => Outcome::Incomplete(report),
            None => Outcome::Passed(report),
        },
    }
}

fn failed(error: TestError) -> Outcome {
    let text = error.to_string();
    let code = match error {
        TestError::Damaged { .. } => Code::Integrity,
        TestError::Log(error) if error.class() == ErrorClass::Integrity => Code::Integrity,
        TestError::Replay(error) => Failure::from(error).code,
        TestError::Recorded(error) => Failure::from(error).code,
        TestError::Engine(error) => Failure::from(error).code,
        TestError::Refused { .. } | TestError::NoLog { .. } => Code::Usage,
        TestError::Interpreter { .. } => Code::Unavailable,
        _ => Code::Other,
    };
    Outcome::Failed(code, text)
}

/// Records the log anew beside itself and, if it comes out otherwise, puts the new one in its place.
fn bless(case: &Case, data: Option<&Path>) -> Outcome {
    if regression::is_archive(&case.path) {
        let reason =
            "it is a sealed archive; record the run in a log, seal it, and put the new file in its place".into();
        return failed(TestError::Refused { reason });
    }
    let beside = |ending: &str| {
        let name = case.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        case.path.with_file_name(format!("{name}.{ending}"))
    };
    let (new, old) = (beside("new"), beside("old"));
    let outcome = record_beside(case, &new, data).and_then(|changed| {
        let io = |source| TestError::Io { path: new.display().to_string(), source };
        match changed {
            None => fs::remove_dir_all(&new).map(|()| Outcome::Unchanged).map_err(io),
            Some(changed) => {
                fs::rename(&case.path, &old).map_err(io)?;
                fs::rename(&new, &case.path).map_err(io)?;
                fs::remove_dir_all(&old).map_err(io)?;
                Ok(Outcome::Blessed(changed))
            }
        }
    });
    outcome.unwrap_or_else(|error| {
        // What is left of the attempt is no log anyone asked for; the stored one is where it was.
        let _ = fs::remove_dir_all(&new);
        failed(error)
    })
}

/// The rollouts that came out otherwise, or `None` if the whole content is the same.
fn record_beside(case: &Case, new: &Path, data: Option<&Path>) -> Result<Option<Vec<Changed>>, TestError> {
    let source = regression::open(&case.path)?;
    let io = |source| TestError::Io { path: new.display().to_string(), source };
    if new.exists() {
        fs::remove_dir_all(new).map_err(io)?;
    }
    let mut options = Options::new(Arc::new(open::now_us));
    options.ordered_store = false;
    let log = Arc::new(Log::open(new, options)?.0);
    let host = recording::facts_with(selection(&*source), None);
    let changed = regression::record_anew(&*source, &log, &host, data)?;
    let mut same = changed.is_empty();
    for run in source.runs() {
        let digest = |source| rao_store::content_digest_of_run(source, run);
        same &= digest(&*source)? == digest(&*log)?;
    }
    if let Some(log) = Arc::into_inner(log) {
        log.close()?;
    }
    fs::remove_file(new.join("LOCK")).map_err(io)?;
    Ok((!same).then_some(changed))
}

/// How the first run's tasks were chosen, as the log notes it.
fn selection(source: &dyn rao_store::EventSource) -> String {
    let first = source.runs().first().copied();
    let noted = first.and_then(|run| open::manifest(source, run).ok());
    noted.and_then(|(_, host)| open::fact(&host, recording::SELECTION_FACT).map(str::to_owned)).unwrap_or_default()
}

impl Tested {
    fn word(&self) -> &'static str {
        match self.outcome {
            Outcome::Passed(_) => "ok",
            Outcome::Diverged(..) => "DIVERGED",
            Outcome::Incomplete(_) => "INCOMPLETE",
            Outcome::Failed(..) => "FAILED",
            Outcome::Blessed(_) => "blessed",
            Outcome::Unchanged => "unchanged",
        }
    }

    fn report(&self) -> Option<&Report> {
        match &self.outcome {
            Outcome::Passed(report) | Outcome::Diverged(report, _) | Outcome::Incomplete(report) => Some(report),
            _ => None,
        }
    }

    fn line(&self) -> String {
        let place = match &self.outcome {
            Outcome::Diverged(_, divergence) => {
                format!(" at {}/{}#{}", divergence.run, divergence.rollout, divergence.seq)
            }
            _ => String::new(),
        };
        let work = self.report().map_or(String::new(), |report| {
            let at = if report.served > 0 { "at tools, as a server cannot sample again, " } else { "" };
            format!("{}, {}, {at}", plural(report.rollouts, "rollout"), plural(report.compared, "event"))
        });
        format!("test {} ... {}{place} ({work}{:.2} s)", self.case.name, self.word(), self.seconds)
    }

    fn to_json(&self) -> Value {
        let mut json = json!({
            "name": self.case.name,
            "path": self.case.path.display().to_string(),
            "outcome": self.word().to_lowercase(),
            "seconds": self.seconds,
        });
        let mut add = |name: &str, value: Value| {
            if let Some(fields) = json.as_object_mut() {
                fields.insert(name.to_owned(), value);
            }
        };
        if let Some(report) = self.report() {
            add("rollouts", report.rollouts.into());
            add("compared", report.compared.into());
            add("tool_calls", report.tool_calls.into());
            add("policy_calls", report.policy_calls.into());
            add("judge_calls", report.judge_calls.into());
            add("served", report.served.into());
            add("incomplete", report.incomplete.clone().into());
        }
        match &self.outcome {
            Outcome::Diverged(_, divergence) => add("divergence", divergence_json(divergence)),
            Outcome::Failed(_, error) => add("error", error.clone().into()),
            Outcome::Blessed(changed) => add("changed", changed.iter().map(changed_json).collect()),
            _ => {}
        }
        json
    }
}

fn changed_json(changed: &Changed) -> Value {
    json!({
        "run": changed.run.to_string(),
        "rollout": changed.rollout.0,
        "first": changed.first.as_ref().map(divergence_json),
        "events": [changed.events.0, changed.events.1],
        "success": [changed.success.0, changed.success.1],
    })
}

/// What there is to say about logs that did not simply pass.
fn details(out: &mut Out, all: &[Tested]) {
    for tested in all {
        let mut head = |text: &dyn std::fmt::Display| {
            out.line("");
            out.line(format_args!("---- {} ----", tested.case.name));
            out.line(text);
        };
        match &tested.outcome {
            Outcome::Diverged(_, divergence) => head(divergence),
            Outcome::Failed(_, error) => head(error),
            Outcome::Incomplete(report) => {
                head(&format_args!("rollouts without an end: {}", report.incomplete.join(", ")));
            }
            Outcome::Blessed(changed) if changed.is_empty() => head(&"the manifest changed, every rollout is the same"),
            Outcome::Blessed(changed) => {
                let lines: Vec<String> = changed.iter().map(changed_line).collect();
                head(&lines.join("\n"));
            }
            Outcome::Passed(_) | Outcome::Unchanged => {}
        }
    }
}

fn changed_line(changed: &Changed) -> String {
    let success = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    let mut line = format!(
        "rollout {}: {} -> {}, success {} -> {}",
        changed.rollout,
        plural(changed.events.0, "event"),
        changed.events.1,
        success(changed.success.0),
        success(changed.success.1)
    );
    if let Some(first) = &changed.first {
        line.push_str(&format!(
            "\n  first at #{} {}, {}\n  was  {}\n  now  {}",
            first.seq, first.kind, first.field, first.expected, first.got
        ));
    }
    line
}

fn summary(out: &mut Out, all: &[Tested], seconds: f64) {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for tested in all {
        match counts.iter_mut().find(|(word, _)| *word == tested.word()) {
            Some((_, count)) => *count += 1,
            None => counts.push((tested.word(), 1)),
        }
    }
    let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {}", word.to_lowercase())).collect();
    let sum = |number: fn(&Report) -> u64| all.iter().filter_map(Tested::report).map(number).sum::<u64>();
    let (rollouts, events) = (plural(sum(|r| r.rollouts), "rollout"), plural(sum(|r| r.compared), "event"));
    out.line("");
    out.line(format_args!("result: {}; {rollouts}, {events} in {seconds:.2} s", counts.join(", ")));
}

/// A divergence counts for more than damage, damage for more than a missing end, and that for more than the rest.
fn verdict(all: &[Tested]) -> Result<(), Failure> {
    let code = |tested: &Tested| match &tested.outcome {
        Outcome::Diverged(..) => Some(Code::Divergence),
        Outcome::Incomplete(_) => Some(Code::Incomplete),
        Outcome::Failed(code, _) => Some(*code),
        _ => None,
    };
    let codes: Vec<Code> = all.iter().filter_map(code).collect();
    let order = [Code::Divergence, Code::Integrity, Code::Incomplete];
    let worst = order.into_iter().find(|worst| codes.contains(worst)).or_else(|| codes.first().copied());
    match worst {
        None => Ok(()),
        Some(worst) => {
            let message = format!("{} of {} did not pass", codes.len(), plural(all.len() as u64, "log"));
            let failure = Failure::new(worst, message);
            Err(match worst {
                Code::Divergence => {
                    failure.help("if the change is meant, `rao-log test --bless` records the logs anew")
                }
                _ => failure,
            })
        }
    }
}
