//! A training run in the terminal: what it learned from, and every step's figures.

use rao_replay::trainer::{BatchSummary, Metrics};
use rao_store::event::{Body, Event, Kind};
use rao_store::{EventSource, Filter, RunId, Seq, Stream};
use serde_json::{Value, json};

use super::exit::Failure;
use super::open;
use super::out::{Out, plural};
use super::table::Table;
use crate::show::event_json;

/// Prints a training run.
pub(crate) fn training(out: &mut Out, source: &dyn EventSource, run: RunId, json: bool) -> Result<(), Failure> {
    let filter = Filter::kinds([Kind::TrainStarted, Kind::TrainStep, Kind::TrainFinished, Kind::Note]);
    let all: Vec<Event> = source.events(Stream::Training(run), Seq(0), &filter).collect::<Result<_, _>>()?;
    let (notes, events): (Vec<Event>, Vec<Event>) = all.into_iter().partition(|event| event.body.kind() == Kind::Note);
    let metrics: Vec<Metrics> = notes.iter().filter_map(of_note).collect();
    if json {
        let metrics: Vec<Value> = metrics.iter().filter_map(|m| serde_json::to_value(m).ok()).collect();
        let events: Vec<Value> = events.iter().map(event_json).collect();
        out.json(&json!({ "training": run.to_string(), "events": events, "metrics": metrics }));
        return Ok(());
    }
    for event in &events {
        if let Body::TrainStarted(started) = &event.body {
            let of: Vec<String> = started.runs.iter().map(|(run, _)| open::short(source, *run)).collect();
            let loss = rao_replay::objective::name_of(started.loss);
            out.line(format_args!("training {} ({loss}) on {}", open::short(source, run), of.join(", ")));
            out.line(format_args!("from weights {}", started.weights.short()));
        }
    }
    if let Some(batch) = metrics.iter().find_map(|m| m.batch.as_ref()) {
        rollouts(out, batch);
    }
    steps(out, &events);
    figures(out, &metrics);
    Ok(())
}

fn of_note(event: &Event) -> Option<Metrics> {
    match &event.body {
        Body::Note(note) => Metrics::from_note(note),
        _ => None,
    }
}

fn rollouts(out: &mut Out, batch: &BatchSummary) {
    out.line(format_args!(
        "{}: mean reward {:.4}, {:.2} nodes and {:.2} levels below the root each",
        plural(batch.reward.count, "rollout"),
        batch.reward.mean,
        batch.nodes.mean,
        batch.depth.mean
    ));
    let mut table = Table::new(&["success of", ">count", ">rate"]);
    for (difficulty, mean) in &batch.success_by_difficulty {
        table.row([format!("roots, {difficulty}"), mean.count.to_string(), format!("{:.4}", mean.mean)]);
    }
    for (depth, mean) in &batch.success_by_depth {
        table.row([format!("depth {depth}"), mean.count.to_string(), format!("{:.4}", mean.mean)]);
    }
    table.print(out);
}

fn steps(out: &mut Out, events: &[Event]) {
    let mut table = Table::new(&[
        ">step",
        ">trajectories",
        ">tokens",
        ">loss",
        ">mean ratio",
        ">clipped",
        ">gradient",
        ">rate",
        "weights after",
    ]);
    for event in events {
        if let Body::TrainStep(step) = &event.body {
            table.row([
                step.step.to_string(),
                step.trajectories.to_string(),
                step.tokens.to_string(),
                format!("{:.5}", step.loss),
                format!("{:.4}", step.mean_ratio),
                format!("{:.4}", step.clip_fraction),
                format!("{:.4}", step.gradient_norm),
                format!("{:.2e}", step.learning_rate),
                step.weights_after.short(),
            ]);
        }
    }
    table.print(out);
}

/// What older trainings did not note.
fn figures(out: &mut Out, metrics: &[Metrics]) {
    let groups: std::collections::BTreeSet<&String> = metrics.iter().flat_map(|m| m.groups.0.keys()).collect();
    if groups.is_empty() {
        return;
    }
    out.line("");
    let mut names = vec![">step", ">entropy", ">KL", ">run", ">of tokens"];
    let heads: Vec<String> = groups.iter().map(|group| format!(">{group}")).collect();
    names.extend(heads.iter().map(String::as_str));
    out.line(
        "entropy and KL in nats; tokens the model was run on, of those in all trajectories; gradient (update) norms",
    );
    let mut table = Table::new(&names);
    for m in metrics {
        let mut row = vec![
            m.step.to_string(),
            format!("{:.4}", m.entropy),
            m.kl.map_or("-".to_owned(), |kl| format!("{kl:.5}")),
            m.model_tokens.to_string(),
            m.summed_tokens.to_string(),
        ];
        for group in &groups {
            let norms = m.groups.0.get(*group).copied().unwrap_or_default();
            row.push(format!("{:.4} ({:.1e})", norms.gradient, norms.update));
        }
        table.row(row);
    }
    table.print(out);
}
