//! One rollout's question as the engine sees it: tools, delegation, verdicts, scripted policies.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::block::BlockList;
use super::chain::{self, Hop};
use super::kg::World;
use super::search::{Hit, Lane, MOST_RESULTS, SearchBackend, SearchError};
use super::tasks::Body;
use super::{noisy, oracle, prompt};
use crate::bind::bind;
use crate::judge::{Role, normalize, same_answer};
use crate::{
    Args, Assessment, Detached, Ending, Episode, Goal, Judgement, NodeKey, PromptStyle, Question, Script, Text, Tool,
    ToolResult, Turn, Value,
};

const TOOLS: &[Tool] =
    &[Tool { name: "search_web", is_async: true }, Tool { name: "view_webpage_content", is_async: true }];

/// Results where no number is given.
const RESULTS: i64 = 5;

/// What upstream's tool says of a page that cannot be read, whatever the reason.
const UNREADABLE: &str = "Content extraction failed for the given URL.";

/// What a node is asked for, as data. Never shown to agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Aim {
    /// The answer of the last of these hops: from, to (exclusive).
    Hops(usize, usize),
    /// Something whose answer is known though it is none of the question's hops, or whose hops are not known.
    Fact(String),
    /// Something that only a judge can judge.
    Open,
}

impl Aim {
    fn of(goal: &Goal) -> Self {
        Self::deserialize(&goal.targets).unwrap_or(Self::Open)
    }
}

/// What a node has done so far.
#[derive(Clone, Debug)]
pub(super) struct NodeState {
    pub(super) aim: Aim,
    pub(super) goal: String,
    /// Queries and the addresses that they found.
    pub(super) searches: Vec<(String, Vec<String>)>,
    /// Pages that were read, and whether they hold the answer of a [`Aim::Fact`].
    pub(super) read: Vec<(String, bool)>,
    /// What its children are asked for.
    pub(super) launched: Vec<Aim>,
}

/// The open question of one rollout.
pub struct DiveEpisode {
    body: Body,
    search: Arc<dyn SearchBackend>,
    world: Option<Arc<World>>,
    block: Arc<BlockList>,
    rollout: u64,
    nodes: BTreeMap<Vec<u32>, NodeState>,
}

impl DiveEpisode {
    pub(super) fn new(
        body: Body,
        search: Arc<dyn SearchBackend>,
        world: Option<Arc<World>>,
        block: &[String],
        rollout: u64,
    ) -> Self {
        let block = Arc::new(BlockList::new(&body.question, block));
        Self { body, search, world, block, rollout, nodes: BTreeMap::new() }
    }

    /// The hops of the question; none where they are not known.
    pub fn hops(&self) -> &[Hop] {
        &self.body.hops
    }

    pub(super) fn node(&self, node: &NodeKey) -> Option<&NodeState> {
        self.nodes.get(node)
    }

    fn desk(&self, node: &NodeKey) -> Desk {
        let lane = Lane { rollout: self.rollout, node: node.to_vec() };
        Desk { search: Arc::clone(&self.search), block: Arc::clone(&self.block), lane }
    }

    /// What a goal asks for.
    fn aim(&self, goal: &str) -> Aim {
        let hops = &self.body.hops;
        if normalize(goal) == normalize(&self.body.question) {
            return self.root_aim();
        }
        if let Some(Range { start, end }) = chain::recognise(hops, goal) {
            return Aim::Hops(start, end);
        }
        let answers = self.world.as_ref().and_then(|world| {
            let answers = world.graph.answers(goal)?;
            let only = answers.first().filter(|_| answers.len() == 1)?;
            Some(world.graph.label(*only))
        });
        answers.map_or(Aim::Open, Aim::Fact)
    }

    fn root_aim(&self) -> Aim {
        match self.body.hops.len() {
            0 => Aim::Fact(self.body.answer.clone()),
            hops => Aim::Hops(0, hops),
        }
    }

    fn read_delegation(&self, args: &Args) -> Result<Goal, String> {
        let [goal, expect] =
            bind("launch_subagent", &["goal", "expect"], 1, args).map_err(|message| format!("Error: {message}"))?;
        let goal = match goal {
            Some(Value::Str(goal)) if !goal.trim().is_empty() => goal.trim(),
            Some(Value::Str(_)) => return Err("Error: goal must not be empty".to_owned()),
            other => {
                let given = other.map_or("NoneType", Value::python_type);
                return Err(format!("Error: goal must be a string, got {given}"));
            }
        };
        let text = match expect {
            None | Some(Value::None) => goal.to_owned(),
            Some(Value::Str(expect)) => format!("{goal}\n\nAnswer with: {expect}"),
            Some(other) => return Err(format!("Error: expect must be a string, got {}", other.python_type())),
        };
        Ok(Goal { text, targets: json!(self.aim(goal)), context: Text::default() })
    }

