//! One rollout's texts as the engine sees them: who works on which piece, delegation, verdicts, scripted policies.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::query::{Query, Record};
use super::rows::Scoring;
use super::score::{score_dnd, score_dnd_strict, score_synth, score_synth_strict};
use super::synth::Window;
use super::{noisy, oracle, prompt};
use crate::bind::bind;
use crate::judge::Role;
use crate::text::first_place;
use crate::{
    Args, Assessment, Ending, Episode, Goal, Judgement, NodeKey, PromptStyle, Question, Script, Text, Tool, ToolResult,
    Turn, Value,
};

/// The name of the variable that holds a node's text.
const VARIABLE: &str = "context";

/// What a root is asked, and how it is scored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RootTask {
    pub(super) question: String,
    pub(super) answer: String,
    pub(super) scoring: Scoring,
    /// Known for generated questions: what the oracle does.
    pub(super) asked: Option<super::question::Asked>,
}

/// What a node works on.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its text.
    pub(super) text: Text,
    /// Where that stands in the root's text, if it is a piece of it.
    pub(super) range: Option<Range<usize>>,
    /// Its goal in words.
    pub(super) goal: String,
    /// Its goal as data, if it was given as data.
    pub(super) query: Option<Query>,
    /// The pieces of its text that it handed on, in the order of its launches; `None` for a text that is none.
    pub(super) pieces: Vec<Option<Range<usize>>>,
}

/// The open texts of one rollout.
#[derive(Debug)]
pub struct OolongEpisode {
    text: Text,
    /// Where the text is synthetic, its events.
    window: Option<Arc<Window>>,
    pub(super) task: RootTask,
    nodes: BTreeMap<Vec<u32>, Node>,
    /// Characters that the oracle reads in one go.
    pub(super) chunk: usize,
}

impl OolongEpisode {
    pub(super) fn new(text: Text, window: Option<Arc<Window>>, task: RootTask, chunk: usize) -> Self {
        OolongEpisode { text, window, task, nodes: BTreeMap::new(), chunk }
    }

    /// The root's text.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// What a node works on.
    pub(super) fn node(&self, node: &NodeKey) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// The records that count for a node's query: `None` where only the events of the root's text would tell, and the node's
    /// text is no piece of it.
    pub(super) fn records(&self, query: &Query, text: &Text, range: Option<&Range<usize>>) -> Option<Vec<Record>> {
        if query.noun.is_in_text() {
            return Some(query.records_in(text));
        }
        let (window, range) = (self.window.as_ref()?, range?);
        let all = window.records(query.noun);
        let first = all.partition_point(|record| record.at < range.start);
        let end = all.partition_point(|record| record.at < range.end);
        Some(all.get(first..end).unwrap_or_default().to_vec())
    }

    fn read_launch(&self, node: &NodeKey, args: &Args) -> Result<Goal, String> {
        let [goal, context, query] = bind("launch_subagent", &["goal", "context", "query"], 2, args)
            .map_err(|message| format!("Error: {message}"))?;
        let Some(Value::Str(text)) = goal else {
            return Err(format!("Error: goal must be a str, got {}", python_type(goal)));
        };
        let Some(Value::Str(piece)) = context else {
            return Err(format!("Error: context must be a str, got {}", python_type(context)));
        };
        let query = match query {
            None | Some(Value::None) => None,
            Some(value) => {
                Some(Query::from_json(&value.to_json()).map_err(|error| format!("Error: {error}"))?.to_json())
            }
        };
        let (context, own, range) = self.place(node, piece);
        let range = range.map(|range| json!([range.start, range.end]));
        let own = own.map(|own| json!([own.start, own.end]));
        Ok(Goal { text: text.clone(), targets: json!({ "range": range, "piece": own, "query": query }), context })
    }

    /// A text that is handed on, shared with the parent's if it is a piece of it: the text, its place in the parent's, and
    /// its place in the root's. A piece that stands there more than once is taken to follow the one handed on before.
    fn place(&self, node: &NodeKey, piece: &str) -> (Text, Option<Range<usize>>, Option<Range<usize>>) {
        let (parent, begin) = match self.nodes.get(node) {
            Some(parent) => (&parent.text, parent.range.as_ref().map(|range| range.start)),
            None => return (piece.into(), None, None),
        };
        let last = self.nodes.get(node).and_then(|node| node.pieces.iter().rev().flatten().next());
        let from = last.map_or(0, |last| last.end);
        let after = parent.get(from..).and_then(|rest| first_place(rest, piece)).map(|at| from + at);
        let Some(at) = after.or_else(|| first_place(parent, piece)).filter(|_| !piece.is_empty()) else {
            return (piece.into(), None, None);
        };
        let own = at..at + piece.len();
        let Some(text) = parent.slice(own.clone()) else { return (piece.into(), None, None) };
        let range = begin.map(|begin| begin + own.start..begin + own.end);
        (text, Some(own), range)
    }

