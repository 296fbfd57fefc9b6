//! The recipe book: what can be made of what, and how much of everything a goal needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value as Json;

/// An item's place in its [`RecipeDb`]: base items first, then by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub(crate) usize);

/// Amounts of items, in the order of the recipe book; zero amounts are left out.
pub type Stock = BTreeMap<ItemId, u64>;

/// One way to make an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// How many one execution makes; at least 1.
    pub result_count: u64,
    /// What one execution takes, in the order in which it is shown; amounts are at least 1.
    pub ingredients: Vec<(ItemId, u64)>,
}

/// An item and the ways to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: Arc<str>,
    /// The tier label, which `get_info` shows as `crafting_depth`; 0 for base items.
    pub tier: u32,
    /// The longest chain of crafts down to base items; 0 for base items. At most the tier label.
    pub true_depth: u32,
    /// The ways to make it; none for a base item.
    pub recipes: Vec<Recipe>,
}

/// One craft of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// What is made.
    pub item: ItemId,
    /// How often its (first) recipe is executed; at least 1.
    pub executions: u64,
    /// How many come out: executions times the recipe's result count.
    pub total: u64,
}

/// Why a plan cannot be carried out with the stock at hand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stock lacks base items: {}", .missing.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", "))]
pub struct Shortage {
    /// The base items that are missing, and how many.
    pub missing: Vec<(Arc<str>, u64)>,
}

/// Why a recipe file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// Not JSON, or not of the authors' shape.
    #[error("not a recipe file ({0}): expected `base_items` and `recipes`")]
    Shape(String),
    /// An ingredient that is neither a base item nor has a recipe.
    #[error("the recipe of {item} uses {ingredient}, which is neither a base item nor has a recipe")]
    UnknownIngredient {
        /// Whose recipe.
        item: String,
        /// The unknown name.
        ingredient: String,
    },
    /// A base item with a recipe, or an item listed twice.
    #[error("{0} is listed twice, or as a base item that has a recipe")]
    Twice(String),
    /// A recipe that makes nothing or takes nothing.
    #[error("the recipe of {0} has a zero count or no ingredients")]
    Empty(String),
    /// Items that need each other.
    #[error("{0} needs itself through its ingredients")]
    Cycle(String),
}

/// All items and recipes of one world. Nothing changes after it was made.
#[derive(Debug)]
pub struct RecipeDb {
    items: Arc<Vec<Item>>,
    by_name: Arc<BTreeMap<Arc<str>, ItemId>>,
    digest: String,
    /// The recipe that plans use, of items for which it is not the first.
    choices: BTreeMap<ItemId, usize>,
}

/// A named item on its way into a [`RecipeDb`].
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) tier: u32,
    /// (result count, ingredients); none for a base item.
    pub(crate) recipes: Vec<(u64, Vec<(String, u64)>)>,
}

#[derive(Deserialize)]
struct FileRecipe {
    result_count: u64,
    ingredients: serde_json::Map<String, Json>,
    depth: u32,
}

impl RecipeDb {
    /// Reads the authors' `recipes.json`: `base_items`, and `recipes[item] = {result_count, ingredients, depth}` or a
    /// list of such objects where an item can be made in several ways.
    ///
    /// # Errors
    /// [`RecipeError`] naming the item at fault.
    pub fn from_json(text: &str) -> Result<Self, RecipeError> {
        let shape = |reason: &str| RecipeError::Shape(reason.to_owned());
        let json: Json = serde_json::from_str(text).map_err(|error| RecipeError::Shape(error.to_string()))?;
        let bases = json.get("base_items").and_then(Json::as_array).ok_or_else(|| shape("no `base_items` list"))?;
        let recipes = json.get("recipes").and_then(Json::as_object).ok_or_else(|| shape("no `recipes` object"))?;
        let mut drafts = Vec::with_capacity(bases.len() + recipes.len());
        for base in bases {
            let name = base.as_str().ok_or_else(|| shape("a base item that is not a string"))?;
            drafts.push(Draft { name: name.to_owned(), tier: 0, recipes: Vec::new() });
        }
        for (name, body) in recipes {
            drafts.push(file_draft(name, body)?);
        }
        Self::from_drafts(drafts)
    }