    fn note(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult) {
        let Some(state) = self.nodes.get_mut(node) else { return };
        let ToolResult::Value(value) = result else { return };
        match tool {
            "search_web" => {
                if let Ok([Some(Value::Str(query)), _]) = bind(tool, &["query", "max_results"], 1, args) {
                    state.searches.push((query.clone(), urls(value)));
                }
            }
            "view_webpage_content" => {
                if let (Ok([Some(Value::Str(url))]), Value::Str(text)) = (bind(tool, &["url"], 1, args), value) {
                    let tells = matches!(&state.aim, Aim::Fact(fact) if contains(text, fact));
                    state.read.push((url.clone(), tells));
                }
            }
            _ => {}
        }
    }

    fn question(&self, node: &NodeKey, ending: &Ending<'_>) -> Question {
        let is_root = node.len() <= 1;
        Question {
            role: if is_root { Role::Root } else { Role::Child },
            rubric: if is_root { "deepdive/root" } else { "deepdive/child" },
            goal: self.nodes.get(node).map_or_else(String::new, |state| state.goal.clone()),
            context: None,
            truth: is_root.then(|| self.body.answer.clone()),
            aliases: if is_root { self.body.aliases.clone() } else { Vec::new() },
            answer: ending.value.cloned(),
            // The authors' root judge sees the answer only; the children's sees the way to it.
            history: if is_root { Vec::new() } else { ending.history.to_vec() },
            error: ending.error.map(str::to_owned),
            notes: None,
        }
    }
}

/// Whether a text holds an answer, as whole words.
fn contains(text: &str, answer: &str) -> bool {
    let answer = normalize(answer);
    !answer.is_empty() && format!(" {} ", normalize(text)).contains(&format!(" {answer} "))
}

/// The addresses in a search's answer.
fn urls(answer: &Value) -> Vec<String> {
    let get = |value: &Value, name: &str| {
        let Value::Dict(pairs) = value else { return None };
        pairs.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value.clone())
    };
    let Some(Value::List(results)) = get(answer, "results") else { return Vec::new() };
    results.iter().filter_map(|result| get(result, "url")?.as_str().map(str::to_owned)).collect()
}

/// What a tool call needs, and nothing that changes: so calls can be answered beside everything else.
#[derive(Clone)]
struct Desk {
    search: Arc<dyn SearchBackend>,
    block: Arc<BlockList>,
    lane: Lane,
}

impl Desk {
    fn run(&self, tool: &str, args: &Args) -> ToolResult {
        let result = match tool {
            "search_web" => self.search_web(args),
            "view_webpage_content" => self.view(args),
            _ => Err(("NameError", format!("name '{tool}' is not defined"))),
        };
        match result {
            Ok(value) => ToolResult::Value(value),
            Err((kind, message)) => ToolResult::Raised { kind: kind.to_owned(), message },
        }
    }

    fn search_web(&self, args: &Args) -> Result<Value, (&'static str, String)> {
        let type_error = |message| ("TypeError", message);
        let [query, count] = bind("search_web", &["query", "max_results"], 1, args).map_err(type_error)?;
        let query = match query {
            Some(Value::Str(query)) if !query.trim().is_empty() => query,
            Some(Value::Str(_)) => return Err(("ValueError", "query must not be empty".to_owned())),
            other => {
                let given = other.map_or("NoneType", Value::python_type);
                return Err(type_error(format!("query must be a string, got {given}")));
            }
        };
        let count = match count {
            None => RESULTS,
            Some(value) => value
                .as_int()
                .ok_or_else(|| type_error(format!("max_results must be an integer, got {}", value.python_type())))?,
        };
        let count = u32::try_from(count).ok().filter(|count| (1..=MOST_RESULTS).contains(count));
        let count =
            count.ok_or_else(|| ("ValueError", format!("max_results must be between 1 and {MOST_RESULTS}.")))?;
        let hits = self.search.search(&self.lane, query, count).map_err(|error| ("RuntimeError", error.to_string()))?;
        let hits: Vec<Hit> =
            hits.into_iter().filter(|hit| !self.block.blocks(&[&hit.url, &hit.title, &hit.content])).collect();
        Ok(answer(query, count, hits))
    }

