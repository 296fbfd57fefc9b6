//! The credit table: what each node's advantage came from.

use rao_engine::Tree;
use rao_replay::trainer::{Batch, Entry, RunConfig};
use rao_store::event::{Body, CreditAssigned, Kind};
use rao_store::{EventSource, Filter, NodePath, RolloutId, RunId, Seq, Stream};
use serde_json::{Value, json};

use super::exit::Failure;
use super::open;
use super::out::Out;
use super::table::Table;

/// One node's numbers. What is `None` does not exist for it: it generated no token, or its group has no other rollout.
#[derive(Clone, Debug)]
pub(crate) struct CreditRow {
    pub(crate) rollout: RolloutId,
    node: NodePath,
    own: f64,
    child_mean: f64,
    lambda: f64,
    reward: f64,
    depth: u32,
    tokens: u64,
    rest: Option<Rest>,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    baseline: f64,
    advantage: f64,
    count: u64,
    weight: f64,
}

/// The rows of a batch.
pub(crate) fn of_batch(batch: &Batch) -> Vec<CreditRow> {
    batch.entries.iter().map(of_entry).collect()
}

fn of_entry(entry: &Entry) -> CreditRow {
    let rest = Rest { baseline: entry.baseline, advantage: entry.advantage, count: entry.count, weight: entry.weight };
    CreditRow {
        rollout: entry.rollout,
        node: entry.node.clone(),
        own: entry.own,
        child_mean: entry.child_mean,
        lambda: entry.lambda,
        reward: entry.reward,
        depth: entry.depth.0,
        tokens: entry.tokens,
        rest: Some(rest),
    }
}

/// All nodes of a rollout that have a reward, with what `batch` says of them.
pub(crate) fn of_tree(rollout: RolloutId, tree: &Tree, batch: &[CreditRow]) -> Vec<CreditRow> {
    let known = |node: &NodePath| batch.iter().find(|row| row.rollout == rollout && row.node == *node).cloned();
    let bare = |node: &rao_engine::Node| {
        let (_, reward) = node.reward.as_ref()?;
        Some(CreditRow {
            rollout,
            node: node.path.clone(),
            own: reward.own,
            child_mean: reward.child_mean,
            lambda: reward.lambda,
            reward: reward.reward,
            depth: node.depth.0,
            tokens: node.generated() as u64,
            rest: None,
        })
    };
    tree.nodes().filter_map(|node| known(&node.path).or_else(|| bare(node))).collect()
}

/// The latest training that used a rollout, with the credit that it wrote.
pub(crate) struct Written {
    pub(crate) training: RunId,
    pub(crate) step: u64,
    pub(crate) rows: Vec<CreditRow>,
}

/// What the latest training on the run wrote about a rollout, if one did.
pub(crate) fn written(
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    tree: &Tree,
) -> Result<Option<Written>, Failure> {
    for training in source.runs().into_iter().rev() {
        let stream = Stream::Training(training);
        if source.head(stream).is_none() {
            continue;
        }
        let mut lambda = None;
        let mut uses = false;
        for event in source.events(stream, Seq(0), &Filter::kinds([Kind::TrainStarted])) {
            if let Body::TrainStarted(started) = event?.body {
                uses = started.runs.iter().any(|(used, _)| *used == run);
                let config: Result<RunConfig, _> = serde_json::from_str(&started.config);
                lambda = config.ok().and_then(|config| config.settings.lambda);
            }
        }
        if !uses {
            continue;
        }
        let mut credits: Vec<CreditAssigned> = Vec::new();
        for event in source.events(stream, Seq(0), &Filter::kinds([Kind::CreditAssigned])) {
            if let Body::CreditAssigned(credit) = event?.body
                && credit.run == run
                && credit.rollout == rollout
            {
                // Later passes over the batch repeat the numbers; the last stays.
                credits.retain(|earlier| earlier.node != credit.node);
                credits.push(credit);
            }
        }
        if let Some(last) = credits.last() {
            let step = last.step;
            let rows = credits.iter().filter_map(|credit| of_credit(credit, tree, lambda)).collect();
            return Ok(Some(Written { training, step, rows }));
        }
    }
    Ok(None)
}

