//! The world of one rollout: a stock that all nodes share, and a ledger of every craft.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::recipes::{ItemId, Recipe, RecipeDb, Stock};
use crate::{NodeKey, Value};

/// What a successful `craft` says begins like this.
const CRAFTED: &str = "Successfully crafted ";

/// Some units of an ingredient that a craft took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// What.
    pub item: ItemId,
    /// How many.
    pub amount: u64,
    /// The node that had crafted them; `None` for the initial inventory.
    pub from: Option<Vec<u32>>,
}

/// One craft that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Who crafted.
    pub node: Vec<u32>,
    /// What came out.
    pub item: ItemId,
    /// How many.
    pub produced: u64,
    /// What went in, and who had made it.
    pub consumed: Vec<Consumed>,
}

/// Units of one item with one origin; consumption takes the oldest first.
#[derive(Clone, Debug)]
struct Lot {
    by: Option<Vec<u32>>,
    count: u64,
}

/// Stock and ledger. Every craft is atomic: it validates, consumes and produces, or changes nothing.
#[derive(Clone, Debug)]
pub struct World {
    db: Arc<RecipeDb>,
    stock: Stock,
    lots: BTreeMap<ItemId, Vec<Lot>>,
    ledger: Vec<LedgerEntry>,
    reserve: bool,
    running: BTreeSet<Vec<u32>>,
}

/// Whether `node` lies in the subtree of `root`, itself included.
fn within(node: &NodeKey, root: &NodeKey) -> bool {
    node.starts_with(root)
}

impl World {
    /// A world with nothing but its initial stock. With `reserve`, what a running child's subtree made cannot be
    /// consumed from outside that subtree.
    pub fn new(db: Arc<RecipeDb>, mut stock: Stock, reserve: bool) -> Self {
        stock.retain(|_, count| *count > 0);
        let lots = stock.iter().map(|(&item, &count)| (item, vec![Lot { by: None, count }])).collect();
        Self { db, stock, lots, ledger: Vec::new(), reserve, running: BTreeSet::new() }
    }

    /// The recipe book.
    pub fn db(&self) -> &Arc<RecipeDb> {
        &self.db
    }

    /// What is in stock now.
    pub fn stock(&self) -> &Stock {
        &self.stock
    }

    /// How many of an item are in stock now.
    pub fn count(&self, item: ItemId) -> u64 {
        self.stock.get(&item).copied().unwrap_or(0)
    }

    /// Every craft so far, in order.
    pub fn ledger(&self) -> &[LedgerEntry] {
        &self.ledger
    }

    /// How many of an item a node and its descendants crafted, whatever became of them.
    pub fn crafted_by_subtree(&self, root: &NodeKey, item: ItemId) -> u64 {
        let made = self.ledger.iter().filter(|entry| entry.item == item && within(&entry.node, root));
        total(made.map(|entry| entry.produced))
    }

    /// A node runs from here on; what its subtree crafts is reserved for it, if the world reserves.
    pub fn start(&mut self, node: &NodeKey) {
        self.running.insert(node.to_vec());
    }

    /// A node has ended; what its subtree made is free again.
    pub fn end(&mut self, node: &NodeKey) {
        self.running.remove(node);
    }

    /// The tool `craft`: the exact amounts of one recipe, a multiple of its yield. Returns the text that the agent sees.
    pub fn craft(&mut self, node: &NodeKey, ingredients: &Value, target: &Value) -> String {
        match self.try_craft(node, ingredients, target) {
            Ok(text) | Err(text) => text,
        }
    }

