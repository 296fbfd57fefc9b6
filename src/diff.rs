//! `rao-log diff`: two rollouts, or two runs, held against each other.

use std::collections::BTreeMap;

use clap::Args;
use rao_engine::{Node, Tree};
use rao_replay::diff::{Pair, align, first};
use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Filter, NodePath, RolloutId, RunId, Seq, Stream, Target, resolve_target};
use serde_json::{Value, json};

use crate::eval::{Row, by_difficulty};
use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::out::{Out, one_line, plural};
use crate::shared::table::Table;
use crate::shared::{credit, open};

/// Characters of a goal.
const GOAL: usize = 36;
/// Characters of each side of a difference.
const SIDE: usize = 400;
/// Tasks listed on the screen.
const TASKS: usize = 40;

/// Compare two rollouts (which nodes correspond, where they part, rewards and advantages), or two runs (success, depth,
/// nodes and tokens by difficulty, and the tasks that changed).
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// RUN/ROLLOUT, or RUN.
    #[arg(value_name = "A")]
    a: String,
    /// The other one.
    #[arg(value_name = "B")]
    b: String,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs, out: &mut Out) -> Result<(), Failure> {
    let source = open::reader(&args.log.log)?;
    let json = args.json.json;
    match (resolve_target(&source, &args.a)?, resolve_target(&source, &args.b)?) {
        (Target::Rollout(a, x), Target::Rollout(b, y)) => rollouts(out, &source, (a, x), (b, y), json),
        (Target::Run(a), Target::Run(b)) => runs(out, &source, a, b, json),
        _ => {
            let message = format!("`{}` and `{}` are neither two rollouts nor two recorded runs", args.a, args.b);
            Err(Failure::usage(message).help("write `rao-log diff RUN/ROLLOUT RUN/ROLLOUT` or `rao-log diff RUN RUN`"))
        }
    }
}

/// One side of a comparison of rollouts.
struct Side {
    place: String,
    tree: Tree,
    advantages: BTreeMap<NodePath, f64>,
}

impl Side {
    fn read(source: &dyn EventSource, run: RunId, rollout: RolloutId) -> Result<Side, Failure> {
        let tree = open::tree(&open::events(source, run, rollout)?)?;
        // Credit needs the whole run to be sound; without it, the trees can still be compared.
        let rows = credit::of_rollout(source, run, rollout, &tree).map_or_else(|_| Vec::new(), |(_, rows)| rows);
        let advantages = rows.iter().filter_map(credit::CreditRow::advantage).collect();
        Ok(Side { place: format!("{}/{rollout}", open::short(source, run)), tree, advantages })
    }

    fn node(&self, path: Option<&NodePath>) -> Option<&Node> {
        self.tree.node(path?)
    }

    fn line(&self) -> String {
        let started = self.tree.started.as_ref();
        let (task, policy) = started.map_or(("?", "?"), |s| (s.task_id.as_str(), s.policy.name.as_str()));
        let end = self.tree.finished.as_ref().map_or("no end".to_owned(), |end| format!("success {}", end.success));
        let (nodes, events) = (plural(self.tree.len() as u64, "node"), plural(self.tree.events, "event"));
        format!("{} {policy} on {task}: {nodes}, {events}, {end}", self.place)
    }
}

fn rollouts(
    out: &mut Out,
    source: &dyn EventSource,
    (run_a, a): (RunId, RolloutId),
    (run_b, b): (RunId, RolloutId),
    json: bool,
) -> Result<(), Failure> {
    let (a, b) = (Side::read(source, run_a, a)?, Side::read(source, run_b, b)?);
    let pairs = align(&a.tree, &b.tree);
    if json {
        let rows: Vec<Value> = pairs.iter().map(|pair| pair_json(pair, &a, &b)).collect();
        let parts = first(&pairs).map(|pair| json!({ "a": path(pair.a.as_ref()), "b": path(pair.b.as_ref()) }));
        let end = |side: &Side| side.tree.finished.as_ref().map(|end| end.success);
        out.json(&json!({
            "a": a.place, "b": b.place, "success": [end(&a), end(&b)], "first": parts, "nodes": rows,
        }));
        return Ok(());
    }
    out.line(format_args!("a  {}", a.line()));
    out.line(format_args!("b  {}", b.line()));
    out.line("");
    let mut table = Table::new(&["a", "b", "goal", "difference", ">reward", ">advantage"]);
    for pair in &pairs {
        table.row(cells(pair, &a, &b));
    }
    table.print(out);
    out.line("");
    let Some((pair, parting)) = first(&pairs).and_then(|pair| Some((pair, pair.parting.as_ref()?))) else {
        let alone = pairs.iter().any(|pair| pair.a.is_none() || pair.b.is_none());
        out.line(if alone { "corresponding nodes took the same steps" } else { "the two trees took the same steps" });
        return Ok(());
    };
    let (node, step) = (path(pair.a.as_ref()), parting.step);
    out.line(format_args!(
        "first at step {step} of node {node} (a#{}, b#{}): {}",
        parting.a_seq, parting.b_seq, parting.what
    ));
    for (name, text) in [("a", &parting.a), ("b", &parting.b)] {
        let cut: String = text.chars().take(SIDE).collect();
        for (number, line) in cut.lines().enumerate() {
            out.line(format_args!("  {}  {line}", if number == 0 { name } else { " " }));
        }
    }
    Ok(())
}

