use std::sync::Arc;

use rao_envs::judge::Role;
use rao_envs::{
    Args, Assessment, Defaults, Ending, EnvError, Environment, Episode, Goal, NodeKey, PromptStyle, Question, Script,
    Selection, Task, Text, Tool, ToolResult, Turn,
};
use serde_json::json;

use crate::env;

/// TextCraft that judges no node itself: a judge is asked about every one, by its goal, its answer and what it did. The
/// notes say how many children a node had launched.
pub struct Asking(Arc<dyn Environment>);

impl Asking {
    /// The world.
    #[must_use]
    pub fn new() -> Self {
        Asking(env())
    }
}

impl Default for Asking {
    fn default() -> Self {
        Asking::new()
    }
}

impl Environment for Asking {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn config(&self) -> serde_json::Value {
        self.0.config()
    }

    fn defaults(&self, presets: &[String]) -> Defaults {
        self.0.defaults(presets)
    }

    fn default_preset(&self) -> &'static str {
        self.0.default_preset()
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        self.0.tasks(selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        Ok(Box::new(AskingEpisode { inner: self.0.open(task)?, nodes: Vec::new() }))
    }
}

struct AskingEpisode {
    inner: Box<dyn Episode>,
    nodes: Vec<(Vec<u32>, String)>,
}

impl Episode for AskingEpisode {
    fn root_goal(&self) -> Goal {
        self.inner.root_goal()
    }

    fn tools(&self) -> &'static [Tool] {
        self.inner.tools()
    }

    fn system_prompt(&self, style: PromptStyle, recursive: bool) -> String {
        self.inner.system_prompt(style, recursive)
    }

    fn action_space(&self, style: PromptStyle, recursive: bool) -> String {
        self.inner.action_space(style, recursive)
    }

    fn context_variable(&self) -> Option<&'static str> {
        self.inner.context_variable()
    }

    fn enter(&mut self, node: &NodeKey, goal: &Goal) {
        self.nodes.push((node.to_vec(), goal.text.clone()));
        self.inner.enter(node, goal);
    }

    fn call(&mut self, node: &NodeKey, tool: &str, args: &Args) -> ToolResult {
        self.inner.call(node, tool, args)
    }

    fn absorb(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult) {
        self.inner.absorb(node, tool, args, result);
    }

    fn delegate(&mut self, node: &NodeKey, args: &Args) -> Result<Goal, String> {
        self.inner.delegate(node, args)
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        let is_child = |other: &NodeKey| other.len() == node.len() + 1 && other.starts_with(node);
        let children = self.nodes.iter().filter(|(other, _)| is_child(other)).count();
        let goal = self.nodes.iter().find(|(other, _)| other == node).map(|(_, goal)| goal.clone());
        Assessment::Ask(Box::new(Question {
            role: if node.len() == 1 { Role::Root } else { Role::Child },
            rubric: "oolong/child",
            goal: goal.unwrap_or_default(),
            context: None::<Text>,
            truth: None,
            aliases: Vec::new(),
            answer: ending.value.cloned(),
            history: ending.history.to_vec(),
            error: ending.error.map(str::to_owned),
            notes: Some(json!({ "children": children })),
        }))
    }

    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String {
        self.inner.scripted(script, turn)
    }
}