    /// How the pieces that a node handed on cover its text.
    fn cover(&self, node: &NodeKey) -> Option<Json> {
        let node = self.nodes.get(node).filter(|node| !node.pieces.is_empty())?;
        let mut known: Vec<&Range<usize>> = node.pieces.iter().flatten().collect();
        known.sort_by_key(|range| (range.start, range.end));
        let (mut covered, mut overlap, mut end) = (0, 0, 0);
        for range in known.iter().copied() {
            let fresh = range.end.saturating_sub(end.max(range.start));
            covered += fresh;
            overlap += range.len() - fresh;
            end = end.max(range.end);
        }
        Some(json!({
            "pieces": node.pieces.len(),
            "chunks/altered": node.pieces.len() - known.len(),
            "chunks/overlap": overlap,
            "chunks/gap": node.text.len() - covered,
        }))
    }

    fn verify_root(&self, ending: &Ending<'_>) -> Judgement {
        let task = &self.task;
        let answer = ending.value.map(Value::to_text);
        let scored = answer.as_deref().map(|answer| match task.scoring.answer_type() {
            None => (score_dnd(&task.answer, answer), score_dnd_strict(&task.answer, answer)),
            Some(kind) => (
                score_synth(&task.answer, kind, answer).unwrap_or_default(),
                score_synth_strict(&task.answer, kind, answer).unwrap_or_default(),
            ),
        });
        let (score, strict) = scored.unwrap_or_default();
        let source = if task.scoring == Scoring::Dnd { "oolong/dnd" } else { "oolong/synth" };
        let evidence = json!({ "gold": task.answer, "answer": answer, "strict": strict, "cover": self.cover(&[0]) });
        Judgement { score, source: source.to_owned(), evidence }
    }

    fn verify_child(&self, key: &NodeKey, node: &Node, ending: &Ending<'_>) -> Assessment {
        let cover = self.cover(key);
        let Some(value) = ending.value else {
            let evidence = json!({ "error": ending.error, "cover": cover });
            return Assessment::Judged(Judgement { score: 0.0, source: "oolong/query".into(), evidence });
        };
        let gold = node.query.as_ref().and_then(|query| {
            self.records(query, &node.text, node.range.as_ref()).map(|records| query.answer(records.iter()))
        });
        match gold {
            Some(gold) => {
                let evidence = json!({ "gold": gold.to_value().to_json(), "answer": value.to_json(), "cover": cover });
                Assessment::Judged(Judgement { score: gold.score(value), source: "oolong/query".into(), evidence })
            }
            None => Assessment::Ask(Box::new(Question {
                role: Role::Child,
                rubric: "oolong/child",
                goal: node.goal.clone(),
                context: Some(node.text.clone()),
                truth: None,
                aliases: Vec::new(),
                answer: Some(value.clone()),
                history: ending.history.to_vec(),
                error: None,
                notes: None,
            })),
        }
    }
}

impl Episode for OolongEpisode {
    fn root_goal(&self) -> Goal {
        let targets = json!({ "range": [0, self.text.len()], "piece": null, "query": null });
        Goal { text: self.task.question.clone(), targets, context: self.text.clone() }
    }

    fn tools(&self) -> &'static [Tool] {
        &[]
    }

    fn system_prompt(&self, style: PromptStyle, recursive: bool) -> String {
        prompt::PROMPTS.system(style, recursive)
    }

    fn action_space(&self, style: PromptStyle, recursive: bool) -> String {
        prompt::PROMPTS.action_space(style, recursive)
    }

    fn context_variable(&self) -> Option<&'static str> {
        Some(VARIABLE)
    }

    fn enter(&mut self, node: &NodeKey, goal: &Goal) {
        let range_of = |name: &str| {
            let pair = goal.targets.get(name)?;
            let at = |index: usize| usize::try_from(pair.get(index)?.as_u64()?).ok();
            Some(at(0)?..at(1)?)
        };
        let range = range_of("range");
        // A goal from the log has its text; one whose piece is known shares the root's.
        let shared = range.clone().and_then(|range| self.text.slice(range)).filter(|text| *text == goal.context);
        let query = goal.targets.get("query").filter(|query| !query.is_null());
        let query = query.and_then(|query| Query::from_json(query).ok());
        let text = shared.unwrap_or_else(|| goal.context.clone());
        if let Some((_, parent)) = node.split_last()
            && let Some(parent) = self.nodes.get_mut(parent)
        {
            parent.pieces.push(range_of("piece"));
        }
        self.nodes.insert(node.to_vec(), Node { text, range, query, pieces: Vec::new(), goal: goal.text.clone() });
    }

    fn call(&mut self, _node: &NodeKey, tool: &str, _args: &Args) -> ToolResult {
        ToolResult::Raised { kind: "NameError".to_owned(), message: format!("name '{tool}' is not defined") }
    }

    fn absorb(&mut self, _node: &NodeKey, _tool: &str, _args: &Args, _result: &ToolResult) {}

    fn delegate(&mut self, node: &NodeKey, args: &Args) -> Result<Goal, String> {
        self.read_launch(node, args)
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        match self.nodes.get(node) {
            Some(known) if node.len() > 1 => self.verify_child(node, known, ending),
            _ => Assessment::Judged(self.verify_root(ending)),
        }
    }

    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String {
        match script {
            Script::Oracle => oracle::act(self, turn),
            Script::Noisy => noisy::act(self, turn),
        }
    }
}

fn python_type(value: Option<&Value>) -> &str {
    value.map_or("NoneType", Value::python_type)
}
