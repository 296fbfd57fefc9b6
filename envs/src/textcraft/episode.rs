//! One rollout's world as the engine sees it: tools, delegation, verdicts, scripted policies.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::recipes::{ItemId, RecipeDb};
use super::settings::Verify;
use super::tasks::{Body, TINY};
use super::{Move, TextCraft, World, noisy, oracle, prompt};
use crate::bind::bind;
use crate::{
    Args, Assessment, Ending, Episode, Goal, Judgement, NodeKey, PromptStyle, Script, Tool, ToolResult, Turn, Value,
};

const TOOLS: &[Tool] = &[
    Tool { name: "craft", is_async: false },
    Tool { name: "get_info", is_async: false },
    Tool { name: "view_inventory", is_async: false },
];

/// A target of a node: how many more must be in stock than when the node began.
#[derive(Clone, Debug)]
struct Target {
    name: String,
    /// `None` for a name that is not in the recipe book; such a target is never met.
    item: Option<ItemId>,
    count: u64,
    start: u64,
}

/// The open world of one rollout.
#[derive(Debug)]
pub struct CraftEpisode {
    world: World,
    root: Goal,
    nodes: BTreeMap<Vec<u32>, Vec<Target>>,
    verify: Verify,
    pub(super) batch: usize,
    /// Whether the oracle prints the inventory: where stock beyond base items can matter to what it does.
    pub(super) show_stock: bool,
}

impl CraftEpisode {
    pub(super) fn new(world: World, targets: Vec<(ItemId, u64)>, batch: usize, body: &Body, env: &TextCraft) -> Self {
        let root = goal(world.db(), &targets, String::new());
        let show_stock = body.preset != TINY || body.pre_crafted;
        Self { world, root, nodes: BTreeMap::new(), verify: env.config.verify, batch, show_stock }
    }

    /// Stock, ledger and recipes.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What the oracle does now, before it is put into Python.
    pub fn next_move(&self, turn: &Turn<'_>) -> Move {
        oracle::next_move(self, turn)
    }

    /// A node's targets with what is still lacking of each: its start plus its count, less what is in stock now.
    pub(super) fn remaining(&self, turn: &Turn<'_>) -> Vec<(ItemId, u64)> {
        let fresh;
        let targets = match self.nodes.get(turn.node) {
            Some(targets) => targets,
            None => {
                fresh = self.read_targets(&turn.goal.targets);
                &fresh
            }
        };
        let lacking = targets.iter().filter_map(|target| {
            let item = target.item?;
            let wanted = target.start.saturating_add(target.count);
            Some((item, wanted.saturating_sub(self.world.count(item)))).filter(|(_, lacking)| *lacking > 0)
        });
        lacking.collect()
    }

    /// A node's targets as they were set.
    pub(super) fn targets(&self, turn: &Turn<'_>) -> Vec<(ItemId, u64)> {
        let targets = self.read_targets(&turn.goal.targets);
        targets.iter().filter_map(|target| Some((target.item?, target.count))).collect()
    }

    fn read_targets(&self, json: &Json) -> Vec<Target> {
        let pairs = json.as_object().into_iter().flatten();
        let target = |(name, count): (&String, &Json)| {
            let item = self.world.db().find(name);
            let start = item.map_or(0, |item| self.world.count(item));
            Target { name: name.clone(), item, count: count.as_u64().unwrap_or(u64::MAX), start }
        };
        pairs.map(target).collect()
    }

    fn read_delegation(&self, args: &Args) -> Result<Goal, String> {
        let [targets, context] =
            bind("launch_subagent", &["targets", "context"], 1, args).map_err(|message| format!("Error: {message}"))?;
        let Some(Value::Dict(pairs)) = targets else {
            return Err(format!(
                "Error: targets must be a dict, got {}",
                targets.map_or("NoneType", Value::python_type)
            ));
        };
        let context = match context {
            None | Some(Value::None) => String::new(),
            Some(Value::Str(text)) => text.clone(),
            Some(other) => return Err(format!("Error: context must be a string, got {}", other.python_type())),
        };
        if pairs.is_empty() {
            return Err("Error: targets must not be empty".to_owned());
        }
        let targets = pairs.iter().map(|(name, count)| self.read_target(name, count)).collect::<Result<Vec<_>, _>>()?;
        Ok(goal(self.world.db(), &targets, context))
    }

    fn read_target(&self, name: &Value, count: &Value) -> Result<(ItemId, u64), String> {
        let Value::Str(name) = name else {
            return Err(format!("Error: target names must be strings, got {}", name.python_type()));
        };
        let item = self.world.db().find(name).ok_or_else(|| format!("Error: unknown item {name}"))?;
        if self.world.db().is_base(item) {
            return Err(format!("Error: {name} is a base item and cannot be crafted"));
        }
        let positive = if let Value::Int(count) = count { u64::try_from(*count).ok().filter(|&n| n > 0) } else { None };
        let refusal = || format!("Error: count of {name} must be a positive integer, got {}", count.repr());
        Ok((item, positive.ok_or_else(refusal)?))
    }