    /// Orders base items before all others and these by tier, each in the order given; resolves names; measures depths.
    pub(crate) fn from_drafts(mut drafts: Vec<Draft>) -> Result<Self, RecipeError> {
        drafts.sort_by_key(|draft| (!draft.recipes.is_empty(), draft.tier));
        let mut by_name = BTreeMap::new();
        for (index, draft) in drafts.iter().enumerate() {
            if by_name.insert(Arc::from(draft.name.as_str()), ItemId(index)).is_some() {
                return Err(RecipeError::Twice(draft.name.clone()));
            }
        }
        let items = drafts.iter().map(|draft| resolve(draft, &by_name)).collect::<Result<Vec<_>, _>>()?;
        let items = Arc::new(measure_depths(items)?);
        let digest = compute_digest(&items);
        Ok(Self { items, by_name: Arc::new(by_name), digest, choices: BTreeMap::new() })
    }

    /// The same book, with other recipes for plans to use than the first of an item.
    pub(crate) fn with_choices(&self, choices: &BTreeMap<ItemId, usize>) -> Self {
        Self {
            items: Arc::clone(&self.items),
            by_name: Arc::clone(&self.by_name),
            digest: self.digest.clone(),
            choices: choices.clone(),
        }
    }

    /// The item of this name.
    pub fn find(&self, name: &str) -> Option<ItemId> {
        self.by_name.get(name).copied()
    }

    /// An item; the id must come from this book.
    pub fn item(&self, id: ItemId) -> &Item {
        &self.items[id.0]
    }

    /// An item's name.
    pub fn name(&self, id: ItemId) -> &str {
        &self.item(id).name
    }

    /// Whether an item has no recipe.
    pub fn is_base(&self, id: ItemId) -> bool {
        self.item(id).recipes.is_empty()
    }

    /// The recipe that plans use: the first, unless the task has settled on another.
    pub fn recipe(&self, id: ItemId) -> Option<&Recipe> {
        self.item(id).recipes.get(self.choices.get(&id).copied().unwrap_or(0))
    }

