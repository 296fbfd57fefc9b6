//! `rao-log diff`: two rollouts, or two runs, held against each other. They may lie in different logs and sealed files.

mod runs;

use std::collections::BTreeMap;

use clap::Args;
use rao_engine::{Node, Tree};
use rao_replay::diff::{Pair, align, first};
use rao_store::{EventSource, NodePath, RolloutId, RunId, Target};
use serde_json::{Value, json};

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::out::{Out, one_line, plural};
use crate::shared::places::{self, Place};
use crate::shared::table::Table;
use crate::shared::{credit, open};

/// Characters of a goal.
const GOAL: usize = 36;
/// Characters of each side of a difference.
const SIDE: usize = 400;

/// Compare two rollouts (which nodes correspond, where they part, rewards and advantages), or two runs (success, depth,
/// nodes and tokens by difficulty, and the tasks that changed). Each side is RUN, RUN/ROLLOUT, a log's folder or a sealed
/// file (its newest run), or either of these followed by `:RUN` or `:RUN/ROLLOUT`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// RUN/ROLLOUT, RUN, FILE, or LOG:RUN.
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
    let a = places::named(&args.a, &args.log.log)?;
    let b = places::named(&args.b, &args.log.log)?;
    let json = args.json.json;
    match (a.target, b.target) {
        (Target::Rollout(run_a, x), Target::Rollout(run_b, y)) => rollouts(out, (&a, run_a, x), (&b, run_b, y), json),
        (Target::Run(x), Target::Run(y)) => runs::compare(out, (&a, x), (&b, y), json),
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
    fn read(place: &Place, run: RunId, rollout: RolloutId) -> Result<Side, Failure> {
        let source: &dyn EventSource = &*place.source;
        let tree = open::tree(&open::events(source, run, rollout)?)?;
        // Credit needs the whole run to be sound; without it, the trees can still be compared.
        let rows = credit::of_rollout(source, run, rollout, &tree).map_or_else(|_| Vec::new(), |(_, rows)| rows);
        let advantages = rows.iter().filter_map(credit::CreditRow::advantage).collect();
        Ok(Side { place: format!("{}/{rollout}", place.shown(run)), tree, advantages })
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
    (place_a, run_a, a): (&Place, RunId, RolloutId),
    (place_b, run_b, b): (&Place, RunId, RolloutId),
    json: bool,
) -> Result<(), Failure> {
    let (a, b) = (Side::read(place_a, run_a, a)?, Side::read(place_b, run_b, b)?);
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