    fn run_tool(&mut self, node: &NodeKey, tool: &str, args: &Args) -> Result<Value, (&'static str, String)> {
        let type_error = |message| ("TypeError", message);
        match tool {
            "craft" => {
                let [ingredients, target] = bind(tool, &["ingredients", "target"], 2, args).map_err(type_error)?;
                let (ingredients, target) = (ingredients.unwrap_or(&Value::None), target.unwrap_or(&Value::None));
                Ok(Value::Str(self.world.craft(node, ingredients, target)))
            }
            "get_info" => {
                let [items] = bind(tool, &["items"], 1, args).map_err(type_error)?;
                let names = read_names(items.unwrap_or(&Value::None)).map_err(type_error)?;
                Ok(self.world.get_info(&names))
            }
            "view_inventory" => {
                let [] = bind(tool, &[], 0, args).map_err(type_error)?;
                Ok(self.world.view_inventory())
            }
            _ => Err(("NameError", format!("name '{tool}' is not defined"))),
        }
    }
}

impl Episode for CraftEpisode {
    fn root_goal(&self) -> Goal {
        self.root.clone()
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
        let targets = self.read_targets(&goal.targets);
        self.nodes.insert(node.to_vec(), targets);
        self.world.start(node);
    }

    fn call(&mut self, node: &NodeKey, tool: &str, args: &Args) -> ToolResult {
        match self.run_tool(node, tool, args) {
            Ok(value) => ToolResult::Value(value),
            Err((kind, message)) => ToolResult::Raised { kind: kind.to_owned(), message },
        }
    }

    fn absorb(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult) {
        // Only crafts change the world.
        let ("craft", ToolResult::Value(Value::Str(text))) = (tool, result) else { return };
        if let Ok([Some(ingredients), Some(target)]) = bind(tool, &["ingredients", "target"], 2, args) {
            self.world.absorb_craft(node, ingredients, target, text);
        }
    }

    fn delegate(&mut self, _node: &NodeKey, args: &Args) -> Result<Goal, String> {
        self.read_delegation(args)
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        self.world.end(node);
        let finished = ending.value.is_some_and(Value::truthy);
        let (mut delta, mut ledger) = (true, true);
        let mut rows = Vec::new();
        for target in self.nodes.get(node).into_iter().flatten() {
            let now = target.item.map_or(0, |item| self.world.count(item));
            let crafted = target.item.map_or(0, |item| self.world.crafted_by_subtree(node, item));
            delta &= target.item.is_some() && now >= target.start.saturating_add(target.count);
            ledger &= target.item.is_some() && crafted >= target.count;
            rows.push(json!({
                "item": target.name, "count": target.count, "start": target.start, "now": now, "crafted": crafted,
            }));
        }
        // A node that never began has nothing to succeed at.
        let known = !rows.is_empty();
        let success = match self.verify {
            Verify::Delta | Verify::Both => delta,
            Verify::Ledger => ledger,
        };
        Assessment::Judged(Judgement {
            score: if finished && known && success { 1.0 } else { 0.0 },
            source: format!("textcraft/{}", self.verify),
            evidence: json!({
                "finished": finished,
                "targets": rows,
                "delta": known && delta,
                "ledger": known && ledger,
                "disagree": known && delta != ledger,
            }),
        })
    }

    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String {
        match script {
            Script::Oracle => oracle::render(self, &oracle::next_move(self, turn)),
            Script::Noisy => noisy::act(self, turn),
        }
    }
}

fn goal(db: &RecipeDb, targets: &[(ItemId, u64)], context: String) -> Goal {
    let list: Vec<String> = targets.iter().map(|&(item, count)| format!("{count}x {}", db.name(item))).collect();
    let mut text = format!("Craft the following items: {}", list.join(", "));
    if !context.is_empty() {
        text.push_str("\n\nContext provided from parent agent: ");
        text.push_str(&context);
    }
    let targets: Map<String, Json> =
        targets.iter().map(|&(item, count)| (db.name(item).to_owned(), json!(count))).collect();
    Goal { text, targets: Json::Object(targets), context: context.into() }
}

fn read_names(items: &Value) -> Result<Vec<&str>, String> {
    let (Value::List(items) | Value::Tuple(items)) = items else {
        return Err(format!("items must be a list of item names, got {}", items.python_type()));
    };
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let not_text = || format!("item names must be strings, got {}", item.python_type());
        names.push(item.as_str().ok_or_else(not_text)?);
    }
    Ok(names)
}