    fn try_craft(&mut self, node: &NodeKey, ingredients: &Value, target: &Value) -> Result<String, String> {
        let Value::Dict(given) = ingredients else {
            return Err(format!("Error: ingredients must be a dict, got {}", ingredients.python_type()));
        };
        let (name, count) = read_target(target).ok_or("Error: target must be a tuple of (item_name, count)")?;
        let count = u64::try_from(count)
            .ok()
            .filter(|&count| count > 0)
            .ok_or_else(|| format!("Error: target count must be positive, got {count}"))?;
        let item = self.db.find(name).filter(|&item| !self.db.is_base(item));
        let item = item.ok_or_else(|| format!("Error: No recipe found for {name}"))?;
        let db = Arc::clone(&self.db);
        let recipes = &db.item(item).recipes;
        let mut errors = Vec::new();
        for recipe in recipes {
            match self.check(node, recipe, count, given) {
                Ok(taken) => {
                    self.execute(node, item, count, &taken);
                    return Ok(format!("{CRAFTED}{count} {name}(s)"));
                }
                Err(reason) => errors.push(format!("Recipe {}: {reason}", errors.len() + 1)),
            }
        }
        Err(format!("Error: All {} recipe(s) failed for {name}. Errors:\n{}", recipes.len(), errors.join("\n")))
    }

    /// What one recipe would take for `count` units, or why it cannot be used.
    fn check(
        &self,
        node: &NodeKey,
        recipe: &Recipe,
        count: u64,
        given: &[(Value, Value)],
    ) -> Result<Vec<(ItemId, u64)>, String> {
        let needed = self.match_amounts(recipe, count, given)?;
        let lacks = |have: &dyn Fn(ItemId) -> u64| {
            let short = needed.iter().filter(|&&(item, need)| have(item) < need);
            let text = short.map(|&(item, need)| format!("{}: need {need}, have {}", self.db.name(item), have(item)));
            text.collect::<Vec<_>>().join(", ")
        };
        let missing = lacks(&|item| self.count(item));
        if !missing.is_empty() {
            return Err(format!("Insufficient ingredients in inventory: {missing}"));
        }
        let reserved = lacks(&|item| self.free(node, item));
        if reserved.is_empty() { Ok(needed) } else { Err(format!("Reserved by a running subagent: {reserved}")) }
    }

    /// The recipe's amounts for `count` units, if exactly these were given.
    fn match_amounts(
        &self,
        recipe: &Recipe,
        count: u64,
        given: &[(Value, Value)],
    ) -> Result<Vec<(ItemId, u64)>, String> {
        let yields = recipe.result_count;
        if !count.is_multiple_of(yields) {
            return Err(format!("Target count {count} is not divisible by recipe result count {yields}"));
        }
        let mut needed = Vec::with_capacity(recipe.ingredients.len());
        for &(item, amount) in &recipe.ingredients {
            let name = self.db.name(item);
            let need = amount.saturating_mul(count / yields);
            let provided = given.iter().find(|(key, _)| key.as_str() == Some(name));
            let (_, provided) = provided.ok_or_else(|| format!("Missing required ingredient {name}"))?;
            if !equals(provided, need) {
                return Err(format!("Wrong amount of {name}. Need {need}, provided {}", provided.repr()));
            }
            needed.push((item, need));
        }
        let known = |key: &Value| needed.iter().any(|&(item, _)| key.as_str() == Some(self.db.name(item)));
        let extra: Vec<String> = given.iter().filter(|(key, _)| !known(key)).map(|(key, _)| key.to_text()).collect();
        if extra.is_empty() { Ok(needed) } else { Err(format!("Extra ingredients not required: {}", extra.join(", "))) }
    }

    /// How many units of an item `node` may consume.
    fn free(&self, node: &NodeKey, item: ItemId) -> u64 {
        let lots = self.lots.get(&item).into_iter().flatten();
        total(lots.filter(|lot| self.allowed(node, lot)).map(|lot| lot.count))
    }

    fn allowed(&self, node: &NodeKey, lot: &Lot) -> bool {
        let Some(by) = lot.by.as_deref().filter(|_| self.reserve) else { return true };
        // Only the maker and its ancestors can hold a reservation on what it made.
        !(1..=by.len()).any(|depth| self.running.contains(&by[..depth]) && !within(node, &by[..depth]))
    }