    /// All items: base items first, then by tier.
    pub fn items(&self) -> impl Iterator<Item = (ItemId, &Item)> {
        self.items.iter().enumerate().map(|(index, item)| (ItemId(index), item))
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Names the whole content: blake3 in hexadecimal over every item, tier, recipe and amount in order.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The items and everything that their first recipes need, ingredients before what is made of them.
    pub fn closure(&self, items: &[ItemId]) -> Vec<ItemId> {
        let mut seen = vec![false; self.items.len()];
        let mut waiting = items.to_vec();
        let mut found = Vec::new();
        while let Some(item) = waiting.pop() {
            if !std::mem::replace(&mut seen[item.0], true) {
                found.push(item);
                waiting
                    .extend(self.recipe(item).iter().flat_map(|recipe| recipe.ingredients.iter().map(|part| part.0)));
            }
        }
        found.sort_by_key(|&item| (self.item(item).true_depth, item));
        found
    }

    /// The fewest crafts that add `targets` to what `stock` holds now: needs are added up over the whole tree, divided
    /// by yields once per item, and surplus and stock of intermediates are used. Stock of a target itself is left
    /// alone, since success is measured as growth. Steps come in an order in which they can be carried out.
    ///
    /// # Errors
    /// [`Shortage`] when base items run out.
    pub fn plan(&self, targets: &[(ItemId, u64)], stock: &Stock) -> Result<Vec<PlanStep>, Shortage> {
        let needs = self.needs(targets, stock);
        let missing: Vec<_> = needs
            .iter()
            .filter(|(id, need)| self.is_base(**id) && need.missing > 0)
            .map(|(id, need)| (self.item(*id).name.clone(), need.missing))
            .collect();
        if missing.is_empty() { Ok(self.steps(&needs)) } else { Err(Shortage { missing }) }
    }

    /// The crafts of a plan, whether or not base items suffice.
    pub(crate) fn steps(&self, needs: &BTreeMap<ItemId, Need>) -> Vec<PlanStep> {
        let mut steps: Vec<_> = needs
            .iter()
            .filter(|(_, need)| need.executions > 0)
            .filter_map(|(&item, need)| {
                let recipe = self.recipe(item)?;
                let total = need.executions.saturating_mul(recipe.result_count);
                Some(PlanStep { item, executions: need.executions, total })
            })
            .collect();
        steps.sort_by_key(|step| (self.item(step.item).true_depth, step.item));
        steps
    }

    /// What [`RecipeDb::plan`] rests on, for every item that it touches.
    pub(crate) fn needs(&self, targets: &[(ItemId, u64)], stock: &Stock) -> BTreeMap<ItemId, Need> {
        let mut needs: BTreeMap<ItemId, Need> = BTreeMap::new();
        for &(item, count) in targets {
            let need = needs.entry(item).or_default();
            need.target = need.target.saturating_add(count);
        }
        let roots: Vec<ItemId> = needs.keys().copied().collect();
        // Descending true depth: when an item comes up, everything that consumes it has been counted.
        for item in self.closure(&roots).into_iter().rev() {
            let Some(need) = needs.get_mut(&item) else { continue };
            need.missing = if need.target > 0 {
                need.target.saturating_add(need.used)
            } else {
                need.used.saturating_sub(stock.get(&item).copied().unwrap_or(0))
            };
            let Some(recipe) = self.recipe(item) else { continue };
            need.executions = need.missing.div_ceil(recipe.result_count);
            let executions = need.executions;
            for &(part, amount) in recipe.ingredients.iter().filter(|_| executions > 0) {
                let part = needs.entry(part).or_default();
                part.used = part.used.saturating_add(amount.saturating_mul(executions));
            }
        }
        needs
    }

    /// Base items for `targets` when every item is crafted one execution per unit, as the authors provision tasks:
    /// yields are not divided out, so the stock suffices even for agents that share nothing.
    pub fn base_need_without_yields(&self, targets: &[(ItemId, u64)]) -> Stock {
        let mut needs: Stock = BTreeMap::new();
        for &(item, count) in targets {
            *needs.entry(item).or_default() += count;
        }
        let roots: Vec<ItemId> = needs.keys().copied().collect();
        for item in self.closure(&roots).into_iter().rev() {
            let Some(recipe) = self.recipe(item) else { continue };
            let count = needs.remove(&item).unwrap_or(0);
            for &(part, amount) in &recipe.ingredients {
                let need = needs.entry(part).or_default();
                *need = need.saturating_add(amount.saturating_mul(count));
            }
        }
        needs.retain(|_, count| *count > 0);
        needs
    }
}

/// Fills in the longest chains of crafts.
fn measure_depths(mut items: Vec<Item>) -> Result<Vec<Item>, RecipeError> {
    let mut consumers: Vec<Vec<usize>> = vec![Vec::new(); items.len()];
    let mut open: Vec<usize> = vec![0; items.len()];
    for (index, item) in items.iter().enumerate() {
        for (part, _) in item.recipes.iter().flat_map(|recipe| &recipe.ingredients) {
            consumers[part.0].push(index);
            open[index] += 1;
        }
    }
    let mut ready: Vec<usize> = (0..items.len()).filter(|&index| open[index] == 0).collect();
    let mut done = 0;
    while let Some(index) = ready.pop() {
        done += 1;
        let depth = items[index].true_depth + 1;
        for &consumer in &consumers[index] {
            let item = &mut items[consumer];
            item.true_depth = item.true_depth.max(depth);
            open[consumer] -= 1;
            if open[consumer] == 0 {
                ready.push(consumer);
            }
        }
    }
    if done == items.len() {
        return Ok(items);
    }
    let stuck = open.iter().position(|&count| count > 0).map(|index| items[index].name.to_string());
    Err(RecipeError::Cycle(stuck.unwrap_or_default()))
}

fn compute_digest(items: &[Item]) -> String {
    let mut hasher = blake3::Hasher::new();
    for item in items {
        hasher.update(format!("{} {}", item.name, item.tier).as_bytes());
        for recipe in &item.recipes {
            hasher.update(format!(" {}:", recipe.result_count).as_bytes());
            for (part, amount) in &recipe.ingredients {
                hasher.update(format!("{amount} {},", items[part.0].name).as_bytes());
            }
        }
        hasher.update(b"\n");
    }
    hasher.finalize().to_hex().to_string()
}

/// How much of one item a plan needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// How many more of it must be in stock at the end.
    pub(crate) target: u64,
    /// How many the plan's other crafts take.
    pub(crate) used: u64,
    /// How many must be made, or for a base item are lacking.
    pub(crate) missing: u64,
    /// How often its recipe is executed.
    pub(crate) executions: u64,
}

