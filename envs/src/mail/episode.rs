//! One rollout's view of the mailbox: tools, delegation, verdicts, and what each node has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::mailbox::{Mailbox, Search};
use super::message::Email;
use super::query::Query;
use super::settings::ReadScope;
use super::tasks::Body;
use super::{RewardKind, judging, noisy, oracle, prompt};
use crate::bind::bind;
use crate::{
    Args, Assessment, Ending, Episode, Goal, NodeKey, PromptStyle, Script, Text, Tool, ToolResult, Turn, Value,
};

const TOOLS: &[Tool] = &[Tool { name: SEARCH, is_async: true }, Tool { name: READ, is_async: true }];

const SEARCH: &str = "search_emails";
const READ: &str = "read_email";

const SEARCH_PARAMETERS: [&str; 6] = ["keywords", "from_addr", "to_addr", "sent_after", "sent_before", "max_results"];

/// A search that was made, and what it showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Searched {
    /// The search.
    pub search: Search,
    /// The message ids of its hits, newest first.
    pub hits: Vec<String>,
}

/// What a node has done so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Its goal.
    pub(super) goal: String,
    /// The form of its goal, if it has one.
    pub(super) query: Option<Query>,
    /// Its searches, in order.
    pub(super) searches: Vec<Searched>,
    /// The mails that it has read.
    pub(super) read: BTreeSet<String>,
    /// How often it asked for a mail that does not exist (or may not be read).
    pub(super) read_invalid: u32,
}

/// The open world of one rollout. Nodes share the mailbox, which never changes, and nothing else.
#[derive(Debug)]
pub struct MailEpisode {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) body: Body,
    pub(super) reward: RewardKind,
    read_scope: ReadScope,
    pub(super) nodes: BTreeMap<Vec<u32>, Seen>,
}

impl MailEpisode {
    pub(super) fn new(mailbox: Arc<Mailbox>, body: Body, reward: RewardKind, read_scope: ReadScope) -> Self {
        Self { mailbox, body, reward, read_scope, nodes: BTreeMap::new() }
    }

    /// The mailbox.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Whose mail is asked about.
    pub fn inbox(&self) -> &str {
        &self.body.inbox
    }

    /// What the oracle does now, before it is put into Python.
    pub fn next_move(&self, turn: &Turn<'_>) -> oracle::Move {
        oracle::next_move(self, turn)
    }

    /// What a node has done so far; a node that never began has done nothing.
    pub(super) fn seen(&self, node: &NodeKey) -> Seen {
        self.nodes.get(node).cloned().unwrap_or_default()
    }

    /// A node with everything below it.
    pub(super) fn subtree(&self, node: &NodeKey) -> impl Iterator<Item = (&Vec<u32>, &Seen)> {
        let node = node.to_vec();
        self.nodes.iter().filter(move |(path, _)| path.starts_with(&node))
    }

    /// The children that a node has had.
    pub(super) fn children(&self, node: &NodeKey) -> impl Iterator<Item = &Seen> {
        let size = node.len() + 1;
        self.subtree(node).filter(move |(path, _)| path.len() == size).map(|(_, seen)| seen)
    }

    fn run_tool(&self, tool: &str, args: &Args) -> Result<Value, (&'static str, String)> {
        match tool {
            SEARCH => {
                let search = read_search(args).map_err(|message| ("TypeError", message))?;
                let hits = self.mailbox.search(&self.body.inbox, &search);
                let hits = hits.map_err(|error| ("ValueError", error.to_string()))?;
                let shown = hits.into_iter().map(|hit| {
                    Value::dict([("message_id", Value::Str(hit.message_id)), ("snippet", Value::Str(hit.snippet))])
                });
                Ok(Value::List(shown.collect()))
            }
            READ => {
                let id = read_id(args).map_err(|message| ("TypeError", message))?;
                Ok(self.open_mail(id).map_or(Value::None, shown))
            }
            _ => Err(("NameError", format!("name '{tool}' is not defined"))),
        }
    }

    fn open_mail(&self, id: &str) -> Option<&Email> {
        let email = self.mailbox.read(id)?;
        let allowed = self.read_scope == ReadScope::Any || self.mailbox.is_in_inbox(email, &self.body.inbox);
        allowed.then_some(email)
    }

    /// Notes what a call showed its node. Calls that raised have shown nothing.
    fn note(&mut self, node: &NodeKey, tool: &str, args: &Args, value: &Value) {
        let seen = self.nodes.entry(node.to_vec()).or_default();
        match tool {
            SEARCH => {
                if let Ok(search) = read_search(args) {
                    seen.searches.push(Searched { search, hits: hit_ids(value) });
                }
            }
            READ => match read_id(args) {
                Ok(_) if *value == Value::None => seen.read_invalid += 1,
                Ok(id) => {
                    seen.read.insert(id.to_owned());
                }
                Err(_) => {}
            },
            _ => {}
        }
    }
}

