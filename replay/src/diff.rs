//! Two execution trees held against each other: which nodes correspond, and where they part.

use std::collections::BTreeSet;

use rao_engine::{Call, Node, Step, Tree};
use rao_store::event::Answer;
use rao_store::{NodePath, Seq};

/// Where two corresponding nodes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// The step, from 0.
    pub step: u32,
    /// What differs first in it: `action`, `code`, `call 2`, `answer 2`, `output`, or `end` if one has no such step.
    pub what: String,
    /// The action's event in the first tree, or the node's own event where it has no such step.
    pub a_seq: Seq,
    /// The same in the second tree.
    pub b_seq: Seq,
    /// The first tree's side, as text.
    pub a: String,
    /// The second tree's side.
    pub b: String,
}

/// Two corresponding nodes, or one that has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// How deep below the root.
    pub depth: usize,
    /// The node in the first tree.
    pub a: Option<NodePath>,
    /// The node in the second tree.
    pub b: Option<NodePath>,
    /// Whether the two have the same goal; true for a node without counterpart.
    pub same_goal: bool,
    /// Where the two part; `None` if their steps are equal, or if one is missing.
    pub parting: Option<Parting>,
}

/// Aligns two trees, roots first and every parent before its children.
///
/// Roots correspond. The children of corresponding nodes are aligned by their goals: first in spawn order (a longest
/// common subsequence), then whatever equal goals are left; what then still has no counterpart corresponds to the node
/// that the same call of the other tree launched, if there is one.
#[must_use]
pub fn align(a: &Tree, b: &Tree) -> Vec<Pair> {
    let mut pairs = Vec::new();
    add(&mut pairs, (a, a.root()), (b, b.root()), 0);
    pairs
}

/// The pair that parts first, by the first tree's events.
#[must_use]
pub fn first(pairs: &[Pair]) -> Option<&Pair> {
    pairs
        .iter()
        .filter(|pair| pair.parting.is_some())
        .min_by_key(|pair| pair.parting.as_ref().map(|p| (p.a_seq, p.b_seq)))
}

fn add(pairs: &mut Vec<Pair>, (a, left): (&Tree, Option<&Node>), (b, right): (&Tree, Option<&Node>), depth: usize) {
    let (same_goal, parting) = match (left, right) {
        (Some(x), Some(y)) => (goal(x) == goal(y), parting(x, y)),
        _ => (true, None),
    };
    let path = |node: Option<&Node>| node.map(|node| node.path.clone());
    pairs.push(Pair { depth, a: path(left), b: path(right), same_goal, parting });
    for (x, y) in children(&kids(a, left), &kids(b, right)) {
        add(pairs, (a, x), (b, y), depth + 1);
    }
}

fn kids<'t>(tree: &'t Tree, node: Option<&'t Node>) -> Vec<&'t Node> {
    node.map_or_else(Vec::new, |node| node.children.iter().filter_map(|path| tree.node(path)).collect())
}

fn goal(node: &Node) -> (&str, &str, &str) {
    (&node.goal, &node.targets, &node.context_text)
}

type Matched<'t> = (Option<&'t Node>, Option<&'t Node>);