fn file_draft(name: &str, body: &Json) -> Result<Draft, RecipeError> {
    let bodies = body.as_array().map_or_else(|| vec![body.clone()], Clone::clone);
    let mut draft = Draft { name: name.to_owned(), tier: 0, recipes: Vec::with_capacity(bodies.len()) };
    for body in bodies {
        let recipe: FileRecipe =
            serde_json::from_value(body).map_err(|error| RecipeError::Shape(format!("{name}: {error}")))?;
        let ingredients = recipe.ingredients.into_iter().map(|(part, amount)| {
            let amount = amount.as_u64().ok_or_else(|| RecipeError::Empty(name.to_owned()))?;
            Ok((part, amount))
        });
        draft.tier = draft.tier.max(recipe.depth);
        draft.recipes.push((recipe.result_count, ingredients.collect::<Result<_, _>>()?));
    }
    if draft.recipes.is_empty() {
        return Err(RecipeError::Empty(draft.name));
    }
    Ok(draft)
}

fn resolve(draft: &Draft, by_name: &BTreeMap<Arc<str>, ItemId>) -> Result<Item, RecipeError> {
    let mut recipes = Vec::with_capacity(draft.recipes.len());
    for (result_count, parts) in &draft.recipes {
        if *result_count == 0 || parts.is_empty() || parts.iter().any(|(_, amount)| *amount == 0) {
            return Err(RecipeError::Empty(draft.name.clone()));
        }
        let ingredients = parts.iter().map(|(part, amount)| match by_name.get(part.as_str()) {
            Some(&id) => Ok((id, *amount)),
            None => Err(RecipeError::UnknownIngredient { item: draft.name.clone(), ingredient: part.clone() }),
        });
        recipes.push(Recipe { result_count: *result_count, ingredients: ingredients.collect::<Result<_, _>>()? });
    }
    Ok(Item { name: Arc::from(draft.name.as_str()), tier: draft.tier, true_depth: 0, recipes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLD: &str = r#"{"base_items": ["b", "w"], "recipes": {
        "plank": {"result_count": 4, "ingredients": {"w": 1}, "depth": 1},
        "rod": {"result_count": 2, "ingredients": {"plank": 1, "b": 2}, "depth": 2},
        "gate": {"result_count": 1, "ingredients": {"plank": 3, "rod": 3}, "depth": 5}}}"#;

    fn stock(db: &RecipeDb, pairs: &[(&str, u64)]) -> Stock {
        pairs.iter().map(|&(name, count)| (db.find(name).unwrap(), count)).collect()
    }

    fn planned(db: &RecipeDb, target: (&str, u64), held: &[(&str, u64)]) -> Vec<(String, u64, u64)> {
        let steps = db.plan(&[(db.find(target.0).unwrap(), target.1)], &stock(db, held)).unwrap();
        steps.iter().map(|step| (db.name(step.item).to_owned(), step.executions, step.total)).collect()
    }

    #[test]
    fn plan_adds_needs_up_and_divides_by_the_yield_once() {
        let db = RecipeDb::from_json(WORLD).unwrap();
        // 2 gates take 6 planks and 6 rods; 6 rods are 3 executions and 3 planks more: 9 planks, 3 executions.
        let steps = planned(&db, ("gate", 2), &[("w", 3), ("b", 6)]);
        assert_eq!(steps, [("plank".into(), 3, 12), ("rod".into(), 3, 6), ("gate".into(), 2, 2)]);
    }

    #[test]
    fn plan_uses_stock_of_parts_but_not_of_the_target() {
        let db = RecipeDb::from_json(WORLD).unwrap();
        let steps = planned(&db, ("gate", 1), &[("w", 1), ("b", 9), ("gate", 5), ("rod", 3)]);
        assert_eq!(steps, [("plank".into(), 1, 4), ("gate".into(), 1, 1)]);
    }

    #[test]
    fn plan_says_what_is_missing() {
        let db = RecipeDb::from_json(WORLD).unwrap();
        let gate = db.find("gate").unwrap();
        let error = db.plan(&[(gate, 1)], &stock(&db, &[("w", 1), ("b", 1)])).unwrap_err();
        assert_eq!(error.to_string(), "the stock lacks base items: 3 b, 1 w");
    }

    #[test]
    fn the_authors_provision_ignores_yields() {
        let db = RecipeDb::from_json(WORLD).unwrap();
        let need = db.base_need_without_yields(&[(db.find("gate").unwrap(), 2)]);
        assert_eq!(need, stock(&db, &[("b", 12), ("w", 12)]));
    }

    #[test]
    fn depth_is_measured_beside_the_label() {
        let db = RecipeDb::from_json(WORLD).unwrap();
        let gate = db.item(db.find("gate").unwrap());
        assert_eq!((gate.tier, gate.true_depth), (5, 3));
        let closure: Vec<_> = db.closure(&[db.find("rod").unwrap()]).iter().map(|&id| db.name(id)).collect();
        assert_eq!(closure, ["b", "w", "plank", "rod"]);
    }

    #[test]
    fn bad_files_are_refused_by_name() {
        let bad = |base: &str, recipes: &str| {
            RecipeDb::from_json(&format!(r#"{{"base_items": [{base}], "recipes": {{{recipes}}}}}"#)).unwrap_err()
        };
        let recipe = |name: &str, count: u32, part: &str| {
            format!(r#""{name}": {{"result_count": {count}, "ingredients": {{"{part}": 1}}, "depth": 1}}"#)
        };
        assert!(matches!(RecipeDb::from_json("[]"), Err(RecipeError::Shape(_))));
        assert_eq!(bad(r#""a""#, &recipe("a", 1, "a")), RecipeError::Twice("a".into()));
        assert_eq!(bad(r#""a""#, &recipe("x", 0, "a")), RecipeError::Empty("x".into()));
        let cycle = format!("{},{}", recipe("x", 1, "y"), recipe("y", 1, "x"));
        assert_eq!(bad("", &cycle), RecipeError::Cycle("x".into()));
        let error = bad(r#""a""#, &recipe("x", 1, "z"));
        assert_eq!(error, RecipeError::UnknownIngredient { item: "x".into(), ingredient: "z".into() });
    }

    #[test]
    fn the_digest_follows_the_content() {
        let digest = |text: &str| RecipeDb::from_json(text).unwrap().digest().to_owned();
        assert_eq!(digest(WORLD), digest(WORLD));
        assert_ne!(digest(WORLD), digest(&WORLD.replace("\"b\": 2", "\"b\": 1")));
    }
}
