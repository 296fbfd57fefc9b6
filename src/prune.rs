//! `rao-log prune`: old runs leave the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clap::Args;
use rao_replay::recorded::FORK_FACT;
use rao_store::event::{Body, Kind};
use rao_store::prune::{self, Kept, PrunePlan, Rule, RunFacts};
use rao_store::{EventSource, Filter, Options, RunId, Seq, Stream};
use serde_json::{Value, json};

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::open;
use crate::shared::out::{Out, plural, utc};

/// Drop old finished runs, live and sealed, whole and for good, and give their space back. Runs that others still need
/// stay: the bases of forks, and what an unfinished training learns from. Export what you may want again.
#[derive(Args, Debug)]
pub(crate) struct PruneArgs {
    /// Keep the newest N finished runs, recorded and training counted together.
    #[arg(long, value_name = "N", required_unless_present = "older_than")]
    keep: Option<u64>,
    /// Drop only runs that began longer ago than this: days, hours or minutes, such as 30d, 12h or 90m. With --keep as
    /// well, a run goes only if both let it.
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Age>,
    /// Say what would be dropped, and do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// A time span in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Age(u64);

fn age(text: &str) -> Result<Age, String> {
    let wrong = || "give a whole number of days, hours or minutes, such as 30d, 12h or 90m".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let minutes = match unit {
        'd' => 24 * 60,
        'h' => 60,
        'm' => 1,
        _ => return Err(wrong()),
    };
    let digits = text.strip_suffix(unit).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let number: u64 = digits.and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
    number.checked_mul(minutes * 60_000_000).map(Age).ok_or_else(|| format!("{text} is longer than time has been"))
}

/// Runs the command.
pub(crate) fn run(args: &PruneArgs, out: &mut Out) -> Result<(), Failure> {
    let rule = Rule { keep: args.keep, older_than_us: args.older_than.map(|age| age.0) };
    let now = open::now_us();
    let reader = open::reader(&args.log.log)?;
    let names = Names::of(&reader)?;
    let (plan, freed) = if args.dry_run {
        (prune::would_prune(&reader, rule, now, &noted_base)?, None)
    } else {
        drop(reader);
        let report = prune::prune(&args.log.log, rule, now, &noted_base, Options::new(Arc::new(open::now_us)))?;
        (report.plan, Some(report.freed))
    };
    if args.json.json {
        out.json(&to_json(&plan, freed, &names));
    } else {
        print(out, &plan, freed, &names);
    }
    Ok(())
}

/// A run of forks that has no rollouts yet notes its base in its facts only, and resuming it needs the base.
fn noted_base(source: &dyn EventSource, run: RunId) -> Vec<RunId> {
    let Ok((_, host)) = open::manifest(source, run) else { return Vec::new() };
    let base = open::fact(&host, FORK_FACT).and_then(|text| text.split('/').next()?.parse().ok());
    base.into_iter().collect()
}

/// What the report says of runs, read while all of them are there.
struct Names {
    short: BTreeMap<RunId, String>,
    /// What finished trainings learned from.
    learned: BTreeMap<RunId, BTreeSet<RunId>>,
}

impl Names {
    fn of(source: &dyn EventSource) -> Result<Names, Failure> {
        let mut names = Names { short: BTreeMap::new(), learned: BTreeMap::new() };
        for run in source.runs() {
            names.short.insert(run, open::short(source, run));
            for event in source.events(Stream::Training(run), Seq(0), &Filter::kinds([Kind::TrainStarted])) {
                if let Body::TrainStarted(started) = event?.body {
                    names.learned.insert(run, started.runs.into_iter().map(|(run, _)| run).collect());
                }
            }
        }
        Ok(names)
    }

    fn short(&self, run: RunId) -> String {
        self.short.get(&run).cloned().unwrap_or_else(|| run.to_string())
    }

    /// Trainings that stay though runs which they learned from go.
    fn orphans(&self, plan: &PrunePlan) -> Vec<RunId> {
        let gone: BTreeSet<RunId> = plan.dropped.iter().map(|facts| facts.run).collect();
        let stay = plan.kept.iter().map(|(facts, _)| facts.run);
        stay.filter(|run| self.learned.get(run).is_some_and(|runs| !runs.is_disjoint(&gone))).collect()
    }
}

fn print(out: &mut Out, plan: &PrunePlan, freed: Option<u64>, names: &Names) {
    let verb = if freed.is_some() { "dropped " } else { "would drop" };
    for facts in &plan.dropped {
        let (events, begun) = (plural(facts.events, "event"), utc(facts.started_us));
        let place = if facts.sealed { "an archive" } else { "the journal" };
        let name = names.short(facts.run);
        out.line(format_args!("{verb} {name}: begun {begun}, {events}, {} bytes of {place}", facts.bytes));
    }
    if plan.dropped.is_empty() {
        let stay = plural(plan.kept.len() as u64, "run");
        out.line(format_args!("nothing to drop: {stay} in the log, and all of them stay"));
    }
    for (facts, reason) in &plan.kept {
        if let Some(reason) = reason_line(*reason, names) {
            out.line(format_args!("keeps    {}: {reason}", names.short(facts.run)));
        }
    }
    for training in names.orphans(plan) {
        let name = names.short(training);
        out.line(format_args!("note     training {name} learned from runs that go: it cannot be derived again"));
    }
    if let Some(freed) = freed.filter(|_| !plan.dropped.is_empty()) {
        out.line(format_args!("freed    {freed} bytes"));
    }
}

/// Why a run stays, where the limits alone do not say it.
fn reason_line(reason: Kept, names: &Names) -> Option<String> {
    match reason {
        Kept::Unfinished => Some("it has not ended".to_owned()),
        Kept::NeededBy(run) => Some(format!("run {} stays and needs it", names.short(run))),
        Kept::Newest | Kept::Young => None,
    }
}

fn to_json(plan: &PrunePlan, freed: Option<u64>, names: &Names) -> Value {
    let facts = |facts: &RunFacts| {
        json!({
            "run": facts.run.to_string(),
            "started_us": facts.started_us,
            "events": facts.events,
            "bytes": facts.bytes,
            "sealed": facts.sealed,
        })
    };
    let kept = plan.kept.iter().map(|(run, reason)| {
        let mut value = facts(run);
        let (reason, by) = match reason {
            Kept::Unfinished => ("unfinished", None),
            Kept::Newest => ("newest", None),
            Kept::Young => ("young", None),
            Kept::NeededBy(run) => ("needed", Some(run.to_string())),
        };
        if let Some(fields) = value.as_object_mut() {
            fields.insert("reason".into(), reason.into());
            fields.insert("needed_by".into(), by.into());
        }
        value
    });
    let dropped: Vec<Value> = plan.dropped.iter().map(facts).collect();
    let orphans: Vec<String> = names.orphans(plan).iter().map(RunId::to_string).collect();
    let done = if freed.is_some() { "dropped" } else { "would_drop" };
    json!({
        (done): dropped,
        "kept": kept.collect::<Vec<Value>>(),
        "trainings_without_their_runs": orphans,
        "freed": freed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_numbers_with_a_unit() {
        assert_eq!(age("90m"), Ok(Age(90 * 60_000_000)));
        assert_eq!(age("12h"), Ok(Age(12 * 3_600_000_000)));
        assert_eq!(age("30d"), Ok(Age(30 * 86_400_000_000)));
        assert_eq!(age("0d"), Ok(Age(0)));
        for wrong in ["", "d", "30", "3.5d", "-1d", "1w", "+1d", "1 d", "12µ", "99999999999999999999d", "999999999999d"]
        {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
