//! Two runs: success and effort by difficulty with 95 % intervals, and the tasks whose share of solved rollouts changed.

use std::collections::BTreeMap;

use rao_replay::spread::{Spread, share_difference, wilson};
use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Filter, RunId, Seq, Stream};
use serde_json::{Value, json};

use crate::eval::{Row, by_difficulty};
use crate::shared::exit::Failure;
use crate::shared::open;
use crate::shared::out::{Out, plural};
use crate::shared::places::Place;
use crate::shared::table::Table;

/// Tasks listed on the screen.
const TASKS: usize = 40;

/// A task's rollouts in a run.
#[derive(Clone, Copy, Default)]
struct Tried {
    rollouts: u64,
    solved: u64,
}

impl Tried {
    fn text(self) -> String {
        if self.rollouts == 0 { "-".to_owned() } else { format!("{}/{}", self.solved, self.rollouts) }
    }
}

fn tasks(source: &dyn EventSource, run: RunId) -> Result<BTreeMap<String, Tried>, Failure> {
    let mut tasks = BTreeMap::<String, Tried>::new();
    for rollout in open::rollouts(source, run) {
        let filter = Filter::kinds([Kind::RolloutStarted, Kind::RolloutFinished]);
        let mut task = String::new();
        for event in source.events(Stream::Rollout(run, rollout), Seq(0), &filter) {
            match event?.body {
                Body::RolloutStarted(started) => task = started.task_id,
                Body::RolloutFinished(end) => {
                    let tried = tasks.entry(task.clone()).or_default();
                    tried.rollouts += 1;
                    tried.solved += u64::from(end.success >= 1.0);
                }
                _ => {}
            }
        }
    }
    Ok(tasks)
}

/// The same difficulty in both runs.
struct Both<'a> {
    name: &'a str,
    a: Option<&'a Row>,
    b: Option<&'a Row>,
}

fn both<'a>(a: &'a [Row], b: &'a [Row]) -> Vec<Both<'a>> {
    let mut names: Vec<&str> = a.iter().map(Row::difficulty).collect();
    names.extend(b.iter().map(Row::difficulty).filter(|name| a.iter().all(|row| row.difficulty() != *name)));
    let of = |rows: &'a [Row], name: &str| rows.iter().find(|row| row.difficulty() == name);
    names.into_iter().map(|name| Both { name, a: of(a, name), b: of(b, name) }).collect()
}

/// Compares run `x` of the first place with run `y` of the second.
pub(super) fn compare(
    out: &mut Out,
    (a, x): (&Place, RunId),
    (b, y): (&Place, RunId),
    json: bool,
) -> Result<(), Failure> {
    let (left, right) = (by_difficulty(&*a.source, x)?, by_difficulty(&*b.source, y)?);
    let (tasks_a, tasks_b) = (tasks(&*a.source, x)?, tasks(&*b.source, y)?);
    let mut all: BTreeMap<&str, (Tried, Tried)> = BTreeMap::new();
    tasks_a.iter().for_each(|(task, tried)| all.entry(task).or_default().0 = *tried);
    tasks_b.iter().for_each(|(task, tried)| all.entry(task).or_default().1 = *tried);
    let changed: Vec<(&str, Tried, Tried)> = all
        .iter()
        .map(|(task, (x, y))| (*task, *x, *y))
        .filter(|(_, x, y)| x.solved * y.rollouts != y.solved * x.rollouts || (x.rollouts == 0) != (y.rollouts == 0))
        .collect();
    let rows = both(&left, &right);
    if json {
        let changed: Vec<Value> = changed
            .iter()
            .map(|(task, x, y)| json!({ "task": task, "a": [x.solved, x.rollouts], "b": [y.solved, y.rollouts] }))
            .collect();
        let same = all.len() - changed.len();
        let rows: Vec<Value> = rows.iter().map(to_json).collect();
        out.json(&json!({
            "a": x.to_string(), "b": y.to_string(), "difficulties": rows, "changed": changed, "unchanged": same,
        }));
        return Ok(());
    }
    out.line(format_args!("a  run {}", a.shown(x)));
    out.line(format_args!("b  run {}", b.shown(y)));
    out.line("");
    let headings =
        ["", "difficulty", ">rollouts", ">solved", ">rate", "95 % interval", ">depth", ">nodes", ">steps", ">tokens"];
    let mut table = Table::new(&headings);
    for row in &rows {
        for (side, of) in [("a", row.a), ("b", row.b)] {
            if let Some(of) = of {
                table.row(side_cells(side, row.name, of));
            }
        }
        if let (Some(a), Some(b)) = (row.a, row.b) {
            table.row(difference_cells(row.name, a, b));
        }
    }
    table.print(out);
    out.line("depth to tokens are means of rollouts, with half the width of their 95 % intervals (Student, Welch)");
    out.line("");
    out.line(format_args!("{} changed, {} did not", plural(changed.len() as u64, "task"), all.len() - changed.len()));
    if !changed.is_empty() {
        let mut table = Table::new(&["task", ">a solved", ">b solved"]);
        for (task, x, y) in changed.iter().take(TASKS) {
            table.row([(*task).to_owned(), x.text(), y.text()]);
        }
        table.print(out);
        if changed.len() > TASKS {
            out.line(format_args!("... and {} more; `--json` has them all", changed.len() - TASKS));
        }
    }
    Ok(())
}