impl Episode for MailEpisode {
    fn root_goal(&self) -> Goal {
        let Body { question, inbox, query_date, .. } = &self.body;
        let text = format!("{question}\n\nThe question is about the inbox of {inbox}. Today is {query_date}.");
        Goal { text, targets: targets(self.body.query.as_ref()), context: Text::default() }
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
        let query = goal.targets.get("query").and_then(|query| serde_json::from_value(query.clone()).ok());
        self.nodes.insert(node.to_vec(), Seen { goal: goal.text.clone(), query, ..Seen::default() });
    }

    fn call(&mut self, node: &NodeKey, tool: &str, args: &Args) -> ToolResult {
        match self.run_tool(tool, args) {
            Ok(value) => {
                self.note(node, tool, args, &value);
                ToolResult::Value(value)
            }
            Err((kind, message)) => ToolResult::Raised { kind: kind.to_owned(), message },
        }
    }

    fn absorb(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult) {
        if let ToolResult::Value(value) = result {
            self.note(node, tool, args, value);
        }
    }

    fn delegate(&mut self, _node: &NodeKey, args: &Args) -> Result<Goal, String> {
        let [goal] = bind("launch_subagent", &["goal"], 1, args).map_err(|message| format!("Error: {message}"))?;
        let Some(Value::Str(text)) = goal else {
            let given = goal.map_or("NoneType", Value::python_type);
            return Err(format!("Error: goal must be a string, got {given}"));
        };
        if text.trim().is_empty() {
            return Err("Error: goal must not be empty".to_owned());
        }
        Ok(Goal { text: text.clone(), targets: targets(Query::read(text).as_ref()), context: Text::default() })
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        if node.len() <= 1 { judging::root(self, node, ending) } else { judging::child(self, node, ending) }
    }

    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String {
        match script {
            Script::Oracle => oracle::act(self, turn),
            Script::Noisy => noisy::act(self, turn),
        }
    }
}

fn targets(query: Option<&Query>) -> Json {
    json!({ "query": query })
}

fn read_search(args: &Args) -> Result<Search, String> {
    let [keywords, from_addr, to_addr, sent_after, sent_before, max_results] =
        bind(SEARCH, &SEARCH_PARAMETERS, 1, args)?;
    let keywords = match keywords {
        Some(Value::List(items) | Value::Tuple(items)) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .ok_or("keywords must be a list of strings")?,
        None | Some(Value::None) => Vec::new(),
        Some(other) => return Err(format!("keywords must be a list of strings, got {}", other.python_type())),
    };
    Ok(Search {
        keywords,
        from_addr: text("from_addr", from_addr)?,
        to_addr: text("to_addr", to_addr)?,
        sent_after: text("sent_after", sent_after)?,
        sent_before: text("sent_before", sent_before)?,
        max_results: match max_results {
            None | Some(Value::None) => None,
            Some(value) => Some(value.as_int().ok_or("max_results must be an integer")?),
        },
    })
}

/// An optional text; an empty one stands for none, as upstream.
fn text(name: &str, value: Option<&Value>) -> Result<Option<String>, String> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Str(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(format!("{name} must be a string, got {}", other.python_type())),
    }
}

fn read_id(args: &Args) -> Result<&str, String> {
    let [id] = bind(READ, &["message_id"], 1, args)?;
    match id {
        Some(Value::Str(id)) => Ok(id),
        other => Err(format!("message_id must be a string, got {}", other.map_or("NoneType", Value::python_type))),
    }
}

/// The ids of a search's answer.
fn hit_ids(value: &Value) -> Vec<String> {
    let Value::List(hits) = value else { return Vec::new() };
    let id = |hit: &Value| {
        let Value::Dict(pairs) = hit else { return None };
        let found = pairs.iter().find(|(key, _)| key.as_str() == Some("message_id"));
        found.and_then(|(_, id)| id.as_str()).map(str::to_owned)
    };
    hits.iter().filter_map(id).collect()
}

fn shown(email: &Email) -> Value {
    let list = |addresses: &[String]| Value::List(addresses.iter().map(Value::str).collect());
    Value::dict([
        ("message_id", Value::str(&email.message_id)),
        ("date", Value::str(&email.date)),
        ("subject", Value::str(&email.subject)),
        ("from_address", Value::str(&email.from_address)),
        ("to_addresses", list(&email.to_addresses)),
        ("cc_addresses", list(&email.cc_addresses)),
        ("bcc_addresses", list(&email.bcc_addresses)),
        ("body", Value::str(&email.body)),
        ("file_name", email.file_name.as_ref().map_or(Value::None, Value::str)),
    ])
}