fn path(node: Option<&NodePath>) -> String {
    node.map_or("-".to_owned(), ToString::to_string)
}

fn reward(node: Option<&Node>) -> Option<f64> {
    node.and_then(|node| node.reward.as_ref()).map(|(_, reward)| reward.reward)
}

fn difference(pair: &Pair) -> String {
    match (&pair.a, &pair.b, &pair.parting) {
        (None, _, _) => "added".to_owned(),
        (_, None, _) => "missing".to_owned(),
        (_, _, Some(parting)) => format!("step {}: {}", parting.step, parting.what),
        _ if !pair.same_goal => "goal".to_owned(),
        _ => "same".to_owned(),
    }
}

/// `1 -> 0.5`, or the one number that both are.
fn two(a: Option<f64>, b: Option<f64>) -> String {
    let text = |value: Option<f64>| value.map_or("-".to_owned(), short);
    if text(a) == text(b) { text(a) } else { format!("{} -> {}", text(a), text(b)) }
}

fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn cells(pair: &Pair, a: &Side, b: &Side) -> [String; 6] {
    let (x, y) = (a.node(pair.a.as_ref()), b.node(pair.b.as_ref()));
    let advantage = |side: &Side, node: Option<&NodePath>| side.advantages.get(node?).copied();
    [
        path(pair.a.as_ref()),
        path(pair.b.as_ref()),
        format!("{}{}", "  ".repeat(pair.depth), one_line(x.or(y).map_or("", |node| &node.goal), GOAL)),
        difference(pair),
        two(reward(x), reward(y)),
        two(advantage(a, pair.a.as_ref()), advantage(b, pair.b.as_ref())),
    ]
}

fn pair_json(pair: &Pair, a: &Side, b: &Side) -> Value {
    let (x, y) = (a.node(pair.a.as_ref()), b.node(pair.b.as_ref()));
    let advantage = |side: &Side, node: Option<&NodePath>| side.advantages.get(node?).copied();
    json!({
        "a": pair.a.as_ref().map(ToString::to_string),
        "b": pair.b.as_ref().map(ToString::to_string),
        "goal": [x.map(|node| &node.goal), y.map(|node| &node.goal)],
        "difference": difference(pair),
        "step": pair.parting.as_ref().map(|parting| parting.step),
        "seq": pair.parting.as_ref().map(|parting| [parting.a_seq.0, parting.b_seq.0]),
        "was": pair.parting.as_ref().map(|parting| &parting.a),
        "is": pair.parting.as_ref().map(|parting| &parting.b),
        "reward": [reward(x), reward(y)],
        "advantage": [advantage(a, pair.a.as_ref()), advantage(b, pair.b.as_ref())],
    })
}

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

fn runs(out: &mut Out, source: &dyn EventSource, a: RunId, b: RunId, json: bool) -> Result<(), Failure> {
    let (left, right) = (by_difficulty(source, a)?, by_difficulty(source, b)?);
    let (tasks_a, tasks_b) = (tasks(source, a)?, tasks(source, b)?);
    let mut all: BTreeMap<&str, (Tried, Tried)> = BTreeMap::new();
    tasks_a.iter().for_each(|(task, tried)| all.entry(task).or_default().0 = *tried);
    tasks_b.iter().for_each(|(task, tried)| all.entry(task).or_default().1 = *tried);
    let changed: Vec<(&str, Tried, Tried)> = all
        .iter()
        .map(|(task, (x, y))| (*task, *x, *y))
        .filter(|(_, x, y)| x.solved * y.rollouts != y.solved * x.rollouts || (x.rollouts == 0) != (y.rollouts == 0))
        .collect();
    let mut names: Vec<&str> = left.iter().map(Row::difficulty).collect();
    names.extend(right.iter().map(Row::difficulty).filter(|name| left.iter().all(|row| row.difficulty() != *name)));
    let of = |rows: &'_ [Row], name: &str| rows.iter().position(|row| row.difficulty() == name);
    if json {
        let side = |rows: &[Row], name: &str| of(rows, name).and_then(|at| rows.get(at)).map(Row::to_json);
        let rows: Vec<Value> = names
            .iter()
            .map(|name| json!({ "difficulty": name, "a": side(&left, name), "b": side(&right, name) }))
            .collect();
        let changed: Vec<Value> = changed
            .iter()
            .map(|(task, x, y)| json!({ "task": task, "a": [x.solved, x.rollouts], "b": [y.solved, y.rollouts] }))
            .collect();
        let same = all.len() - changed.len();
        out.json(&json!({
            "a": a.to_string(), "b": b.to_string(), "difficulties": rows, "changed": changed, "unchanged": same,
        }));
        return Ok(());
    }
    let mut table = Table::new(&[
        "",
        "difficulty",
        ">rollouts",
        ">solved",
        ">rate",
        "95 % interval",
        ">depth",
        ">nodes",
        ">steps",
        ">tokens",
    ]);
    for name in &names {
        for (side, rows) in [("a", &left), ("b", &right)] {
            if let Some(row) = of(rows, name).and_then(|at| rows.get(at)) {
                table.row(std::iter::once(side.to_owned()).chain(row.cells()));
            }
        }
    }
    out.line(format_args!("a  run {}", open::short(source, a)));
    out.line(format_args!("b  run {}", open::short(source, b)));
    out.line("");
    table.print(out);
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