    /// Takes and makes; what is not there is not taken, so that a damaged log cannot drive a count below zero.
    fn execute(&mut self, node: &NodeKey, item: ItemId, produced: u64, needed: &[(ItemId, u64)]) {
        let mut consumed = Vec::new();
        for &(part, amount) in needed {
            self.take(node, part, amount, &mut consumed);
        }
        let held = self.stock.entry(item).or_default();
        *held = held.saturating_add(produced);
        self.lots.entry(item).or_default().push(Lot { by: Some(node.to_vec()), count: produced });
        self.ledger.push(LedgerEntry { node: node.to_vec(), item, produced, consumed });
    }

    fn take(&mut self, node: &NodeKey, item: ItemId, mut amount: u64, consumed: &mut Vec<Consumed>) {
        let mut lots = self.lots.remove(&item).unwrap_or_default();
        for lot in &mut lots {
            let taken = if self.allowed(node, lot) { lot.count.min(amount) } else { 0 };
            if taken > 0 {
                lot.count -= taken;
                amount -= taken;
                consumed.push(Consumed { item, amount: taken, from: lot.by.clone() });
            }
        }
        lots.retain(|lot| lot.count > 0);
        let left = total(lots.iter().map(|lot| lot.count));
        if left == 0 {
            self.stock.remove(&item);
        } else {
            self.stock.insert(item, left);
            self.lots.insert(item, lots);
        }
    }

    /// Takes over a logged craft: if `text` says that it succeeded, its effect is applied, whatever the stock.
    pub fn absorb_craft(&mut self, node: &NodeKey, ingredients: &Value, target: &Value, text: &str) {
        let (Value::Dict(given), Some((name, count))) = (ingredients, read_target(target)) else { return };
        let (Ok(count), Some(item)) = (u64::try_from(count), self.db.find(name)) else { return };
        if !text.starts_with(CRAFTED) {
            return;
        }
        let db = Arc::clone(&self.db);
        let recipes = &db.item(item).recipes;
        // With several fitting recipes the call took the first that the stock allowed.
        let checked = recipes.iter().find_map(|recipe| self.check(node, recipe, count, given).ok());
        let matched = || recipes.iter().find_map(|recipe| self.match_amounts(recipe, count, given).ok());
        if let Some(needed) = checked.or_else(matched) {
            self.execute(node, item, count, &needed);
        }
    }

    /// The tool `get_info`. Unknown items are no error.
    pub fn get_info(&self, names: &[&str]) -> Value {
        Value::List(names.iter().map(|name| self.info(name)).collect())
    }

    fn info(&self, name: &str) -> Value {
        let id = self.db.find(name);
        let base = id.is_some_and(|id| self.db.is_base(id));
        let recipes = id.map(|id| self.db.item(id).recipes.as_slice()).unwrap_or_default();
        let recipe = |recipe: &Recipe| {
            let parts = recipe.ingredients.iter().map(|&(part, amount)| (self.db.name(part), int(amount)));
            Value::dict([("ingredients", Value::dict(parts)), ("result_count", int(recipe.result_count))])
        };
        Value::dict([
            ("item", Value::str(name)),
            ("can_craft", Value::Bool(id.is_some() && !base)),
            ("is_base", Value::Bool(base)),
            ("in_inventory", int(id.map_or(0, |id| self.count(id)))),
            ("crafting_depth", int(id.map_or(0, |id| u64::from(self.db.item(id).tier)))),
            ("recipes", Value::List(recipes.iter().map(recipe).collect())),
        ])
    }

    /// The tool `view_inventory`: a copy of the stock, base items first.
    pub fn view_inventory(&self) -> Value {
        Value::dict(self.stock.iter().map(|(&item, &count)| (self.db.name(item), int(count))))
    }
}

/// A sum that a damaged log cannot overflow.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn int(value: u64) -> Value {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

fn read_target(target: &Value) -> Option<(&str, i64)> {
    let Value::Tuple(parts) = target else { return None };
    let [name, count] = parts.as_slice() else { return None };
    Some((name.as_str()?, count.as_int()?))
}

/// Python's `provided == need`.
fn equals(provided: &Value, need: u64) -> bool {
    match provided {
        Value::Float(value) => *value == need as f64,
        _ => provided.as_int().is_some_and(|value| u64::try_from(value) == Ok(need)),
    }
}