/// The correspondence of two lists of children: in the first list's order, each of the second list's own before the first
/// of its successors that corresponds.
fn children<'t>(a: &[&'t Node], b: &[&'t Node]) -> Vec<Matched<'t>> {
    let mut partner: Vec<Option<usize>> = common(a, b);
    let mut taken: BTreeSet<usize> = partner.iter().flatten().copied().collect();
    let tests: [fn(&Node, &Node) -> bool; 2] = [|x, y| goal(x) == goal(y), |x, y| x.call == y.call];
    for test in tests {
        for (own, node) in partner.iter_mut().zip(a) {
            if own.is_none() {
                *own = (0..b.len()).find(|at| !taken.contains(at) && b.get(*at).is_some_and(|other| test(node, other)));
                taken.extend(*own);
            }
        }
    }
    let mut matched: Vec<Matched<'t>> = Vec::new();
    let mut shown = 0;
    for (node, own) in a.iter().zip(&partner) {
        if let Some(at) = own {
            for extra in shown..*at {
                if !taken.contains(&extra) {
                    matched.push((None, b.get(extra).copied()));
                }
            }
            shown = shown.max(at + 1);
        }
        matched.push((Some(node), own.and_then(|at| b.get(at).copied())));
    }
    matched.extend((shown..b.len()).filter(|at| !taken.contains(at)).map(|at| (None, b.get(at).copied())));
    matched
}

/// For each of the first list its counterpart in a longest common subsequence of goals.
fn common(a: &[&Node], b: &[&Node]) -> Vec<Option<usize>> {
    // length[i][j]: of the longest common subsequence of a[i..] and b[j..].
    let mut length = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    let at = |length: &[Vec<usize>], i: usize, j: usize| length.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0);
    let same = |i: usize, j: usize| matches!((a.get(i), b.get(j)), (Some(x), Some(y)) if goal(x) == goal(y));
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let best = if same(i, j) {
                at(&length, i + 1, j + 1) + 1
            } else {
                at(&length, i + 1, j).max(at(&length, i, j + 1))
            };
            if let Some(cell) = length.get_mut(i).and_then(|row| row.get_mut(j)) {
                *cell = best;
            }
        }
    }
    let mut partner = vec![None; a.len()];
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        if same(i, j) {
            if let Some(own) = partner.get_mut(i) {
                *own = Some(j);
            }
            (i, j) = (i + 1, j + 1);
        } else if at(&length, i + 1, j) >= at(&length, i, j + 1) {
            i += 1;
        } else {
            j += 1;
        }
    }
    partner
}

fn parting(a: &Node, b: &Node) -> Option<Parting> {
    for number in 0..a.steps.len().max(b.steps.len()) {
        let (x, y) = (a.steps.get(number), b.steps.get(number));
        let difference = match (x, y) {
            (Some(x), Some(y)) => step_difference(x, y),
            (x, y) => Some(("end".to_owned(), side(x, a), side(y, b))),
        };
        if let Some((what, left, right)) = difference {
            let seq = |step: Option<&Step>, node: &Node| step.map_or(node.spawned, |step| step.seq);
            return Some(Parting {
                step: u32::try_from(number).unwrap_or(u32::MAX),
                what,
                a_seq: seq(x, a),
                b_seq: seq(y, b),
                a: left,
                b: right,
            });
        }
    }
    None
}

fn side(step: Option<&Step>, node: &Node) -> String {
    match (step, node.outcome) {
        (Some(step), _) => step.text.clone(),
        (None, Some(outcome)) => format!("({outcome:?} after {} steps)", node.steps.len()),
        (None, None) => format!("(the log ends after {} steps)", node.steps.len()),
    }
}

fn step_difference(a: &Step, b: &Step) -> Option<(String, String, String)> {
    if a.text != b.text {
        return Some(("action".to_owned(), a.text.clone(), b.text.clone()));
    }
    if a.code != b.code {
        let code = |step: &Step| step.code.clone().unwrap_or_default();
        return Some(("code".to_owned(), code(a), code(b)));
    }
    for number in 0..a.calls.len().max(b.calls.len()) {
        let (x, y) = (a.calls.get(number), b.calls.get(number));
        if x.map(called) != y.map(called) {
            let text = |call: Option<&Call>| call.map_or("(no such call)".to_owned(), called);
            return Some((format!("call {number}"), text(x), text(y)));
        }
        if x.map(answered) != y.map(answered) {
            let text = |call: Option<&Call>| call.map_or_else(String::new, answered);
            return Some((format!("answer {number}"), text(x), text(y)));
        }
    }
    let output = |step: &Step| {
        step.output.as_ref().map_or("(no end)".to_owned(), |output| match &output.error {
            Some(error) => format!("{}Error: {error}", output.stdout),
            None => output.stdout.clone(),
        })
    };
    (output(a) != output(b)).then(|| ("output".to_owned(), output(a), output(b)))
}

fn called(call: &Call) -> String {
    format!("{}{}", call.name, call.args)
}

fn answered(call: &Call) -> String {
    match (&call.answer, &call.refused) {
        (Some(Answer::Value(json)), _) => json.clone(),
        (Some(Answer::Raised { kind, message }), _) => format!("raised {kind}: {message}"),
        (None, Some(text)) => text.clone(),
        (None, None) => "(no answer)".to_owned(),
    }
}