fn around(value: f64, half_width: Option<f64>, sign: bool) -> String {
    let value = if sign { format!("{value:+.1}") } else { format!("{value:.1}") };
    half_width.map_or(value.clone(), |half| format!("{value} ±{half:.1}"))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn side_cells(side: &str, name: &str, row: &Row) -> Vec<String> {
    let (solved, rollouts) = row.solved();
    let (low, high) = wilson(solved, rollouts);
    let rate = solved as f64 / rollouts.max(1) as f64;
    let mut cells = vec![side.to_owned(), name.to_owned(), rollouts.to_string(), solved.to_string()];
    cells.extend([format!("{rate:.3}"), format!("{low:.3} to {high:.3}")]);
    cells.extend(row.efforts().map(|(_, spread)| around(spread.mean(), spread.half_width(), false)));
    cells
}

fn difference_cells(name: &str, a: &Row, b: &Row) -> Vec<String> {
    let (difference, low, high) = share_difference(a.solved(), b.solved());
    let mut cells = vec!["b-a".to_owned(), name.to_owned(), String::new(), String::new()];
    cells.extend([format!("{difference:+.3}"), format!("{low:+.3} to {high:+.3}")]);
    cells.extend(efforts(a, b).map(|(_, a, b)| {
        let (difference, half_width) = a.difference(&b);
        around(difference, half_width, true)
    }));
    cells
}

fn efforts(a: &Row, b: &Row) -> [(&'static str, Spread, Spread); 4] {
    let mut others = b.efforts().into_iter();
    a.efforts().map(|(name, spread)| (name, spread, others.next().map_or_else(Spread::default, |(_, other)| other)))
}

fn to_json(row: &Both<'_>) -> Value {
    let side = |row: Option<&Row>| {
        row.map(|row| {
            let mut json = row.to_json();
            if let Some(fields) = json.as_object_mut() {
                for (name, spread) in row.efforts() {
                    fields.insert(format!("{name}_half_width"), json!(spread.half_width()));
                }
            }
            json
        })
    };
    let difference = row.a.zip(row.b).map(|(a, b)| {
        let (rate, low, high) = share_difference(a.solved(), b.solved());
        let mut json = json!({ "rate": rate, "low": low, "high": high });
        if let Some(fields) = json.as_object_mut() {
            for (name, a, b) in efforts(a, b) {
                let (difference, half_width) = a.difference(&b);
                fields.insert(format!("mean_{name}"), json!(difference));
                fields.insert(format!("{name}_half_width"), json!(half_width));
            }
        }
        json
    });
    json!({ "difficulty": row.name, "a": side(row.a), "b": side(row.b), "difference": difference })
}