    fn view(&self, args: &Args) -> Result<Value, (&'static str, String)> {
        let [url] = bind("view_webpage_content", &["url"], 1, args).map_err(|message| ("TypeError", message))?;
        let Some(Value::Str(url)) = url else {
            let given = url.map_or("NoneType", Value::python_type);
            return Err(("TypeError", format!("url must be a string, got {given}")));
        };
        match self.search.open(&self.lane, url) {
            Ok(text) if self.block.blocks(&[url, &text]) => Err(("ValueError", UNREADABLE.to_owned())),
            Ok(text) => Ok(Value::Str(text)),
            Err(SearchError::NoPage { .. } | SearchError::Garbage { .. }) => Err(("ValueError", UNREADABLE.to_owned())),
            Err(error) => Err(("RuntimeError", error.to_string())),
        }
    }
}

/// A search's answer in Tavily's shape. What differs from call to call upstream is derived from the request, and the
/// service's own answer is always left out.
fn answer(query: &str, count: u32, hits: Vec<Hit>) -> Value {
    let result = |hit: Hit| {
        Value::dict([
            ("url", Value::Str(hit.url)),
            ("title", Value::Str(hit.title)),
            ("content", Value::Str(hit.content)),
            ("score", Value::Float(hit.score)),
            ("raw_content", Value::None),
        ])
    };
    let id = blake3::hash(format!("{count} {query}").as_bytes()).to_hex();
    Value::dict([
        ("query", Value::str(query)),
        ("follow_up_questions", Value::None),
        ("answer", Value::None),
        ("images", Value::List(Vec::new())),
        ("results", Value::List(hits.into_iter().map(result).collect())),
        ("response_time", Value::Float(0.0)),
        ("request_id", Value::str(id.chars().take(32).collect::<String>())),
    ])
}

impl Episode for DiveEpisode {
    fn root_goal(&self) -> Goal {
        Goal { text: self.body.question.clone(), targets: json!(self.root_aim()), context: Text::default() }
    }

    fn tools(&self) -> &'static [Tool] {
        TOOLS
    }

    fn system_prompt(&self, style: PromptStyle, recursive: bool) -> String {
        prompt::PROMPTS.system(style, recursive)
    }

    fn action_space(&self, style: PromptStyle, recursive: bool) -> String {
        prompt::PROMPTS.action_space(style, recursive)
    }

    fn enter(&mut self, node: &NodeKey, goal: &Goal) {
        let aim = Aim::of(goal);
        if let Some(parent) = node.split_last().and_then(|(_, parent)| self.nodes.get_mut(parent)) {
            parent.launched.push(aim.clone());
        }
        let state =
            NodeState { aim, goal: goal.text.clone(), searches: Vec::new(), read: Vec::new(), launched: Vec::new() };
        self.nodes.insert(node.to_vec(), state);
    }

    fn call(&mut self, node: &NodeKey, tool: &str, args: &Args) -> ToolResult {
        let result = self.desk(node).run(tool, args);
        self.note(node, tool, args, &result);
        result
    }

    fn detached(&self, node: &NodeKey, tool: &str, args: &Args) -> Option<Detached> {
        if !self.search.waits() {
            return None;
        }
        let (desk, tool, args) = (self.desk(node), tool.to_owned(), args.clone());
        Some(Box::new(move || desk.run(&tool, &args)))
    }

    fn absorb(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult) {
        self.note(node, tool, args, result);
    }

    fn delegate(&mut self, _node: &NodeKey, args: &Args) -> Result<Goal, String> {
        self.read_delegation(args)
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        let aim = self.nodes.get(node).map_or(Aim::Open, |state| state.aim.clone());
        let text = ending.value.map(Value::to_text);
        let (truth, right, hops) = match (&aim, node.len() > 1) {
            (Aim::Hops(from, to), true) => {
                let hop = to.checked_sub(1).and_then(|at| self.body.hops.get(at));
                let right = text.as_deref().is_some_and(|text| hop.is_some_and(|hop| hop.is_answer(text)));
                (hop.map(|hop| hop.answer.clone()).unwrap_or_default(), right, json!([from, to]))
            }
            (Aim::Fact(fact), true) => {
                let right = text.as_deref().is_some_and(|text| same_answer(fact, text));
                (fact.clone(), right, Json::Null)
            }
            _ => return Assessment::Ask(Box::new(self.question(node, ending))),
        };
        Assessment::Judged(Judgement {
            score: if right { 1.0 } else { 0.0 },
            source: "deepdive/exact".to_owned(),
            evidence: json!({ "truth": truth, "answer": text, "hops": hops }),
        })
    }

    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String {
        match script {
            Script::Oracle => oracle::render(&oracle::next_move(self, turn)),
            Script::Noisy => noisy::act(self, turn),
        }
    }
}