fn of_credit(credit: &CreditAssigned, tree: &Tree, lambda: Option<f64>) -> Option<CreditRow> {
    let (_, reward) = tree.node(&credit.node)?.reward.as_ref()?;
    let rest =
        Rest { baseline: credit.baseline, advantage: credit.advantage, count: credit.count, weight: credit.weight };
    Some(CreditRow {
        rollout: credit.rollout,
        node: credit.node.clone(),
        own: reward.own,
        child_mean: reward.child_mean,
        lambda: lambda.unwrap_or(reward.lambda),
        reward: credit.reward,
        depth: credit.depth.0,
        tokens: credit.tokens,
        rest: Some(rest),
    })
}

/// Prints rows; `limit` keeps long tables short.
pub(crate) fn print(out: &mut Out, rows: &[CreditRow], limit: Option<usize>) {
    let headings = [
        "node",
        ">own",
        ">child mean",
        ">lambda",
        ">reward",
        ">baseline",
        ">advantage",
        ">depth",
        ">count",
        ">weight",
        ">tokens",
    ];
    let mut table = Table::new(&headings);
    let shown = limit.unwrap_or(rows.len());
    for row in rows.iter().take(shown) {
        table.row(row.cells());
    }
    table.print(out);
    if rows.len() > shown {
        out.line(format_args!("... and {} more rows; `--json` has them all", rows.len() - shown));
    }
    if rows.iter().any(|row| row.rest.is_none()) {
        out.line(
            "-: no part of the batch, because the node generated nothing or its group has no other finished rollout",
        );
    }
}

fn number(value: f64) -> String {
    let short = format!("{value:.4}");
    let trimmed = short.trim_end_matches('0').trim_end_matches('.');
    if trimmed == "-0" { "0".to_owned() } else { trimmed.to_owned() }
}

impl CreditRow {
    fn cells(&self) -> [String; 11] {
        let rest = |get: fn(&Rest) -> f64| self.rest.as_ref().map_or("-".to_owned(), |rest| number(get(rest)));
        [
            format!("{}/{}", self.rollout, self.node),
            number(self.own),
            number(self.child_mean),
            number(self.lambda),
            number(self.reward),
            rest(|rest| rest.baseline),
            rest(|rest| rest.advantage),
            self.depth.to_string(),
            self.rest.map_or("-".into(), |rest| rest.count.to_string()),
            rest(|rest| rest.weight),
            self.tokens.to_string(),
        ]
    }

    /// The node with its advantage, if it is part of the batch.
    pub(crate) fn advantage(&self) -> Option<(NodePath, f64)> {
        Some((self.node.clone(), self.rest.as_ref()?.advantage))
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "rollout": self.rollout.0,
            "node": self.node.to_string(),
            "own": self.own,
            "child_mean": self.child_mean,
            "lambda": self.lambda,
            "reward": self.reward,
            "baseline": self.rest.map(|rest| rest.baseline),
            "advantage": self.rest.map(|rest| rest.advantage),
            "depth": self.depth,
            "count": self.rest.map(|rest| rest.count),
            "weight": self.rest.map(|rest| rest.weight),
            "tokens": self.tokens,
        })
    }
}

/// The credit of one rollout, and a sentence that says where it comes from: the latest training that used it or, where
/// none did, the equations over its run as one batch.
pub(crate) fn of_rollout(
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    tree: &Tree,
) -> Result<(String, Vec<CreditRow>), Failure> {
    if let Some(written) = written(source, run, rollout, tree)? {
        let id = open::short(source, written.training);
        let origin = format!("credit as training {id} wrote it (step {})", written.step);
        return Ok((origin, of_tree(rollout, tree, &written.rows)));
    }
    // The forks of a run are a group of their own.
    let settings = rao_replay::trainer::Settings { forks: true, ..Default::default() };
    let batch = rao_replay::trainer::credit_table(source, &[run], &settings)?;
    let origin =
        format!("credit with run {} as the batch; no training has used this rollout", open::short(source, run));
    Ok((origin, of_tree(rollout, tree, &of_batch(&batch))))
}
